//! What agents are told about their node, over real streams.

use std::fmt::Write as _;
use std::time::Duration;

use proto::uplink::gateway_message;
use serde_json::json;
use shared::brief::Brief;
use tonic::Code;
use tonic::transport::Endpoint;

use crate::api_server::{ApiServer, pod};
use crate::kube;
use crate::support::{Node, TestGateway, Uplink, eventually, refused, soon};

/// A stream of `node` that has been welcomed.
async fn uplink(gateway: &TestGateway, node: &str) -> Uplink {
    let mut uplink = Uplink::open(gateway.agents).await;
    uplink.say(Node::new(node).hello()).await;
    uplink.welcome().await.expect("the agent is welcome");
    uplink
}

fn pods(brief: &Brief) -> Vec<String> {
    brief.pods.iter().map(|pod| format!("{} {}", pod.key, pod.uid)).collect()
}

/// Two workloads over two nodes; `ips` are those of `a-0` on n1 and `b-0` on n2.
fn directory(ips: [&str; 2]) -> String {
    let [a, b] = ips;
    format!(
        "
workloads:
  - namespace: ai
    kind: Deployment
    name: a
    replicas: 2
    pods:
      - {{name: a-0, ready: true, node: n1, uid: ua0, ip: {a}}}
      - {{name: a-1, ready: true, node: n2, uid: ua1}}
      - {{name: a-2, ready: false, uid: ua2}}
  - namespace: ai
    kind: Deployment
    name: b
    replicas: 1
    pods:
      - {{name: b-0, ready: true, node: n2, uid: ub0, ip: {b}, phase: Succeeded}}
      - {{name: b-1, ready: true, node: n1}}
"
    )
}

#[tokio::test]
async fn an_agent_is_told_about_its_own_node_at_once_and_when_that_changes() {
    let gateway = TestGateway::start(&directory(["10.0.0.1", "10.0.0.2"])).await;
    let (mut n1, mut n2) = (uplink(&gateway, "n1").await, uplink(&gateway, "n2").await);
    let (version, brief) = n1.brief().await.unwrap();
    assert_eq!((version, pods(&brief)), (1, vec!["ai/a-0 ua0".to_owned()]));
    assert_eq!((brief.pods[0].ip.as_deref(), brief.pods[0].finished), (Some("10.0.0.1"), false));
    assert_eq!((&*brief.pods[0].containers, &*brief.devices), (&[][..], &[][..]));
    let (version, brief) = n2.brief().await.unwrap();
    assert_eq!((version, pods(&brief)), (1, vec!["ai/a-1 ua1".into(), "ai/b-0 ub0".into()]));
    assert_eq!((brief.pods[0].finished, brief.pods[1].finished), (false, true));
    // One of n1: nothing for n2, whose next brief is its second.
    gateway.rewrite(&directory(["10.0.0.9", "10.0.0.2"]));
    let (version, brief) = n1.brief().await.unwrap();
    assert_eq!((version, brief.pods[0].ip.as_deref()), (2, Some("10.0.0.9")));
    gateway.rewrite(&directory(["10.0.0.9", "10.0.0.8"]));
    let (version, brief) = n2.brief().await.unwrap();
    assert_eq!((version, brief.pods[1].ip.as_deref()), (2, Some("10.0.0.8")));
    // A stream counts its own.
    let mut again = uplink(&gateway, "n1").await;
    let (version, brief) = again.brief().await.unwrap();
    assert_eq!((version, brief.pods[0].ip.as_deref()), (1, Some("10.0.0.9")));
    // A node that the directory does not know has nothing, and is told so.
    let mut other = uplink(&gateway, "n3").await;
    assert_eq!(other.brief().await.unwrap(), (1, Brief::default()));
    let sent = gateway.metric("gpu_gateway_uplink_briefs_total", "").await;
    assert_eq!(sent, 6.0);
    gateway.begin_shutdown();
    for mut agent in [n1, n2, again, other] {
        assert_eq!(agent.ended().await.map_err(|status| status.code()), Ok(()));
    }
    gateway.has_stopped().await.unwrap();
}

#[tokio::test]
async fn nobody_is_told_anything_before_the_directory_is_loaded() {
    let api = ApiServer::start().await;
    api.apply("pods", pod("ml", "llm-0", json!({})));
    api.slow_lists(Duration::from_millis(400));
    let gateway = kube::gateway(&api).await;
    let mut agent = uplink(&gateway, "n1").await;
    let (version, brief) = agent.brief().await.unwrap();
    assert_eq!((version, pods(&brief)), (1, vec!["ml/llm-0 ml-llm-0".to_owned()]));
}

#[tokio::test]
async fn a_stranger_comes_starts_and_goes_and_the_node_is_told() {
    let api = ApiServer::start().await;
    let gateway = kube::gateway(&api).await;
    let mut agent = uplink(&gateway, "n1").await;
    assert_eq!(agent.brief().await.unwrap(), (1, Brief::default()));
    // Scaled by nothing, yet it may sit on a GPU.
    api.apply("pods", pod("ml", "stranger", json!({"app": "x"})));
    let (version, brief) = agent.brief().await.unwrap();
    assert_eq!((version, pods(&brief)), (2, vec!["ml/stranger ml-stranger".to_owned()]));
    assert_eq!(*brief.pods[0].containers, []);
    let id = "0123456789abcdef".repeat(4);
    let mut started = pod("ml", "stranger", json!({"app": "x"}));
    let containers = json!([{"name": "main", "containerID": format!("containerd://{id}")}]);
    started["status"]["containerStatuses"] = containers;
    api.apply("pods", started.clone());
    let (version, brief) = agent.brief().await.unwrap();
    let container = &brief.pods[0].containers[0];
    assert_eq!((version, &*container.name, container.id.as_deref()), (3, "main", Some(&*id)));
    // What is not in a brief makes none: the next one is about something else.
    started["metadata"]["labels"] = json!({"app": "y"});
    api.apply("pods", started);
    api.apply("pods", pod("ml", "zz", json!({})));
    let (version, brief) = agent.brief().await.unwrap();
    assert_eq!((version, brief.pods.len()), (4, 2));
    api.delete("pods", "ml", "stranger");
    let (version, brief) = agent.brief().await.unwrap();
    assert_eq!((version, pods(&brief)), (5, vec!["ml/zz ml-zz".to_owned()]));
}

