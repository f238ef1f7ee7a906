//! One node: its sessions, what they add up to, and its history.
//!
//! Guarantees: a device is counted once, by UUID, with the newest session's holders and the newest
//! reading. A session that ends takes along only what no other session vouches for; when the last
//! one ends, what it said stays and grows old. An inventory takes effect with its first sample, so
//! that readings are never billed to holders they were not taken for; what was read of an engine
//! stays with that engine, and with the selection of its series, until it is read anew.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use shared::frame::{Engine, HeldReading, Holder, Inventory, Sample};
use shared::identity::{DeviceUuid, PodKey};
use shared::time::Timestamp;
use tokio_util::sync::CancellationToken;

use super::view::{Index, Intervals, NodeView, Row};

/// Streams a node may have open: an update with surge needs two.
const MAX_SESSIONS: usize = 4;
/// Readings of devices and engines kept for windows, whatever is asked for: an hour of 8 GPUs at
/// 100 ms.
const MAX_HISTORY: usize = 330_000;

/// Samples that may come at once.
const HASTE: usize = 16;

/// One node's sessions and history.
#[derive(Debug)]
pub struct NodeState {
    /// Oldest first.
    sessions: Vec<Session>,
    history: VecDeque<Arc<NodeView>>,
    /// Readings in it.
    kept: usize,
    keep: Duration,
    /// The index of several sessions together, for as long as theirs stay the same.
    merged: Option<(Vec<Arc<Index>>, Arc<Index>)>,
}

#[derive(Debug)]
struct Session {
    id: u64,
    intervals: Intervals,
    version: Arc<str>,
    superseded: CancellationToken,
    live: bool,
    heard: Option<Arc<NodeView>>,
}

impl Default for NodeState {
    fn default() -> Self {
        let (sessions, history) = (Vec::new(), VecDeque::new());
        Self { sessions, history, kept: 0, keep: Duration::MAX, merged: None }
    }
}

impl NodeState {
    /// A new stream speaks for the node. The oldest of too many is told to end.
    pub fn open(
        &mut self,
        id: u64,
        intervals: Intervals,
        version: Arc<str>,
        superseded: CancellationToken,
    ) {
        self.sessions.push(Session { id, intervals, version, superseded, live: true, heard: None });
        let live = self.sessions.iter().filter(|session| session.live).count();
        if live > MAX_SESSIONS
            && let Some(oldest) = self.sessions.iter().find(|session| session.live)
        {
            oldest.superseded.cancel();
        }
    }

    /// Takes one tick of one session and returns what the node now says.
    pub fn apply(
        &mut self,
        id: u64,
        inventory: &Arc<Inventory>,
        sample: Sample,
        now: Timestamp,
    ) -> Option<Arc<NodeView>> {
        let known = self.sessions.iter().rev().find_map(|session| session.heard.clone());
        let session = self.sessions.iter_mut().find(|session| session.id == id)?;
        let before = session.heard.take();
        let same = before.as_ref();
        let same = same.filter(|view| Arc::ptr_eq(view.index().inventory(), inventory));
        let index = match same {
            Some(view) => view.index().clone(),
            None => {
                let known = known.as_ref().map(|view| &**view.index());
                Arc::new(Index::new(inventory.clone(), known, now))
            }
        };
        let devices = sample.devices.into_iter().enumerate().map(|(at, device)| match device {
            Some(d) => Some(Row { taken_at: now - d.age, readings: d.readings, held: d.held }),
            None => same?.row(at).cloned(),
        });
        let engines = sample.engines.into_iter().enumerate().map(|(at, engine)| match engine {
            Some(e) => Some(Row { taken_at: now - e.age, readings: e.readings, held: Vec::new() }),
            None => before.as_ref()?.row_of(inventory.engines.get(at)?).cloned(),
        });
        let (devices, engines) = (devices.collect(), engines.collect());
        session.heard =
            Some(Arc::new(NodeView::new(index, devices, engines, session.intervals, now)));
        // Whoever left before is now spoken for.
        self.sessions.retain(|session| session.live);
        let view = self.view();
        self.remember(view.as_ref(), now);
        view
    }

    /// A stream ended. Returns what the node says without it.
    pub fn close(&mut self, id: u64) -> Option<Arc<NodeView>> {
        if let Some(session) = self.sessions.iter_mut().find(|session| session.id == id) {
            session.live = false;
        }
        let spoken_for =
            self.sessions.iter().any(|session| session.live && session.heard.is_some());
        // The last word stays until someone else speaks; a session never heard leaves no trace.
        self.sessions.retain(|session| session.live || (!spoken_for && session.heard.is_some()));
        self.view()
    }

    /// Open streams, and the version of the agent that is read.
    pub fn status(&self) -> (usize, Arc<str>) {
        let live = self.sessions.iter().filter(|session| session.live).count();
        let version =
            self.sessions.last().map_or_else(|| "".into(), |session| session.version.clone());
        (live, version)
    }

    /// What the node said since `from`, oldest first.
    pub fn history(&self, from: Timestamp) -> Vec<Arc<NodeView>> {
        let start = self.history.partition_point(|view| view.received_at < from);
        self.history.range(start..).cloned().collect()
    }

    /// Whether its history speaks of `pod`.
    pub fn remembers(&self, pod: &PodKey) -> bool {
        self.history.iter().any(|view| view.holds(pod))
    }

    /// Keeps `keep` of history from now on.
    pub fn keep(&mut self, keep: Duration, now: Timestamp) {
        self.keep = keep;
        self.forget(now);
    }

