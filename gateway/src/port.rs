//! One gRPC port: every connection is served on its own, grows old, and is ended gently.
//!
//! Guarantees: a connection that is as old as it may get is told GOAWAY and its streams end with
//! OK, while calls in flight finish; so its client connects anew, perhaps to another replica. Ages
//! are spread by a fifth. At shutdown every connection is ended like that.

use std::convert::Infallible;
use std::time::Duration;

use futures_util::{Stream, StreamExt as _, stream};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic::transport::Server;
use tonic::transport::server::Connected;
use tracing::debug;

use crate::contain::{Contain, Life};

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
    /// Serves the connections of `incoming` until `shutdown`, and then until the last has ended.
    pub async fn serve<IO>(self, incoming: impl Stream<Item = IO>, shutdown: CancellationToken)
    where
        IO: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
    {
        let mut connections = JoinSet::new();
        {
            // Dropped before the others are waited for: nobody is to wait for an accept.
            let mut incoming = std::pin::pin!(incoming);
            loop {
                tokio::select! {
                    () = shutdown.cancelled() => break,
                    Some(_) = connections.join_next() => {}
                    next = incoming.next() => match next {
                        Some(io) => drop(connections.spawn(self.clone().keep(io, shutdown.child_token()))),
                        None => break,
                    },
                }
            }
        }
        while connections.join_next().await.is_some() {}
    }

    async fn keep<IO>(self, io: IO, life: Life)
    where
        IO: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
    {
        let age = self.age.map(|age| age.mul_f64(0.8 + 0.4 * fastrand::f64()));
        let end = async {
            let old = async {
                match age {
                    Some(age) => tokio::time::sleep(age).await,
                    None => std::future::pending().await,
                }
            };
            life.run_until_cancelled(old).await;
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
