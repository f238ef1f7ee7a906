//! The decision as a pure function: properties over any load, and each rule with exact numbers.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use gateway::trigger::observed::{
    NoPast, Observed, PartReadings, Past, Pod, Seen, Series, TargetType,
};
use gateway::trigger::profile::Profiles;
use gateway::trigger::spec::{Trigger, parse};
use gateway::trigger::verdict::{Direction, Outcome, Reason, Verdict};
use gateway::trigger::{assess, is_active};
use proptest::prelude::*;
use shared::reading::Reading;
use shared::time::Timestamp;

const NOW: Timestamp = Timestamp::from_millis(1_000_000);
const INTERVAL: Duration = Duration::from_millis(500);

fn trigger(metadata: &[(&str, &str)]) -> Trigger {
    let metadata: HashMap<String, String> =
        metadata.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
    parse(&metadata, &Profiles::default()).unwrap()
}

/// One pod for a test: how its readiness is, and what each of its devices says.
#[derive(Clone, Debug)]
enum Case {
    Ready(Vec<f64>),
    Silent,
    Loading,
    Stuck,
    Unsupported,
}

fn seen(index: usize, reading: Reading, age: Duration) -> Seen {
    Seen {
        device: None,
        index: u32::try_from(index).unwrap(),
        reading,
        taken_at: Some(NOW - age),
        interval_ms: 500,
        is_mig: false,
    }
}

fn observed(replicas: u32, pods: &[Case]) -> Observed {
    let mut readings = PartReadings::default();
    let pods_seen = pods.iter().enumerate().map(|(at, case)| {
        let (ready, since) = match case {
            Case::Ready(values) => {
                for (index, value) in values.iter().enumerate() {
                    readings.push(seen(index, Reading::Ok(*value), Duration::ZERO));
                }
                (true, Timestamp::START)
            }
            Case::Silent => {
                readings.push(seen(0, Reading::Ok(99.0), Duration::from_secs(60)));
                (true, Timestamp::START)
            }
            Case::Unsupported => {
                readings.push(seen(0, Reading::Unsupported, Duration::ZERO));
                (true, Timestamp::START)
            }
            Case::Loading => (false, NOW - Duration::from_secs(100)),
            Case::Stuck => (false, NOW - Duration::from_secs(901)),
        };
        readings.end_pod();
        let name = format!("pod-{at}").into();
        Pod { name, uid: None, node: None, ready, since, unscheduled: None }
    });
    let pods_seen: Vec<Pod> = pods_seen.collect();
    let ready = pods_seen.iter().filter(|pod| pod.ready).count();
    Observed {
        replicas,
        ready_running: u32::try_from(ready).unwrap(),
        short_since: (pods_seen.len() < replicas as usize).then_some(NOW - Duration::from_secs(5)),
        pods: pods_seen.into(),
        watched_since: Some(Timestamp::START),
        warm: true,
        parts: vec![readings],
        ..Observed::default()
    }
}

fn verdict(trigger: &Trigger, observed: &Observed) -> Verdict {
    assess(trigger, observed, &NoPast, NOW)
}

fn value(trigger: &Trigger, observed: &Observed) -> f64 {
    match verdict(trigger, observed).outcome {
        Outcome::Value(value) => value,
        other => panic!("{other:?}"),
    }
}

/// The HPA's AverageValue formula on what KEDA prints: three decimals.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "test figures are small"
)]
fn hpa(value: f64, target: f64, replicas: u32) -> u32 {
    let (value, target) = ((value * 1e3).round() as u64, (target * 1e3).round() as u64);
    let whole = target * u64::from(replicas);
    if 10 * value.abs_diff(whole) <= whole {
        return replicas;
    }
    u32::try_from(value.div_ceil(target)).unwrap()
}

fn a_case() -> impl Strategy<Value = Case> {
    prop_oneof![
        4 => prop::collection::vec(0.0..=100.0, 1..4).prop_map(Case::Ready),
        1 => Just(Case::Silent),
        1 => Just(Case::Loading),
        1 => Just(Case::Stuck),
        1 => Just(Case::Unsupported),
    ]
}

