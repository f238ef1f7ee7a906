//! StreamIsActive and StreamMetricSpec: edges only, ended cleanly, freed when nobody listens.

use std::time::Duration;

use gateway::config::ServeConfig;
use proto::keda::IsActiveResponse;
use shared::metric::Metric;
use shared::reading::Reading;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tonic::{Code, Request, Status, Streaming};

use crate::support::{
    Cable, Keda, Node, ONE_POD, Steady, TestAgent, TestGateway, Trigger, eventually, gpu,
    only_spec, refused, soon,
};

/// Short enough for a test to see activity end.
const SHORT: (&str, &str) = ("activationWindow", "1s");

/// The gauge of open streams.
async fn open_streams(gateway: &TestGateway) -> f64 {
    gateway.metric("gpu_gateway_rpc_streams", "").await
}

async fn streams_are(gateway: &TestGateway, expected: f64) {
    eventually(&format!("{expected} streams are open"), async || {
        match open_streams(gateway).await {
            open if open == expected => Ok(()),
            open => Err(open),
        }
    })
    .await;
}

/// A gateway whose one pod has that utilisation.
async fn one_pod_at(utilization: f64) -> (TestGateway, TestAgent) {
    let gateway = TestGateway::start(ONE_POD).await;
    let agent = gateway.agent(Node::new("n1").with(gpu("u1", "ai/vllm-0", utilization))).await;
    gateway.is_ready().await;
    (gateway, agent)
}

async fn says_true(stream: &mut Streaming<IsActiveResponse>) {
    let message = soon("a message", stream.message()).await;
    assert!(message.expect("no error").expect("the stream goes on").result);
}

/// Everything the stream says within `time`, which it outlives.
async fn said_within(stream: &mut Streaming<IsActiveResponse>, time: Duration) -> Vec<bool> {
    let deadline = Instant::now() + time;
    let mut said = Vec::new();
    while let Ok(message) = timeout_at(deadline, stream.message()).await {
        let message = message.expect("no error").expect("the stream goes on");
        said.push(message.result);
    }
    said
}

async fn ends(stream: &mut Streaming<IsActiveResponse>) -> Result<(), Status> {
    soon("the stream ends", async {
        while stream.message().await?.is_some() {}
        Ok(())
    })
    .await
}

