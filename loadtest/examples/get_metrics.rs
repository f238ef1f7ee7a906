//! What one GetMetrics costs, beside a bare tonic service with the same messages in the same run.
//!
//! `cargo run --release -p loadtest --example get_metrics [SECONDS]`
//!
//! Each server is a process of its own, so that its CPU time is its own. Rounds alternate between
//! the servers, and the ratio to quote is the median of the rounds' ratios.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use gateway::app::App;
use gateway::config::ServeConfig;
use proto::keda::external_scaler_client::ExternalScalerClient;
use proto::keda::external_scaler_server::{ExternalScaler, ExternalScalerServer};
use proto::keda::{
    GetMetricSpecResponse, GetMetricsRequest, GetMetricsResponse, IsActiveResponse, MetricValue,
    ScaledObjectRef,
};
use proto::uplink::{self as up, agent_message::Body, uplink_client::UplinkClient};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Server, server::TcpIncoming};
use tonic::{Request, Response, Status};

const ROUNDS: usize = 5;
/// Calls at once, and connections they share.
const SHAPES: [(usize, usize); 3] = [(1, 1), (16, 1), (64, 4)];
const PODS: usize = 64;
const GPUS: usize = 8;

fn main() -> anyhow::Result<()> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let mut args = std::env::args().skip(1);
    match args.next().as_deref() {
        Some("server") => match args.next().as_deref() {
            Some("floor") => runtime.block_on(serve_floor()),
            Some("gateway") => runtime.block_on(serve_gateway()),
            other => bail!("server {other:?}: floor or gateway"),
        },
        seconds => {
            let seconds = seconds.map_or(Ok(2.0), str::parse).context("SECONDS is a number")?;
            runtime.block_on(measure(Duration::from_secs_f64(seconds)))
        }
    }
}

/// A server process, ended with the run.
struct Peer {
    child: Child,
    address: SocketAddr,
}

impl Peer {
    fn start(kind: &str) -> anyhow::Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["server", kind])
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        let output = child.stdout.take().context("its output is piped")?;
        BufReader::new(output).read_line(&mut line)?;
        let address =
            line.trim().parse().with_context(|| format!("{kind} server said {line:?}"))?;
        Ok(Self { child, address })
    }

    /// CPU seconds so far: fields 14 and 15 of /proc/PID/stat, in hundredths (proc(5)).
    fn cpu(&self) -> anyhow::Result<f64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        let after_name = stat.rsplit(')').next().context("proc(5)")?;
        let fields: Vec<&str> = after_name.split_whitespace().collect();
        Ok((fields[11].parse::<f64>()? + fields[12].parse::<f64>()?) / 100.0)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

struct Figures {
    calls_per_second: f64,
    p50: f64,
    p99: f64,
    cpu_micros: f64,
}

