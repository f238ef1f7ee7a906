//! The worked cases, minute by minute, through directory, fleet and decision with the time as a
//! parameter: fifteen minutes of silence take no time to test.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use gateway::answer::{Answers, Assessment, Question, Refusal};
use gateway::directory::{
    DeclaredTrigger, Directory, Phase, Pod, ScaledKind, ScaledObject, Snapshot, Workload,
};
use gateway::fleet::{Fleet, Session};
use gateway::trigger::observed::TargetType;
use gateway::trigger::profile::Profiles;
use proptest::prelude::*;
use shared::frame::{
    Device, DeviceSample, Engine, EngineSample, Holder, HolderSource, Inventory, Sample,
};
use shared::identity::{PodKey, ScaledObjectKey, WorkloadKey};
use shared::metric::Metric;
use shared::process::Clock;
use shared::reading::{Reading, Readings};
use shared::time::Timestamp;

const SECOND: Duration = Duration::from_secs(1);

pub(crate) fn at(seconds: f64) -> Timestamp {
    Timestamp::START + Duration::from_secs_f64(seconds)
}

/// A gateway without sockets and clocks.
pub(crate) struct World {
    pub(crate) directory: Arc<Directory>,
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) answers: Answers,
    pub(crate) workloads: BTreeMap<WorkloadKey, Workload>,
    pub(crate) target_type: TargetType,
    /// The triggers that every ScaledObject declares.
    pub(crate) triggers: Arc<[DeclaredTrigger]>,
}

/// One pod as a case describes it: name, UID, node; ready since, or unready since; why the
/// scheduler has no place for it.
#[derive(Clone)]
pub(crate) struct APod(
    pub(crate) &'static str,
    pub(crate) Option<&'static str>,
    pub(crate) Option<&'static str>,
    pub(crate) Result<Timestamp, Timestamp>,
    pub(crate) Option<&'static str>,
);

pub(crate) fn ready(name: &'static str) -> APod {
    APod(name, None, None, Ok(Timestamp::LONG_AGO), None)
}

impl World {
    pub(crate) fn new() -> Self {
        let (directory, fleet) = (Arc::new(Directory::default()), Arc::new(Fleet::default()));
        let profiles = Arc::new(Profiles::default());
        let answers = Answers::new(directory.clone(), fleet.clone(), profiles, Clock::start());
        directory.replace(Snapshot::default());
        assert!(answers.warm_up(), "nothing to wait for");
        let (workloads, target_type) = (BTreeMap::new(), TargetType::AverageValue);
        let triggers = Arc::default();
        Self { directory, fleet, answers, workloads, target_type, triggers }
    }

    /// The cluster now has `ml/NAME` with these pods, and a ScaledObject of the same name.
    pub(crate) fn workload(&mut self, name: &str, replicas: u32, pods: &[APod], now: Timestamp) {
        let key =
            WorkloadKey { namespace: "ml".into(), kind: "Deployment".into(), name: name.into() };
        let pods = pods.iter().map(|APod(name, uid, node, since, unscheduled)| Pod {
            key: PodKey::new("ml", *name),
            uid: uid.map(Into::into),
            node: node.map(Into::into),
            ip: Some("10.0.0.1".into()),
            ports: Box::default(),
            annotations: Box::default(),
            group: None,
            terminating: false,
            phase: Phase::Running,
            ready: since.is_ok(),
            since: since.unwrap_or_else(|since| since),
            beside: false,
            unscheduled: unscheduled.map(Into::into),
            containers: Box::default(),
        });
        let pods: Vec<Arc<Pod>> = pods.map(Arc::new).collect();
        let seen = Workload {
            key: key.clone(),
            replicas,
            status_replicas: u32::try_from(pods.len()).unwrap(),
            pods,
            gone: Vec::new(),
            short_since: None,
            with_pods_since: None,
        };
        let seen = seen.after(self.workloads.get(&key), now);
        self.workloads.insert(key, seen);
        let objects = self.workloads.keys().map(|key| ScaledObject {
            key: ScaledObjectKey::new(key.namespace.clone(), key.name.clone()),
            kind: ScaledKind::Object,
            target: key.clone(),
            workload: None,
            absent: None,
            target_type: self.target_type,
            min_replicas: Some(0),
            max_replicas: None,
            cooldown: None,
            triggers: self.triggers.clone(),
        });
        let workloads: Vec<_> = self.workloads.values().cloned().map(Arc::new).collect();
        self.directory.replace(Snapshot::new(now, workloads, objects.collect(), |_| 60 * SECOND));
    }

