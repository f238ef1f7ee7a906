//! Pure: the ledger as it is shown, since this process started.
//!
//! Guarantees: what is not known is null; rows are in order of their names, idle devices in order
//! of how long they have been idle.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use shared::identity::WorkloadKey;
use shared::time::Timestamp;

use super::account::{Figures, NodeRow};
use super::unit::Unit;
use super::{Ledger, owner};
use crate::directory::Snapshot;
use crate::trigger::number::thousandths;

/// Idle devices that are listed; those that have been idle longest.
pub const MAX_IDLE: usize = 1_000;

/// Everything.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// How long has been counted.
    pub since_seconds: f64,
    /// By workload.
    pub workloads: Vec<WorkloadEntry>,
    /// By namespace, workloads without a row of their own included.
    pub namespaces: Vec<NamespaceEntry>,
    /// By node.
    pub nodes: Vec<NodeEntry>,
    /// Devices that are held and do nothing.
    pub idle: Vec<IdleEntry>,
}

/// What was counted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Counted {
    /// GPU-seconds held.
    pub gpu_seconds_held: f64,
    /// GPU-seconds busy.
    pub gpu_seconds_busy: Option<f64>,
    /// GPU-seconds not held because it was at zero.
    pub gpu_seconds_not_held: Option<f64>,
    /// Joules.
    pub joules: Option<f64>,
    /// Joules of its work.
    pub joules_dynamic: Option<f64>,
    /// Joules of its GPUs' being there.
    pub joules_idle: Option<f64>,
    /// Cost of what it held.
    pub cost: Option<f64>,
    /// Grams of CO2 equivalent of its joules.
    pub grams_co2e: Option<f64>,
}

/// A workload's row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkloadEntry {
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its kind; `Pod` where no known workload has the pod.
    pub kind: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
    /// What was counted.
    #[serde(flatten)]
    pub counted: Counted,
}

/// A namespace's row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NamespaceEntry {
    /// Its name; empty for all that there was no room for.
    pub namespace: Arc<str>,
    /// What was counted.
    #[serde(flatten)]
    pub counted: Counted,
}

/// A node's row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeEntry {
    /// Its name.
    pub node: String,
    /// Joules that its devices' own totals grew by.
    pub joules: Option<f64>,
    /// What of them is some workload's.
    pub joules_attributed: Option<f64>,
    /// What of them is nobody's.
    pub joules_unattributed: Option<f64>,
    /// GPU-seconds held.
    pub gpu_seconds_held: f64,
    /// GPU-seconds that nobody held.
    pub gpu_seconds_free: f64,
}

/// A device that is held and does nothing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IdleEntry {
    /// Namespace of the pod that holds it.
    pub namespace: Arc<str>,
    /// The pod.
    pub pod: Arc<str>,
    /// The pod's workload, where one is known.
    pub workload: Option<Named>,
    /// The node.
    pub node: String,
    /// The device.
    pub uuid: String,
    /// Its name.
    pub model: Arc<str>,
    /// How long it has done nothing.
    pub idle_seconds: f64,
    /// Device memory that the pod has.
    pub memory_used_mib: Option<f64>,
    /// How long ago its engine was last seen to have a request.
    pub last_request_seconds_ago: Option<f64>,
}

/// A workload by kind and name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Named {
    /// Its kind.
    pub kind: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
}

fn seconds(time: Duration) -> f64 {
    thousandths(time.as_secs_f64())
}

impl Ledger {
    /// Everything as of `now`; `directory` says which workloads idle pods are of.
    pub fn report(&self, directory: Option<&Snapshot>, now: Timestamp) -> Report {
        let mut workloads: Vec<_> = self.workloads().collect();
        workloads.sort_by_key(|(key, _)| *key);
        let workload = |(key, row): (&WorkloadKey, &super::account::Row)| WorkloadEntry {
            namespace: key.namespace.clone(),
            kind: key.kind.clone(),
            name: key.name.clone(),
            counted: self.counted(&row.figures),
        };
        let namespaces = self.namespaces().into_iter();
        Report {
            since_seconds: self.since.map_or(0.0, |since| seconds(now.since(since))),
            workloads: workloads.into_iter().map(workload).collect(),
            namespaces: namespaces
                .map(|(namespace, figures)| NamespaceEntry {
                    namespace,
                    counted: self.counted(&figures),
                })
                .collect(),
            nodes: self.nodes().map(|(name, row)| node(name.to_string(), row)).collect(),
            idle: self.idle(directory, now),
        }
    }

    fn counted(&self, figures: &Figures) -> Counted {
        let rounded = |value: Option<f64>| value.map(thousandths);
        Counted {
            gpu_seconds_held: thousandths(figures.held),
            gpu_seconds_busy: rounded(figures.busy),
            gpu_seconds_not_held: rounded(figures.not_held),
            joules: rounded(figures.joules()),
            joules_dynamic: rounded(figures.dynamic),
            joules_idle: rounded(figures.idle),
            cost: figures.cost().map(|cost| (cost * 1e6).round() / 1e6),
            grams_co2e: rounded(figures.grams(&self.tariff)),
        }
    }

    /// Devices that are held and do nothing, those first that have done so longest.
    pub fn idle(&self, directory: Option<&Snapshot>, now: Timestamp) -> Vec<IdleEntry> {
        let units = self.units.values();
        let mut idle: Vec<_> = units.flat_map(|unit| entries(unit, directory, now)).collect();
        idle.sort_by(|a, b| {
            let name = |it: &IdleEntry| (it.node.clone(), it.uuid.clone(), it.pod.clone());
            b.idle_seconds.total_cmp(&a.idle_seconds).then_with(|| name(a).cmp(&name(b)))
        });
        idle.truncate(MAX_IDLE);
        idle
    }
}

fn entries(
    unit: &Unit,
    directory: Option<&Snapshot>,
    now: Timestamp,
) -> impl Iterator<Item = IdleEntry> {
    unit.idle(now).map(move |(idle, tenancy, model, rest)| {
        let pod = tenancy.pod;
        let owner = directory.map(|directory| owner(directory, pod));
        let owner = owner.filter(|owner| &*owner.kind != super::POD);
        IdleEntry {
            namespace: pod.namespace.clone(),
            pod: pod.name.clone(),
            workload: owner.map(|owner| Named { kind: owner.kind, name: owner.name }),
            node: unit.node().to_string(),
            uuid: tenancy.device.to_string(),
            model: model.clone(),
            idle_seconds: seconds(idle),
            memory_used_mib: rest.memory_mib.map(thousandths),
            last_request_seconds_ago: rest.last_request.map(|at| seconds(now.since(at))),
        }
    })
}

fn node(name: String, row: &NodeRow) -> NodeEntry {
    NodeEntry {
        node: name,
        joules: row.joules.map(thousandths),
        joules_attributed: row.joules.map(|_| thousandths(row.attributed)),
        joules_unattributed: row.unattributed().map(thousandths),
        gpu_seconds_held: thousandths(row.held),
        gpu_seconds_free: thousandths(row.free),
    }
}
