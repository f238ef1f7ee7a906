//! KEDA's unary calls over real gRPC, with real agents behind them.

use std::time::Duration;

use proto::keda::external_scaler_client::ExternalScalerClient;
use proto::keda::{GetMetricsRequest, ScaledObjectRef};
use shared::metric::Metric;
use shared::reading::Reading;
use tonic::{Code, Request, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::support::{
    Keda, Node, ONE_POD, Steady, TestGateway, Trigger, eventually, gpu, refused, soon,
};

/// Answers without the hold-off, so that tests see activity change at once.
const AT_ONCE: (&str, &str) = ("activationWindow", "0s");

// === Right totals ===

const HOT_AND_COOL: &str = "
workloads:
  - namespace: ml
    kind: Deployment
    name: llm
    replicas: 3
    pods: [{name: llm-0, ready: true, node: n1}, {name: llm-1, ready: true, node: n2}, {name: llm-2, ready: true, node: n3}]
  - {namespace: ml, kind: Deployment, name: other, replicas: 1, pods: [{name: other-0, ready: true, node: n1}]}
scaledObjects:
  - {namespace: ml, name: llm-so, target: {kind: Deployment, name: llm}}
  - {namespace: ml, name: llm-value, metricType: Value, target: {kind: Deployment, name: llm}}
";

async fn hot_and_cool(gateway: &TestGateway) -> [crate::support::TestAgent; 3] {
    let n1 = Node::new("n1")
        .with(gpu("u1", "ml/llm-0", 90.0))
        .with(gpu("u9", "ml/other-0", 100.0).index(1));
    let n2 = Node::new("n2").with(gpu("u2", "ml/llm-1", 10.0));
    let n3 = Node::new("n3").with(gpu("u3", "ml/llm-2", 10.0));
    [gateway.agent(n1).await, gateway.agent(n2).await, gateway.agent(n3).await]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_new_connections_get_the_same_total_of_three_nodes_without_the_strangers_gpu() {
    let gateway = TestGateway::start(HOT_AND_COOL).await;
    let _agents = hot_and_cool(&gateway).await;
    gateway.is_ready().await;
    let target = [("targetValue", "50")];
    for _ in 0..50 {
        let trigger = gateway.trigger("ml/llm-so", &target).await;
        assert_eq!(trigger.spec().await.unwrap().target_size_float, 50.0);
        assert_eq!(trigger.value().await.unwrap(), 110.0);
        assert!(trigger.is_active().await.unwrap());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flat_aggregations_are_multiplied_for_average_value_and_literal_for_value() {
    let gateway = TestGateway::start(HOT_AND_COOL).await;
    let _agents = hot_and_cool(&gateway).await;
    gateway.is_ready().await;
    let keda = gateway.connect().await;
    for (object, aggregation, value) in [
        ("ml/llm-so", "max", 270.0),
        ("ml/llm-so", "min", 30.0),
        ("ml/llm-so", "avg", 110.0),
        ("ml/llm-so", "sum", 110.0),
        ("ml/llm-value", "max", 90.0),
        ("ml/llm-value", "min", 10.0),
        ("ml/llm-value", "avg", 36.667),
        ("ml/llm-value", "total", 36.667),
    ] {
        let metadata = [("targetValue", "50"), ("aggregation", aggregation)];
        let trigger = keda.trigger(object, &metadata);
        let told = trigger.value().await.unwrap();
        assert_eq!(told, value, "{object} {aggregation}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn terminating_and_completed_pods_do_not_count() {
    let gateway = TestGateway::start(
        "
workloads:
  - namespace: ai
    kind: Deployment
    name: vllm
    replicas: 1
    pods:
      - {name: vllm-0, ready: true}
      - {name: vllm-1, ready: true, terminating: true}
      - {name: vllm-2, ready: false, phase: Succeeded}
      - {name: vllm-3, ready: false, phase: Failed}
scaledObjects:
  - {namespace: ai, name: vllm-so, target: {kind: Deployment, name: vllm}}
",
    )
    .await;
    let mut node = Node::new("n1");
    for at in 0..4_u8 {
        let holder = format!("ai/vllm-{at}");
        node = node.with(gpu(&format!("u{at}"), &holder, 50.0 + f64::from(at)));
    }
    let _agent = gateway.agent(node).await;
    gateway.is_ready().await;
    let trigger = gateway.trigger("ai/vllm-so", &[]).await;
    assert_eq!(trigger.value().await.unwrap(), 50.0);
    let explained = gateway.explain("ai/vllm-so").await;
    assert_eq!(explained["pods"].as_array().unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn namesakes_in_other_namespaces_and_look_alikes_are_not_mixed_up() {
    let gateway = TestGateway::start(
        "
workloads:
  - {namespace: team-a, kind: Deployment, name: llama, replicas: 1, pods: [{name: llama-0, ready: true}]}
  - {namespace: team-a, kind: StatefulSet, name: llama, replicas: 1, pods: [{name: llama-set-0, ready: true}]}
  - {namespace: team-a, kind: Deployment, name: llama-0, replicas: 1, pods: [{name: llama-0-0, ready: true}]}
  - {namespace: team-b, kind: Deployment, name: llama, replicas: 1, pods: [{name: llama-0, ready: true}]}
scaledObjects:
  - {namespace: team-a, name: scale-me, target: {kind: Deployment, name: llama}}
  - {namespace: team-a, name: scale-set, target: {kind: StatefulSet, name: llama}}
  - {namespace: team-a, name: scale-alike, target: {kind: Deployment, name: llama-0}}
  - {namespace: team-b, name: scale-me, target: {kind: Deployment, name: llama}}
",
    )
    .await;
    let node = Node::new("n1")
        .with(gpu("u1", "team-a/llama-0", 90.0))
        .with(gpu("u2", "team-a/llama-set-0", 40.0))
        .with(gpu("u3", "team-a/llama-0-0", 100.0))
        .with(gpu("u4", "team-b/llama-0", 5.0));
    let _agent = gateway.agent(node).await;
    gateway.is_ready().await;
    let keda = gateway.connect().await;
    for (object, value) in [
        ("team-a/scale-me", 90.0),
        ("team-a/scale-set", 40.0),
        ("team-a/scale-alike", 100.0),
        ("team-b/scale-me", 5.0),
    ] {
        let trigger = keda.trigger(object, &[]);
        assert_eq!(trigger.value().await.unwrap(), value, "{object}");
    }
    let stranger = keda.trigger("team-b/scale-set", &[]);
    refused(stranger.value().await, Code::NotFound, &["team-b/scale-set"]);
}

// === Metadata: typing mistakes and numbers from hell (O13, O14) ===

/// A gateway with one pod at 60 %, and the connection that asks it.
async fn one_pod_at_60() -> (TestGateway, crate::support::TestAgent, Keda) {
    let gateway = TestGateway::start(ONE_POD).await;
    let agent = gateway.agent(Node::new("n1").with(gpu("u1", "ai/vllm-0", 60.0))).await;
    gateway.is_ready().await;
    let keda = gateway.connect().await;
    (gateway, agent, keda)
}

async fn a_good_call_works(keda: &Keda) {
    let good = keda.trigger("ai/vllm-so", &[]);
    assert_eq!(good.value().await.expect("a value"), 60.0);
    assert!(good.is_active().await.expect("an activity"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn typing_mistakes_are_refused_with_the_key_the_word_and_the_nearest_good_one() {
    let (_gateway, _agent, keda) = one_pod_at_60().await;
    let spec_ok = true;
    for (key, value, words, spec_is_known) in [
        ("profil", "vllm", ["profil", "profile"], spec_ok),
        ("profile", "vllm-inferense", ["vllm-inferense", "vllm-inference"], false),
        ("metricType", "gpu_utilisation", ["gpu_utilisation", "gpu_utilization"], false),
        ("aggregation", "mean", ["mean", "avg"], spec_ok),
        ("targetvalue", "70", ["targetvalue", "targetValue"], spec_ok),
        ("agregation", "max", ["agregation", "aggregation"], spec_ok),
        ("metricType", "AverageValue", ["AverageValue", "belongs beside `type:`"], false),
        ("metricType", "Value", ["Value", "belongs beside `type:`"], false),
        ("metricType", "Utilization", ["Utilization", "belongs beside `type:`"], false),
        ("windowFunction", "median", ["median", "avg"], spec_ok),
        ("metricName", "", ["metricName", "empty"], false),
        ("metricName", "GPU/Load", ["metricName", "lower-case"], false),
    ] {
        let trigger = keda.trigger("ai/vllm-so", &[(key, value)]);
        trigger.is_refused(&[key, words[0], words[1]]).await;
        match spec_is_known {
            true => assert!(trigger.spec().await.is_ok(), "{key}: {value}"),
            false => refused(trigger.spec().await, Code::InvalidArgument, &[key, words[1]]),
        }
        a_good_call_works(&keda).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contradicting_targets_are_refused_naming_both_keys() {
    let (_gateway, _agent, keda) = one_pod_at_60().await;
    let both = [("targetGpuUtilization", "70"), ("targetMemoryUtilization", "90")];
    let differing = [("targetGpuUtilization", "70"), ("targetValue", "90")];
    for metadata in [both, differing] {
        let words = [metadata[0].0, metadata[1].0];
        let trigger = keda.trigger("ai/vllm-so", &metadata);
        refused(trigger.spec().await, Code::InvalidArgument, &words);
        trigger.is_refused(&words).await;
    }
    a_good_call_works(&keda).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kedas_own_keys_and_from_env_keys_are_accepted() {
    let (_gateway, _agent, keda) = one_pod_at_60().await;
    for (metadata, target) in [
        (&[("enableTLS", "true"), ("caCert", "x"), ("unsafeSsl", "true")][..], 80.0),
        (&[("targetValueFromEnv", "70")], 70.0),
        (&[("somethingElseFromEnv", "x")], 80.0),
        (&[("targetValue", " 70 ")], 70.0),
    ] {
        let trigger = keda.trigger("ai/vllm-so", metadata);
        let spec = trigger.spec().await.unwrap();
        assert_eq!(spec.target_size_float, target, "{metadata:?}");
        assert_eq!(spec.metric_name, "gpu_utilization", "{metadata:?}");
        assert_eq!(trigger.value().await.unwrap(), 60.0, "{metadata:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn targets_that_are_no_numbers_are_refused_by_every_call() {
    let (_gateway, _agent, keda) = one_pod_at_60().await;
    for (target, reason) in [
        ("80%", "write 80"),
        ("0", "0.001"),
        ("-5", "0.001"),
        ("NaN", "finite"),
        ("inf", "finite"),
        ("1e400", "out of range"),
        ("9223372036854775808", "out of range"),
        ("0.0001", "0.001"),
        ("", "empty"),
        ("0,8", "write 0.8"),
        ("1_000", "write 1000"),
        ("８０", "ASCII"),
        ("abc", "not a number"),
        ("0x50", "write 80"),
    ] {
        let trigger = keda.trigger("ai/vllm-so", &[("targetValue", target)]);
        let words = ["targetValue", reason];
        refused(trigger.spec().await, Code::InvalidArgument, &words);
        trigger.is_refused(&words).await;
        a_good_call_works(&keda).await;
    }
    let good = keda.trigger("ai/vllm-so", &[("targetValue", "80")]);
    assert_eq!(good.spec().await.unwrap().target_size_float, 80.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_broken_numbers_leave_the_spec_answerable() {
    let (_gateway, _agent, keda) = one_pod_at_60().await;
    for (key, value) in [
        ("activationThreshold", "-1"),
        ("activationThreshold", "NaN"),
        ("gpuIndex", "-2"),
        ("gpuIndex", "0.5"),
        ("gpuIndex", "99999999999999999999"),
        ("pollIntervalSeconds", "0"),
        ("pollIntervalSeconds", "-1"),
        ("pollIntervalSeconds", "9223372037"),
        ("pollIntervalSeconds", "9999999999999"),
        ("staleAfter", "10"),
        ("activationWindow", "-5s"),
    ] {
        let trigger = keda.trigger("ai/vllm-so", &[(key, value)]);
        assert_eq!(trigger.spec().await.unwrap().target_size_float, 80.0);
        trigger.is_refused(&[key, value]).await;
        a_good_call_works(&keda).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_with_much_to_say_still_arrives_as_one() {
    let (_gateway, _agent, keda) = one_pod_at_60().await;
    let long = "\u{1f4a5}".repeat(500);
    let metadata: Vec<_> =
        gateway::trigger::spec::KEYS.iter().map(|key| (key.name, long.as_str())).collect();
    let trigger = keda.trigger("ai/vllm-so", &metadata);
    refused(trigger.spec().await, Code::InvalidArgument, &[]);
    trigger.is_refused(&[]).await;
    a_good_call_works(&keda).await;
}

// === Malformed requests ===

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn empty_requests_are_refused_and_harm_nobody() {
    let (_gateway, _agent, keda) = one_pod_at_60().await;
    let mut client = keda.client.clone();
    let empty = client.get_metrics(GetMetricsRequest::default()).await;
    refused(empty, Code::InvalidArgument, &["scaledObjectRef"]);
    let good = keda.trigger("ai/vllm-so", &[]).reference;
    for reference in [
        ScaledObjectRef::default(),
        ScaledObjectRef { name: String::new(), ..good.clone() },
        ScaledObjectRef { namespace: String::new(), ..good.clone() },
        ScaledObjectRef { name: "x".repeat(10_000), ..good.clone() },
    ] {
        let client = keda.client.clone();
        let trigger = Trigger { client, reference };
        refused(trigger.spec().await, Code::InvalidArgument, &["name"]);
        refused(trigger.metric("gpu_utilization").await, Code::InvalidArgument, &["name"]);
        refused(trigger.is_active().await, Code::InvalidArgument, &["name"]);
        refused(trigger.stream().await.map(|_| ()), Code::InvalidArgument, &["name"]);
        refused(trigger.spec_stream().await.map(|_| ()), Code::InvalidArgument, &["name"]);
    }
    a_good_call_works(&keda).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn oversize_metadata_are_refused_and_harm_nobody() {
    let (gateway, _agent, keda) = one_pod_at_60().await;
    let megabyte = "x".repeat(1 << 20);
    let large = keda.trigger("ai/vllm-so", &[("targetValue", &megabyte)]);
    let names: Vec<String> = (0..200).map(|at| format!("key{at}")).collect();
    let many: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "1")).collect();
    let many = keda.trigger("ai/vllm-so", &many);
    for trigger in [large, many] {
        for refusal in [
            trigger.metric("gpu_utilization").await.map(|_| ()),
            trigger.is_active().await.map(|_| ()),
            trigger.stream().await.map(|_| ()),
        ] {
            let code = refusal.unwrap_err().code();
            let sizes = [Code::InvalidArgument, Code::OutOfRange, Code::ResourceExhausted];
            assert!(sizes.contains(&code), "{code:?}");
        }
        a_good_call_works(&keda).await;
    }
    let labels = "part=\"keda\",why=\"message\"";
    let counted = gateway.metric("gpu_gateway_calls_shed_total", labels).await;
    assert_eq!(counted, 3.0, "each call with a message too large");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_metric_is_known_whatever_keda_made_of_its_name_and_no_other_is() {
    let (_gateway, _agent, keda) = one_pod_at_60().await;
    let trigger = keda.trigger("ai/vllm-so", &[]);
    for name in ["gpu_utilization", "GPU_Utilization", "s0-gpu_utilization", "S12-GPU_UTILIZATION"]
    {
        let value = trigger.metric(name).await.unwrap();
        assert_eq!(value.metric_value_float, 60.0, "{name}");
    }
    for name in [
        "",
        "memory_used_percent",
        "gpu_utilization-max",
        "gpu_utilization ",
        "s0-",
        "s-gpu_utilization",
        "s0-s1-gpu_utilization",
        "composite-metric",
    ] {
        let refusal = trigger.metric(name).await;
        refused(refusal, Code::InvalidArgument, &["gpu_utilization", name]);
    }
    let own = keda.trigger("ai/vllm-so", &[("metricName", "s1-load.gpu")]);
    assert_eq!(own.value().await.unwrap(), 60.0);
    assert_eq!(own.metric("s0-s1-load.gpu").await.unwrap().metric_value, 60);
}

// === Specs ===

/// Metadata that mean different metrics.
const DIFFERENT: &[&[(&str, &str)]] = &[
    &[],
    &[("metricType", "memory_used_percent")],
    &[("metricType", "power_draw"), ("targetValue", "300")],
    &[("aggregation", "max")],
    &[("aggregation", "p95")],
    &[("gpuIndex", "0")],
    &[("gpuIndex", "1")],
    &[("window", "30s")],
    &[("window", "30s"), ("windowFunction", "max")],
    &[("profile", "vllm")],
    &[("metricType", "requests_waiting:5,kv_cache_usage:80")],
    &[("metricType", "requests_waiting:6,kv_cache_usage:80")],
    &[("metricName", "mine")],
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn specs_need_nothing_but_metadata_and_survive_a_restart() {
    let empty = TestGateway::start("{}").await;
    let (full, _agent, keda) = one_pod_at_60().await;
    let mut names = std::collections::HashSet::new();
    for metadata in DIFFERENT {
        let nothing_known = empty.trigger("no/such", metadata).await.spec().await;
        let spec = keda.trigger("ai/vllm-so", metadata).spec().await.unwrap();
        assert_eq!(nothing_known.unwrap(), spec, "{metadata:?}");
        assert!(names.insert(spec.metric_name), "{metadata:?}: a name of its own");
    }
    drop(full);
    let again = TestGateway::start(ONE_POD).await;
    for metadata in DIFFERENT {
        let spec = again.trigger("ai/vllm-so", metadata).await.spec().await;
        assert!(names.remove(&spec.unwrap().metric_name), "{metadata:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn targets_come_as_float_and_as_integer_of_at_least_one() {
    let gateway = TestGateway::start("{}").await;
    for (target, float, int) in [
        ("80", 80.0, 80),
        ("70.5", 70.5, 71),
        ("0.4", 0.4, 1),
        ("0.001", 0.001, 1),
        ("66.66666", 66.667, 67),
        ("2.4", 2.4, 2),
    ] {
        let metadata = [("metricType", "requests_waiting"), ("targetValue", target)];
        let spec = gateway.trigger("a/b", &metadata).await.spec().await.unwrap();
        assert_eq!(spec.target_size_float, float, "{target}");
        assert_eq!(spec.target_size, int, "{target}");
    }
}

// === Values and activity ===

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_small_load_is_never_zero_and_zero_is_zero_in_both_fields() {
    let (_gateway, agent, keda) = one_pod_at_60().await;
    let trigger = keda.trigger("ai/vllm-so", &[]);
    agent.reads("u1", 0.4);
    trigger.becomes(0.4).await;
    let small = trigger.metric("gpu_utilization").await.unwrap();
    assert_eq!((small.metric_value_float, small.metric_value), (0.4, 1));
    agent.reads("u1", 0.0);
    trigger.becomes(0.0).await;
    let zero = trigger.metric("gpu_utilization").await.unwrap();
    assert_eq!((zero.metric_value_float, zero.metric_value), (0.0, 0));
    agent.reads("u1", 33.333_333);
    trigger.becomes(33.333).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn activity_is_strictly_above_the_threshold() {
    let (_gateway, agent, keda) = one_pod_at_60().await;
    let at_threshold = keda.trigger("ai/vllm-so", &[AT_ONCE, ("activationThreshold", "60")]);
    let below = keda.trigger("ai/vllm-so", &[AT_ONCE, ("activationThreshold", "59.9")]);
    let default = keda.trigger("ai/vllm-so", &[AT_ONCE]);
    assert!(!at_threshold.is_active().await.unwrap());
    assert!(below.is_active().await.unwrap());
    assert!(default.is_active().await.unwrap());
    agent.reads("u1", 0.0);
    default.becomes(0.0).await;
    assert!(!default.is_active().await.unwrap(), "0 is not above 0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_quiet_sample_does_not_end_activity_within_the_window() {
    let (_gateway, agent, keda) = one_pod_at_60().await;
    let patient = keda.trigger("ai/vllm-so", &[]);
    let hasty = keda.trigger("ai/vllm-so", &[AT_ONCE]);
    agent.reads("u1", 0.0);
    patient.becomes(0.0).await;
    assert!(!hasty.is_active().await.unwrap());
    assert!(patient.is_active().await.unwrap(), "for 60 s by default");
    let short = keda.trigger("ai/vllm-so", &[("activationWindow", "1s")]);
    eventually("it ends after the window", async || match short.is_active().await {
        Ok(false) => Ok(()),
        other => Err(other),
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_triggers_of_one_object_asked_at_once_do_not_mix() {
    let gateway = TestGateway::start(ONE_POD).await;
    let both = gpu("u1", "ai/vllm-0", 60.0).reads(Metric::PowerDraw, 321.0);
    let _agent = gateway.agent(Node::new("n1").with(both)).await;
    gateway.is_ready().await;
    let keda = gateway.connect().await;
    let power = [("metricType", "power_draw"), ("targetValue", "300")];
    // The same name for both, so that only the metadata tells them apart.
    let named = [("metricName", "load"), ("metricType", "power_draw"), ("targetValue", "300")];
    let watched = [
        Steady::watch(keda.trigger("ai/vllm-so", &[]), 60.0),
        Steady::watch(keda.trigger("ai/vllm-so", &power), 321.0),
        Steady::watch(keda.trigger("ai/vllm-so", &named), 321.0),
        Steady::watch(keda.trigger("ai/vllm-so", &[("metricName", "load")]), 60.0),
        Steady::watch(gateway.trigger("ai/vllm-so", &power).await, 321.0),
    ];
    tokio::time::sleep(Duration::from_millis(500)).await;
    for watched in watched {
        watched.held().await;
    }
}

// === What is not there ===

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_there_is_not_found_but_has_a_spec() {
    let gateway = TestGateway::start(
        "
workloads:
  - {namespace: ai, kind: StatefulSet, name: vllm, replicas: 1, pods: [{name: vllm-0, ready: true}]}
scaledObjects:
  - {namespace: ai, name: homeless, target: {kind: Deployment, name: vllm}}
",
    )
    .await;
    let keda = gateway.connect().await;
    for (object, words) in [
        ("ai/unknown", ["ai/unknown", "ScaledObject"]),
        ("ai/homeless", ["Deployment ai/vllm", "ai/homeless"]),
    ] {
        let trigger = keda.trigger(object, &[]);
        assert_eq!(trigger.spec().await.unwrap().target_size_float, 80.0);
        refused(trigger.value().await, Code::NotFound, &words);
        refused(trigger.is_active().await, Code::NotFound, &words);
        let mut stream = trigger.stream().await.unwrap();
        let silence = tokio::time::timeout(Duration::from_millis(300), stream.message());
        assert!(silence.await.is_err(), "open and silent");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_replicas_wanted_and_none_left_is_zero_and_inactive() {
    let gateway = TestGateway::start(
        "
workloads: [{namespace: ai, kind: Deployment, name: vllm, replicas: 0}]
scaledObjects: [{namespace: ai, name: vllm-so, target: {kind: Deployment, name: vllm}, minReplicas: 0}]
",
    )
    .await;
    let trigger = gateway.trigger("ai/vllm-so", &[]).await;
    trigger.becomes(0.0).await;
    assert!(!trigger.is_active().await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn starting_pods_hold_the_value_and_stuck_ones_do_not() {
    let gateway = TestGateway::start(
        "
workloads:
  - {namespace: ai, kind: Deployment, name: new, replicas: 2, pods: [{name: new-0, ready: false}, {name: new-1, ready: false}]}
  - {namespace: ai, kind: Deployment, name: ordered, replicas: 3}
  - {namespace: ai, kind: Deployment, name: stuck, replicas: 1, pods: [{name: stuck-0, ready: false, unreadyForSeconds: 3600}]}
scaledObjects:
  - {namespace: ai, name: new, target: {name: new}}
  - {namespace: ai, name: ordered, target: {name: ordered}}
  - {namespace: ai, name: stuck, target: {name: stuck}}
",
    )
    .await;
    gateway.is_ready().await;
    let keda = gateway.connect().await;
    for (object, hold) in [("ai/new", 140.0), ("ai/ordered", 210.0)] {
        let trigger = keda.trigger(object, &[("targetValue", "70"), AT_ONCE]);
        assert_eq!(trigger.value().await.unwrap(), hold, "{object}");
        assert!(trigger.is_active().await.unwrap(), "{object}");
    }
    let stuck = keda.trigger("ai/stuck", &[]);
    refused(stuck.value().await, Code::Unavailable, &["coldStartTimeout"]);
    refused(stuck.is_active().await, Code::Unavailable, &["coldStartTimeout"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_pod_can_cancel_a_move_and_never_reverse_it() {
    let gateway = TestGateway::start(
        "
workloads:
  - {namespace: ai, kind: Deployment, name: vllm, replicas: 3, pods: [{name: vllm-0, ready: true}, {name: vllm-1, ready: true}, {name: vllm-2, ready: true}]}
scaledObjects:
  - {namespace: ai, name: vllm-so, target: {kind: Deployment, name: vllm}}
",
    )
    .await;
    let node = Node::new("n1")
        .with(gpu("u0", "ai/vllm-0", 80.0))
        .with(gpu("u1", "ai/vllm-1", 80.0))
        .with(gpu("u2", "ai/vllm-2", 80.0));
    let agent = gateway.agent(node).await;
    gateway.is_ready().await;
    let trigger = gateway.trigger("ai/vllm-so", &[("targetValue", "50")]).await;
    assert_eq!(trigger.value().await.unwrap(), 240.0);
    agent.change(|node| {
        let lost = node.gpu("u2").clone();
        *node.gpu("u2") =
            lost.reading(Metric::GpuUtilization, Reading::Failed("GPU is lost".into()));
    });
    // 160 is more than 150 whatever the third pod does.
    trigger.becomes(160.0).await;
    for (load, value) in [(60.0, 150.0), (20.0, 90.0)] {
        agent.reads("u0", load);
        agent.reads("u1", load);
        trigger.becomes(value).await;
    }
    let explained = gateway.explain("ai/vllm-so").await;
    assert_eq!(explained["coverage"]["missing"], 1);
    assert_eq!(explained["coverage"]["reporting"], 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_metric_nobody_has_is_a_failed_precondition_that_names_others() {
    let (_gateway, _agent, keda) = one_pod_at_60().await;
    for metadata in [[("metricType", "sm_activity")], [("gpuIndex", "9")]] {
        let trigger = keda.trigger("ai/vllm-so", &metadata);
        assert_eq!(trigger.spec().await.unwrap().target_size_float, 80.0);
        let words = ["gpu_utilization"];
        refused(trigger.value().await, Code::FailedPrecondition, &words);
        refused(trigger.is_active().await, Code::FailedPrecondition, &words);
    }
    a_good_call_works(&keda).await;
}

// === Warming up ===

const TWO_WORKLOADS: &str = "
workloads:
  - {namespace: ai, kind: Deployment, name: vllm, replicas: 2, pods: [{name: vllm-0, ready: true}, {name: vllm-1, ready: true}]}
  - {namespace: ai, kind: Deployment, name: tgi, replicas: 1, pods: [{name: tgi-0, ready: true}]}
scaledObjects:
  - {namespace: ai, name: vllm-so, target: {kind: Deployment, name: vllm}}
  - {namespace: ai, name: tgi-so, target: {kind: Deployment, name: tgi}}
";

async fn health(keda: &Keda, service: &str) -> Result<ServingStatus, Status> {
    let mut client = HealthClient::new(keda.channel.clone());
    let service = service.to_owned();
    let answer = client.check(HealthCheckRequest { service }).await?;
    Ok(answer.into_inner().status())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fresh_process_answers_only_for_what_it_covers() {
    let gateway = TestGateway::start(TWO_WORKLOADS).await;
    let keda = gateway.connect().await;
    let (vllm, tgi) = (keda.trigger("ai/vllm-so", &[]), keda.trigger("ai/tgi-so", &[]));
    let warming = async || {
        refused(vllm.value().await, Code::Unavailable, &["just started"]);
        refused(vllm.is_active().await, Code::Unavailable, &["just started"]);
        assert_eq!(vllm.spec().await.unwrap().target_size_float, 80.0);
        for service in ["", "externalscaler.ExternalScaler"] {
            let status = health(&keda, service).await.unwrap();
            assert_eq!(status, ServingStatus::NotServing, "{service:?}");
        }
        assert_eq!(gateway.get("/readyz").await.0, 503);
        assert_eq!(gateway.get("/healthz").await.0, 200);
    };
    eventually("health says so", async || match health(&keda, "").await {
        Ok(ServingStatus::NotServing) => Ok(()),
        other => Err(other),
    })
    .await;
    warming().await;
    refused(tgi.value().await, Code::Unavailable, &["just started"]);
    let first =
        Node::new("n1").with(gpu("u0", "ai/vllm-0", 30.0)).with(gpu("u1", "ai/tgi-0", 20.0));
    let _first = gateway.agent(first).await;
    tgi.becomes(20.0).await;
    warming().await;
    let second = Node::new("n2").with(gpu("u2", "ai/vllm-1", 40.0));
    let _second = gateway.agent(second).await;
    vllm.becomes(70.0).await;
    gateway.is_ready().await;
    for service in ["", "externalscaler.ExternalScaler"] {
        eventually("it serves", async || match health(&keda, service).await {
            Ok(ServingStatus::Serving) => Ok(()),
            other => Err(other),
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_waited_long_enough_is_ready_and_fills_in_what_it_never_heard() {
    let gateway = TestGateway::start(TWO_WORKLOADS).await;
    let node = Node::new("n1").with(gpu("u0", "ai/vllm-0", 30.0));
    let _agent = gateway.agent(node).await;
    let trigger = gateway.trigger("ai/vllm-so", &[]).await;
    // 30 and one pod at the target of 80; until then an error, never 30 alone.
    eventually("it is answered", async || match trigger.value().await {
        Ok(value) => {
            assert_eq!(value, 110.0);
            Ok(())
        }
        Err(status) => {
            assert_eq!(status.code(), Code::Unavailable, "{status:?}");
            Err(status)
        }
    })
    .await;
    gateway.is_ready().await;
    let never_heard = gateway.trigger("ai/tgi-so", &[]).await;
    refused(never_heard.value().await, Code::Unavailable, &["tgi-0"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_without_ready_pods_is_ready_at_once_and_unknown_services_are_not_found() {
    let gateway = TestGateway::start("{}").await;
    gateway.is_ready().await;
    let keda = gateway.connect().await;
    refused(health(&keda, "no.such.Service").await, Code::NotFound, &[]);
}

// === Deadlines ===

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deadlines_are_kept_and_odd_ones_do_no_harm() {
    let (_gateway, _agent, keda) = one_pod_at_60().await;
    let reference = keda.trigger("ai/vllm-so", &[]).reference;
    for deadline in ["1n", "0m", "1S", "99999999H", "soon", "", "-5S"] {
        let mut request = Request::new(reference.clone());
        let header = deadline.parse().unwrap();
        request.metadata_mut().insert("grpc-timeout", header);
        let mut client: ExternalScalerClient<_> = keda.client.clone();
        let answer = soon("an answer", client.is_active(request)).await;
        let ends = [Code::DeadlineExceeded, Code::Cancelled, Code::InvalidArgument];
        if let Err(status) = answer {
            assert!(ends.contains(&status.code()), "{deadline:?}: {status:?}");
        }
    }
    a_good_call_works(&keda).await;
}
