//! From a changed reading to the message on StreamIsActive: agents with dials, a gateway, a stream
//! for each ScaledObject.
//!
//! Guarantees: a time counts from the moment the dial was turned, at a random moment between two
//! ticks of the agent; a message that does not come is an error.

use std::time::Duration;

use anyhow::Context as _;
use hdrhistogram::Histogram;
use proto::keda::external_scaler_client::ExternalScalerClient;
use proto::keda::{IsActiveResponse, ScaledObjectRef};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tonic::Streaming;
use tonic::transport::Channel;

use crate::measure::dial::{self, Dial};
use crate::measure::round::{histogram, note};
use crate::measure::server::Server;
use crate::measure::site::{NAMESPACE, reference};

const GPUS: usize = 8;
/// What a busy GPU reads; an idle one reads 0.
pub const BUSY: u32 = 90;
const PATIENCE: Duration = Duration::from_secs(20);
/// How long after the last busy reading a workload counts as active.
pub const WINDOW: Duration = Duration::from_secs(1);
/// The stream has heard then that it is idle: the window has passed, and one look of its own.
const ASLEEP: Duration = Duration::from_millis(2_600);

/// The ScaledObject of GPU `n`.
pub fn name(n: usize) -> String {
    format!("push-{n}")
}

/// As KEDA names it.
pub fn reference_of(n: usize) -> ScaledObjectRef {
    let mut reference = reference(&name(n));
    reference.scaler_metadata.insert("activationWindow".into(), format!("{}s", WINDOW.as_secs()));
    reference.scaler_metadata.insert("activationThreshold".into(), "5".into());
    reference
}

/// The directory file: a ScaledObject for each GPU of so many nodes.
pub fn directory(nodes: usize) -> String {
    let (mut workloads, mut objects) = (String::new(), String::new());
    for n in 0..nodes * GPUS {
        let (name, node) = (name(n), n / GPUS);
        workloads += &format!(
            "  - {{namespace: {NAMESPACE}, kind: Deployment, name: {name}, replicas: 1, pods: [{{name: {name}, node: d{node}, ready: true, readyForSeconds: 3600}}]}}\n"
        );
        objects += &format!(
            "  - {{namespace: {NAMESPACE}, name: {name}, target: {{name: {name}}}, triggers: [{{type: external-push, metadata: {}}}]}}\n",
            serde_json::json!(std::collections::BTreeMap::from_iter(
                reference_of(n).scaler_metadata
            )),
        );
    }
    format!("workloads:\n{workloads}scaledObjects:\n{objects}")
}

/// Agents of so many nodes, and the dials of their GPUs in the order of [`name`].
///
/// # Errors
/// When an agent cannot be started.
pub fn agents(
    tasks: &mut JoinSet<()>,
    server: &Server,
    nodes: usize,
    interval: Duration,
    stop: &CancellationToken,
) -> anyhow::Result<Vec<Dial>> {
    let dials: Vec<Dial> = (0..nodes * GPUS).map(|_| Dial::default()).collect();
    let url = format!("http://{}", server.agents);
    for node in 0..nodes {
        let gpu = |n| (name(n), dials[n].clone());
        let gpus = (node * GPUS..(node + 1) * GPUS).map(gpu).collect();
        dial::start(tasks, &url, format!("d{node}").as_str().into(), gpus, interval, stop)?;
    }
    Ok(dials)
}

/// Turns dials up and down for so long; the times from the dial to the message.
///
/// # Errors
/// When a message does not come.
pub async fn run(
    nodes: usize,
    interval: Duration,
    length: Duration,
) -> anyhow::Result<Histogram<u64>> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("directory.yaml");
    std::fs::write(&file, directory(nodes))?;
    let server = Server::gateway(&file)?;
    let (mut tasks, stop) = (JoinSet::new(), CancellationToken::new());
    let dials = agents(&mut tasks, &server, nodes, interval, &stop)?;
    let url = format!("http://{}", server.keda);
    let client = ExternalScalerClient::new(Channel::from_shared(url)?.connect().await?);
    let end = Instant::now() + length;
    let mut watchers = JoinSet::new();
    for (n, dial) in dials.into_iter().enumerate() {
        let stream = client.clone().stream_is_active(reference_of(n)).await?.into_inner();
        watchers.spawn(turn(dial, stream, interval, end));
    }
    let mut times = histogram()?;
    while let Some(ended) = watchers.join_next().await {
        for took in ended?? {
            note(&mut times, took);
        }
    }
    stop.cancel();
    while tasks.join_next().await.is_some() {}
    Ok(times)
}

async fn turn(
    dial: Dial,
    mut stream: Streaming<IsActiveResponse>,
    interval: Duration,
    end: Instant,
) -> anyhow::Result<Vec<Duration>> {
    let mut seen = Vec::new();
    // What it says until it has watched for a window is no edge.
    drain(&mut stream, 2 * interval + ASLEEP).await;
    while Instant::now() < end {
        sleep(interval.mul_f64(fastrand::f64())).await;
        let turned = Instant::now();
        dial.set(BUSY);
        let message = timeout(PATIENCE, stream.message()).await.context("no message")??;
        anyhow::ensure!(message.is_some_and(|message| message.result), "the stream ended");
        seen.push(turned.elapsed());
        dial.set(0);
        drain(&mut stream, 2 * interval + ASLEEP).await;
    }
    Ok(seen)
}

/// Lets `length` pass; what is said meanwhile is of before.
async fn drain(stream: &mut Streaming<IsActiveResponse>, length: Duration) {
    let saying = async { while let Ok(Some(_)) = stream.message().await {} };
    timeout(length, saying).await.ok();
}
