//! What a gateway is told: workloads, their pods and the readings of their GPUs; and what it must
//! answer then, computed here from the readings alone.
//!
//! Guarantees: readings are multiples of 0.4, so that what is expected is exact; no code of the gateway
//! takes part in the expectation.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

use proto::keda::{GetMetricsRequest, ScaledObjectRef};
use proto::uplink::uplink_client::UplinkClient;
use proto::uplink::{
    AgentMessage, Device, DeviceSample, Hello, Holder, HolderSource, Inventory, Sample,
    agent_message::Body,
};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};

/// Of every workload.
pub const NAMESPACE: &str = "ml";
/// What the metric is called.
pub const METRIC: &str = "gpu_utilization";
const TARGET: u32 = 70;
const GPUS_PER_NODE: usize = 8;
/// Readings of so long ago are still good: nodes that speak seldom cost the servers nothing.
const INTERVAL: Duration = Duration::from_secs(60);
const SPEAK_EVERY: Duration = Duration::from_secs(20);
/// Nodes that share a connection.
const SHARED: usize = 8;

/// So many pods of so many GPUs each, under one ScaledObject of the same name.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Its name.
    pub name: String,
    /// Its pods, all of them ready.
    pub pods: usize,
    /// GPUs of each.
    pub gpus: usize,
}

/// A GPU, the pod that holds it, and its reading in tenths of a percent.
#[derive(Clone, Debug)]
struct Gpu {
    pod: String,
    tenths: u32,
}

/// A cluster whose readings do not change.
#[derive(Clone, Debug)]
pub struct Site {
    workloads: Vec<Workload>,
    nodes: Vec<Vec<Gpu>>,
    /// By workload.
    placed: Vec<Vec<(String, usize)>>,
}

/// A question with its answer.
#[derive(Clone, Debug)]
pub struct Ask {
    /// The call.
    pub request: GetMetricsRequest,
    /// The value it must bring.
    pub expected: f64,
}

/// A reading that differs from GPU to GPU; never 0, of which a workload may be idle, and a multiple of
/// 0.4, so that a mean of eight has two decimals and no rounding is in question.
fn tenths(workload: usize, pod: usize, gpu: usize) -> u32 {
    4 + 4 * u32::try_from((workload * 331 + pod * 71 + gpu * 137) % 249).unwrap_or_default()
}

impl Site {
    /// Puts each pod on the first node with room, eight GPUs a node.
    pub fn new(workloads: Vec<Workload>) -> Self {
        let mut nodes: Vec<Vec<Gpu>> = Vec::new();
        let mut placed = Vec::new();
        for (at, workload) in workloads.iter().enumerate() {
            let mut pods = Vec::new();
            for pod in 0..workload.pods {
                let has_room = |node: &Vec<Gpu>| {
                    !node.is_empty() && node.len() + workload.gpus <= GPUS_PER_NODE
                };
                if !nodes.last().is_some_and(has_room) {
                    nodes.push(Vec::new());
                }
                let node = nodes.len() - 1;
                let name = format!("{}-{pod}", workload.name);
                let gpu = |gpu| Gpu { pod: name.clone(), tenths: tenths(at, pod, gpu) };
                nodes[node].extend((0..workload.gpus).map(gpu));
                pods.push((name, node));
            }
            placed.push(pods);
        }
        Self { workloads, nodes, placed }
    }

    /// What the HPA must be told by `aggregation: total` while all pods are ready and heard: the sum
    /// over pods of the mean over a pod's GPUs, to three decimals.
    pub fn expected(&self, workload: usize) -> f64 {
        let Workload { pods, gpus, .. } = self.workloads[workload];
        let all = (0..pods).flat_map(|pod| (0..gpus).map(move |gpu| (pod, gpu)));
        let tenths: u32 = all.map(|(pod, gpu)| tenths(workload, pod, gpu)).sum();
        (f64::from(tenths) * 100.0 / gpus as f64).round() / 1e3
    }

    /// GetMetrics for each workload.
    pub fn asks(&self) -> Vec<Ask> {
        let ask = |(at, workload): (usize, &Workload)| Ask {
            request: request(&workload.name),
            expected: self.expected(at),
        };
        self.workloads.iter().enumerate().map(ask).collect()
    }

    /// The directory file.
    pub fn directory(&self) -> String {
        let mut text = String::from("workloads:\n");
        for (workload, pods) in self.workloads.iter().zip(&self.placed) {
            let pod = |(name, node): &(String, usize)| {
                format!("{{name: {name}, node: n{node}, ready: true, readyForSeconds: 3600}}")
            };
            let pods: Vec<String> = pods.iter().map(pod).collect();
            let (name, replicas, pods) = (&workload.name, pods.len(), pods.join(", "));
            writeln!(
                text,
                "  - {{namespace: {NAMESPACE}, kind: Deployment, name: {name}, replicas: {replicas}, pods: [{pods}]}}"
            )
            .ok();
        }
        text += "scaledObjects:\n";
        for Workload { name, .. } in &self.workloads {
            writeln!(
                text,
                "  - {{namespace: {NAMESPACE}, name: {name}, target: {{name: {name}}}}}"
            )
            .ok();
        }
        text
    }

    /// Each node's name, inventory and sample.
    pub fn said(&self) -> Vec<(String, Inventory, Sample)> {
        let said = |(node, gpus): (usize, &Vec<Gpu>)| {
            (node_name(node), inventory(node, gpus), sample(gpus))
        };
        self.nodes.iter().enumerate().map(said).collect()
    }

