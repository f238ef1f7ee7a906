//! A shared device's readings and each party's part of them.

use agent::device::ObservedProcess;
use agent::owner::split::{Basis, Part, Party, Usage, split};
use proptest::prelude::*;
use shared::metric::Metric;
use shared::reading::{Reading, Readings};

const TOTAL: Option<f64> = Some(80.0 * 1_024.0);

fn reads(readings: &[(Metric, f64)]) -> Readings {
    readings.iter().map(|&(metric, value)| (metric, Reading::Ok(value))).collect()
}

fn load(utilization: f64) -> Readings {
    reads(&[(Metric::GpuUtilization, utilization), (Metric::PowerDraw, 300.0)])
}

fn used(utilization: f64) -> Usage {
    Usage { utilization: Some(utilization), memory_mib: None }
}

fn has(memory_mib: f64) -> Usage {
    Usage { utilization: None, memory_mib: Some(memory_mib) }
}

/// Parties of a pod each that were given the device.
fn pods(usages: &[Usage]) -> Vec<Party> {
    let party = |(pod, &usage)| Party { pod, is_declared: true, usage };
    usages.iter().enumerate().map(party).collect()
}

fn held(parts: &[Part], metric: Metric) -> Vec<Option<f64>> {
    let of =
        |part: &Part| part.held.iter().find(|(own, _)| *own == metric).map(|(_, value)| *value);
    parts.iter().map(of).collect()
}

fn shares(parts: &[Part]) -> Vec<Option<f64>> {
    parts.iter().map(|part| part.share).collect()
}

fn utilizations(basis: Basis, whole: f64, usages: &[Usage], others: Usage) -> Vec<Option<f64>> {
    let parts = split(basis, &load(whole), TOTAL, &pods(usages), others);
    assert!(shares(&parts).iter().all(Option::is_none));
    held(&parts, Metric::GpuUtilization)
}

#[test]
fn what_processes_were_measured_to_use_is_their_pods_and_no_more_than_the_device() {
    let nobody = Usage::NOTHING;
    for (whole, parts, others, expected) in [
        // a has processes with 30 and 20 %, b one with 30 %.
        (80.0, vec![used(50.0), used(30.0)], nobody, vec![50.0, 30.0]),
        (0.0, vec![used(0.0), used(0.0)], nobody, vec![0.0, 0.0]),
        // Three pods on a time-sliced card.
        (90.0, vec![used(60.0), used(20.0), used(10.0)], nobody, vec![60.0, 20.0, 10.0]),
        // What nobody is seen to use is not spread.
        (80.0, vec![used(20.0), used(10.0)], nobody, vec![20.0, 10.0]),
        // More than the device: scaled.
        (50.0, vec![used(60.0), used(40.0)], nobody, vec![30.0, 20.0]),
        (0.0, vec![used(3.0), used(0.0)], nobody, vec![0.0, 0.0]),
        // Processes of no pod take their part too.
        (60.0, vec![used(30.0), used(30.0)], used(60.0), vec![15.0, 15.0]),
    ] {
        let expected: Vec<_> = expected.into_iter().map(Some).collect();
        assert_eq!(utilizations(Basis::Process, whole, &parts, others), expected, "{parts:?}");
    }
    // What is unknown of one is not known to be nothing.
    let parts = [used(40.0), Usage::UNKNOWN];
    assert_eq!(utilizations(Basis::Process, 80.0, &parts, nobody), [Some(40.0), None]);
}

#[test]
fn without_times_the_memory_of_processes_splits() {
    let parts = [has(30.0 * 1_024.0), has(10.0 * 1_024.0)];
    let expected = [Some(60.0), Some(20.0)];
    assert_eq!(utilizations(Basis::Memory, 80.0, &parts, Usage::NOTHING), expected);
    // 10 of 50 GiB are of no pod.
    let others = has(10.0 * 1_024.0);
    let expected = [Some(48.0), Some(16.0)];
    assert_eq!(utilizations(Basis::Memory, 80.0, &parts, others), expected);
    let unknown = [None, None];
    assert_eq!(utilizations(Basis::Memory, 80.0, &parts, Usage::UNKNOWN), unknown);
}

#[test]
fn with_nothing_to_go_by_everyone_who_was_given_the_device_has_as_much() {
    let mut parties = pods(&[Usage::UNKNOWN; 4]);
    // Two containers of one pod, and somebody who was not given it.
    parties[1].pod = 0;
    parties[3].is_declared = false;
    let parts = split(Basis::Equal, &load(80.0), TOTAL, &parties, Usage::UNKNOWN);
    assert_eq!(shares(&parts), [Some(0.25), Some(0.25), Some(0.5), None]);
    assert!(parts.iter().all(|part| part.held.is_empty()));
}

#[test]
fn of_a_load_that_is_not_known_nothing_is_anybodys_but_memory_is() {
    let both =
        |utilization, memory| Usage { utilization: Some(utilization), memory_mib: Some(memory) };
    let readings: Readings = [
        (Metric::GpuUtilization, Reading::Failed("the GPU is lost".into())),
        (Metric::PowerDraw, Reading::Ok(100.0)),
    ]
    .into_iter()
    .collect();
    let parties = pods(&[both(20.0, 8_192.0), both(0.0, 0.0)]);
    for basis in [Basis::Process, Basis::Memory] {
        let parts = split(basis, &readings, TOTAL, &parties, Usage::NOTHING);
        let expected = [(Metric::MemoryUsedMib, 8_192.0), (Metric::MemoryUsedPercent, 10.0)];
        assert_eq!(parts[0].held, expected);
        assert_eq!(parts[0].share, None);
    }
}

