//! What a call may cost the process.
//!
//! Guarantees: a panic costs the call or stream it happened in and nothing else; it is counted and
//! answered INTERNAL, or 500. No more than so many calls are in hand at once, and none has larger
//! headers than it may; what is over is answered RESOURCE_EXHAUSTED and counted. What a panic says
//! stays in the log.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::FutureExt as _;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError, mpsc};
use tokio_util::sync::CancellationToken;
use tonic::codegen::http::header::{HeaderMap, HeaderName, HeaderValue};
use tonic::codegen::http::{Request, Response};
use tonic::{Code, Status};
use tower::{Layer, Service};
use tracing::error;

/// Calls of one gRPC port in hand at once.
pub const MAX_CALLS: usize = 1_024;
/// Bytes of a call's headers, counted as HTTP/2 counts them; those of KEDA and of an agent with a
/// token are a few thousand.
pub const MAX_HEADER_BYTES: usize = 16 << 10;
/// What HTTP/2 adds for each field (RFC 9113, 6.5.2).
const FIELD_BYTES: usize = 32;

/// Cancelled when the streams of a connection are to end: it is old, or the gateway shuts down.
pub type Life = CancellationToken;

/// The connection that a request came over. Handlers find it among the request's extensions.
#[derive(Clone, Debug)]
pub struct Connection(Arc<OfConnection>);

#[derive(Debug)]
struct OfConnection {
    life: Life,
    streams: Option<Arc<Semaphore>>,
}

impl Connection {
    /// Ends with it.
    pub fn life(&self) -> &Life {
        &self.0.life
    }

    /// A place for one more of its streams, held as long as the stream; none is needed where their
    /// number is not bounded.
    ///
    /// # Errors
    /// When there are as many as may be.
    pub fn open_stream(&self) -> Result<Option<OwnedSemaphorePermit>, TryAcquireError> {
        let open = |streams: &Arc<Semaphore>| streams.clone().try_acquire_owned();
        self.0.streams.as_ref().map(open).transpose()
    }
}

/// Panics and calls turned away.
#[derive(Clone, Default)]
pub struct Counts {
    panics: Family<In, Counter>,
    shed: Family<Shed, Counter>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, EncodeLabelSet)]
struct In {
    part: &'static str,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Shed {
    part: &'static str,
    why: &'static str,
}

/// What a call was turned away for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// Too many are in hand.
    Calls,
    /// Its headers are too large.
    Headers,
    /// Its message is too large.
    Message,
    /// Its connection has too many streams.
    Streams,
}

impl Over {
    fn why(self) -> &'static str {
        match self {
            Self::Calls => "calls",
            Self::Headers => "headers",
            Self::Message => "message",
            Self::Streams => "streams",
        }
    }
}

impl Counts {
    /// Registers the metrics.
    pub fn register(&self, registry: &mut Registry) {
        let help = "Panics that were contained, by the part of the gateway they happened in";
        registry.register("panics", help, self.panics.clone());
        let help = "Calls turned away: too many `calls` were in hand, the `headers` or the \
                    `message` were too large, or the connection had too many `streams`";
        registry.register("calls_shed", help, self.shed.clone());
    }

    /// Notes a panic in `part`.
    pub fn panicked(&self, part: &'static str, panic: &(dyn Any + Send)) {
        self.panics.get_or_create(&In { part }).inc();
        error!(part, panic = said(panic), "panic contained");
    }

    /// Notes a call that `part` turned away.
    pub fn shed(&self, part: &'static str, over: Over) {
        self.shed.get_or_create(&Shed { part, why: over.why() }).inc();
    }

    /// Calls that `part` turned away so far.
    pub fn sheds(&self, part: &'static str, over: Over) -> u64 {
        self.shed.get_or_create(&Shed { part, why: over.why() }).get()
    }

    /// Panics in `part` so far.
    pub fn panics(&self, part: &'static str) -> u64 {
        self.panics.get_or_create(&In { part }).get()
    }
}

#[cfg(test)]
impl reference::Specimens for Counts {
    fn specimens(&self) {
        self.panics.specimens();
        self.shed.specimens();
    }
}