#[tokio::test]
async fn a_gateway_limited_to_a_namespace_tells_of_that_alone() {
    let api = ApiServer::start().await;
    api.apply("pods", pod("ml", "mine", json!({})));
    api.apply("pods", pod("other", "hidden", json!({})));
    let gateway = kube::gateway_with(&api, |config| {
        config.kube.namespaces = vec!["ml".into()];
    })
    .await;
    let mut agent = uplink(&gateway, "n1").await;
    let (_, brief) = agent.brief().await.unwrap();
    assert_eq!(pods(&brief), ["ml/mine ml-mine"]);
}

/// A crowded node whose brief does not fit a stream's window; `round` is in all of it.
fn crowded(round: u32) -> String {
    let mut text = format!(
        "workloads:\n  - namespace: ai\n    kind: Deployment\n    name: a\n    replicas: {round}\n    pods:\n"
    );
    for n in 0..500 {
        let name = format!("{}-{n:04}", "n".repeat(200));
        writeln!(
            text,
            "      - {{name: {name}, ready: true, node: n1, uid: u{n}, ip: 10.0.0.{round}}}"
        )
        .expect("a String takes all");
    }
    text
}

#[tokio::test]
async fn an_agent_that_does_not_read_gets_the_newest_in_the_end_and_not_all() {
    const ROUNDS: u32 = 10;
    let gateway = TestGateway::start(&crowded(1)).await;
    let endpoint = Endpoint::from_shared(format!("http://{}", gateway.agents)).unwrap();
    let endpoint =
        endpoint.initial_stream_window_size(65_535).initial_connection_window_size(65_535);
    let mut slow = Uplink::on(endpoint.connect().await.unwrap()).await;
    slow.say(Node::new("n1").hello()).await;
    slow.welcome().await.expect("the agent is welcome");
    for round in 2..=ROUNDS {
        gateway.rewrite(&crowded(round));
        eventually("it is loaded", async || {
            let workloads = gateway.json("/api/v1/workloads").await;
            if workloads[0]["replicas"] == round { Ok(()) } else { Err(workloads) }
        })
        .await;
        // It is listened to all the same.
        slow.say(Node::new("n1").inventory_message(round.into())).await;
        slow.say(Node::new("n1").sample_message(round.into())).await;
    }
    let heard = gateway.json("/api/v1/nodes").await;
    assert_eq!(heard[0]["sessions"], 1, "{heard}");
    let mut got = 0;
    loop {
        let (version, brief) = slow.brief().await.unwrap();
        got += 1;
        assert_eq!((version, brief.pods.len()), (got, 500));
        if brief.pods.iter().all(|pod| pod.ip.as_deref() == Some(&format!("10.0.0.{ROUNDS}"))) {
            break;
        }
    }
    assert!(got < u64::from(ROUNDS) / 2, "{got} briefs of {ROUNDS}");
    gateway.begin_shutdown();
    assert_eq!(slow.ended().await.map_err(|status| status.code()), Ok(()));
    gateway.has_stopped().await.unwrap();
}

#[tokio::test]
async fn a_stream_that_is_pushed_out_or_breaks_the_rules_is_told_no_more() {
    let gateway = TestGateway::start(&directory(["10.0.0.1", "10.0.0.2"])).await;
    let mut oldest = uplink(&gateway, "n1").await;
    oldest.brief().await.unwrap();
    let mut newer = Vec::new();
    for _ in 0..4 {
        newer.push(uplink(&gateway, "n1").await);
    }
    refused(oldest.ended().await, Code::Aborted, &["took over"]);
    let mut rude = uplink(&gateway, "n2").await;
    rude.say(Node::new("n2").hello()).await;
    refused(rude.ended().await, Code::InvalidArgument, &["Hello came twice"]);
    let before = gateway.metric("gpu_gateway_uplink_briefs_total", "").await;
    gateway.rewrite(&directory(["10.0.0.7", "10.0.0.7"]));
    for agent in &mut newer {
        while agent.brief().await.unwrap().1.pods[0].ip.as_deref() != Some("10.0.0.7") {}
    }
    let after = gateway.metric("gpu_gateway_uplink_briefs_total", "").await;
    assert!(after - before <= 8.0, "four streams, at most twice each: {before} to {after}");
}

#[tokio::test]
async fn welcome_always_comes_first() {
    let gateway = TestGateway::start(&directory(["10.0.0.1", "10.0.0.2"])).await;
    for _ in 0..20 {
        let mut agent = Uplink::open(gateway.agents).await;
        agent.say(Node::new("n1").hello()).await;
        let first = soon("a message", agent.replies.message()).await.unwrap().unwrap();
        assert!(matches!(first.body, Some(gateway_message::Body::Welcome(_))), "{first:?}");
    }
}
