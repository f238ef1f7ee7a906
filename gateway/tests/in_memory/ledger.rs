//! The ledger with the time as a parameter: hours of GPUs take no time to test.

use std::sync::Arc;
use std::time::Duration;

use gateway::fleet::Session;
use gateway::ledger::report::{Counted, Report};
use gateway::ledger::tariff::Tariff;
use gateway::ledger::{Ledger, MAX_WORKLOADS};
use shared::frame::{
    Device, DeviceSample, Engine, EngineSample, HeldReading, Holder, HolderSource, Inventory, Mig,
    Sample,
};
use shared::health::{Energy, Origin};
use shared::identity::PodKey;
use shared::metric::Metric;
use shared::reading::Reading;
use shared::time::Timestamp;

use crate::cases::{World, at, ready};

/// No joule is lost or made up.
mod conservation;
/// Whose a row is, and whose a GPU.
mod places;
/// Readings that are missing, and parts that are not known.
mod unknown;

const MODEL: &str = "NVIDIA H100 80GB HBM3";

/// A GPU as its agent tells it.
#[derive(Clone)]
struct Gpu {
    uuid: String,
    load: Option<f64>,
    joules: Option<f64>,
    /// Pods and their own parts of the load, in percent.
    pods: Vec<(String, Option<f64>)>,
    mig: Option<Mig>,
    memory: (f64, f64),
}

fn gpu(uuid: &str, load: f64, joules: f64, pods: &[&str]) -> Gpu {
    Gpu {
        uuid: uuid.into(),
        load: Some(load),
        joules: Some(joules),
        pods: pods.iter().map(|pod| ((*pod).into(), None)).collect(),
        mig: None,
        memory: (80_000.0, 40_000.0),
    }
}

impl Gpu {
    fn device(&self) -> Device {
        let count = self.pods.len() as f64;
        let holder = |(pod, part): &(String, Option<f64>)| Holder {
            pod: PodKey::new("ml", pod.as_str()),
            uid: None,
            container: "main".into(),
            share: part.is_none().then_some(1.0 / count),
            estimated: part.is_none() && count > 1.0,
            source: if part.is_some() { HolderSource::Process } else { HolderSource::Equal },
            undeclared: false,
        };
        Device {
            uuid: self.uuid.as_str().into(),
            index: 0,
            name: MODEL.into(),
            memory_total_mib: Some(self.memory.0),
            mig: self.mig.clone(),
            holders: self.pods.iter().map(holder).collect(),
            reason: None,
            health: None,
        }
    }

    fn sample(&self) -> DeviceSample {
        let load = self.load.map_or(Reading::Unsupported, Reading::Ok);
        let readings =
            [(Metric::GpuUtilization, load), (Metric::MemoryUsedMib, Reading::Ok(self.memory.1))];
        let metric = Metric::GpuUtilization;
        let held = self.pods.iter().enumerate().filter_map(|(holder, (_, part))| {
            Some(HeldReading { holder, metric, value: (*part)? })
        });
        DeviceSample {
            readings: readings.into_iter().collect(),
            held: held.collect(),
            energy: self.joules.map(|joules| Energy { joules, origin: Origin::Counter }),
            ..DeviceSample::default()
        }
    }
}

fn push(agent: &Session, gpus: &[Gpu], now: Timestamp) {
    let devices = gpus.iter().map(Gpu::device).collect();
    let inventory = Arc::new(Inventory { devices, ..Inventory::default() });
    let devices = gpus.iter().map(|gpu| Some(gpu.sample())).collect();
    agent.apply(&inventory, Sample { devices, engines: Vec::new() }, now);
}

fn look(ledger: &mut Ledger, world: &World, now: Timestamp) {
    let nodes = world.fleet.nodes();
    let views = nodes.iter().filter_map(|node| Some((&node.name, &**node.view.as_ref()?)));
    let snapshot = world.directory.snapshot().unwrap();
    snapshot.confirm(now);
    ledger.look(views, &snapshot, now);
}

fn report(ledger: &Ledger, world: &World, now: Timestamp) -> Report {
    ledger.report(world.directory.snapshot().as_deref(), now)
}

fn of<'a>(report: &'a Report, workload: &str) -> &'a Counted {
    let entry = report.workloads.iter().find(|entry| &*entry.name == workload);
    &entry.unwrap_or_else(|| panic!("no {workload} in {report:#?}")).counted
}