fn any_metadata() -> impl Strategy<Value = Vec<(&'static str, &'static str)>> {
    let aggregation =
        prop::sample::select(vec!["total", "max", "min", "avg", "sum", "p50", "p90", "p95", "p99"]);
    let metric = prop::sample::select(vec![
        ("metricType", "gpu_utilization"),
        ("metricType", "gpu_utilization:70,memory_used_percent:90"),
        ("targetMemoryUtilization", "90"),
        ("profile", "training"),
    ]);
    let index =
        prop::sample::select(vec![("gpuIndex", "-1"), ("gpuIndex", "0"), ("gpuIndex", "2")]);
    (aggregation, metric, index)
        .prop_map(|(a, metric, index)| vec![("aggregation", a), metric, index])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn with_full_coverage_the_hpa_orders_what_the_load_needs(
        n in 1..=200_u32,
        target_milli in 1_000..=95_000_u32,
        share in 0.0..=1.0_f64,
        uneven in prop::collection::vec(0.0..=1.0_f64, 200),
    ) {
        let target = f64::from(target_milli) / 1e3;
        // A load of three decimals that the pods can carry, spread evenly or not.
        let load = (share * f64::from(n) * 100.0 * 1e3).round() / 1e3;
        let mean = load / f64::from(n);
        let mut each = vec![mean; n as usize];
        for pair in 0..each.len() / 2 {
            let room = mean.min(100.0 - mean) * uneven[pair];
            each[2 * pair] += room;
            each[2 * pair + 1] -= room;
        }
        let pods: Vec<Case> = each.into_iter().map(|x| Case::Ready(vec![x])).collect();
        let text = target.to_string();
        let value = value(&trigger(&[("targetValue", &text)]), &observed(n, &pods));
        prop_assert_eq!(value, load);
        let (load_milli, whole) = ((load * 1e3).round(), f64::from(target_milli) * f64::from(n));
        if (load_milli - whole).abs() > 0.1 * whole {
            let needed = (load_milli / f64::from(target_milli)).ceil();
            prop_assert_eq!(f64::from(hpa(value, target, n)), needed);
        }
    }

    #[test]
    fn filling_cancels_a_move_and_never_reverses_one(
        cases in prop::collection::vec(a_case(), 1..12),
        extra in 0..5_u32,
        unknown in prop::collection::vec(0.0..=70.0_f64, 16),
    ) {
        let n = u32::try_from(cases.len()).unwrap() + extra;
        let verdict = verdict(&trigger(&[("targetValue", "70")]), &observed(n, &cases));
        let (Outcome::Value(value), Some(figures)) = (verdict.outcome, verdict.figures) else {
            return Ok(());
        };
        let hold = 70.0 * f64::from(n);
        prop_assert!([figures.up, figures.down, hold].contains(&value));
        // Whatever the unknown pods really carry, up to the target: no move against the truth.
        if let Reason::Measured { filled, .. } = verdict.reason {
            let truth = figures.s + unknown.iter().take(filled as usize).sum::<f64>();
            prop_assert!(!(value > hold && truth < hold - 1e-6), "{value} {truth}");
            prop_assert!(!(value < hold && truth > hold + 1e-6 && filled > 0), "{value} {truth}");
        }
        let desired = hpa(value, 70.0, n);
        let right = if figures.s >= hold { desired >= n } else { desired <= n };
        prop_assert!(right, "desired {desired} of {n}");
    }

    #[test]
    fn the_order_of_pods_does_not_matter(
        (cases, shuffled) in prop::collection::vec(a_case(), 1..10)
            .prop_flat_map(|cases| (Just(cases.clone()), Just(cases).prop_shuffle())),
        metadata in any_metadata(),
        value_type in any::<bool>(),
    ) {
        let trigger = trigger(&metadata);
        let both = [cases, shuffled].map(|cases| {
            let mut observed = observed(u32::try_from(cases.len()).unwrap(), &cases);
            observed.parts = vec![observed.parts[0].clone(); trigger.parts.len()];
            if value_type {
                observed.target_type = TargetType::Value;
            }
            let verdict = verdict(&trigger, &observed);
            let active = is_active(&trigger, &observed, &verdict, &NoPast, NOW);
            (verdict.outcome, verdict.figures, verdict.coverage, active)
        });
        prop_assert_eq!(both[0], both[1]);
    }

    #[test]
    fn a_value_is_finite_and_not_negative_and_says_how_many_pods_it_is_from(
        cases in prop::collection::vec(a_case(), 0..10),
        replicas in 0..20_u32,
        metadata in any_metadata(),
        value_type in any::<bool>(),
        warm in any::<bool>(),
    ) {
        let trigger = trigger(&metadata);
        let mut observed = observed(replicas, &cases);
        observed.parts = vec![observed.parts[0].clone(); trigger.parts.len()];
        observed.warm = warm;
        if value_type {
            observed.target_type = TargetType::Value;
        }
        let verdict = verdict(&trigger, &observed);
        if let Outcome::Value(value) = verdict.outcome {
            prop_assert!(value.is_finite() && value >= 0.0, "{value}");
        }
        let reporting = verdict.coverage.reporting;
        if let Reason::Measured { .. } = verdict.reason {
            let said = format!("{reporting} of {replicas} replica");
            prop_assert!(verdict.reason.to_string().contains(&said), "{}", verdict.reason);
        }
    }
}