async fn measure(length: Duration) -> anyhow::Result<()> {
    let (floor, gateway) = (Peer::start("floor")?, Peer::start("gateway")?);
    let kinds =
        [("floor", &floor, "one"), ("1 pod", &gateway, "one"), ("64 x 8", &gateway, "many")];
    for (_, peer, workload) in kinds {
        run(peer, workload, 16, 1, length / 2).await?; // warm-up
    }
    println!(
        "in flight/connections  server  calls/s   p50 ms  p99 ms  server CPU us/call  CPU ratio to floor"
    );
    for (in_flight, connections) in SHAPES {
        let mut rounds: Vec<Vec<Figures>> = kinds.iter().map(|_| Vec::new()).collect();
        for _ in 0..ROUNDS {
            for ((_, peer, workload), figures) in kinds.iter().zip(&mut rounds) {
                figures.push(run(peer, workload, in_flight, connections, length).await?);
            }
        }
        for ((name, ..), figures) in kinds.iter().zip(&rounds) {
            let of = |figure: fn(&Figures) -> f64| median(figures.iter().map(figure).collect());
            let ratios = figures
                .iter()
                .zip(&rounds[0])
                .map(|(own, floor)| own.cpu_micros / floor.cpu_micros);
            println!(
                "{in_flight:>9} / {connections:<9}  {name:>8}  {:>7.0}  {:>6.2}  {:>6.2}  {:>18.1}  {:>18.2}",
                of(|f| f.calls_per_second),
                of(|f| f.p50),
                of(|f| f.p99),
                of(|f| f.cpu_micros),
                median(ratios.collect()),
            );
        }
    }
    Ok(())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn request(workload: &str) -> GetMetricsRequest {
    let metadata = [
        ("scalerAddress", "gpu-gateway.gpu-scaler.svc.cluster.local:6000"),
        ("metricType", "gpu_utilization"),
        ("targetValue", "70"),
    ];
    let reference = ScaledObjectRef {
        name: workload.into(),
        namespace: "ml".into(),
        scaler_metadata: metadata.map(|(key, value)| (key.into(), value.into())).into(),
    };
    GetMetricsRequest { scaled_object_ref: Some(reference), metric_name: "gpu_utilization".into() }
}

async fn run(
    peer: &Peer,
    workload: &str,
    in_flight: usize,
    connections: usize,
    length: Duration,
) -> anyhow::Result<Figures> {
    let mut channels = Vec::new();
    for _ in 0..connections {
        channels.push(Channel::from_shared(format!("http://{}", peer.address))?.connect().await?);
    }
    let (before, start) = (peer.cpu()?, now());
    let callers: Vec<_> = (0..in_flight)
        .map(|n| {
            let mut client = ExternalScalerClient::new(channels[n % connections].clone());
            let request = request(workload);
            tokio::spawn(async move {
                let mut times = Vec::new();
                while start.elapsed() < length {
                    let begun = now();
                    let answer = client.get_metrics(request.clone()).await?.into_inner();
                    anyhow::ensure!(answer.metric_values.len() == 1, "one value");
                    times.push(begun.elapsed());
                }
                Ok(times)
            })
        })
        .collect();
    let mut times: Vec<Duration> = Vec::new();
    for caller in callers {
        times.extend(caller.await??);
    }
    let took = start.elapsed().as_secs_f64();
    let cpu = peer.cpu()? - before;
    times.sort();
    let calls = times.len() as f64;
    let percentile = |share: f64| times[(share * (calls - 1.0)) as usize].as_secs_f64() * 1e3;
    Ok(Figures {
        calls_per_second: calls / took,
        p50: percentile(0.5),
        p99: percentile(0.99),
        cpu_micros: cpu / calls * 1e6,
    })
}

#[expect(clippy::disallowed_methods, reason = "this measures time")]
fn now() -> Instant {
    Instant::now()
}

/// Says where it listens, and serves until it is killed.
fn announce(address: SocketAddr) -> anyhow::Result<()> {
    println!("{address}");
    std::io::stdout().flush()?;
    Ok(())
}

struct Floor;

#[tonic::async_trait]
impl ExternalScaler for Floor {
    async fn get_metrics(
        &self,
        request: Request<GetMetricsRequest>,
    ) -> Result<Response<GetMetricsResponse>, Status> {
        let metric_name = request.into_inner().metric_name;
        let value = MetricValue { metric_name, metric_value: 50, metric_value_float: 50.0 };
        Ok(Response::new(GetMetricsResponse { metric_values: vec![value] }))
    }

    async fn is_active(
        &self,
        _: Request<ScaledObjectRef>,
    ) -> Result<Response<IsActiveResponse>, Status> {
        Err(Status::unimplemented("floor"))
    }

    async fn get_metric_spec(
        &self,
        _: Request<ScaledObjectRef>,
    ) -> Result<Response<GetMetricSpecResponse>, Status> {
        Err(Status::unimplemented("floor"))
    }

    type StreamIsActiveStream = ReceiverStream<Result<IsActiveResponse, Status>>;

    async fn stream_is_active(
        &self,
        _: Request<ScaledObjectRef>,
    ) -> Result<Response<Self::StreamIsActiveStream>, Status> {
        Err(Status::unimplemented("floor"))
    }

    type StreamMetricSpecStream = ReceiverStream<Result<GetMetricSpecResponse, Status>>;

    async fn stream_metric_spec(
        &self,
        _: Request<ScaledObjectRef>,
    ) -> Result<Response<Self::StreamMetricSpecStream>, Status> {
        Err(Status::unimplemented("floor"))
    }
}

async fn serve_floor() -> anyhow::Result<()> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    announce(listener.local_addr()?)?;
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    Server::builder()
        .add_service(ExternalScalerServer::new(Floor))
        .serve_with_incoming(incoming)
        .await?;
    Ok(())
}

