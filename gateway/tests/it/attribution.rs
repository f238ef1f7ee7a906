//! Whose load is whose, as KEDA and people see it: MIG instances, shared GPUs, uninvited guests.

use std::time::Duration;

use shared::frame::HolderSource;
use shared::metric::Metric;
use shared::reading::Reading;
use tokio::time::sleep;
use tonic::Code;

use crate::support::{Gpu, Node, Steady, TestGateway, eventually, gpu, refused};

fn workloads(of: &[(&str, &[&str])]) -> String {
    let mut text = "workloads:\n".to_owned();
    for (name, pods) in of {
        let pods = pods.iter().map(|pod| format!("{{name: {pod}, ready: true, node: n1}}"));
        let pods: Vec<_> = pods.collect();
        text += &format!(
            "  - {{namespace: ml, kind: Deployment, name: {name}, replicas: {}, pods: [{}]}}\n",
            pods.len(),
            pods.join(", ")
        );
    }
    text += "scaledObjects:\n";
    for (name, _) in of {
        text += &format!(
            "  - {{namespace: ml, name: {name}, target: {{name: {name}}}, minReplicas: 1}}\n"
        );
    }
    text
}

/// A 3g.20gb instance of `pod` with that much memory in use, and no utilisation.
fn instance(uuid: &str, pod: &str, used_mib: f64) -> Gpu {
    gpu(uuid, pod, 0.0)
        .cut_from("GPU-parent", "3g.20gb")
        .reading(Metric::GpuUtilization, Reading::Unsupported)
        .reads(Metric::MemoryUsedMib, used_mib)
        .reads(Metric::MemoryUsedPercent, used_mib / 19_968.0 * 100.0)
}

#[tokio::test]
async fn o09_mig_slices_have_their_own_memory_and_no_utilisation_at_all() {
    let gateway = TestGateway::start(&workloads(&[("a", &["a"]), ("b", &["b"])])).await;
    let parent = gpu("GPU-parent", "ml/nobody", 97.0)
        .free()
        .reads(Metric::MemoryUsedMib, 20_100.0)
        .reads(Metric::MemoryUsedPercent, 20_100.0 / 40_536.0 * 100.0);
    let node = Node::new("n1")
        .with(parent)
        .with(instance("MIG-m1", "ml/a", 18_000.0))
        .with(instance("MIG-m2", "ml/b", 2_000.0));
    let _agent = gateway.agent(node).await;
    let vram = [("metricType", "memory_used_percent")];
    gateway.trigger("ml/a", &vram).await.becomes(90.144).await;
    gateway.trigger("ml/b", &vram).await.becomes(10.016).await;
    let busy = gateway.trigger("ml/a", &[("metricType", "gpu_utilization")]).await;
    let words = ["MIG", "memory_used_percent", "sm_activity", "requests_waiting"];
    refused(busy.value().await, Code::FailedPrecondition, &words);
    refused(busy.is_active().await, Code::FailedPrecondition, &words);
    // A GPU that is none has another reason.
    let plain = gpu("GPU-2", "ml/a", 0.0).reading(Metric::GpuUtilization, Reading::Unsupported);
    let gateway = TestGateway::start(&workloads(&[("a", &["a"])])).await;
    let _agent = gateway.agent(Node::new("n1").with(plain)).await;
    let busy = gateway.trigger("ml/a", &[("metricType", "gpu_utilization")]).await;
    let why = busy.fails(Code::FailedPrecondition).await;
    assert!(!why.contains("MIG"), "{why}");
}

/// The card of O10: 90 % busy, of which `b1` has `of_b`.
fn time_sliced(of_b: f64) -> Gpu {
    gpu("GPU-1", "ml/x", 90.0)
        .free()
        .used_by("ml/a1", HolderSource::Process, 60.0)
        .used_by("ml/a2", HolderSource::Process, 20.0)
        .used_by("ml/b1", HolderSource::Process, of_b)
}

#[tokio::test]
async fn o10_three_pods_on_one_card_have_what_their_processes_did() {
    let of: [(&str, &[&str]); 2] = [("a", &["a1", "a2"]), ("b", &["b1"])];
    let gateway = TestGateway::start(&workloads(&of)).await;
    let agent = gateway.agent(Node::new("n1").with(time_sliced(10.0))).await;
    let target = [("targetValue", "60")];
    gateway.trigger("ml/a", &target).await.becomes(80.0).await;
    gateway.trigger("ml/b", &target).await.becomes(10.0).await;
    let explained = gateway.explain("ml/a").await;
    assert_eq!(explained["hpa"]["desired"], 2, "{explained}");
    assert_eq!(gateway.explain("ml/b").await["hpa"]["desired"], 1);
    let device = &explained["pods"][0]["devices"][0];
    assert_eq!((&device["source"], &device["reading"]), (&"process".into(), &60.0.into()));
    assert_eq!((&device["estimated"], &device["undeclared"]), (&false.into(), &false.into()));
    assert_eq!(explained["warnings"], serde_json::json!([]), "it was measured");
    // All of it is accounted for; then a ninth of it is not.
    unattributed(&gateway, 0.0).await;
    agent.change(|node| *node.gpu("GPU-1") = time_sliced(0.0));
    unattributed(&gateway, 0.111111).await;
    gateway.trigger("ml/b", &target).await.becomes(0.0).await;
    gateway.trigger("ml/a", &target).await.becomes(80.0).await;
}

