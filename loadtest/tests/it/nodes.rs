//! Nodes of the tests: a driver, a kubelet and a `/proc` that are not the machine's own, and
//! agents as processes that read them and push to a gateway that is a process too.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use loadtest::explain;
use proto::keda::external_scaler_client::ExternalScalerClient;
use proto::keda::{GetMetricsRequest, ScaledObjectRef};
use proto::kubelet::PodResources;
use serde_json::{Value, json};
use shared::identity::ScaledObjectKey;
use tempfile::TempDir;
use tokio::time::{Instant, sleep};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use crate::fake_nvml::{FakeNvml, machine};
use crate::kubelet_server::{Mood, TestKubelet};
use crate::support::{Gateway, PATIENCE, Process, binaries};
use crate::tree::Tree;

/// Time between two looks at what is to become true.
const LOOK: Duration = Duration::from_millis(50);

/// UUIDs of GPUs.
pub(crate) const G1: &str = "GPU-00000001-e550-79a1-597e-7631e126c57a";
pub(crate) const G2: &str = "GPU-00000002-e550-79a1-597e-7631e126c57a";
pub(crate) const G3: &str = "GPU-00000003-e550-79a1-597e-7631e126c57a";
pub(crate) const G4: &str = "GPU-00000004-e550-79a1-597e-7631e126c57a";

/// A replica of a GPU, as device plugins write it.
pub(crate) fn replica(card: &str, number: u32) -> String {
    format!("{card}::{number}")
}

/// The UID of the tests' pod of this number.
pub(crate) fn uid(number: u32) -> String {
    format!("{number:08x}-5d1b-4c55-9e0d-0a9b7c6d5e4f")
}

/// A pod as the directory lists it: its name, the number of its UID, and its node.
pub(crate) type Pod<'a> = (&'a str, u32, &'a str);

