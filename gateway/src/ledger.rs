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
pub mod party;
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

use shared::identity::{DeviceUuid, NodeName, PodKey, WorkloadKey};
use shared::time::Timestamp;

use crate::directory::Snapshot;
use crate::fleet::view::NodeView;
use account::{Figures, NodeRow, Row};
use party::{Party, parties};
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

/// Everything that is counted.
#[derive(Debug, Default)]
pub struct Ledger {
    tariff: Tariff,
    since: Option<Timestamp>,
    units: HashMap<DeviceUuid, Unit>,
    workloads: HashMap<WorkloadKey, Row>,
    /// What was counted for workloads that have no row any more.
    folded: BTreeMap<Arc<str>, Figures>,
    nodes: BTreeMap<NodeName, NodeRow>,
    /// The least that a GPU of that name was seen to draw when it did nothing.
    idle_watts: HashMap<Arc<str>, f64>,
    /// Rows that were folded into their namespaces' so far.
    folds: u64,
    last_look: Option<Timestamp>,
    /// The look at which there was no room for another row.
    full_at: Option<Timestamp>,
}

/// One node of one look.
#[derive(Clone, Copy)]
struct Look<'a> {
    node: &'a NodeName,
    view: &'a NodeView,
    directory: &'a Snapshot,
    now: Timestamp,
}

