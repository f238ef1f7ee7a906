//! Agents as processes that read a driver (the fake library, through nvml-wrapper) and push to a
//! gateway.

use std::fs;
use std::process::Command;
use std::time::Duration;

use loadtest::explain::get;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use crate::fake_nvml::{FakeNvml, gpu, machine};
use crate::processes::{DIRECTORY, NODES};
use crate::support::{Gateway, PATIENCE, Process, binaries, run_agent, scaled_object};

/// A holders file: the pod that holds each GPU.
pub(crate) fn holders(folder: &TempDir, node: &str, pods: &[(String, &str)]) -> String {
    let file = folder.path().join(format!("{node}-holders.yaml"));
    let line = |(uuid, pod): &(String, &str)| {
        format!("{uuid}: [{{namespace: ml, pod: {pod}, container: main}}]\n")
    };
    fs::write(&file, pods.iter().map(line).collect::<String>()).unwrap();
    file.display().to_string()
}

fn start_agent(mut run: Command, node: &'static str, fake: &FakeNvml, folder: &TempDir) -> Process {
    run.arg("--nvml-library").arg(fake.path());
    Process::start(node, run, folder)
}

#[tokio::test]
async fn three_agents_that_read_their_drivers_give_the_exact_total() {
    let binaries = binaries();
    let folder = tempfile::tempdir().unwrap();
    let gateway = Gateway::start(&binaries, &folder, DIRECTORY);
    let (mut agents, mut fakes) = (Vec::new(), Vec::new());
    for (node, gpus) in NODES {
        let uuid = |index| format!("GPU-{node}-{index}");
        let loads = gpus.iter().enumerate();
        let fake = loads.map(|(index, (_, load))| gpu(&uuid(index), *load as u32));
        let fake = FakeNvml::new(&machine(&fake.collect::<Vec<_>>()));
        let pods = gpus.iter().enumerate().map(|(index, (pod, _))| (uuid(index), *pod));
        let holders = holders(&folder, node, &pods.collect::<Vec<_>>());
        let mut run = run_agent(&binaries, &gateway, node);
        run.args(["--holders", &holders]);
        agents.push(start_agent(run, node, &fake, &folder));
        fakes.push(fake);
    }

    let llm = scaled_object("llm-so", &[]);
    let first = gateway.first_answer(&llm, &agents).await;
    assert_eq!((first.metric_value_float, first.metric_value), (110.0, 110), "{first:?}");
    for _ in 0..10 {
        assert_eq!(gateway.ask(&llm).await.unwrap(), first);
    }
    agents.push(gateway.process);
    for process in &mut agents {
        let status = process.terminate().await;
        assert!(status.success(), "{} ended with {status}:\n{}", process.name, process.log());
    }
}

/// Case O05: two Deployments with a GPU each on one node.
const TWO: &str = "\
workloads:
  - {namespace: ml, kind: Deployment, name: a, replicas: 1, pods: [{name: a-0, node: n1, ready: true}]}
  - {namespace: ml, kind: Deployment, name: b, replicas: 1, pods: [{name: b-0, node: n1, ready: true}]}
scaledObjects:
  - {namespace: ml, name: a-so, target: {kind: Deployment, name: a}, maxReplicas: 8}
  - {namespace: ml, name: b-so, target: {kind: Deployment, name: b}, maxReplicas: 8}
";