    pub(crate) fn agent(&self, node: &str) -> Session {
        self.fleet.open(node.into(), SECOND, "test".into()).unwrap()
    }

    pub(crate) fn assess(
        &self,
        name: &str,
        metadata: &[(&str, &str)],
        now: Timestamp,
    ) -> Result<Assessment, Refusal> {
        let metadata: HashMap<String, String> =
            metadata.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
        self.answers.assess(Question { namespace: "ml", name, metadata: &metadata }, now)
    }

    pub(crate) fn value(
        &self,
        name: &str,
        metadata: &[(&str, &str)],
        now: Timestamp,
    ) -> Result<f64, Refusal> {
        self.assess(name, metadata, now)?.value()
    }

    pub(crate) fn active(
        &self,
        name: &str,
        metadata: &[(&str, &str)],
        now: Timestamp,
    ) -> Result<bool, Refusal> {
        let assessment = self.assess(name, metadata, now)?;
        assessment.value().map(|_| self.answers.activity(&assessment))
    }
}

/// UUID, the pod that holds it (with its UID), and its utilisation.
pub(crate) type ADevice<'a> = (&'a str, &'a str, Option<&'a str>, f64);

fn inventory(devices: &[ADevice<'_>]) -> Arc<Inventory> {
    let devices = devices.iter().zip(0..).map(|((uuid, pod, uid, _), index)| Device {
        uuid: (*uuid).into(),
        index,
        name: "NVIDIA H100 80GB HBM3".into(),
        memory_total_mib: None,
        mig: None,
        holders: vec![Holder {
            pod: PodKey::new("ml", *pod),
            uid: uid.map(Into::into),
            container: "main".into(),
            share: Some(1.0),
            estimated: false,
            source: HolderSource::Replay,
            undeclared: false,
        }],
        reason: None,
        health: None,
    });
    Arc::new(Inventory { devices: devices.collect(), ..Inventory::default() })
}

fn sample(devices: &[ADevice<'_>]) -> Sample {
    let devices = devices.iter().map(|(.., utilization)| {
        let readings: Readings =
            [(Metric::GpuUtilization, Reading::Ok(*utilization))].into_iter().collect();
        Some(DeviceSample { readings, ..DeviceSample::default() })
    });
    Sample { devices: devices.collect(), engines: Vec::new() }
}

pub(crate) fn push(agent: &Session, devices: &[ADevice<'_>], now: Timestamp) {
    agent.apply(&inventory(devices), sample(devices), now);
}

/// The HPA's rule for AverageValue, without its policies.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "case figures are small"
)]
pub(crate) fn desired(value: f64, target: f64, replicas: u32) -> u32 {
    let ratio = value / (target * f64::from(replicas));
    if (1.0 - ratio).abs() <= 0.1 { replicas } else { (value / target).ceil() as u32 }
}

#[test]
fn o01_one_hot_node_two_cool_ones_and_a_stranger() {
    for (target_type, aggregation, right) in [
        (TargetType::AverageValue, "total", 110.0),
        (TargetType::Value, "max", 90.0),
        (TargetType::Value, "avg", 36.667),
        (TargetType::AverageValue, "max", 270.0),
    ] {
        let mut world = World { target_type, ..World::new() };
        world.workload("llm", 3, &[ready("a"), ready("b"), ready("c")], at(0.0));
        let agents = ["n1", "n2", "n3"].map(|node| world.agent(node));
        push(&agents[0], &[("u1", "a", None, 90.0), ("u9", "other", None, 100.0)], at(1.0));
        push(&agents[1], &[("u2", "b", None, 10.0)], at(1.0));
        push(&agents[2], &[("u3", "c", None, 10.0)], at(1.0));
        let asked = [("targetValue", "50"), ("aggregation", aggregation)];
        assert_eq!(world.value("llm", &asked, at(2.0)), Ok(right), "{aggregation}");
        assert_eq!(world.active("llm", &asked, at(2.0)), Ok(true));
    }
    assert_eq!(desired(110.0, 50.0, 3), 3);
}

#[test]
fn o02_a_saturated_fleet_under_average_value() {
    let names = ["a", "b", "c", "d", "e", "f"];
    let mut world = World::new();
    world.workload("llm", 6, &names.map(ready), at(0.0));
    let agent = world.agent("n1");
    let uuids = names.map(|name| format!("GPU-{name}"));
    let devices: Vec<_> =
        names.iter().zip(&uuids).map(|(name, uuid)| (uuid.as_str(), *name, None, 95.0)).collect();
    push(&agent, &devices, at(1.0));
    assert_eq!(world.value("llm", &[("targetValue", "80")], at(2.0)), Ok(570.0));
    assert_eq!(desired(570.0, 80.0, 6), 8);
    // A flat figure is corrected by the pods it stands for, where the bare 95 would order two.
    for flat in ["avg", "max", "p95"] {
        let asked = [("targetValue", "80"), ("aggregation", flat)];
        assert_eq!(world.value("llm", &asked, at(2.0)), Ok(570.0), "{flat}");
    }
}

#[test]
fn o03_one_engine_answers_503() {
    let mut world = World::new();
    world.workload("llm", 4, &["a", "b", "c", "d"].map(ready), at(0.0));
    let agent = world.agent("n1");
    let engines = ["a", "b", "c", "d"].map(|pod| Engine {
        pod: PodKey::new("ml", pod),
        uid: None,
        labels: "".into(),
    });
    let inventory = Arc::new(Inventory { engines: engines.into(), ..Inventory::default() });
    let asked = [("metricType", "requests_waiting"), ("targetValue", "5")];
    for (waiting, right, replicas) in [(8.0, 24.0, 5), (1.0, 8.0, 2)] {
        let readings = [Ok(waiting), Ok(waiting), Ok(waiting), Err("HTTP 503")].map(|reading| {
            let reading = match reading {
                Ok(value) => Reading::Ok(value),
                Err(why) => Reading::Failed(why.into()),
            };
            let readings = [(Metric::RequestsWaiting, reading)].into_iter().collect();
            Some(EngineSample { age: Duration::ZERO, readings })
        });
        let sample = Sample { engines: readings.into(), ..Sample::default() };
        agent.apply(&inventory, sample, at(1.0));
        let answer = world.assess("llm", &asked, at(2.0)).unwrap();
        assert_eq!(answer.value(), Ok(right));
        assert_eq!(desired(right, 5.0, 4), replicas);
        let reason = answer.verdict.reason.to_string();
        assert!(reason.starts_with("requests_waiting: 3 of 4 replicas report"), "{reason}");
    }
}

#[test]
fn o04_everything_goes_quiet_under_load() {
    let asked = [("targetValue", "60"), ("staleAfter", "10s")];
    let mut world = World::new();
    world.workload("llm", 4, &["a", "b", "c", "d"].map(ready), at(0.0));
    let agents = ["n1", "n2"].map(|node| world.agent(node));
    let on = [
        [("u1", "a", None, 90.0), ("u2", "b", None, 90.0)],
        [("u3", "c", None, 90.0), ("u4", "d", None, 90.0)],
    ];
    let both = |now| agents.iter().zip(&on).for_each(|(agent, devices)| push(agent, devices, now));
    both(at(100.0));
    for quiet in 0..=900 {
        let now = at(100.0 + f64::from(quiet));
        let (value, active) = (world.value("llm", &asked, now), world.active("llm", &asked, now));
        if quiet <= 10 {
            assert_eq!((value, active), (Ok(360.0), Ok(true)), "{quiet} s");
        } else {
            assert!(matches!(value, Err(Refusal::Unavailable(_))), "{quiet} s: {value:?}");
            assert!(matches!(active, Err(Refusal::Unavailable(_))), "{quiet} s: {active:?}");
        }
    }
    both(at(1_001.0));
    assert_eq!(world.value("llm", &asked, at(1_001.0)), Ok(360.0));
}

#[test]
fn o06_pods_that_load_a_model_neither_grow_nor_shrink_the_fleet() {
    let asked = [("targetValue", "50")];
    let mut world = World::new();
    world.workload("llm", 2, &[ready("a"), ready("b")], at(0.0));
    let agent = world.agent("n1");
    let mut moves = Vec::new();
    for step in 0..20_u32 {
        let now = at(100.0 + 15.0 * f64::from(step));
        let loading = step < 16;
        let young = |name| {
            APod(name, None, None, if loading { Err(at(100.0)) } else { Ok(at(340.0)) }, None)
        };
        world.workload("llm", 4, &[ready("a"), ready("b"), young("c"), young("d")], now);
        let (old, new) = if loading { (100.0, f64::from(step % 6)) } else { (50.0, 50.0) };
        push(
            &agent,
            &[
                ("u1", "a", None, old),
                ("u2", "b", None, old),
                ("u3", "c", None, new),
                ("u4", "d", None, new),
            ],
            now,
        );
        let value = world.value("llm", &asked, now).unwrap();
        assert_eq!(value, 200.0, "step {step}");
        moves.push(desired(value, 50.0, 4));
    }
    assert_eq!(moves, [4; 20]);
}

#[test]
fn o16_wrong_node_clocks_have_no_effect() {
    // Agents send ages, never times: what is left of a wrong clock is nothing. A dead agent's
    // readings age on the gateway's own clock.
    let asked = [("targetValue", "60"), ("staleAfter", "10s")];
    let mut world = World::new();
    world.workload("llm", 3, &[ready("a"), ready("b"), ready("c")], at(0.0));
    let agents = ["n1", "n2", "n3"].map(|node| world.agent(node));
    for second in 0..=180 {
        let now = at(f64::from(second));
        for (agent, device) in agents.iter().zip([
            ("u1", "a", None, 60.0),
            ("u2", "b", None, 60.0),
            ("u3", "c", None, 60.0),
        ]) {
            if agent.node().as_str() != "n1" || second <= 120 {
                push(agent, &[device], now);
            }
        }
        let answer = world.assess("llm", &asked, now).unwrap();
        assert_eq!(answer.value(), Ok(180.0), "{second} s");
        let reporting = if second <= 130 { 3 } else { 2 };
        assert_eq!(answer.verdict.coverage.reporting, reporting, "{second} s");
        assert_eq!(desired(180.0, 60.0, 3), 3);
    }
}

#[test]
fn o17_two_agents_on_one_node_are_counted_once() {
    let asked = [("targetValue", "60")];
    let devices = [("u1", "a", None, 70.0), ("u2", "b", None, 70.0)];
    let mut world = World::new();
    world.workload("llm", 2, &[ready("a"), ready("b")], at(0.0));
    let mut old = Some(world.agent("n1"));
    let mut new = None;
    for tick in 0..=300 {
        let now = at(f64::from(tick) / 5.0);
        if tick == 50 {
            new = Some(world.agent("n1"));
        }
        if tick == 150 {
            old = None;
        }
        for agent in [&old, &new].into_iter().flatten().filter(|_| tick % 5 == 0) {
            push(agent, &devices, now);
        }
        assert_eq!(world.value("llm", &asked, now), Ok(140.0), "{now:?}");
    }
    assert_eq!(desired(140.0, 60.0, 2), 3);
    drop(new);
    assert_eq!(
        world.value("llm", &asked, at(61.0)),
        Ok(140.0),
        "the last word stays until it is stale"
    );
    assert!(world.value("llm", &asked, at(71.0)).is_err());
}

#[test]
fn an_ended_session_takes_only_what_no_other_vouches_for() {
    let mut world = World::new();
    world.workload("llm", 2, &[ready("a"), ready("b")], at(0.0));
    let (old, new) = (world.agent("n1"), world.agent("n1"));
    push(&old, &[("u1", "a", None, 10.0), ("u2", "b", None, 20.0)], at(1.0));
    push(&new, &[("u1", "a", None, 30.0)], at(1.0));
    let asked = [("targetValue", "60")];
    assert_eq!(world.assess("llm", &asked, at(1.0)).unwrap().verdict.figures.unwrap().s, 50.0);
    drop(old);
    let answer = world.assess("llm", &asked, at(1.0)).unwrap();
    assert_eq!(answer.verdict.figures.unwrap().s, 30.0);
    assert_eq!(answer.verdict.coverage.reporting, 1);
}

#[test]
fn a_ghost_of_a_moved_pod_is_not_counted_o18() {
    let asked = [("targetValue", "50")];
    let mut world = World::new();
    let old =
        [ready("llm-1"), APod("llm-0", Some("uid-1"), Some("n1"), Ok(Timestamp::LONG_AGO), None)];
    world.workload("llm", 2, &old, at(0.0));
    let agents = ["n1", "n2", "n3"].map(|node| world.agent(node));
    push(&agents[0], &[("u1", "llm-0", Some("uid-1"), 85.0)], at(1.0));
    push(&agents[2], &[("u3", "llm-1", None, 85.0)], at(1.0));
    assert_eq!(world.value("llm", &asked, at(1.0)), Ok(170.0));
    let moved = [ready("llm-1"), APod("llm-0", Some("uid-2"), Some("n2"), Ok(at(2.0)), None)];
    world.workload("llm", 2, &moved, at(2.0));
    push(&agents[1], &[("u2", "llm-0", Some("uid-2"), 15.0)], at(2.0));
    push(&agents[0], &[("u1", "llm-0", Some("uid-1"), 85.0)], at(2.0));
    assert_eq!(world.value("llm", &asked, at(2.0)), Ok(100.0));
}

#[test]
fn a_window_reaches_over_pods_that_are_gone_and_agents_that_came_back() {
    let asked = [("targetValue", "50"), ("window", "10s")];
    let mut world = World::new();
    world.workload("llm", 2, &[ready("a"), ready("b")], at(0.0));
    let agent = world.agent("n1");
    for second in 0..=20 {
        let devices = [("u1", "a", None, 40.0), ("u2", "b", None, 60.0)];
        push(&agent, &devices, at(f64::from(second)));
    }
    assert_eq!(world.value("llm", &asked, at(20.0)), Ok(100.0));
    world.workload("llm", 1, &[ready("a")], at(20.5));
    drop(agent);
    let agent = world.agent("n1");
    for second in 21..=25 {
        push(&agent, &[("u1", "a", None, 40.0)], at(f64::from(second)));
    }
    // Instants 16 to 20 had both pods, 21 to 25 only one: (5 × 100 + 5 × 40) / 10.
    assert_eq!(world.value("llm", &asked, at(25.0)), Ok(70.0));
}

#[test]
fn a_window_counts_a_pod_once_however_often_it_was_ready() {
    let asked = [("targetValue", "50"), ("window", "6s")];
    let mut world = World::new();
    let agent = world.agent("n1");
    let with_uid = |uid| APod("a", Some(uid), None, Ok(Timestamp::LONG_AGO), None);
    for (second, pod) in (0..).zip([
        ready("a"),
        ready("a"),
        ready("a"),
        APod("a", None, None, Err(at(3.0)), None),
        ready("a"),
        ready("a"),
        with_uid("1"),
        with_uid("2"),
        with_uid("2"),
    ]) {
        let now = at(f64::from(second));
        world.workload("llm", 1, std::slice::from_ref(&pod), now);
        push(&agent, &[("u1", "a", None, 60.0)], now);
        let right = if pod.3.is_ok() { 60.0 } else { 50.0 };
        assert_eq!(world.value("llm", &asked, now), Ok(right), "{second} s");
    }
}

#[test]
fn replacing_an_idle_pod_is_no_activity() {
    let asked = [("targetValue", "50"), ("activationWindow", "3s")];
    let mut world = World::new();
    world.workload("llm", 1, &[ready("a")], at(0.0));
    let agent = world.agent("n1");
    for second in 0..=4 {
        push(&agent, &[("u1", "a", None, 0.0)], at(f64::from(second)));
    }
    assert_eq!(world.active("llm", &asked, at(4.0)), Ok(false));
    world.workload("llm", 1, &[ready("b")], at(4.5));
    for second in 5..=8 {
        let now = at(f64::from(second));
        push(&agent, &[("u1", "b", None, 0.0)], now);
        assert_eq!(world.active("llm", &asked, now), Ok(false), "{second} s");
    }
}

#[test]
fn a_pod_that_fell_silent_is_not_idle() {
    let asked = [("targetValue", "50"), ("activationWindow", "2s"), ("staleAfter", "3s")];
    let mut world = World::new();
    world.workload("llm", 2, &[ready("a"), ready("b")], at(0.0));
    let agents = ["n1", "n2"].map(|node| world.agent(node));
    push(&agents[1], &[("u2", "b", None, 90.0)], at(0.0));
    for second in 0..60 {
        let now = at(f64::from(second));
        push(&agents[0], &[("u1", "a", None, 0.0)], now);
        assert_eq!(world.active("llm", &asked, now), Ok(true), "{second} s");
    }
    push(&agents[1], &[("u2", "b", None, 0.0)], at(60.0));
    assert_eq!(world.active("llm", &asked, at(60.0)), Ok(false), "it said itself that it is");
}

#[test]
fn who_speaks_too_often_does_not_fill_the_history() {
    let mut world = World::new();
    world.workload("llm", 1, &[ready("a")], at(0.0));
    let agent = world.agent("n1");
    for tick in 0..10_000 {
        push(&agent, &[("u1", "a", None, 40.0)], at(f64::from(tick) / 1_000.0));
    }
    let kept = world.fleet.history(&"n1".into(), Timestamp::START).len();
    // 10 s at two samples a second, twice as many at most, and a few at once.
    assert!((20..=60).contains(&kept), "{kept}");
}

#[test]
fn history_is_kept_only_for_pods_that_something_scales() {
    let mut world = World::new();
    world.workload("llm", 1, &[ready("a")], at(0.0));
    let agents = ["n1", "n2"].map(|node| world.agent(node));
    for second in 0..200 {
        push(&agents[0], &[("u1", "a", None, 40.0)], at(f64::from(second)));
        push(&agents[1], &[("u2", "stranger", None, 40.0)], at(f64::from(second)));
        world.fleet.tidy(world.answers.look_backs(), at(f64::from(second)));
    }
    let kept = |node: &str| world.fleet.history(&node.into(), Timestamp::START).len();
    assert_eq!((kept("n1"), kept("n2")), (61, 0));
}

#[test]
fn a_device_two_nodes_claim_is_counted_once_and_reported() {
    let mut world = World::new();
    world.workload("llm", 1, &[ready("a")], at(0.0));
    let agents = ["n1", "n2"].map(|node| world.agent(node));
    push(&agents[0], &[("u1", "a", None, 10.0)], at(1.0));
    push(&agents[1], &[("u1", "a", None, 90.0)], at(2.0));
    let asked = [("targetValue", "50")];
    assert_eq!(world.value("llm", &asked, at(2.0)), Ok(10.0), "the first node, while it speaks");
    push(&agents[1], &[("u1", "a", None, 90.0)], at(5.0));
    assert_eq!(world.value("llm", &asked, at(5.0)), Ok(90.0), "it fell silent");
    world.fleet.tidy(|_| None, at(2.0));
    let conflicts = world.fleet.conflicts();
    assert_eq!((conflicts[0].uuid.as_str(), conflicts[0].nodes.len()), ("u1", 2));
    // The directory knows better.
    world.workload(
        "llm",
        1,
        &[APod("a", None, Some("n1"), Ok(Timestamp::LONG_AGO), None)],
        at(5.0),
    );
    assert_eq!(world.value("llm", &asked, at(5.0)), Ok(10.0));
}

#[test]
fn a_node_that_is_gone_claims_its_devices_no_more() {
    let world = World::new();
    let [gone, heir] = ["n1", "n2"].map(|node| world.agent(node));
    push(&gone, &[("u1", "a", None, 10.0)], at(1.0));
    push(&heir, &[("u1", "a", None, 90.0)], at(2.0));
    drop(gone);
    world.fleet.tidy(|_| None, at(3.0));
    assert_eq!(world.fleet.conflicts().len(), 1, "it was heard just now");
    world.fleet.tidy(|_| None, at(11.0));
    assert!(world.fleet.conflicts().is_empty());
    assert!(world.fleet.view(&"n1".into()).is_some(), "it is still shown");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Invariants 1, 2 and 5 over random fleets: the spec depends on the metadata alone, value and
    /// activity are both there or both not, and the order in which frames come does not matter.
    #[test]
    fn answers_agree_whatever_came_in_whatever_order(
        loads in prop::collection::vec(prop::option::weighted(0.8, 0.0..=100.0_f64), 1..6),
        order in Just([0_usize, 1, 2, 3, 4, 5]).prop_shuffle(),
        later in 0..30_u32,
        aggregation in prop::sample::select(vec!["total", "max", "avg", "p90"]),
    ) {
        const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
        let metadata = [("targetValue", "50"), ("aggregation", aggregation)];
        let asked: HashMap<String, String> =
            metadata.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
        let replicas = [[0, 1, 2, 3, 4, 5], order].map(|order| {
            let mut world = World::new();
            let before = world.answers.metric_spec(&asked).unwrap();
            let pods: Vec<APod> = NAMES[..loads.len()].iter().map(|name| ready(name)).collect();
            world.workload("llm", u32::try_from(loads.len()).unwrap(), &pods, at(0.0));
            let agents = NAMES.map(|name| world.agent(name));
            for at_pod in order.into_iter().filter(|pod| *pod < loads.len()) {
                if let Some(load) = loads[at_pod] {
                    push(&agents[at_pod], &[(NAMES[at_pod], NAMES[at_pod], None, load)], at(70.0));
                }
            }
            let now = at(70.0 + f64::from(later));
            let value = world.value("llm", &metadata, now);
            let active = world.active("llm", &metadata, now);
            assert_eq!(value.is_ok(), active.is_ok());
            assert_eq!(before, world.answers.metric_spec(&asked).unwrap());
            (value, active)
        });
        prop_assert_eq!(&replicas[0], &replicas[1]);
    }
}
