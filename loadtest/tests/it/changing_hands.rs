//! Holders that come and go while they are watched: agents of one node that take turns, pods that
//! follow each other, devices that are lost, and files of `/proc` that say nothing.

use std::time::Duration;

use proto::keda::ScaledObjectRef;
use serde_json::json;
use tokio::time::{Instant, sleep};
use tonic::Code;

use crate::kubelet_server::gpu as given;
use crate::nodes::{Cluster, G1, G2, Node, busy, directory, replica, uid, used};
use crate::support::{PATIENCE, Process};

/// The Deployment's trigger, for machines on which an agent takes its time to start.
fn lasting(name: &str) -> ScaledObjectRef {
    let mut scaled = busy(name);
    scaled.scaler_metadata.insert("staleAfter".into(), "60s".into());
    scaled
}

/// Asks for both Deployments again and again for that long: no other value, and no refusal.
async fn steady(cluster: &Cluster, values: [(&str, f64); 2], long: Duration, when: &str) {
    let start = Instant::now();
    while start.elapsed() < long {
        for (name, value) in values {
            let given = cluster.ask(&lasting(name)).await;
            let given = given.unwrap_or_else(|refusal| panic!("{when}: {name}: {refusal:?}"));
            assert_eq!(given, value, "{when}: {name}");
        }
        sleep(Duration::from_millis(50)).await;
    }
}

/// Case O17, on a shared card and on one of a single pod.
#[tokio::test]
async fn agents_of_one_node_that_take_turns_change_no_value() {
    let (a, b) = ([("a1", 1, "n1"), ("a2", 2, "n1")], [("b1", 3, "n1")]);
    let cluster = Cluster::start(&directory(&[("a", &a), ("b", &b)]));
    let node = Node::new(
        "n1",
        &[used(G1, 90, &[(100, 60, 1), (102, 10, 1)]), used(G2, 70, &[(101, 70, 1)])],
        vec![given("a1", &replica(G1, 0)), given("b1", &replica(G1, 1)), given("a2", G2)],
    );
    (1..=3).for_each(|number| node.runs(99 + number, 1, number));
    let values = [("a", 130.0), ("b", 10.0)];
    let first = cluster.agent(&node, "first", "200ms");
    for (name, value) in values {
        cluster.gives(&busy(name), value).await;
    }
    let mut agents = vec![first];
    for (end, name) in [("SIGTERM", "second"), ("SIGKILL", "third")] {
        let next = cluster.agent(&node, name, "200ms");
        let both = format!("until the {name} agent is heard");
        let start = Instant::now();
        while cluster.sessions("n1").await < 2 {
            steady(&cluster, values, Duration::ZERO, &both).await;
            assert!(start.elapsed() < PATIENCE, "{}", next.log());
        }
        steady(&cluster, values, Duration::from_secs(2), &format!("beside the {name}")).await;
        let mut old: Process = agents.remove(0);
        if end == "SIGTERM" {
            let status = old.terminate().await;
            assert!(status.success(), "{status}");
        }
        drop(old);
        steady(&cluster, values, Duration::from_secs(2), &format!("after {end}")).await;
        agents.push(next);
    }
    // One after the other, as without a surge.
    agents.clear();
    while cluster.sessions("n1").await > 0 {
        steady(&cluster, values, Duration::ZERO, "while nobody speaks").await;
    }
    let next = cluster.agent(&node, "fourth", "200ms");
    while cluster.sessions("n1").await == 0 {
        steady(&cluster, values, Duration::ZERO, "until somebody speaks").await;
    }
    steady(&cluster, values, Duration::from_secs(4), "when the next one speaks").await;
    drop(next);
}

#[tokio::test]
async fn a_pod_that_is_made_anew_under_its_name_is_another_pod() {
    let cluster = Cluster::start(&directory(&[("a", &[("a-0", 1, "n1")])]));
    let node = Node::new("n1", &[used(G1, 85, &[(100, 85, 1)])], vec![given("a-0", G1)]);
    node.runs(100, 1, 1);
    let _agent = cluster.agent(&node, "n1", "100ms");
    cluster.gives(&busy("a"), 85.0).await;
    // The kubelet says the same name, and the old one's process is still there.
    cluster.becomes(&directory(&[("a", &[("a-0", 2, "n1")])]));
    cluster.gives(&busy("a"), 0.0).await;
    // The new one's process has the number of the old one's.
    node.tree.end(100);
    node.runs(100, 2, 2);
    node.reads(&[used(G1, 15, &[(100, 15, 1)])]);
    cluster.gives(&busy("a"), 15.0).await;
    let of_new = |device: &serde_json::Value| {
        let holders = device["holders"].as_array().unwrap();
        holders.len() == 1 && holders[0]["uid"] == uid(2)
    };
    cluster.shows(G1, of_new).await;
}

