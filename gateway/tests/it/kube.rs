//! The live directory: a fake API server, the real Kubernetes client, real agents, KEDA's calls.

use std::time::Duration;

use gateway::config::{DirectorySource, ServeConfig};
use serde_json::{Value, json};
use tokio::time::sleep;
use tonic::Code;

use crate::api_server::{ApiServer, pod, scaled_object, unschedulable};
use crate::support::{Node, TestGateway, eventually, gpu};

pub(crate) const UTILIZATION: &[(&str, &str)] = &[("targetValue", "70")];

/// A gateway that knows its cluster from `api`.
pub(crate) async fn gateway_with(
    api: &ApiServer,
    tweak: impl FnOnce(&mut ServeConfig),
) -> TestGateway {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("kubeconfig");
    api.kubeconfig(&path);
    let mut config = ServeConfig::local(path.clone());
    config.directory = DirectorySource::Kube;
    config.kube.kubeconfig = Some(path);
    tweak(&mut config);
    TestGateway::try_start_with(folder, config).await.expect("the gateway starts")
}

pub(crate) async fn gateway(api: &ApiServer) -> TestGateway {
    gateway_with(api, |_| {}).await
}

pub(crate) fn deployment(
    api: &ApiServer,
    namespace: &str,
    name: &str,
    replicas: u32,
    selector: &str,
) {
    api.scale("apps/v1/deployments", namespace, name, (replicas, selector));
}

pub(crate) fn scales(api: &ApiServer, object: &str, target: Value) {
    let (namespace, name) = object.split_once('/').expect("namespace/name");
    let metadata = json!({"targetValue": "70"});
    api.apply("scaledobjects", scaled_object(namespace, name, target, metadata));
}

/// What the HPA would order.
pub(crate) fn ordered(value: f64, target: f64) -> f64 {
    (value / target).ceil()
}

#[tokio::test]
async fn o08_zero_replicas_are_known_and_no_such_deployment_is_not_found() {
    let api = ApiServer::start().await;
    deployment(&api, "ml", "llm", 0, "app=llm");
    let vram = [
        ("metricType", "memory_used_percent"),
        ("targetValue", "80"),
        ("activationThreshold", "5"),
    ];
    let metadata = json!({"metricType": "memory_used_percent", "targetValue": "80", "activationThreshold": "5"});
    api.apply(
        "scaledobjects",
        scaled_object("ml", "asleep", json!({"name": "llm"}), metadata.clone()),
    );
    api.apply("scaledobjects", scaled_object("ml", "nothing", json!({"name": "gone"}), metadata));
    let gateway = gateway(&api).await;
    gateway.is_ready().await;
    let asleep = gateway.trigger("ml/asleep", &vram).await;
    assert_eq!(asleep.value().await.unwrap(), 0.0);
    assert!(!asleep.is_active().await.unwrap());
    let nothing = gateway.trigger("ml/nothing", &vram).await;
    let why = nothing.fails(Code::NotFound).await;
    assert!(why.contains("Deployment ml/gone"), "{why}");
    assert_eq!(nothing.is_active().await.unwrap_err().code(), Code::NotFound);
    let unknown = gateway.trigger("ml/typo", &vram).await;
    unknown.fails(Code::NotFound).await;
    // It is made, and found without a restart.
    deployment(&api, "ml", "gone", 0, "app=gone");
    nothing.becomes(0.0).await;
}

#[tokio::test]
async fn o18_a_stateful_set_pod_that_moves_leaves_no_ghost() {
    let api = ApiServer::start().await;
    let on = |name: &str, uid: &str, node: &str| {
        let mut pod = pod("ml", name, json!({"app": "llm"}));
        pod["metadata"]["uid"] = json!(uid);
        pod["spec"]["nodeName"] = json!(node);
        pod
    };
    api.scale("apps/v1/statefulsets", "ml", "llm", (2, "app=llm"));
    api.apply("pods", on("llm-0", "old", "n1"));
    api.apply("pods", on("llm-1", "one", "n3"));
    let target = json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "llm"});
    api.apply("scaledobjects", scaled_object("ml", "so", target, json!({"targetValue": "50"})));
    let gateway = gateway(&api).await;
    let _n1 = gateway.agent(Node::new("n1").with(gpu("GPU-1", "ml/llm-0", 85.0).uid("old"))).await;
    let _n3 = gateway.agent(Node::new("n3").with(gpu("GPU-3", "ml/llm-1", 85.0).uid("one"))).await;
    let trigger = gateway.trigger("ml/so", &[("targetValue", "50")]).await;
    trigger.becomes(170.0).await;
    // It is deleted and comes back elsewhere; n1 goes on saying what it said.
    api.delete("pods", "ml", "llm-0");
    let _n2 = gateway.agent(Node::new("n2").with(gpu("GPU-2", "ml/llm-0", 15.0).uid("new"))).await;
    api.apply("pods", on("llm-0", "new", "n2"));
    trigger.becomes(100.0).await;
    assert_eq!(ordered(100.0, 50.0), 2.0);
    for _ in 0..20 {
        assert_eq!(trigger.value().await.unwrap(), 100.0);
        sleep(Duration::from_millis(20)).await;
    }
}

