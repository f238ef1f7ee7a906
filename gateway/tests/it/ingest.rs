//! Agents' streams: good ones, broken ones, and good ones beside broken ones.

use std::time::Duration;

use http_body_util::{BodyExt as _, Full};
use hyper::Request;
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use proto::uplink::agent_message::Body;
use proto::uplink::{AgentMessage, Device, DeviceSample, Failure, Hello, Inventory, Sample};
use shared::metric::Metric;
use shared::reading::Reading;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::sleep;
use tonic::{Code, Status};

use crate::support::{
    Cable, Node, Steady, TestAgent, TestGateway, Trigger, Uplink, eventually, gpu, refused, soon,
};

/// Two workloads: `ai/good`, which must never notice anything, and `ai/bad`.
const GOOD_AND_BAD: &str = "
workloads:
  - {namespace: ai, kind: Deployment, name: good, replicas: 1, pods: [{name: good-0, ready: true, node: good}]}
  - {namespace: ai, kind: Deployment, name: bad, replicas: 1, pods: [{name: bad-0, ready: true, node: bad}]}
scaledObjects:
  - {namespace: ai, name: good, target: {name: good}}
  - {namespace: ai, name: bad, target: {name: bad}}
";

/// A gateway with a good agent whose workload is asked about all the time.
struct Beside {
    gateway: TestGateway,
    _agent: TestAgent,
    steady: Steady,
}

impl Beside {
    async fn a_good_agent() -> Self {
        let gateway = TestGateway::start(GOOD_AND_BAD).await;
        let node = Node::new("good").with(gpu("u-good", "ai/good-0", 42.5));
        let agent = gateway.agent(node).await;
        let trigger = gateway.trigger("ai/good", &[]).await;
        trigger.becomes(42.5).await;
        Self { steady: Steady::watch(trigger, 42.5), _agent: agent, gateway }
    }

    async fn bad(&self) -> Trigger {
        self.gateway.trigger("ai/bad", &[]).await
    }

    /// Says `messages` on a stream of its own, and returns how the gateway ends it.
    async fn say(&self, messages: Vec<Body>) -> Result<(), Status> {
        let mut uplink = Uplink::open(self.gateway.agents).await;
        for message in messages {
            uplink.say(message).await;
        }
        uplink.ended().await
    }

    async fn counted(&self, before: f64) {
        eventually("a refusal is counted", async || match self.gateway.refused().await {
            now if now > before => Ok(()),
            now => Err(now),
        })
        .await;
    }

    async fn was_not_disturbed(self) {
        self.steady.held().await;
        assert_eq!(self.gateway.get("/healthz").await.0, 200);
    }
}

fn bad_node() -> Node {
    Node::new("bad").with(gpu("u-bad", "ai/bad-0", 70.0))
}

fn hello(node: &str, interval_ms: u32) -> Body {
    Body::Hello(Hello {
        node: node.into(),
        version: "test".into(),
        interval_ms,
        engine_interval_ms: 0,
    })
}

/// The inventory of [`bad_node`], changed.
fn inventory(change: impl FnOnce(&mut Inventory)) -> Body {
    let Body::Inventory(mut inventory) = bad_node().inventory_message(1) else {
        unreachable!("it is an inventory")
    };
    change(&mut inventory);
    Body::Inventory(inventory)
}

/// The sample of [`bad_node`], changed.
fn sample(change: impl FnOnce(&mut Sample)) -> Body {
    let Body::Sample(mut sample) = bad_node().sample_message(1) else {
        unreachable!("it is a sample")
    };
    change(&mut sample);
    Body::Sample(sample)
}