#[tokio::test]
async fn a_finished_pod_holds_nothing_though_the_kubelet_lists_it() {
    let pods = |phase: &str| {
        let mut text = directory(&[("a", &[("a-0", 1, "n1")]), ("b", &[("b-0", 2, "n1")])]);
        let end = format!("\"name\":\"b-0\",\"phase\":\"{phase}\"");
        text = text.replace("\"name\":\"b-0\"", &end);
        text
    };
    let cluster = Cluster::start(&pods("Running"));
    let node = Node::new("n1", &[used(G1, 60, &[])], vec![given("a-0", G1), given("b-0", G1)]);
    let _agent = cluster.agent(&node, "n1", "200ms");
    cluster.shows(G1, |device| device["holders"].as_array().unwrap().len() == 2).await;
    cluster.becomes(&pods("Succeeded"));
    cluster.shows(G1, |device| device["holders"].as_array().unwrap().len() == 1).await;
    cluster.gives(&busy("a"), 60.0).await;
}

/// From a pod at 90 % to one at 40 %: neither is ever billed for what the other does.
#[tokio::test]
async fn a_device_that_changes_hands_is_billed_to_neither_until_it_is_read_again() {
    let cluster =
        Cluster::start(&directory(&[("a", &[("a-0", 1, "n1")]), ("b", &[("b-0", 2, "n1")])]));
    let node = Node::new("n1", &[used(G1, 90, &[(100, 90, 1)])], vec![given("a-0", G1)]);
    (1..=2).for_each(|number| node.runs(99 + number, 1, number));
    let _agent = cluster.agent(&node, "n1", "100ms");
    cluster.gives(&busy("a"), 90.0).await;
    // The old pod's process ends, the kubelet has the device back and gives it to the new pod.
    node.reads(&[used(G1, 0, &[])]);
    node.gives(vec![given("b-0", G1)]);
    let start = Instant::now();
    let mut is_given = false;
    loop {
        match cluster.ask(&busy("b")).await {
            Ok(40.0) => break,
            // The ring may still have samples of both loads in it.
            Ok(value) => assert!((0.0..40.0).contains(&value), "{value} of b"),
            Err(refusal) => assert_eq!(refusal.code(), Code::Unavailable, "{refusal:?}"),
        }
        match cluster.ask(&busy("a")).await {
            Ok(value) => assert!(!is_given || value != 40.0, "{value} of a"),
            Err(refusal) => {
                assert_eq!(refusal.code(), Code::Unavailable, "{refusal:?}");
                if !is_given {
                    is_given = true;
                    node.reads(&[used(G1, 40, &[(101, 40, 1)])]);
                }
            }
        }
        assert!(start.elapsed() < PATIENCE, "b never has its load");
        sleep(Duration::from_millis(20)).await;
    }
    assert!(is_given, "a was refused before b had its load");
    cluster.refuses(&busy("a"), Code::Unavailable).await;
}

#[tokio::test]
async fn a_lost_device_is_unknown_until_it_is_back_and_its_neighbour_does_not_notice() {
    let cluster =
        Cluster::start(&directory(&[("a", &[("a-0", 1, "n1")]), ("b", &[("b-0", 2, "n1")])]));
    let gpus = |is_lost: bool| {
        let mut first = used(G1, 70, &[]);
        if is_lost {
            first["errors"] = json!({"*": 15});
        }
        [first, used(G2, 30, &[])]
    };
    let node = Node::new("n1", &gpus(false), vec![given("a-0", G1), given("b-0", G2)]);
    let _agent = cluster.agent(&node, "n1", "200ms");
    cluster.gives(&busy("a"), 70.0).await;
    cluster.gives(&busy("b"), 30.0).await;
    node.reads(&gpus(true));
    cluster.refuses(&busy("a"), Code::Unavailable).await;
    assert_eq!(cluster.ask(&busy("b")).await.unwrap(), 30.0);
    cluster.shows(G1, |device| device["state"] == "lost").await;
    node.reads(&gpus(false));
    cluster.gives(&busy("a"), 70.0).await;
    assert_eq!(cluster.ask(&busy("b")).await.unwrap(), 30.0);
}

/// A zombie with thousands of percent, and processes whose files say nothing.
#[tokio::test]
async fn impossible_figures_and_broken_files_cost_only_their_own_process() {
    let cluster =
        Cluster::start(&directory(&[("a", &[("a-0", 1, "n1")]), ("b", &[("b-0", 2, "n1")])]));
    let node = Node::new(
        "n1",
        &[
            used(G1, 80, &[(100, 50, 1), (101, 4_000, 1)]),
            used(G2, 60, &[(102, 40, 1), (200, 10, 1), (201, 5, 1), (202, 5, 1)]),
        ],
        vec![given("a-0", G1), given("b-0", G2)],
    );
    for (pid, pod) in [(100, 1), (101, 1), (102, 2)] {
        node.runs(pid, 1, pod);
    }
    node.tree.process(200, 1, b"\xff\xfe\0 garbage\n\n:::\n".as_slice());
    node.tree.process(201, 1, "");
    node.tree.process(202, 1, "0::/kubepods/burstable/podnot-a-uid/\n");
    let _agent = cluster.agent(&node, "n1", "200ms");
    // All of the first card is one pod's, whatever its processes are said to do.
    cluster.gives(&busy("a"), 80.0).await;
    cluster.gives(&busy("b"), 40.0).await;
    let device = cluster.shows(G2, |device| device["unattributed"] == 0.333333).await;
    let why = device["reason"].as_str().unwrap();
    assert!(why.contains("its cgroup names neither a pod nor the host"), "{why}");
}
