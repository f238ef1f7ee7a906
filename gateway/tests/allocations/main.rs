//! What an answer and a message allocate. A process of its own: its allocator counts.
#![expect(clippy::unwrap_used, reason = "what a test cannot do without may end it")]
#![expect(unsafe_code, reason = "an allocator is unsafe")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use gateway::answer::roster::Roster;
use gateway::answer::{Answers, Question, observe};
use gateway::directory::{Directory, Phase, Pod, ScaledKind, ScaledObject, Snapshot, Workload};
use gateway::fleet::{Fleet, Session};
use gateway::trigger::observed::{NoPast, TargetType};
use gateway::trigger::profile::Profiles;
use gateway::trigger::{self, spec::Trigger};
use proto::convert::{Link, inventory_to_wire, sample_to_wire};
use shared::frame::{Device, DeviceSample, Holder, HolderSource, Inventory, Sample};
use shared::identity::{PodKey, ScaledObjectKey, WorkloadKey};
use shared::metric::{Metric, Scope};
use shared::process::Clock;
use shared::reading::{Reading, Readings};
use shared::time::Timestamp;

/// Counts what this thread allocates.
struct Counting;

thread_local! {
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: all is left to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        // SAFETY: as asked.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: as asked.
        unsafe { System.dealloc(place, layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        // SAFETY: as asked.
        unsafe { System.realloc(place, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations<T>(of: impl FnOnce() -> T) -> usize {
    let before = COUNT.get();
    let kept = of();
    let count = COUNT.get() - before;
    drop(kept);
    count
}

const NOW: Timestamp = Timestamp::from_millis(100);

/// `ml/llm`: pods that each hold so many devices of a node of their own, all at 50 %.
struct World {
    fleet: Arc<Fleet>,
    workload: Arc<Workload>,
    answers: Answers,
    _sessions: Vec<Session>,
}

fn pod_key(n: usize) -> PodKey {
    PodKey::new("ml", format!("llm-{n}"))
}

fn pod(n: usize) -> Arc<Pod> {
    Arc::new(Pod {
        key: pod_key(n),
        uid: None,
        node: Some(format!("node-{n}").into()),
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
}

/// What a node says whose pod holds so many devices, each with all that a GPU reports.
fn said(pod: usize, devices: u32) -> (Inventory, Sample) {
    let holder = Holder {
        pod: pod_key(pod),
        uid: None,
        container: "main".into(),
        share: Some(1.0),
        estimated: false,
        source: HolderSource::Replay,
        undeclared: false,
    };
    let device = |index| Device {
        uuid: format!("GPU-{pod}-{index}").into(),
        index,
        name: "H100".into(),
        memory_total_mib: None,
        mig: None,
        health: None,
        reason: None,
        holders: vec![holder.clone()],
    };
    let devices: Vec<_> = (0..devices).map(device).collect();
    let of_device = Metric::ALL.iter().filter(|metric| metric.scope() == Scope::Device);
    let readings: Readings = of_device.map(|metric| (*metric, Reading::Ok(50.0))).collect();
    let read = |_: &Device| {
        Some(DeviceSample {
            age: Duration::ZERO,
            readings: readings.clone(),
            held: Vec::new(),
            energy: None,
            throttled: Box::default(),
        })
    };
    let sample = Sample { devices: devices.iter().map(read).collect(), engines: Vec::new() };
    (Inventory { devices, engines: Vec::new(), reason: None }, sample)
}

fn spoken(fleet: &Arc<Fleet>, pod: usize, devices: u32) -> Session {
    let (inventory, sample) = said(pod, devices);
    let inventory = Arc::new(inventory);
    let node = format!("node-{pod}").into();
    let session = fleet.open(node, Duration::from_mins(1), "test".into()).unwrap();
    session.apply(&inventory, sample, Timestamp::START);
    session
}

impl World {
    fn new(pods: usize, devices: u32) -> Self {
        let (directory, fleet) = (Arc::new(Directory::default()), Arc::new(Fleet::default()));
        let replicas = u32::try_from(pods).unwrap();
        let target =
            WorkloadKey { namespace: "ml".into(), kind: "Deployment".into(), name: "llm".into() };
        let workload = Arc::new(Workload {
            key: target.clone(),
            replicas,
            status_replicas: replicas,
            pods: (0..pods).map(pod).collect(),
            gone: Vec::new(),
            short_since: None,
            with_pods_since: Some(Timestamp::LONG_AGO),
        });
        let object = ScaledObject {
            key: ScaledObjectKey::new("ml", "llm"),
            kind: ScaledKind::Object,
            target,
            workload: None,
            absent: None,
            target_type: TargetType::AverageValue,
            min_replicas: None,
            max_replicas: None,
            cooldown: None,
            triggers: Arc::default(),
        };
        let look_back = |_: &ScaledObject| Duration::from_mins(1);
        let workloads = [workload.clone()];
        directory.replace(Snapshot::new(Timestamp::START, workloads, vec![object], look_back));
        let sessions = (0..pods).map(|pod| spoken(&fleet, pod, devices)).collect();
        let profiles = Arc::new(Profiles::default());
        let answers = Answers::new(directory, fleet.clone(), profiles, Clock::start());
        assert!(answers.warm_up());
        Self { fleet, workload, answers, _sessions: sessions }
    }

    fn trigger(&self) -> Trigger {
        self.answers.trigger(&metadata()).unwrap()
    }

    /// What one decision allocates, and what gathering its observations does.
    fn decision(&self) -> (usize, usize) {
        let trigger = self.trigger();
        let roster = Roster::new(&self.fleet, &self.workload);
        let observe = || observe::observe(&self.fleet, &trigger, &roster, NOW);
        let (observed, _) = observe();
        let decide = || trigger::assess(&trigger, &observed, &NoPast, NOW);
        (allocations(decide), allocations(observe))
    }

    /// What a whole answer allocates once the trigger is known.
    fn answer(&self) -> usize {
        let metadata = metadata();
        let question = Question { namespace: "ml", name: "llm", metadata: &metadata };
        let ask = || self.answers.value(question).unwrap();
        let devices = self.workload.pods.len() as f64;
        assert!(ask() >= 50.0 * devices);
        allocations(ask)
    }
}

fn metadata() -> HashMap<String, String> {
    [("metricType", "gpu_utilization"), ("targetValue", "70")]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into()
}

#[test]
fn an_answer_allocates_nothing_per_device() {
    let (few, many) = (World::new(1, 64), World::new(1, 512));
    assert_eq!(few.decision(), many.decision(), "deciding and observing");
    assert_eq!(few.answer(), many.answer(), "all of it");
}

#[test]
fn an_answer_allocates_next_to_nothing_per_pod() {
    let (few, many) = (World::new(8, 8), World::new(64, 8));
    assert_eq!(few.decision().0, many.decision().0, "deciding");
    // Only lists that grow: they double.
    let (one, other) = (few.answer(), many.answer());
    assert!(other <= one + 8, "{one} allocations for 8 pods, {other} for 64");
    println!("{other} allocations for an answer over 64 pods");
}

/// What a message allocates from the wire's elements to the fleet's view; its bytes are read before.
fn message(devices: u32) -> usize {
    let (fleet, (inventory, sample)) = (Arc::new(Fleet::default()), said(0, devices));
    let (link, refused) = Link::open(inventory_to_wire(1, &inventory)).unwrap();
    let session = fleet.open("node".into(), Duration::from_secs(1), "test".into()).unwrap();
    let take = |tick: i64| {
        let message = sample_to_wire(1, &sample, Duration::ZERO);
        allocations(|| {
            let (sample, refused) = link.sample(message).unwrap();
            assert!(refused.is_empty());
            session.apply(link.inventory(), sample, Timestamp::from_millis(tick * 1_000));
        })
    };
    assert!(refused.is_empty());
    take(1);
    fleet.tidy(|_| None, Timestamp::from_millis(1_500));
    take(2)
}

#[test]
fn a_message_allocates_nothing_per_device() {
    let (few, many) = (message(8), message(512));
    // The list of readings, that of rows, the view, and a list that is cut to its size.
    assert!(few <= 4 && many <= 4, "{few} allocations for 8 devices, {many} for 512");
}
