//! What holds for any processes on any devices.

use agent::device::{Observation, ObservedProcess, Processes};
use agent::owner::declared::Declaration;
use agent::owner::process::{Occupant, PodProcess, ProcessOwners};
use agent::owner::{Owners, resolve};
use proptest::prelude::*;
use shared::identity::PodKey;
use shared::metric::Metric;

use crate::attribution::{card, declaration, given};
use crate::owner::knowing;

const PODS: usize = 5;

fn uid(pod: usize) -> String {
    format!("uid-{pod}")
}

fn occupant() -> impl Strategy<Value = Option<Occupant>> {
    let pod = (0..PODS, any::<bool>(), any::<bool>()).prop_map(|(pod, named, contained)| {
        let key = named.then(|| PodKey::new("ai", format!("p{pod}")));
        let container = contained.then(|| "main".into());
        Some(Occupant::Pod(PodProcess { uid: uid(pod).into(), pod: key, container }))
    });
    let other = prop::sample::select(vec![
        None,
        Some(Occupant::Stranger),
        Some(Occupant::Unknown("why".into())),
        Some(Occupant::Mps),
    ]);
    prop_oneof![4 => pod, 1 => other]
}

fn process() -> impl Strategy<Value = (Option<Occupant>, Option<f64>, Option<f64>)> {
    let used = prop::option::weighted(0.8, 0.0..=100.0_f64);
    let memory = prop::option::weighted(0.8, 0.0..=400.0_f64);
    (occupant(), used, memory)
}

/// The owners, by the processes and in their order.
fn owners(
    whole: f64,
    processes: &[(Option<Occupant>, Option<f64>, Option<f64>)],
    declaration: &Declaration,
    is_reversed: bool,
) -> Owners {
    let numbered = || (1..).zip(processes);
    let occupants = numbered().filter_map(|(pid, (occupant, ..))| Some((pid, occupant.clone()?)));
    let known_pids =
        ProcessOwners { occupants: occupants.collect(), trouble: None, changed: false };
    let observed = numbered().map(|(pid, &(_, utilization, memory_mib))| ObservedProcess {
        pid,
        memory_mib,
        utilization,
    });
    let mut observed: Vec<_> = observed.collect();
    if is_reversed {
        observed.reverse();
    }
    let mut device = card(whole, Vec::new());
    device.processes = Processes::Known(observed);
    let observation = Observation { devices: vec![device], ..Observation::default() };
    resolve(&observation, knowing(declaration, &known_pids)).remove(0)
}

proptest! {
    #[test]
    fn holders_never_have_more_than_the_device_and_none_is_there_twice(
        whole in 0.0..=100.0_f64,
        processes in prop::collection::vec(process(), 0..12),
        mut declared in prop::collection::vec((0..PODS, any::<bool>(), any::<bool>()), 0..4),
    ) {
        declared.dedup_by_key(|(pod, ..)| *pod);
        declared.sort_unstable();
        declared.dedup_by_key(|(pod, ..)| *pod);
        let holders = declared.iter().map(|&(pod, with_uid, main)| {
            let uid = uid(pod);
            let container = if main { "main" } else { "other" };
            given(&format!("p{pod}"), with_uid.then_some(uid.as_str()), container)
        });
        let mut holders: Vec<_> = holders.collect();
        let declaration_of = |holders: &[_]| declaration(&[("GPU-a", holders.to_vec())]);
        let told = owners(whole, &processes, &declaration_of(&holders), false);

        for (metric, limit) in [(Metric::GpuUtilization, whole), (Metric::PowerDraw, 300.0)] {
            let held = told.held.iter().filter(|held| held.metric == metric);
            let sum: f64 = held.map(|held| held.value).sum();
            prop_assert!(sum <= limit * (1.0 + 1e-12), "{}: {}", metric, sum);
        }
        let sum: f64 = told.holders.iter().filter_map(|holder| holder.share).sum();
        prop_assert!(sum <= 1.0 + 1e-12, "{}", sum);
        prop_assert!(told.held.iter().all(|held| held.holder < told.holders.len()));
        for given in &holders {
            prop_assert!(
                told.holders.iter().any(|holder| holder.pod == given.pod && !holder.undeclared),
                "who was given it holds it"
            );
        }
        for (place, holder) in told.holders.iter().enumerate() {
            prop_assert!(!holder.pod.namespace.is_empty());
            let same = |other: &&shared::frame::Holder| {
                (&other.pod, &other.uid, &other.container)
                    == (&holder.pod, &holder.uid, &holder.container)
            };
            prop_assert_eq!(told.holders.iter().filter(same).count(), 1, "{}", place);
        }

        holders.reverse();
        let again = owners(whole, &processes, &declaration_of(&holders), true);
        prop_assert_eq!(&told.holders, &again.holders);
        prop_assert_eq!(&told.reason, &again.reason);
        for (one, other) in told.held.iter().zip(&again.held) {
            prop_assert_eq!((one.holder, one.metric), (other.holder, other.metric));
            prop_assert!((one.value - other.value).abs() < 1e-6, "{:?} {:?}", one, other);
        }
    }
}
