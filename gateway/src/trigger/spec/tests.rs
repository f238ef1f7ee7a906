use std::sync::LazyLock;
use std::time::Duration;

use shared::metric::Metric;

use super::*;

/// Names: derived and given.
mod names;
/// What holds for any metadata at all.
mod properties;
/// Bad words and numbers, one by one.
mod refusals;

static PROFILES: LazyLock<Profiles> = LazyLock::new(Profiles::default);

fn map(pairs: &[(&str, &str)]) -> HashMap<String, String> {
    pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
}

fn trigger(pairs: &[(&str, &str)]) -> Trigger {
    parse(&map(pairs), &PROFILES).unwrap_or_else(|error| panic!("{pairs:?}: {error}"))
}

fn spec(pairs: &[(&str, &str)]) -> Result<MetricSpec, String> {
    metric_spec(&map(pairs), &PROFILES).map_err(|error| error.to_string())
}

fn name(pairs: &[(&str, &str)]) -> String {
    trigger(pairs).name.to_string()
}

/// The message of a refusal, and whether GetMetricSpec is refused with it too.
#[track_caller]
fn refused(pairs: &[(&str, &str)], message: &str) {
    let error = parse(&map(pairs), &PROFILES).expect_err(&format!("{pairs:?}"));
    assert_eq!(error.to_string(), message, "{pairs:?}");
}

#[track_caller]
fn refused_everywhere(pairs: &[(&str, &str)], message: &str) {
    refused(pairs, message);
    assert_eq!(spec(pairs), Err(message.to_owned()), "{pairs:?}");
}

/// Refused, while GetMetricSpec still answers with this name and target.
#[track_caller]
fn refused_but_specified(pairs: &[(&str, &str)], message: &str, name: &str, target: f64) {
    refused(pairs, message);
    assert_eq!(spec(pairs), Ok(MetricSpec { name: name.into(), target }), "{pairs:?}");
}

#[test]
fn nothing_but_kedas_own_keys_gives_the_defaults() {
    let keda = trigger(&[
        ("scalerAddress", "gw:6000"),
        ("enableTLS", "true"),
        ("unsafeSsl", ""),
        ("caCert", "…"),
    ]);
    assert_eq!(keda, trigger(&[]));
    assert_eq!(keda.parts, [Part { metric: Metric::GpuUtilization, target: 80.0 }]);
    assert_eq!((keda.target, keda.composite, keda.activation_threshold), (80.0, false, 0.0));
    assert_eq!((keda.aggregation, keda.gpu_index), (Aggregation::Total, None));
    assert_eq!((keda.window, keda.window_function), (Duration::ZERO, WindowFunction::Avg));
    assert_eq!(
        (keda.activation_window, keda.stale_after),
        (Duration::from_secs(60), Duration::from_secs(10))
    );
    assert_eq!(
        (keda.startup_grace, keda.cold_start_timeout),
        (Duration::ZERO, Duration::from_secs(900))
    );
    assert!(
        !keda.active_while_pods_exist && keda.demand.is_none() && keda.engine_endpoint.is_none()
    );
}

#[test]
#[rustfmt::skip]
fn kedas_metric_type_belongs_beside_the_type() {
    for word in ["AverageValue", "value", "UTILIZATION"] {
        let message = format!(
            "metricType {word:?}: belongs beside `type:` of the trigger, here it names what is measured"
        );
        refused_everywhere(&[("metricType", word)], &message);
    }
}

#[test]
#[rustfmt::skip]
fn keys_that_set_the_target_agree_or_are_named() {
    let gpu = trigger(&[("targetGpuUtilization", "70")]);
    assert_eq!(gpu.parts, [Part { metric: Metric::GpuUtilization, target: 70.0 }]);
    let vram = trigger(&[("targetMemoryUtilization", "70"), ("targetValue", "70.0")]);
    assert_eq!(vram.parts, [Part { metric: Metric::MemoryUsedPercent, target: 70.0 }]);
    let colon = trigger(&[("metricType", "requests_waiting:5"), ("targetValue", "5")]);
    assert_eq!((colon.composite, colon.target), (false, 5.0));
    for (pairs, message) in [
        (
            [("targetGpuUtilization", "70"), ("targetMemoryUtilization", "90")],
            "targetGpuUtilization and targetMemoryUtilization name different metrics, keep one",
        ),
        (
            [("targetGpuUtilization", "70"), ("targetMemoryUtilization", "70")],
            "targetGpuUtilization and targetMemoryUtilization name different metrics, keep one",
        ),
        (
            [("targetGpuUtilization", "70"), ("targetValue", "80")],
            "targetValue says target 80 and targetGpuUtilization says 70, keep one",
        ),
        (
            [("targetGpuUtilization", "70"), ("metricType", "requests_waiting")],
            "targetGpuUtilization measures gpu_utilization, but metricType says requests_waiting, keep one",
        ),
        (
            [("metricType", "requests_waiting:5"), ("targetValue", "6")],
            "targetValue says target 6 and metricType says 5, keep one",
        ),
        (
            [("metricType", "requests_waiting:5,kv_cache_usage"), ("targetValue", "6")],
            "targetValue does not go with a composite metricType, whose parts have their own targets, keep one",
        ),
        (
            [("metricType", "requests_waiting:5,kv_cache_usage"), ("targetMemoryUtilization", "6")],
            "targetMemoryUtilization does not go with a composite metricType, whose parts have their own targets, keep one",
        ),
        (
            [("profile", "vllm"), ("targetValue", "6")],
            "targetValue does not go with the composite of the profile, set metricType too or remove it",
        ),
    ] {
        refused_everywhere(&pairs, message);
    }
}

