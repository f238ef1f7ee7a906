//! What every node last said, read by pod.
//!
//! Guarantees: a node's streams are the only writers of its slot; a view is swapped whole, so a
//! reader sees one tick of a node or another, never a mixture, and no read waits for a write. The
//! maps never leave this module. Nothing here decides whether a reading is fresh.

/// Devices that nobody holds, by model.
pub mod free;
/// One node: its sessions, what they add up to, and its history.
pub mod node;
/// What of a device's load nobody can be named for.
pub mod unattributed;
/// One tick of one node, indexed by pod.
pub mod view;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::Weak;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use dashmap::DashMap;
use parking_lot::Mutex;
use shared::frame::{Inventory, Sample};
use shared::identity::{DeviceUuid, NodeName, PodKey};
use shared::time::Timestamp;
use smallvec::SmallVec;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use node::NodeState;
use view::{Index, Intervals, NodeView};

/// Nodes the view holds; a further one is refused.
pub const MAX_NODES: usize = 20_000;
/// Lines of the log for devices newly claimed twice, at each look.
const MAX_TOLD: usize = 8;
/// How long a node without a session is still shown.
const FORGET_AFTER: Duration = Duration::from_secs(600);

/// Hashes names in a few instructions. Its seed is random, because agents say the names.
type Seeded = foldhash::fast::RandomState;
/// A node without a session that was heard longer ago than this has its devices no more: what it
/// had may be another's by now.
const CLAIMS_FOR: Duration = Duration::from_secs(10);

/// What every node last said.
pub struct Fleet {
    nodes: DashMap<NodeName, Arc<Node>, Seeded>,
    /// Where a pod is said to be, or was while history reaches back; for pods whose node the
    /// directory does not give.
    homes: DashMap<PodKey, SmallVec<[NodeName; 1]>, Seeded>,
    /// Pods that a node speaks of no more but its history may.
    left: Mutex<Vec<(PodKey, NodeName)>>,
    sessions: AtomicU64,
    opened: AtomicU64,
    topology: watch::Sender<u64>,
    conflicts: ArcSwap<Vec<Conflict>>,
    /// Who claimed what at the last look for them.
    claimants: Mutex<Vec<(Arc<Node>, Arc<Index>)>>,
}

/// A device that two nodes claim.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Conflict {
    /// The device.
    pub uuid: DeviceUuid,
    /// The nodes, in order.
    pub nodes: Vec<NodeName>,
}

/// One node's place in the fleet, kept to come back to it without looking it up.
#[derive(Clone)]
pub struct Slot(Arc<Node>);

impl Slot {
    /// What the node last said; nothing, if it was forgotten since.
    #[inline]
    pub fn view(&self) -> arc_swap::Guard<Option<Arc<NodeView>>> {
        self.0.view.load()
    }
}

struct Node {
    name: NodeName,
    state: Mutex<NodeState>,
    view: ArcSwapOption<NodeView>,
    watchers: Mutex<Vec<Weak<Notify>>>,
}

/// A stream's right to speak for a node. Dropping it ends the session.
pub struct Session {
    fleet: Arc<Fleet>,
    node: NodeName,
    /// Not forgotten for as long as the session is open.
    slot: Arc<Node>,
    id: u64,
    /// Cancelled when newer sessions of the same node have pushed this one out.
    pub superseded: CancellationToken,
}

/// What the fleet shows of one node.
#[derive(Clone, Debug)]
pub struct NodeStatus {
    /// The node.
    pub name: NodeName,
    /// Streams that are open.
    pub sessions: usize,
    /// Version of the agent that is read.
    pub agent_version: Arc<str>,
    /// What it last said.
    pub view: Option<Arc<NodeView>>,
}

/// The fleet is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{MAX_NODES} nodes are connected; no more are accepted")]
pub struct Full;

