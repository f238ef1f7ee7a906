//! The energy figures of a recording, through the agent's own code, the wire and the gateway's
//! ledger; the time is a parameter.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use agent::collector::Collector;
use agent::device::meter::Meters;
use agent::device::replay::{Replay, ReplayEnd};
use agent::engine::Engines;
use agent::owner::handover::Handovers;
use gateway::directory::{Phase, Pod, ScaledKind, ScaledObject, Snapshot, Workload};
use gateway::fleet::{Fleet, Session};
use gateway::ledger::Ledger;
use gateway::ledger::report::Report;
use gateway::ledger::tariff::Tariff;
use gateway::trigger::observed::TargetType;
use proto::convert::{Link, inventory_to_wire, sample_to_wire};
use serde_json::{Value, json};
use shared::frame::Inventory;
use shared::identity::{PodKey, ScaledObjectKey, WorkloadKey};
use shared::time::Timestamp;
use tempfile::TempDir;
use tokio::sync::watch;

const SECOND: Duration = Duration::from_secs(1);

/// An agent that replays a recording, and a gateway that keeps a ledger.
struct World {
    _folder: TempDir,
    collector: Collector,
    fleet: Arc<Fleet>,
    session: Session,
    directory: Snapshot,
    ledger: Ledger,
    sent: Option<(Arc<Inventory>, Link)>,
    now: Timestamp,
}

fn collector(path: &std::path::Path) -> Collector {
    Collector {
        source: Box::new(Replay::open(path, ReplayEnd::Hold).unwrap()),
        holders: None,
        engines: Engines::default(),
        kubelet: None,
        processes: None,
        briefs: watch::Sender::new(None).subscribe(),
        meters: Meters::default(),
        handovers: Handovers::default(),
        notes: Vec::new(),
        interval: SECOND,
    }
}

/// `ml/a` with the pods a1 and a2, `ml/b` with b1.
fn directory() -> Snapshot {
    let pod = |name: &&str| {
        Arc::new(Pod {
            key: PodKey::new("ml", *name),
            uid: None,
            node: None,
            ip: None,
            ports: Box::default(),
            annotations: Box::default(),
            group: None,
            beside: false,
            terminating: false,
            phase: Phase::Running,
            ready: true,
            since: Timestamp::LONG_AGO,
            unscheduled: None,
            containers: Box::default(),
        })
    };
    let of = |name: &str, pods: &[&str]| {
        let key =
            WorkloadKey { namespace: "ml".into(), kind: "Deployment".into(), name: name.into() };
        let count = u32::try_from(pods.len()).unwrap();
        let object = ScaledObject {
            key: ScaledObjectKey::new("ml", name),
            kind: ScaledKind::Object,
            target: key.clone(),
            workload: None,
            absent: None,
            target_type: TargetType::AverageValue,
            min_replicas: Some(0),
            max_replicas: None,
            cooldown: None,
            triggers: Arc::default(),
        };
        let workload = Workload {
            key,
            replicas: count,
            status_replicas: count,
            pods: pods.iter().map(pod).collect(),
            gone: Vec::new(),
            short_since: None,
            with_pods_since: None,
        };
        (Arc::new(workload), object)
    };
    let (workloads, objects): (Vec<_>, Vec<_>) =
        [of("a", &["a1", "a2"]), of("b", &["b1"])].into_iter().unzip();
    Snapshot::new(Timestamp::START, workloads, objects, |_| SECOND)
}

impl World {
    fn new(lines: &[Value], tariff: Tariff) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("recording.jsonl");
        let mut text = String::new();
        lines.iter().for_each(|line| writeln!(text, "{line}").unwrap());
        std::fs::write(&path, text).unwrap();
        let fleet = Arc::new(Fleet::default());
        Self {
            collector: collector(&path),
            _folder: folder,
            session: fleet.open("n1".into(), SECOND, "test".into()).unwrap(),
            fleet,
            directory: directory(),
            ledger: Ledger::new(tariff),
            sent: None,
            now: Timestamp::START,
        }
    }

    /// One tick of the agent, over the wire into the gateway, and a look of the ledger.
    fn tick(&mut self) {
        let previous = self.sent.as_ref().map(|(inventory, _)| inventory);
        let frame = self.collector.take(self.now, previous).frame;
        let link = match self.sent.take() {
            Some((inventory, link)) if Arc::ptr_eq(&inventory, &frame.inventory) => link,
            _ => Link::open(inventory_to_wire(1, &frame.inventory)).unwrap().0,
        };
        let message = sample_to_wire(1, &frame.sample, Duration::ZERO);
        let (sample, refusals) = link.sample(message).unwrap();
        assert_eq!(refusals, Vec::<String>::new());
        self.session.apply(link.inventory(), sample, self.now);
        self.sent = Some((frame.inventory, link));
        self.directory.confirm(self.now);
        let nodes = self.fleet.nodes();
        let views = nodes.iter().filter_map(|node| Some((&node.name, &**node.view.as_ref()?)));
        self.ledger.look(views, &self.directory, self.now);
        self.now = self.now + SECOND;
    }

    fn report(&self) -> Report {
        self.ledger.report(Some(&self.directory), self.now)
    }
}

