use super::*;

#[test]
#[rustfmt::skip]
fn names_say_what_is_measured_and_in_which_shape() {
    for (pairs, expected) in [
        (&[][..], "gpu_utilization"),
        (&[("targetValue", "60"), ("staleAfter", "20s"), ("activationThreshold", "5")], "gpu_utilization"),
        (&[("metricType", "vllm_queue_depth:5")], "requests_waiting"),
        (&[("aggregation", "max")], "gpu_utilization-max"),
        (&[("aggregation", "total"), ("gpuIndex", "-1"), ("window", "0s")], "gpu_utilization"),
        (&[("gpuIndex", "3")], "gpu_utilization-gpu3"),
        (&[("window", "30s")], "gpu_utilization-avg30s"),
        (&[("window", "90s"), ("windowFunction", "max")], "gpu_utilization-max1m30s"),
        (&[("window", "30s"), ("windowFunction", "p90")], "gpu_utilization-p90.30s"),
        (&[("window", "1us")], "gpu_utilization-avg1us"),
        (&[("aggregation", "p95"), ("gpuIndex", "0"), ("window", "500ms")], "gpu_utilization-p95-gpu0-avg500ms"),
        (&[("metricType", "requests_waiting:5,kv_cache_usage")], "requests_waiting.5-kv_cache_usage.80"),
        (
            &[("metricType", "requests_waiting:2.5,kv_cache_usage"), ("aggregation", "max")],
            "requests_waiting.2.5-kv_cache_usage.80-max",
        ),
        (&[("profile", "vllm")], "requests_waiting.5-requests_running.64-kv_cache_usage.80"),
        (&[("metricType", "kv_cache_usage"), ("engineLabels", "model_name=a")], "kv_cache_usage-a61e4b2e"),
        (
            &[("profile", "vllm"), ("aggregation", "max"), ("window", "1m30s")],
            "requests_waiting.5-requests_running.64-kv_cache_usage.-95efe4ba",
        ),
        (&[("metricName", "my_metric-1.x"), ("aggregation", "max")], "my_metric-1.x"),
    ] {
        assert_eq!(name(pairs), expected, "{pairs:?}");
    }
}

#[test]
fn other_labels_make_another_name_in_any_order_the_same() {
    let labelled = |labels| name(&[("metricType", "kv_cache_usage"), ("engineLabels", labels)]);
    assert_eq!(labelled("a=1,b=2"), labelled("b=2, a=1"));
    assert_ne!(labelled("a=1,b=2"), labelled("a=1,b=3"));
    assert_ne!(labelled("a=1"), name(&[("metricType", "kv_cache_usage")]));
}

// peer.md: empty metricName
#[test]
fn a_given_name_must_be_a_valid_one() {
    refused_everywhere(&[("metricName", "")], "metricName is empty");
    for bad in ["My Metric", "a/b", "a%20b", "ü", &"a".repeat(64)] {
        let error = spec(&[("metricName", bad)]).unwrap_err();
        assert!(
            error.ends_with(": use at most 63 lower-case letters, digits, - _ and ."),
            "{error}"
        );
    }
    assert_eq!(name(&[("metricName", &"a".repeat(63))]).len(), 63);
}