impl Default for Fleet {
    fn default() -> Self {
        Self {
            nodes: DashMap::default(),
            homes: DashMap::default(),
            left: Mutex::default(),
            sessions: AtomicU64::new(0),
            opened: AtomicU64::new(0),
            topology: watch::Sender::new(0),
            conflicts: ArcSwap::default(),
            claimants: Mutex::default(),
        }
    }
}

impl Fleet {
    /// Opens a session for `node`: from now on the newest one that is heard is read.
    ///
    /// # Errors
    /// When the node is new and there is no room for it.
    pub fn open(
        self: &Arc<Self>,
        node: NodeName,
        intervals: impl Into<Intervals>,
        version: Arc<str>,
    ) -> Result<Session, Full> {
        self.open_until(CancellationToken::new(), node, intervals, version)
    }

    /// The same; `superseded` is what is cancelled when newer sessions have pushed it out.
    ///
    /// # Errors
    /// When the node is new and there is no room for it.
    pub fn open_until(
        self: &Arc<Self>,
        superseded: CancellationToken,
        node: NodeName,
        intervals: impl Into<Intervals>,
        version: Arc<str>,
    ) -> Result<Session, Full> {
        if self.nodes.len() >= MAX_NODES && !self.nodes.contains_key(&node) {
            return Err(Full);
        }
        let id = self.opened.fetch_add(1, Ordering::Relaxed);
        let slot = {
            // Under the map's lock, so that the slot cannot be forgotten in between.
            let slot =
                self.nodes.entry(node.clone()).or_insert_with(|| Arc::new(Node::new(node.clone())));
            slot.state.lock().open(id, intervals.into(), version, superseded.clone());
            slot.clone()
        };
        self.sessions.fetch_add(1, Ordering::Relaxed);
        Ok(Session { fleet: self.clone(), node, slot, id, superseded })
    }

    /// Nodes that are known, silent ones included; at most [`MAX_NODES`].
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether no node is known.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Sessions that are open.
    pub fn sessions(&self) -> u64 {
        self.sessions.load(Ordering::Relaxed)
    }

    /// The same, as agents are told it.
    pub fn crowd(&self) -> u32 {
        u32::try_from(self.sessions()).unwrap_or(u32::MAX)
    }

    /// What `node` last said.
    pub fn view(&self, node: &NodeName) -> Option<Arc<NodeView>> {
        self.nodes.get(node)?.view.load_full()
    }

    /// The place of `node`.
    pub fn slot(&self, node: &NodeName) -> Option<Slot> {
        Some(Slot(self.nodes.get(node)?.clone()))
    }

    /// Where `pod` is said to be, or was within the history; in order, usually one.
    pub fn homes(&self, pod: &PodKey) -> Vec<NodeName> {
        self.homes.get(pod).map_or_else(Vec::new, |homes| homes.to_vec())
    }

    /// What `node` said since `from`, oldest first.
    pub fn history(&self, node: &NodeName, from: Timestamp) -> Vec<Arc<NodeView>> {
        let Some(slot) = self.nodes.get(node).map(|slot| slot.clone()) else {
            return Vec::new();
        };
        slot.state.lock().history(from)
    }

    /// Every node, in order.
    pub fn nodes(&self) -> Vec<NodeStatus> {
        let mut nodes: Vec<_> = self
            .slots()
            .into_iter()
            .map(|slot| {
                let (sessions, agent_version) = slot.state.lock().status();
                let name = slot.name.clone();
                NodeStatus { name, sessions, agent_version, view: slot.view.load_full() }
            })
            .collect();
        nodes.sort_by(|a, b| a.name.cmp(&b.name));
        nodes
    }

    /// What every node last said, in no order.
    pub fn views(&self) -> Vec<(NodeName, Arc<NodeView>)> {
        let mut views = Vec::with_capacity(self.nodes.len());
        views.extend(
            self.slots()
                .into_iter()
                .filter_map(|slot| Some((slot.name.clone(), slot.view.load_full()?))),
        );
        views
    }

