//! Serves pages over HTTP/1.
//!
//! Guarantees: a head must come whole within `HEAD_WITHIN` and be no larger than `MAX_HEAD`; what
//! is not is told to whoever serves, so that it can be counted. A connection lasts `AGE`, and `LEAVE_WITHIN` longer if its client does not take an answer. At
//! shutdown idle connections are closed at once, answers under way are finished.

use std::convert::Infallible;
use std::pin::pin;
use std::time::Duration;

use futures_util::{Stream, StreamExt as _};
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1::Builder;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tower_service::Service;

const HEAD_WITHIN: Duration = Duration::from_secs(10);
const MAX_HEAD: usize = 16 << 10;
const AGE: Duration = Duration::from_secs(300);
const LEAVE_WITHIN: Duration = Duration::from_secs(10);

/// Why a connection was closed on a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    /// The head of its request was too large.
    TooLarge,
    /// The head of its request did not come whole in time.
    TooSlow,
}

/// Serves `pages` on the connections of `incoming` until `shutdown`, and then until the last has
/// ended. What comes with a connection is kept as long as it; `closed` hears of clients that do
/// not keep to the bounds.
pub async fn serve<IO, K, P, B>(
    incoming: impl Stream<Item = (IO, K)>,
    pages: P,
    closed: impl Fn(Closed) + Clone + Send + 'static,
    shutdown: CancellationToken,
) where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    K: Send + 'static,
    P: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
    P: Clone + Send + 'static,
    P::Future: Send,
    B: Body<Data: Send, Error: std::error::Error + Send + Sync> + Send + 'static,
{
    let mut connections = JoinSet::new();
    {
        let mut incoming = pin!(incoming);
        loop {
            tokio::select! {
                () = shutdown.cancelled() => break,
                Some(_) = connections.join_next() => {}
                next = incoming.next() => match next {
                    Some((io, kept)) => {
                        let (pages, shutdown) = (pages.clone(), shutdown.clone());
                        let closed = closed.clone();
                        connections.spawn(async move {
                            if let Some(why) = keep(io, pages, shutdown).await {
                                closed(why);
                            }
                            drop(kept);
                        });
                    }
                    None => break,
                },
            }
        }
    }
    while connections.join_next().await.is_some() {}
}

async fn keep<IO, P, B>(io: IO, pages: P, shutdown: CancellationToken) -> Option<Closed>
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    P: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Clone,
    B: Body<Data: Send, Error: std::error::Error + Send + Sync> + Send + 'static,
{
    let mut builder = Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD_WITHIN).max_buf_size(MAX_HEAD);
    let mut connection =
        pin!(builder.serve_connection(TokioIo::new(io), TowerToHyperService::new(pages)));
    tokio::select! {
        ended = &mut connection => return ended.err().and_then(|error| why(&error)),
        () = shutdown.cancelled() => {}
        () = sleep(AGE) => {}
    }
    connection.as_mut().graceful_shutdown();
    timeout(LEAVE_WITHIN, connection).await.ok();
    None
}

/// Anything else that ends a connection concerns its client only.
fn why(error: &hyper::Error) -> Option<Closed> {
    if error.is_parse_too_large() {
        return Some(Closed::TooLarge);
    }
    error.is_timeout().then_some(Closed::TooSlow)
}