fn said(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

/// A stream's task: if it panics, the stream ends with INTERNAL instead of OK.
pub async fn stream<T>(
    counts: Counts,
    part: &'static str,
    messages: mpsc::Sender<Result<T, Status>>,
    task: impl Future<Output = ()>,
) {
    if let Err(panic) = AssertUnwindSafe(task).catch_unwind().await {
        counts.panicked(part, &*panic);
        // A client that does not read is told when it does, or has gone.
        messages.send(Err(internal())).await.ok();
    }
}

fn internal() -> Status {
    Status::internal("the gateway failed at this call; its log says why")
}

/// How a port answers what it cannot.
pub trait Faults {
    /// After a panic.
    fn internal() -> Self;
    /// With too many calls in hand, or headers too large.
    fn refused(over: Over) -> Self;
    /// Whether it says that the call's message was too large.
    fn is_oversize(&self) -> bool;
}

impl Faults for Response<tonic::body::Body> {
    fn internal() -> Self {
        internal().into_http()
    }

    fn refused(over: Over) -> Self {
        let why = match over {
            Over::Headers => format!("headers larger than {MAX_HEADER_BYTES} bytes"),
            _ => format!("{MAX_CALLS} calls are in hand; no more are taken on"),
        };
        Status::resource_exhausted(why).into_http()
    }

    /// The transport's own word for it, which no handler says.
    fn is_oversize(&self) -> bool {
        let status = self.headers().get("grpc-status");
        status.is_some_and(|status| Code::from_bytes(status.as_bytes()) == Code::OutOfRange)
    }
}

impl Faults for axum::response::Response {
    fn internal() -> Self {
        plain(axum::http::StatusCode::INTERNAL_SERVER_ERROR)
    }

    fn refused(over: Over) -> Self {
        plain(match over {
            Over::Headers => axum::http::StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            _ => axum::http::StatusCode::SERVICE_UNAVAILABLE,
        })
    }

    fn is_oversize(&self) -> bool {
        false
    }
}

fn plain(code: axum::http::StatusCode) -> axum::response::Response {
    let mut response = axum::response::Response::default();
    *response.status_mut() = code;
    response
}

/// Contains the calls of one port; a layer.
#[derive(Clone)]
pub struct Contain {
    part: &'static str,
    counts: Counts,
    room: Arc<Semaphore>,
    most_streams: Option<usize>,
    connection: Option<Connection>,
}

impl Contain {
    /// For the port called `part`, with [`MAX_CALLS`].
    pub fn new(part: &'static str, counts: Counts) -> Self {
        let room = Arc::new(Semaphore::new(MAX_CALLS));
        Self { part, counts, room, most_streams: None, connection: None }
    }

    /// The same, whose handlers give each connection `most` streams.
    #[must_use]
    pub fn with_streams(self, most: usize) -> Self {
        Self { most_streams: Some(most), ..self }
    }

    /// The same port's, for a connection with this life.
    pub fn living(&self, life: Life) -> Self {
        let streams = self.most_streams.map(|most| Arc::new(Semaphore::new(most)));
        let connection = Connection(Arc::new(OfConnection { life, streams }));
        Self { connection: Some(connection), ..self.clone() }
    }

    /// Notes that a connection of the port panicked, outside of any call.
    pub fn panicked(&self, panic: &(dyn Any + Send)) {
        self.counts.panicked(self.part, panic);
    }
}

impl<S> Layer<S> for Contain {
    type Service = Contained<S>;

    fn layer(&self, inner: S) -> Contained<S> {
        Contained { inner, contain: Arc::new(self.clone()) }
    }
}

/// A service whose panics are contained.
#[derive(Clone)]
pub struct Contained<S> {
    inner: S,
    /// Counted once a call, and not each of its parts.
    contain: Arc<Contain>,
}

impl<S, B, R> Service<Request<B>> for Contained<S>
where
    S: Service<Request<B>, Response = R>,
    S::Future: Send + 'static,
    R: Faults + Send + 'static,
    S::Error: Send + 'static,
{
    type Response = R;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<R, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let contain = self.contain.clone();
        let Contain { part, counts, room, connection, .. } = &*contain;
        let room = room.clone().try_acquire_owned();
        let over = match &room {
            Err(_) => Some(Over::Calls),
            Ok(_) if size(request.headers()) > MAX_HEADER_BYTES => Some(Over::Headers),
            Ok(_) => None,
        };
        if let Some(over) = over {
            counts.shed(part, over);
            return Box::pin(std::future::ready(Ok(R::refused(over))));
        }
        if let Some(connection) = connection {
            request.extensions_mut().insert(connection.clone());
        }
        let call = catch_unwind(AssertUnwindSafe(|| self.inner.call(request)));
        Box::pin(async move {
            let _place = room;
            let Contain { part, counts, .. } = &*contain;
            let answered = match call {
                Ok(call) => AssertUnwindSafe(call).catch_unwind().await,
                Err(panic) => Err(panic),
            };
            let answered = answered.unwrap_or_else(|panic| {
                counts.panicked(part, &*panic);
                Ok(R::internal())
            });
            if answered.as_ref().is_ok_and(R::is_oversize) {
                counts.shed(part, Over::Message);
            }
            answered
        })
    }
}