/// A gateway that knows `ml/one` (a pod with a GPU) and `ml/many` (64 pods of 8 GPUs, each on a
/// node of its own), all at 50 %. Each node speaks once; its interval keeps that fresh.
async fn serve_gateway() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("directory.yaml");
    let pods = |count: usize| {
        let pod = |n: usize| format!("{{name: p{count}-{n}, node: n{count}-{n}, ready: true}}");
        (0..count).map(pod).collect::<Vec<_>>().join(", ")
    };
    let workload = |name: &str, count: usize| {
        let pods = pods(count);
        format!(
            "  - {{namespace: ml, kind: Deployment, name: {name}, replicas: {count}, pods: [{pods}]}}\n"
        )
    };
    let object =
        |name: &str| format!("  - {{namespace: ml, name: {name}, target: {{name: {name}}}}}\n");
    let (one, many) = (workload("one", 1), workload("many", PODS));
    std::fs::write(
        &file,
        format!("workloads:\n{one}{many}scaledObjects:\n{}{}", object("one"), object("many")),
    )?;
    let app = App::build(ServeConfig::local(file)).await?;
    let (keda, agents) = (app.keda_addr(), app.agent_addr());
    let running = tokio::spawn(app.run(CancellationToken::new()));
    let mut streams = vec![speak(agents, 1, 0, 1).await?];
    for n in 0..PODS {
        streams.push(speak(agents, PODS, n, GPUS).await?);
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    announce(keda)?;
    running.await??;
    drop(streams);
    Ok(())
}

type Said = tokio::sync::mpsc::Sender<up::AgentMessage>;

async fn speak(agents: SocketAddr, count: usize, n: usize, gpus: usize) -> anyhow::Result<Said> {
    let (say, messages) = tokio::sync::mpsc::channel(4);
    let node = format!("n{count}-{n}");
    let holder = up::Holder {
        namespace: "ml".into(),
        pod: format!("p{count}-{n}"),
        share: Some(1.0),
        source: up::HolderSource::Replay.into(),
        ..Default::default()
    };
    let devices = (0..gpus).map(|gpu| up::Device {
        uuid: format!("GPU-{node}-{gpu}"),
        index: gpu as u32,
        holders: vec![holder.clone()],
        ..Default::default()
    });
    let samples = (0..gpus).map(|gpu| up::DeviceSample {
        device: gpu as u32,
        metrics: vec![1, 2, 3, 4, 5, 6],
        values: vec![50.0; 6],
        ..Default::default()
    });
    let hello = up::Hello {
        node: node.clone(),
        version: "bench".into(),
        interval_ms: 60_000,
        engine_interval_ms: 0,
    };
    let inventory =
        up::Inventory { generation: 1, devices: devices.collect(), ..Default::default() };
    let sample = up::Sample { generation: 1, devices: samples.collect(), ..Default::default() };
    for body in [Body::Hello(hello), Body::Inventory(inventory), Body::Sample(sample)] {
        say.send(up::AgentMessage { body: Some(body) }).await?;
    }
    let mut client = UplinkClient::connect(format!("http://{agents}")).await?;
    let mut welcomes = client.push(ReceiverStream::new(messages)).await?.into_inner();
    welcomes.message().await?;
    tokio::spawn(async move { while let Ok(Some(_)) = welcomes.message().await {} });
    Ok(say)
}