// === What ends a stream ===

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_wrong_order_ends_the_stream_and_is_counted() {
    let beside = Beside::a_good_agent().await;
    let node = bad_node();
    for (messages, words) in [
        (vec![node.sample_message(1)], "Hello must come first"),
        (vec![node.inventory_message(1)], "Hello must come first"),
        (vec![node.hello(), node.hello()], "Hello came twice"),
        (vec![node.hello(), node.sample_message(1)], "Inventory"),
        (vec![node.hello(), node.inventory_message(1), node.hello()], "Hello came twice"),
    ] {
        let before = beside.gateway.refused().await;
        refused(beside.say(messages).await, Code::InvalidArgument, &[words]);
        beside.counted(before).await;
    }
    let mut empty = Uplink::open(beside.gateway.agents).await;
    empty.say_raw(AgentMessage { body: None }).await;
    refused(empty.ended().await, Code::InvalidArgument, &["Hello"]);
    let bad = beside.bad().await;
    refused(bad.value().await, Code::Unavailable, &[]);
    let open = beside.gateway.metric("gpu_gateway_agent_sessions", "").await;
    assert_eq!(open, 1.0, "refused streams leave no session");
    beside.was_not_disturbed().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hellos_that_cannot_be_true_are_refused_and_counted() {
    let beside = Beside::a_good_agent().await;
    for (node, interval) in [
        ("", 500),
        (&*"n".repeat(254), 500),
        (&*"n".repeat(1 << 20), 500),
        ("bad", 0),
        ("bad", 50),
        ("bad", 1_000_000_000),
        ("bad", u32::MAX),
    ] {
        let before = beside.gateway.refused().await;
        let end = beside.say(vec![hello(node, interval)]).await;
        refused(end, Code::InvalidArgument, &[]);
        beside.counted(before).await;
    }
    beside.was_not_disturbed().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn odd_names_do_not_break_the_pages() {
    let beside = Beside::a_good_agent().await;
    for name in ["a b", "a\"b", "a\nb", "a\\b", "a/b", "ä", "\u{0}", "{}", "\u{202e}"] {
        let mut uplink = Uplink::open(beside.gateway.agents).await;
        uplink.say(hello(name, 500)).await;
        if let Err(status) = uplink.welcome().await {
            assert_eq!(status.code(), Code::InvalidArgument, "{name:?}: {status:?}");
            continue;
        }
        let odd = |inventory: &mut Inventory| inventory.devices[0].uuid = name.into();
        uplink.say(inventory(odd)).await;
        uplink.say(sample(|_| {})).await;
        uplink.end().await.unwrap();
    }
    crate::http::check_exposition(&beside.gateway.get("/metrics").await.1);
    beside.gateway.json("/api/v1/nodes").await;
    beside.was_not_disturbed().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_never_says_who_it_is_is_sent_away() {
    let beside = Beside::a_good_agent().await;
    let mut mute = Uplink::open(beside.gateway.agents).await;
    let before = beside.gateway.refused().await;
    refused(mute.ended().await, Code::DeadlineExceeded, &["Hello"]);
    beside.counted(before).await;
    beside.was_not_disturbed().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_devices_than_a_node_can_have_end_the_stream() {
    let beside = Beside::a_good_agent().await;
    let before = beside.gateway.refused().await;
    let many = inventory(|inventory| {
        let devices = (0..10_000).map(|at| Device { uuid: format!("u{at}"), ..Device::default() });
        inventory.devices.extend(devices);
    });
    let end = beside.say(vec![hello("bad", 100), many]).await;
    refused(end, Code::ResourceExhausted, &["10001 devices", "1024"]);
    beside.counted(before).await;
    beside.was_not_disturbed().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_oversize_message_ends_the_stream_with_a_size_error() {
    let beside = Beside::a_good_agent().await;
    let before = beside.gateway.refused().await;
    let large = inventory(|inventory| inventory.devices[0].name = "x".repeat(5 << 20));
    let end = beside.say(vec![hello("bad", 100), large]).await;
    let code = end.expect_err("it is refused").code();
    let sizes = [Code::OutOfRange, Code::ResourceExhausted, Code::InvalidArgument];
    assert!(sizes.contains(&code), "{code:?}");
    beside.counted(before).await;
    beside.was_not_disturbed().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_is_none_ends_the_stream_with_an_error() {
    let beside = Beside::a_good_agent().await;
    let before = beside.gateway.refused().await;
    let uri = format!("http://{}/keda_gpu_gateway.uplink.v1.Uplink/Push", beside.gateway.agents);
    let mut framed = vec![0, 0, 0, 0, 64];
    framed.extend([0xff; 64]);
    let request = Request::post(uri)
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Full::new(Bytes::from(framed)))
        .unwrap();
    let client = Client::builder(TokioExecutor::new()).http2_only(true).build_http();
    let answer = soon("Push", client.request(request)).await.unwrap();
    let whole = soon("the stream ends", answer.into_body().collect()).await;
    let whole = whole.unwrap();
    let status = &whole.trailers().expect("a gRPC status")["grpc-status"];
    assert_ne!(status, "0", "it is not taken for a farewell");
    beside.counted(before).await;
    beside.was_not_disturbed().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_that_are_no_http2_harm_nobody() {
    let beside = Beside::a_good_agent().await;
    for port in [beside.gateway.agents, beside.gateway.keda, beside.gateway.http] {
        for bytes in [
            &[0x00; 4096][..],
            &[0xff; 4096],
            b"GET /metrics HTTP/1.0\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\xff\xff\xff\xff\xff\xff",
        ] {
            let mut raw = TcpStream::connect(port).await.unwrap();
            raw.write_all(bytes).await.ok();
            raw.shutdown().await.ok();
            let mut answer = Vec::new();
            soon("it is closed", raw.read_to_end(&mut answer)).await.ok();
        }
    }
    beside.was_not_disturbed().await;
}

// === What costs only itself ===

/// A stream of node `bad` whose first sample is in.
async fn a_bad_agent(beside: &Beside) -> Uplink {
    let mut uplink = Uplink::open(beside.gateway.agents).await;
    let node = bad_node();
    uplink.say(node.hello()).await;
    uplink.welcome().await.expect("it is welcome");
    uplink.say(node.inventory_message(1)).await;
    uplink.say(node.sample_message(1)).await;
    beside.bad().await.becomes(70.0).await;
    uplink
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_elements_of_a_sample_cost_only_themselves() {
    let beside = Beside::a_good_agent().await;
    let mut uplink = a_bad_agent(&beside).await;
    let utilization = |value: f64| DeviceSample {
        metrics: vec![1],
        values: vec![value],
        ..DeviceSample::default()
    };
    let unknown = |device: u32| DeviceSample { device, ..utilization(99.0) };
    let bad: Vec<Body> = vec![
        sample(|sample| sample.devices.push(unknown(1))),
        sample(|sample| sample.devices.push(unknown(u32::MAX))),
        sample(|sample| sample.devices[0].values.clear()),
        sample(|sample| sample.devices[0].values.push(3.0)),
        sample(|sample| sample.devices[0].metrics.push(2)),
        sample(|sample| sample.generation = 0),
        sample(|sample| sample.generation = u64::MAX),
        sample(|sample| {
            sample.devices[0].metrics.extend([0, 99, u32::MAX]);
            sample.devices[0].values.extend([1.0, 2.0, 3.0]);
        }),
        sample(|sample| {
            let reason = "lost".repeat(100_000);
            let failure = Failure { metric: 99, reason };
            sample.devices[0].failures.push(failure);
        }),
        sample(|sample| sample.devices = vec![unknown(7); 10_000]),
        sample(|sample| {
            let engine = proto::uplink::EngineSample::default();
            sample.engines.push(engine);
        }),
    ];
    let trigger = beside.bad().await;
    for (message, load) in bad.into_iter().zip([71.0, 72.0].into_iter().cycle()) {
        let before = beside.gateway.refused().await;
        uplink.say(message).await;
        beside.counted(before).await;
        assert_eq!(trigger.value().await.unwrap(), 70.0);
        // The stream lives: what comes next is taken.
        uplink.say(sample(|s| s.devices[0] = utilization(load))).await;
        trigger.becomes(load).await;
        uplink.say(sample(|_| {})).await;
        trigger.becomes(70.0).await;
    }
    uplink.end().await.expect("it ends with OK");
    beside.was_not_disturbed().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_that_cannot_be_true_are_failed_readings_and_never_zero() {
    let beside = Beside::a_good_agent().await;
    let mut uplink = a_bad_agent(&beside).await;
    let trigger = beside.bad().await;
    for value in [-1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 100.5, 1e300, -1e-9] {
        let before = beside.gateway.refused().await;
        uplink.say(sample(|s| s.devices[0].values = vec![value])).await;
        let why = trigger.fails(Code::Unavailable).await;
        assert!(why.contains("gpu_utilization"), "{value}: {why}");
        refused(trigger.is_active().await, Code::Unavailable, &[]);
        beside.counted(before).await;
        uplink.say(sample(|_| {})).await;
        trigger.becomes(70.0).await;
    }
    beside.was_not_disturbed().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ages_are_the_senders_and_extremes_do_not_wrap() {
    let beside = Beside::a_good_agent().await;
    let mut uplink = a_bad_agent(&beside).await;
    let trigger = beside.bad().await;
    for age in [60_000, u32::MAX] {
        uplink.say(sample(|sample| sample.devices[0].age_ms = age)).await;
        trigger.fails(Code::Unavailable).await;
        uplink.say(sample(|_| {})).await;
        trigger.becomes(70.0).await;
    }
    beside.was_not_disturbed().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_elements_of_an_inventory_cost_only_themselves() {
    let beside = Beside::a_good_agent().await;
    let trigger = beside.bad().await;
    let megabyte = || "x".repeat(1 << 20);
    let extra = |device: Device| inventory(move |inventory| inventory.devices.push(device));
    let named = |uuid: String| Device { uuid, ..Device::default() };
    let holder = |change: fn(&mut proto::uplink::Holder)| {
        inventory(move |inventory| {
            let mut holder = inventory.devices[0].holders[0].clone();
            holder.pod = "stranger".into();
            change(&mut holder);
            inventory.devices[0].holders.push(holder);
        })
    };
    for message in [
        extra(named("u-bad".into())),
        extra(named(String::new())),
        extra(named(megabyte())),
        extra(Device { memory_total_mib: Some(f64::NAN), ..named("u2".into()) }),
        holder(|holder| holder.pod = "x".repeat(1 << 20)),
        holder(|holder| holder.namespace.clear()),
        holder(|holder| holder.share = Some(1.5)),
        holder(|holder| holder.share = Some(-0.5)),
        holder(|holder| holder.share = Some(f64::NAN)),
        holder(|holder| holder.source = 77),
    ] {
        let before = beside.gateway.refused().await;
        let mut uplink = Uplink::open(beside.gateway.agents).await;
        uplink.say(hello("bad", 100)).await;
        uplink.say(message).await;
        uplink.say(sample(|_| {})).await;
        beside.counted(before).await;
        trigger.becomes(70.0).await;
        uplink.end().await.expect("it ends with OK");
    }
    let mut uplink = Uplink::open(beside.gateway.agents).await;
    uplink.say(hello("bad", 100)).await;
    uplink.say(inventory(|i| i.devices[0].name = megabyte())).await;
    uplink.say(sample(|_| {})).await;
    trigger.becomes(70.0).await;
    let (_, nodes) = beside.gateway.get("/api/v1/nodes").await;
    assert!(nodes.len() < 100_000, "names are cut");
    beside.was_not_disturbed().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_samples_and_sessions_is_survived() {
    let beside = Beside::a_good_agent().await;
    let trigger = beside.bad().await;
    let mut sessions = Vec::new();
    for _ in 0..20 {
        sessions.push(a_bad_agent(&beside).await);
        assert_eq!(trigger.value().await.unwrap(), 70.0);
    }
    let superseded = &mut sessions[0];
    refused(superseded.ended().await, Code::Aborted, &["newer"]);
    let newest = sessions.last_mut().unwrap();
    for _ in 0..400 {
        newest.say(sample(|_| {})).await;
    }
    newest.say(sample(|s| s.devices[0].values = vec![33.0])).await;
    trigger.becomes(33.0).await;
    let open = beside.gateway.metric("gpu_gateway_agent_sessions", "").await;
    assert!(open <= 6.0, "{open} sessions");
    beside.was_not_disturbed().await;
}

// === Sessions of one node (O17) ===

const TWO_PODS_OF_ONE_NODE: &str = "
workloads:
  - {namespace: ml, kind: Deployment, name: llm, replicas: 2, pods: [{name: a, ready: true}, {name: b, ready: true}]}
scaledObjects:
  - {namespace: ml, name: llm, target: {name: llm}}
";

fn two_at_70() -> Node {
    Node::new("n1").with(gpu("u1", "ml/a", 70.0)).with(gpu("u2", "ml/b", 70.0))
}

/// Two agents of one node push the same cards; then `end` does away with the older one.
async fn surge(end: impl AsyncFnOnce(TestAgent, Cable)) {
    let gateway = TestGateway::start(TWO_PODS_OF_ONE_NODE).await;
    let cable = Cable::to(gateway.agents).await;
    let old = TestAgent::start(cable.address, two_at_70()).await;
    let metadata = [("targetValue", "60"), ("staleAfter", "2s")];
    let trigger = gateway.trigger("ml/llm", &metadata).await;
    trigger.becomes(140.0).await;
    let steady = Steady::watch(trigger, 140.0);
    let _new = gateway.agent(two_at_70()).await;
    let sessions = async |expected: f64| {
        eventually("so many sessions are open", async || {
            match gateway.metric("gpu_gateway_agent_sessions", "").await {
                open if open == expected => Ok(()),
                open => Err(open),
            }
        })
        .await;
    };
    sessions(2.0).await;
    sleep(Duration::from_millis(500)).await;
    end(old, cable).await;
    sessions(1.0).await;
    // Longer than what the old one said could be fresh.
    sleep(Duration::from_millis(2_500)).await;
    steady.held().await;
    let pods = gateway.json("/api/v1/pods").await;
    assert_eq!(pods.as_array().map(Vec::len), Some(2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_card_is_counted_once_while_an_old_agent_leaves() {
    surge(async |old, _cable| old.leave().await.expect("with OK")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_card_is_counted_once_when_an_old_agents_connection_breaks() {
    surge(async |old, cable| {
        cable.cut();
        old.ended().await.expect_err("its connection broke");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_card_is_counted_once_when_the_new_agent_fails() {
    let gateway = TestGateway::start(TWO_PODS_OF_ONE_NODE).await;
    let _old = gateway.agent(two_at_70()).await;
    let trigger = gateway.trigger("ml/llm", &[("staleAfter", "2s")]).await;
    trigger.becomes(140.0).await;
    let steady = Steady::watch(trigger, 140.0);
    // It sees only one of the cards, and dies.
    let half = Node::new("n1").with(gpu("u1", "ml/a", 70.0));
    let new = gateway.agent(half).await;
    sleep(Duration::from_millis(500)).await;
    new.die().await;
    sleep(Duration::from_millis(2_500)).await;
    steady.held().await;
}

// === Gone and back ===

/// Asks until the value is unknown, and checks that it was `last` until then.
async fn lasts_until_stale(trigger: &Trigger, last: f64) {
    eventually("it grows stale", async || match trigger.value().await {
        Err(status) if status.code() == Code::Unavailable => Ok(()),
        Ok(value) => {
            assert_eq!(value, last, "the last value or an error");
            Err(value)
        }
        Err(status) => panic!("{status:?}"),
    })
    .await;
    refused(trigger.is_active().await, Code::Unavailable, &[]);
    assert!(trigger.spec().await.is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_agent_said_lasts_until_it_is_stale_and_then_is_unknown() {
    let gateway = TestGateway::start(TWO_PODS_OF_ONE_NODE).await;
    let cable = Cable::to(gateway.agents).await;
    let trigger = gateway.trigger("ml/llm", &[("staleAfter", "1s")]).await;
    for end in ["leave", "die", "freeze", "partition"] {
        let address = if end == "partition" { cable.address } else { gateway.agents };
        let agent = TestAgent::start(address, two_at_70()).await;
        trigger.becomes(140.0).await;
        let kept = match end {
            "leave" => agent.leave().await.map(|()| None).unwrap(),
            "die" => {
                agent.die().await;
                None
            }
            "freeze" => {
                agent.change(|node| node.frozen = true);
                Some(agent)
            }
            _ => {
                cable.hold();
                Some(agent)
            }
        };
        lasts_until_stale(&trigger, 140.0).await;
        drop(kept);
    }
    let _back = gateway.agent(two_at_70()).await;
    trigger.becomes(140.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_node_is_filled_in_and_exact_again_once_back() {
    let gateway = TestGateway::start(TWO_PODS_OF_ONE_NODE).await;
    let one = || Node::new("n1").with(gpu("u1", "ml/a", 90.0));
    let other = Node::new("n2").with(gpu("u2", "ml/b", 20.0));
    let (first, _second) = (gateway.agent(one()).await, gateway.agent(other).await);
    let trigger = gateway.trigger("ml/llm", &[("targetValue", "60"), ("staleAfter", "1s")]).await;
    trigger.becomes(110.0).await;
    first.die().await;
    // 20 is known; the other pod counts as at its target: 80 of 120.
    trigger.becomes(80.0).await;
    let _back = gateway.agent(one()).await;
    trigger.becomes(110.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gpu_that_is_handed_over_counts_for_its_new_holder_at_once() {
    let gateway = TestGateway::start(GOOD_AND_BAD).await;
    // Both pods live on node `good` as far as its agent goes.
    let agent = gateway.agent(Node::new("good").with(gpu("u1", "ai/good-0", 50.0))).await;
    let trigger = gateway.trigger("ai/good", &[]).await;
    trigger.becomes(50.0).await;
    agent.change(|node| *node.gpu("u1") = gpu("u1", "ai/other-0", 50.0));
    trigger.fails(Code::Unavailable).await;
    agent.change(|node| *node.gpu("u1") = gpu("u1", "ai/good-0", 51.0));
    trigger.becomes(51.0).await;
}

// === Whose reading it is (O18) ===

const MOVED: &str = "
workloads:
  - namespace: ml
    kind: StatefulSet
    name: llm
    replicas: 2
    pods: [{name: llm-0, uid: new, node: n2, ready: true}, {name: llm-1, uid: one, node: n3, ready: true}]
scaledObjects:
  - {namespace: ml, name: llm, target: {kind: StatefulSet, name: llm}}
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ghost_of_a_moved_pod_is_not_counted() {
    let gateway = TestGateway::start(MOVED).await;
    let ghost = Node::new("n1").with(gpu("u1", "ml/llm-0", 85.0).uid("old"));
    let _ghost = gateway.agent(ghost).await;
    let here = Node::new("n2")
        .with(gpu("u2", "ml/llm-0", 15.0).uid("new"))
        .with(gpu("u4", "ml/llm-0", 99.0).uid("old").index(1));
    let _here = gateway.agent(here).await;
    let other = Node::new("n3").with(gpu("u3", "ml/llm-1", 85.0));
    let _other = gateway.agent(other).await;
    let trigger = gateway.trigger("ml/llm", &[("targetValue", "50")]).await;
    trigger.becomes(100.0).await;
    Steady::watch_for(trigger, 100.0, Duration::from_millis(500)).await;
    let explained = gateway.explain("ml/llm").await;
    let devices = &explained["pods"][0]["devices"];
    assert_eq!(devices.as_array().unwrap().len(), 1, "{devices}");
    assert_eq!(devices[0]["uuid"], "u2");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readings_from_a_wrong_node_or_of_a_wrong_uid_alone_are_no_readings() {
    let gateway = TestGateway::start(MOVED).await;
    let wrong_node = Node::new("n1").with(gpu("u1", "ml/llm-0", 85.0).uid("new"));
    let wrong_uid = Node::new("n3").with(gpu("u3", "ml/llm-1", 85.0).uid("zero"));
    let _agents = [gateway.agent(wrong_node).await, gateway.agent(wrong_uid).await];
    let trigger = gateway.trigger("ml/llm", &[]).await;
    sleep(Duration::from_millis(500)).await;
    refused(trigger.value().await, Code::Unavailable, &[]);
    assert_eq!(gateway.get("/readyz").await.0, 503);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_card_two_nodes_claim_is_the_pods_own_nodes_and_the_conflict_is_told() {
    let gateway = TestGateway::start(MOVED).await;
    let thief = Node::new("n1").with(gpu("u2", "ml/llm-0", 85.0));
    let owner = Node::new("n2").with(gpu("u2", "ml/llm-0", 15.0));
    let other = Node::new("n3").with(gpu("u3", "ml/llm-1", 85.0));
    let mut agents = Vec::new();
    for node in [owner, thief, other] {
        agents.push(gateway.agent(node).await);
    }
    let trigger = gateway.trigger("ml/llm", &[]).await;
    trigger.becomes(100.0).await;
    eventually("the conflict is counted", async || {
        match gateway.metric("gpu_gateway_device_conflicts", "").await {
            1.0 => Ok(()),
            other => Err(other),
        }
    })
    .await;
    assert_eq!(trigger.value().await.unwrap(), 100.0);
    let nodes = gateway.json("/api/v1/nodes").await;
    assert!(nodes[0]["reason"].as_str().unwrap().contains("u2"), "{nodes}");
    let explained = gateway.explain("ml/llm").await;
    let expected = "device u2 of llm-0 is claimed by nodes n1 and n2, and only one can have it";
    let warnings = explained["warnings"].as_array().unwrap();
    assert!(warnings.iter().any(|warning| warning == expected), "{explained}");
}

// === Shares and engines ===

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shared_gpu_is_split_and_its_heat_is_not() {
    let gateway = TestGateway::start(TWO_PODS_OF_ONE_NODE).await;
    let shared = |first: Option<f64>| {
        gpu("u1", "ml/a", 80.0)
            .shared(first)
            .held_by("ml/b", 0.5)
            .reads(Metric::Temperature, 60.0)
            .reads(Metric::PowerDraw, 300.0)
    };
    let agent = gateway.agent(Node::new("n1").with(shared(Some(0.5)))).await;
    let keda = gateway.connect().await;
    let load = keda.trigger("ml/llm", &[]);
    load.becomes(80.0).await;
    for (metric, value) in [("temperature", 120.0), ("power_draw", 300.0)] {
        let metadata = [("metricType", metric), ("targetValue", "100")];
        assert_eq!(keda.trigger("ml/llm", &metadata).value().await.unwrap(), value);
    }
    agent.change(|node| *node.gpu("u1") = shared(Some(0.25)));
    load.becomes(60.0).await;
    // A share that cannot be told is no full share: that pod is missing (40 + 80 of 160).
    agent.change(|node| *node.gpu("u1") = shared(None));
    load.becomes(120.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pods_own_gpus_are_averaged_or_summed_as_the_metric_wants() {
    let gateway = TestGateway::start(TWO_PODS_OF_ONE_NODE).await;
    let node = Node::new("n1")
        .with(gpu("u1", "ml/a", 100.0).reads(Metric::PowerDraw, 100.0))
        .with(gpu("u2", "ml/a", 50.0).index(1).reads(Metric::PowerDraw, 200.0))
        .with(gpu("u3", "ml/b", 10.0).index(2).reads(Metric::PowerDraw, 50.0));
    let _agent = gateway.agent(node).await;
    let keda = gateway.connect().await;
    for (metadata, value) in [
        (&[][..], 85.0),
        (&[("metricType", "power_draw"), ("targetValue", "300")], 350.0),
        (&[("aggregation", "sum")], 160.0),
        (&[("gpuIndex", "0")], 110.0),
    ] {
        keda.trigger("ml/llm", metadata).becomes(value).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn engines_add_up_over_pods_and_a_failed_scrape_is_not_zero() {
    let gateway = TestGateway::start(TWO_PODS_OF_ONE_NODE).await;
    let node = Node::new("n1").engine("ml/a", Metric::RequestsWaiting, 8.0).engine(
        "ml/b",
        Metric::RequestsWaiting,
        1.0,
    );
    let agent = gateway.agent(node).await;
    let metadata = [("metricType", "requests_waiting"), ("targetValue", "5")];
    let trigger = gateway.trigger("ml/llm", &metadata).await;
    trigger.becomes(9.0).await;
    agent.change(|node| {
        let failed = Reading::Failed("HTTP 503".into());
        node.engine_reads("ml/b", Metric::RequestsWaiting, failed);
    });
    // 8 alone is below 10, with the other at its target it is above: nothing moves.
    trigger.becomes(10.0).await;
}

#[tokio::test]
async fn an_agent_that_hurries_and_breaks_off_is_heard_to_its_last_word() {
    let gateway = TestGateway::start(GOOD_AND_BAD).await;
    let cable = Cable::to(gateway.agents).await;
    let mut uplink = Uplink::open(cable.address).await;
    uplink.say(bad_node().hello()).await;
    uplink.say(bad_node().inventory_message(1)).await;
    for load in std::iter::repeat_n(7, 160).chain([42]) {
        let node = Node::new("bad").with(gpu("u-bad", "ai/bad-0", f64::from(load)));
        uplink.say(node.sample_message(1)).await;
    }
    // All of it has come by then, and is not all read yet.
    eventually("the agent is slowed down", async || {
        match gateway.metric("gpu_gateway_uplink_slowed_total", "").await {
            now if now > 0.0 => Ok(()),
            now => Err(now),
        }
    })
    .await;
    sleep(Duration::from_millis(200)).await;
    cable.cut();
    gateway.trigger("ai/bad", &[]).await.becomes(42.0).await;
}
