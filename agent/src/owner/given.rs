//! Pure: holders that somebody wrote down → holders with shares.
//!
//! Guarantees: a given share stays as it is; what the given ones leave is split equally between
//! the holders without one, and marked as a guess; a single holder has the whole device. Shares
//! made up here never bring a device above 1.

use shared::frame::{HeldReading, Holder, HolderSource};
use shared::metric::Metric;

use super::Owners;
use crate::device::ObservedHolder;

/// The owners of a device of `total` MiB with these holders.
pub(super) fn owners(given: &[ObservedHolder], total: Option<f64>) -> Owners {
    Owners { holders: with_shares(given), held: held(given, total), ..Owners::default() }
}

fn with_shares(observed: &[ObservedHolder]) -> Vec<Holder> {
    let given: f64 = observed.iter().filter_map(|holder| holder.share).sum();
    let without = observed.iter().filter(|holder| holder.share.is_none() && is_of_all(holder));
    let rest = (1.0 - given).max(0.0) / without.count().max(1) as f64;
    let alone = observed.len() == 1;
    let holder = |observed: &ObservedHolder| Holder {
        pod: observed.pod.clone(),
        uid: observed.uid.clone(),
        container: observed.container.clone(),
        share: observed.share.or(is_of_all(observed).then_some(rest)),
        estimated: match observed.share {
            None if is_of_all(observed) => !alone,
            _ => observed.estimated,
        },
        source: observed.source,
        undeclared: observed.undeclared,
    };
    observed.iter().map(holder).collect()
}

/// Whether it has a share of all that was read, rather than what its own processes did.
fn is_of_all(holder: &ObservedHolder) -> bool {
    !matches!(holder.source, HolderSource::Process | HolderSource::Memory)
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
