//! What people are told: pods that wait for a place are not pods that load, and the tables.

use gateway::answer::Assessment;
use gateway::trigger::verdict::Direction;

use crate::cases::{APod, World, at, desired, push, ready};

const NO_GPU: &str = "0/8 nodes are available: insufficient nvidia.com/gpu";

// === Pods that cannot be scheduled ===

/// Eight replicas, of which five find no GPU since second 100; the rest at `load` percent.
fn five_of_eight(load: f64, now: f64) -> Assessment {
    let mut world = World::new();
    let waiting = |name| APod(name, None, None, Err(at(100.0)), Some(NO_GPU));
    let pods = ["d", "e", "f", "g", "h"].map(waiting);
    let pods = [&[ready("a"), ready("b"), ready("c")][..], &pods].concat();
    world.workload("llm", 8, &pods, at(100.0));
    let agent = world.agent("n1");
    let devices = [("u1", "a", None, load), ("u2", "b", None, load), ("u3", "c", None, load)];
    push(&agent, &devices, at(now));
    let asked = [("targetValue", "70"), ("coldStartTimeout", "10m")];
    world.assess("llm", &asked, at(now)).unwrap()
}

#[test]
fn five_of_eight_pods_without_a_gpu_hold_a_busy_fleet_and_shrink_an_idle_one_to_six() {
    for (load, value, replicas, direction) in
        [(100.0, 560.0, 8, Direction::Hold), (20.0, 410.0, 6, Direction::Down)]
    {
        let answer = five_of_eight(load, 140.0);
        assert_eq!(answer.value(), Ok(value), "{load} %");
        assert_eq!(desired(value, 70.0, 8), replicas);
        assert_eq!(answer.verdict.figures.unwrap().direction, direction);
        let coverage = answer.verdict.coverage;
        assert_eq!((coverage.reporting, coverage.starting, coverage.unscheduled), (3, 5, 5));
        let reason = answer.verdict.reason.to_string();
        assert!(
            reason.contains("3 of 8") && reason.contains("5 waiting to be scheduled"),
            "{reason}"
        );
    }
}

#[test]
fn a_pod_without_a_gpu_for_longer_than_cold_start_timeout_is_stuck_and_not_filled_in() {
    for (load, value, replicas) in [(100.0, 300.0, 5), (20.0, 60.0, 1)] {
        let answer = five_of_eight(load, 701.0);
        assert_eq!(answer.value(), Ok(value), "{load} %");
        assert_eq!(desired(value, 70.0, 8), replicas);
        let coverage = answer.verdict.coverage;
        assert_eq!((coverage.starting, coverage.stuck, coverage.stuck_unscheduled), (0, 5, 5));
    }
}

#[test]
fn a_reason_tells_waiting_pods_from_loading_ones() {
    let mut world = World::new();
    let young = |name, why| APod(name, None, None, Err(at(100.0)), why);
    world.workload("llm", 2, &[young("a", None), young("b", Some(NO_GPU))], at(100.0));
    let reason = |now| world.assess("llm", &[], at(now)).unwrap().verdict.reason.to_string();
    assert_eq!(
        reason(101.0),
        "2 pods starting (1 waiting to be scheduled), none reports yet: nothing moves"
    );
    assert_eq!(
        reason(5_000.0),
        "2 pods not ready for longer than coldStartTimeout (1 waiting to be scheduled), \
         and no demand source"
    );
}
