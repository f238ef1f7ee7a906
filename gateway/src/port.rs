//! One gRPC port: every connection is served on its own, grows old, and is ended gently.
//!
//! Guarantees: a connection that is as old as it may get is told GOAWAY and its streams end with
//! OK, while calls in flight finish; so its client connects anew, perhaps to another replica. Ages
//! are spread by a fifth. At shutdown every connection is ended like that. Nothing is kept of a
//! connection whose client has left. A call of KEDA's that is not answered in `CALL_WITHIN`, or in
//! the time that it gives itself, is an error, and nothing goes on working on it. A peer that
//! answers no ping is gone.

/// The uplink as a service.
mod uplink;

use std::convert::Infallible;
use std::pin::pin;
use std::time::Duration;

use futures_util::{Stream, StreamExt as _};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use proto::keda::external_scaler_server::{ExternalScaler, ExternalScalerServer};
use proto::uplink::uplink_server::Uplink;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::Request;
use tonic::service::Routes;
use tonic::transport::server::Connected;
use tonic_health::pb::health_server::{Health, HealthServer};
use tower::{Layer as _, Service as _};
use tracing::debug;

use self::uplink::UplinkService;
use crate::contain::{Contain, Life};
use crate::deadline;
use crate::limit::guarded::Guarded;

/// KEDA's calls are answered from memory; one that is not by then is an error.
const CALL_WITHIN: Duration = Duration::from_secs(1);
/// A peer that does not answer a ping within a few seconds is gone.
const PING_EVERY: Duration = Duration::from_secs(10);
const PING_WITHIN: Duration = Duration::from_secs(5);
/// Bytes of one request of KEDA's; its metadata are a few hundred.
const MAX_KEDA_BYTES: usize = 256 << 10;
/// Bytes of one message of an agent; an inventory of 1024 devices has some hundred thousand.
const MAX_AGENT_BYTES: usize = 4 << 20;
/// The transport's own bounds lie above those that are counted, and stop what is far beyond: bytes
/// of a request's headers, and streams of one connection (KEDA has one connection for all its
/// calls).
const MOST_HEADER_BYTES: u32 = 64 << 10;
const MOST_KEDA_STREAMS: u32 = 50_000;
const MOST_AGENT_STREAMS: u32 = 64;
/// Streams of one agent's connection; an agent has one.
const AGENT_STREAMS: usize = 16;

/// How connections of a port are served.
#[derive(Clone)]
pub struct Port {
    /// What is served.
    routes: Routes,
    /// How: pings, streams, sizes.
    http: http2::Builder<TokioExecutor>,
    /// What its calls may cost.
    contain: Contain,
    /// How long a call may take; its caller may say less.
    within: Option<Duration>,
    /// How old a connection may get; none is without end.
    age: Option<Duration>,
}

impl Port {
    /// KEDA's port, whose connections get `age` old.
    pub fn for_keda(
        scaler: impl ExternalScaler,
        health: HealthServer<impl Health>,
        contain: Contain,
        age: Duration,
    ) -> Self {
        let scaler = ExternalScalerServer::new(scaler).max_decoding_message_size(MAX_KEDA_BYTES);
        Self {
            routes: Routes::new(scaler).add_service(health).prepare(),
            http: http(MOST_KEDA_STREAMS),
            contain,
            within: Some(CALL_WITHIN),
            age: Some(age),
        }
    }

    /// The agents' port.
    pub fn for_agents(ingest: impl Uplink, contain: Contain) -> Self {
        let ingest = UplinkService::new(ingest, MAX_AGENT_BYTES);
        Self {
            routes: Routes::new(ingest).prepare(),
            http: http(MOST_AGENT_STREAMS),
            contain: contain.with_streams(AGENT_STREAMS),
            within: None,
            // Agents look up the replicas themselves and have a stream to each.
            age: None,
        }
    }

    /// Serves the connections of `incoming` until `shutdown`, and then until the last has ended.
    pub async fn serve<IO>(
        self,
        incoming: impl Stream<Item = Guarded<IO>>,
        shutdown: CancellationToken,
    ) where
        IO: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
    {
        let mut connections = JoinSet::new();
        {
            // Dropped before the others are waited for: nobody is to wait for an accept.
            let mut incoming = pin!(incoming);
            loop {
                tokio::select! {
                    () = shutdown.cancelled() => break,
                    Some(ended) = connections.join_next() => self.note(ended),
                    next = incoming.next() => match next {
                        Some(io) => drop(connections.spawn(self.clone().keep(io, shutdown.child_token()))),
                        None => break,
                    },
                }
            }
        }
        while let Some(ended) = connections.join_next().await {
            self.note(ended);
        }
    }

    /// Calls contain their own panics; this is for what is around them.
    fn note(&self, ended: Result<(), JoinError>) {
        if let Some(Ok(panic)) = ended.err().map(JoinError::try_into_panic) {
            self.contain.panicked(&*panic);
        }
    }

    async fn keep<IO>(self, io: Guarded<IO>, life: Life)
    where
        IO: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
    {
        let Self { routes, http, contain, within, age } = self;
        let peer = io.connect_info();
        let calls = contain.living(life.clone()).layer(routes);
        let calls = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(peer.clone());
            let own = deadline::of_caller(request.headers());
            let within = within.into_iter().chain(own).min();
            // Routes are always ready.
            let call = calls.clone().call(request.map(Body::new));
            async move {
                let Some(within) = within else { return call.await };
                let late =
                    |_| Ok::<_, Infallible>(Status::cancelled("Timeout expired").into_http());
                timeout(within, call).await.unwrap_or_else(late)
            }
        });
        let mut connection = pin!(http.serve_connection(TokioIo::new(io), calls));
        let age = age.map(|age| age.mul_f64(0.8 + 0.4 * fastrand::f64()));
        let old = async {
            match age {
                Some(age) => sleep(age).await,
                None => std::future::pending().await,
            }
        };
        let ended = tokio::select! {
            ended = &mut connection => Some(ended),
            _ = life.run_until_cancelled(old) => None,
        };
        let ended = match ended {
            // Its streams find that out themselves, once they have read what came before.
            Some(ended) => ended,
            None => {
                life.cancel();
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            debug!(%error, "connection ended");
        }
    }
}

fn http(most_streams: u32) -> http2::Builder<TokioExecutor> {
    let mut http = http2::Builder::new(TokioExecutor::new());
    http.timer(TokioTimer::new())
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_WITHIN)
        .max_concurrent_streams(most_streams)
        .max_header_list_size(MOST_HEADER_BYTES);
    http
}
