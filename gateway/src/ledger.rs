//! Who held which GPU for how long, and what energy that took, since this process started.
//!
//! Guarantees: every joule that a device's own total grew by is counted once, for a workload or
//! as nobody's; time and energy are counted for a pod only if it had the device at both ends of
//! the time; memory is bounded. Nothing here does I/O or reads a clock, except `books`, which does
//! both for the rest.

/// What was counted for a workload, a namespace or a node.
pub mod account;
/// The ledger of this process: looked into by many, kept by one task.
pub mod books;
/// Devices that are held and do nothing.
mod idle;
/// What a device's energy total showed → what was used.
pub mod meter;
/// Who has which part of a GPU.
mod party;
/// Tables for people and CSV for spreadsheets.
pub mod render;
/// The ledger as it is shown.
pub mod report;
/// What a GPU costs an hour, and what it draws when it does nothing.
pub mod tariff;
/// One GPU from one tick to the next.
mod unit;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use indexmap::IndexMap;
use shared::identity::{DeviceUuid, NodeName, PodKey, WorkloadKey};
use shared::time::Timestamp;

use crate::directory::Snapshot;
use crate::fleet::view::NodeView;
use account::{Figures, NodeRow, Row};
use party::{Party, Plan};
use tariff::Tariff;
use unit::{Step, Unit};

/// Kind of the row of a pod that no known workload has.
pub const POD: &str = "Pod";
/// Workloads that have a row of their own.
pub const MAX_WORKLOADS: usize = 10_000;
/// Namespaces that have one.
pub const MAX_NAMESPACES: usize = 10_000;
/// How long what is gone keeps its own row.
pub const REMEMBER: Duration = Duration::from_secs(3_600);
/// A directory older than this says nothing of what is at zero.
const FRESH_DIRECTORY: Duration = Duration::from_secs(30);
/// Learned figures of models.
const MAX_MODELS: usize = 1_000;
/// What is gone is looked for this often.
const SWEEP_EVERY: Duration = Duration::from_secs(60);

/// Hashes names in a few instructions. Its seed is random, because agents say the names.
type Seeded = foldhash::fast::RandomState;

/// Everything that is counted.
#[derive(Debug, Default)]
pub struct Ledger {
    tariff: Tariff,
    since: Option<Timestamp>,
    units: IndexMap<DeviceUuid, Unit, Seeded>,
    workloads: IndexMap<WorkloadKey, Row, Seeded>,
    /// How often places in the two changed hands.
    moves: u64,
    /// What was counted for workloads that have no row, or none any more.
    folded: IndexMap<Arc<str>, Figures, Seeded>,
    nodes: HashMap<NodeName, Node, Seeded>,
    /// The least that a GPU of that name was seen to draw when it did nothing.
    idle_watts: HashMap<Arc<str>, f64, Seeded>,
    /// Rows that were folded into their namespaces' so far.
    folds: u64,
    last_look: Option<Timestamp>,
    last_sweep: Option<Timestamp>,
    /// Until when there is no room for another row.
    full_until: Timestamp,
}

/// One node as it was at the last look.
#[derive(Debug, Default)]
struct Node {
    row: Option<NodeRow>,
    followed: Option<Followed>,
    seen: Timestamp,
}

/// What is followed of a node, found once and good for as long as nothing changes.
#[derive(Debug)]
struct Followed {
    plan: Arc<Plan>,
    gpus: Box<[FollowedGpu]>,
    /// What each party is counted for; `None` on a GPU that another node speaks for.
    owners: Box<[Option<Owner>]>,
    /// Of the places.
    moves: u64,
}

/// What a party is counted for.
#[derive(Clone, Copy, Debug)]
enum Owner {
    /// The workload at that place.
    Workload(usize),
    /// Its namespace alone, at that place.
    Namespace(usize),
}

/// One of its GPUs, in the order of the plan's.
#[derive(Debug)]
struct FollowedGpu {
    /// Its place among all units.
    unit: usize,
    /// What an hour of it costs, and what it draws idle, where that is given.
    price: Option<f64>,
    idle_watts: Option<f64>,
}

/// What a look is taken at.
#[derive(Clone, Copy)]
struct Look<'a> {
    directory: &'a Snapshot,
    /// Whether the look before was at that very directory.
    is_same: bool,
    now: Timestamp,
}

impl Node {
    /// Whether it has the very inventory that is followed.
    fn follows(&self, view: &NodeView) -> bool {
        self.followed.as_ref().is_some_and(|followed| followed.plan.is_of(view.inventory()))
    }
}

impl Ledger {
    /// An empty ledger.
    pub fn new(tariff: Tariff) -> Self {
        Self { tariff, ..Self::default() }
    }