    /// Every node; no lock is held when it returns.
    fn slots(&self) -> Vec<Arc<Node>> {
        let mut slots = Vec::with_capacity(self.nodes.len());
        slots.extend(self.nodes.iter().map(|slot| slot.value().clone()));
        slots
    }

    /// Devices that more than one node claims, as of the last [`Fleet::tidy`].
    pub fn conflicts(&self) -> Arc<Vec<Conflict>> {
        self.conflicts.load_full()
    }

    /// Changes whenever a node, a device or a holder comes or goes.
    pub fn topology(&self) -> watch::Receiver<u64> {
        self.topology.subscribe()
    }

    /// Has `notify` woken whenever one of `nodes` says something, for as long as it lives.
    pub fn wake_on(&self, nodes: &[NodeName], notify: &Arc<Notify>) {
        for node in nodes {
            let Some(slot) = self.nodes.get(node).map(|slot| slot.clone()) else {
                continue;
            };
            let mut watchers = slot.watchers.lock();
            watchers.retain(|watcher| watcher.strong_count() > 0);
            watchers.push(Arc::downgrade(notify));
        }
    }

    /// Forgets nodes that have long been silent, looks for devices claimed twice, and cuts every
    /// node's history to the longest that `keep` wants for a pod on it.
    pub fn tidy(&self, keep: impl Fn(&PodKey) -> Option<Duration>, now: Timestamp) {
        let (mut gone, mut claimants) = (Vec::new(), Vec::new());
        for slot in self.slots() {
            let view = slot.view.load_full();
            let last = view.as_ref().map(|view| view.received_at);
            let has_session = slot.state.lock().status().0 > 0;
            if !has_session && last.is_none_or(|last| now.since(last) >= FORGET_AFTER) {
                gone.push(slot.name.clone());
                continue;
            }
            let Some(view) = view else { continue };
            let wanted = view.pods().filter_map(&keep).max().unwrap_or(Duration::ZERO);
            slot.state.lock().keep(wanted, now);
            if has_session || now.since(view.received_at) < CLAIMS_FOR {
                claimants.push((slot.clone(), view.index().clone()));
            }
        }
        self.note_conflicts(claimants);
        for node in gone {
            self.forget(&node);
        }
        self.leave();
    }

    /// Looks for devices claimed twice, if anybody claims something else than at the last look.
    fn note_conflicts(&self, claimants: Vec<(Arc<Node>, Arc<Index>)>) {
        let mut known = self.claimants.lock();
        let is_same = |((_, a), (_, b)): (&(_, Arc<Index>), &(_, Arc<Index>))| Arc::ptr_eq(a, b);
        if known.len() == claimants.len() && known.iter().zip(&claimants).all(is_same) {
            return;
        }
        let mut claims: HashMap<&DeviceUuid, &NodeName, Seeded> = HashMap::default();
        let mut twice: BTreeMap<&DeviceUuid, BTreeSet<&NodeName>> = BTreeMap::new();
        for (node, index) in &claimants {
            for device in &index.inventory().devices {
                if let Some(other) = claims.insert(&device.uuid, &node.name) {
                    twice.entry(&device.uuid).or_default().extend([other, &node.name]);
                }
            }
        }
        let conflicts = twice.into_iter().map(|(uuid, nodes)| Conflict {
            uuid: uuid.clone(),
            nodes: nodes.into_iter().cloned().collect(),
        });
        let conflicts = Arc::new(conflicts.collect::<Vec<_>>());
        tell_new(&self.conflicts.swap(conflicts.clone()), &conflicts);
        *known = claimants;
    }

