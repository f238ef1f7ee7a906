//! Which pods are a workload's: those that its `/scale` selects, whoever owns them, and no others.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::sleep;
use tonic::Code;

use crate::api_server::{ApiServer, owned, pod, scaled_object};
use crate::kube::{UTILIZATION, deployment, fleet, gateway, ordered, scales};
use crate::support::{Node, Steady, TestGateway, eventually, gpu};

const LWS: &str = "leaderworkerset.sigs.k8s.io";

/// Makes `object` exist, and gives its pod a GPU of `node` at `utilization`.
fn holding(api: &ApiServer, node: Node, object: Value, utilization: f64) -> Node {
    let text = |key: &str| object["metadata"][key].as_str().expect("a text").to_owned();
    let (namespace, name, uid) = (text("namespace"), text("name"), text("uid"));
    api.apply("pods", object);
    let uuid = format!("GPU-{namespace}-{name}");
    node.with(gpu(&uuid, &format!("{namespace}/{name}"), utilization).uid(&uid))
}

async fn becomes(gateway: &TestGateway, object: &str, value: f64) {
    gateway.trigger(object, UTILIZATION).await.becomes(value).await;
}

/// How many pods, or groups, of `object` are in that state.
async fn counted(gateway: &TestGateway, object: &str, state: &str) -> Value {
    gateway.explain(object).await["coverage"][state].clone()
}

#[tokio::test]
async fn o19_a_stateful_set_owns_its_pods_itself() {
    let api = ApiServer::start().await;
    let mut node = Node::new("n1");
    // The second set has the name of the first one's first pod, and so its pods look alike.
    for (set, loads) in [("llama", vec![60.0, 30.0]), ("llama-0", vec![100.0])] {
        let size = u32::try_from(loads.len()).unwrap();
        api.scale("apps/v1/statefulsets", "ml", set, (size, &format!("app={set}")));
        let target = json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "name": set});
        scales(&api, &format!("ml/{set}"), target);
        for (n, load) in loads.into_iter().enumerate() {
            let name = format!("{set}-{n}");
            let labels = json!({"app": set, "statefulset.kubernetes.io/pod-name": name});
            let object = owned(pod("ml", &name, labels), "apps/v1", "StatefulSet", set);
            node = holding(&api, node, object, load);
        }
    }
    let gateway = gateway(&api).await;
    let _agent = gateway.agent(node).await;
    becomes(&gateway, "ml/llama", 90.0).await;
    becomes(&gateway, "ml/llama-0", 100.0).await;
    assert_eq!((ordered(90.0, 70.0), ordered(100.0, 70.0)), (2.0, 2.0));
}

#[tokio::test]
async fn o19_a_jobs_pods_belong_to_whatever_selects_them() {
    let api = ApiServer::start().await;
    let job = "batch.kubernetes.io/job-name";
    api.scale("example.com/v1/gadgets", "ml", "trainer", (2, &format!("{job}=train")));
    let gadget = json!({"apiVersion": "example.com/v1", "kind": "Gadget", "name": "trainer"});
    scales(&api, "ml/trainer", gadget);
    let target = json!({"apiVersion": "batch/v1", "kind": "Job", "name": "train"});
    scales(&api, "ml/train", target);
    let mut node = Node::new("n1");
    let pods =
        [("train", "a", 80.0), ("train", "b", 40.0), ("train", "c", 99.0), ("train-2", "d", 100.0)];
    for (of, suffix, load) in pods {
        let mut labels = json!({"job-name": of});
        labels[job] = json!(of);
        let mut object = owned(pod("ml", &format!("{of}-{suffix}"), labels), "batch/v1", "Job", of);
        if suffix == "c" {
            // It has ended; what an agent may still say of it is nobody's load.
            object["status"]["phase"] = json!("Succeeded");
        }
        node = holding(&api, node, object, load);
    }
    let gateway = gateway(&api).await;
    let _agent = gateway.agent(node).await;
    becomes(&gateway, "ml/trainer", 120.0).await;
    assert_eq!(counted(&gateway, "ml/trainer", "reporting").await, 2);
    // A Job itself has no replicas that could be scaled.
    let why = gateway.trigger("ml/train", UTILIZATION).await.fails(Code::NotFound).await;
    assert!(why.contains("Job ml/train") && why.contains("no /scale subresource"), "{why}");
}

