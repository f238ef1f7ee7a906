//! KEDA's calls to a gateway of its own process: thousands of them, and those in hand when it is
//! told to stop.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::path::Path;

use http_body_util::{BodyExt as _, StreamBody};
use hyper::Request;
use hyper::body::{Bytes, Frame};
use prost::Message as _;
use proto::keda::{GetMetricsRequest, GetMetricsResponse, ScaledObjectRef};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::codegen::Service as _;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use crate::client::Client;
use crate::support::{Gateway, PATIENCE, Process, binaries, eventually, run_agent, scaled_object};

const LOAD: f64 = 60.0;
const CALLERS: usize = 8;
/// Of each caller.
const CALLS: usize = 500;

/// `ml/llm` with a pod on n0, and `ml/asleep` without any.
const DIRECTORY: &str = "\
workloads:
  - {namespace: ml, kind: Deployment, name: llm, replicas: 1, pods: [{name: p0, node: n0, ready: true}]}
  - {namespace: ml, kind: Deployment, name: asleep, replicas: 0, pods: []}
scaledObjects:
  - {namespace: ml, name: llm, target: {name: llm}}
  - {namespace: ml, name: asleep, target: {name: asleep}}
";

fn agent(binaries: &Path, folder: &TempDir, gateway: &Gateway) -> Process {
    let mut command = run_agent(binaries, gateway, "n0");
    command.args(["--source", &format!("sim:gpus=1,shape=constant:{LOAD},pods=ml/p0")]);
    Process::start("n0", command, folder)
}

async fn is_known(gateway: &Gateway) {
    let client = Client::new(gateway.keda, scaled_object("llm", &[]));
    eventually("the value is known", async || match client.value().await {
        Ok(LOAD) => Ok(()),
        other => Err((other, gateway.process.log())),
    })
    .await;
}

/// A page that takes every connection and never answers.
async fn stuck_page() -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let held = tokio::spawn(async move {
        let mut held = Vec::new();
        while let Ok((connection, _)) = listener.accept().await {
            held.push(connection);
        }
    });
    (address, held)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_calls_beside_a_stuck_page_are_each_right_and_leave_nothing_behind() {
    let (binaries, folder) = (binaries(), tempfile::tempdir().unwrap());
    let (page, _held) = stuck_page().await;
    let origin = format!("http://localhost:{}", page.port());
    let options = ["--demand-allow".to_owned(), origin.clone()];
    let gateway = Gateway::start_with(&binaries, &folder, DIRECTORY, &options);
    let _agent = agent(&binaries, &folder, &gateway);
    is_known(&gateway).await;
    let open = async || gateway.metric("gpu_gateway_connections").await.unwrap();
    eventually("only the agent and this question are connected", async || match open().await {
        2.0 => Ok(()),
        other => Err(other),
    })
    .await;
    let files = gateway.process.open_files();

    let endpoint = format!("{origin}/metrics");
    let demand = [("demandEndpoint", endpoint.as_str()), ("demandMetric", "queue")];
    let asleep = scaled_object("asleep", &demand);
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let client = Client::new(gateway.keda, scaled_object("llm", &[]));
        let asleep = Client::new(gateway.keda, asleep.clone());
        callers.spawn(async move {
            for call in 0..CALLS {
                match client.value().await {
                    Ok(LOAD) => {}
                    other => return Err(format!("caller {caller}, call {call}: {other:?}")),
                }
                // Its demand is not known, and that is said and not waited for.
                if call % 50 == caller {
                    match asleep.value().await.map_err(|status| status.code()) {
                        Err(Code::Unavailable) => {}
                        other => return Err(format!("caller {caller}, asleep: {other:?}")),
                    }
                }
            }
            Ok(())
        });
    }
    for ended in callers.join_all().await {
        ended.unwrap();
    }
    eventually("nothing is left open", async || {
        let left = (open().await, gateway.process.open_files());
        // The page that is stuck is still asked.
        if left.0 == 2.0 && left.1 <= files + 1 { Ok(()) } else { Err((left, files)) }
    })
    .await;
    let panics = gateway.metric("gpu_gateway_panics_total").await.unwrap();
    let shed = gateway.metric("gpu_gateway_calls_shed_total").await.unwrap();
    assert_eq!((panics, shed), (0.0, 0.0));
}