    /// Every node speaks to the server at `agents`, and again before it is forgotten, until the
    /// returned set is dropped.
    ///
    /// # Errors
    /// When a stream does not open.
    pub async fn speak(&self, agents: SocketAddr) -> anyhow::Result<JoinSet<()>> {
        let mut speakers = JoinSet::new();
        let mut channel = None;
        for (node, gpus) in self.nodes.iter().enumerate() {
            if node % SHARED == 0 {
                let endpoint = Endpoint::from_shared(format!("http://{agents}"))?;
                channel = Some(endpoint.connect().await?);
            }
            let Some(channel) = channel.clone() else { continue };
            let (say, messages) = mpsc::channel(4);
            for body in first_words(node, gpus) {
                say.send(AgentMessage { body: Some(body) }).await?;
            }
            let mut client = UplinkClient::new(channel);
            let mut heard = client.push(ReceiverStream::new(messages)).await?.into_inner();
            heard.message().await?;
            let sample = Body::Sample(sample(gpus));
            speakers.spawn(async move {
                let mut ticks = tokio::time::interval(SPEAK_EVERY);
                loop {
                    tokio::select! {
                        _ = ticks.tick() => {
                            let message = AgentMessage { body: Some(sample.clone()) };
                            if say.send(message).await.is_err() { return }
                        }
                        message = heard.message() => {
                            if !matches!(message, Ok(Some(_))) { return }
                        }
                    }
                }
            });
        }
        Ok(speakers)
    }

    /// Waits until every workload is answered for.
    ///
    /// # Errors
    /// With the last answer, when it takes too long.
    pub async fn settle(&self, keda: SocketAddr) -> anyhow::Result<()> {
        let channel = Channel::from_shared(format!("http://{keda}"))?.connect().await?;
        let mut client = proto::keda::external_scaler_client::ExternalScalerClient::new(channel);
        for ask in self.asks() {
            let mut left = 200;
            loop {
                let answer = client.get_metrics(ask.request.clone()).await;
                let value = answer.map(|answer| answer.into_inner().metric_values);
                match value {
                    Ok(values) if is_right(&values, ask.expected) => break,
                    _ if left > 0 => tokio::time::sleep(Duration::from_millis(100)).await,
                    other => {
                        anyhow::bail!("{:?}: {other:?} instead of {}", ask.request, ask.expected)
                    }
                }
                left -= 1;
            }
        }
        Ok(())
    }
}

/// Whether the one value is the one expected, to the last digit.
pub fn is_right(values: &[proto::keda::MetricValue], expected: f64) -> bool {
    matches!(values, [one] if one.metric_value_float == expected)
}

/// A trigger as users write it, of the ScaledObject `name`.
pub fn reference(name: &str) -> ScaledObjectRef {
    let metadata = [
        ("scalerAddress", "gpu-gateway.gpu-scaler.svc.cluster.local:6000".to_owned()),
        ("metricType", METRIC.to_owned()),
        ("targetValue", TARGET.to_string()),
    ];
    ScaledObjectRef {
        name: name.into(),
        namespace: NAMESPACE.into(),
        scaler_metadata: metadata.map(|(key, value)| (key.to_owned(), value)).into(),
    }
}

/// GetMetrics of that trigger.
pub fn request(name: &str) -> GetMetricsRequest {
    GetMetricsRequest { scaled_object_ref: Some(reference(name)), metric_name: METRIC.into() }
}

fn first_words(node: usize, gpus: &[Gpu]) -> [Body; 3] {
    let hello = Hello {
        node: node_name(node),
        version: "measure".into(),
        interval_ms: u32::try_from(INTERVAL.as_millis()).unwrap_or(u32::MAX),
        engine_interval_ms: 0,
    };
    [Body::Hello(hello), Body::Inventory(inventory(node, gpus)), Body::Sample(sample(gpus))]
}

fn node_name(node: usize) -> String {
    format!("n{node}")
}

fn inventory(node: usize, gpus: &[Gpu]) -> Inventory {
    let device = |(index, gpu): (u32, &Gpu)| Device {
        uuid: format!("GPU-n{node}-{index}"),
        index,
        name: "NVIDIA H100 80GB HBM3".into(),
        holders: vec![Holder {
            namespace: NAMESPACE.into(),
            pod: gpu.pod.clone(),
            share: Some(1.0),
            source: HolderSource::Replay.into(),
            ..Holder::default()
        }],
        ..Device::default()
    };
    let devices = (0..).zip(gpus).map(device).collect();
    Inventory { generation: 1, devices, ..Inventory::default() }
}

fn sample(gpus: &[Gpu]) -> Sample {
    let device = |(device, gpu): (u32, &Gpu)| DeviceSample {
        device,
        metrics: (1..=6).collect(),
        values: vec![f64::from(gpu.tenths) / 10.0; 6],
        ..DeviceSample::default()
    };
    let devices = (0..).zip(gpus).map(device).collect();
    Sample { generation: 1, devices, ..Sample::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_are_not_split_and_the_sum_is_of_their_means() {
        let workload = |name: &str, pods, gpus| Workload { name: name.into(), pods, gpus };
        let site = Site::new(vec![workload("one", 1, 1), workload("many", 2, 8)]);
        let sizes: Vec<usize> = site.nodes.iter().map(Vec::len).collect();
        assert_eq!(sizes, [1, 8, 8]);
        assert_eq!(site.expected(0), 0.4);
        let told: u32 = site.nodes[1..].iter().flatten().map(|gpu| gpu.tenths).sum();
        assert_eq!(site.expected(1), f64::from(told) / 80.0, "a mean of eight for each pod");
        assert!(site.directory().contains("{name: many-1, node: n2, ready: true"));
    }
}
