//! Whose a row is, and whose a GPU, where several want it.

use gateway::ledger::{Ledger, MAX_WORKLOADS};

use super::{gpu, look, near, of, push, report};
use crate::cases::{World, at};

#[test]
fn a_row_that_is_needed_again_gives_way_to_none_that_comes_with_it() {
    let mut world = World::new();
    world.workload("llm", 0, &[], at(0.0));
    let agents = [world.agent("n1"), world.agent("n2")];
    let mut ledger = Ledger::default();
    let one = |at: usize| gpu(&format!("u{at}"), 50.0, 0.0, &[&format!("p{at}")]);
    let others: Vec<_> = (1..MAX_WORKLOADS).map(one).collect();
    push(&agents[0], &others, at(0.0));
    let held = |joules, pods: [&[&str]; 2]| {
        [gpu("a", 50.0, joules, pods[0]), gpu("b", 50.0, joules, pods[1])]
    };
    for (second, joules, pods) in [
        (0.0, 0.0, [&["back"][..], &[]]),
        (1.0, 0.0, [&[], &[]]),
        (30.0, 0.0, [&["back"], &["new"]]),
        (31.0, 100.0, [&["back"], &["new"]]),
        (32.0, 200.0, [&["back"], &["new"]]),
    ] {
        push(&agents[1], &held(joules, pods), at(second));
        look(&mut ledger, &world, at(second));
    }
    let report = report(&ledger, &world, at(32.0));
    near(of(&report, "back").joules, 200.0);
    assert!(report.workloads.iter().all(|entry| &*entry.name != "new"), "there is no room for it");
    near(report.namespaces[0].counted.joules, 400.0);
}

#[test]
fn of_two_nodes_that_claim_a_gpu_at_once_the_first_by_name_counts_in_every_replica() {
    for _ in 0..16 {
        let world = World::new();
        world.directory.snapshot().unwrap().confirm(at(0.0));
        for node in ["n3", "n1", "n4", "n2"] {
            push(&world.agent(node), &[gpu("u1", 50.0, 0.0, &[node])], at(0.0));
        }
        world.answers.books().look();
        let report = world.answers.books().report();
        let pods: Vec<_> = report.workloads.iter().map(|entry| &*entry.name).collect();
        assert_eq!(pods, ["n1"]);
    }
}
