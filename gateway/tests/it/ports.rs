//! What a port promises whatever its handlers do: KEDA's port before a scaler that hangs and panics.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use gateway::accept::{self, Entrance};
use gateway::contain::{self, Contain};
use gateway::limit::{self, Door};
use gateway::port::Port;
use gateway::refusal::Refusals;
use parking_lot::Mutex;
use proto::keda::external_scaler_server::ExternalScaler;
use proto::keda::{
    GetMetricSpecResponse, GetMetricsRequest, GetMetricsResponse, IsActiveResponse, ScaledObjectRef,
};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_stream::Pending;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Request, Response, Status};

use crate::support::{Keda, PATIENCE, eventually, soon};

/// Answers GetMetrics when it is let, and panics at IsActive.
#[derive(Clone, Default)]
struct Odd {
    /// Calls that wait.
    waiting: Arc<Mutex<usize>>,
    go: Arc<Notify>,
}

/// Counts a call for as long as somebody works on it.
struct Work(Odd);

impl Work {
    fn on(odd: &Odd) -> Self {
        *odd.waiting.lock() += 1;
        Self(odd.clone())
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        *self.0.waiting.lock() -= 1;
    }
}

#[tonic::async_trait]
impl ExternalScaler for Odd {
    async fn get_metric_spec(
        &self,
        _: Request<ScaledObjectRef>,
    ) -> Result<Response<GetMetricSpecResponse>, Status> {
        Ok(Response::new(GetMetricSpecResponse::default()))
    }

    async fn get_metrics(
        &self,
        _: Request<GetMetricsRequest>,
    ) -> Result<Response<GetMetricsResponse>, Status> {
        let _work = Work::on(self);
        self.go.notified().await;
        Ok(Response::new(GetMetricsResponse::default()))
    }

    async fn is_active(
        &self,
        _: Request<ScaledObjectRef>,
    ) -> Result<Response<IsActiveResponse>, Status> {
        panic!("a handler with a defect");
    }

    type StreamIsActiveStream = Pending<Result<IsActiveResponse, Status>>;

    async fn stream_is_active(
        &self,
        _: Request<ScaledObjectRef>,
    ) -> Result<Response<Self::StreamIsActiveStream>, Status> {
        Err(Status::unimplemented("not asked for here"))
    }

    type StreamMetricSpecStream = Pending<Result<GetMetricSpecResponse, Status>>;

    async fn stream_metric_spec(
        &self,
        _: Request<ScaledObjectRef>,
    ) -> Result<Response<Self::StreamMetricSpecStream>, Status> {
        Err(Status::unimplemented("not asked for here"))
    }
}

/// KEDA's port, served as the gateway serves it.
struct OddPort {
    address: SocketAddr,
    odd: Odd,
    counts: contain::Counts,
    shutdown: CancellationToken,
    served: JoinHandle<()>,
}

impl OddPort {
    async fn start() -> Self {
        let (odd, counts) = (Odd::default(), contain::Counts::default());
        let shutdown = CancellationToken::new();
        let (_, health) = tonic_health::server::health_reporter();
        let contain = Contain::new("keda", counts.clone());
        let port = Port::for_keda(odd.clone(), health, contain, Duration::from_secs(3_600));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("its address");
        let door = Door::new("keda", 64, limit::Counts::default());
        let entrance = Entrance { name: "keda", tls: None, refusals: Refusals::default() };
        let admitted = limit::incoming(listener, door);
        let (accepting, incoming) =
            accept::incoming(admitted, entrance, counts.clone(), shutdown.clone());
        tokio::spawn(accepting);
        let served = tokio::spawn(port.serve(incoming.boxed(), shutdown.clone()));
        Self { address, odd, counts, shutdown, served }
    }

    async fn works_on(&self, calls: usize) {
        eventually("calls are worked on", async || match *self.odd.waiting.lock() {
            now if now == calls => Ok::<_, usize>(()),
            now => Err(now),
        })
        .await;
    }
}

async fn get_metrics(keda: &Keda, own_time: Option<&str>) -> Result<(), Status> {
    let mut request = Request::new(GetMetricsRequest::default());
    if let Some(own_time) = own_time {
        let own_time = own_time.parse().expect("a header");
        request.metadata_mut().insert("grpc-timeout", own_time);
    }
    soon("an answer", keda.client.clone().get_metrics(request)).await.map(drop)
}

/// Whatever the handler waits for, a call has an end, and then nobody works on it any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_ends_with_its_own_time_or_the_ports_and_leaves_no_work_behind() {
    let port = OddPort::start().await;
    let keda = Keda::connect(port.address).await;
    for own_time in [Some("50m"), Some("1H"), Some("nonsense"), None] {
        let status = get_metrics(&keda, own_time).await.unwrap_err();
        let ends = [Code::DeadlineExceeded, Code::Cancelled];
        assert!(ends.contains(&status.code()), "{own_time:?}: {status:?}");
        port.works_on(0).await;
    }
    // The shorter time is the caller's own: the other call is still waiting then.
    let own = get_metrics(&keda, Some("50m"));
    let ports = get_metrics(&keda, None);
    tokio::select! {
        biased;
        ended = own => drop(ended.unwrap_err()),
        ended = ports => panic!("the port's time was over first: {ended:?}"),
    }
    port.works_on(0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_its_caller_gave_up_leaves_no_work_behind() {
    let port = OddPort::start().await;
    let keda = Keda::connect(port.address).await;
    let calls: Vec<_> = (0..8)
        .map(|_| {
            let keda = keda.clone();
            tokio::spawn(async move { get_metrics(&keda, None).await })
        })
        .collect();
    // Some may have met the port's own bound by now, on a busy machine.
    eventually("a call is worked on", async || {
        let waiting = *port.odd.waiting.lock();
        if waiting > 0 { Ok(()) } else { Err(waiting) }
    })
    .await;
    for call in calls {
        call.abort();
    }
    port.works_on(0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_panics_is_answered_internal_and_costs_its_call_only() {
    let port = OddPort::start().await;
    let keda = Keda::connect(port.address).await;
    for panics in 1..=3 {
        let call = async { keda.client.clone().is_active(ScaledObjectRef::default()).await };
        let status = soon("an answer", call).await.unwrap_err();
        assert_eq!(status.code(), Code::Internal, "{status:?}");
        assert!(!status.message().contains("defect"), "{status:?}");
        assert_eq!(port.counts.panics("keda"), panics);
        let call = async { keda.client.clone().get_metric_spec(ScaledObjectRef::default()).await };
        soon("the next call", call).await.expect("over the same connection");
    }
}

/// A call that was in hand when the end was decided gets its answer, and the port ends after it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_in_hand_at_shutdown_are_answered_before_the_port_ends() {
    // A call has a second, and a busy machine may not manage in it.
    let start = tokio::time::Instant::now();
    loop {
        let port = OddPort::start().await;
        let keda = Keda::connect(port.address).await;
        let call = tokio::spawn(async move { get_metrics(&keda, None).await });
        port.works_on(1).await;
        port.shutdown.cancel();
        port.odd.go.notify_one();
        let answer = call.await.unwrap();
        soon("the port ends", port.served).await.unwrap();
        match answer {
            Ok(()) => return,
            Err(status) => {
                let ends = [Code::DeadlineExceeded, Code::Cancelled];
                assert!(ends.contains(&status.code()), "{status:?}");
                assert!(start.elapsed() < PATIENCE, "never answered in time: {status:?}");
            }
        }
    }
}