fn near(value: Option<f64>, right: f64) {
    let value = value.unwrap();
    assert!((value - right).abs() <= right.abs() * 1e-9 + 1e-3, "{value}, not {right}");
}

/// One node with `gpus(second)`, every second of `seconds`.
fn run(
    ledger: &mut Ledger,
    world: &World,
    agent: &Session,
    seconds: std::ops::RangeInclusive<u32>,
    gpus: impl Fn(f64) -> Vec<Gpu>,
) {
    for second in seconds.map(f64::from) {
        push(agent, &gpus(second), at(second));
        look(ledger, world, at(second));
    }
}

#[test]
fn time_energy_cost_and_carbon_of_one_workload() {
    let mut world = World::new();
    world.workload("llm", 1, &[ready("a")], at(0.0));
    let agent = world.agent("n1");
    let tariff = Tariff {
        prices: vec!["H100=3.6".parse().unwrap()],
        idle_watts: vec!["H100=100".parse().unwrap()],
        carbon_intensity: Some(400.0),
    };
    let mut ledger = Ledger::new(tariff);
    let gpus = |second: f64| {
        vec![gpu("u1", 50.0, 1e6 + 300.0 * second, &["a"]), gpu("u2", 0.0, 100.0 * second, &[])]
    };
    run(&mut ledger, &world, &agent, 0..=3_600, gpus);
    let report = report(&ledger, &world, at(3_600.0));
    assert_eq!(report.since_seconds, 3_600.0);
    let counted = of(&report, "llm");
    near(Some(counted.gpu_seconds_held), 3_600.0);
    near(counted.gpu_seconds_busy, 1_800.0);
    near(counted.joules, 1_080_000.0);
    near(counted.joules_idle, 360_000.0);
    near(counted.joules_dynamic, 720_000.0);
    near(counted.cost, 3.6);
    near(counted.grams_co2e, 0.3 * 400.0);
    assert_eq!(counted.gpu_seconds_not_held, None, "it was never at zero");
    let node = &report.nodes[0];
    near(node.joules, 1_440_000.0);
    near(node.joules_unattributed, 360_000.0);
    near(Some(node.gpu_seconds_held), 3_600.0);
    near(Some(node.gpu_seconds_free), 3_600.0);
    assert_eq!(report.namespaces[0].counted, *counted);
}

#[test]
fn what_has_no_price_no_counter_and_no_utilisation_is_null_and_not_zero() {
    let mut world = World::new();
    world.workload("llm", 1, &[ready("a")], at(0.0));
    let agent = world.agent("n1");
    let tariff = Tariff { prices: vec!["A100=1".parse().unwrap()], ..Tariff::default() };
    let mut ledger = Ledger::new(tariff);
    let blind = Gpu { load: None, joules: None, ..gpu("u1", 0.0, 0.0, &["a"]) };
    run(&mut ledger, &world, &agent, 0..=60, |_| vec![blind.clone()]);
    let report = report(&ledger, &world, at(60.0));
    let nothing = Counted { gpu_seconds_held: 60.0, ..Counted::default() };
    assert_eq!(*of(&report, "llm"), nothing);
    assert_eq!(report.nodes[0].joules, None);
    assert!(report.idle.is_empty(), "what is not known is not idle");
}

#[test]
fn what_an_idle_gpu_draws_is_learned_and_split_equally() {
    let mut world = World::new();
    world.workload("a", 2, &[ready("a1"), ready("a2")], at(0.0));
    world.workload("b", 1, &[ready("b1")], at(0.0));
    let agent = world.agent("n1");
    let mut ledger = Ledger::default();
    let shared = |load: f64, joules| Gpu {
        pods: [("a1", 60.0), ("a2", 20.0), ("b1", 10.0)]
            .map(|(pod, part)| (pod.into(), Some(part * load / 90.0)))
            .into(),
        ..gpu("u1", load, joules, &[])
    };
    run(&mut ledger, &world, &agent, 0..=30, |second| vec![shared(0.0, 60.0 * second)]);
    let before = report(&ledger, &world, at(30.0));
    let busy = |second: f64| vec![shared(90.0, 1_800.0 + 300.0 * (second - 30.0))];
    run(&mut ledger, &world, &agent, 31..=630, busy);
    let after = report(&ledger, &world, at(630.0));
    let watt_hours = |workload| {
        let joules = |report| of(report, workload).joules.unwrap();
        (joules(&after) - joules(&before)) / 3_600.0
    };
    // O10: dynamic by share of the SMs, idle by equal holders.
    assert!((watt_hours("a") - 42.222).abs() < 0.01, "{}", watt_hours("a"));
    assert!((watt_hours("b") - 7.778).abs() < 0.01, "{}", watt_hours("b"));
    near(after.nodes[0].joules_unattributed, 0.0);
}