    fn remember(&mut self, view: Option<&Arc<NodeView>>, now: Timestamp) {
        if let Some(view) = view.filter(|_| !self.keep.is_zero()) {
            // Who goes on speaking more than twice as often as agreed only replaces the last word.
            let earlier = self.history.iter().rev().nth(HASTE - 1);
            let least = view.intervals.samples * u32::try_from(HASTE).unwrap_or(u32::MAX) / 2;
            if earlier.is_some_and(|earlier| now.since(earlier.received_at) < least) {
                self.kept -= self.history.pop_back().map_or(0, |last| last.size());
            }
            self.kept += view.size();
            self.history.push_back(view.clone());
        }
        self.forget(now);
    }

    fn forget(&mut self, now: Timestamp) {
        let keep = self.keep;
        while self.kept > MAX_HISTORY
            || self.history.front().is_some_and(|view| now.since(view.received_at) > keep)
        {
            let Some(oldest) = self.history.pop_front() else { return };
            self.kept -= oldest.size();
        }
    }

    /// What the sessions that were heard add up to.
    fn view(&mut self) -> Option<Arc<NodeView>> {
        let heard: Vec<Arc<NodeView>> =
            self.sessions.iter().rev().filter_map(|session| session.heard.clone()).collect();
        let newest = heard.first()?;
        if heard.len() == 1 {
            self.merged = None;
            return Some(newest.clone());
        }
        let sources: Vec<_> = heard.iter().map(|view| view.index().clone()).collect();
        let index = match &self.merged {
            Some((from, index)) if same_indexes(from, &sources) => index.clone(),
            _ => Arc::new(merged_index(&sources, newest.received_at)),
        };
        self.merged = Some((sources, index.clone()));
        Some(Arc::new(merged_view(&heard, index)))
    }
}

fn same_indexes(a: &[Arc<Index>], b: &[Arc<Index>]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| Arc::ptr_eq(a, b))
}

/// The newest session's inventory, and after it what only older ones have.
fn merged_index(newest_first: &[Arc<Index>], now: Timestamp) -> Index {
    let (mut devices, mut engines) = (HashSet::new(), HashSet::new());
    let mut inventory = Inventory::default();
    for index in newest_first {
        let from = index.inventory();
        let new = from.devices.iter().filter(|device| devices.insert(device.uuid.clone()));
        inventory.devices.extend(new.cloned());
        let key = |engine: &Engine| (engine.pod.clone(), engine.labels.clone());
        let new = from.engines.iter().filter(|engine| engines.insert(key(engine)));
        inventory.engines.extend(new.cloned());
        inventory.reason = inventory.reason.or_else(|| from.reason.clone());
    }
    Index::new(Arc::new(inventory), newest_first.first().map(|index| &**index), now)
}

/// For each device and engine the newest reading, whoever has it.
fn merged_view(newest_first: &[Arc<NodeView>], index: Arc<Index>) -> NodeView {
    let mut rows: HashMap<&DeviceUuid, Row> = HashMap::new();
    let mut engine_rows: HashMap<(&PodKey, &str), Row> = HashMap::new();
    let known: HashMap<_, _> =
        index.inventory().devices.iter().map(|device| (&device.uuid, &device.holders)).collect();
    for view in newest_first {
        for (at, device) in view.inventory().devices.iter().enumerate() {
            let Some(row) = view.row(at).filter(|row| is_newer(row, rows.get(&device.uuid))) else {
                continue;
            };
            let mut row = row.clone();
            let holders = known.get(&device.uuid).map_or(&[][..], |holders| holders);
            if holders != device.holders {
                row.held = rehold(row.held, &device.holders, holders);
            }
            rows.insert(&device.uuid, row);
        }
        for (at, engine) in view.inventory().engines.iter().enumerate() {
            if let Some(row) = view.engine_row(at)
                && is_newer(row, engine_rows.get(&key_of(engine)))
            {
                engine_rows.insert(key_of(engine), row.clone());
            }
        }
    }
    let inventory = index.inventory();
    let devices = inventory.devices.iter().map(|device| rows.remove(&device.uuid)).collect();
    let engines = inventory.engines.iter();
    let engines = engines.map(|engine| engine_rows.remove(&key_of(engine))).collect();
    let intervals = newest_first.iter().map(|view| view.intervals);
    let intervals = intervals.reduce(Intervals::max).unwrap_or_default();
    let received_at = newest_first.iter().map(|view| view.received_at).max().unwrap_or_default();
    NodeView::new(index.clone(), devices, engines, intervals, received_at)
}

/// What the rows of engines are told apart by, whichever session brings them.
fn key_of(engine: &Engine) -> (&PodKey, &str) {
    (&engine.pod, &engine.labels)
}

/// Places of holders are the reporting session's own: brings readings from the list `from` to the
/// places of the same containers in `to`. Those that are not there have none.
fn rehold(held: Vec<HeldReading>, from: &[Holder], to: &[Holder]) -> Vec<HeldReading> {
    let is_same = |a: &Holder, b: &Holder| {
        let same_uid = a.uid.as_ref().zip(b.uid.as_ref()).is_none_or(|(a, b)| a == b);
        a.pod == b.pod && a.container == b.container && same_uid
    };
    let place = |holder: usize| {
        let own = from.get(holder)?;
        to.iter().position(|other| is_same(own, other))
    };
    let moved = held.into_iter().filter_map(|reading| {
        let holder = place(reading.holder)?;
        Some(HeldReading { holder, ..reading })
    });
    moved.collect()
}

fn is_newer(row: &Row, known: Option<&Row>) -> bool {
    known.is_none_or(|known| known.taken_at < row.taken_at)
}
