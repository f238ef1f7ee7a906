//! What is the matter with a device, as far as its driver says.
//!
//! Guarantees: what a device does not have, or what could not be read, is not known and never
//! "nothing is wrong"; errors reported so far outlive the library's reopening.

use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::{EccCounter, MemoryError};
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::structs::device::FieldId;
use shared::health::{Energy, Health, Origin, RecoveryAction, XidCount};

use super::fault::is_lost;
use super::gauge::Gauge;
use super::lane::Lane;
use super::raw;
use crate::device::Condition;

/// `NVML_FI_DEV_GET_GPU_RECOVERY_ACTION`
const RECOVERY_ACTION: FieldId = FieldId(230);

/// What is read of a device's health, rarely.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Wear {
    ecc_uncorrected: Option<u64>,
    remap_pending: Option<bool>,
    remap_failed: Option<bool>,
    recovery: Option<RecoveryAction>,
}

impl Wear {
    /// What the device says now.
    pub(super) fn read(gauge: &Gauge<'_>) -> Self {
        let ecc = |what, counter| {
            let ask =
                |device: &Device<'_>| device.total_ecc_errors(MemoryError::Uncorrected, counter);
            gauge.ask(what, ask).ok()
        };
        let remapped = gauge.ask("its remapped rows", raw::remapped_rows).ok();
        let recovery = gauge.ask("its recovery action", recovery_action).ok();
        Self {
            ecc_uncorrected: ecc("its memory errors", EccCounter::Aggregate)
                .or_else(|| ecc("its memory errors since it was started", EccCounter::Volatile)),
            remap_pending: remapped.map(|(pending, _)| pending),
            remap_failed: remapped.map(|(_, failed)| failed),
            recovery: recovery.map(RecoveryAction::from_number),
        }
    }
}

impl Wear {
    /// The same, with what was known before where nothing is known now: a GPU that is lost still
    /// had its errors.
    pub(super) fn after(self, before: Option<Self>) -> Self {
        let before = before.unwrap_or_default();
        Self {
            ecc_uncorrected: self.ecc_uncorrected.or(before.ecc_uncorrected),
            remap_pending: self.remap_pending.or(before.remap_pending),
            remap_failed: self.remap_failed.or(before.remap_failed),
            recovery: self.recovery.or(before.recovery),
        }
    }
}

fn recovery_action(device: &Device<'_>) -> Result<u32, NvmlError> {
    let field = device.field_values_for(&[RECOVERY_ACTION])?.pop().ok_or(NvmlError::NoData)?;
    match field?.value? {
        SampleValue::U32(action) => Ok(action),
        SampleValue::U64(action) => u32::try_from(action).map_err(|_| NvmlError::NoData),
        _ => Err(NvmlError::NoData),
    }
}

impl Lane {
    /// Notes an XID that the driver reported.
    pub(super) fn count_xid(&mut self, xid: u64) {
        let xid = u32::try_from(xid).unwrap_or(u32::MAX);
        if self.xids.len() < shared::health::MAX_XIDS || self.xids.contains_key(&xid) {
            *self.xids.entry(xid).or_default() += 1;
        }
    }

    /// What it used up, and what is the matter with it.
    pub(super) fn condition(&self) -> Condition {
        let read = self.read.as_ref();
        let lost = self.failure.as_deref().is_some_and(is_lost);
        let counted = self.xids.iter().map(|(xid, count)| XidCount { xid: *xid, count: *count });
        let Wear { ecc_uncorrected, remap_pending, remap_failed, recovery } =
            self.wear.clone().unwrap_or_default();
        let xids = self.tells_xids.then(|| counted.collect());
        let health = Health { xids, ecc_uncorrected, remap_pending, remap_failed, recovery, lost };
        let is_known = lost || health != Health::default();
        Condition {
            energy: read
                .and_then(|read| read.joules)
                .and_then(|joules| Energy::checked(joules, Origin::Counter)),
            throttled: match self.failure {
                None => read.map(|read| read.throttled.clone()).unwrap_or_default(),
                Some(_) => Box::default(),
            },
            health: is_known.then(|| Box::new(health)),
        }
    }
}