#[test]
fn rule_one_gives_the_worked_figures() {
    let t = trigger(&[("targetValue", "70")]);
    let ready = |value: f64, count: usize| vec![Case::Ready(vec![value]); count];
    let with = |mut pods: Vec<Case>, other: Case, count: usize| {
        pods.extend(vec![other; count]);
        pods
    };
    for (n, pods, right, desired) in [
        (6, with(ready(95.0, 4), Case::Loading, 2), 420.0, 6),
        (8, with(ready(20.0, 4), Case::Silent, 4), 360.0, 6),
        (8, ready(90.0, 8), 720.0, 11),
        (8, with(ready(90.0, 4), Case::Silent, 4), 560.0, 8),
        (8, ready(20.0, 4), 360.0, 6),
        (8, with(ready(20.0, 4), Case::Stuck, 4), 80.0, 2),
        (2, ready(90.0, 3), 270.0, 4),
    ] {
        let value = value(&t, &observed(n, &pods));
        assert_eq!((value, hpa(value, 70.0, n)), (right, desired), "{n} {pods:?}");
    }
}

#[test]
fn one_of_four_engines_is_silent_o03() {
    let t = trigger(&[("metricType", "requests_waiting"), ("targetValue", "5")]);
    let busy = [vec![Case::Ready(vec![8.0]); 3], vec![Case::Silent]].concat();
    assert_eq!(value(&t, &observed(4, &busy)), 24.0);
    assert_eq!(hpa(24.0, 5.0, 4), 5);
    let calm = [vec![Case::Ready(vec![1.0]); 3], vec![Case::Silent]].concat();
    let said = verdict(&t, &observed(4, &calm));
    assert_eq!(said.outcome, Outcome::Value(8.0));
    assert_eq!(hpa(8.0, 5.0, 4), 2);
    assert_eq!(
        said.reason.to_string(),
        "requests_waiting: 3 of 4 replicas report; 1 missing, counted as at the target, and even so 4 replicas can take more load"
    );
}

