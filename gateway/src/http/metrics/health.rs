//! What is the matter with devices, as their agents tell it. What is not known is not there.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use shared::health::{Health, RecoveryAction};

use super::{Number, OfDevice, yes};
use crate::answer::Answers;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfXid {
    node: String,
    gpu_uuid: String,
    xid: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Wanted {
    node: String,
    gpu_uuid: String,
    action: &'static str,
}

#[derive(Default)]
struct Series {
    xids: Family<OfXid, Counter>,
    ecc: Family<OfDevice, Counter>,
    wanted: Family<Wanted, Number>,
    lost: Family<OfDevice, Number>,
}

/// Of every device whose health is known.
pub(super) fn health(registry: &mut Registry, answers: &Answers) {
    let series = Series::default();
    for node in answers.fleet().nodes() {
        let Some(view) = node.view else { continue };
        for device in &view.inventory().devices {
            if let Some(health) = &device.health {
                let node = node.name.to_string();
                series.add(&OfDevice { node, gpu_uuid: device.uuid.to_string() }, health);
            }
        }
    }
    let help = "Errors of the device that its driver reported since its agent started";
    registry.register("device_xid_errors", help, series.xids);
    let help = "Memory errors of the device that could not be corrected";
    registry.register("device_ecc_uncorrected_errors", help, series.ecc);
    let help = "What the driver wants done with the device";
    registry.register("device_recovery_action", help, series.wanted);
    registry.register("device_lost", "Whether the device has fallen off the bus", series.lost);
}

impl Series {
    fn add(&self, label: &OfDevice, health: &Health) {
        let OfDevice { node, gpu_uuid } = label;
        for it in health.xids.iter().flatten() {
            let label = OfXid { node: node.clone(), gpu_uuid: gpu_uuid.clone(), xid: it.xid };
            self.xids.get_or_create(&label).inc_by(it.count);
        }
        if let Some(count) = health.ecc_uncorrected {
            self.ecc.get_or_create(label).inc_by(count);
        }
        if let Some(action) = health.recovery.filter(|action| *action != RecoveryAction::None) {
            let (node, gpu_uuid) = (node.clone(), gpu_uuid.clone());
            let wanted = Wanted { node, gpu_uuid, action: action.name() };
            self.wanted.get_or_create(&wanted).set(1.0);
        }
        self.lost.get_or_create(label).set(yes(health.lost));
    }
}
