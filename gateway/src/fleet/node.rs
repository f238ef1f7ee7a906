//! One node: its sessions, what they add up to, and its history.
//!
//! Guarantees: a device is counted once, by UUID, with holders and readings of one and the same
//! session: the newest that reads it. A session that ends takes along only what no other session vouches for; when the last
//! one ends, what it said stays and grows old. An inventory takes effect with its first sample, so
//! that readings are never billed to holders they were not taken for; what was read of an engine
//! stays with that engine, and with the selection of its series, until it is read anew.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use shared::frame::{Engine, Inventory, Sample};
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
    merged: Option<(Made, Arc<Index>)>,
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
        // Nearly always the only one.
        self.sessions.reserve_exact(1);
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
        let at = self.sessions.iter().position(|session| session.id == id)?;
        let before = self.sessions[at].heard.take();
        let same = before.as_ref().filter(|view| Arc::ptr_eq(view.inventory(), inventory));
        let index = match same {
            Some(view) => view.index().clone(),
            None => {
                let said = |(place, session): (usize, &Session)| {
                    let own = before.as_ref().filter(|_| place == at);
                    own.or(session.heard.as_ref()).cloned()
                };
                let known = self.sessions.iter().enumerate().rev().find_map(said);
                let known = known.as_ref().map(|view| &**view.index());
                Arc::new(Index::new(inventory.clone(), known, now))
            }
        };
        let devices = sample.devices.into_iter().enumerate().map(|(at, device)| match device {
            Some(d) => Some(Row::of_device(d, now)),
            None => same?.row(at).cloned(),
        });
        let engines = sample.engines.into_iter().enumerate().map(|(at, engine)| match engine {
            Some(e) => Some(Row::of_engine(e, now)),
            None => before.as_ref()?.row_of(inventory.engines.get(at)?).cloned(),
        });
        let (devices, engines) = (devices.collect(), engines.collect());
        let session = &mut self.sessions[at];
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
        let mut heard = self.sessions.iter().rev().filter_map(|session| session.heard.as_ref());
        let newest = heard.next()?.clone();
        let Some(other) = heard.next() else {
            self.merged = None;
            return Some(newest);
        };
        let heard: Vec<_> = [&newest, other].into_iter().chain(heard).cloned().collect();
        let from = Made { places: places(&heard), indexes: indexes(&heard) };
        let index = match &self.merged {
            Some((known, index)) if known.is_same(&from) => index.clone(),
            _ => Arc::new(merged_index(&heard, &from.places, newest.received_at)),
        };
        let view = merged_view(&heard, &from.places, index.clone());
        self.merged = Some((from, index));
        Some(Arc::new(view))
    }
}

/// What an index of several sessions was made from.
#[derive(Debug)]
struct Made {
    /// Of each device the session that is read, and its place there.
    places: Vec<(usize, usize)>,
    indexes: Vec<Arc<Index>>,
}

impl Made {
    fn is_same(&self, other: &Self) -> bool {
        let indexes = self.indexes.iter().zip(&other.indexes);
        self.places == other.places
            && self.indexes.len() == other.indexes.len()
            && indexes.into_iter().all(|(a, b)| Arc::ptr_eq(a, b))
    }
}

fn indexes(views: &[Arc<NodeView>]) -> Vec<Arc<Index>> {
    views.iter().map(|view| view.index().clone()).collect()
}

/// For each device the session that is read: holders and readings of different sessions do not go
/// together, because a reading is split as the one that read it knows its holders.
fn places(newest_first: &[Arc<NodeView>]) -> Vec<(usize, usize)> {
    let mut order: HashMap<&DeviceUuid, usize> = HashMap::new();
    let mut sessions: Vec<Vec<(usize, usize)>> = Vec::new();
    for (session, view) in newest_first.iter().enumerate() {
        for (at, device) in view.inventory().devices.iter().enumerate() {
            let place = *order.entry(&device.uuid).or_insert(sessions.len());
            if place == sessions.len() {
                sessions.push(Vec::new());
            }
            sessions[place].push((session, at));
        }
    }
    sessions.iter().map(|of_device| best(newest_first, of_device)).collect()
}

/// The newest session, unless it has had nothing of the device for long while another has; and
/// rather one that measures what holders do, and reads all of the device, than one that does not
/// yet.
fn best(views: &[Arc<NodeView>], of_device: &[(usize, usize)]) -> (usize, usize) {
    let row = |(session, at): (usize, usize)| views[session].row(at);
    let newest = of_device.iter().filter_map(|place| Some(row(*place)?.taken_at)).max();
    let is_spoken_of = |place: &(usize, usize)| match (row(*place), newest) {
        // Just handed over: that is the newest word, and takes the device from the former holders.
        (None, _) | (_, None) => true,
        (Some(row), Some(newest)) => {
            newest.since(row.taken_at) <= views[place.0].intervals.samples * 3
        }
    };
    let is_whole = |place: &(usize, usize)| {
        let device = &views[place.0].inventory().devices[place.1];
        let is_guess = device.holders.iter().any(|holder| holder.estimated);
        let failed = row(*place).and_then(Row::failure);
        !is_guess && failed.is_none()
    };
    let mut spoken = of_device.iter().filter(|place| is_spoken_of(place));
    let first = spoken.clone().next().or(of_device.first());
    *spoken.find(|place| is_whole(place)).or(first).unwrap_or(&(0, 0))
}

/// The devices of the sessions that are read, and the engines of all.
fn merged_index(
    newest_first: &[Arc<NodeView>],
    places: &[(usize, usize)],
    now: Timestamp,
) -> Index {
    let mut engines = HashSet::new();
    let device =
        |&(session, at): &(usize, usize)| newest_first[session].inventory().devices[at].clone();
    let mut inventory =
        Inventory { devices: places.iter().map(device).collect(), ..Inventory::default() };
    for view in newest_first {
        let from = view.inventory();
        let key = |engine: &Engine| (engine.pod.clone(), engine.labels.clone());
        let new = from.engines.iter().filter(|engine| engines.insert(key(engine)));
        inventory.engines.extend(new.cloned());
        inventory.reason = inventory.reason.or_else(|| from.reason.clone());
    }
    Index::new(Arc::new(inventory), newest_first.first().map(|view| &**view.index()), now)
}

/// The rows of the devices of `places`, and for each engine the newest, whoever has it.
fn merged_view(
    newest_first: &[Arc<NodeView>],
    places: &[(usize, usize)],
    index: Arc<Index>,
) -> NodeView {
    let mut engine_rows: HashMap<(&PodKey, &str), Row> = HashMap::new();
    for view in newest_first {
        for (at, engine) in view.inventory().engines.iter().enumerate() {
            if let Some(row) = view.engine_row(at)
                && is_newer(row, engine_rows.get(&key_of(engine)))
            {
                engine_rows.insert(key_of(engine), row.clone());
            }
        }
    }
    let row = |&(session, at): &(usize, usize)| newest_first[session].row(at).cloned();
    let devices = places.iter().map(row).collect();
    let engines = index.inventory().engines.iter();
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

fn is_newer(row: &Row, known: Option<&Row>) -> bool {
    known.is_none_or(|known| known.taken_at < row.taken_at)
}