#[tokio::test]
async fn o19_a_scaled_job_has_no_replicas_to_divide_by() {
    let api = ApiServer::start().await;
    let trigger = json!({"type": "external", "metadata": {"targetValue": "70"}});
    let job = json!({
        "apiVersion": "keda.sh/v1alpha1", "kind": "ScaledJob",
        "metadata": {"namespace": "ml", "name": "job"},
        "spec": {"jobTargetRef": {"template": {}}, "triggers": [trigger]},
    });
    api.apply("scaledjobs", job);
    // Its pods report, which changes nothing.
    let labels = json!({"scaledjob.keda.sh/name": "job", "job-name": "job-x7k2p"});
    let object = owned(pod("ml", "job-x7k2p-0", labels), "batch/v1", "Job", "job-x7k2p");
    let node = holding(&api, Node::new("n1"), object, 90.0);
    let gateway = gateway(&api).await;
    let _agent = gateway.agent(node).await;
    let trigger = gateway.trigger("ml/job", UTILIZATION).await;
    let why = trigger.fails(Code::FailedPrecondition).await;
    assert!(why.contains("demand"), "{why}");
    api.delete("scaledjobs", "ml", "job");
    trigger.fails(Code::NotFound).await;
}

/// A group's pods, one leader and three workers, each with a GPU at `utilization`; of a leader
/// without one, only the workers have.
fn group(api: &ApiServer, mut node: Node, of: (&str, &str), has: (f64, bool)) -> Node {
    let ((set, group), (utilization, leader_has_gpu)) = (of, has);
    for index in 0..4 {
        let name = format!("{set}-{group}-{index}");
        let mut labels = json!({});
        labels[format!("{LWS}/name")] = json!(set);
        labels[format!("{LWS}/worker-index")] = json!(index.to_string());
        labels[format!("{LWS}/group-key")] = json!(format!("{set}-{group}"));
        let owner = if index == 0 { set.to_owned() } else { format!("{set}-{group}-0") };
        let object = owned(pod("ml", &name, labels), "apps/v1", "StatefulSet", &owner);
        if index == 0 && !leader_has_gpu {
            api.apply("pods", object);
        } else {
            node = holding(api, node, object, utilization);
        }
    }
    node
}

