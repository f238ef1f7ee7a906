//! The real binaries: a gateway and three agents as processes, asked over plain gRPC.

use std::fs::{self, File};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use proto::keda::external_scaler_client::ExternalScalerClient;
use proto::keda::{GetMetricsRequest, MetricValue, ScaledObjectRef};
use serde_json::json;
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

const PATIENCE: Duration = Duration::from_secs(30);

/// Case O01: one hot node, two cool ones, and a stranger's GPU on the hot one.
const DIRECTORY: &str = "\
workloads:
  - {namespace: ml, kind: Deployment, name: llm, replicas: 3, pods: [
      {name: llm-0, node: n1, ready: true},
      {name: llm-1, node: n2, ready: true},
      {name: llm-2, node: n3, ready: true}]}
  - {namespace: ml, kind: Deployment, name: other, replicas: 1, pods: [
      {name: other-0, node: n1, ready: true}]}
scaledObjects:
  - {namespace: ml, name: llm-so, target: {kind: Deployment, name: llm}, minReplicas: 1, maxReplicas: 8}
";

/// Each node's GPUs: the pod that holds it and its utilisation.
const NODES: [(&str, &[(&str, f64)]); 3] = [
    ("n1", &[("llm-0", 90.0), ("other-0", 100.0)]),
    ("n2", &[("llm-1", 10.0)]),
    ("n3", &[("llm-2", 10.0)]),
];

#[tokio::test]
async fn three_agents_and_a_gateway_give_the_exact_total_and_end_when_told() {
    let binaries = binaries();
    let folder = tempfile::tempdir().unwrap();
    let keda = free_address();
    let uplink = free_address();
    let mut processes = vec![start_gateway(&binaries, &folder, keda, uplink)];
    for (node, gpus) in NODES {
        processes.push(start_agent(&binaries, &folder, uplink, node, gpus));
    }

    let first = first_answer(keda, &processes).await;
    assert_eq!(first.metric_value_float, 110.0, "not a partial sum, not the stranger's: {first:?}");
    for _ in 0..10 {
        let again = ask(keda).await.unwrap();
        assert_eq!(again, first, "the same over every connection");
    }
    assert_eq!(first.metric_value, 110);
    assert!(is_active(keda).await);

    processes.reverse();
    for process in &mut processes {
        let status = process.terminate().await;
        assert!(status.success(), "{} ended with {status}:\n{}", process.name, process.log());
    }
}

/// Builds the binaries this test belongs to, which does nothing if they are there, and finds them.
fn binaries() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let profile = test.ancestors().nth(2).unwrap();
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--workspace", "--bins", "--target-dir"]);
    cargo.arg(profile.parent().unwrap());
    if profile.ends_with("release") {
        cargo.arg("--release");
    }
    assert!(cargo.status().unwrap().success(), "the binaries do not build");
    profile.to_owned()
}

fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

fn start_gateway(
    binaries: &Path,
    folder: &TempDir,
    keda: SocketAddr,
    uplink: SocketAddr,
) -> Process {
    let directory = folder.path().join("directory.yaml");
    fs::write(&directory, DIRECTORY).unwrap();
    let mut command = Command::new(binaries.join("gpu-gateway"));
    command
        .args(["serve", "--http-listen", "127.0.0.1:0"])
        .args(["--keda-listen", &keda.to_string()])
        .args(["--agent-listen", &uplink.to_string()])
        .args(["--directory", &format!("file:{}", directory.display())]);
    Process::start("gpu-gateway", command, folder)
}

fn start_agent(
    binaries: &Path,
    folder: &TempDir,
    gateway: SocketAddr,
    node: &'static str,
    gpus: &[(&str, f64)],
) -> Process {
    let devices = gpus.iter().enumerate().map(|(index, (pod, utilization))| {
        json!({
            "uuid": format!("GPU-{node}-{index}"),
            "index": index,
            "name": "NVIDIA H100 80GB HBM3",
            "gpu_utilization": utilization,
            "holders": [{"namespace": "ml", "pod": pod, "container": "main"}],
        })
    });
    let replay = folder.path().join(format!("{node}.jsonl"));
    let line = json!({"at_ms": 0, "devices": Vec::from_iter(devices)});
    fs::write(&replay, format!("{line}\n")).unwrap();
    let mut command = Command::new(binaries.join("gpu-agent"));
    command
        .args(["run", "--node", node, "--interval", "200ms"])
        .args(["--gateway", &format!("http://{gateway}")])
        .args(["--source", &format!("replay:{}", replay.display())]);
    Process::start(node, command, folder)
}

/// The first value that KEDA would get.
async fn first_answer(keda: SocketAddr, processes: &[Process]) -> MetricValue {
    let start = Instant::now();
    loop {
        let refusal = match ask(keda).await {
            Ok(value) => return value,
            Err(refusal) => refusal,
        };
        let logs = || processes.iter().map(Process::log).collect::<String>();
        assert!(start.elapsed() < PATIENCE, "no value, but {refusal:#}\n{}", logs());
        sleep(Duration::from_millis(100)).await;
    }
}

fn reference() -> ScaledObjectRef {
    ScaledObjectRef {
        namespace: "ml".into(),
        name: "llm-so".into(),
        scaler_metadata: [("targetGpuUtilization".into(), "50".into())].into(),
    }
}

/// One GetMetrics over a connection of its own.
async fn ask(keda: SocketAddr) -> anyhow::Result<MetricValue> {
    let mut client = ExternalScalerClient::connect(format!("http://{keda}")).await?;
    let specs = client.get_metric_spec(reference()).await?.into_inner().metric_specs;
    assert_eq!((specs.len(), specs[0].target_size_float), (1, 50.0));
    let request = GetMetricsRequest {
        scaled_object_ref: Some(reference()),
        metric_name: specs[0].metric_name.clone(),
    };
    let values = client.get_metrics(request).await?.into_inner().metric_values;
    assert_eq!(values.len(), 1, "the HPA adds up whatever it gets");
    Ok(values[0].clone())
}

async fn is_active(keda: SocketAddr) -> bool {
    let mut client = ExternalScalerClient::connect(format!("http://{keda}")).await.unwrap();
    client.is_active(reference()).await.unwrap().into_inner().result
}

/// A child that does not outlive the test.
struct Process {
    name: &'static str,
    child: Child,
    log: PathBuf,
}

impl Process {
    fn start(name: &'static str, mut command: Command, folder: &TempDir) -> Self {
        let log = folder.path().join(format!("{name}.log"));
        let file = File::create(&log).unwrap();
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file).spawn();
        let child = child.unwrap();
        Self { name, child, log }
    }

    fn log(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        format!("--- {}\n{text}", self.name)
    }

    /// Sends SIGTERM and waits for the end.
    async fn terminate(&mut self) -> ExitStatus {
        let signal = format!("kill -TERM {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &signal]).status().unwrap().success());
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(start.elapsed() < PATIENCE, "{} does not end:\n{}", self.name, self.log());
            sleep(Duration::from_millis(50)).await;
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        for ended in [self.child.kill(), self.child.wait().map(drop)] {
            ended.unwrap_or_else(|error| eprintln!("{}: {error}", self.name));
        }
    }
}
