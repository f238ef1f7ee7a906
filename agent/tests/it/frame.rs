//! Frames, and the loop that makes them.

use std::sync::Arc;
use std::time::Duration;

use agent::collector::{Collector, Newest};
use agent::device::meter::Meters;
use agent::device::{DeviceSource, Error, Observation};
use agent::engine::Engines;
use agent::frame::assemble;
use agent::owner::file::HoldersFile;
use agent::owner::handover::Handovers;
use shared::frame::{Frame, Inventory};
use shared::metric::Metric;
use shared::process::Clock;
use shared::time::Timestamp;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::attribution::card;
use crate::cgroups::{A, P1};
use crate::owner::{device, holder, written};
use crate::processes::{Tree, brief, briefed, cgroup, process};
use crate::support::at;

fn observation(pod: &str, age: u64) -> Observation {
    let mut device = device("GPU-a", vec![holder(pod, None)]);
    device.age = Duration::from_millis(age);
    Observation { devices: vec![device], ..Observation::default() }
}

fn frame(observation: Observation, previous: Option<&Arc<Inventory>>) -> Frame {
    let owners = written(&observation);
    assemble(observation, owners, previous)
}

#[test]
fn the_inventory_is_the_same_arc_until_something_in_it_changes() {
    let first = frame(observation("p", 0), None);
    let same = frame(observation("p", 70), Some(&first.inventory));
    assert!(Arc::ptr_eq(&first.inventory, &same.inventory));
    let age = same.sample.devices[0].as_ref().unwrap().age;
    assert_eq!(age, Duration::from_millis(70));
    let moved = frame(observation("q", 0), Some(&same.inventory));
    assert!(!Arc::ptr_eq(&same.inventory, &moved.inventory));
}

#[test]
fn a_reason_why_there_is_nothing_travels_in_the_inventory() {
    let nothing =
        Observation { reason: Some("no valid line yet".into()), ..Observation::default() };
    let frame = frame(nothing, None);
    assert_eq!(frame.inventory.reason.as_deref(), Some("no valid line yet"));
}

/// Counts its observations and has finished after `last`.
struct Counting {
    observed: u64,
    last: u64,
}

impl DeviceSource for Counting {
    fn observe(&mut self, _: Timestamp) -> Observation {
        self.observed += 1;
        observation("p", self.observed)
    }

    fn finished(&self) -> Result<bool, Error> {
        Ok(self.observed == self.last)
    }
}

fn collector(last: u64) -> Collector {
    Collector {
        source: Box::new(Counting { observed: 0, last }),
        holders: None,
        engines: Engines::default(),
        kubelet: None,
        processes: None,
        briefs: watch::Sender::new(None).subscribe(),
        meters: Meters::default(),
        handovers: Handovers::default(),
        notes: Vec::new(),
        interval: Duration::from_millis(500),
    }
}

fn age(newest: &watch::Receiver<Newest>) -> Duration {
    let newest = newest.borrow();
    let taken = newest.as_ref().unwrap();
    taken.frame.sample.devices[0].as_ref().unwrap().age
}

#[test]
fn a_holders_file_wins_over_what_the_source_says() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("holders.yaml");
    std::fs::write(&path, "GPU-a: [{namespace: ai, pod: declared}]").unwrap();
    let mut collector = collector(u64::MAX);
    collector.holders = Some(HoldersFile::open(&path).unwrap());
    let taken = collector.take(at(0), None);
    let holders = &taken.frame.inventory.devices[0].holders;
    assert_eq!(holders[0].pod.to_string(), "ai/declared");
}

/// A device that a process runs on.
struct Used;

impl DeviceSource for Used {
    fn observe(&mut self, _: Timestamp) -> Observation {
        let processes = vec![process(100, Some(40.0), Some(250.0))];
        Observation { devices: vec![card(80.0, processes)], ..Observation::default() }
    }