#[test]
fn every_published_aggregation_under_both_target_types() {
    let pods =
        [Case::Ready(vec![10.0, 20.0, 30.0, 40.0]), Case::Ready(vec![50.0, 60.0, 70.0, 95.0])];
    for (aggregation, average_value, plain) in [
        ("total", 93.75, 50.0),
        ("max", 190.0, 95.0),
        ("min", 20.0, 10.0),
        ("avg", 93.75, 46.875),
        ("sum", 375.0, 375.0),
        ("p50", 80.0, 40.0),
        ("p90", 190.0, 95.0),
        ("p95", 190.0, 95.0),
        ("p99", 190.0, 95.0),
    ] {
        let t = trigger(&[("targetValue", "50"), ("aggregation", aggregation)]);
        let mut seen = observed(2, &pods);
        assert_eq!(value(&t, &seen), average_value, "{aggregation}");
        seen.target_type = TargetType::Value;
        // `total` is within the tolerance of hold (93.75 of 100) only from below: 93.75 / 2 pods.
        let right = if aggregation == "total" { 46.875 } else { plain };
        assert_eq!(value(&t, &seen), right, "{aggregation} as Value");
    }
}

#[test]
fn the_published_profiles_keep_their_targets_and_answer_exactly() {
    for (profile, target, threshold, metric) in [
        ("vllm-inference", 80.0, 5.0, "memory_used_percent"),
        ("triton-inference", 75.0, 10.0, "gpu_utilization"),
        ("training", 90.0, 0.0, "gpu_utilization"),
        ("batch", 70.0, 1.0, "memory_used_percent"),
    ] {
        let t = trigger(&[("profile", profile)]);
        assert_eq!((t.target, t.activation_threshold), (target, threshold), "{profile}");
        assert_eq!(t.parts[0].metric.name(), metric, "{profile}");
        let eight = observed(8, &vec![Case::Ready(vec![95.0]); 8]);
        assert_eq!(value(&t, &eight), 760.0, "{profile}");
        for (reading, active) in [(threshold, profile == "training"), (threshold + 0.1, true)] {
            let one = observed(1, &[Case::Ready(vec![reading])]);
            let said = verdict(&t, &one);
            assert_eq!(is_active(&t, &one, &said, &NoPast, NOW), active, "{profile} at {reading}");
        }
    }
}

#[test]
fn value_type_divides_by_the_ready_pods_and_holds_at_the_target() {
    let t = trigger(&[("targetValue", "60")]);
    let of = |n, pods: &[Case], ready| {
        let mut seen = observed(n, pods);
        seen.target_type = TargetType::Value;
        seen.ready_running = ready;
        value(&t, &seen)
    };
    let ready = |value: f64, count: usize| vec![Case::Ready(vec![value]); count];
    assert_eq!(of(4, &ready(90.0, 4), 4), 90.0);
    assert_eq!(of(4, &ready(65.0, 4), 4), 60.0, "an up of at most 1.1 times hold is the target");
    assert_eq!(of(4, &ready(67.0, 4), 4), 67.0);
    assert_eq!(of(4, &ready(30.0, 4), 4), 30.0);
    let loading = [ready(90.0, 2), vec![Case::Loading; 2]].concat();
    assert_eq!(of(4, &loading, 2), 60.0, "loading pods hold");
    let calm = [ready(10.0, 2), vec![Case::Loading; 2]].concat();
    assert_eq!(of(4, &calm, 2), 70.0, "down over the ready pods: the HPA orders ceil(140/60) = 3");
    assert_eq!(of(2, &[Case::Loading, Case::Loading], 0), 60.0);
    let max = trigger(&[("targetValue", "60"), ("aggregation", "max")]);
    let mut one_missing =
        observed(3, &[Case::Ready(vec![20.0]), Case::Ready(vec![30.0]), Case::Silent]);
    one_missing.target_type = TargetType::Value;
    assert_eq!(
        value(&max, &one_missing),
        60.0,
        "a missing pod lifts a literal below the target to it"
    );
}