/// The card of O10 at a second: three pods at 60, 20 and 10 %, or at nothing.
fn card(second: u32, watts: f64, is_busy: bool, joules: Option<f64>) -> Value {
    let busy = f64::from(u8::from(is_busy));
    let pod = |name: &str, percent: f64| json!({"namespace": "ml", "pod": name, "gpu_utilization": percent * busy});
    let mut device = json!({
        "uuid": "u1",
        "name": "NVIDIA H100 80GB HBM3",
        "gpu_utilization": 90.0 * busy,
        "power_draw": watts,
        "holders": [pod("a1", 60.0), pod("a2", 20.0), pod("b1", 10.0)],
    });
    if let Some(joules) = joules {
        device["energy_joules"] = joules.into();
    }
    json!({"at_ms": second * 1_000, "devices": [device]})
}

/// Watt-hours of a, b and nobody between two reports.
fn between(before: &Report, after: &Report) -> [f64; 3] {
    let workload = |report: &Report, name| {
        let entry = report.workloads.iter().find(|entry| &*entry.name == name);
        entry.and_then(|entry| entry.counted.joules).unwrap_or(0.0)
    };
    let nobody =
        |report: &Report| report.nodes.iter().filter_map(|node| node.joules_unattributed).sum();
    let more = |of: &dyn Fn(&Report) -> f64| (of(after) - of(before)) / 3_600.0;
    [more(&|report| workload(report, "a")), more(&|report| workload(report, "b")), more(&nobody)]
}

fn is_near(watt_hours: [f64; 3], right: [f64; 2]) {
    let [a, b, nobodys] = watt_hours;
    let sum = a + b + nobodys;
    assert!((sum - 50.0).abs() <= 0.5, "O10: {sum} Wh, not 50.0 within 1 %");
    for (value, right) in [(a, right[0]), (b, right[1])] {
        assert!((value - right).abs() <= right * 0.01, "{watt_hours:?}, not {right:?}");
    }
}

/// Idle for twenty seconds, then ten minutes at 300 W; 60 W is what it draws idle.
fn o10(joules: impl Fn(f64) -> Option<f64>) -> Vec<Value> {
    let idle = (0..=20).map(|second| card(second, 60.0, false, joules(f64::from(second) * 60.0)));
    let busy = (21..=620)
        .map(|second| card(second, 300.0, true, joules(1_200.0 + f64::from(second - 20) * 300.0)));
    idle.chain(busy).collect()
}

#[test]
fn o10_dynamic_by_share_and_idle_by_equal_holders() {
    for (what, joules) in [
        ("by the card's counter", (|joules| Some(5e7 + joules)) as fn(f64) -> Option<f64>),
        ("by power and time, where there is none", |_| None),
    ] {
        let mut world = World::new(&o10(joules), Tariff::default());
        (0..=20).for_each(|_| world.tick());
        let before = world.report();
        (21..=620).for_each(|_| world.tick());
        let watt_hours = between(&before, &world.report());
        is_near(watt_hours, [42.222, 7.778]);
        assert!(watt_hours[2] < 0.01, "{what}");
    }
}

#[test]
fn o10_all_by_share_where_it_is_not_known_what_the_card_draws_idle() {
    let lines: Vec<_> = o10(Some).into_iter().skip(20).collect();
    let mut world = World::new(&lines, Tariff::default());
    world.tick();
    let before = world.report();
    (1..=600).for_each(|_| world.tick());
    is_near(between(&before, &world.report()), [44.444, 5.556]);

    // The same where somebody said what it draws.
    let idle_watts = vec!["H100=60".parse().unwrap()];
    let mut world = World::new(&lines, Tariff { idle_watts, ..Tariff::default() });
    world.tick();
    let before = world.report();
    (1..=600).for_each(|_| world.tick());
    is_near(between(&before, &world.report()), [42.222, 7.778]);
}

#[test]
fn an_agent_that_restarts_loses_nothing_of_a_counter_and_makes_nothing_up_of_an_estimate() {
    for (joules, right) in
        [((|joules| Some(5e7 + joules)) as fn(f64) -> Option<f64>, 50.0), (|_| None, 48.4)]
    {
        let lines: Vec<_> = o10(joules).into_iter().skip(20).collect();
        let mut world = World::new(&lines, Tariff::default());
        (0..=300).for_each(|_| world.tick());
        // Away for twenty seconds; then another process that reads what is there.
        world.now = world.now + 18 * SECOND;
        let rest: Vec<_> = lines[320..].to_vec();
        let after = World::new(&rest, Tariff::default());
        world.session = world.fleet.open("n1".into(), SECOND, "test".into()).unwrap();
        world.collector = after.collector;
        world.sent = None;
        (320..=600).for_each(|_| world.tick());
        let [a, b, _] = between(&Report::default(), &world.report());
        assert!((a + b - right).abs() < 0.1, "{} Wh, not {right}", a + b);
    }
}