/// A cluster whose Deployments in namespace `ai` have these pods; each has a ScaledObject with a
/// target of 60 % GPU utilisation, and of 50 % memory.
pub(crate) fn directory(deployments: &[(&str, &[Pod<'_>])]) -> String {
    let workload = |(name, pods): &(&str, &[Pod<'_>])| {
        let pod = |(name, number, node): &Pod<'_>| {
            let ip = format!("10.0.0.{number}");
            json!({"name": name, "uid": uid(*number), "node": node, "ip": ip, "ready": true})
        };
        json!({
            "namespace": "ai", "kind": "Deployment", "name": name, "replicas": pods.len(),
            "pods": pods.iter().map(pod).collect::<Vec<_>>(),
        })
    };
    let scaled = |(name, _): &(&str, &[Pod<'_>])| {
        json!({
            "namespace": "ai", "name": name, "target": {"name": name}, "minReplicas": 1,
            "triggers": [{"metadata": busy(name).scaler_metadata}],
        })
    };
    let workloads: Vec<_> = deployments.iter().map(workload).collect();
    let objects: Vec<_> = deployments.iter().map(scaled).collect();
    json!({"workloads": workloads, "scaledObjects": objects}).to_string()
}

/// The Deployment's trigger on how busy its GPUs are.
pub(crate) fn busy(name: &str) -> ScaledObjectRef {
    on(name, "gpu_utilization")
}

/// The Deployment's trigger on a metric.
pub(crate) fn on(name: &str, metric: &str) -> ScaledObjectRef {
    let metadata = [("metricType", metric), ("targetValue", "60")];
    ScaledObjectRef {
        namespace: "ai".into(),
        name: name.into(),
        scaler_metadata: metadata.map(|(key, value)| (key.into(), value.into())).into(),
    }
}

/// A gateway and what it is asked.
pub(crate) struct Cluster {
    pub(crate) binaries: PathBuf,
    pub(crate) folder: TempDir,
    gateway: Gateway,
    keda: ExternalScalerClient<Channel>,
}

impl Cluster {
    pub(crate) fn start(directory: &str) -> Self {
        let (binaries, folder) = (binaries(), tempfile::tempdir().unwrap());
        let gateway = Gateway::start(&binaries, &folder, directory);
        let keda = Endpoint::from_shared(format!("http://{}", gateway.keda)).unwrap();
        Self { binaries, folder, gateway, keda: ExternalScalerClient::new(keda.connect_lazy()) }
    }

    /// Other pods from now on.
    pub(crate) fn becomes(&self, directory: &str) {
        let new = self.folder.path().join("new.yaml");
        fs::write(&new, directory).unwrap();
        fs::rename(new, self.folder.path().join("directory.yaml")).unwrap();
    }

    /// What KEDA would get now.
    pub(crate) async fn ask(&self, scaled: &ScaledObjectRef) -> Result<f64, Status> {
        let mut keda = self.keda.clone();
        let specs = keda.get_metric_spec(scaled.clone()).await?.into_inner().metric_specs;
        let request = GetMetricsRequest {
            scaled_object_ref: Some(scaled.clone()),
            metric_name: specs[0].metric_name.clone(),
        };
        let values = keda.get_metrics(request).await?.into_inner().metric_values;
        assert_eq!(values.len(), 1, "the HPA adds up whatever it gets");
        Ok(values[0].metric_value_float)
    }

    pub(crate) async fn is_active(&self, scaled: &ScaledObjectRef) -> Result<bool, Status> {
        Ok(self.keda.clone().is_active(scaled.clone()).await?.into_inner().result)
    }

    /// Waits until KEDA gets this value, to the thousandth.
    pub(crate) async fn gives(&self, scaled: &ScaledObjectRef, value: f64) {
        eventually(async || match self.ask(scaled).await {
            Ok(given) if (given * 1e3).round() / 1e3 == value => Ok(()),
            other => Err(format!("not {value} for {} but {other:?}", scaled.name)),
        })
        .await;
    }

    /// Waits until KEDA is refused like this; returns the words.
    pub(crate) async fn refuses(&self, scaled: &ScaledObjectRef, code: Code) -> String {
        eventually(async || match self.ask(scaled).await {
            Err(status) if status.code() == code => Ok(status.message().to_owned()),
            other => Err(format!("not {code:?} for {} but {other:?}", scaled.name)),
        })
        .await
    }

    /// Waits until the gateway shows this of the device, and returns what it shows.
    pub(crate) async fn shows(&self, uuid: &str, is: impl Fn(&Value) -> bool) -> Value {
        eventually(async || {
            let nodes = explain::get(self.gateway.http, "/api/v1/nodes").await;
            let nodes = nodes.map_err(|error| error.to_string())?;
            let devices = nodes.as_array().into_iter().flatten();
            let mut devices = devices.flat_map(|node| node["devices"].as_array().unwrap());
            let device = devices.find(|device| device["uuid"] == uuid).cloned();
            device.filter(|device| is(device)).ok_or_else(|| format!("{uuid} in {nodes:#}"))
        })
        .await
    }

    /// Agents that speak for a node.
    pub(crate) async fn sessions(&self, node: &str) -> u64 {
        let nodes = explain::get(self.gateway.http, "/api/v1/nodes").await.unwrap();
        let mut nodes = nodes.as_array().into_iter().flatten();
        nodes
            .find(|known| known["node"] == node)
            .map_or(0, |known| known["sessions"].as_u64().unwrap())
    }

    /// The gateway's explanation of a Deployment's first trigger.
    pub(crate) async fn explanation(&self, name: &str) -> Value {
        let path = explain::path(&ScaledObjectKey::new("ai", name));
        explain::get(self.gateway.http, &path).await.unwrap()["triggers"][0].take()
    }

    /// `gpu-agent run` for a node.
    pub(crate) fn agent(&self, node: &Node, name: &'static str, interval: &str) -> Process {
        let mut run = node.command(&self.binaries, "run");
        run.args(["--gateway", &format!("http://{}", self.gateway.uplink)]);
        run.args(["--interval", interval]);
        Process::start(name, run, &self.folder)
    }
}

/// Waits until `look` finds what it looks for.
pub(crate) async fn eventually<T>(mut look: impl AsyncFnMut() -> Result<T, String>) -> T {
    let start = Instant::now();
    loop {
        match look().await {
            Ok(found) => return found,
            Err(why) => assert!(start.elapsed() < PATIENCE, "{why}"),
        }
        sleep(LOOK).await;
    }
}

/// A node: its driver, its kubelet and its processes.
pub(crate) struct Node {
    name: &'static str,
    fake: FakeNvml,
    pub(crate) kubelet: Option<TestKubelet>,
    pub(crate) tree: Tree,
    folder: TempDir,
}

impl Node {
    /// A node with these GPUs, whose kubelet gave them to these pods.
    pub(crate) fn new(name: &'static str, gpus: &[Value], pods: Vec<PodResources>) -> Self {
        Self::within(Tree::new(), name, gpus, pods)
    }

    /// One where the agent sees that tree as `/proc`.
    pub(crate) fn within(
        tree: Tree,
        name: &'static str,
        gpus: &[Value],
        pods: Vec<PodResources>,
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let kubelet = Some(TestKubelet::start(&folder.path().join("kubelet.sock"), pods));
        Self { name, fake: FakeNvml::new(&machine(gpus)), kubelet, tree, folder }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("kubelet.sock")
    }

    /// What the driver says from now on.
    pub(crate) fn reads(&self, gpus: &[Value]) {
        self.fake.script(&machine(gpus));
    }

    /// What the kubelet says from now on.
    pub(crate) fn gives(&self, pods: Vec<PodResources>) {
        self.kubelet.as_ref().unwrap().mood.send_replace(Mood::Says(pods));
    }

    /// A process of the pod with the UID of this number.
    pub(crate) fn runs(&self, pid: u32, started: u64, pod: u32) {
        let container = format!("{pod:064x}");
        let cgroup = format!("0::/kubepods/burstable/pod{}/{container}\n", uid(pod));
        self.tree.process(pid, started, cgroup);
    }

    /// A subcommand of the agent, on this node.
    pub(crate) fn command(&self, binaries: &Path, subcommand: &str) -> std::process::Command {
        let mut command = std::process::Command::new(binaries.join("gpu-agent"));
        command.args([subcommand, "--node", self.name, "--source", "nvml"]);
        command.arg("--nvml-library").arg(self.fake.path());
        command.arg("--kubelet-socket").arg(self.socket());
        command.arg("--proc-root").arg(self.tree.path());
        command
    }
}

/// A GPU that is so busy, with these processes: pid, percent of its time, GiB of its memory.
pub(crate) fn used(uuid: &str, utilization: u32, processes: &[(u32, u32, u64)]) -> Value {
    let mut gpu = crate::fake_nvml::gpu(uuid, utilization);
    let own = processes.iter().map(|(pid, _, gib)| json!({"pid": pid, "memory": gib << 30}));
    gpu["processes"] = own.collect();
    let time = processes.iter().map(|(pid, percent, _)| json!([pid, percent, 1]));
    gpu["process_utilization"] = time.collect();
    gpu
}