#[test]
fn a_gap_is_its_holders_if_they_are_the_same_on_both_sides_and_nobodys_else() {
    let mut world = World::new();
    world.workload("old", 1, &[ready("a")], at(0.0));
    world.workload("new", 1, &[ready("b")], at(0.0));
    let agent = world.agent("n1");
    let mut ledger = Ledger::default();
    let held = |pod: &'static str| move |second: f64| vec![gpu("u1", 50.0, 200.0 * second, &[pod])];
    run(&mut ledger, &world, &agent, 0..=10, held("a"));
    // Ten minutes of silence, looked at all the while.
    (11..=610).for_each(|second| look(&mut ledger, &world, at(f64::from(second))));
    run(&mut ledger, &world, &agent, 611..=620, held("a"));
    let same = report(&ledger, &world, at(620.0));
    let counted = of(&same, "old");
    near(counted.joules, 620.0 * 200.0);
    near(Some(counted.gpu_seconds_held), 620.0);
    near(counted.gpu_seconds_busy, (620.0 - 601.0) / 2.0);

    run(&mut ledger, &world, &agent, 1_221..=1_230, held("b"));
    let other = report(&ledger, &world, at(1_230.0));
    assert_eq!(of(&other, "old").joules, counted.joules);
    near(of(&other, "new").joules, 9.0 * 200.0);
    near(other.nodes[0].joules_unattributed, 601.0 * 200.0);
    near(Some(other.nodes[0].gpu_seconds_held), 629.0);
}

#[test]
fn garbage_of_a_counter_is_counted_apart_and_never_added() {
    let mut world = World::new();
    world.workload("llm", 1, &[ready("a")], at(0.0));
    let agent = world.agent("n1");
    let mut ledger = Ledger::default();
    run(&mut ledger, &world, &agent, 0..=100, |second| {
        let joules = match second as u32 {
            50 => 1e14,
            60 => 0.0,
            _ => 1e7 + 300.0 * second,
        };
        vec![gpu("u1", 50.0, joules, &["a"])]
    });
    let report = report(&ledger, &world, at(100.0));
    let joules = of(&report, "llm").joules.unwrap();
    // After the false zero the true counter has to be seen three times.
    assert!((29_000.0..=30_000.0).contains(&joules), "{joules}");
    let doubtful = ledger.nodes().next().unwrap().1.doubtful;
    assert_eq!(doubtful, 3, "one jump, and two looks until the counter is believed again");
}

#[test]
fn mig_instances_share_their_gpus_energy_and_a_free_one_is_nobodys() {
    let mut world = World::new();
    world.workload("a", 1, &[ready("a1")], at(0.0));
    world.workload("b", 1, &[ready("b1")], at(0.0));
    let agent = world.agent("n1");
    let idle_watts = vec!["H100=80".parse().unwrap()];
    let mut ledger = Ledger::new(Tariff { idle_watts, ..Tariff::default() });
    let gpus = |load: Option<f64>| {
        move |second: f64| {
            let instance = |uuid: &str, pods: &[&str], eighths: f64| Gpu {
                mig: Some(Mig { parent: "u1".into(), profile: "3g.40gb".into() }),
                joules: None,
                load: load.filter(|_| !pods.is_empty()).or(load.map(|_| 0.0)),
                memory: (80_000.0 * eighths / 8.0 - 300.0, 100.0),
                ..gpu(uuid, 0.0, 0.0, pods)
            };
            let whole = Gpu { load: None, ..gpu("u1", 0.0, 240.0 * second, &[]) };
            vec![
                whole,
                instance("m1", &["a1"], 4.0),
                instance("m2", &["b1"], 2.0),
                instance("m3", &[], 2.0),
            ]
        }
    };
    run(&mut ledger, &world, &agent, 0..=100, gpus(Some(50.0)));
    let measured = report(&ledger, &world, at(100.0));
    // Work: two thirds and one third; being there: a half, a quarter, and a quarter of nobody's.
    near(of(&measured, "a").joules_dynamic, 16_000.0 * 2.0 / 3.0);
    near(of(&measured, "b").joules_dynamic, 16_000.0 / 3.0);
    near(of(&measured, "a").joules_idle, 4_000.0);
    near(of(&measured, "b").joules_idle, 2_000.0);
    near(measured.nodes[0].joules_unattributed, 2_000.0);
    near(Some(of(&measured, "a").gpu_seconds_held), 50.0);
    near(of(&measured, "a").gpu_seconds_busy, 25.0);
    near(Some(measured.nodes[0].gpu_seconds_free), 25.0);

    // Where nothing tells what instances do, each has as much as it is large.
    run(&mut ledger, &world, &agent, 101..=200, gpus(None));
    let guessed = report(&ledger, &world, at(200.0));
    let more = |name, of_what: fn(&Counted) -> Option<f64>| {
        Some(of_what(of(&guessed, name)).unwrap() - of_what(of(&measured, name)).unwrap())
    };
    near(more("a", |it| it.joules_dynamic), 8_000.0);
    near(more("b", |it| it.joules_dynamic), 4_000.0);
}

