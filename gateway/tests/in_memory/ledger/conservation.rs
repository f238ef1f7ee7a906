//! No joule is lost or made up, whatever happens to pods, agents and counters.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::cases::APod;

/// What happens in a second of a simulated run.
#[derive(Clone, Debug)]
enum Event {
    Nothing,
    /// The pod goes to another GPU.
    Move {
        pod: usize,
        gpu: usize,
    },
    /// Frames of the node are lost for so many seconds.
    Lose {
        node: usize,
        seconds: u8,
    },
    /// The node's agent is another one now.
    Restart {
        node: usize,
    },
    /// The GPU's driver is loaded anew.
    Reset {
        gpu: usize,
    },
    /// The GPU's counter shows garbage once.
    Garbage {
        gpu: usize,
        joules: f64,
    },
}

const NODES: usize = 3;
const GPUS: usize = 6;
const PODS: usize = 4;
/// Joules of a counter that began anew not long ago.
const YOUNG: f64 = 2e5;

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        30 => Just(Event::Nothing),
        4 => (0..PODS, 0..GPUS).prop_map(|(pod, gpu)| Event::Move { pod, gpu }),
        1 => (0..NODES, 1..40_u8).prop_map(|(node, seconds)| Event::Lose { node, seconds }),
        1 => (0..NODES).prop_map(|node| Event::Restart { node }),
        1 => (0..GPUS).prop_map(|gpu| Event::Reset { gpu }),
        1 => (0..GPUS, 1e9..1e14).prop_map(|(gpu, joules)| Event::Garbage { gpu, joules }),
    ]
}

/// One GPU of the run, and what is true of it.
#[derive(Clone, Debug)]
struct Card {
    watts: f64,
    counter: f64,
    /// What the gateway can know of: between the first frame and the last, less what nobody can
    /// know because a reset took it away.
    truth: f64,
    /// Since the last frame that came through.
    pending: f64,
    was_seen: bool,
}

/// Every counter that Prometheus is shown, by name; one that goes back is one that began anew.
fn counters(ledger: &Ledger) -> BTreeMap<(String, &'static str), f64> {
    let of_workloads = ledger.workloads().flat_map(|(key, row)| {
        let figures = &row.figures;
        let known = [
            ("held", Some(figures.held)),
            ("busy", figures.busy),
            ("not held", figures.not_held),
            ("joules", figures.joules()),
        ];
        known.map(|(what, total)| (format!("{}/{}", key.kind, key.name), what, total))
    });
    let of_nodes = ledger.nodes().flat_map(|(name, row)| {
        let known = [
            ("joules", row.joules),
            ("unattributed", row.unattributed()),
            ("doubtful", Some(row.doubtful as f64)),
        ];
        known.map(|(what, total)| (name.to_string(), what, total))
    });
    let known = |(name, what, total): (_, _, Option<f64>)| Some(((name, what), total?));
    of_workloads.chain(of_nodes).filter_map(known).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn no_joule_is_lost_or_made_up_while_pods_move_agents_restart_and_counters_are_reset(
        events in prop::collection::vec(event(), 120..400),
        watts in prop::collection::vec(40.0..700.0_f64, GPUS),
        start in prop::collection::vec(1e6..1e9_f64, GPUS),
    ) {
        let mut world = World::new();
        let names = ["p0", "p1", "p2", "p3"];
        let pods: Vec<APod> = names.map(ready).into();
        world.workload("even", 2, &[pods[0].clone(), pods[2].clone()], at(0.0));
        world.workload("odd", 2, &[pods[1].clone(), pods[3].clone()], at(0.0));
        let mut agents: Vec<Session> =
            (0..NODES).map(|node| world.agent(&format!("n{node}"))).collect();
        let mut cards: Vec<Card> = watts.iter().zip(&start).map(|(watts, counter)| Card {
            watts: *watts, counter: *counter, truth: 0.0, pending: 0.0, was_seen: false,
        }).collect();
        let mut places: Vec<usize> = (0..PODS).collect();
        let mut lost_until = [0_usize; NODES];
        let mut ledger = Ledger::default();
        let mut before = BTreeMap::new();
        for (second, event) in events.iter().enumerate() {
            let now = at(f64::from(u32::try_from(second).unwrap()));
            let mut garbage = None;
            for card in &mut cards {
                card.counter += card.watts;
                card.pending += card.watts;
            }
            match event {
                Event::Nothing => {}
                Event::Move { pod, gpu } => places[*pod] = *gpu,
                Event::Lose { node, seconds } => {
                    lost_until[*node] = second + usize::from(*seconds);
                }
                Event::Restart { node } => agents[*node] = world.agent(&format!("n{node}")),
                // A counter that outgrows what it last showed hides that it began anew.
                Event::Reset { gpu } if cards[*gpu].counter < YOUNG => {}
                Event::Reset { gpu } => {
                    cards[*gpu].counter = 0.0;
                    cards[*gpu].pending = 0.0;
                }
                Event::Garbage { gpu, joules } => garbage = Some((*gpu, *joules)),
            }
            for (node, agent) in agents.iter().enumerate() {
                if second < lost_until[node] {
                    continue;
                }
                let mine = (0..GPUS).filter(|gpu| gpu % NODES == node);
                let gpus: Vec<Gpu> = mine.map(|at| {
                    let card = &mut cards[at];
                    let shown = match garbage {
                        // As its first word it would be nobody's to tell from the truth.
                        Some((gpu, joules)) if gpu == at && card.was_seen => joules,
                        _ => {
                            if card.was_seen {
                                card.truth += card.pending;
                            }
                            (card.pending, card.was_seen) = (0.0, true);
                            card.counter
                        }
                    };
                    let held = (0..PODS).filter(|pod| places[*pod] == at);
                    let held: Vec<_> = held.map(|pod| names[pod]).collect();
                    gpu(&format!("u{at}"), 60.0, shown, &held)
                }).collect();
                push(agent, &gpus, now);
            }
            look(&mut ledger, &world, now);
            let after = counters(&ledger);
            for (name, before) in &before {
                prop_assert!(after[name] >= *before, "{name:?}: {before}, then {}", after[name]);
            }
            before = after;
        }
        let now = at(f64::from(u32::try_from(events.len()).unwrap()));
        let report = report(&ledger, &world, now);
        let truth: f64 = cards.iter().map(|card| card.truth).sum();
        let known: f64 = report.nodes.iter().filter_map(|node| node.joules).sum();
        prop_assert!((known - truth).abs() <= truth * 0.001 + 1.0, "{known}, not {truth}");
        let attributed: f64 = report.nodes.iter().filter_map(|node| node.joules_attributed).sum();
        let nobodys: f64 = report.nodes.iter().filter_map(|node| node.joules_unattributed).sum();
        let of_workloads: f64 =
            report.workloads.iter().filter_map(|entry| entry.counted.joules).sum();
        prop_assert!((attributed + nobodys - known).abs() < 0.1, "{report:#?}");
        prop_assert!((of_workloads - attributed).abs() < 0.1, "{report:#?}");
        let held: f64 = report.workloads.iter().map(|it| it.counted.gpu_seconds_held).sum();
        let of_nodes: BTreeMap<_, _> = report.nodes.iter().map(|node| {
            (node.node.as_str(), (node.gpu_seconds_held, node.gpu_seconds_free))
        }).collect();
        let by_node: f64 = of_nodes.values().map(|(held, _)| held).sum();
        prop_assert!((held - by_node).abs() < 0.1);
        for (held, free) in of_nodes.values() {
            prop_assert!(held + free <= 2.0 * report.since_seconds + 0.1);
        }
    }
}
