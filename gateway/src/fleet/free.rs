//! Devices that nobody holds: where a pod that waits for a GPU could go.
//!
//! Guarantees: only what is known to be free counts. A device that is stale, failed, of unknown
//! holders, cut into MIG instances or held according to any node is not.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use shared::frame::Device;
use shared::identity::DeviceUuid;
use shared::time::Timestamp;

use super::Fleet;

/// Free devices by model, MIG instances by model and profile. Models of which none is free are
/// there with zero.
pub fn by_model(fleet: &Fleet, now: Timestamp) -> BTreeMap<Arc<str>, u32> {
    let mut devices: HashMap<DeviceUuid, (Arc<str>, bool)> = HashMap::new();
    let mut cut: HashSet<DeviceUuid> = HashSet::new();
    for view in fleet.nodes().into_iter().filter_map(|node| node.view) {
        for (at, device) in view.inventory().devices.iter().enumerate() {
            cut.extend(device.mig.as_ref().map(|mig| mig.parent.clone()));
            let is_free = device.holders.is_empty()
                && device.reason.is_none()
                && view.device_state(at, now).0 == "ok";
            let known = devices.entry(device.uuid.clone()).or_insert_with(|| (model(device), true));
            known.1 &= is_free;
        }
    }
    let mut free = BTreeMap::new();
    for (_, (model, is_free)) in devices.into_iter().filter(|(uuid, _)| !cut.contains(uuid)) {
        *free.entry(model).or_default() += u32::from(is_free);
    }
    free
}

fn model(device: &Device) -> Arc<str> {
    match &device.mig {
        Some(mig) if !device.name.contains(&*mig.profile) => {
            format!("{} MIG {}", device.name, mig.profile).into()
        }
        _ => device.name.clone(),
    }
}
