//! What is scraped of nodes and their devices.
//!
//! Guarantees: a reading is there while it is fresh and not a moment longer; `device_age_seconds`
//! goes on for as long as the node is known, and tells why it is not.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::{Registry, Unit};
use shared::metric::Metric;
use shared::time::Timestamp;

use super::{Number, is_fresh};
use crate::answer::Answers;
use crate::fleet::free;
use crate::fleet::unattributed::unattributed;
use crate::fleet::view::{NodeView, Row};

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct OfNode {
    pub(super) node: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct OfDevice {
    pub(super) node: String,
    pub(super) gpu_uuid: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfModel {
    model: String,
}

/// What is shown per node and per device.
#[derive(Default)]
pub(super) struct OfNodes {
    age: Family<OfNode, Number>,
    devices: Family<OfNode, Number>,
    undeclared: Family<OfNode, Number>,
    estimated: Family<OfNode, Number>,
    device_age: Family<OfDevice, Number>,
    failed: Family<OfDevice, Number>,
    unattributed: Family<OfDevice, Number>,
    utilization: Family<OfDevice, Number>,
    memory: Family<OfDevice, Number>,
    temperature: Family<OfDevice, Number>,
    power: Family<OfDevice, Number>,
    throttled: Family<OfDevice, Number>,
    free: Family<OfModel, Number>,
}

impl OfNodes {
    /// Every node as it is now.
    pub(super) fn of(answers: &Answers) -> Self {
        let (shown, now) = (Self::default(), answers.clock().now());
        for node in answers.fleet().nodes() {
            let Some(view) = node.view else { continue };
            shown.add(&node.name.to_string(), &view, now);
        }
        for (model, count) in free::by_model(answers.fleet(), now) {
            let label = OfModel { model: model.to_string() };
            shown.free.get_or_create(&label).set(f64::from(count));
        }
        shown
    }

    #[expect(clippy::cast_precision_loss, reason = "a node has at most 1024 devices")]
    fn add(&self, node: &str, view: &NodeView, now: Timestamp) {
        let label = OfNode { node: node.into() };
        let devices = &view.inventory().devices;
        self.age.get_or_create(&label).set(now.since(view.received_at).as_secs_f64());
        self.devices.get_or_create(&label).set(devices.len() as f64);
        let holders = || devices.iter().flat_map(|device| &device.holders);
        let count = holders().filter(|holder| holder.undeclared).count();
        self.undeclared.get_or_create(&label).set(count as f64);
        let count = holders().filter(|holder| holder.estimated).count();
        self.estimated.get_or_create(&label).set(count as f64);
        for (at, device) in devices.iter().enumerate() {
            let label = OfDevice { node: node.into(), gpu_uuid: device.uuid.to_string() };
            if let Some(share) = unattributed(view, at) {
                self.unattributed.get_or_create(&label).set(share);
            }
            let Some(row) = view.row(at) else { continue };
            self.device_age.get_or_create(&label).set(now.since(row.taken_at).as_secs_f64());
            self.failed.get_or_create(&label).set(row.readings.failures().count() as f64);
            if is_fresh(row, view.intervals.samples, now) {
                self.readings(&label, row);
            }
        }
    }

    fn readings(&self, label: &OfDevice, row: &Row) {
        let shown = |family: &Family<OfDevice, Number>, metric, of: fn(f64) -> f64| {
            if let Some(value) = row.readings.value(metric) {
                family.get_or_create(label).set(of(value));
            }
        };
        shown(&self.utilization, Metric::GpuUtilization, |percent| percent / 100.0);
        // A device has whole bytes, whatever its MiB come to.
        shown(&self.memory, Metric::MemoryUsedMib, |mib| (mib * 1_048_576.0).round());
        shown(&self.temperature, Metric::Temperature, |celsius| celsius);
        shown(&self.power, Metric::PowerDraw, |watts| watts);
        shown(&self.throttled, Metric::ThrottledPercent, |percent| percent / 100.0);
    }

    /// Registers what is shown.
    pub(super) fn register(self, registry: &mut Registry) {
        let ratio = || Unit::Other("ratio".into());
        let help = "Time since the node's last sample";
        registry.register_with_unit("node_age", help, Unit::Seconds, self.age);
        registry.register("node_devices", "Devices the node reports", self.devices);
        let help = "Containers that use a device of the node without having been given it";
        registry.register("node_undeclared_holders", help, self.undeclared);
        let help = "Containers whose part of a device of the node is a guess";
        registry.register("node_estimated_holders", help, self.estimated);
        let help = "Metrics of the device that could not be read";
        registry.register("device_failed_readings", help, self.failed);
        let help = "Time since the device was read";
        registry.register_with_unit("device_age", help, Unit::Seconds, self.device_age);
        let help = "Share of time in which the GPU was busy (gpu_utilization)";
        registry.register_with_unit("device_utilization", help, ratio(), self.utilization);
        let help = "Device memory in use (memory_used_mib)";
        registry.register_with_unit("device_memory_used", help, Unit::Bytes, self.memory);
        let help = "Temperature of the die (temperature)";
        registry.register_with_unit("device_temperature", help, Unit::Celsius, self.temperature);
        let help = "Power drawn by the board (power_draw)";
        let watts = Unit::Other("watts".into());
        registry.register_with_unit("device_power", help, watts, self.power);
        let help = "Share of time in which the clock was held down (throttled_percent)";
        registry.register_with_unit("device_throttled", help, ratio(), self.throttled);
        let help = "Share of the device's load that no holder has";
        registry.register_with_unit("device_unattributed", help, ratio(), self.unattributed);
        let help = "Devices that nobody holds, fresh and not failed";
        registry.register("gpus_free", help, self.free);
    }
}

#[cfg(test)]
impl reference::Specimens for OfNodes {
    fn specimens(&self) {
        self.age.specimens();
        self.devices.specimens();
        self.undeclared.specimens();
        self.estimated.specimens();
        self.device_age.specimens();
        self.failed.specimens();
        self.unattributed.specimens();
        self.utilization.specimens();
        self.memory.specimens();
        self.temperature.specimens();
        self.power.specimens();
        self.throttled.specimens();
        self.free.specimens();
    }
}
