//! The worked numbers of `keda-contract.md` and `cases.md`, what a real HPA was seen to do, and
//! what must hold for any history.

use proptest::prelude::*;

use super::*;

fn average(value: f64, target: f64) -> Metric {
    let kind = MetricType::AverageValue;
    Metric { kind, value, target }
}

fn literal(value: f64, target: f64) -> Metric {
    let kind = MetricType::Value;
    Metric { kind, value, target }
}

fn running(replicas: u32) -> Scale {
    with_ready(replicas, replicas)
}

fn with_ready(replicas: u32, ready: u32) -> Scale {
    Scale { spec: replicas, status: replicas, ready }
}

fn seconds(seconds: i64) -> Timestamp {
    Timestamp::from_millis(seconds * 1_000)
}

const PERIOD: Behavior = Behavior::Default { period: Duration::from_secs(15) };

fn hpa(min: u32, max: u32, behavior: Behavior) -> Hpa {
    Hpa::new(Settings { behavior, ..Settings::upstream(min, max) })
}

/// Follows its own orders, a sync every 15 s, while `metric` depends on the replicas.
fn follow(mut hpa: Hpa, start: u32, syncs: i64, metric: impl Fn(u32) -> Metric) -> Vec<u32> {
    let mut replicas = start;
    (0..syncs)
        .map(|sync| {
            let seen = Some(metric(replicas));
            replicas = hpa.sync(seconds(15 * sync), running(replicas), seen).desired;
            replicas
        })
        .collect()
}

#[test]
fn the_formulas_give_the_contract_s_worked_numbers() {
    // N, mean utilisation, then: mean as AverageValue, sum as AverageValue, mean as Value; t = 70.
    let table = [
        (1, 90.0, 2, 2, 2),
        (2, 90.0, 2, 3, 3),
        (4, 90.0, 2, 6, 6),
        (8, 90.0, 2, 11, 11),
        (8, 100.0, 2, 12, 12),
        (8, 50.0, 1, 6, 6),
        (8, 20.0, 1, 3, 3),
    ];
    for (n, mean, mean_average, sum_average, mean_value) in table {
        let asked = |metric| wish(metric, running(n), 0.1).0;
        assert_eq!(asked(average(mean, 70.0)), mean_average, "mean, {n} at {mean}");
        let sum = mean * f64::from(n);
        assert_eq!(asked(average(sum, 70.0)), sum_average, "sum, {n} at {mean}");
        assert_eq!(asked(literal(mean, 70.0)), mean_value, "Value, {n} at {mean}");
    }
}

#[test]
fn the_formulas_give_the_worked_cases() {
    let table = [
        ("O01", average(110.0, 50.0), running(3), 3),
        ("O01, one node's view", average(90.0, 50.0), running(3), 2),
        ("O01, with the stranger", average(210.0, 50.0), running(3), 5),
        ("O02", average(570.0, 80.0), running(6), 8),
        ("O02, the average", average(95.0, 80.0), running(6), 2),
        ("O03 a", average(24.0, 5.0), running(4), 5),
        ("O03 b", average(8.0, 5.0), running(4), 2),
        ("O06", average(200.0, 50.0), with_ready(4, 2), 4),
        ("O06, mean of all", average(50.0, 50.0), with_ready(4, 2), 1),
        ("O10 A", average(80.0, 60.0), running(2), 2),
        ("O10 B", average(10.0, 60.0), running(1), 1),
        ("4.4 sum of reporters", average(360.0, 70.0), with_ready(8, 4), 6),
        ("4.4 mean x N", average(720.0, 70.0), with_ready(8, 4), 11),
        ("4.4 Value, all ready", literal(90.0, 70.0), running(8), 11),
        ("4.4 Value, half ready", literal(90.0, 70.0), with_ready(8, 4), 6),
        ("4.4 Value scales in", literal(84.0, 70.0), with_ready(6, 4), 5),
        ("Value, none ready", literal(84.0, 70.0), with_ready(6, 0), 0),
        ("no number is none", average(f64::NAN, 70.0), running(2), 0),
    ];
    for (case, metric, scale, expected) in table {
        assert_eq!(wish(metric, scale, 0.1).0, expected, "{case}");
    }
}

#[test]
fn close_enough_keeps_what_exists_or_what_was_ordered() {
    let surge = Scale { spec: 10, status: 11, ready: 10 };
    assert_eq!(wish(average(700.0, 70.0), surge, 0.1).0, 11);
    assert_eq!(wish(literal(72.0, 70.0), surge, 0.1).0, 10);
}