/// A GetMetrics whose message is sent in two parts.
struct Halved {
    rest: mpsc::Sender<Result<Frame<Bytes>, Status>>,
    second: Bytes,
    answer: JoinHandle<Result<f64, Status>>,
}

impl Halved {
    async fn begin(mut channel: Channel, reference: &ScaledObjectRef) -> Self {
        let request = GetMetricsRequest {
            scaled_object_ref: Some(reference.clone()),
            metric_name: "gpu_utilization".into(),
        };
        let message = request.encode_to_vec();
        let mut bytes = vec![0];
        bytes.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
        bytes.extend(message);
        let second = Bytes::from(bytes.split_off(bytes.len() / 2));
        let (rest, body) = mpsc::channel(2);
        rest.send(Ok(Frame::data(Bytes::from(bytes)))).await.unwrap();
        let request = Request::post("/externalscaler.ExternalScaler/GetMetrics")
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(tonic::body::Body::new(StreamBody::new(ReceiverStream::new(body))))
            .unwrap();
        poll_fn(|cx| channel.poll_ready(cx)).await.unwrap();
        let call = channel.call(request);
        let answer = tokio::spawn(async move {
            let response = call.await.map_err(|error| Status::from_error(error.into()))?;
            if let Some(status) = Status::from_header_map(response.headers()) {
                return Err(status);
            }
            let whole = response.into_body().collect().await?.to_bytes();
            let answer = GetMetricsResponse::decode(&whole[5..]).unwrap();
            Ok(answer.metric_values[0].metric_value_float)
        });
        Self { rest, second, answer }
    }

    async fn end(self) -> Result<f64, Status> {
        // If the call is over already, its answer says why.
        self.rest.send(Ok(Frame::data(self.second))).await.ok();
        drop(self.rest);
        self.answer.await.unwrap()
    }
}

/// SIGTERM with calls half received: readiness is off, the calls are answered, the process ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_are_under_way_when_it_is_told_to_stop_are_answered() {
    let binaries = binaries();
    let start = Instant::now();
    loop {
        let folder = tempfile::tempdir().unwrap();
        let mut gateway = Gateway::start(&binaries, &folder, DIRECTORY);
        let _agent = agent(&binaries, &folder, &gateway);
        is_known(&gateway).await;
        let reference = scaled_object("llm", &[]);
        let endpoint = Endpoint::from_shared(format!("http://{}", gateway.keda)).unwrap();
        let channel = endpoint.connect().await.unwrap();
        let mut calls = Vec::new();
        for _ in 0..4 {
            calls.push(Halved::begin(channel.clone(), &reference).await);
        }
        // One more over the same connection, whole: the others have come in before it.
        let whole = Halved::begin(channel.clone(), &reference).await;
        let whole = whole.end().await;
        gateway.process.signal("TERM");
        eventually("it has heard", async || match gateway.process.log() {
            log if log.contains("shutting down") => Ok(()),
            log => Err(log),
        })
        .await;
        assert!(!gateway.is_ready().await.unwrap_or(false), "not ready any more");
        let mut answers = vec![whole];
        for call in calls {
            answers.push(call.end().await);
        }
        let status = gateway.process.ended().await;
        assert!(status.success(), "{status}:\n{}", gateway.process.log());
        // A call has a second, and a busy machine may not have managed in it.
        let is_late = |answer: &Result<f64, Status>| match answer {
            Ok(_) => false,
            Err(status) => [Code::Cancelled, Code::DeadlineExceeded].contains(&status.code()),
        };
        if !answers.iter().any(is_late) {
            let values: Vec<f64> = answers.into_iter().map(Result::unwrap).collect();
            assert_eq!(values, [LOAD; 5]);
            return;
        }
        assert!(start.elapsed() < PATIENCE, "never in time: {answers:?}");
    }
}
