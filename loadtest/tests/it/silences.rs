//! Agents that fall silent, double or leave, as processes: cases O04, O16 and O17.

use std::fs;
use std::path::Path;
use std::time::Duration;

use proto::keda::external_scaler_client::ExternalScalerClient;
use proto::keda::{GetMetricsRequest, MetricSpec, ScaledObjectRef};
use serde_json::json;
use tempfile::TempDir;
use tokio::time::{Instant, sleep, timeout};
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::support::{Gateway, PATIENCE, Process, binaries, run_agent};

/// KEDA's side of one trigger with a target of 60 and a staleness of 2 s.
struct Trigger {
    client: ExternalScalerClient<Channel>,
    reference: ScaledObjectRef,
}

impl Trigger {
    async fn of(gateway: &Gateway) -> Self {
        let start = Instant::now();
        let client = loop {
            match ExternalScalerClient::connect(format!("http://{}", gateway.keda)).await {
                Ok(client) => break client,
                Err(error) => assert!(start.elapsed() < PATIENCE, "{error}"),
            }
            sleep(Duration::from_millis(50)).await;
        };
        let metadata = [("targetGpuUtilization", "60"), ("staleAfter", "2s")];
        let reference = ScaledObjectRef {
            namespace: "ml".into(),
            name: "llm-so".into(),
            scaler_metadata: metadata.map(|(key, value)| (key.into(), value.into())).into(),
        };
        Self { client, reference }
    }

    async fn spec(&self) -> MetricSpec {
        let answer = self.client.clone().get_metric_spec(self.reference.clone()).await;
        answer.expect("GetMetricSpec is always answered").into_inner().metric_specs.remove(0)
    }

    async fn value(&self) -> Result<f64, Status> {
        let request = GetMetricsRequest {
            scaled_object_ref: Some(self.reference.clone()),
            metric_name: self.spec().await.metric_name,
        };
        let answer = self.client.clone().get_metrics(request).await?.into_inner();
        Ok(answer.metric_values[0].metric_value_float)
    }

    async fn is_active(&self) -> Result<bool, Status> {
        Ok(self.client.clone().is_active(self.reference.clone()).await?.into_inner().result)
    }

    /// Waits until the value is `expected`; until then it is `meanwhile` or not known.
    async fn becomes(&self, expected: f64, meanwhile: Option<f64>) {
        let start = Instant::now();
        loop {
            let value = self.value().await;
            match &value {
                Ok(value) if *value == expected => return,
                Ok(value) => assert_eq!(Some(*value), meanwhile, "on the way to {expected}"),
                Err(status) => assert_eq!(status.code(), Code::Unavailable, "{status:?}"),
            }
            assert!(start.elapsed() < PATIENCE, "not {expected} but {value:?}");
            sleep(Duration::from_millis(100)).await;
        }
    }

    async fn is_for(&self, expected: f64, time: Duration) {
        let start = Instant::now();
        while start.elapsed() < time {
            assert_eq!(self.value().await.unwrap(), expected);
            sleep(Duration::from_millis(100)).await;
        }
    }
}

/// Where `ml/llm-0`, `ml/llm-1`, … run.
fn directory(nodes: &[&str]) -> String {
    let pods: String = nodes
        .iter()
        .enumerate()
        .map(|(pod, node)| format!("{{name: llm-{pod}, node: {node}, ready: true}}, "))
        .collect();
    let replicas = nodes.len();
    format!(
        "
workloads:
  - {{namespace: ml, kind: Deployment, name: llm, replicas: {replicas}, pods: [{pods}]}}
scaledObjects:
  - {{namespace: ml, name: llm-so, target: {{kind: Deployment, name: llm}}, maxReplicas: 8}}
"
    )
}

/// An agent called `name` on `node`, whose pods `llm-N` have a GPU each at `utilization`.
fn agent(
    (binaries, folder, gateway): (&Path, &TempDir, &Gateway),
    name: &'static str,
    (node, pods): (&str, &[u32]),
    utilization: f64,
) -> Process {
    let devices = pods.iter().enumerate().map(|(index, pod)| {
        json!({
            "uuid": format!("GPU-{pod}"),
            "index": index,
            "name": "NVIDIA H100 80GB HBM3",
            "gpu_utilization": utilization,
            "holders": [{"namespace": "ml", "pod": format!("llm-{pod}"), "container": "main"}],
        })
    });
    let replay = folder.path().join(format!("{name}.jsonl"));
    let line = json!({"at_ms": 0, "devices": Vec::from_iter(devices)});
    fs::write(&replay, format!("{line}\n")).unwrap();
    let mut command = run_agent(binaries, gateway, node);
    command.args(["--source", &format!("replay:{}", replay.display())]);
    Process::start(name, command, folder)
}

