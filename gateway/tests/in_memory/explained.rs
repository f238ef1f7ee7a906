//! What people are told: pods that wait for a place are not pods that load, and the tables.

use std::path::Path;
use std::sync::Arc;
use std::{env, fs};

use gateway::answer::Assessment;
use gateway::directory::DeclaredTrigger;
use gateway::explain::{Explanation, explain_at, table};
use gateway::trigger::observed::TargetType;
use gateway::trigger::verdict::Direction;

use shared::time::Timestamp;

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

// === Tables for people ===

/// A world whose ScaledObjects all declare one trigger on GPU utilisation.
fn world(target: &str) -> World {
    let metadata = [("metricType", "gpu_utilization"), ("targetValue", target)];
    let declared = DeclaredTrigger {
        index: 0,
        pushes: true,
        name: None,
        target_type: TargetType::AverageValue,
        metadata: metadata.map(|(key, value)| (key.into(), value.into())).into(),
    };
    World { triggers: Arc::new([declared]), ..World::new() }
}

fn explained(world: &World, now: f64) -> Explanation {
    explain_at(&world.answers, "ml", "llm", at(now)).unwrap()
}

/// Compares with the golden file, or writes it if `UPDATE_GOLDEN` is set.
fn is_golden(name: &str, world: &World, now: f64) {
    let text = table::render(&explained(world, now));
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/golden/explain");
    let file = folder.join(name);
    if env::var_os("UPDATE_GOLDEN").is_some() {
        fs::create_dir_all(&folder).unwrap();
        fs::write(&file, &text).unwrap();
    }
    assert_eq!(fs::read_to_string(&file).unwrap_or_default(), text, "{name}");
}

fn on(name: &'static str, node: &'static str) -> APod {
    APod(name, None, Some(node), Ok(Timestamp::LONG_AGO), None)
}

#[test]
fn o01_reads_as_the_golden_file() {
    let mut world = world("50");
    let pods = [on("llm-0", "n1"), on("llm-1", "n2"), on("llm-2", "n3")];
    world.workload("llm", 3, &pods, at(0.0));
    let agents = ["n1", "n2", "n3"].map(|node| world.agent(node));
    push(&agents[0], &[("u1", "llm-0", None, 90.0), ("u9", "other-0", None, 100.0)], at(1.0));
    push(&agents[1], &[("u2", "llm-1", None, 10.0)], at(1.0));
    push(&agents[2], &[("u3", "llm-2", None, 10.0)], at(1.0));
    is_golden("O01.txt", &world, 1.5);
}

#[test]
fn o06_reads_as_the_golden_file() {
    let mut world = world("50");
    let old = [on("llm-0", "n1"), on("llm-1", "n2")];
    world.workload("llm", 2, &old, at(0.0));
    let loading = |name, node| APod(name, None, node, Err(at(100.0)), None);
    let waiting = |name| APod(name, None, None, Err(at(100.0)), None);
    let ordered = [&old[..], &[waiting("llm-2"), waiting("llm-3")]].concat();
    world.workload("llm", 4, &ordered, at(100.0));
    let young = [loading("llm-2", Some("n1")), loading("llm-3", Some("n2"))];
    world.workload("llm", 4, &[&old[..], &young].concat(), at(102.0));
    let agents = ["n1", "n2"].map(|node| world.agent(node));
    push(&agents[0], &[("u1", "llm-0", None, 100.0), ("u3", "llm-2", None, 3.0)], at(160.0));
    push(&agents[1], &[("u2", "llm-1", None, 100.0), ("u4", "llm-3", None, 5.0)], at(160.0));
    world.directory.snapshot().unwrap().confirm(at(160.0));
    is_golden("O06.txt", &world, 160.5);
}

#[test]
fn pods_without_a_gpu_read_as_the_golden_file() {
    let mut world = world("70");
    let waiting = |name| APod(name, None, None, Err(at(100.0)), Some(NO_GPU));
    let loading = APod("llm-2", None, Some("n1"), Err(at(110.0)), None);
    let pods = [on("llm-0", "n1"), on("llm-1", "n1"), loading, waiting("llm-3"), waiting("llm-4")];
    world.workload("llm", 5, &pods, at(110.0));
    let agent = world.agent("n1");
    let devices =
        [("u0", "llm-0", None, 98.0), ("u1", "llm-1", None, 95.0), ("u2", "llm-2", None, 0.0)];
    push(&agent, &devices, at(150.0));
    world.directory.snapshot().unwrap().confirm(at(150.0));
    is_golden("unscheduled.txt", &world, 150.5);
    let explanation = explained(&world, 150.5);
    let why = |at: usize| explanation.triggers[0].pods[at].why.clone().unwrap();
    assert_eq!(why(2), "not ready for 40 s: loading");
    assert_eq!(why(3), format!("waiting for a GPU: {NO_GPU} (for 50 s)"));
}
