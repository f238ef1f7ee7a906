//! Who holds a GPU, from the driver, the kubelet and the processes of a node to what KEDA is
//! told: a gateway and agents as processes.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::sleep;
use tonic::Code;

use crate::fake_nvml::gpu;
use crate::kubelet_server::{Mood, gpu as given, pod};
use crate::nodes::{Cluster, G1, G2, G3, G4, Node, busy, directory, on, replica, uid, used};
use crate::tree::Tree;

const MIB: u64 = 1 << 20;
const G16: &str = "GPU-00000016-e550-79a1-597e-7631e126c57a";
const G17: &str = "GPU-00000017-e550-79a1-597e-7631e126c57a";
const G18: &str = "GPU-00000018-e550-79a1-597e-7631e126c57a";
const M1: &str = "MIG-00000001-e550-79a1-597e-7631e126c57a";
const M2: &str = "MIG-00000002-e550-79a1-597e-7631e126c57a";
const M3: &str = "MIG-00000003-e550-79a1-597e-7631e126c57a";

/// What `top`-like pages say of a holder.
fn holders(device: &Value) -> Vec<(&str, &str, bool, bool)> {
    let all = device["holders"].as_array().unwrap();
    let holder = all.iter().map(|holder| {
        let text = |key: &str| holder[key].as_str().unwrap();
        let is = |key: &str| holder[key].as_bool().unwrap();
        (text("pod"), text("source"), is("estimated"), is("undeclared"))
    });
    holder.collect()
}

/// Case O10, and the pods' own words about it.
#[tokio::test]
async fn three_pods_on_a_time_sliced_card_count_for_what_their_processes_do() {
    let a = [("a1", 1, "n1"), ("a2", 2, "n1")];
    let cluster = Cluster::start(&directory(&[("a", &a), ("b", &[("b1", 3, "n1")])]));
    let replica = |pod, number| given(pod, &replica(G1, number));
    let node = Node::new(
        "n1",
        &[used(G1, 90, &[(100, 60, 30), (101, 20, 10), (102, 10, 0)])],
        vec![replica("a1", 0), replica("a2", 1), replica("b1", 2)],
    );
    (1..=3).for_each(|number| node.runs(99 + number, 1, number));
    let mut agent = cluster.agent(&node, "n1", "200ms");
    cluster.gives(&busy("a"), 80.0).await;
    cluster.gives(&busy("b"), 10.0).await;
    cluster.gives(&on("a", "memory_used_mib"), 40.0 * 1_024.0).await;
    for _ in 0..10 {
        assert_eq!(cluster.ask(&busy("a")).await.unwrap(), 80.0);
        assert_eq!(cluster.ask(&busy("b")).await.unwrap(), 10.0);
    }
    assert!(cluster.is_active(&busy("b")).await.unwrap());
    let explained = cluster.explanation("a").await;
    assert_eq!(explained["hpa"]["desired"], 2, "{explained:#}");
    let device = &explained["pods"][0]["devices"][0];
    assert_eq!((&device["source"], &device["estimated"]), (&json!("process"), &json!(false)));
    let device = cluster.shows(G1, |device| device["unattributed"] == 0.0).await;
    let of = |pod| (pod, "process", false, false);
    assert_eq!(holders(&device), [of("a1"), of("a2"), of("b1")]);
    let uids: Vec<_> = (0..3).map(|at| device["holders"][at]["uid"].clone()).collect();
    assert_eq!(uids, [uid(1), uid(2), uid(3)]);
    let status = agent.terminate().await;
    assert!(status.success(), "{status}");
}

/// Cases 16, 17 and 18 of how a device is split, each on a card of its own.
#[tokio::test]
async fn a_shared_card_is_split_by_time_else_by_memory_and_idle_is_zero() {
    let names = ["a16", "b16", "a17", "b17", "a18", "b18"];
    let pods: Vec<_> = (1..).zip(names).map(|(number, name)| [(name, number, "n1")]).collect();
    let deployments: Vec<_> =
        names.iter().zip(&pods).map(|(name, pods)| (*name, &pods[..])).collect();
    let cluster = Cluster::start(&directory(&deployments));
    let both = |(name, card): (&str, &str)| {
        pod(name, "nvidia.com/gpu", &[&replica(card, 0), &replica(card, 1)])
    };
    let cards = [G16, G16, G17, G17, G18, G18];
    let given: Vec<_> = names.into_iter().zip(cards).map(both).collect();
    let mut untimed = used(G17, 80, &[(103, 0, 30), (104, 0, 10)]);
    untimed.as_object_mut().unwrap().remove("process_utilization");
    // Nobody having done anything is answered with NOT_FOUND.
    let mut idle = used(G18, 0, &[(105, 0, 1), (106, 0, 1)]);
    idle["process_utilization"] = json!([]);
    let node = Node::new(
        "n1",
        &[used(G16, 80, &[(100, 30, 1), (101, 20, 1), (102, 30, 1)]), untimed, idle],
        given,
    );
    for (pid, pod) in [(100, 1), (101, 1), (102, 2), (103, 3), (104, 4), (105, 5), (106, 6)] {
        node.runs(pid, 1, pod);
    }
    let _agent = cluster.agent(&node, "n1", "200ms");
    let values = [50.0, 30.0, 60.0, 20.0, 0.0, 0.0];
    for (name, value) in names.iter().zip(values) {
        cluster.gives(&busy(name), value).await;
    }
    for (at, name) in names.iter().enumerate() {
        let source = ["process", "memory", "process"][at / 2];
        let estimated = source == "memory";
        let explained = cluster.explanation(name).await;
        let device = &explained["pods"][0]["devices"][0];
        let of = (&device["source"], &device["estimated"]);
        assert_eq!(of, (&json!(source), &json!(estimated)), "{explained:#}");
    }
    for card in [G16, G17, G18] {
        let device = cluster.shows(card, |_| true).await;
        assert_eq!((&device["unattributed"], &device["state"]), (&json!(0.0), &json!("ok")));
    }
}