#[test]
fn at_zero_a_workload_does_not_hold_what_one_of_its_pods_held() {
    let mut world = World::new();
    world.workload("llm", 2, &[ready("a"), ready("b")], at(0.0));
    world.workload("unseen", 0, &[], at(0.0));
    let agent = world.agent("n1");
    let mut ledger = Ledger::default();
    run(&mut ledger, &world, &agent, 0..=10, |second| {
        let joules = 100.0 * second;
        let of = |uuid, pod| gpu(uuid, 50.0, joules, &[pod]);
        vec![of("u1", "a"), of("u2", "a"), of("u3", "b"), of("u4", "b")]
    });
    world.workload("llm", 0, &[], at(10.5));
    run(&mut ledger, &world, &agent, 11..=110, |second| {
        ["u1", "u2", "u3", "u4"].map(|uuid| gpu(uuid, 0.0, 100.0 * second, &[])).into()
    });
    let report = report(&ledger, &world, at(110.0));
    near(of(&report, "llm").gpu_seconds_not_held, 200.0);
    near(Some(of(&report, "llm").gpu_seconds_held), 40.0);
    assert!(
        report.workloads.iter().all(|entry| &*entry.name != "unseen"),
        "nothing is known of it"
    );
}

#[test]
fn an_idle_pod_is_named_with_its_memory_and_its_last_request() {
    let mut world = World::new();
    world.workload("llm", 1, &[ready("a")], at(0.0));
    let agent = world.agent("n1");
    let mut ledger = Ledger::default();
    let push_with_engine = |ledger: &mut Ledger, second: f64, load: f64, running: f64| {
        let gpus = [gpu("u1", load, 0.0, &["a"]), gpu("u2", 90.0, 0.0, &["stranger"])];
        let pod = PodKey::new("ml", "a");
        let inventory = Arc::new(Inventory {
            devices: gpus.iter().map(Gpu::device).collect(),
            engines: vec![Engine { pod, uid: None, labels: "".into() }],
            reason: None,
        });
        let readings = [(Metric::RequestsRunning, Reading::Ok(running))].into_iter().collect();
        let sample = Sample {
            devices: gpus.iter().map(|gpu| Some(gpu.sample())).collect(),
            engines: vec![Some(EngineSample { age: Duration::ZERO, readings })],
        };
        agent.apply(&inventory, sample, at(second));
        look(ledger, &world, at(second));
    };
    (0..=20).for_each(|second| push_with_engine(&mut ledger, f64::from(second), 70.0, 3.0));
    assert!(report(&ledger, &world, at(20.0)).idle.is_empty());
    (21..=29).for_each(|second| push_with_engine(&mut ledger, f64::from(second), 0.0, 0.0));
    assert!(report(&ledger, &world, at(29.0)).idle.is_empty(), "a pause between two requests");
    (30..=81).for_each(|second| push_with_engine(&mut ledger, f64::from(second), 0.5, 0.0));
    let [idle] = &report(&ledger, &world, at(81.0)).idle[..] else { panic!() };
    assert_eq!((&*idle.namespace, &*idle.pod, &*idle.node), ("ml", "a", "n1"));
    let workload = idle.workload.as_ref().unwrap();
    assert_eq!((&*workload.kind, &*workload.name), ("Deployment", "llm"));
    assert_eq!((idle.uuid.as_str(), &*idle.model), ("u1", MODEL));
    assert_eq!(idle.idle_seconds, 60.0);
    assert_eq!(idle.memory_used_mib, Some(40_000.0));
    assert_eq!(idle.last_request_seconds_ago, Some(61.0));
    assert!(report(&ledger, &world, at(95.0)).idle.is_empty(), "not read any more: not known");
}