fn leader_worker_set(api: &ApiServer, name: &str, groups: u32, selector: &str) {
    let resource = format!("{}/leaderworkersets", "leaderworkerset.x-k8s.io/v1");
    api.scale(&resource, "ml", name, (groups, selector));
    let target = json!({"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "name": name});
    scales(api, &format!("ml/{name}"), target);
}

#[tokio::test]
async fn o19_a_leader_worker_set_counts_in_groups() {
    let api = ApiServer::start().await;
    // Its own selector names the leaders; one that names all pods changes nothing.
    leader_worker_set(&api, "big", 2, &format!("{LWS}/name=big,{LWS}/worker-index=0"));
    leader_worker_set(&api, "all", 2, &format!("{LWS}/name=all"));
    leader_worker_set(&api, "lean", 1, &format!("{LWS}/name=lean,{LWS}/worker-index=0"));
    let mut node = Node::new("n1");
    for set in ["big", "all"] {
        node = group(&api, node, (set, "0"), (80.0, true));
        node = group(&api, node, (set, "1"), (40.0, true));
    }
    node = group(&api, node, ("lean", "0"), (90.0, false));
    let gateway = gateway(&api).await;
    let _agent = gateway.agent(node).await;
    // The mean of a group's GPUs, summed over the groups: four pods are one replica.
    for (object, value, groups) in
        [("ml/big", 120.0, 2), ("ml/all", 120.0, 2), ("ml/lean", 90.0, 1)]
    {
        becomes(&gateway, object, value).await;
        assert_eq!(counted(&gateway, object, "reporting").await, groups, "{object}");
        assert_eq!(counted(&gateway, object, "missing").await, 0, "{object}");
    }
    // One worker is not ready: its whole group is not.
    let mut labels = json!({});
    labels[format!("{LWS}/name")] = json!("big");
    labels[format!("{LWS}/worker-index")] = json!("2");
    labels[format!("{LWS}/group-key")] = json!("big-1");
    let mut worker = pod("ml", "big-1-2", labels);
    worker["status"]["conditions"][1]["status"] = json!("False");
    api.apply("pods", worker);
    eventually("one group reports", async || {
        match counted(&gateway, "ml/big", "reporting").await {
            one if one == 1 => Ok(()),
            other => Err(other),
        }
    })
    .await;
}

/// A RayCluster with a head that has no GPU and two workers that have, selected by `selector`.
async fn ray_cluster(selector: &str, loads: [f64; 2]) -> (ApiServer, TestGateway, Node) {
    let api = ApiServer::start().await;
    api.scale("ray.io/v1/rayclusters", "ml", "rc", (2, selector));
    scales(&api, "ml/rc", json!({"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": "rc"}));
    let of = |name: &str, kind: &str| {
        let labels = json!({"ray.io/cluster": "rc", "ray.io/node-type": kind});
        owned(pod("ml", name, labels), "ray.io/v1", "RayCluster", "rc")
    };
    api.apply("pods", of("rc-head", "head"));
    let mut node = Node::new("n1");
    for (n, load) in loads.into_iter().enumerate() {
        node = holding(&api, node, of(&format!("rc-worker-{n}"), "worker"), load);
    }
    let gateway = gateway(&api).await;
    (api, gateway, node)
}

#[tokio::test]
async fn o19_a_ray_head_without_gpu_is_not_in_the_denominator() {
    let (_api, gateway, node) =
        ray_cluster("ray.io/cluster=rc,ray.io/node-type=worker", [90.0, 80.0]).await;
    let agent = gateway.agent(node).await;
    becomes(&gateway, "ml/rc", 170.0).await;
    assert_eq!(ordered(170.0, 70.0), 3.0);
    assert_eq!(counted(&gateway, "ml/rc", "reporting").await, 2);
    assert_eq!(counted(&gateway, "ml/rc", "missing").await, 0);
    // Idle workers leave it inactive: the head is nobody who might know better.
    let metadata = [("targetValue", "70"), ("activationWindow", "1s")];
    let trigger = gateway.trigger("ml/rc", &metadata).await;
    (0..2).for_each(|n| agent.reads(&format!("GPU-ml-rc-worker-{n}"), 0.0));
    trigger.becomes(0.0).await;
    eventually("it is inactive", async || match trigger.is_active().await {
        Ok(false) => Ok(()),
        other => Err(other),
    })
    .await;
}

/// Membership is the selector's. A head that it names holds no replica, so that the value is exact;
/// but it is Ready and says nothing, so that the workload never counts as idle.
#[tokio::test]
async fn o19_a_ray_head_that_is_selected_too_changes_no_value() {
    let (_api, gateway, node) = ray_cluster("ray.io/cluster=rc", [90.0, 80.0]).await;
    let agent = gateway.agent(node).await;
    becomes(&gateway, "ml/rc", 170.0).await;
    let explained = gateway.explain("ml/rc").await;
    let count = |state: &str| explained["coverage"][state].clone();
    assert_eq!((count("reporting"), count("missing")), (json!(2), json!(1)), "{explained}");
    (0..2).for_each(|n| agent.reads(&format!("GPU-ml-rc-worker-{n}"), 5.0));
    becomes(&gateway, "ml/rc", 10.0).await;
    assert_eq!(ordered(10.0, 70.0), 1.0);
    assert!(gateway.trigger("ml/rc", UTILIZATION).await.is_active().await.unwrap());
}

#[tokio::test]
async fn pods_without_an_owner_and_pods_of_another_count_where_they_are_selected() {
    let api = ApiServer::start().await;
    deployment(&api, "ml", "llm", 3, "app=llm");
    scales(&api, "ml/llm", json!({"name": "llm"}));
    let of = |name: &str| pod("ml", name, json!({"app": "llm"}));
    let replica_set = owned(of("llm-a"), "apps/v1", "ReplicaSet", "llm-7c9d8f6b5d");
    let node = holding(&api, Node::new("n1"), replica_set, 90.0);
    let node = holding(&api, node, of("by-hand"), 30.0);
    let node = holding(&api, node, owned(of("stray"), "apps/v1", "ReplicaSet", "other"), 20.0);
    // The owner's name alone makes no pod a member.
    let look_alike = pod("ml", "llm-b", json!({"app": "other"}));
    let node = holding(&api, node, owned(look_alike, "apps/v1", "ReplicaSet", "llm"), 100.0);
    let gateway = gateway(&api).await;
    let _agent = gateway.agent(node).await;
    becomes(&gateway, "ml/llm", 140.0).await;
    assert_eq!(counted(&gateway, "ml/llm", "reporting").await, 3);
}

#[tokio::test]
async fn selectors_that_overlap_each_have_what_they_select() {
    let api = ApiServer::start().await;
    deployment(&api, "ml", "all", 3, "app=llm");
    deployment(&api, "ml", "canary", 1, "app=llm,track=canary");
    scales(&api, "ml/all", json!({"name": "all"}));
    scales(&api, "ml/canary", json!({"name": "canary"}));
    let node = fleet(&api, Node::new("n1"), ("ml", "llm", 2), 60.0);
    let canary = pod("ml", "canary-0", json!({"app": "llm", "track": "canary"}));
    let node = holding(&api, node, canary, 50.0);
    let gateway = gateway(&api).await;
    let agent = gateway.agent(node).await;
    becomes(&gateway, "ml/all", 170.0).await;
    becomes(&gateway, "ml/canary", 50.0).await;
    // A change that both see.
    agent.reads("GPU-ml-canary-0", 80.0);
    becomes(&gateway, "ml/all", 200.0).await;
    becomes(&gateway, "ml/canary", 80.0).await;
    // It loses the label: one has it still.
    api.apply("pods", pod("ml", "canary-0", json!({"app": "llm"})));
    becomes(&gateway, "ml/canary", 70.0).await;
    assert_eq!(counted(&gateway, "ml/canary", "reporting").await, 0);
    becomes(&gateway, "ml/all", 200.0).await;
}

#[tokio::test]
async fn one_kind_and_name_in_two_api_groups_are_two_workloads() {
    let api = ApiServer::start().await;
    for (group, app, replicas) in [("example.com", "left", 1), ("example.org", "right", 2)] {
        let resource = format!("{group}/v1/gadgets");
        api.scale(&resource, "ml", "same", (replicas, &format!("app={app}")));
    }
    let target = |version: &str| json!({"apiVersion": version, "kind": "Gadget", "name": "same"});
    scales(&api, "ml/left", target("example.com/v1"));
    let node = fleet(&api, Node::new("n1"), ("ml", "left", 1), 30.0);
    let node = fleet(&api, node, ("ml", "right", 2), 90.0);
    let gateway = gateway(&api).await;
    let _agent = gateway.agent(node).await;
    let kind = async |object: &str| {
        let explained = gateway.json(&format!("/api/v1/scaledobjects/{object}/explain")).await;
        explained["target"]["kind"].clone()
    };
    becomes(&gateway, "ml/left", 30.0).await;
    assert_eq!(kind("ml/left").await, "Gadget");
    scales(&api, "ml/right", target("example.org/v1"));
    becomes(&gateway, "ml/right", 180.0).await;
    becomes(&gateway, "ml/left", 30.0).await;
    assert_eq!(kind("ml/left").await, "Gadget.example.com");
    assert_eq!(kind("ml/right").await, "Gadget.example.org");
    let workloads = gateway.json("/api/v1/workloads").await;
    let reporting = |kind: &str| {
        let all = workloads.as_array().expect("a list");
        all.iter().find(|workload| workload["kind"] == kind).map(|of| of["reporting"].clone())
    };
    assert_eq!(reporting("Gadget.example.com"), Some(json!(1)), "{workloads}");
    assert_eq!(reporting("Gadget.example.org"), Some(json!(2)), "{workloads}");
    // Alone again, it has its plain name back.
    api.delete("scaledobjects", "ml", "left");
    eventually("it is alone", async || match kind("ml/right").await {
        plain if plain == "Gadget" => Ok(()),
        other => Err(other),
    })
    .await;
    becomes(&gateway, "ml/right", 180.0).await;
    // Another version of its group is the same workload.
    api.scale("example.org/v2/gadgets", "ml", "same", (2, "app=right"));
    scales(&api, "ml/newer", target("example.org/v2"));
    becomes(&gateway, "ml/newer", 180.0).await;
    assert_eq!(
        (kind("ml/right").await, kind("ml/newer").await),
        ("Gadget".into(), "Gadget".into())
    );
}

#[tokio::test]
async fn a_namespace_that_is_deleted_ends_as_not_found_and_harms_no_other() {
    let api = ApiServer::start().await;
    let mut node = Node::new("n1");
    for namespace in ["going", "staying"] {
        deployment(&api, namespace, "llm", 2, "app=llm");
        scales(&api, &format!("{namespace}/so"), json!({"name": "llm"}));
        node = fleet(&api, node, (namespace, "llm", 2), 50.0);
    }
    let gateway = gateway(&api).await;
    let _agent = gateway.agent(node).await;
    let going = gateway.trigger("going/so", UTILIZATION).await;
    let staying = gateway.trigger("staying/so", UTILIZATION).await;
    going.becomes(100.0).await;
    staying.becomes(100.0).await;
    let steady = Steady::watch(staying, 100.0);
    // Its pods are told to end, one after the other, and its Deployment goes at some time.
    let mut ending = pod("going", "llm-0", json!({"app": "llm"}));
    ending["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    api.apply("pods", ending.clone());
    // One of two ordered pods does not exist: what it would carry is not given away.
    going.becomes(120.0).await;
    ending["metadata"]["name"] = json!("llm-1");
    ending["metadata"]["uid"] = json!("going-llm-1");
    api.apply("pods", ending);
    going.becomes(140.0).await;
    api.unscale("apps/v1/deployments", "going", "llm");
    api.delete("pods", "going", "llm-0");
    let why = going.fails(Code::NotFound).await;
    assert!(why.contains("Deployment going/llm"), "{why}");
    api.delete("pods", "going", "llm-1");
    // KEDA's finalizer lets the ScaledObject go last, and then nobody knows its name.
    let mut object =
        scaled_object("going", "so", json!({"name": "llm"}), json!({"targetValue": "70"}));
    object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    api.apply("scaledobjects", object);
    going.fails(Code::NotFound).await;
    api.delete("scaledobjects", "going", "so");
    eventually("it is unknown", async || {
        let (status, _) = gateway.get("/api/v1/scaledobjects/going/so/explain").await;
        if status == 404 { Ok(()) } else { Err(status) }
    })
    .await;
    going.fails(Code::NotFound).await;
    steady.held().await;
}

#[tokio::test]
async fn a_pod_of_five_megabytes_is_a_pod_like_any_other() {
    let api = ApiServer::start().await;
    deployment(&api, "ml", "llm", 2, "app=llm");
    scales(&api, "ml/so", json!({"name": "llm"}));
    let node = fleet(&api, Node::new("n1"), ("ml", "llm", 1), 50.0);
    let mut big = pod("ml", "big", json!({"app": "llm"}));
    big["metadata"]["annotations"] = json!({"prometheus.io/note": "x".repeat(5 << 20)});
    let node = holding(&api, node, big.clone(), 40.0);
    let gateway = gateway(&api).await;
    let agent = gateway.agent(node).await;
    let trigger = gateway.trigger("ml/so", UTILIZATION).await;
    trigger.becomes(90.0).await;
    // By watch as by list.
    big["metadata"]["annotations"]["more"] = json!("y".repeat(5 << 20));
    api.apply("pods", big);
    sleep(Duration::from_millis(200)).await;
    agent.reads("GPU-ml-big", 60.0);
    trigger.becomes(110.0).await;
}