fn slice(slot: u32, gi: u32, uuid: &str, used: u64) -> Value {
    json!({
        "slot": slot, "uuid": uuid, "name": "NVIDIA A100-SXM4-40GB MIG 3g.20gb",
        "gi": gi, "ci": 0, "memory": [19_968 * MIB, 0, used * MIB],
    })
}

fn a100(instances: &[Value]) -> Value {
    json!({
        "uuid": G1, "name": "NVIDIA A100-SXM4-40GB", "mig": [1, 1], "utilization": [93, 40],
        "memory": [40_536 * MIB, 0, 20_100 * MIB], "temperature": 50, "power": 250_000,
        "instances": instances,
    })
}

/// Case O09, and a GPU that is cut anew while the agent runs.
#[tokio::test]
async fn mig_instances_have_memory_of_their_own_also_after_the_gpu_is_cut_anew() {
    let (a, b) = ([("a-0", 1, "n1")], [("b-0", 2, "n1")]);
    let cluster = Cluster::start(&directory(&[("a", &a), ("b", &b)]));
    let cut = [slice(0, 1, M1, 18_000), slice(3, 2, M2, 2_000)];
    let instance = |name, uuid| pod(name, "nvidia.com/mig-3g.20gb", &[uuid]);
    let given = vec![instance("a-0", M1), instance("b-0", M2)];
    let node = Node::new("n1", &[a100(&cut)], given);
    let _agent = cluster.agent(&node, "n1", "200ms");
    let memory = |name| on(name, "memory_used_percent");
    cluster.gives(&memory("a"), 90.144).await;
    cluster.gives(&memory("b"), 10.016).await;
    let why = cluster.refuses(&busy("a"), Code::FailedPrecondition).await;
    for word in ["MIG", "memory_used_percent", "sm_activity", "requests_waiting"] {
        assert!(why.contains(word), "{word} in {why}");
    }
    let refusal = cluster.is_active(&busy("a")).await.unwrap_err();
    assert_eq!(refusal.code(), Code::FailedPrecondition, "never false: {refusal:?}");

    // The other one goes first, into the first one's slot and ids.
    node.reads(&[a100(&[slice(0, 1, M3, 4_992)])]);
    node.gives(vec![instance("b-0", M3)]);
    cluster.gives(&memory("b"), 25.0).await;
    cluster.refuses(&memory("a"), Code::Unavailable).await;
    let device = cluster.shows(M3, |_| true).await;
    assert_eq!(holders(&device), [("b-0", "kubelet", false, false)]);
}