    /// Takes pods out of the index once neither their former node nor its history speaks of them.
    fn leave(&self) {
        let mut left = std::mem::take(&mut *self.left.lock());
        left.retain(|(pod, node)| {
            let slot = self.nodes.get(node).map(|slot| slot.clone());
            if slot.as_ref().is_some_and(|slot| slot.state.lock().remembers(pod)) {
                return true;
            }
            if let Some(mut homes) = self.homes.get_mut(pod) {
                // Looked at while the entry is locked: a node that speaks of the pod again has
                // swapped its view before, or enters itself after.
                let view = slot.and_then(|slot| slot.view.load_full());
                homes.retain(|home| {
                    home != node || view.as_ref().is_some_and(|view| view.holds(pod))
                });
            }
            self.homes.remove_if(pod, |_, homes| homes.is_empty());
            false
        });
        self.left.lock().append(&mut left);
    }

    fn forget(&self, node: &NodeName) {
        // A session may have been opened since the look: it keeps the node.
        let removed = self.nodes.remove_if(node, |_, slot| slot.state.lock().status().0 == 0);
        if let Some((_, slot)) = removed {
            // Whoever has kept the slot finds nothing in it.
            let pods = slot.view.swap(None);
            *slot.state.lock() = NodeState::default();
            self.rehome(node, pods.as_deref(), None);
            self.topology.send_modify(|version| *version += 1);
        }
    }

    /// Brings the index of pods' nodes in line with a node's new view.
    fn rehome(&self, node: &NodeName, before: Option<&NodeView>, after: Option<&NodeView>) {
        let gone = before.into_iter().flat_map(NodeView::pods);
        let gone = gone.filter(|pod| !after.is_some_and(|view| view.holds(pod)));
        self.left.lock().extend(gone.map(|pod| (pod.clone(), node.clone())));
        for pod in after.into_iter().flat_map(NodeView::pods) {
            let mut homes = self.homes.entry(pod.clone()).or_default();
            if let Err(place) = homes.binary_search(node) {
                homes.insert(place, node.clone());
            }
        }
    }

    fn publish(&self, name: &NodeName, slot: &Node, view: Option<Arc<NodeView>>) {
        let before = slot.view.swap(view.clone());
        let same = match (&before, &view) {
            (Some(before), Some(view)) => before.has_index_of(view),
            (None, None) => true,
            _ => false,
        };
        if !same {
            self.rehome(name, before.as_deref(), view.as_deref());
            self.topology.send_modify(|version| *version += 1);
        }
        slot.watchers.lock().retain(|watcher| match watcher.upgrade() {
            Some(watcher) => {
                watcher.notify_one();
                true
            }
            None => false,
        });
    }
}

/// A conflict is told when it comes, not at every look.
fn tell_new(before: &[Conflict], conflicts: &[Conflict]) {
    let known: HashSet<&Conflict> = before.iter().collect();
    let new = conflicts.iter().filter(|conflict| !known.contains(conflict));
    for Conflict { uuid, nodes } in new.take(MAX_TOLD) {
        warn!(%uuid, ?nodes, "a device is claimed by more than one node; only one can have it");
    }
}

impl Node {
    fn new(name: NodeName) -> Self {
        Self {
            name,
            state: Mutex::new(NodeState::default()),
            view: ArcSwapOption::empty(),
            watchers: Mutex::default(),
        }
    }
}

impl Session {
    /// Takes one tick: the readings of `inventory`, received at `now`.
    pub fn apply(&self, inventory: &Arc<Inventory>, sample: Sample, now: Timestamp) {
        // Published under the node's lock, so that two streams of one node cannot publish out of
        // order. Readers do not take it.
        let mut state = self.slot.state.lock();
        let view = state.apply(self.id, inventory, sample, now);
        self.fleet.publish(&self.node, &self.slot, view);
    }

    /// The node it speaks for.
    pub fn node(&self) -> &NodeName {
        &self.node
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.fleet.sessions.fetch_sub(1, Ordering::Relaxed);
        let mut state = self.slot.state.lock();
        let view = state.close(self.id);
        self.fleet.publish(&self.node, &self.slot, view);
    }
}
