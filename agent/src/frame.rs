//! Pure: observation and owners → the frame that travels.
//!
//! Guarantees: the inventory is the same `Arc` as before for as long as nothing in it changes, so
//! "changed" is a comparison of pointers; the sample runs parallel to the inventory, and has nothing
//! of a device that has just changed hands.

use std::sync::Arc;

use shared::frame::{Device, DeviceSample, EngineSample, Frame, Inventory, Sample};
use shared::time::Timestamp;

use crate::device::Observation;
use crate::owner::Owners;
use crate::owner::kubelet::Counts;

/// A frame and when it was taken.
#[derive(Clone, Debug, PartialEq)]
pub struct Taken {
    /// The frame.
    pub frame: Frame,
    /// The moment its ages count from.
    pub at: Timestamp,
    /// How asking the kubelet went until then, if it is asked.
    pub kubelet: Option<Counts>,
}

/// Puts a frame together; `owners` runs parallel to the observation's devices.
pub fn assemble(
    observation: Observation,
    owners: Vec<Owners>,
    previous: Option<&Arc<Inventory>>,
) -> Frame {
    let mut inventory = Inventory { reason: observation.reason, ..Inventory::default() };
    let mut sample = Sample::default();
    for (device, owners) in observation.devices.into_iter().zip(owners) {
        inventory.devices.push(Device {
            uuid: device.uuid,
            index: device.index,
            name: device.name,
            memory_total_mib: device.memory_total_mib,
            mig: device.mig,
            holders: owners.holders,
            reason: both(device.reason, owners.reason),
            health: device.condition.health,
        });
        let (age, readings, held) = (device.age, device.readings, owners.held);
        let (energy, throttled) = (device.condition.energy, device.condition.throttled);
        let read = DeviceSample { age, readings, held, energy, throttled };
        let read = (!owners.is_handed_over).then_some(read);
        sample.devices.push(read);
    }
    for engine in observation.engines {
        inventory.engines.push(engine.engine);
        sample.engines.push(Some(EngineSample { age: engine.age, readings: engine.readings }));
    }
    let inventory = match previous {
        Some(previous) if **previous == inventory => previous.clone(),
        _ => Arc::new(inventory),
    };
    Frame { inventory, sample }
}

/// What the source and what the owners have to say.
fn both(one: Option<Arc<str>>, other: Option<Arc<str>>) -> Option<Arc<str>> {
    match (one, other) {
        (Some(one), Some(other)) => Some(format!("{one}; {other}").into()),
        (one, other) => one.or(other),
    }
}