/// Pods `NAME-0`… of `namespace` with label `app=NAME`, each with a GPU at `utilization`.
pub(crate) fn fleet(api: &ApiServer, node: Node, of: (&str, &str, u32), utilization: f64) -> Node {
    let (namespace, name, count) = of;
    (0..count).fold(node, |node, n| {
        let pod_name = format!("{name}-{n}");
        api.apply("pods", pod(namespace, &pod_name, json!({"app": name})));
        let uuid = format!("GPU-{namespace}-{pod_name}");
        let uid = format!("{namespace}-{pod_name}");
        node.with(gpu(&uuid, &format!("{namespace}/{pod_name}"), utilization).uid(&uid))
    })
}

#[tokio::test]
async fn o19_same_names_and_look_alike_names_stay_apart() {
    let api = ApiServer::start().await;
    deployment(&api, "team-a", "llama", 3, "app=llama");
    deployment(&api, "team-b", "llama", 2, "app=llama");
    deployment(&api, "team-a", "llama-chat", 1, "app=llama-chat");
    scales(&api, "team-a/scale-me", json!({"name": "llama"}));
    scales(&api, "team-b/scale-me", json!({"name": "llama"}));
    scales(&api, "team-a/chat", json!({"name": "llama-chat"}));
    let node = fleet(&api, Node::new("n1"), ("team-a", "llama", 3), 90.0);
    let node = fleet(&api, node, ("team-b", "llama", 2), 5.0);
    let node = fleet(&api, node, ("team-a", "llama-chat", 1), 100.0);
    let gateway = gateway(&api).await;
    let _agent = gateway.agent(node).await;
    let value = async |object: &str, expected| {
        gateway.trigger(object, UTILIZATION).await.becomes(expected).await;
    };
    value("team-a/scale-me", 270.0).await;
    value("team-b/scale-me", 10.0).await;
    value("team-a/chat", 100.0).await;
    assert_eq!((ordered(270.0, 70.0), ordered(10.0, 70.0)), (4.0, 1.0));
    // Tenancy: nothing of team-a by any name in team-b.
    gateway.trigger("team-b/chat", UTILIZATION).await.fails(Code::NotFound).await;
}

#[tokio::test]
async fn five_of_eight_pods_that_no_node_has_room_for_hold_or_shrink() {
    let api = ApiServer::start().await;
    deployment(&api, "ml", "llm", 8, "app=llm");
    scales(&api, "ml/so", json!({"name": "llm"}));
    let node = fleet(&api, Node::new("n1"), ("ml", "llm", 3), 100.0);
    for n in 3..8 {
        api.apply("pods", unschedulable("ml", &format!("llm-{n}"), json!({"app": "llm"})));
    }
    let gateway = gateway(&api).await;
    let agent = gateway.agent(node).await;
    let trigger = gateway.trigger("ml/so", UTILIZATION).await;
    trigger.becomes(560.0).await;
    assert_eq!(ordered(560.0, 70.0), 8.0);
    let explained = gateway.explain("ml/so").await;
    let why = explained["pods"][7]["why"].as_str().expect("why it does not report");
    assert!(why.starts_with("waiting for a GPU: ") && why.contains("nvidia.com/gpu"), "{why}");
    for n in 0..3 {
        agent.reads(&format!("GPU-ml-llm-{n}"), 20.0);
    }
    trigger.becomes(410.0).await;
    assert_eq!(ordered(410.0, 70.0), 6.0);
}

#[tokio::test]
async fn keda_that_is_installed_later_is_waited_for() {
    let api = ApiServer::start().await;
    api.has_crds(false);
    let gateway = gateway(&api).await;
    sleep(Duration::from_millis(600)).await;
    let (status, body) = gateway.get("/readyz").await;
    let waits = "waiting for the directory: scaledobjects, scaledjobs not listed yet\n";
    assert_eq!((status, body.as_str()), (503, waits));
    let (status, body) = gateway.get("/api/v1/ledger").await;
    let error = json!({"error": waits.trim_end()}).to_string();
    assert_eq!((status, body), (503, error), "it counts nothing yet and says why");
    let trigger = gateway.trigger("ml/so", UTILIZATION).await;
    assert_eq!(trigger.value().await.unwrap_err().code(), Code::Unavailable);
    trigger.spec().await.unwrap();
    api.has_crds(true);
    deployment(&api, "ml", "llm", 0, "app=llm");
    scales(&api, "ml/so", json!({"name": "llm"}));
    trigger.becomes(0.0).await;
}