#[tokio::test]
async fn o17_two_agents_of_a_node_may_list_holders_in_different_order() {
    let of: [(&str, &[&str]); 2] = [("a", &["a1", "a2"]), ("b", &["b1"])];
    let gateway = TestGateway::start(&workloads(&of)).await;
    let old = gateway.agent(Node::new("n1").with(time_sliced(10.0))).await;
    let (a, b) = (gateway.trigger("ml/a", &[]).await, gateway.trigger("ml/b", &[]).await);
    a.becomes(80.0).await;
    let steady = [Steady::watch(a, 80.0), Steady::watch(b, 10.0)];
    let turned = gpu("GPU-1", "ml/x", 90.0)
        .free()
        .used_by("ml/b1", HolderSource::Process, 10.0)
        .used_by("ml/a2", HolderSource::Process, 20.0)
        .used_by("ml/a1", HolderSource::Process, 60.0);
    let new = gateway.agent(Node::new("n1").with(turned)).await;
    sleep(Duration::from_secs(1)).await;
    old.leave().await.unwrap();
    sleep(Duration::from_millis(500)).await;
    for steady in steady {
        steady.held().await;
    }
    new.leave().await.unwrap();
}

/// The first device of the first node has that share left, in the API and in the metrics.
async fn unattributed(gateway: &TestGateway, share: f64) {
    eventually("it is left", async || {
        let nodes = gateway.json("/api/v1/nodes").await;
        let left = nodes[0]["devices"][0]["unattributed"].clone();
        if left == share { Ok(()) } else { Err(left) }
    })
    .await;
    let metric = gateway.metric("gpu_gateway_device_unattributed_ratio", "node=\"n1\"").await;
    assert_eq!(metric, share);
}

#[tokio::test]
async fn what_nobody_holds_is_shown_where_it_is_known() {
    let gateway = TestGateway::start(&workloads(&[("a", &["a"])])).await;
    let idle = gpu("GPU-idle", "ml/a", 0.0).shared(None);
    let half = gpu("GPU-half", "ml/a", 80.0).shared(Some(0.5));
    let host = gpu("GPU-host", "ml/a", 70.0).free();
    let unknown = gpu("GPU-unknown", "ml/a", 70.0).shared(None);
    let by_share = gpu("GPU-share", "ml/a", 0.0)
        .shared(Some(0.25))
        .reading(Metric::GpuUtilization, Reading::Unsupported);
    let nothing = gpu("GPU-nothing", "ml/a", 0.0)
        .free()
        .reading(Metric::GpuUtilization, Reading::Unsupported);
    let all = [idle, half, host, unknown, by_share, nothing];
    let _agent = gateway.agent(all.into_iter().fold(Node::new("n1"), Node::with)).await;
    let expected = serde_json::json!([0.0, 0.5, 1.0, null, 0.75, null]);
    eventually("it is heard", async || {
        let nodes = gateway.json("/api/v1/nodes").await;
        let devices = nodes[0]["devices"].as_array().cloned().unwrap_or_default();
        let left: Vec<_> = devices.iter().map(|device| device["unattributed"].clone()).collect();
        if serde_json::json!(left) == expected { Ok(()) } else { Err(left) }
    })
    .await;
    let (_, text) = gateway.get("/metrics").await;
    assert_eq!(text.matches("gpu_gateway_device_unattributed_ratio{").count(), 4, "{text}");
}

#[tokio::test]
async fn estimates_and_uninvited_guests_are_told() {
    let gateway = TestGateway::start(&workloads(&[("a", &["a1", "a2"]), ("c", &["c1"])])).await;
    let shared = gpu("GPU-1", "ml/x", 90.0)
        .free()
        .used_by("ml/a1", HolderSource::Memory, 60.0)
        .used_by("ml/a2", HolderSource::Memory, 20.0)
        .used_by("ml/stranger", HolderSource::Memory, 10.0)
        .undeclared();
    let own = gpu("GPU-2", "ml/c1", 50.0).index(1);
    let _agent = gateway.agent(Node::new("n1").with(shared).with(own)).await;
    let target = [("targetValue", "60")];
    gateway.trigger("ml/a", &target).await.becomes(80.0).await;
    gateway.trigger("ml/c", &target).await.becomes(50.0).await;
    let explained = gateway.explain("ml/a").await;
    let warnings: Vec<_> =
        explained["warnings"].as_array().unwrap().iter().map(|w| w.as_str().unwrap()).collect();
    let [estimate, guest] = warnings[..] else { panic!("{warnings:?}") };
    for word in ["a1 and 1 more pod rest on", "GPU-1", "by the memory", "requests_waiting"] {
        assert!(estimate.contains(word), "{word} in {estimate}");
    }
    assert!(
        guest.starts_with("ml/stranger uses GPU-1, a device of this workload, without"),
        "{guest}"
    );
    let device = &explained["pods"][1]["devices"][0];
    assert_eq!((&device["source"], &device["estimated"]), (&"memory".into(), &true.into()));
    assert_eq!(gateway.explain("ml/c").await["warnings"], serde_json::json!([]));
    let undeclared = gateway.metric("gpu_gateway_node_undeclared_holders", "n1").await;
    let estimated = gateway.metric("gpu_gateway_node_estimated_holders", "n1").await;
    assert_eq!((undeclared, estimated), (1.0, 3.0));
    let nodes = gateway.json("/api/v1/nodes").await;
    let holders = &nodes[0]["devices"][0]["holders"];
    assert_eq!(
        (&holders[2]["undeclared"], &holders[0]["undeclared"]),
        (&true.into(), &false.into())
    );
    let path = "/api/v1/scaledobjects/ml/a/explain";
    let explanation = serde_json::from_value(gateway.json(path).await).unwrap();
    let table = gateway::explain::table::render(&explanation);
    assert!(table.contains("GPU-1 60 (estimated by memory)"), "{table}");
    assert!(table.contains("  warning   ml/stranger uses GPU-1"), "{table}");
}
