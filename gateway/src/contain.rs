//! What a call may cost the process.
//!
//! Guarantees: a panic costs the call or stream it happened in and nothing else; it is counted and
//! answered INTERNAL, or 500. No more than so many calls are in hand at once; one more is answered
//! RESOURCE_EXHAUSTED. What a panic says stays in the log.

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
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::codegen::http::{Request, Response};
use tower::{Layer, Service};
use tracing::error;

/// Calls of one gRPC port in hand at once.
pub const MAX_CALLS: usize = 1_024;

/// Cancelled when the streams of a connection are to end: it is old, or the gateway shuts down.
/// Handlers find it among a request's extensions.
pub type Life = CancellationToken;

/// Panics and calls turned away.
#[derive(Clone, Default)]
pub struct Counts {
    panics: Family<In, Counter>,
    shed: Family<In, Counter>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, EncodeLabelSet)]
struct In {
    part: &'static str,
}

impl Counts {
    /// Registers the metrics.
    pub fn register(&self, registry: &mut Registry) {
        let help = "Panics that were contained, by the part of the gateway they happened in";
        registry.register("panics", help, self.panics.clone());
        let help = "Calls turned away because too many were in hand";
        registry.register("calls_shed", help, self.shed.clone());
    }

    /// Notes a panic in `part`.
    pub fn panicked(&self, part: &'static str, panic: &(dyn Any + Send)) {
        self.panics.get_or_create(&In { part }).inc();
        error!(part, panic = said(panic), "panic contained");
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
    /// With too many calls in hand.
    fn exhausted() -> Self;
}

impl Faults for Response<tonic::body::Body> {
    fn internal() -> Self {
        internal().into_http()
    }

    fn exhausted() -> Self {
        let why = format!("{MAX_CALLS} calls are in hand; no more are taken on");
        Status::resource_exhausted(why).into_http()
    }
}

impl Faults for axum::response::Response {
    fn internal() -> Self {
        plain(axum::http::StatusCode::INTERNAL_SERVER_ERROR)
    }

    fn exhausted() -> Self {
        plain(axum::http::StatusCode::SERVICE_UNAVAILABLE)
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
    life: Option<Life>,
}

impl Contain {
    /// For the port called `part`, with [`MAX_CALLS`].
    pub fn new(part: &'static str, counts: Counts) -> Self {
        Self { part, counts, room: Arc::new(Semaphore::new(MAX_CALLS)), life: None }
    }

    /// The same port's, for a connection with this life.
    pub fn living(&self, life: Life) -> Self {
        Self { life: Some(life), ..self.clone() }
    }
}

impl<S> Layer<S> for Contain {
    type Service = Contained<S>;

    fn layer(&self, inner: S) -> Contained<S> {
        Contained { inner, contain: self.clone() }
    }
}

/// A service whose panics are contained.
#[derive(Clone)]
pub struct Contained<S> {
    inner: S,
    contain: Contain,
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
        let Contain { part, counts, room, life } = self.contain.clone();
        let Ok(place) = room.try_acquire_owned() else {
            counts.shed.get_or_create(&In { part }).inc();
            return Box::pin(std::future::ready(Ok(R::exhausted())));
        };
        if let Some(life) = life {
            request.extensions_mut().insert(life);
        }
        let call = catch_unwind(AssertUnwindSafe(|| self.inner.call(request)));
        Box::pin(async move {
            let _place = place;
            let answered = match call {
                Ok(call) => AssertUnwindSafe(call).catch_unwind().await,
                Err(panic) => Err(panic),
            };
            answered.unwrap_or_else(|panic| {
                counts.panicked(part, &*panic);
                Ok(R::internal())
            })
        })
    }
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