    /// Takes a look at every node. What a pod is of is what `directory` says.
    pub fn look<'a>(
        &mut self,
        nodes: impl IntoIterator<Item = (&'a NodeName, &'a NodeView)>,
        directory: &Snapshot,
        now: Timestamp,
    ) {
        self.look_at(nodes, Look { directory, is_same: false, now });
    }

    /// The same where `directory` is the very one of the look before.
    pub fn look_again<'a>(
        &mut self,
        nodes: impl IntoIterator<Item = (&'a NodeName, &'a NodeView)>,
        directory: &Snapshot,
        now: Timestamp,
    ) {
        self.look_at(nodes, Look { directory, is_same: true, now });
    }

    fn look_at<'a>(
        &mut self,
        views: impl IntoIterator<Item = (&'a NodeName, &'a NodeView)>,
        look: Look<'_>,
    ) {
        let now = look.now;
        self.since.get_or_insert(now);
        let mut nodes = std::mem::take(&mut self.nodes);
        let is_followed = |nodes: &HashMap<_, Node, _>| {
            nodes.values().filter(|node: &&Node| node.followed.is_some()).count()
        };
        let (before, mut looked, mut is_new) = (is_followed(&nodes), 0, false);
        let mut news = Vec::new();
        for (name, view) in views {
            looked += 1;
            match nodes.get_mut(name) {
                Some(node) if node.follows(view) => is_new |= self.take(node, (name, view), look),
                _ => news.push((name, view)),
            }
        }
        // Who claims a GPU that nobody had does so in order of name, in every replica.
        news.sort_unstable_by_key(|(name, _)| *name);
        for (name, view) in news {
            let node = nodes.entry(name.clone()).or_default();
            is_new |= self.take(node, (name, view), look);
        }
        if looked < nodes.len() {
            nodes
                .values_mut()
                .filter(|node| node.seen != now)
                .for_each(|node| node.followed = None);
        }
        if is_new || looked != before {
            self.note_holdings(&nodes);
        }
        self.nodes = nodes;
        self.note_zeros(look.directory, now);
        if self.last_sweep.is_none_or(|last| now.since(last) >= SWEEP_EVERY) {
            self.last_sweep = Some(now);
            self.forget(now);
        }
        self.last_look = Some(now);
    }

    /// Takes a look at one node; returns whether anything new is followed of it.
    fn take(&mut self, node: &mut Node, of: (&NodeName, &NodeView), look: Look<'_>) -> bool {
        node.seen = look.now;
        let is_new = self.keep_up(node, of, look);
        self.count(node, of, look.now);
        is_new
    }

    /// Brings what is followed of a node in line with what it says now; returns whether that is new.
    fn keep_up(
        &mut self,
        node: &mut Node,
        (name, view): (&NodeName, &NodeView),
        Look { directory, is_same, now }: Look<'_>,
    ) -> bool {
        let known = node.followed.take();
        let known = known.filter(|followed| followed.plan.is_of(view.inventory()));
        let plan = match known {
            Some(known) if is_same && self.is_good(&known, now) => {
                node.followed = Some(known);
                return false;
            }
            Some(known) => known.plan,
            None => Arc::new(Plan::new(view.inventory().clone())),
        };
        let gpus = plan.gpus().iter().map(|gpu| FollowedGpu {
            unit: self.unit(plan.uuid(gpu), name, now),
            price: self.tariff.price(&gpu.model),
            idle_watts: self.tariff.idle_watts(&gpu.model),
        });
        let gpus: Box<[FollowedGpu]> = gpus.collect();
        let mut owners = vec![None; plan.parties().len()].into_boxed_slice();
        // Who holds nothing comes last: no row found for it can give way to another's then.
        for is_holding in [true, false] {
            for (gpu, followed) in plan.gpus().iter().zip(&gpus) {
                // A claim that does not count leaves no row.
                if !self.units[followed.unit].is_of(name, now) {
                    continue;
                }
                for place in gpu.parties.clone() {
                    let party = &plan.parties()[place];
                    if is_holding != (party.fraction > 0.0) {
                        continue;
                    }
                    let owner = owner(directory, plan.tenancy(party).pod);
                    let namespace = owner.namespace.clone();
                    let row = if is_holding {
                        self.row(owner, now)
                    } else {
                        // It is counted where there is something to count for already.
                        self.workloads.get_index_of(&owner)
                    };
                    owners[place] = Some(match row {
                        Some(row) => Owner::Workload(row),
                        None => Owner::Namespace(of_namespace(&mut self.folded, &namespace)),
                    });
                }
            }
        }
        node.followed = Some(Followed { plan, gpus, owners, moves: self.moves });
        true
    }

    /// Whether places found before are still good, and those not found not to be found now.
    fn is_good(&self, followed: &Followed, now: Timestamp) -> bool {
        followed.moves == self.moves
            && followed.owners.iter().all(|owner| match owner {
                Some(Owner::Workload(_)) => true,
                Some(Owner::Namespace(_)) => now < self.full_until,
                None => false,
            })
    }

    fn unit(&mut self, uuid: &DeviceUuid, node: &NodeName, now: Timestamp) -> usize {
        self.units
            .get_index_of(uuid)
            .unwrap_or_else(|| self.units.insert_full(uuid.clone(), Unit::new(node, now)).0)
    }

    /// The place of the workload's row, if there is one or room for it: without it, it is counted
    /// for its namespace alone.
    fn row(&mut self, workload: WorkloadKey, now: Timestamp) -> Option<usize> {
        if let Some((at, _, row)) = self.workloads.get_full_mut(&workload) {
            // Before another is looked for: it is not to give way to that one.
            row.seen = now;
            return Some(at);
        }
        let row = Row { seen: now, ..Row::default() };
        if self.workloads.len() < MAX_WORKLOADS {
            return Some(self.workloads.insert_full(workload, row).0);
        }
        if now < self.full_until {
            return None;
        }
        let rows = self.workloads.values().enumerate();
        let (at, oldest) = rows.min_by_key(|(_, row)| row.seen)?;
        if now.since(oldest.seen) <= unit::CLOSE {
            self.full_until = oldest.seen + unit::CLOSE;
            return None;
        }
        // In its place, so that the others keep theirs.
        let gone = self.workloads.replace_index(at, workload).ok()?;
        let gone = (gone, std::mem::replace(&mut self.workloads[at], row));
        self.fold(&gone.0, &gone.1);
        Some(at)
    }

    /// What happened to a node's GPUs since the look before.
    fn count(&mut self, node: &mut Node, (name, view): (&NodeName, &NodeView), now: Timestamp) {
        let Some(Followed { plan, gpus, owners, .. }) = &node.followed else { return };
        for (at, (gpu, followed)) in plan.gpus().iter().zip(gpus).enumerate() {
            let unit = &mut self.units[followed.unit];
            if !unit.is_of(name, now) {
                continue;
            }
            let parties = &plan.parties()[gpu.parties.clone()];
            let owners = &owners[gpu.parties.clone()];
            for (_, owner) in parties.iter().zip(owners).filter(|(it, _)| it.fraction > 0.0) {
                if let Some(Owner::Workload(at)) = owner {
                    self.workloads[*at].seen = now;
                }
            }
            let Some(step) = unit.step(view, (plan, at), now) else { continue };
            let learned = unit.learned_idle_watts();
            if let Some(watts) = learned {
                self.learn(&gpu.model, watts);
            }
            let given = followed.idle_watts.or(learned);
            let idle_watts = given.or_else(|| self.idle_watts.get(&gpu.model).copied());
            let row = node.row.get_or_insert_default();
            row.seen = now;
            self.count_step(row, &step, (parties, owners), (idle_watts, followed.price));
        }
    }

    /// What happened to one GPU since the look before.
    fn count_step(
        &mut self,
        node: &mut NodeRow,
        step: &Step,
        (parties, owners): (&[Party], &[Option<Owner>]),
        (idle_watts, price): (Option<f64>, Option<f64>),
    ) {
        node.doubtful += u64::from(step.is_doubtful);
        let (mut attributed, mut held) = (0.0, 0.0);
        for ((party, owner), used) in parties.iter().zip(owners).zip(&step.uses) {
            let figures = match owner {
                Some(Owner::Workload(at)) => &mut self.workloads[*at].figures,
                Some(Owner::Namespace(at)) => &mut self.folded[*at],
                None => continue,
            };
            held += party.fraction;
            if step.is_same {
                figures.hold(party.fraction * step.seconds, price);
                node.held += party.fraction * step.seconds;
            }
            if let Some(busy) = used.busy.filter(|_| step.is_same && step.is_close) {
                figures.work(busy * step.seconds);
            }
            let (dynamic, idle) = step.energy_of((party, used), idle_watts);
            figures.use_up(dynamic, idle);
            attributed += dynamic.unwrap_or(0.0) + idle.unwrap_or(0.0);
        }
        if step.is_same {
            node.free += (1.0 - held).max(0.0) * step.seconds;
        }
        if let Some(spent) = &step.spent {
            node.use_up(spent.joules, attributed);
        }
    }

    /// Notes how many GPUs a pod of each workload has.
    fn note_holdings(&mut self, nodes: &HashMap<NodeName, Node, Seeded>) {
        let mut holdings: HashMap<usize, (f64, Vec<&PodKey>), Seeded> = HashMap::default();
        for (name, node) in nodes {
            let Some(Followed { plan, gpus, owners, .. }) = &node.followed else { continue };
            let is_own = |gpu: &FollowedGpu| self.units[gpu.unit].node() == name;
            let own = plan.gpus().iter().zip(gpus).filter(|(_, gpu)| is_own(gpu));
            for place in own.flat_map(|(gpu, _)| gpu.parties.clone()) {
                let party = &plan.parties()[place];
                let Some(Owner::Workload(owner)) = owners[place] else { continue };
                if party.fraction == 0.0 {
                    continue;
                }
                let held = holdings.entry(owner).or_default();
                held.0 += party.fraction;
                held.1.push(plan.tenancy(party).pod);
            }
        }
        for (at, (gpus, mut pods)) in holdings {
            pods.sort();
            pods.dedup();
            self.workloads[at].per_pod = Some(gpus / pods.len().max(1) as f64);
        }
    }

    fn learn(&mut self, model: &Arc<str>, watts: f64) {
        if let Some(known) = self.idle_watts.get_mut(model) {
            *known = known.min(watts);
        } else if self.idle_watts.len() < MAX_MODELS {
            self.idle_watts.insert(model.clone(), watts);
        }
    }

    /// Counts what workloads at zero do not hold: what one of their pods held last.
    fn note_zeros(&mut self, directory: &Snapshot, now: Timestamp) {
        let Some(before) = self.last_look else { return };
        if now.since(directory.as_of()) > FRESH_DIRECTORY {
            return;
        }
        let seconds = now.since(before).as_secs_f64();
        for workload in directory.workloads() {
            let Some(row) = self.workloads.get_mut(&workload.key) else { continue };
            row.seen = now;
            if workload.replicas == 0
                && workload.existing() == 0
                && let Some(gpus) = row.per_pod
            {
                row.figures.spare(gpus * seconds);
            }
        }
    }

    fn forget(&mut self, now: Timestamp) {
        let places = self.units.len();
        self.units.retain(|_, unit| now.since(unit.seen()) < REMEMBER);
        self.moves += u64::from(self.units.len() < places);
        let is_late = |seen: Timestamp| now.since(seen) >= REMEMBER;
        self.nodes.retain(|_, node| {
            node.row = node.row.filter(|row| !is_late(row.seen));
            node.row.is_some() || node.followed.is_some()
        });
        let gone: Vec<_> = self.workloads.extract_if(.., |_, row| is_late(row.seen)).collect();
        gone.iter().for_each(|(key, row)| self.fold(key, row));
    }

    fn fold(&mut self, workload: &WorkloadKey, row: &Row) {
        self.folds += 1;
        self.moves += 1;
        self.full_until = Timestamp::default();
        let namespace = of_namespace(&mut self.folded, &workload.namespace);
        self.folded[namespace].add(&row.figures);
    }

    /// Every workload that has a row.
    pub fn workloads(&self) -> impl Iterator<Item = (&WorkloadKey, &Row)> {
        self.workloads.iter()
    }

    /// Every node that has a row, in order.
    pub fn nodes(&self) -> impl Iterator<Item = (&NodeName, &NodeRow)> {
        let rows = self.nodes.iter().filter_map(|(name, node)| Some((name, node.row.as_ref()?)));
        let mut rows: Vec<_> = rows.collect();
        rows.sort_by_key(|(name, _)| *name);
        rows.into_iter()
    }

    /// Totals by namespace: its workloads', and of those that have no row any more.
    pub fn namespaces(&self) -> BTreeMap<Arc<str>, Figures> {
        let folded = self.folded.iter().map(|(name, figures)| (name.clone(), *figures));
        let mut namespaces: BTreeMap<_, _> = folded.collect();
        for (key, row) in &self.workloads {
            namespaces.entry(key.namespace.clone()).or_default().add(&row.figures);
        }
        namespaces
    }

    /// Rows that were folded into their namespaces' so far.
    pub fn folds(&self) -> u64 {
        self.folds
    }

    /// Devices that are followed.
    pub fn followed(&self) -> usize {
        self.units.len()
    }
}

/// The place of what is counted for a namespace beside its workloads' rows.
fn of_namespace(folded: &mut IndexMap<Arc<str>, Figures, Seeded>, namespace: &Arc<str>) -> usize {
    let is_full = folded.len() >= MAX_NAMESPACES && !folded.contains_key(namespace);
    // No namespace is called nothing: all those that there was no room for.
    let namespace = if is_full { "".into() } else { namespace.clone() };
    let entry = folded.entry(namespace);
    let at = entry.index();
    entry.or_default();
    at
}

/// What a pod is counted for: the workload that is scaled, else the pod itself.
fn owner(directory: &Snapshot, pod: &PodKey) -> WorkloadKey {
    let scaled = directory.scaled(pod).and_then(|scaled| {
        let object = scaled.by.first()?;
        Some(directory.object(&object.namespace, &object.name)?.target.clone())
    });
    scaled.unwrap_or_else(|| WorkloadKey {
        namespace: pod.namespace.clone(),
        kind: POD.into(),
        name: pod.name.clone(),
    })
}
