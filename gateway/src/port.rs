//! One gRPC port: every connection is served on its own, grows old, and is ended gently.
//!
//! Guarantees: a connection that is as old as it may get is told GOAWAY and its streams end with
//! OK, while calls in flight finish; so its client connects anew, perhaps to another replica. Ages
//! are spread by a fifth. At shutdown every connection is ended like that. Nothing is kept of a
//! connection whose client has left. A call of KEDA's that is not answered in `CALL_WITHIN`, or in
//! the time that it gives itself, is an error, and nothing goes on working on it. A peer that
//! answers no ping is gone.

use std::convert::Infallible;
use std::pin::pin;
use std::time::Duration;

use futures_util::{Stream, StreamExt as _, stream};
use proto::keda::external_scaler_server::{ExternalScaler, ExternalScalerServer};
use proto::uplink::uplink_server::{Uplink, UplinkServer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic::transport::Server;
use tonic::transport::server::Connected;
use tonic_health::pb::health_server::{Health, HealthServer};
use tracing::debug;

use crate::contain::{Contain, Life};
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
    pub routes: Routes,
    /// How: pings, streams, time for a call.
    pub server: Server,
    /// What its calls may cost.
    pub contain: Contain,
    /// How old a connection may get; none is without end.
    pub age: Option<Duration>,
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
            server: server().timeout(CALL_WITHIN).max_concurrent_streams(MOST_KEDA_STREAMS),
            contain,
            age: Some(age),
        }
    }

    /// The agents' port.
    pub fn for_agents(ingest: impl Uplink, contain: Contain) -> Self {
        let ingest = UplinkServer::new(ingest).max_decoding_message_size(MAX_AGENT_BYTES);
        Self {
            routes: Routes::new(ingest).prepare(),
            server: server().max_concurrent_streams(MOST_AGENT_STREAMS),
            contain: contain.with_streams(AGENT_STREAMS),
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
        let age = self.age.map(|age| age.mul_f64(0.8 + 0.4 * fastrand::f64()));
        // The server serves a stream of connections and would wait for a second one without end.
        let gone = io.gone();
        let end = async {
            let old = async {
                match age {
                    Some(age) => tokio::time::sleep(age).await,
                    None => std::future::pending().await,
                }
            };
            life.run_until_cancelled(gone.run_until_cancelled(old)).await;
            life.cancel();
        };
        let only = stream::once(async { Ok::<_, Infallible>(io) }).chain(stream::pending());
        let mut server = self.server.layer(self.contain.living(life.clone()));
        let served = server.add_routes(self.routes).serve_with_incoming_shutdown(only, end);
        if let Err(error) = served.await {
            debug!(%error, "connection ended");
        }
    }
}

fn server() -> Server {
    Server::builder()
        .http2_keepalive_interval(Some(PING_EVERY))
        .http2_keepalive_timeout(Some(PING_WITHIN))
        .http2_max_header_list_size(MOST_HEADER_BYTES)
}
