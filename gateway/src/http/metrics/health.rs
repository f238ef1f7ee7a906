//! What is the matter with devices, as their agents tell it. What is not known is not there.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use shared::health::{Health, RecoveryAction};

use super::Number;
use super::nodes::OfDevice;
use crate::answer::Answers;

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfXid {
    node: String,
    gpu_uuid: String,
    xid: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Wanted {
    node: String,
    gpu_uuid: String,
    action: &'static str,
}

/// What is shown of devices whose health is known.
#[derive(Default)]
pub(super) struct OfHealth {
    xids: Family<OfXid, Counter>,
    ecc: Family<OfDevice, Counter>,
    wanted: Family<Wanted, Number>,
    lost: Family<OfDevice, Number>,
}

impl OfHealth {
    /// Every device whose health is known.
    pub(super) fn of(answers: &Answers) -> Self {
        let shown = Self::default();
        for node in answers.fleet().nodes() {
            let Some(view) = node.view else { continue };
            for device in &view.inventory().devices {
                if let Some(health) = &device.health {
                    let node = node.name.to_string();
                    shown.add(&OfDevice { node, gpu_uuid: device.uuid.to_string() }, health);
                }
            }
        }
        shown
    }

    pub(super) fn register(self, registry: &mut Registry) {
        let help = "Errors of the device that its driver reported since its agent started";
        registry.register("device_xid_errors", help, self.xids);
        let help = "Memory errors of the device that could not be corrected";
        registry.register("device_ecc_uncorrected_errors", help, self.ecc);
        let help = "What the driver wants done with the device";
        registry.register("device_recovery_action", help, self.wanted);
        registry.register("device_lost", "Whether the device has fallen off the bus", self.lost);
    }

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
        self.lost.get_or_create(label).set(f64::from(u8::from(health.lost)));
    }
}

#[cfg(test)]
impl reference::Specimens for OfHealth {
    fn specimens(&self) {
        self.xids.specimens();
        self.ecc.specimens();
        self.wanted.specimens();
        self.lost.specimens();
    }
}
