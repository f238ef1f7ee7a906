//! What a device used up, and what is the matter with it ⇄ the wire.
//!
//! Guarantees: lists are bounded and have each kind once; energy and percentages are in range.

use std::collections::BTreeMap;

use shared::health::{Energy, Health, MAX_XIDS, Origin, RecoveryAction, Throttle, XidCount};

use super::{Refusals, refuse};
use crate::uplink as wire;

/// Kinds of XID errors beyond what is told apart are left out.
pub(super) fn health_from_wire(health: wire::Health, refusals: &mut Refusals) -> Health {
    let kinds = health.xids.len();
    if kinds > MAX_XIDS {
        refuse(refusals, || format!("{kinds} kinds of XID errors; at most {MAX_XIDS}"));
    }
    let mut xids = BTreeMap::new();
    for wire::XidCount { xid, count } in health.xids.into_iter().take(MAX_XIDS) {
        if count > 0 {
            xids.insert(xid, count);
        }
    }
    Health {
        xids: health
            .tells_xids
            .then(|| xids.into_iter().map(|(xid, count)| XidCount { xid, count }).collect()),
        ecc_uncorrected: health.ecc_uncorrected,
        remap_pending: health.remap_pending,
        remap_failed: health.remap_failed,
        recovery: health.recovery_action.map(RecoveryAction::from_number),
        lost: health.lost,
    }
}

pub(super) fn health_to_wire(health: &Health) -> wire::Health {
    let xids = health.xids.iter().flatten();
    wire::Health {
        tells_xids: health.xids.is_some(),
        xids: xids.map(|it| wire::XidCount { xid: it.xid, count: it.count }).collect(),
        ecc_uncorrected: health.ecc_uncorrected,
        remap_pending: health.remap_pending,
        remap_failed: health.remap_failed,
        recovery_action: health.recovery.map(RecoveryAction::number),
        lost: health.lost,
    }
}

pub(super) fn energy_from_wire(
    device: &wire::DeviceSample,
    refusals: &mut Refusals,
) -> Option<Energy> {
    let joules = device.energy_joules?;
    let origin = match device.energy_origin {
        0 => Origin::Counter,
        agent => Origin::Integrated(agent),
    };
    let energy = Energy::checked(joules, origin);
    if energy.is_none() {
        refuse(refusals, || format!("sample of device {}: {joules} joules", device.device));
    }
    energy
}

pub(super) fn throttled_from_wire(
    throttled: &[wire::Throttled],
    refusals: &mut Refusals,
) -> Box<[(Throttle, f64)]> {
    let mut known: Vec<(Throttle, f64)> = Vec::new();
    for wire::Throttled { reason, percent } in throttled {
        let number = usize::try_from(*reason).unwrap_or(0);
        let throttle = number.checked_sub(1).and_then(|at| Throttle::ALL.get(at).copied());
        match throttle.filter(|_| (0.0..=100.0).contains(percent)) {
            Some(throttle) if known.iter().all(|(other, _)| *other != throttle) => {
                known.push((throttle, *percent));
            }
            _ => refuse(refusals, || format!("clock held down by reason {reason}: {percent} %")),
        }
    }
    known.into()
}

pub(super) fn throttled_to_wire(throttled: &[(Throttle, f64)]) -> Vec<wire::Throttled> {
    let number = |throttle: Throttle| i32::from(throttle as u8) + 1;
    throttled
        .iter()
        .map(|(throttle, percent)| wire::Throttled { reason: number(*throttle), percent: *percent })
        .collect()
}