#[tokio::test]
async fn nothing_is_answered_before_everything_is_listed() {
    let api = ApiServer::start().await;
    api.slow_lists(Duration::from_millis(400));
    deployment(&api, "ml", "llm", 1, "app=llm");
    scales(&api, "ml/so", json!({"name": "llm"}));
    let node = fleet(&api, Node::new("n1"), ("ml", "llm", 1), 50.0);
    let gateway = gateway(&api).await;
    let _agent = gateway.agent(node).await;
    let trigger = gateway.trigger("ml/so", UTILIZATION).await;
    let mut refused = 0;
    let value = loop {
        match trigger.value().await {
            Ok(value) => break value,
            Err(status) => assert_eq!(status.code(), Code::Unavailable, "{status:?}"),
        }
        refused += 1;
        sleep(Duration::from_millis(20)).await;
    };
    assert!(refused > 0);
    assert_eq!(value, 50.0, "the first answer is the right one");
}

#[tokio::test]
async fn a_selector_that_matches_nothing_and_one_that_is_missing() {
    let api = ApiServer::start().await;
    deployment(&api, "ml", "nobody", 2, "app in (x, y),tier!=cpu");
    deployment(&api, "ml", "blank", 2, "");
    scales(&api, "ml/nobody", json!({"name": "nobody"}));
    scales(&api, "ml/blank", json!({"name": "blank"}));
    let _other = fleet(&api, Node::new("n1"), ("ml", "llm", 2), 90.0);
    let gateway = gateway(&api).await;
    // Two are ordered and none exists yet: hold.
    gateway.trigger("ml/nobody", UTILIZATION).await.becomes(140.0).await;
    let why = gateway.trigger("ml/blank", UTILIZATION).await.fails(Code::NotFound).await;
    assert!(why.contains("has no selector"), "{why}");
}

#[tokio::test]
async fn a_target_that_cannot_be_scaled_is_named() {
    let api = ApiServer::start().await;
    let of = |kind: &str| json!({"apiVersion": "example.com/v1", "kind": kind, "name": "w"});
    scales(&api, "ml/widget", of("Widget"));
    scales(&api, "ml/unheard-of", of("Gizmo"));
    scales(&api, "ml/strange", json!({"apiVersion": "nowhere.io/v1", "kind": "X", "name": "x"}));
    let gateway = gateway(&api).await;
    gateway.is_ready().await;
    let fails = async |object: &str, words: &[&str]| {
        let why = gateway.trigger(object, UTILIZATION).await.fails(Code::NotFound).await;
        assert!(words.iter().all(|word| why.contains(word)), "{why}");
    };
    fails("ml/widget", &["Widget ml/w", "no /scale subresource"]).await;
    fails("ml/unheard-of", &["Gizmo ml/w", "has no kind Gizmo"]).await;
    fails("ml/strange", &["X ml/x", "the cluster has no nowhere.io/v1"]).await;
    // Custom kinds with /scale are as good as any.
    api.scale("example.com/v1/gadgets", "ml", "w", (0, "app=w"));
    scales(&api, "ml/gadget", of("Gadget"));
    gateway.trigger("ml/gadget", UTILIZATION).await.becomes(0.0).await;
}

