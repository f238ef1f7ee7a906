//! KEDA's external scaler: each call is check, answer, convert.
//!
//! Guarantees: exactly one spec and one value; float and integer agree (`int = ceil`, a target is
//! at least 1); a name is matched whatever its case, with or without KEDA's `sN-`; no call waits
//! for anything.

/// Activity and specs, streamed.
pub mod stream;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use proto::keda::external_scaler_server::ExternalScaler;
use proto::keda::{
    GetMetricSpecResponse, GetMetricsRequest, GetMetricsResponse, IsActiveResponse, MetricSpec,
    MetricValue, ScaledObjectRef,
};
use shared::process::Clock;
use shared::time::Timestamp;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Request, Response, Status};
use tracing::warn;

use self::stream::Span;
use crate::answer::{Answers, Question, Refusal};
use crate::contain::{self, Connection};
use crate::trigger::spec;

/// Streams that KEDA may hold open at once: one a trigger and replica of KEDA.
pub const MAX_STREAMS: i64 = 20_000;
/// Metadata keys a request may carry.
const MAX_KEYS: usize = 128;
/// Bytes of an error's message: it travels in a header, percent-encoded, and clients bound those.
const MAX_MESSAGE: usize = 1_300;
/// At most one line about refused metadata is logged in this time.
const LOG_EVERY: Duration = Duration::from_secs(1);
/// Seconds; an answer is made from memory.
const BUCKETS: [f64; 10] = [50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 50e-3, 1.0];

/// The service KEDA calls.
#[derive(Clone)]
pub struct Scaler {
    answers: Arc<Answers>,
    calls: Calls,
    logged: Arc<Mutex<Option<Timestamp>>>,
    shutdown: CancellationToken,
}

/// What is measured about KEDA's calls.
#[derive(Clone)]
pub struct Calls {
    durations: Family<Call, Histogram>,
    streams: Family<Stream, Gauge>,
    streams_refused: Family<Stream, Counter>,
    contained: contain::Counts,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Call {
    method: &'static str,
    code: &'static str,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Stream {
    method: &'static str,
}

impl Default for Calls {
    fn default() -> Self {
        Self {
            durations: Family::new_with_constructor(|| Histogram::new(BUCKETS)),
            streams: Family::default(),
            streams_refused: Family::default(),
            contained: contain::Counts::default(),
        }
    }
}

impl Calls {
    /// The same, with panics of streams counted in `contained`.
    #[must_use]
    pub fn contained(self, contained: contain::Counts) -> Self {
        Self { contained, ..self }
    }

    /// Registers the metrics.
    pub fn register(&self, registry: &mut Registry) {
        let help = "Time to answer KEDA's unary calls, by method and gRPC code";
        registry.register("rpc_duration_seconds", help, self.durations.clone());
        let help = "Streams that KEDA holds open, by method";
        registry.register("rpc_streams", help, self.streams.clone());
        let help = "Streams refused because too many are open, by method";
        registry.register("rpc_streams_refused", help, self.streams_refused.clone());
    }

    fn ended<T>(&self, method: &'static str, answer: &Result<T, Status>, took: Duration) {
        let code = answer.as_ref().map_or_else(|status| code_name(status.code()), |_| "OK");
        self.durations.get_or_create(&Call { method, code }).observe(took.as_secs_f64());
    }

    /// Counts one more; refused where there are too many.
    fn stream(&self, method: &'static str) -> Result<OpenStream, Status> {
        let gauge = self.streams.get_or_create(&Stream { method }).clone();
        if gauge.inc() < MAX_STREAMS {
            return Ok(OpenStream(gauge, self.contained.clone()));
        }
        gauge.dec();
        self.streams_refused.get_or_create(&Stream { method }).inc();
        let why = format!("{MAX_STREAMS} {method} streams are open; no more are taken on");
        Err(Status::resource_exhausted(why))
    }
}

#[cfg(test)]
impl reference::Specimens for Calls {
    fn specimens(&self) {
        self.durations.specimens();
        self.streams.specimens();
        self.streams_refused.specimens();
    }
}

/// Counts a stream for as long as it lives.
struct OpenStream(Gauge, contain::Counts);

impl OpenStream {
    /// Where a panic of the stream is counted.
    fn contained(&self) -> contain::Counts {
        self.1.clone()
    }