/// GPUs of a workload at one look, and pods that have them.
type Holdings = HashMap<WorkloadKey, (f64, Vec<PodKey>)>;

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
        self.since.get_or_insert(now);
        let mut holdings = Holdings::new();
        for (node, view) in nodes {
            self.look_at(node, view, directory, &mut holdings, now);
        }
        for (workload, (gpus, mut pods)) in holdings {
            pods.sort();
            pods.dedup();
            if let Some(row) = self.workloads.get_mut(&workload) {
                row.per_pod = Some(gpus / pods.len().max(1) as f64);
            }
        }
        self.note_zeros(directory, now);
        self.forget(now);
        self.last_look = Some(now);
    }

    fn look_at(
        &mut self,
        node: &NodeName,
        view: &NodeView,
        directory: &Snapshot,
        holdings: &mut Holdings,
        now: Timestamp,
    ) {
        let devices = &view.inventory().devices;
        let mut cut: HashMap<&DeviceUuid, Vec<usize>> = HashMap::new();
        for (at, device) in devices.iter().enumerate() {
            if let Some(mig) = &device.mig {
                cut.entry(&mig.parent).or_default().push(at);
            }
        }
        let is_whole = |at: &usize| match &devices[*at].mig {
            None => true,
            // Its GPU is not known: it stands for itself.
            Some(mig) => devices.iter().all(|device| device.uuid != mig.parent),
        };
        let look = Look { node, view, directory, now };
        for at in (0..devices.len()).filter(is_whole) {
            let instances = cut.get(&devices[at].uuid).map_or(&[][..], |places| places);
            self.step(look, at, parties(view, at, instances), holdings);
        }
    }

    /// One GPU of one look.
    fn step(&mut self, look: Look<'_>, at: usize, parties: Vec<Party>, holdings: &mut Holdings) {
        let Look { node, view, directory, now } = look;
        let device = &view.inventory().devices[at];
        let unit = self.units.entry(device.uuid.clone()).or_insert_with(|| Unit::new(node, now));
        if !unit.is_of(node, now) {
            return;
        }
        let owners: Vec<_> =
            parties.iter().map(|party| owner(directory, &party.tenancy.pod)).collect();
        for (party, owner) in parties.iter().zip(&owners).filter(|(it, _)| it.fraction > 0.0) {
            let held = holdings.entry(owner.clone()).or_default();
            held.0 += party.fraction;
            held.1.push(party.tenancy.pod.clone());
            self.note(owner, now);
        }
        let Some(unit) = self.units.get_mut(&device.uuid) else { return };
        let Some(step) = unit.step(view, at, parties, now) else { return };
        let learned = unit.learned_idle_watts();
        if let Some(watts) = learned {
            self.learn(&device.name, watts);
        }
        let given = self.tariff.idle_watts(&device.name).or(learned);
        let idle_watts = given.or_else(|| self.idle_watts.get(&device.name).copied());
        self.count(look, &device.name, &step, (&owners, idle_watts));
    }

    /// What happened to one GPU since the look before.
    fn count(
        &mut self,
        Look { node, now, .. }: Look<'_>,
        model: &str,
        step: &Step,
        (owners, idle_watts): (&[WorkloadKey], Option<f64>),
    ) {
        let price = self.tariff.price(model);
        let node = self.nodes.entry(node.clone()).or_default();
        node.seen = now;
        node.doubtful += u64::from(step.is_doubtful);
        let mut attributed = 0.0;
        for (party, owner) in step.parties.iter().zip(owners) {
            let figures = match self.workloads.get_mut(owner) {
                Some(row) => &mut row.figures,
                None => of_namespace(&mut self.folded, &owner.namespace),
            };
            if step.is_same {
                figures.hold(party.fraction * step.seconds, price);
                node.held += party.fraction * step.seconds;
            }
            if let Some(busy) = party.busy.filter(|_| step.is_same && step.is_close) {
                figures.work(busy * step.seconds);
            }
            let (dynamic, idle) = step.energy_of(party, idle_watts);
            figures.use_up(dynamic, idle);
            attributed += dynamic.unwrap_or(0.0) + idle.unwrap_or(0.0);
        }
        if step.is_same {
            node.free += step.free() * step.seconds;
        }
        if let Some(spent) = &step.spent {
            node.use_up(spent.joules, attributed);
        }
    }

    /// Sees to it that the workload has a row, if there is room for one: without it, it is counted
    /// for its namespace alone.
    fn note(&mut self, workload: &WorkloadKey, now: Timestamp) {
        if let Some(row) = self.workloads.get_mut(workload) {
            row.seen = now;
            return;
        }
        if self.workloads.len() >= MAX_WORKLOADS {
            if self.full_at == Some(now) {
                return;
            }
            let oldest = self.workloads.iter().min_by_key(|(_, row)| row.seen);
            match oldest.filter(|(_, row)| now.since(row.seen) > unit::CLOSE) {
                Some((oldest, _)) => self.fold(&oldest.clone()),
                None => {
                    self.full_at = Some(now);
                    return;
                }
            }
        }
        self.workloads.insert(workload.clone(), Row { seen: now, ..Row::default() });
    }

    fn learn(&mut self, model: &Arc<str>, watts: f64) {
        if self.idle_watts.len() < MAX_MODELS || self.idle_watts.contains_key(model) {
            let known = self.idle_watts.entry(model.clone()).or_insert(watts);
            *known = known.min(watts);
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
        self.units.retain(|_, unit| now.since(unit.seen()) < REMEMBER);
        self.nodes.retain(|_, node| now.since(node.seen) < REMEMBER);
        let gone = self.workloads.iter().filter(|(_, row)| now.since(row.seen) >= REMEMBER);
        let gone: Vec<_> = gone.map(|(key, _)| key.clone()).collect();
        gone.iter().for_each(|key| self.fold(key));
    }

    fn fold(&mut self, workload: &WorkloadKey) {
        let Some(row) = self.workloads.remove(workload) else { return };
        self.folds += 1;
        of_namespace(&mut self.folded, &workload.namespace).add(&row.figures);
    }

    /// Every workload that has a row.
    pub fn workloads(&self) -> impl Iterator<Item = (&WorkloadKey, &Row)> {
        self.workloads.iter()
    }

    /// Every node that has a row.
    pub fn nodes(&self) -> impl Iterator<Item = (&NodeName, &NodeRow)> {
        self.nodes.iter()
    }

    /// Totals by namespace: its workloads', and of those that have no row any more.
    pub fn namespaces(&self) -> BTreeMap<Arc<str>, Figures> {
        let mut namespaces = self.folded.clone();
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

/// What is counted for a namespace beside its workloads' rows.
fn of_namespace<'a>(
    folded: &'a mut BTreeMap<Arc<str>, Figures>,
    namespace: &Arc<str>,
) -> &'a mut Figures {
    let is_full = folded.len() >= MAX_NAMESPACES && !folded.contains_key(namespace);
    // No namespace is called nothing: all those that there was no room for.
    let namespace = if is_full { "".into() } else { namespace.clone() };
    folded.entry(namespace).or_default()
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