async fn is_inactive(trigger: &Trigger) {
    eventually("it is inactive", async || match trigger.is_active().await {
        Ok(false) => Ok(()),
        other => Err(other),
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_true_on_opening_if_active_and_nothing_more_while_nothing_changes() {
    let (gateway, agent) = one_pod_at(60.0).await;
    let mut stream = gateway.trigger("ai/vllm-so", &[SHORT]).await.stream().await.unwrap();
    // The load moves all the time, the activity does not.
    let wobble = async {
        loop {
            for load in [60.0, 61.0, 20.0] {
                agent.reads("u1", load);
                sleep(Duration::from_millis(70)).await;
            }
        }
    };
    let said = tokio::select! {
        said = said_within(&mut stream, Duration::from_secs(4)) => said,
        () = wobble => unreachable!("it goes on for ever"),
    };
    assert_eq!(said, [true]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_edge_from_inactive_to_active_is_said_and_it_is_pushed() {
    let (gateway, agent) = one_pod_at(0.0).await;
    let trigger = gateway.trigger("ai/vllm-so", &[SHORT]).await;
    is_inactive(&trigger).await;
    let mut stream = trigger.stream().await.unwrap();
    let said = said_within(&mut stream, Duration::from_millis(1_500)).await;
    assert_eq!(said, [false; 0], "inactive on opening");
    for _ in 0..2 {
        agent.reads("u1", 30.0);
        says_true(&mut stream).await;
        agent.reads("u1", 0.0);
        is_inactive(&trigger).await;
        let said = said_within(&mut stream, Duration::from_millis(1_200)).await;
        assert_eq!(said, [false; 0], "never false");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_load_right_after_keda_was_told_inactive_is_an_edge_of_the_stream_too() {
    let (gateway, agent) = one_pod_at(0.0).await;
    let trigger = gateway.trigger("ai/vllm-so", &[SHORT]).await;
    agent.reads("u1", 30.0);
    let mut stream = trigger.stream().await.unwrap();
    for _ in 0..3 {
        says_true(&mut stream).await;
        agent.reads("u1", 0.0);
        // No pause: the stream itself may not have looked yet.
        is_inactive(&trigger).await;
        agent.reads("u1", 30.0);
    }
    says_true(&mut stream).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_triggers_of_the_same_object_are_no_edges_of_the_stream() {
    let (gateway, agent) = one_pod_at(0.0).await;
    let trigger = gateway.trigger("ai/vllm-so", &[SHORT]).await;
    is_inactive(&trigger).await;
    let mut stream = trigger.stream().await.unwrap();
    agent.reads("u1", 30.0);
    says_true(&mut stream).await;
    for target in 1..40 {
        let target = target.to_string();
        let other = gateway.trigger("ai/vllm-so", &[("targetValue", &target), SHORT]).await;
        assert!(other.is_active().await.unwrap());
    }
    let said = said_within(&mut stream, Duration::from_millis(1_500)).await;
    assert_eq!(said, [false; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_between_two_polls_reaches_the_stream() {
    let (gateway, agent) = one_pod_at(0.0).await;
    let trigger = gateway.trigger("ai/vllm-so", &[SHORT]).await;
    is_inactive(&trigger).await;
    let mut stream = trigger.stream().await.unwrap();
    // Asked under another name, so that nobody asks about this trigger meanwhile.
    let other = gateway.trigger("ai/vllm-so", &[("metricName", "other")]).await;
    agent.reads("u1", 90.0);
    other.becomes(90.0).await;
    agent.reads("u1", 0.0);
    other.becomes(0.0).await;
    says_true(&mut stream).await;
    // And who asks after the burst still sees it.
    assert!(trigger.is_active().await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_known_is_silence_and_no_edge() {
    let (gateway, agent) = one_pod_at(60.0).await;
    let trigger = gateway.trigger("ai/vllm-so", &[SHORT, ("staleAfter", "1s")]).await;
    let mut stream = trigger.stream().await.unwrap();
    says_true(&mut stream).await;
    agent.change(|node| node.frozen = true);
    trigger.fails(Code::Unavailable).await;
    let said = said_within(&mut stream, Duration::from_millis(1_500)).await;
    assert_eq!(said, [false; 0], "while nothing is known");
    agent.change(|node| node.frozen = false);
    trigger.becomes(60.0).await;
    let said = said_within(&mut stream, Duration::from_millis(1_500)).await;
    assert_eq!(said, [false; 0], "it was active before");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_opened_before_anything_is_known_speaks_when_it_is() {
    let gateway = TestGateway::start("{}").await;
    let trigger = gateway.trigger("ai/vllm-so", &[SHORT]).await;
    let mut stream = trigger.stream().await.unwrap();
    let silence = timeout(Duration::from_millis(300), stream.message()).await;
    assert!(silence.is_err(), "no such ScaledObject yet");
    gateway.rewrite(ONE_POD);
    let node = Node::new("n1").with(gpu("u1", "ai/vllm-0", 60.0));
    let _agent = gateway.agent(node).await;
    says_true(&mut stream).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_on_a_node_that_joins_later_is_followed() {
    let (gateway, agent) = one_pod_at(0.0).await;
    let trigger = gateway.trigger("ai/vllm-so", &[SHORT]).await;
    is_inactive(&trigger).await;
    let mut stream = trigger.stream().await.unwrap();
    gateway.rewrite(
        "
workloads:
  - {namespace: ai, kind: Deployment, name: vllm, replicas: 2, pods: [{name: vllm-0, ready: true}, {name: vllm-1, ready: true}]}
scaledObjects:
  - {namespace: ai, name: vllm-so, target: {kind: Deployment, name: vllm}}
",
    );
    let other = Node::new("n2").with(gpu("u2", "ai/vllm-1", 0.0));
    let other = gateway.agent(other).await;
    agent.leave().await.unwrap();
    let back = Node::new("n1").with(gpu("u1", "ai/vllm-0", 0.0));
    let _back = gateway.agent(back).await;
    trigger.becomes(0.0).await;
    is_inactive(&trigger).await;
    while timeout(Duration::from_millis(100), stream.message()).await.is_ok() {}
    other.reads("u2", 50.0);
    says_true(&mut stream).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broken_metadata_end_the_stream_with_invalid_argument() {
    let (gateway, _agent) = one_pod_at(60.0).await;
    let keda = gateway.connect().await;
    let broken = keda.trigger("ai/vllm-so", &[("pollIntervalSeconds", "0")]);
    broken.is_refused(&["pollIntervalSeconds"]).await;
    let nameless = keda.trigger("ai/vllm-so", &[("targetValue", "abc")]);
    let end = match nameless.spec_stream().await {
        Err(status) => Err(status),
        Ok(mut stream) => soon("it ends", stream.message()).await,
    };
    refused(end, Code::InvalidArgument, &["targetValue"]);
    streams_are(&gateway, 0.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unsupported_metric_leaves_the_stream_open_and_silent() {
    let (gateway, agent) = one_pod_at(60.0).await;
    let trigger = gateway.trigger("ai/vllm-so", &[("metricType", "sm_activity")]).await;
    refused(trigger.is_active().await, Code::FailedPrecondition, &[]);
    let mut stream = trigger.stream().await.unwrap();
    let silence = timeout(Duration::from_millis(500), stream.message()).await;
    assert!(silence.is_err());
    agent.change(|node| {
        let able = node.gpu("u1").clone().reads(Metric::SmActivity, 5.0);
        *node.gpu("u1") = able;
    });
    says_true(&mut stream).await;
    agent.change(|node| {
        let gone = Reading::Failed("gone".into());
        *node.gpu("u1") = node.gpu("u1").clone().reading(Metric::SmActivity, gone);
    });
    trigger.fails(Code::Unavailable).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_and_vanished_clients_free_their_streams() {
    let (gateway, _agent) = one_pod_at(60.0).await;
    let cable = Cable::to(gateway.keda).await;
    let polite = gateway.trigger("ai/vllm-so", &[]).await;
    let vanishing = Keda::connect(cable.address).await.trigger("ai/vllm-so", &[]);
    let mut held = Vec::new();
    for trigger in [&polite, &vanishing] {
        let mut stream = trigger.stream().await.unwrap();
        says_true(&mut stream).await;
        held.push((stream, trigger.spec_stream().await.unwrap()));
    }
    streams_are(&gateway, 4.0).await;
    drop(held.remove(0));
    streams_are(&gateway, 2.0).await;
    assert!(polite.is_active().await.unwrap(), "the connection lives on");
    cable.cut();
    streams_are(&gateway, 0.0).await;
}

/// KEDA's streams have no deadline; one that has is ended by the gateway, not only by its client.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_whose_own_time_is_over_ends_with_deadline_exceeded_and_is_freed() {
    let (gateway, _agent) = one_pod_at(60.0).await;
    let trigger = gateway.trigger("ai/vllm-so", &[]).await;
    let limited = || {
        let mut request = Request::new(trigger.reference.clone());
        request.metadata_mut().insert("grpc-timeout", "300m".parse().unwrap());
        request
    };
    let call = async { trigger.client.clone().stream_is_active(limited()).await };
    let mut activity = soon("a stream", call).await.unwrap().into_inner();
    let call = async { trigger.client.clone().stream_metric_spec(limited()).await };
    let mut specs = soon("a stream", call).await.unwrap().into_inner();
    refused(ends(&mut activity).await, Code::DeadlineExceeded, &[]);
    let end = soon("the specs end", async {
        while specs.message().await?.is_some() {}
        Ok::<_, Status>(())
    });
    refused(end.await, Code::DeadlineExceeded, &[]);
    streams_are(&gateway, 0.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn specs_are_streamed_once_equal_to_get_metric_spec_and_held_open() {
    let (gateway, _agent) = one_pod_at(60.0).await;
    let keda = gateway.connect().await;
    let mut streams = Vec::new();
    for metadata in [&[][..], &[("profile", "vllm")], &[("agregation", "max")]] {
        let trigger = keda.trigger("ai/vllm-so", metadata);
        let mut stream = trigger.spec_stream().await.unwrap();
        let first = soon("the specs", stream.message()).await.unwrap().unwrap();
        assert_eq!(only_spec(first), trigger.spec().await.unwrap());
        streams.push(stream);
    }
    for stream in &mut streams {
        let silence = timeout(Duration::from_millis(300), stream.message()).await;
        assert!(silence.is_err(), "once, then held open");
    }
    gateway.begin_shutdown();
    for mut stream in streams {
        let end = soon("the stream ends", stream.message()).await;
        assert!(end.unwrap().is_none(), "with OK");
    }
    gateway.has_stopped().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutdown_ends_five_hundred_streams_with_ok_and_the_process_stops() {
    let (gateway, agent) = one_pod_at(60.0).await;
    let keda = gateway.connect().await;
    let active = keda.trigger("ai/vllm-so", &[]);
    let silent = keda.trigger("ai/unknown", &[]);
    let mut streams = Vec::new();
    for at in 0..500 {
        let trigger = if at % 2 == 0 { &active } else { &silent };
        streams.push(trigger.stream().await.unwrap());
    }
    streams_are(&gateway, 500.0).await;
    assert_eq!(active.value().await.unwrap(), 60.0, "beside 500 streams");
    // One more that does not read what it is sent.
    let _lazy = gateway.trigger("ai/vllm-so", &[]).await.stream().await.unwrap();
    gateway.begin_shutdown();
    for stream in &mut streams {
        ends(stream).await.expect("with OK");
    }
    agent.ended().await.expect("the agent's stream too");
    // Before it would close connections by force.
    let stopped = timeout(Duration::from_secs(9), gateway.has_stopped()).await;
    stopped.expect("in time").unwrap();
}

/// KEDA has one connection to a scaler, for whatever number of ScaledObjects.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_streams_on_one_connection_leave_room_for_calls_and_each_has_its_edge() {
    let gateway = TestGateway::start(
        "
workloads:
  - {namespace: ai, kind: Deployment, name: vllm, replicas: 1, pods: [{name: vllm-0, ready: true}]}
  - {namespace: ai, kind: Deployment, name: calm, replicas: 1, pods: [{name: calm-0, ready: true}]}
scaledObjects:
  - {namespace: ai, name: vllm-so, target: {kind: Deployment, name: vllm}}
  - {namespace: ai, name: calm-so, target: {kind: Deployment, name: calm}}
",
    )
    .await;
    let node = Node::new("n1").with(gpu("u1", "ai/vllm-0", 0.0));
    let agent = gateway.agent(node.with(gpu("u2", "ai/calm-0", 42.0))).await;
    gateway.is_ready().await;
    let keda = gateway.connect().await;
    let calm = keda.trigger("ai/calm-so", &[]);
    let alone = median_of_exact_calls(&calm, 42.0).await;
    let mut streams = Vec::new();
    for of in ["a", "b", "c", "d"] {
        let trigger = keda.trigger("ai/vllm-so", &[SHORT, ("metricName", of)]);
        is_inactive(&trigger).await;
        for _ in 0..250 {
            streams.push(trigger.stream().await.unwrap());
        }
    }
    streams_are(&gateway, 1_000.0).await;
    let beside = median_of_exact_calls(&calm, 42.0).await;
    println!("a call alone {alone:?}, beside 1,000 streams {beside:?} (medians)");
    // Calls go on being exact while every stream is told.
    let steady = Steady::watch(calm, 42.0);
    agent.reads("u1", 30.0);
    for stream in &mut streams {
        says_true(stream).await;
    }
    steady.held().await;
    drop(streams);
    streams_are(&gateway, 0.0).await;
}

/// A hundred calls that all give `expected`, and what half of them took at most.
async fn median_of_exact_calls(trigger: &Trigger, expected: f64) -> Duration {
    let mut times = Vec::new();
    for _ in 0..100 {
        let begun = Instant::now();
        assert_eq!(trigger.value().await.expect("a value"), expected);
        times.push(begun.elapsed());
    }
    times.sort();
    times[times.len() / 2]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_says_nothing_cannot_hold_up_the_shutdown() {
    let (gateway, _agent) = one_pod_at(60.0).await;
    let silent = tokio::net::TcpStream::connect(gateway.keda).await.unwrap();
    let keda = gateway.connect().await;
    let mut stream = keda.trigger("ai/vllm-so", &[]).stream().await.unwrap();
    says_true(&mut stream).await;
    gateway.begin_shutdown();
    ends(&mut stream).await.expect("with OK");
    gateway.has_stopped().await.unwrap();
    drop(silent);
}

/// A client that never leaves would never meet a newer replica.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_connection_is_left_and_its_streams_end_with_ok() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("directory.yaml");
    std::fs::write(&file, ONE_POD).unwrap();
    let mut config = ServeConfig::local(file);
    config.connection_age = Duration::from_secs(1);
    let gateway = TestGateway::try_start_with(folder, config).await.unwrap();
    let _agent = gateway.agent(Node::new("n1").with(gpu("u1", "ai/vllm-0", 60.0))).await;
    let trigger = gateway.trigger("ai/vllm-so", &[]).await;
    trigger.becomes(60.0).await;
    for _ in 0..2 {
        let mut stream = eventually("a stream", async || trigger.stream().await).await;
        let mut specs = eventually("specs", async || trigger.spec_stream().await).await;
        ends(&mut stream).await.expect("with OK");
        soon("the specs", specs.message()).await.unwrap().unwrap();
        let end = soon("the specs' end", specs.message()).await;
        assert!(end.unwrap().is_none(), "with OK");
        trigger.becomes(60.0).await;
    }
    streams_are(&gateway, 0.0).await;
}
