//! Pure: what a device used up, and what is the matter with it → keys of the replay format.
//!
//! Guarantees: what is not known has no key; the reader of recordings takes every key.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Number;
use shared::health::{Health, XidCount};

use super::json::number;
use super::view::DeviceView;

/// The keys, as recordings have them.
#[derive(Serialize)]
pub(super) struct WrittenCondition {
    #[serde(skip_serializing_if = "Option::is_none")]
    energy_joules: Option<Number>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    throttled_by: BTreeMap<&'static str, Number>,
    #[serde(flatten)]
    health: Option<WrittenHealth>,
}

#[derive(Serialize)]
struct WrittenHealth {
    lost: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    xid: Option<BTreeMap<u32, u64>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ecc_uncorrected: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    row_remap_pending: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    row_remap_failed: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    recovery_action: Option<&'static str>,
}

impl WrittenCondition {
    /// What is known of the device.
    pub(super) fn of(view: &DeviceView<'_>) -> Self {
        let throttled = view.throttled.iter();
        Self {
            // An estimate is made anew from the power.
            energy_joules: view
                .energy
                .filter(|energy| !energy.is_estimate())
                .map(|energy| number(energy.joules)),
            throttled_by: throttled.map(|(by, percent)| (by.name(), number(*percent))).collect(),
            health: view.device.health.as_deref().map(WrittenHealth::of),
        }
    }
}

impl WrittenHealth {
    fn of(health: &Health) -> Self {
        let entries = |xids: &Vec<XidCount>| xids.iter().map(|it| (it.xid, it.count)).collect();
        Self {
            lost: health.lost,
            xid: health.xids.as_ref().map(entries),
            ecc_uncorrected: health.ecc_uncorrected,
            row_remap_pending: health.remap_pending,
            row_remap_failed: health.remap_failed,
            // What has no word here cannot be read back either.
            recovery_action: health.recovery.map(|it| it.name()).filter(|name| *name != "other"),
        }
    }
}
