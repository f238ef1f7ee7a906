//! Pure: holders as observed or declared → holders with shares.
//!
//! Guarantees: a given share stays as it is; what the given ones leave is split equally between
//! the holders without one, and marked as a guess; a single holder has the whole device. Shares
//! made up here never bring a device above 1.

use std::collections::HashMap;

use shared::frame::{HeldReading, Holder};
use shared::identity::DeviceUuid;
use shared::metric::Metric;

use crate::device::{Observation, ObservedDevice, ObservedHolder};

/// Text of `/proc/PID/cgroup` → pod and container.
pub mod cgroup;
/// Who was given which device.
pub mod declared;
/// The holders file.
pub mod file;
/// Names of pods from the folder of their logs.
pub mod podlogs;
/// Pids on devices → pods.
pub mod process;

/// Holders that were declared, for the devices named there.
pub type Declared = HashMap<DeviceUuid, Vec<ObservedHolder>>;

/// Who holds one device.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Owners {
    /// The holders, each with its share.
    pub holders: Vec<Holder>,
    /// What is known of a holder by itself.
    pub held: Vec<HeldReading>,
}

/// The owners of every observed device, in the order of the devices.
pub fn resolve(observation: &Observation, declared: &Declared) -> Vec<Owners> {
    let owners = |device: &ObservedDevice| {
        let observed = declared.get(&device.uuid).unwrap_or(&device.holders);
        Owners { holders: with_shares(observed), held: held(observed, device.memory_total_mib) }
    };
    observation.devices.iter().map(owners).collect()
}

fn with_shares(observed: &[ObservedHolder]) -> Vec<Holder> {
    let given: f64 = observed.iter().filter_map(|holder| holder.share).sum();
    let without = observed.iter().filter(|holder| holder.share.is_none());
    let rest = (1.0 - given).max(0.0) / without.count().max(1) as f64;
    let alone = observed.len() == 1;
    let holder = |observed: &ObservedHolder| Holder {
        pod: observed.pod.clone(),
        uid: observed.uid.clone(),
        container: observed.container.clone(),
        share: Some(observed.share.unwrap_or(rest)),
        estimated: match observed.share {
            Some(_) => observed.estimated,
            None => !alone,
        },
        source: observed.source,
        undeclared: observed.undeclared,
    };
    observed.iter().map(holder).collect()
}

/// The holders' own values, and their percent of the memory where the total is known.
fn held(observed: &[ObservedHolder], total: Option<f64>) -> Vec<HeldReading> {
    let mut held = Vec::new();
    for (holder, observed) in observed.iter().enumerate() {
        for &(metric, value) in &observed.own {
            let own = HeldReading { holder, metric, value };
            held.push(own);
            let percent = match (metric, total) {
                (Metric::MemoryUsedMib, Some(total)) => value / total * 100.0,
                _ => continue,
            };
            // A declared amount may be more than the device has; then there is no percentage.
            if Metric::MemoryUsedPercent.accepts(percent) {
                held.push(HeldReading {
                    holder,
                    metric: Metric::MemoryUsedPercent,
                    value: percent,
                });
            }
        }
    }
    held
}