#[test]
fn only_percent_metrics_have_a_usual_target() {
    for &metric in Metric::ALL {
        let pairs = [("metricType", metric.name())];
        if metric.unit() == shared::metric::Unit::Percent {
            assert_eq!(trigger(&pairs).target, 80.0, "{metric}");
        } else {
            refused_everywhere(&pairs, &format!("targetValue is required for {metric}"));
        }
    }
    let broken = [("metricType", "requests_waiting"), ("targetValue", "x")];
    refused_everywhere(&broken, r#"targetValue "x": not a number"#);
}

#[test]
fn a_composite_is_counted_in_percent_of_a_replica() {
    let both = trigger(&[("metricType", "vllm:num_requests_waiting:5, kv_cache_usage")]);
    assert_eq!((both.composite, both.target), (true, 100.0));
    let parts = [(Metric::RequestsWaiting, 5.0), (Metric::KvCacheUsage, 80.0)];
    assert_eq!(both.parts, parts.map(|(metric, target)| Part { metric, target }));
}

#[test]
fn every_published_aggregation_is_accepted() {
    for &aggregation in Aggregation::ALL {
        assert_eq!(trigger(&[("aggregation", aggregation.word())]).aggregation, aggregation);
    }
}

#[test]
fn a_profile_is_overridden_key_by_key() {
    let published = trigger(&[("profile", "batch")]);
    assert_eq!((published.target, published.activation_threshold), (70.0, 1.0));
    let target = trigger(&[("profile", "batch"), ("targetValue", "60")]);
    assert_eq!((target.parts[0].metric, target.target), (Metric::MemoryUsedPercent, 60.0));
    // Same unit: target and threshold stay.
    let percent = trigger(&[("profile", "batch"), ("metricType", "kv_cache_usage")]);
    assert_eq!((percent.target, percent.activation_threshold), (70.0, 1.0));
    // Another unit: neither means anything.
    let watts =
        trigger(&[("profile", "batch"), ("metricType", "power_draw"), ("targetValue", "300")]);
    assert_eq!((watts.target, watts.activation_threshold), (300.0, 0.0));
    let queue = [("profile", "batch"), ("metricType", "requests_waiting")];
    refused_everywhere(&queue, "targetValue is required for requests_waiting");
    let percent = trigger(&[("profile", "vllm-queue-depth"), ("metricType", "sm_activity")]);
    assert_eq!((percent.target, percent.activation_threshold), (80.0, 0.0));
    let short = trigger(&[("profile", "vllm"), ("targetGpuUtilization", "70")]);
    assert_eq!((short.composite, short.target), (false, 70.0));
    assert_eq!(short.profile.as_deref(), Some("vllm"));
}

#[test]
fn training_is_active_while_pods_exist_unless_a_threshold_is_given() {
    assert!(trigger(&[("profile", "training")]).active_while_pods_exist);
    assert!(trigger(&[("profile", "training"), ("targetValue", "70")]).active_while_pods_exist);
    assert!(
        !trigger(&[("profile", "training"), ("activationThreshold", "0")]).active_while_pods_exist
    );
    assert!(!trigger(&[("profile", "batch")]).active_while_pods_exist);
}

#[test]
fn an_unknown_profile_leaves_the_spec_answerable_if_metric_and_target_are_explicit() {
    let unknown = r#"no profile "x-inference", nearest is tgi-inference"#;
    let explicit =
        [("profile", "x-inference"), ("metricType", "requests_waiting"), ("targetValue", "5")];
    refused_but_specified(&explicit, unknown, "requests_waiting", 5.0);
    let short = [("profile", "x-inference"), ("targetGpuUtilization", "70")];
    refused_but_specified(&short, unknown, "gpu_utilization", 70.0);
    refused_everywhere(&[("profile", "x-inference"), ("metricType", "requests_waiting")], unknown);
    refused_everywhere(&[("profile", "x-inference"), ("targetValue", "70")], unknown);
    refused_everywhere(&[("profile", "")], "profile is empty");
}

#[test]
#[rustfmt::skip]
fn a_demand_source_is_an_endpoint_and_a_series() {
    let demand = trigger(&[
        ("demandEndpoint", "http://router.ai.svc:9090/metrics"),
        ("demandMetric", "queue_length"),
        ("demandLabels", "model=a"),
        ("demandThreshold", "2"),
        ("demandAbsent", "zero"),
    ]);
    let demand = demand.demand.unwrap();
    assert_eq!(demand.endpoint.service(), Some(("router", Some("ai"))));
    assert_eq!((demand.threshold, demand.absent), (2.0, Absent::Zero));
    assert_eq!(demand.labels, [("model".to_owned(), "a".to_owned())]);
    for (key, value, message) in [
        ("demandEndpoint", "http://q/m", "demandEndpoint needs demandMetric"),
        ("demandMetric", "q", "demandMetric needs demandEndpoint"),
        ("demandThreshold", "1", "demandThreshold needs demandEndpoint"),
        (
            "demandEndpoint",
            "http://q/m?x=1",
            "demandEndpoint \"http://q/m?x=1\": query and fragment are not supported",
        ),
    ] {
        refused_but_specified(&[(key, value)], message, "gpu_utilization", 80.0);
    }
}

#[test]
#[rustfmt::skip]
fn a_demand_source_outside_the_cluster_needs_its_origin_admitted() {
    let pairs = [("demandEndpoint", "http://127.0.0.1:9900/metrics"), ("demandMetric", "q")];
    refused(
        &pairs,
        r#"demandEndpoint host "127.0.0.1": write NAME, NAME.NAMESPACE or NAME.NAMESPACE.svc of a Service, not an address"#,
    );
    let admit = |origin: &str| parse_admitting(&map(&pairs), &PROFILES, &[origin.to_owned()]);
    assert!(admit("http://127.0.0.1:9900").is_ok());
    assert!(admit("http://127.0.0.1:9901").is_err());
}

#[test]
fn engine_endpoints_name_engine_port_and_path() {
    let vllm = trigger(&[("vllmEndpoint", "http://vllm-svc:8000/metrics")]);
    assert_eq!(vllm.parts, trigger(&[]).parts);
    let endpoint =
        EngineEndpoint { engine: Engine::Vllm, port: Some(8000), path: "/metrics".to_owned() };
    assert_eq!(vllm.engine_endpoint, Some(endpoint));
    let both = [("vllmEndpoint", "http://a"), ("tritonEndpoint", "http://b")];
    let message = "vllmEndpoint and tritonEndpoint name different engines, keep one";
    refused_but_specified(&both, message, "gpu_utilization", 80.0);
}

#[test]
fn the_engine_is_what_endpoint_metric_or_profile_name_in_this_order() {
    for (pairs, engine) in [
        (&[][..], None),
        (&[("metricType", "requests_waiting:5")], None),
        (&[("profile", "vllm")], Some(Engine::Vllm)),
        (&[("profile", "sglang"), ("metricType", "kv_cache_usage")], Some(Engine::Sglang)),
        (&[("profile", "tgi")], Some(Engine::Tgi)),
        (&[("profile", "trtllm")], Some(Engine::Trtllm)),
        (&[("profile", "triton-queue-wait")], Some(Engine::Triton)),
        (&[("profile", "vllm"), ("metricType", "triton_request_rate:5")], Some(Engine::Triton)),
        (&[("metricType", "vllm:num_requests_waiting:5")], Some(Engine::Vllm)),
        (
            &[("metricType", "vllm_queue_depth:5"), ("tritonEndpoint", "http://svc")],
            Some(Engine::Triton),
        ),
    ] {
        assert_eq!(trigger(pairs).engine, engine, "{pairs:?}");
    }
    let mine = Profiles::load("mine: {metricType: 'vllm_queue_depth:5'}").unwrap();
    let of = |pairs: &[(&str, &str)]| parse(&map(pairs), &mine).unwrap().engine;
    assert_eq!(of(&[("profile", "mine")]), Some(Engine::Vllm));
    assert_eq!(of(&[("profile", "mine"), ("metricType", "requests_waiting:5")]), None);
}

#[test]
fn engine_labels_are_the_same_however_they_are_written() {
    let labels = |text| trigger(&[("metricType", "kv_cache_usage"), ("engineLabels", text)]);
    assert_eq!(&*labels("b=2, a = 1").engine_labels, "a=1,b=2");
    assert_eq!(labels("b=2,a=1"), labels("a=1,b=2"));
    let long = format!("a={}", "x".repeat(1_023));
    refused(
        &[("engineLabels", &long)],
        &format!("engineLabels \"a={}\"…: is longer than 1024 bytes", "x".repeat(58)),
    );
}