    /// How many there are by now, this one included.
    fn streams(&self) -> u32 {
        u32::try_from(self.0.get()).unwrap_or(u32::MAX)
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.dec();
    }
}

fn code_name(code: Code) -> &'static str {
    match code {
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::NotFound => "NOT_FOUND",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Unavailable => "UNAVAILABLE",
        _ => "OTHER",
    }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        let code = match refusal {
            Refusal::InvalidArgument(_) => Code::InvalidArgument,
            Refusal::NotFound(_) => Code::NotFound,
            Refusal::Unavailable(_) => Code::Unavailable,
            Refusal::FailedPrecondition(_) => Code::FailedPrecondition,
        };
        let mut why = refusal.to_string();
        if why.len() > MAX_MESSAGE {
            why.truncate(why.floor_char_boundary(MAX_MESSAGE));
            why.push_str(" …");
        }
        Self::new(code, why)
    }
}

fn question(reference: &ScaledObjectRef) -> Result<Question<'_>, Status> {
    let ScaledObjectRef { name, namespace, scaler_metadata: metadata } = reference;
    for (what, value) in [("name", name), ("namespace", namespace)] {
        if value.is_empty() || value.len() > proto::convert::MAX_NAME {
            let why =
                format!("the scaled object's {what} has {} bytes; 1 to 253 are right", value.len());
            return Err(Status::invalid_argument(why));
        }
    }
    if metadata.len() > MAX_KEYS {
        let why = format!("{} metadata keys; at most {MAX_KEYS} are read", metadata.len());
        return Err(Status::invalid_argument(why));
    }
    Ok(Question { namespace, name, metadata })
}

/// Whether KEDA's `asked` means `name`: lower-cased by old versions, prefixed by some.
fn is_asked(name: &str, asked: &str) -> bool {
    let unprefixed = asked.strip_prefix(['s', 'S']).and_then(|rest| rest.split_once('-'));
    let index = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    asked.eq_ignore_ascii_case(name)
        || unprefixed.is_some_and(|(n, rest)| index(n) && rest.eq_ignore_ascii_case(name))
}

#[expect(clippy::cast_possible_truncation, reason = "values and targets are at most 9e15")]
fn whole(value: f64) -> i64 {
    value as i64
}

fn spec_message(spec: &spec::MetricSpec) -> GetMetricSpecResponse {
    let spec = MetricSpec {
        metric_name: spec.name.to_string(),
        target_size: whole(spec.target.round()).max(1),
        target_size_float: spec.target,
    };
    GetMetricSpecResponse { metric_specs: vec![spec] }
}

impl Scaler {
    /// Serves `answers`; streams end with their connections, and when `shutdown` is cancelled.
    pub fn new(answers: Arc<Answers>, calls: Calls, shutdown: CancellationToken) -> Self {
        Self { answers, calls, logged: Arc::default(), shutdown }
    }

    /// How long a stream may last; its connection ends before the gateway.
    fn span<T>(&self, request: &Request<T>) -> Span {
        let connection = request.extensions().get();
        let life = connection.map_or(&self.shutdown, Connection::life);
        Span::new(life.clone(), request.metadata())
    }

    fn clock(&self) -> Clock {
        self.answers.clock()
    }

    fn measured<T>(
        &self,
        method: &'static str,
        answer: impl FnOnce() -> Result<T, Status>,
    ) -> Result<Response<T>, Status> {
        let start: Timestamp = self.clock().now();
        let answer = answer();
        self.calls.ended(method, &answer, self.clock().now().since(start));
        answer.map(Response::new)
    }

    fn specs(&self, reference: &ScaledObjectRef) -> Result<GetMetricSpecResponse, Status> {
        let question = question(reference)?;
        let spec = self.answers.spec_of(question).map_err(Status::from);
        if let Err(status) = &spec {
            self.log_refused(question, status);
        }
        Ok(spec_message(&spec?))
    }

