use proptest::prelude::*;

use super::*;

/// Keys of ours and not, with values that are right, nearly right and wrong.
fn metadata() -> impl Strategy<Value = HashMap<String, String>> {
    let ours: Vec<String> = KEYS.iter().map(|key| key.name.to_owned()).collect();
    let env = ours.iter().map(|key| format!("{key}FromEnv")).collect::<Vec<_>>();
    let key = prop_oneof![
        20 => prop::sample::select(ours),
        1 => prop::sample::select(env),
        1 => ".{0,12}",
    ];
    let words = [
        "80",
        " 70 ",
        "5",
        "0.5",
        "100",
        "0",
        "-1",
        "3",
        "1e400",
        "80%",
        "",
        "max",
        "p95",
        "sum",
        "total",
        "30s",
        "1m30s",
        "gpu_utilization",
        "requests_waiting",
        "requests_waiting:5",
        "requests_waiting:5,kv_cache_usage:80",
        "memory_used_percent",
        "power_draw:300.12345",
        "vllm:num_requests_waiting",
        "vllm",
        "batch",
        "training",
        "model_name=a,b=c",
        "http://router.ai:9/q",
        "queue_length",
        "zero",
        "error",
        "my_name",
        "gpu_utilization,sm_activity,tensor_activity,memory_utilization,throttled_percent",
    ];
    let value = prop_oneof![
        20 => prop::sample::select(words.to_vec()).prop_map(str::to_owned),
        1 => ".{0,80}",
        1 => any::<f64>().prop_map(|value| value.to_string()),
    ];
    prop::collection::hash_map(key, value, 0..5)
}

fn is_name(name: &str) -> bool {
    let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-_.".contains(&b);
    (1..=63).contains(&name.len()) && name.bytes().all(fits)
}

proptest! {
    #[test]
    fn whatever_is_accepted_is_sound_and_both_readers_agree(metadata in metadata()) {
        let spec = metric_spec(&metadata, &PROFILES);
        if let Ok(spec) = &spec {
            prop_assert!(spec.target.is_finite() && spec.target >= 0.001);
            prop_assert!(is_name(&spec.name), "{}", spec.name);
        }
        match parse(&metadata, &PROFILES) {
            Ok(trigger) => {
                prop_assert_eq!(spec, Ok(MetricSpec { name: trigger.name, target: trigger.target }));
                prop_assert!(!trigger.parts.is_empty());
                prop_assert!(trigger.parts.iter().all(|part| part.target.is_finite() && part.target >= 0.001));
                prop_assert!(trigger.activation_threshold >= 0.0 && trigger.activation_threshold.is_finite());
            }
            Err(error) => prop_assert!(!error.problems().is_empty()),
        }
    }

    #[test]
    fn the_order_of_a_map_never_matters(metadata in metadata()) {
        // Another map hashes with another seed and so iterates in another order.
        let other: HashMap<_, _> = metadata.clone().into_iter().collect();
        prop_assert_eq!(parse(&metadata, &PROFILES), parse(&other, &PROFILES));
        prop_assert_eq!(metric_spec(&metadata, &PROFILES), metric_spec(&other, &PROFILES));
    }

    #[test]
    fn any_text_at_all_is_read_without_a_panic(
        metadata in prop::collection::hash_map("\\PC{0,20}", "\\PC{0,200}", 0..20),
        key in prop::sample::select(KEYS.iter().map(|key| key.name).collect::<Vec<_>>()),
        value in any::<String>(),
    ) {
        let mut metadata = metadata;
        metadata.insert(key.to_owned(), value);
        prop_assert!(parse(&metadata, &PROFILES).is_err() || metric_spec(&metadata, &PROFILES).is_ok());
    }
}