#[test]
fn rows_of_what_is_gone_become_their_namespaces_and_memory_is_bounded() {
    let world = World::new();
    let agent = world.agent("n1");
    let mut ledger = Ledger::default();
    // A pod of its own every ten seconds: twelve thousand in all.
    for number in 0..12_000_u32 {
        let second = f64::from(number) * 10.0;
        let pod = format!("job-{number}");
        for step in 0..=1 {
            let second = second + f64::from(step);
            push(&agent, &[gpu("u1", 50.0, 100.0 * second, &[&pod])], at(second));
            look(&mut ledger, &world, at(second));
        }
    }
    let now = at(120_000.0);
    let report = report(&ledger, &world, now);
    assert!(report.workloads.len() <= 400, "{}", report.workloads.len());
    assert_eq!(report.workloads.len() as u64 + ledger.folds(), 12_000);
    assert!(report.workloads.iter().all(|entry| &*entry.kind == "Pod"));
    near(Some(report.namespaces[0].counted.gpu_seconds_held), 12_000.0);
    near(report.namespaces[0].counted.joules, 1_200_000.0);
}

#[test]
fn more_workloads_than_there_is_room_for_are_counted_for_their_namespace() {
    let world = World::new();
    let mut ledger = Ledger::default();
    let agents: Vec<_> = (0..12).map(|node| world.agent(&format!("n{node}"))).collect();
    for second in [0.0, 1.0, 2.0] {
        for (node, agent) in agents.iter().enumerate() {
            let name = |number| format!("{node}-{number}");
            let gpus: Vec<_> = (0..1_000)
                .map(|number| gpu(&name(number), 50.0, 100.0 * second, &[&name(number)]))
                .collect();
            push(agent, &gpus, at(second));
        }
        look(&mut ledger, &world, at(second));
    }
    let report = report(&ledger, &world, at(2.0));
    assert_eq!(report.workloads.len(), MAX_WORKLOADS);
    near(Some(report.namespaces[0].counted.gpu_seconds_held), 24_000.0);
    near(report.namespaces[0].counted.joules, 2_400_000.0);
}

#[test]
fn two_nodes_that_claim_one_gpu_are_not_counted_twice() {
    let mut world = World::new();
    world.workload("llm", 1, &[ready("a")], at(0.0));
    let agents = [world.agent("n1"), world.agent("n2")];
    let mut ledger = Ledger::default();
    for second in (0..=100).map(f64::from) {
        agents.iter().for_each(|agent| {
            push(agent, &[gpu("u1", 50.0, 100.0 * second, &["a"])], at(second));
        });
        look(&mut ledger, &world, at(second));
    }
    let report = report(&ledger, &world, at(100.0));
    near(of(&report, "llm").joules, 10_000.0);
    near(Some(of(&report, "llm").gpu_seconds_held), 100.0);
}

#[test]
fn a_claim_that_does_not_count_leaves_no_row_and_holds_nothing() {
    let mut world = World::new();
    world.workload("llm", 1, &[ready("a")], at(0.0));
    let agents = [world.agent("n1"), world.agent("n2")];
    let mut ledger = Ledger::default();
    for second in (0..=10).map(f64::from) {
        push(&agents[0], &[gpu("u1", 50.0, 100.0 * second, &["a"])], at(second));
        // The same workload's and a stranger's pod, on a GPU that is another node's.
        push(&agents[1], &[gpu("u1", 50.0, 100.0 * second, &["a", "z"])], at(second));
        look(&mut ledger, &world, at(second));
    }
    world.workload("llm", 0, &[], at(10.5));
    for second in (11..=20).map(f64::from) {
        agents.iter().for_each(|agent| {
            push(agent, &[gpu("u1", 0.0, 100.0 * second, &[])], at(second));
        });
        look(&mut ledger, &world, at(second));
    }
    let report = report(&ledger, &world, at(20.0));
    near(of(&report, "llm").gpu_seconds_not_held, 10.0);
    assert_eq!(report.workloads.len(), 1, "{:#?}", report.workloads);
}