/// O04: with every agent silent the answer is "unknown", never false and never zero, for as long
/// as it lasts; the 15 minutes of the case are waited for where time is simulated.
#[tokio::test]
async fn when_every_agent_falls_silent_nothing_is_known_and_nothing_is_said() {
    let binaries = binaries();
    let folder = tempfile::tempdir().unwrap();
    let gateway = Gateway::start(&binaries, &folder, &directory(&["n1", "n1", "n2", "n2"]));
    let place = (&*binaries, &folder, &gateway);
    let agents =
        [agent(place, "a1", ("n1", &[0, 1]), 90.0), agent(place, "a2", ("n2", &[2, 3]), 90.0)];
    let trigger = Trigger::of(&gateway).await;
    trigger.becomes(360.0, None).await;
    let spec = trigger.spec().await;
    let mut stream = trigger
        .client
        .clone()
        .stream_is_active(trigger.reference.clone())
        .await
        .unwrap()
        .into_inner();
    assert!(stream.message().await.unwrap().unwrap().result, "it is active");

    agents.iter().for_each(|agent| agent.signal("STOP"));
    // Until it is stale the last value stands.
    let start = Instant::now();
    while let Ok(value) = trigger.value().await {
        assert_eq!(value, 360.0);
        assert!(start.elapsed() < PATIENCE, "a silent fleet is believed");
        sleep(Duration::from_millis(100)).await;
    }
    for _ in 0..20 {
        assert_eq!(trigger.value().await.unwrap_err().code(), Code::Unavailable);
        assert_eq!(trigger.is_active().await.unwrap_err().code(), Code::Unavailable);
        assert_eq!(trigger.spec().await, spec);
        let said = timeout(Duration::from_millis(200), stream.message()).await;
        assert!(said.is_err(), "the stream is open and silent: {said:?}");
    }
    agents.iter().for_each(|agent| agent.signal("CONT"));
    trigger.becomes(360.0, None).await;
}

/// O16: ages travel, no moments: what an agent's own clock says cannot be told to the gateway, and
/// one that stops is not fresh for longer than any other.
#[tokio::test]
async fn an_agent_that_stops_is_missing_whatever_its_clock_says() {
    let uplink = include_str!("../../../proto/proto/uplink/v1/uplink.proto");
    for word in ["Timestamp", "timestamp", "unix", "epoch", "wall", "_at ", "_at_"] {
        assert!(!uplink.contains(word), "{word}: a moment on the wire");
    }
    let binaries = binaries();
    let folder = tempfile::tempdir().unwrap();
    let gateway = Gateway::start(&binaries, &folder, &directory(&["n1", "n2", "n3"]));
    let place = (&*binaries, &folder, &gateway);
    let first = agent(place, "a1", ("n1", &[0]), 60.0);
    let _others = [agent(place, "a2", ("n2", &[1]), 60.0), agent(place, "a3", ("n3", &[2]), 60.0)];
    let trigger = Trigger::of(&gateway).await;
    // While one is not heard yet, its place is filled in.
    trigger.becomes(180.0, None).await;
    let reporting = async || {
        let page = format!("http://{}", gateway.http).parse().unwrap();
        let text = gateway::client::explanation(&page, None, ("ml", "llm-so")).await.unwrap();
        let told: serde_json::Value = serde_json::from_str(&text).unwrap();
        told["triggers"][0]["coverage"]["reporting"].as_u64()
    };
    let start = Instant::now();
    while reporting().await != Some(3) {
        assert!(start.elapsed() < PATIENCE, "not all three report");
        sleep(Duration::from_millis(100)).await;
    }
    first.signal("STOP");
    let start = Instant::now();
    while reporting().await != Some(2) {
        assert_eq!(trigger.value().await.unwrap(), 180.0);
        assert!(start.elapsed() < PATIENCE, "a stopped agent counts as fresh");
        sleep(Duration::from_millis(100)).await;
    }
    trigger.is_for(180.0, Duration::from_secs(1)).await;
}

/// O17: two agents of one node for a while, as in an update; then the older leaves, told to or not.
#[tokio::test]
async fn two_agents_of_one_node_count_once_and_either_may_go() {
    let binaries = binaries();
    for end in ["TERM", "KILL"] {
        let folder = tempfile::tempdir().unwrap();
        let gateway = Gateway::start(&binaries, &folder, &directory(&["n1", "n1"]));
        let place = (&*binaries, &folder, &gateway);
        let old = agent(place, "old", ("n1", &[0, 1]), 70.0);
        let trigger = Trigger::of(&gateway).await;
        trigger.becomes(140.0, None).await;
        let _new = agent(place, "new", ("n1", &[0, 1]), 70.0);
        trigger.is_for(140.0, Duration::from_secs(4)).await;
        old.signal(end);
        trigger.is_for(140.0, Duration::from_secs(4)).await;
    }
}
