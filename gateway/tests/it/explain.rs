//! What an explanation says beside the decision: pods without a place, times to start, free GPUs.

use gateway::config::{DirectorySource, ServeConfig};
use serde_json::{Value, json};
use shared::metric::Metric;
use shared::reading::Reading;

use crate::api_server::{ApiServer, pod, scaled_object, unschedulable};
use crate::support::{Node, TestGateway, eventually, gpu};

/// `ai/vllm` with these pods, and a ScaledObject with one trigger.
fn directory(replicas: u32, pods: &str) -> String {
    format!(
        "
workloads:
  - {{namespace: ai, kind: Deployment, name: vllm, replicas: {replicas}, pods: [{pods}]}}
scaledObjects:
  - {{namespace: ai, name: vllm-so, target: {{name: vllm}}, minReplicas: 1, triggers: [{{metadata: {{targetValue: '70'}}}}]}}
"
    )
}

const OLD: &str = "{name: vllm-0, ready: true, node: n1}";

async fn explained(gateway: &TestGateway) -> Value {
    gateway.json("/api/v1/scaledobjects/ai/vllm-so/explain").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_without_a_gpu_is_told_from_one_that_loads() {
    let pods = "{name: vllm-1, ready: false, node: n1, unreadyForSeconds: 40}, \
        {name: vllm-2, ready: false, ageSeconds: 50, \
         unscheduled: '0/8 nodes are available: insufficient nvidia.com/gpu'}, \
        {name: vllm-3, ready: false, unscheduled: '0/8 nodes are available: untolerated taint'}, \
        {name: vllm-4, ready: false, ageSeconds: 5000, unscheduled: 'insufficient nvidia.com/gpu'}";
    let gateway = TestGateway::start(&directory(5, &format!("{OLD}, {pods}"))).await;
    let _agent = gateway.agent(Node::new("n1").with(gpu("u0", "ai/vllm-0", 60.0))).await;
    gateway.is_ready().await;
    let trigger = gateway.explain("ai/vllm-so").await;
    let coverage =
        json!({"reporting": 1, "starting": 3, "missing": 0, "stuck": 1, "unscheduled": 3});
    assert_eq!(trigger["coverage"], coverage);
    let reason = trigger["reason"].as_str().unwrap();
    assert!(reason.contains("; 2 waiting to be scheduled and 1 starting"), "{reason}");
    for (pod, state, words) in [
        (1, "starting", ["not ready for 4", ": loading"]),
        (2, "starting", ["waiting for a GPU: 0/8 nodes", "nvidia.com/gpu (for 5"]),
        (3, "starting", ["waiting to be scheduled: 0/8 nodes", "untolerated taint"]),
        (4, "stuck", ["waiting for a GPU: insufficient", "longer than coldStartTimeout"]),
    ] {
        let pod = &trigger["pods"][pod];
        assert_eq!(pod["state"], state, "{pod}");
        let why = pod["why"].as_str().unwrap();
        assert!(words.iter().all(|word| why.contains(word)), "{why}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn times_to_start_are_of_pods_that_were_seen_to_start() {
    let gateway = TestGateway::start(&directory(1, OLD)).await;
    let agent = gateway.agent(Node::new("n1").with(gpu("u0", "ai/vllm-0", 60.0))).await;
    gateway.is_ready().await;
    let unknown = json!({"medianSeconds": null, "p90Seconds": null, "pods": 0});
    let steps = ["orderedToScheduled", "scheduledToReady", "readyToFirstReading"];
    let startup = explained(&gateway).await["startup"].clone();
    assert_eq!(startup.as_object().unwrap().len(), 3);
    assert!(steps.iter().all(|step| startup[step] == unknown), "{startup}");
    let (_, text) = gateway.get("/metrics").await;
    assert!(!text.contains("gpu_gateway_startup_seconds{"), "what is not known is not there");
    // Pod by pod: ordered, on a node, Ready.
    for (pod, pods) in [
        ("ordered", "{name: vllm-1, ready: false, ageSeconds: 30, unscheduled: no GPU}"),
        ("on a node", "{name: vllm-1, ready: false, node: n1, ageSeconds: 30}"),
        ("ready", "{name: vllm-1, ready: true, node: n1}"),
    ] {
        gateway.rewrite(&directory(2, &format!("{OLD}, {pods}")));
        eventually(pod, async || {
            let trigger = gateway.explain("ai/vllm-so").await;
            let (why, node) = (trigger["pods"][1]["why"].clone(), &trigger["pods"][1]["node"]);
            let why = why.as_str().unwrap_or_default();
            let seen = match pod {
                "ordered" => why.contains("no GPU"),
                "on a node" => node == "n1" && why.contains("loading"),
                _ => node == "n1" && !why.contains("not ready"),
            };
            if seen { Ok(()) } else { Err(trigger) }
        })
        .await;
    }
    let startup = explained(&gateway).await["startup"].clone();
    assert_eq!(startup["readyToFirstReading"], unknown, "{startup}");
    let both = Node::new("n1").with(gpu("u0", "ai/vllm-0", 60.0));
    let _agent = gateway.agent(both.with(gpu("u1", "ai/vllm-1", 60.0).index(1))).await;
    drop(agent);
    let startup = eventually("the first reading is seen", async || {
        let startup = explained(&gateway).await["startup"].clone();
        let known = startup["readyToFirstReading"]["pods"] == 1;
        if known { Ok(startup) } else { Err(startup) }
    })
    .await;
    let seconds = |step: &str, which: &str| startup[step][which].as_f64().unwrap();
    for (step, range) in steps.into_iter().zip([29.0..90.0, 0.0..60.0, 0.0..60.0]) {
        assert!(range.contains(&seconds(step, "medianSeconds")), "{step}: {startup}");
        assert_eq!(startup[step]["pods"], 1, "{step}");
        assert_eq!(startup[step]["medianSeconds"], startup[step]["p90Seconds"], "{step}");
    }
    for (step, name) in steps.into_iter().zip([
        "ordered_to_scheduled",
        "scheduled_to_ready",
        "ready_to_first_reading",
    ]) {
        let of = format!("namespace=\"ai\",kind=\"Deployment\",workload=\"vllm\",step=\"{name}\"");
        assert_eq!(gateway.metric("gpu_gateway_startup_pods", &of).await, 1.0, "{name}");
        for quantile in ["0.5", "0.9"] {
            let of = format!("{of},quantile=\"{quantile}\"");
            let shown = gateway.metric("gpu_gateway_startup_seconds", &of).await;
            let explained = seconds(step, "medianSeconds");
            assert!((shown - explained).abs() < 0.001, "{name} {quantile}: {shown}, {explained}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn free_gpus_are_those_nobody_holds_and_that_answer() {
    let gateway = TestGateway::start(&directory(1, OLD)).await;
    let free = |uuid: &str| gpu(uuid, "ai/nobody", 0.0).free();
    let failed =
        |uuid: &str| free(uuid).reading(Metric::Temperature, Reading::Failed("Xid".into()));
    let first = Node::new("n1")
        .with(gpu("u0", "ai/vllm-0", 60.0))
        .with(free("u1").index(1))
        .with(free("u2").index(2))
        .with(failed("u3").index(3));
    let second = Node::new("n2")
        .with(free("u4"))
        .with(free("m0").cut_from("u4", "3g.40gb").index(1))
        .with(gpu("m1", "ai/other", 5.0).cut_from("u4", "3g.40gb").index(2))
        // Another node says that it is held.
        .with(gpu("u2", "ai/other", 5.0).index(3));
    let _agents = (gateway.agent(first).await, gateway.agent(second).await);
    gateway.is_ready().await;
    let right = json!({"NVIDIA H100 80GB HBM3": 1, "NVIDIA H100 80GB HBM3 MIG 3g.40gb": 1});
    eventually("both nodes are heard", async || {
        let free = explained(&gateway).await["gpusFree"].clone();
        if free == right { Ok(()) } else { Err(free) }
    })
    .await;
    for (model, count) in right.as_object().unwrap() {
        let label = format!("model=\"{model}\"");
        let metric = gateway.metric("gpu_gateway_gpus_free", &label).await;
        assert_eq!(json!(metric), json!(count.as_f64()), "{model}");
    }
}

/// A gateway that knows its cluster from `api`.
async fn live(api: &ApiServer) -> TestGateway {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("kubeconfig");
    api.kubeconfig(&path);
    let mut config = ServeConfig::local(path.clone());
    config.directory = DirectorySource::Kube;
    config.kube.kubeconfig = Some(path);
    TestGateway::try_start_with(folder, config).await.expect("the gateway starts")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_live_directory_tells_waiting_from_loading_and_times_both() {
    let api = ApiServer::start().await;
    let labels = json!({"app": "vllm"});
    api.scale("apps/v1/deployments", "ai", "vllm", (2, "app=vllm"));
    api.apply("pods", pod("ai", "vllm-0", labels.clone()));
    let metadata = json!({"targetValue": "70"});
    api.apply("scaledobjects", scaled_object("ai", "vllm-so", json!({"name": "vllm"}), metadata));
    let gateway = live(&api).await;
    let node = Node::new("n1").with(gpu("u0", "ai/vllm-0", 60.0));
    let _agent = gateway.agent(node.with(gpu("u1", "ai/vllm-1", 1.0).index(1))).await;
    gateway.is_ready().await;
    let is = async |state: &str, words: &str| {
        eventually(words, async || {
            let trigger = gateway.explain("ai/vllm-so").await;
            let pod = &trigger["pods"][1];
            let why = pod["why"].as_str().unwrap_or_default();
            let so = pod["state"] == state && why.contains(words);
            if so { Ok(trigger) } else { Err(trigger) }
        })
        .await
    };
    let waiting = unschedulable("ai", "vllm-1", labels);
    api.apply("pods", waiting.clone());
    let no_gpu = "waiting for a GPU: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu. (for ";
    let trigger = is("starting", no_gpu).await;
    assert_eq!(trigger["coverage"]["unscheduled"], 1);
    assert!(trigger["reason"].as_str().unwrap().contains("1 waiting to be scheduled"));
    let mut loading = waiting;
    loading["spec"]["nodeName"] = json!("n1");
    loading["status"]["conditions"] = json!([{"type": "PodScheduled", "status": "True"}]);
    api.apply("pods", loading.clone());
    let trigger = is("starting", ": loading").await;
    assert_eq!(trigger["coverage"]["unscheduled"], Value::Null);
    loading["status"]["phase"] = json!("Running");
    loading["status"]["conditions"] = json!([{"type": "Ready", "status": "True"}]);
    api.apply("pods", loading);
    is("reporting", "").await;
    let startup = explained(&gateway).await["startup"].clone();
    for step in ["orderedToScheduled", "scheduledToReady", "readyToFirstReading"] {
        assert_eq!(startup[step]["pods"], 1, "{step}: {startup}");
        assert!(startup[step]["medianSeconds"].as_f64().unwrap() < 60.0, "{step}: {startup}");
    }
    assert!(startup["scheduledToReady"]["medianSeconds"].as_f64() > Some(0.0), "{startup}");
    assert_eq!(startup["readyToFirstReading"]["p90Seconds"], 0.0, "{startup}");
}
