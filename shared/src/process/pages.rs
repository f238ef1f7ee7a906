//! Serves pages over HTTP/1.
//!
//! Guarantees: a head must come whole within `HEAD_WITHIN` and be no larger than `MAX_HEAD`; what
//! is not is told to whoever serves, so that it can be counted. A connection lasts `AGE`, and
//! `LEAVE_WITHIN` longer if its client does not take an answer; its attendant knows whether it is
//! at work and may dismiss it. At shutdown idle connections are closed at once, answers under way
//! are finished.

use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::{Stream, StreamExt as _};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::server::conn::http1::Builder;
use hyper::service::{Service as _, service_fn};
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

/// Goes with a connection, and hears what it does.
pub trait Attendant: Send + Sync + 'static {
    /// A request has come whole and is being answered.
    fn works(&self) {}

    /// The last answer is made, and nothing new is asked.
    fn waits(&self) {}

    /// Ready once the connection is to be closed at once; it never is by itself.
    fn dismissed(&self) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }
}

/// A request at work, until it is dropped.
struct Work<A: Attendant>(Arc<A>);

impl<A: Attendant> Drop for Work<A> {
    fn drop(&mut self) {
        self.0.waits();
    }
}

/// An answer whose end the attendant hears of.
struct Answer<A: Attendant, B> {
    body: Pin<Box<B>>,
    _work: Work<A>,
}

impl<A: Attendant, B: Body> Body for Answer<A, B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        self.body.as_mut().poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Serves `pages` on the connections of `incoming` until `shutdown`, and then until the last has
/// ended. Each connection comes with its attendant, which is kept as long as it;
/// `closed` hears of clients that do
/// not keep to the bounds.
pub async fn serve<IO, A, P, B>(
    incoming: impl Stream<Item = (IO, A)>,
    pages: P,
    closed: impl Fn(Closed) + Clone + Send + 'static,
    shutdown: CancellationToken,
) where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    A: Attendant,
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
                    Some((io, attendant)) => {
                        let (pages, shutdown) = (pages.clone(), shutdown.clone());
                        let closed = closed.clone();
                        connections.spawn(async move {
                            if let Some(why) = keep(io, attendant, pages, shutdown).await {
                                closed(why);
                            }
                        });
                    }
                    None => break,
                },
            }
        }
    }
    while connections.join_next().await.is_some() {}
}

async fn keep<IO, A, P, B>(
    io: IO,
    attendant: A,
    pages: P,
    shutdown: CancellationToken,
) -> Option<Closed>
where
    A: Attendant,
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    P: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Clone,
    B: Body<Data: Send, Error: std::error::Error + Send + Sync> + Send + 'static,
{
    let mut builder = Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD_WITHIN).max_buf_size(MAX_HEAD);
    let pages = TowerToHyperService::new(pages);
    let attendant = Arc::new(attendant);
    let attends = attendant.clone();
    let attended = service_fn(move |request| {
        attends.works();
        let work = Work(attends.clone());
        let answer = pages.call(request);
        async move {
            let answer = answer.await?;
            Ok::<_, Infallible>(answer.map(|body| Answer { body: Box::pin(body), _work: work }))
        }
    });
    let mut connection = pin!(builder.serve_connection(TokioIo::new(io), attended));
    tokio::select! {
        ended = &mut connection => return ended.err().and_then(|error| why(&error)),
        () = attendant.dismissed() => return None,
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