/// Pods that were not given the GPU they use, processes of no pod, and processes that are not
/// seen.
#[tokio::test]
async fn what_others_do_on_a_gpu_is_shown_and_not_billed_to_its_holders() {
    let pods = ["own", "guest", "hosted", "blind", "left", "right"];
    let nodes = ["n1", "n1", "n1", "n2", "n2", "n2"];
    let pods: Vec<_> = (1..).zip(pods.into_iter().zip(nodes)).collect();
    let pods: Vec<_> =
        pods.iter().map(|(number, (name, node))| [(*name, *number, *node)]).collect();
    let deployments: Vec<_> = pods.iter().map(|pods| (pods[0].0, &pods[..])).collect();
    let cluster = Cluster::start(&directory(&deployments));

    let bypassed = used(G1, 70, &[(100, 40, 1), (101, 30, 1)]);
    let hosted = used(G2, 60, &[(102, 45, 1), (200, 15, 1)]);
    let seen = Node::new("n1", &[bypassed, hosted], vec![given("own", G1), given("hosted", G2)]);
    (1..=3).for_each(|number| seen.runs(99 + number, 1, number));
    seen.tree.process(200, 1, "0::/system.slice/slurmstepd.service\n");
    // Without hostPID the same numbers are other processes.
    let unseen = Node::within(
        Tree::in_namespace("pid:[4026532281]"),
        "n2",
        &[used(G3, 55, &[(100, 55, 1)]), used(G4, 90, &[(101, 80, 1), (102, 10, 1)])],
        vec![given("blind", G3), given("left", &replica(G4, 0)), given("right", &replica(G4, 1))],
    );
    unseen.runs(100, 1, 9);
    let _agents = [cluster.agent(&seen, "n1", "200ms"), cluster.agent(&unseen, "n2", "200ms")];

    for (name, value) in [("own", 40.0), ("guest", 30.0), ("hosted", 45.0)] {
        cluster.gives(&busy(name), value).await;
    }
    for (name, value) in [("blind", 55.0), ("left", 45.0), ("right", 45.0)] {
        cluster.gives(&busy(name), value).await;
    }
    let device = cluster.shows(G1, |_| true).await;
    let of = |pod, undeclared| (pod, "process", false, undeclared);
    assert_eq!(holders(&device), [of("own", false), of("guest", true)], "{device:#}");
    let explained = cluster.explanation("own").await;
    let warning = explained["warnings"][0].as_str().unwrap();
    assert!(warning.contains(&format!("guest uses {G1}")), "{warning}");
    let device = cluster.shows(G2, |device| device["unattributed"] == 0.25).await;
    assert_eq!(holders(&device), [of("hosted", false)]);
    assert_eq!(device["reason"], "used by processes outside any pod");
    let device = cluster.shows(G3, |_| true).await;
    assert_eq!(holders(&device), [("blind", "kubelet", false, false)]);
    let device = cluster.shows(G4, |_| true).await;
    assert_eq!(holders(&device), ["left", "right"].map(|pod| (pod, "equal", true, false)));
    let why = device["reason"].as_str().unwrap();
    assert!(why.contains("set hostPID: true"), "{why}");
}

/// A snapshot has no gateway to say what pods are called.
#[tokio::test]
async fn an_observed_holder_has_a_name_with_a_gateway_and_a_uid_without() {
    let cluster = Cluster::start(&directory(&[("a", &[("a-0", 1, "n1")])]));
    let node = Node::new("n1", &[used(G1, 70, &[(100, 70, 1)])], Vec::new());
    node.runs(100, 1, 1);
    let binaries = cluster.binaries.clone();
    let mut snapshot = node.command(&binaries, "snapshot");
    let output = tokio::task::spawn_blocking(move || snapshot.args(["-o", "json"]).output());
    let output = output.await.unwrap().unwrap();
    let line: Value = serde_json::from_slice(&output.stdout).unwrap();
    let device = &line["devices"][0];
    assert_eq!(device["holders"], json!([]), "{line:#}");
    let why = device["reason"].as_str().unwrap();
    assert!(why.contains(&format!("UID {}", uid(1))), "{why}");

    let _agent = cluster.agent(&node, "n1", "200ms");
    cluster.gives(&busy("a"), 70.0).await;
    let device = cluster.shows(G1, |_| true).await;
    assert_eq!(holders(&device), [("a-0", "process", false, true)]);
}

/// Everything a kubelet does wrong, one after the other; the devices are there all the time.
#[tokio::test]
async fn a_kubelet_that_fails_costs_the_names_and_not_the_devices() {
    let cluster = Cluster::start(&directory(&[("a", &[("a-0", 1, "n1")])]));
    let mut node = Node::new("n1", &[gpu(G1, 70)], Vec::new());
    node.kubelet.as_ref().unwrap().mood.send_replace(Mood::Hangs);
    let _agent = cluster.agent(&node, "n1", "200ms");
    let says = |words: &'static str| {
        move |device: &Value| {
            let is_read = device["state"] == "ok" && device["readings"]["gpu_utilization"] == 70.0;
            let why = device["reason"].as_str().unwrap_or_default();
            is_read && why.contains(words) && device["holders"] == json!([])
        }
    };
    cluster.shows(G1, says("not heard yet")).await;
    cluster.shows(G1, says("does not answer within")).await;
    drop(node.kubelet.take());
    std::fs::remove_file(node.socket()).unwrap();
    cluster.shows(G1, says("is missing")).await;
    cluster.refuses(&busy("a"), Code::Unavailable).await;

    // Another kubelet, whose answer has 5 MB, and our pod is the last of it.
    let long = "x".repeat(200);
    let mut pods: Vec<_> = (0..20_000)
        .map(|number| pod(&format!("p-{number}-{long}"), "example.com/thing", &["0"]))
        .collect();
    pods.push(given("a-0", G1));
    node.kubelet = Some(crate::kubelet_server::TestKubelet::start(&node.socket(), pods));
    cluster.gives(&busy("a"), 70.0).await;

    // Its last word holds for a while when it falls silent.
    node.kubelet.as_ref().unwrap().mood.send_replace(Mood::Hangs);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(cluster.ask(&busy("a")).await.unwrap(), 70.0);
    let device = cluster.shows(G1, |_| true).await;
    assert_eq!(holders(&device), [("a-0", "kubelet", false, false)]);
}