#[test]
fn a_pod_reports_whole_or_not_at_all_and_gpu_index_picks_its_own() {
    let t = trigger(&[("targetValue", "50")]);
    assert_eq!(value(&t, &observed(1, &[Case::Ready(vec![20.0, 60.0])])), 40.0);
    let watts = trigger(&[("metricType", "power_draw"), ("targetValue", "300")]);
    assert_eq!(value(&watts, &observed(1, &[Case::Ready(vec![200.0, 60.0])])), 260.0);
    let second = trigger(&[("targetValue", "50"), ("gpuIndex", "1")]);
    assert_eq!(value(&second, &observed(1, &[Case::Ready(vec![20.0, 60.0])])), 60.0);
    let said = verdict(&second, &observed(1, &[Case::Ready(vec![20.0])]));
    assert_eq!(said.outcome, Outcome::FailedPrecondition);
    assert!(
        said.reason.to_string().contains("gpuIndex 1, but a pod has 1 GPU (they count from 0)"),
        "{}",
        said.reason
    );
    let advice = said.reason.to_string();
    assert!(!advice.contains("use one"), "the metric is not what is wrong: {advice}");
}

#[test]
fn the_state_table_row_by_row() {
    let t = trigger(&[("targetValue", "50")]);
    let outcome = |n, pods: &[Case]| verdict(&t, &observed(n, pods)).outcome;
    assert_eq!(outcome(0, &[]), Outcome::Value(0.0));
    assert_eq!(outcome(2, &[]), Outcome::Value(100.0), "ordered, none exists yet");
    assert_eq!(outcome(2, &[Case::Loading, Case::Loading]), Outcome::Value(100.0));
    assert_eq!(outcome(2, &[Case::Silent, Case::Loading]), Outcome::Unavailable);
    assert_eq!(outcome(1, &[Case::Stuck]), Outcome::Unavailable);
    assert_eq!(outcome(2, &[Case::Unsupported, Case::Loading]), Outcome::FailedPrecondition);
    assert_eq!(outcome(2, &[Case::Unsupported, Case::Ready(vec![10.0])]), Outcome::Value(60.0));
    let mut cold = observed(2, &[Case::Ready(vec![10.0]), Case::Silent]);
    cold.warm = false;
    assert_eq!(verdict(&t, &cold).outcome, Outcome::Unavailable);
    let mut head = observed(2, &[Case::Ready(vec![10.0]), Case::Ready(vec![20.0]), Case::Silent]);
    head.warm = false;
    assert_eq!(verdict(&t, &head).outcome, Outcome::Value(30.0), "all that were ordered report");
    let mut covered = observed(2, &[Case::Ready(vec![10.0]), Case::Loading]);
    covered.warm = false;
    assert_eq!(verdict(&t, &covered).outcome, Outcome::Value(60.0));
}

#[test]
fn a_composite_is_its_fullest_part_in_percent_of_a_replica() {
    let t = trigger(&[("metricType", "requests_waiting:5,kv_cache_usage:80")]);
    let with = |waiting: f64, kv: Option<f64>| {
        let mut seen = observed(2, &vec![Case::Ready(vec![waiting]); 2]);
        let cases = kv.map_or(vec![Case::Silent; 2], |kv| vec![Case::Ready(vec![kv]); 2]);
        seen.parts.push(observed(2, &cases).parts.remove(0));
        let said = verdict(&t, &seen);
        (said.outcome, said.figures.unwrap().direction)
    };
    assert_eq!(t.target, 100.0);
    assert_eq!(with(10.0, Some(40.0)), (Outcome::Value(400.0), Direction::Up));
    assert_eq!(with(1.0, Some(60.0)), (Outcome::Value(150.0), Direction::Down));
    // What is unknown everywhere counts as hold while another part is fresh.
    assert_eq!(with(1.0, None), (Outcome::Value(200.0), Direction::Hold));
    assert_eq!(with(10.0, None), (Outcome::Value(400.0), Direction::Up));
}

/// One pod whose reading was `values[k]` k half-seconds ago.
struct Recorded(Vec<f64>);

impl Past for Recorded {
    fn series(&self, _: usize, from: Timestamp) -> Vec<Series> {
        let samples = self
            .0
            .iter()
            .zip(0..)
            .map(|(value, k)| vec![seen(0, Reading::Ok(*value), INTERVAL * k)]);
        let samples = samples.filter(|sample| sample[0].taken_at >= Some(from));
        let ready_from = Timestamp::START;
        vec![Series { ready_from, ready_until: None, samples: samples.collect() }]
    }