    /// KEDA shows the error of a GetMetricSpec to nobody.
    fn log_refused(&self, question: Question<'_>, status: &Status) {
        let now = self.clock().now();
        let mut last = self.logged.lock();
        if last.is_none_or(|last| now.since(last) >= LOG_EVERY) {
            *last = Some(now);
            let (namespace, name) = (question.namespace, question.name);
            warn!(namespace, name, error = status.message(), "trigger metadata refused");
        }
    }

    fn metrics(&self, request: &GetMetricsRequest) -> Result<GetMetricsResponse, Status> {
        let missing = || Status::invalid_argument("scaledObjectRef is missing");
        let question = question(request.scaled_object_ref.as_ref().ok_or_else(missing)?)?;
        let asked = &request.metric_name;
        let value = self.answers.value_named(question, |name| {
            let why = || format!("metric {asked:?} is not this trigger's; {name:?} is");
            is_asked(name, asked).then_some(()).ok_or_else(|| Refusal::InvalidArgument(why()))
        })?;
        Ok(GetMetricsResponse {
            metric_values: vec![MetricValue {
                metric_name: asked.clone(),
                metric_value: whole(value.ceil()),
                metric_value_float: value,
            }],
        })
    }

    fn activity(&self, reference: &ScaledObjectRef) -> Result<IsActiveResponse, Status> {
        let result = self.answers.is_active(question(reference)?)?;
        Ok(IsActiveResponse { result })
    }
}

#[tonic::async_trait]
impl ExternalScaler for Scaler {
    async fn get_metric_spec(
        &self,
        request: Request<ScaledObjectRef>,
    ) -> Result<Response<GetMetricSpecResponse>, Status> {
        self.measured("GetMetricSpec", || self.specs(request.get_ref()))
    }

    async fn get_metrics(
        &self,
        request: Request<GetMetricsRequest>,
    ) -> Result<Response<GetMetricsResponse>, Status> {
        self.measured("GetMetrics", || self.metrics(request.get_ref()))
    }

    async fn is_active(
        &self,
        request: Request<ScaledObjectRef>,
    ) -> Result<Response<IsActiveResponse>, Status> {
        self.measured("IsActive", || self.activity(request.get_ref()))
    }

    type StreamIsActiveStream = ReceiverStream<Result<IsActiveResponse, Status>>;

    async fn stream_is_active(
        &self,
        request: Request<ScaledObjectRef>,
    ) -> Result<Response<Self::StreamIsActiveStream>, Status> {
        let span = self.span(&request);
        let reference = request.into_inner();
        let trigger = self.answers.trigger_of(question(&reference)?)?;
        let open = self.calls.stream("StreamIsActive")?;
        let standing = stream::Standing { reference, demand: trigger.demand };
        let stream = stream::activity(self.answers.clone(), standing, span, open);
        Ok(Response::new(stream))
    }

    type StreamMetricSpecStream = ReceiverStream<Result<GetMetricSpecResponse, Status>>;

    async fn stream_metric_spec(
        &self,
        request: Request<ScaledObjectRef>,
    ) -> Result<Response<Self::StreamMetricSpecStream>, Status> {
        let specs = self.specs(request.get_ref())?;
        let open = self.calls.stream("StreamMetricSpec")?;
        Ok(Response::new(stream::once(specs, self.span(&request), open)))
    }
}

#[cfg(test)]
mod tests {
    use super::is_asked;

    #[test]
    fn a_metric_is_known_whatever_keda_made_of_its_name() {
        for asked in
            ["gpu_utilization", "GPU_Utilization", "s0-gpu_utilization", "S12-gpu_utilization"]
        {
            assert!(is_asked("gpu_utilization", asked), "{asked}");
        }
        for other in
            ["", "gpu", "s0-", "s0gpu_utilization", "x0-gpu_utilization", "s-1-gpu_utilization"]
        {
            assert!(!is_asked("gpu_utilization", other), "{other}");
        }
        assert!(
            is_asked("sm_activity", "s3-sm_activity") && is_asked("sm_activity", "sm_activity")
        );
    }
}