fn size(headers: &HeaderMap) -> usize {
    let field = |(name, value): (&HeaderName, &HeaderValue)| {
        name.as_str().len() + value.len() + FIELD_BYTES
    };
    headers.iter().map(field).sum()
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;
    use tower::ServiceExt as _;

    type Grpc = Response<tonic::body::Body>;

    fn code(answer: &Grpc) -> Option<&str> {
        answer.headers().get("grpc-status")?.to_str().ok()
    }

    #[tokio::test]
    async fn a_panic_is_counted_and_answered_internal_without_its_words() {
        let counts = Counts::default();
        let broken = tower::service_fn(async |_: Request<()>| -> Result<Grpc, Infallible> {
            panic!("a secret")
        });
        let contained = Contain::new("keda", counts.clone()).layer(broken);
        for calls in 1..=3 {
            let Ok(answer) = contained.clone().oneshot(Request::new(())).await;
            assert_eq!(code(&answer), Some("13"));
            assert!(!format!("{answer:?}").contains("secret"));
            assert_eq!(counts.panics("keda"), calls);
        }
    }

    #[tokio::test]
    async fn a_call_too_many_is_refused_and_ends_of_others_make_room() {
        let slow = tower::service_fn(async |_: Request<()>| -> Result<Grpc, Infallible> {
            std::future::pending().await
        });
        let contained = Contain::new("keda", Counts::default()).layer(slow);
        let mut held: Vec<_> =
            (0..MAX_CALLS).map(|_| contained.clone().oneshot(Request::new(()))).collect();
        for call in &mut held {
            assert!(call.now_or_never().is_none());
        }
        let Ok(refused) = contained.clone().oneshot(Request::new(())).await;
        assert_eq!(code(&refused), Some("8"));
        drop(held);
        assert!(contained.oneshot(Request::new(())).now_or_never().is_none(), "taken on");
    }

    #[tokio::test]
    async fn headers_too_large_and_a_message_too_large_are_counted() {
        let counts = Counts::default();
        let oversize = tower::service_fn(async |_: Request<()>| -> Result<Grpc, Infallible> {
            Ok(Status::out_of_range("decoded message length too large").into_http())
        });
        let contained = Contain::new("keda", counts.clone()).layer(oversize);
        let shed = |over| counts.sheds("keda", over);
        let mut request = Request::new(());
        let large = HeaderValue::from_bytes(&[b'x'; MAX_HEADER_BYTES]).unwrap();
        request.headers_mut().insert("x-large", large);
        let Ok(refused) = contained.clone().oneshot(request).await;
        assert_eq!(code(&refused), Some("8"));
        assert_eq!((shed(Over::Headers), shed(Over::Message)), (1, 0));
        let Ok(refused) = contained.oneshot(Request::new(())).await;
        assert_eq!(code(&refused), Some("11"));
        assert_eq!((shed(Over::Headers), shed(Over::Message)), (1, 1));
    }

    #[tokio::test]
    async fn a_stream_whose_task_panics_ends_with_internal() {
        let (messages, mut stream) = mpsc::channel::<Result<(), Status>>(1);
        let task = async { panic!("at the disco") };
        stream_with(messages, task).await;
        let end = stream.recv().await.unwrap().unwrap_err();
        assert_eq!(end.code(), tonic::Code::Internal);
        assert!(stream.recv().await.is_none());
    }

    async fn stream_with(
        messages: mpsc::Sender<Result<(), Status>>,
        task: impl Future<Output = ()>,
    ) {
        stream(Counts::default(), "keda", messages, task).await;
    }
}