    fn served_since(&self, _: Timestamp) -> bool {
        false
    }
}

#[test]
fn a_window_smooths_the_sum_and_not_the_answer() {
    let past = Recorded(vec![90.0, 80.0, 20.0, 10.0, 50.0, 100.0, 100.0]);
    let of = |window: &str, function: &str| {
        let t = trigger(&[("targetValue", "50"), ("window", window), ("windowFunction", function)]);
        match assess(&t, &observed(1, &[Case::Ready(vec![90.0])]), &past, NOW).outcome {
            Outcome::Value(value) => value,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(of("0s", "avg"), 90.0);
    assert_eq!(of("2s", "avg"), 50.0);
    assert_eq!(of("2s", "max"), 90.0);
    assert_eq!(of("2s", "min"), 10.0);
    assert_eq!(of("3500ms", "p90"), 100.0);
}

#[test]
fn a_burst_between_two_polls_keeps_the_workload_active_for_the_window() {
    let mut values = vec![1.0; 130];
    values[119] = 6.0;
    let active = |values: &[f64], window: &str| {
        let t = trigger(&[
            ("targetValue", "50"),
            ("activationThreshold", "5"),
            ("activationWindow", window),
        ]);
        let one = observed(1, &[Case::Ready(vec![values[0]])]);
        is_active(&t, &one, &verdict(&t, &one), &Recorded(values.to_vec()), NOW)
    };
    assert!(active(&values, "60s"), "59.5 s ago");
    assert!(!active(&values, "59s"));
    values[119] = 5.0;
    assert!(!active(&values, "60s"), "strictly greater");
}

#[test]
fn activity_follows_starting_pods_watching_time_and_requests() {
    let t = trigger(&[("targetValue", "50"), ("activationThreshold", "5")]);
    let active = |seen: &Observed| is_active(&t, seen, &verdict(&t, seen), &NoPast, NOW);
    let idle = observed(1, &[Case::Ready(vec![1.0])]);
    assert!(!active(&idle));
    assert!(active(&observed(2, &[Case::Ready(vec![1.0]), Case::Loading])));
    assert!(active(&observed(1, &[Case::Loading])));
    assert!(!active(&observed(0, &[])));
    let fresh = Observed { watched_since: Some(NOW - Duration::from_secs(59)), ..idle.clone() };
    assert!(active(&fresh), "watched for less than the activation window");
    let engine = trigger(&[("metricType", "kv_cache_usage"), ("activationThreshold", "50")]);
    let serving = Observed { serving: true, ..idle.clone() };
    assert!(is_active(&engine, &serving, &verdict(&engine, &serving), &NoPast, NOW));
    assert!(!is_active(&engine, &idle, &verdict(&engine, &idle), &NoPast, NOW));
}

#[test]
fn startup_grace_and_cold_start_end_when_they_say() {
    let grace = trigger(&[("targetValue", "50"), ("startupGrace", "30s")]);
    let mut seen = observed(2, &[Case::Ready(vec![100.0]), Case::Ready(vec![0.0])]);
    Arc::make_mut(&mut seen.pods)[1].since = NOW - Duration::from_secs(29);
    assert_eq!(value(&grace, &seen), 100.0, "the young pod counts as starting: hold");
    Arc::make_mut(&mut seen.pods)[1].since = NOW - Duration::from_secs(30);
    assert_eq!(value(&grace, &seen), 100.0, "now it counts: 100 of 100");
    let short = trigger(&[("targetValue", "50"), ("coldStartTimeout", "60s")]);
    let loading = observed(2, &[Case::Ready(vec![10.0]), Case::Loading]);
    assert_eq!(value(&short, &loading), 10.0, "100 s without readiness is stuck, not filled in");
    let mut absent = observed(3, &[Case::Ready(vec![10.0])]);
    assert_eq!(value(&short, &absent), 110.0);
    absent.short_since = Some(NOW - Duration::from_secs(60));
    assert_eq!(value(&short, &absent), 10.0);
}
