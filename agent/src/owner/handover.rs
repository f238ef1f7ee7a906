//! Pure: which readings are of a time in which a device was still somebody else's.
//!
//! Guarantees: a reading that the holders of today would be billed for as a whole is theirs only if
//! it was taken after the last of the former ones had gone; until then it is nobody's.

use std::collections::HashMap;

use shared::frame::{Holder, HolderSource};
use shared::identity::DeviceUuid;
use shared::time::Timestamp;

use super::Owners;
use crate::device::Observation;

/// The holders of every device as of the last tick.
#[derive(Debug, Default)]
pub struct Handovers {
    devices: HashMap<DeviceUuid, Known>,
}

#[derive(Debug, Default)]
struct Known {
    holders: Vec<Holder>,
    /// When a holder was last seen to have gone.
    since: Option<Timestamp>,
}

impl Handovers {
    /// Marks the owners of devices whose reading is of before `now`'s holders.
    pub fn mark(&mut self, observation: &Observation, owners: &mut [Owners], now: Timestamp) {
        let mut before = std::mem::take(&mut self.devices);
        for (device, owners) in observation.devices.iter().zip(owners) {
            let mut known = before.remove(&device.uuid).unwrap_or_default();
            if known.holders.iter().any(|holder| has_left(holder, &owners.holders)) {
                known.since = Some(now);
            }
            let taken = now - device.age;
            let is_early = known.since.is_some_and(|since| taken <= since);
            owners.is_handed_over = is_early && owners.holders.iter().any(is_billed_by_share);
            known.holders.clone_from(&owners.holders);
            self.devices.insert(device.uuid.clone(), known);
        }
    }
}

fn has_left(holder: &Holder, now: &[Holder]) -> bool {
    let is_same = |other: &Holder| {
        let same_uid = holder.uid.as_ref().zip(other.uid.as_ref()).is_none_or(|(a, b)| a == b);
        holder.pod == other.pod && same_uid
    };
    !now.iter().any(is_same)
}

/// Whether it has a share of whatever was read, rather than what its own processes did. What was
/// written down is right as it is.
fn is_billed_by_share(holder: &Holder) -> bool {
    let is_found = match holder.source {
        HolderSource::Kubelet | HolderSource::Dra | HolderSource::Equal => true,
        HolderSource::Process | HolderSource::Memory => false,
        HolderSource::Replay | HolderSource::File | HolderSource::Simulated => false,
    };
    is_found && holder.share.is_some()
}