    fn finished(&self) -> Result<bool, Error> {
        Ok(false)
    }
}

#[test]
fn processes_are_looked_at_and_named_by_the_newest_brief() {
    let tree = Tree::new();
    tree.process(100, 1, cgroup(P1, A));
    let briefs = watch::Sender::new(None);
    let mut collector = collector(u64::MAX);
    collector.source = Box::new(Used);
    collector.processes = Some(tree.reader());
    collector.briefs = briefs.subscribe();
    let taken = collector.take(at(0), None);
    let device = &taken.frame.inventory.devices[0];
    assert!(device.holders.is_empty());
    let why = format!("used by a pod that has no known name, UID {P1}");
    assert_eq!(device.reason.as_deref(), Some(why.as_str()));

    briefs.send_replace(Some(brief(vec![briefed("llm", P1, &[("main", A)])])));
    let taken = collector.take(at(1_000), Some(&taken.frame.inventory));
    let device = &taken.frame.inventory.devices[0];
    assert_eq!(device.holders[0].pod.to_string(), "ai/llm");
    assert_eq!((&*device.holders[0].container, &device.reason), ("main", &None));
    let sample = taken.frame.sample.devices[0].as_ref().unwrap();
    let own = |metric| sample.held.iter().find(|held| held.metric == metric).map(|held| held.value);
    assert_eq!(own(Metric::GpuUtilization), Some(40.0));
    assert_eq!(own(Metric::MemoryUsedMib), Some(250.0));
}

/// Otherwise a shared card would be split equally until names are known.
#[tokio::test(start_paused = true)]
async fn where_processes_are_to_be_named_the_first_frame_waits_some_seconds_for_the_brief() {
    let tree = Tree::new();
    tree.process(100, 1, cgroup(P1, A));
    let named = || Some(brief(vec![briefed("llm", P1, &[("main", A)])]));
    for (has_processes, comes_after, is_named, waited) in [
        (true, Some(900), true, 900),
        (true, Some(4_000), false, 3_000),
        // Nobody will ever brief it.
        (true, None, false, 0),
        (false, Some(900), false, 0),
    ] {
        let clock = Clock::start();
        let briefs = watch::Sender::new(None);
        let mut collector = collector(u64::MAX);
        collector.source = Box::new(Used);
        collector.processes = has_processes.then(|| tree.reader());
        collector.briefs = briefs.subscribe();
        let telling = async move {
            if let Some(millis) = comes_after {
                tokio::time::sleep(Duration::from_millis(millis)).await;
                briefs.send_replace(named());
            }
        };
        let first = async {
            let taken = collector.first(clock).await;
            (!taken.frame.inventory.devices[0].holders.is_empty(), clock.now())
        };
        let ((), first) = tokio::join!(telling, first);
        assert_eq!(first, (is_named, at(waited)), "{comes_after:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn every_interval_brings_a_frame_and_only_the_newest_is_kept() {
    let (send, newest) = watch::channel(None);
    let shutdown = CancellationToken::new();
    let running = tokio::spawn(collector(u64::MAX).run(Clock::start(), send, shutdown.clone()));
    tokio::time::sleep(Duration::from_millis(1_600)).await;
    // At 0, 500, 1000 and 1500 ms.
    assert_eq!(age(&newest), Duration::from_millis(4));
    assert_eq!(newest.borrow().as_ref().unwrap().at, at(1_500));
    shutdown.cancel();
    running.await.unwrap().unwrap();
    assert!(newest.has_changed().is_err(), "the channel is closed");
}

#[tokio::test(start_paused = true)]
async fn the_loop_ends_with_its_source_after_the_last_frame() {
    let (send, newest) = watch::channel(None);
    let clock = Clock::start();
    collector(3).run(clock, send, CancellationToken::new()).await.unwrap();
    assert_eq!(age(&newest), Duration::from_millis(3));
    assert_eq!(clock.now(), at(1_000));
}
