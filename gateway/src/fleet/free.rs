//! Devices that nobody holds: where a pod that waits for a GPU could go.
//!
//! Guarantees: only what is known to be free counts. A device that is stale, failed, of unknown
//! holders, cut into MIG instances or held according to any node is not.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use shared::frame::Device;
use shared::identity::DeviceUuid;
use shared::time::Timestamp;

use super::view::NodeView;
use super::{Fleet, Seeded};

/// Free devices by model, MIG instances by model and profile. Models of which none is free are
/// there with zero.
pub fn by_model(fleet: &Fleet, now: Timestamp) -> BTreeMap<Arc<str>, u32> {
    let views = fleet.views();
    let devices = || {
        views.iter().flat_map(|(_, view)| {
            view.inventory()
                .devices
                .iter()
                .enumerate()
                .map(move |(at, device)| (&**view, at, device))
        })
    };
    let parents = devices().filter_map(|(_, _, device)| Some(&device.mig.as_ref()?.parent));
    let cut: HashSet<&DeviceUuid, Seeded> = parents.collect();
    let is_whole = |device: &Device| cut.is_empty() || !cut.contains(&device.uuid);
    let (mut free, mut others) = (HashMap::<_, _, Seeded>::default(), Vec::<&Device>::new());
    for (view, at, device) in devices().filter(|(_, _, device)| is_whole(device)) {
        if is_free(view, at, now) {
            free.insert(&device.uuid, device);
        } else {
            others.push(device);
        }
    }
    if !free.is_empty() {
        // Another node may know better of it.
        for device in &others {
            free.remove(&device.uuid);
        }
    }
    // Neighbours are mostly of one kind, of which nothing is to be counted.
    others.dedup_by(|a, b| a.name == b.name && a.mig.is_none() && b.mig.is_none());
    let mut models = BTreeMap::new();
    for device in others {
        models.entry(model(device)).or_default();
    }
    for device in free.into_values() {
        *models.entry(model(device)).or_default() += 1;
    }
    models
}

fn is_free(view: &NodeView, at: usize, now: Timestamp) -> bool {
    let device = &view.inventory().devices[at];
    device.holders.is_empty() && device.reason.is_none() && view.device_state(at, now).0 == "ok"
}

fn model(device: &Device) -> Arc<str> {
    match &device.mig {
        Some(mig) if !device.name.contains(&*mig.profile) => {
            format!("{} MIG {}", device.name, mig.profile).into()
        }
        _ => device.name.clone(),
    }
}