#[test]
fn a_signal_that_counts_loading_pods_runs_away_and_one_that_does_not_stays() {
    let runaway = follow(hpa(1, 64, PERIOD), 4, 6, |_| literal(95.0, 70.0));
    assert_eq!(runaway, [6, 9, 13, 18, 25, 34]);
    let cascade = follow(hpa(1, 32, PERIOD), 4, 4, |n| average(100.0 * f64::from(n), 50.0));
    assert_eq!(cascade, [8, 16, 32, 32]);
    let held = follow(hpa(1, 64, PERIOD), 4, 20, |_| average(200.0, 50.0));
    assert_eq!(held, [4; 20]);
}

#[test]
fn growth_is_limited_as_a_real_hpa_was_seen_to_limit_it() {
    // keda-observed 4: value 72, target 10, from 1: first 4, then 8.
    let seen = follow(hpa(1, 10, Behavior::Unset), 1, 3, |_| average(72.0, 10.0));
    assert_eq!(seen, [4, 8, 8]);
    let by_policy = follow(hpa(1, 100, PERIOD), 1, 5, |_| average(900.0, 10.0));
    assert_eq!(by_policy, [5, 10, 20, 40, 80]);
    let mut hpa = hpa(1, 100, PERIOD);
    let mut order = |at, n| hpa.sync(seconds(at), running(n), Some(average(900.0, 10.0)));
    assert_eq!(order(0, 1).desired, 5);
    let again = order(5, 5);
    let by = Limit::Rate;
    assert_eq!(again, Decision::new(5, Reason::Limited { wish: 90, by }));
    assert_eq!(order(15, 5).desired, 10);
}

#[test]
fn scaling_down_waits_for_the_highest_wish_of_the_window_to_pass() {
    for behavior in [Behavior::Unset, PERIOD] {
        let mut hpa = hpa(1, 10, behavior);
        let mut order = |at, n, value| {
            let metric = (value >= 0.0).then(|| average(value, 10.0));
            hpa.sync(seconds(at), running(n), metric)
        };
        assert_eq!(order(0, 4, 80.0).desired, 8);
        assert_eq!(
            order(15, 8, 20.0),
            Decision::new(8, Reason::Stabilized { wish: 2, highest: 8 })
        );
        assert_eq!(order(30, 8, 50.0).desired, 8);
        assert_eq!(order(45, 8, -1.0), Decision::new(8, Reason::MetricError));
        assert_eq!(order(300, 8, 0.0).desired, 5, "8 is 300 s old, 5 is not");
        let by = Limit::Min;
        assert_eq!(order(345, 5, 0.0), Decision::new(1, Reason::Limited { wish: 0, by }));
    }
}

#[test]
fn limits_zero_and_errors_come_before_the_metric() {
    let mut hpa = hpa(2, 6, PERIOD);
    let mut order = |n, metric| hpa.sync(seconds(0), running(n), metric);
    assert_eq!(order(0, Some(average(500.0, 10.0))), Decision::new(0, Reason::Disabled));
    assert_eq!(order(9, None), Decision::new(6, Reason::OutsideLimits));
    assert_eq!(order(1, None), Decision::new(2, Reason::OutsideLimits));
    let by = Limit::Max;
    let limited = Decision::new(6, Reason::Limited { wish: 50, by });
    assert_eq!(order(5, Some(average(500.0, 10.0))), limited);
}

proptest! {
    #[test]
    fn any_history_stays_in_its_limits_and_never_moves_against_its_metric(
        behavior in prop_oneof![Just(Behavior::Unset), Just(PERIOD)],
        syncs in prop::collection::vec((0_i64..60, prop::option::of(0.0_f64..2_000.0)), 1..40),
    ) {
        let mut hpa = hpa(1, 20, behavior);
        let (mut now, mut replicas, mut highest) = (0, 3, 3);
        for (pause, value) in syncs {
            now += pause;
            let metric = value.map(|value| average(value, 50.0));
            let decision = hpa.sync(seconds(now), running(replicas), metric);
            prop_assert!((1..=20).contains(&decision.desired));
            let Some(metric) = metric else {
                prop_assert_eq!(decision.desired, replicas);
                continue;
            };
            let (asked, _) = wish(metric, running(replicas), 0.1);
            highest = highest.max(asked);
            prop_assert!(decision.desired >= asked.min(replicas), "shrank past its wish");
            prop_assert!(decision.desired <= highest.max(replicas), "grew past every wish");
            replicas = decision.desired;
        }
    }

    #[test]
    fn more_load_never_asks_for_fewer_replicas_outside_the_tolerance(
        n in 1_u32..50, value in 0.0_f64..5_000.0, more in 0.0_f64..500.0,
    ) {
        let asked = |value| wish(average(value, 70.0), running(n), 0.0).0;
        prop_assert!(asked(value + more) >= asked(value));
    }
}