/// The agent's watchdog is at its 10 s; that readings age is seen in the 8 s before.
#[tokio::test]
async fn a_driver_call_that_hangs_costs_its_gpu_only_and_only_while_it_hangs() {
    let binaries = binaries();
    let folder = tempfile::tempdir().unwrap();
    let gateway = Gateway::start(&binaries, &folder, TWO);
    let node = |hangs: bool, load: u32| {
        let mut u1 = gpu("GPU-u1", 70);
        u1["block"] = if hangs { json!(["*"]) } else { json!([]) };
        machine(&[u1, gpu("GPU-u2", load)])
    };
    let fake = FakeNvml::new(&node(false, 70));
    let pods = [("GPU-u1".to_owned(), "a-0"), ("GPU-u2".to_owned(), "b-0")];
    let mut run = run_agent(&binaries, &gateway, "n1");
    run.args(["--holders", &holders(&folder, "n1", &pods)]);
    let mut agents = [start_agent(run, "n1", &fake, &folder)];
    let fresh = [("staleAfter", "2s")];
    let (a, b) = (scaled_object("a-so", &fresh), scaled_object("b-so", &fresh));
    for workload in [&a, &b] {
        assert_eq!(gateway.first_answer(workload, &agents).await.metric_value_float, 70.0);
    }

    fake.script(&node(true, 30));
    let start = Instant::now();
    let refusal = loop {
        let value = gateway.ask(&b).await.unwrap().metric_value_float;
        // The ring still has samples of both loads.
        assert!((30.0..=70.0).contains(&value), "{value}");
        match gateway.ask(&a).await {
            Ok(value) => assert_eq!(value.metric_value_float, 70.0, "never a zero"),
            Err(refusal) => break refusal.to_string(),
        }
        assert!(start.elapsed() < PATIENCE, "a is still answered:\n{}", agents[0].log());
        sleep(Duration::from_millis(50)).await;
    };
    assert!(refusal.contains("unavailable"), "{refusal}");
    // Because of its age, long before the agent's watchdog calls it failed, and that age grows.
    let devices = devices_when(&gateway, |_| true).await;
    assert_ne!(devices[0]["state"], "failed", "that is not what a was refused for: {devices:#?}");
    let age = devices[0]["ageMs"].as_u64().unwrap();
    assert!(age >= 2_000, "{devices:#?}");
    devices_when(&gateway, |u1| u1["ageMs"].as_u64().unwrap() > age).await;
    // Its neighbour's new load is seen while it hangs.
    let start = Instant::now();
    while gateway.ask(&b).await.unwrap().metric_value_float != 30.0 {
        assert!(start.elapsed() < PATIENCE, "b stands still:\n{}", agents[0].log());
        sleep(Duration::from_millis(50)).await;
    }
    gateway.ask(&a).await.unwrap_err();
    // Named with its age, and then with what it does not answer.
    let devices = devices_when(&gateway, |u1| u1["state"] == "failed").await;
    let why = devices[0]["reason"].as_str().unwrap();
    assert!(why.contains("is not answering for"), "{why}");
    assert_eq!((&devices[1]["uuid"], &devices[1]["state"]), (&json!("GPU-u2"), &json!("ok")));
    assert!(devices[0]["ageMs"].as_u64().unwrap() > age, "its failure made it no younger");
    assert_eq!(gateway.ask(&b).await.unwrap().metric_value_float, 30.0);
    gateway.ask(&a).await.unwrap_err();

    fake.script(&node(false, 30));
    assert_eq!(gateway.first_answer(&a, &agents).await.metric_value_float, 70.0);
    assert_eq!(gateway.ask(&b).await.unwrap().metric_value_float, 30.0);
    let status = agents[0].terminate().await;
    assert!(status.success(), "not restarted, and it ends when told: {status}");
}

/// What the gateway says of the node's devices, once `is` holds for GPU-u1.
async fn devices_when(gateway: &Gateway, is: impl Fn(&Value) -> bool) -> Vec<Value> {
    let start = Instant::now();
    loop {
        let nodes = get(gateway.http, "/api/v1/nodes").await.unwrap();
        let devices = nodes[0]["devices"].as_array().unwrap().clone();
        assert_eq!(devices[0]["uuid"], "GPU-u1");
        if is(&devices[0]) {
            return devices;
        }
        assert!(start.elapsed() < PATIENCE, "still {devices:#?}");
        sleep(Duration::from_millis(50)).await;
    }
}