#[test]
fn memory_is_what_the_pods_processes_have_and_unknown_where_they_do_not_say() {
    let parts =
        split(Basis::Process, &load(50.0), TOTAL, &pods(&[used(50.0), used(0.0)]), Usage::NOTHING);
    assert_eq!(held(&parts, Metric::MemoryUsedMib), [None, None]);
    assert_eq!(shares(&parts), [None, None], "and so it is not known");
    // Managed memory may be more than there is; that is no percentage.
    let parts =
        split(Basis::Memory, &load(50.0), Some(1_000.0), &pods(&[has(2_000.0)]), Usage::NOTHING);
    assert_eq!(held(&parts, Metric::MemoryUsedMib), [Some(2_000.0)]);
    assert_eq!(held(&parts, Metric::MemoryUsedPercent), [None]);
    let parts = split(Basis::Memory, &load(50.0), None, &pods(&[has(2_000.0)]), Usage::NOTHING);
    assert_eq!(held(&parts, Metric::MemoryUsedPercent), [None]);
}

#[test]
fn power_follows_the_load_and_is_everyones_alike_without_one() {
    let power = |whole, parties: &[Party]| {
        let parts = split(Basis::Process, &load(whole), TOTAL, parties, Usage::NOTHING);
        held(&parts, Metric::PowerDraw)
    };
    let card = pods(&[used(60.0), used(20.0), used(10.0)]);
    let expected = [60.0, 20.0, 10.0].map(|used: f64| Some(300.0 * (used / 90.0)));
    assert_eq!(power(90.0, &card), expected);
    // A third of the load is nobody's, and so is a third of the power.
    assert_eq!(power(90.0, &pods(&[used(60.0), used(0.0)])), [Some(200.0), Some(0.0)]);
    let mut idle = pods(&[used(0.0), used(0.0), used(0.0)]);
    idle[1].pod = 0;
    assert_eq!(power(0.0, &idle), [Some(75.0), Some(75.0), Some(150.0)]);
}

#[test]
fn a_device_is_split_by_the_best_that_its_processes_allow() {
    let process = |utilization, memory_mib| ObservedProcess { pid: 1, memory_mib, utilization };
    for (processes, expected) in [
        (vec![], Basis::Process),
        (vec![process(Some(0.0), None)], Basis::Process),
        (vec![process(None, Some(1.0)), process(Some(3.0), None)], Basis::Process),
        (vec![process(None, Some(1.0)), process(None, Some(0.0))], Basis::Memory),
        (vec![process(None, Some(1.0)), process(None, None)], Basis::Equal),
        (vec![process(None, Some(0.0))], Basis::Equal),
        (vec![process(None, None)], Basis::Equal),
    ] {
        assert_eq!(Basis::of(&processes), expected, "{processes:?}");
    }
    assert!(!Basis::Process.is_estimate());
    assert!(Basis::Memory.is_estimate() && Basis::Equal.is_estimate());
}

fn usage() -> impl Strategy<Value = Usage> {
    let utilization = prop::option::weighted(0.9, 0.0..=100.0_f64);
    let memory = prop::option::weighted(0.9, 0.0..=80_000.0_f64);
    (utilization, memory).prop_map(|(utilization, memory_mib)| Usage { utilization, memory_mib })
}

fn basis() -> impl Strategy<Value = Basis> {
    prop::sample::select(vec![Basis::Process, Basis::Memory, Basis::Equal])
}

proptest! {
    #[test]
    fn parts_are_never_more_than_the_whole_and_their_order_changes_nothing(
        basis in basis(),
        whole in 0.0..=100.0_f64,
        usages in prop::collection::vec(usage(), 1..9),
        same in prop::collection::vec(0..4_usize, 9),
        declared in prop::collection::vec(any::<bool>(), 9),
        others in usage(),
    ) {
        let mut parties = pods(&usages);
        for (party, (pod, declared)) in parties.iter_mut().zip(same.into_iter().zip(declared)) {
            (party.pod, party.is_declared) = (pod, declared);
        }
        let parts = split(basis, &load(whole), TOTAL, &parties, others);
        for (metric, limit) in [(Metric::GpuUtilization, whole), (Metric::PowerDraw, 300.0)] {
            let sum: f64 = held(&parts, metric).into_iter().flatten().sum();
            prop_assert!(sum <= limit * (1.0 + 1e-12), "{metric}: {sum} of {limit}");
        }
        let sum: f64 = shares(&parts).into_iter().flatten().sum();
        prop_assert!(sum <= 1.0 + 1e-12, "{sum}");
        for part in &parts {
            prop_assert!(part.held.iter().all(|(metric, value)| metric.accepts(*value)));
            prop_assert!(part.share.is_none_or(|share| (0.0..=1.0).contains(&share)));
        }
        parties.reverse();
        let mut reversed = split(basis, &load(whole), TOTAL, &parties, others);
        reversed.reverse();
        for (part, other) in parts.iter().zip(&reversed) {
            prop_assert_eq!(part.share, other.share);
            prop_assert_eq!(part.held.len(), other.held.len());
            for ((metric, value), (same, again)) in part.held.iter().zip(&other.held) {
                prop_assert_eq!(metric, same);
                prop_assert!((value - again).abs() < 1e-6, "{}: {} {}", metric, value, again);
            }
        }
    }

    #[test]
    fn nobody_has_less_for_what_others_do_not_use(
        used_by in prop::collection::vec(0.0..=30.0_f64, 1..4),
    ) {
        let usages: Vec<_> = used_by.iter().map(|&part| used(part)).collect();
        let parts = utilizations(Basis::Process, 100.0, &usages, Usage::NOTHING);
        prop_assert_eq!(parts, used_by.into_iter().map(Some).collect::<Vec<_>>());
    }
}
