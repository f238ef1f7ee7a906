//! scalerMetadata, one `key=value` a line, and every value as an endpoint.
//!
//! Guarantees: what is accepted is sound whatever the order of the map, both readers agree, what
//! goes on to agents is within what agents take, and a workload that is decided about by it has a
//! value that the HPA can take, or none.

use std::collections::HashMap;
use std::sync::LazyLock;
use std::time::Duration;

use gateway::trigger::activation::is_active;
use gateway::trigger::engine::Engine;
use gateway::trigger::observed::{NoPast, Observed, PartReadings, Pod, Seen, TargetType};
use gateway::trigger::profile::Profiles;
use gateway::trigger::spec::{
    DemandEndpoint, EngineEndpoint, MetricSpec, Part, Trigger, metric_spec, parse, parse_admitting,
};
use gateway::trigger::value::assess;
use gateway::trigger::verdict::Outcome;
use proto::brief::MAX_PATH;
use proto::convert::MAX_LABELS;
use shared::exposition::Matchers;
use shared::reading::Reading;
use shared::time::Timestamp;

static PROFILES: LazyLock<Profiles> = LazyLock::new(Profiles::default);

/// Reads `data` as metadata.
pub fn read(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let pairs = text.lines().map(|line| line.split_once('=').unwrap_or((line, "")));
    let metadata: HashMap<_, _> =
        pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    // Another map hashes with another seed and so iterates in another order.
    let other: HashMap<_, _> = metadata.clone().into_iter().collect();
    let read = parse(&metadata, &PROFILES);
    assert_eq!(read, parse(&other, &PROFILES));
    let spec = metric_spec(&metadata, &PROFILES);
    assert_eq!(spec, metric_spec(&other, &PROFILES));
    if let Ok(spec) = &spec {
        is_name(&spec.name);
        is_target(spec.target);
    }
    match read {
        Ok(trigger) => {
            is_sound(&trigger);
            decides(&trigger);
            assert_eq!(spec, Ok(MetricSpec { name: trigger.name, target: trigger.target }));
        }
        Err(error) => assert!(!error.problems().is_empty()),
    }
    for value in metadata.values() {
        endpoints(value);
    }
    if let Some(Ok(endpoint)) = metadata.get("demandEndpoint").map(|at| DemandEndpoint::parse(at))
        && let Ok(trigger) = parse_admitting(&metadata, &PROFILES, &[endpoint.origin()])
    {
        is_sound(&trigger);
    }
}

fn is_sound(trigger: &Trigger) {
    is_name(&trigger.name);
    is_target(trigger.target);
    assert!(!trigger.parts.is_empty());
    trigger.parts.iter().for_each(|part| is_target(part.target));
    assert!(trigger.activation_threshold.is_finite() && trigger.activation_threshold >= 0.0);
    assert!(trigger.look_back().as_secs() <= 2 * 24 * 3600, "{:?}", trigger.look_back());
    are_labels(&trigger.engine_labels);
    if let Some(demand) = &trigger.demand {
        assert!(demand.threshold.is_finite() && demand.threshold >= 0.0);
        assert!(demand.labels.is_sorted() && !demand.metric.is_empty());
    }
}

/// Three pods: one reads `value`, one failed, one never spoke; and none at all.
fn decides(trigger: &Trigger) {
    let now = Timestamp::START + Duration::from_secs(3_600);
    let seen = |reading, taken_at| Seen {
        device: None,
        index: 0,
        reading,
        taken_at,
        interval_ms: 1_000,
        is_mig: false,
    };
    let ready = |name: &str| Pod {
        name: name.into(),
        uid: None,
        node: None,
        ready: true,
        since: Timestamp::START,
        unscheduled: None,
    };
    for value in [0.0, 1.0, 100.0] {
        let readings = |part: &Part| {
            let mut readings = PartReadings::default();
            if part.metric.accepts(value) {
                readings.push(seen(Reading::Ok(value), Some(now)));
            }
            readings.end_pod();
            readings.push(seen(Reading::Failed("broken".into()), Some(now)));
            readings.end_pod();
            readings.end_pod();
            readings
        };
        let three = Observed {
            replicas: 3,
            ready_running: 3,
            pods: ["a", "b", "c"].map(ready).into(),
            parts: trigger.parts.iter().map(readings).collect(),
            warm: true,
            ..Observed::default()
        };
        for (observed, types) in [(three, 2), (Observed { warm: true, ..Observed::default() }, 1)] {
            for target_type in [TargetType::AverageValue, TargetType::Value].into_iter().take(types)
            {
                let observed = Observed { target_type, ..observed.clone() };
                let verdict = assess(trigger, &observed, &NoPast, now);
                if let Outcome::Value(value) = verdict.outcome {
                    assert!(value.is_finite() && value >= 0.0, "{value}");
                }
                is_active(trigger, &observed, &verdict, &NoPast, now);
                assert!(!verdict.reason.to_string().is_empty());
            }
        }
    }
}

fn is_name(name: &str) {
    let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-_.".contains(&b);
    assert!((1..=63).contains(&name.len()) && name.bytes().all(fits), "{name}");
}

fn is_target(target: f64) {
    assert!(target.is_finite() && target >= 0.001, "{target}");
}

/// Agents take them, and mean the same by them.
fn are_labels(labels: &str) {
    assert!(labels.len() <= MAX_LABELS);
    assert_eq!(labels.parse::<Matchers>().unwrap().to_string(), labels);
}

fn endpoints(value: &str) {
    if let Ok(endpoint) = DemandEndpoint::parse(value) {
        assert!(endpoint.port > 0 && !endpoint.host.is_empty());
        is_path(&endpoint.path);
        let origin = DemandEndpoint::parse(&endpoint.origin()).unwrap();
        assert_eq!((&origin.host, origin.port), (&endpoint.host, endpoint.port));
        if let Some((name, namespace)) = endpoint.service() {
            is_label(name);
            namespace.into_iter().for_each(is_label);
        }
    }
    if let Ok(endpoint) = EngineEndpoint::parse(Engine::Vllm, value) {
        assert_ne!(endpoint.port, Some(0));
        assert!(endpoint.path.len() <= MAX_PATH);
        is_path(&endpoint.path);
    }
}

/// It can stand in a request line.
fn is_path(path: &str) {
    assert!(path.starts_with('/') && path.bytes().all(|byte| byte.is_ascii_graphic()), "{path:?}");
}

fn is_label(label: &str) {
    let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    assert!((1..=63).contains(&label.len()) && label.bytes().all(fits), "{label}");
}
