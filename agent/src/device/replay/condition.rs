//! What a recording says of a device beside its readings; every key may be left out:
//!
//! * `energy_joules`: a total since any moment, as of a counter; a smaller one than before is a
//!   counter that began anew. Without it energy is computed from `power_draw`, and marked.
//! * `throttled_by`: `{"power": 80}`, percentages of the time; `power`, `heat`, `hardware`,
//!   `power_brake`, `sync_boost`
//! * `xid`: `{"79": 1}`, how often each was reported so far; `{}` is never
//! * `ecc_uncorrected`, `row_remap_pending`, `row_remap_failed`, `lost`
//! * `recovery_action`: `none`, `gpu_reset`, `node_reboot`, `drain_p2p`, `drain_and_reset`

use serde_json::Value;
use shared::health::{Energy, Health, MAX_XIDS, Origin, RecoveryAction, Throttle, XidCount};

use crate::device::Condition;
use crate::device::fields::{Fields, Written, nearest};

/// The keys, for the nearest one to a typo.
pub(super) const KEYS: [&str; 8] = [
    "energy_joules",
    "throttled_by",
    "xid",
    "ecc_uncorrected",
    "row_remap_pending",
    "row_remap_failed",
    "recovery_action",
    "lost",
];
/// Counts are written as numbers, of which those up to here are exact.
const MAX_COUNT: f64 = 9_007_199_254_740_992.0;

/// What is written of a device.
pub(super) fn condition(fields: &mut Fields) -> Result<Condition, String> {
    let energy = match fields.number("energy_joules")? {
        Written::Absent | Written::Null => None,
        Written::Number(joules) => {
            let energy = Energy::checked(joules, Origin::Counter).ok_or_else(|| {
                let (place, most) = (fields.place(), Energy::MAX_JOULES);
                let joules =
                    if joules.abs() < most { joules.to_string() } else { format!("{joules:e}") };
                format!("{place}: energy_joules {joules} is out of range (0 to {most:e} J)")
            })?;
            Some(energy)
        }
    };
    Ok(Condition { energy, throttled: throttled(fields)?, health: health(fields)?.map(Box::new) })
}

fn throttled(fields: &mut Fields) -> Result<Box<[(Throttle, f64)]>, String> {
    let mut throttled = Vec::new();
    for (name, percent) in entries(fields, "throttled_by", "{\"power\":80}")? {
        let place = fields.place();
        let Some(throttle) = Throttle::from_name(&name) else {
            let names = Throttle::ALL.map(Throttle::name);
            let meant = nearest(&name, names).unwrap_or(names[0]);
            return Err(format!("{place}: nothing is throttled by {name:?}; write {meant:?}"));
        };
        match percent.as_f64().filter(|percent| (0.0..=100.0).contains(percent)) {
            Some(percent) => throttled.push((throttle, percent)),
            None => {
                return Err(format!("{place}: throttled_by {name} is {percent}; write 0 to 100"));
            }
        }
    }
    Ok(throttled.into())
}

fn health(fields: &mut Fields) -> Result<Option<Health>, String> {
    let flag = |fields: &mut Fields, key: &str| -> Result<Option<bool>, String> {
        if fields.has(key) { fields.flag(key).map(Some) } else { Ok(None) }
    };
    let lost = flag(fields, "lost")?;
    let xids = if fields.has("xid") { Some(xids(fields)?) } else { None };
    let health = Health {
        xids,
        ecc_uncorrected: count(fields, "ecc_uncorrected")?,
        remap_pending: flag(fields, "row_remap_pending")?,
        remap_failed: flag(fields, "row_remap_failed")?,
        recovery: recovery(fields)?,
        lost: lost == Some(true),
    };
    Ok((lost.is_some() || health != Health::default()).then_some(health))
}

fn xids(fields: &mut Fields) -> Result<Vec<XidCount>, String> {
    let entries = entries(fields, "xid", "{\"79\":1}")?;
    let place = fields.place();
    if entries.len() > MAX_XIDS {
        return Err(format!("{place}: {} kinds of xid; at most {MAX_XIDS}", entries.len()));
    }
    let mut xids = Vec::new();
    for (xid, count) in entries {
        match (xid.parse(), count.as_u64()) {
            (Ok(_), Some(0)) => {}
            (Ok(xid), Some(count)) => xids.push(XidCount { xid, count }),
            _ => return Err(format!("{place}: xid {xid:?} is {count}; write such as \"79\":1")),
        }
    }
    xids.sort_by_key(|it| it.xid);
    Ok(xids)
}

fn count(fields: &mut Fields, key: &str) -> Result<Option<u64>, String> {
    match fields.number(key)? {
        Written::Absent | Written::Null => Ok(None),
        // The cast is exact, as it is checked for.
        Written::Number(count) if (0.0..=MAX_COUNT).contains(&count) && count.fract() == 0.0 => {
            Ok(Some(count as u64))
        }
        Written::Number(count) => {
            Err(format!("{}: {key} is {count}; write a whole number from 0", fields.place()))
        }
    }
}

fn recovery(fields: &mut Fields) -> Result<Option<RecoveryAction>, String> {
    let Some(name) = fields.text("recovery_action")? else { return Ok(None) };
    RecoveryAction::from_name(&name).map(Some).ok_or_else(|| {
        let names = RecoveryAction::NAMES.join(", ");
        format!("{}: recovery_action is {name:?}; write one of {names}", fields.place())
    })
}

/// The entries of an object; nothing is none.
fn entries(fields: &mut Fields, key: &str, such: &str) -> Result<Vec<(String, Value)>, String> {
    match fields.value(key) {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Object(entries)) => Ok(entries.into_iter().collect()),
        Some(_) => Err(format!("{}: {key} is no object; write such as {such}", fields.place())),
    }
}