#[tokio::test]
async fn strange_objects_are_left_out_and_harm_nobody() {
    let api = ApiServer::start().await;
    deployment(&api, "ml", "llm", 0, "app=llm");
    let metadata = json!({"namespace": "ml", "name": "bad"});
    let specs = [
        json!(null),
        json!("text"),
        json!({}),
        json!({"triggers": "none"}),
        json!({"triggers": [{"type": "external"}]}),
        json!({"triggers": [{"metadata": {}}], "scaleTargetRef": {"name": "llm"}}),
        json!({"triggers": [{"type": "external", "metadata": {"a": 7}}], "scaleTargetRef": {"name": "llm"}}),
        json!({"triggers": [{"type": "external", "metricType": "Utilization"}], "scaleTargetRef": {"name": "llm"}}),
        json!({"triggers": [{"type": "external"}], "scaleTargetRef": {"name": "llm"}, "minReplicaCount": -3}),
        json!({"triggers": [{"type": "external"}], "scaleTargetRef": {"name": ""}}),
        json!({"triggers": [{"type": "cpu"}], "scaleTargetRef": {"name": "llm"}}),
    ];
    for (n, spec) in specs.iter().enumerate() {
        let mut object = json!({"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "metadata": metadata, "spec": spec});
        object["metadata"]["name"] = json!(format!("bad-{n}"));
        api.apply("scaledobjects", object);
    }
    let mut big = scaled_object("ml", "big", json!({"name": "llm"}), json!({"targetValue": "70"}));
    big["metadata"]["annotations"] = json!({"note": "x".repeat(5 << 20)});
    api.apply("scaledobjects", big);
    let gateway = gateway(&api).await;
    gateway.trigger("ml/big", UTILIZATION).await.becomes(0.0).await;
    for (n, spec) in specs.iter().enumerate() {
        let bad = gateway.trigger(&format!("ml/bad-{n}"), UTILIZATION).await;
        assert_eq!(bad.value().await.unwrap_err().code(), Code::NotFound, "{spec}");
    }
    // Mended, it is there.
    scales(&api, "ml/bad-3", json!({"name": "llm"}));
    gateway.trigger("ml/bad-3", UTILIZATION).await.becomes(0.0).await;
}

#[tokio::test]
async fn only_the_given_namespaces_are_known() {
    let api = ApiServer::start().await;
    for namespace in ["a", "b", "c"] {
        deployment(&api, namespace, "llm", 0, "app=llm");
        scales(&api, &format!("{namespace}/so"), json!({"name": "llm"}));
    }
    let only = |config: &mut ServeConfig| config.kube.namespaces = vec!["a".into(), "b".into()];
    let gateway = gateway_with(&api, only).await;
    gateway.trigger("a/so", UTILIZATION).await.becomes(0.0).await;
    gateway.trigger("b/so", UTILIZATION).await.becomes(0.0).await;
    gateway.trigger("c/so", UTILIZATION).await.fails(Code::NotFound).await;
}

#[tokio::test]
async fn an_api_server_that_is_away_leaves_the_last_state_until_it_is_too_old() {
    let api = ApiServer::start().await;
    deployment(&api, "ml", "llm", 1, "app=llm");
    scales(&api, "ml/so", json!({"name": "llm"}));
    let node = fleet(&api, Node::new("n1"), ("ml", "llm", 1), 50.0);
    let age = |config: &mut ServeConfig| config.kube.max_age = Duration::from_secs(6);
    let gateway = gateway_with(&api, age).await;
    let _agent = gateway.agent(node).await;
    let trigger = gateway.trigger("ml/so", UTILIZATION).await;
    trigger.becomes(50.0).await;
    api.is_away(true);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(trigger.value().await.unwrap(), 50.0, "the last state stays");
    let why = trigger.fails(Code::Unavailable).await;
    assert!(why.contains("the API server"), "{why}");
    let age = gateway.metric("gpu_gateway_directory_age_seconds", "").await;
    assert!(age >= 6.0, "{age}");
    api.is_away(false);
    trigger.becomes(50.0).await;
    eventually("the directory is young again", async || {
        let age = gateway.metric("gpu_gateway_directory_age_seconds", "").await;
        if age < 4.0 { Ok(()) } else { Err(age) }
    })
    .await;
}

#[tokio::test]
async fn each_trigger_of_a_scaled_object_has_its_own_type() {
    let api = ApiServer::start().await;
    deployment(&api, "ml", "llm", 2, "app=llm");
    let mut object =
        scaled_object("ml", "so", json!({"name": "llm"}), json!({"targetValue": "70"}));
    let scaler = "gpu-gateway.gpu:6000";
    object["spec"]["triggers"] = json!([
        {"type": "cron", "metadata": {"start": "0 8 * * *"}},
        {"type": "external", "metadata": {"scalerAddress": scaler, "targetValue": "70"}},
        {"type": "external-push", "metricType": "Value", "name": "mean",
         "metadata": {"scalerAddress": scaler, "targetValue": "70", "metricName": "mean",
                      "activationThresholdFromEnv": "THRESHOLD"}},
    ]);
    api.apply("scaledobjects", object);
    let node = fleet(&api, Node::new("n1"), ("ml", "llm", 2), 90.0);
    let gateway = gateway(&api).await;
    let _agent = gateway.agent(node).await;
    gateway.trigger("ml/so", UTILIZATION).await.becomes(180.0).await;
    // KEDA drops a …FromEnv key whose variable is empty.
    let mean = gateway.trigger("ml/so", &[("targetValue", "70"), ("metricName", "mean")]).await;
    mean.becomes(90.0).await;
    // The type is changed: the same question has another answer.
    scales(&api, "ml/so", json!({"name": "llm"}));
    mean.becomes(180.0).await;
}
