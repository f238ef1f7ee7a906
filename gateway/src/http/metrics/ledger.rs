//! What the ledger counted. Every replica counts the same cluster: the sum over replicas is too much.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::{Registry, Unit};
use shared::identity::WorkloadKey;
use shared::time::Timestamp;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use super::Number;
use super::nodes::OfNode;
use super::workloads::OfWorkload;
use crate::answer::Answers;
use crate::ledger::Ledger;
use crate::ledger::account::{NodeRow, Row};

/// What is gone is scraped for this long, so that its last figures are seen; the ledger knows it for
/// longer.
const SHOWN: Duration = Duration::from_secs(120);

type Total = Counter<f64, AtomicU64>;

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, EncodeLabelSet)]
struct IdleDevice {
    node: String,
    gpu_uuid: String,
    namespace: String,
    pod: String,
}

/// What is shown of the ledger.
#[derive(Default)]
pub(super) struct OfLedger {
    held: Family<OfWorkload, Total>,
    busy: Family<OfWorkload, Total>,
    not_held: Family<OfWorkload, Total>,
    energy: Family<OfWorkload, Total>,
    of_node: Family<OfNode, Total>,
    unattributed: Family<OfNode, Total>,
    doubtful: Family<OfNode, Counter>,
    idle: Family<IdleDevice, Number>,
    rows: Number,
    folds: Counter<u64>,
}

impl OfLedger {
    /// What was counted until now.
    pub(super) fn of(answers: &Answers) -> Self {
        let directory = answers.directory().snapshot();
        let (now, shown) = (answers.clock().now(), Self::default());
        let idle = answers.books().read(|ledger| {
            shown.add(ledger, now);
            shown.rows.set(ledger.workloads().count() as f64);
            shown.folds.inc_by(ledger.folds());
            ledger.idle(directory.as_deref(), now)
        });
        for entry in idle {
            let label = IdleDevice {
                node: entry.node,
                gpu_uuid: entry.uuid,
                namespace: entry.namespace.to_string(),
                pod: entry.pod.to_string(),
            };
            shown.idle.get_or_create(&label).set(entry.idle_seconds);
        }
        shown
    }

    fn add(&self, ledger: &Ledger, now: Timestamp) {
        let is_shown = |seen: Timestamp| now.since(seen) < SHOWN;
        let workloads = ledger.workloads().filter(|(_, row)| is_shown(row.seen));
        workloads.for_each(|(key, row)| self.workload(key, row));
        let nodes = ledger.nodes().filter(|(_, row)| is_shown(row.seen));
        nodes.for_each(|(name, row)| self.node(name.as_str(), row));
    }

    fn workload(&self, key: &WorkloadKey, row: &Row) {
        let label = OfWorkload::from(key);
        self.held.get_or_create(&label).inc_by(row.figures.held);
        for (family, total) in [
            (&self.busy, row.figures.busy),
            (&self.not_held, row.figures.not_held),
            (&self.energy, row.figures.joules()),
        ] {
            if let Some(total) = total {
                family.get_or_create(&label).inc_by(total);
            }
        }
    }

    fn node(&self, name: &str, row: &NodeRow) {
        let label = OfNode { node: name.to_owned() };
        for (family, total) in
            [(&self.of_node, row.joules), (&self.unattributed, row.unattributed())]
        {
            if let Some(total) = total {
                family.get_or_create(&label).inc_by(total);
            }
        }
        self.doubtful.get_or_create(&label).inc_by(row.doubtful);
    }

    pub(super) fn register(self, registry: &mut Registry) {
        let help = "GPU time held by the workload's pods";
        registry.register_with_unit("workload_gpu_held", help, Unit::Seconds, self.held);
        let help = "GPU time in which the workload's pods kept GPUs busy";
        registry.register_with_unit("workload_gpu_busy", help, Unit::Seconds, self.busy);
        let help = "GPU time not held because the workload was at zero";
        registry.register_with_unit("workload_gpu_not_held", help, Unit::Seconds, self.not_held);
        let help = "Energy of the workload's parts of GPUs";
        registry.register_with_unit("workload_energy", help, Unit::Joules, self.energy);
        let help = "Energy of the node's GPUs, by their own counters";
        registry.register_with_unit("node_energy", help, Unit::Joules, self.of_node);
        let help = "What of node_energy is no workload's";
        registry.register_with_unit(
            "node_energy_unattributed",
            help,
            Unit::Joules,
            self.unattributed,
        );
        let help = "Looks at energy counters of the node that showed what cannot be";
        registry.register("node_energy_doubtful_looks", help, self.doubtful);
        let help = "Time since the pod last used the device that it holds";
        registry.register_with_unit("device_idle", help, Unit::Seconds, self.idle);
        let help = "Workloads with a row of their own in the ledger";
        registry.register("ledger_workloads", help, self.rows);
        let help = "Workloads whose row was added to their namespace's";
        registry.register("ledger_folded_workloads", help, self.folds);
    }
}

#[cfg(test)]
impl reference::Specimens for OfLedger {
    fn specimens(&self) {
        self.held.specimens();
        self.busy.specimens();
        self.not_held.specimens();
        self.energy.specimens();
        self.of_node.specimens();
        self.unattributed.specimens();
        self.doubtful.specimens();
        self.idle.specimens();
    }
}
