//! The real binaries: a gateway and three agents as processes, asked over plain gRPC.

use std::fs;
use std::path::Path;

use serde_json::json;
use tempfile::TempDir;

use crate::support::{Gateway, Process, binaries, run_agent, scaled_object};

/// Case O01: one hot node, two cool ones, and a stranger's GPU on the hot one.
pub(crate) const DIRECTORY: &str = "\
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
pub(crate) const NODES: [(&str, &[(&str, f64)]); 3] = [
    ("n1", &[("llm-0", 90.0), ("other-0", 100.0)]),
    ("n2", &[("llm-1", 10.0)]),
    ("n3", &[("llm-2", 10.0)]),
];

#[tokio::test]
async fn three_agents_and_a_gateway_give_the_exact_total_and_end_when_told() {
    let binaries = binaries();
    let folder = tempfile::tempdir().unwrap();
    let gateway = Gateway::start(&binaries, &folder, DIRECTORY);
    let mut agents: Vec<Process> = Vec::new();
    for (node, gpus) in NODES {
        agents.push(start_agent(&binaries, &folder, &gateway, node, gpus));
    }

    let llm = scaled_object("llm-so", &[]);
    let first = gateway.first_answer(&llm, &agents).await;
    assert_eq!(first.metric_value_float, 110.0, "not a partial sum, not the stranger's: {first:?}");
    for _ in 0..10 {
        let again = gateway.ask(&llm).await.unwrap();
        assert_eq!(again, first, "the same over every connection");
    }
    assert_eq!(first.metric_value, 110);
    assert!(gateway.is_active(&llm).await);

    agents.push(gateway.process);
    for process in &mut agents {
        let status = process.terminate().await;
        assert!(status.success(), "{} ended with {status}:\n{}", process.name, process.log());
    }
}

fn start_agent(
    binaries: &Path,
    folder: &TempDir,
    gateway: &Gateway,
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
    let mut command = run_agent(binaries, gateway, node);
    command.args(["--source", &format!("replay:{}", replay.display())]);
    Process::start(node, command, folder)
}
