//! A pod's devices → the pod's reading, or why there is none.
//!
//! Guarantees: a pod reports whole or not at all; a reading counts as fresh by this gateway's clock.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use shared::metric::{Combine, Metric, Scope};
use shared::reading::Reading;
use shared::time::Timestamp;

use crate::trigger::aggregate::aggregate;
use crate::trigger::observed::Seen;
use crate::trigger::spec::{Aggregation, Trigger};

/// Why a pod has no reading.
#[derive(Clone, Debug, PartialEq)]
pub enum NotRead {
    /// No agent has said anything about this pod's devices or engine.
    Never,
    /// An agent speaks of this pod, but has not read what is asked for; why.
    NotYet(Arc<str>),
    /// The newest reading is too old.
    Stale(Duration),
    /// Reading failed.
    Failed(Arc<str>),
    /// The devices or the engine do not have the metric.
    Unsupported,
    /// The pod has MIG instances, and these do not have the metric.
    UnsupportedByMig,
    /// `gpuIndex` is beyond the pod's devices.
    NoSuchDevice {
        /// `gpuIndex`.
        index: u32,
        /// Devices the pod has.
        devices: usize,
    },
}

impl fmt::Display for NotRead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Never => f.write_str("no agent has reported it"),
            Self::Stale(age) => write!(f, "the newest is {:.1} s old", age.as_secs_f64()),
            Self::NotYet(why) | Self::Failed(why) => f.write_str(why),
            Self::Unsupported => {
                f.write_str("not supported by the devices or the engine of these pods")
            }
            Self::UnsupportedByMig => f.write_str(
                "not supported by MIG instances; what can be known of one is \
                 memory_used_percent, sm_activity on Hopper and newer, and its engine's \
                 requests_waiting or kv_cache_usage",
            ),
            Self::NoSuchDevice { index, devices } => {
                let plural = if *devices == 1 { "" } else { "s" };
                write!(
                    f,
                    "gpuIndex {index}, but a pod has {devices} GPU{plural} (they count from 0)"
                )
            }
        }
    }
}

/// The devices the trigger looks at: all of the pod's own, or the n-th.
///
/// # Errors
/// When the pod has fewer, or none is known.
pub fn select<'a>(
    trigger: &Trigger,
    metric: Metric,
    seen: &'a [Seen],
) -> Result<&'a [Seen], NotRead> {
    if seen.is_empty() {
        return Err(NotRead::Never);
    }
    match trigger.gpu_index {
        Some(index) if metric.scope() == Scope::Device => {
            let at = index as usize;
            seen.get(at..=at).ok_or(NotRead::NoSuchDevice { index, devices: seen.len() })
        }
        _ => Ok(seen),
    }
}

/// How old a reading may be: three of the agent's intervals if that is longer than `staleAfter`.
pub fn fresh_for(trigger: &Trigger, seen: &Seen) -> Duration {
    trigger.stale_after.max(seen.interval() * 3)
}

/// The pod's reading at `now`.
///
/// # Errors
/// When any selected device has no fresh value: a pod reports whole or not at all.
pub fn read(
    trigger: &Trigger,
    metric: Metric,
    seen: &[Seen],
    now: Timestamp,
) -> Result<f64, NotRead> {
    let selected = select(trigger, metric, seen)?;
    let mut unsupported = None;
    // Devices of one node have one interval: what is fresh is worked out once for all of them.
    let (mut interval_ms, mut fresh_from) = (0, now - trigger.stale_after);
    for device in selected {
        if device.interval_ms != interval_ms {
            interval_ms = device.interval_ms;
            fresh_from = now - fresh_for(trigger, device);
        }
        match (&device.reading, device.taken_at) {
            (_, None) => return Err(never(device)),
            (_, Some(taken_at)) if taken_at < fresh_from => {
                return Err(NotRead::Stale(now.since(taken_at)));
            }
            (Reading::Ok(_), _) => {}
            (Reading::Failed(why), _) => return Err(NotRead::Failed(why.clone())),
            (Reading::Unsupported, _) if device.is_mig => {
                unsupported = Some(NotRead::UnsupportedByMig);
            }
            (Reading::Unsupported, _) => {
                unsupported = unsupported.or(Some(NotRead::Unsupported));
            }
        }
    }
    match unsupported {
        Some(unsupported) => Err(unsupported),
        None => Ok(combined(trigger.aggregation, metric, selected)),
    }
}

/// What was never read, and why where that is known.
fn never(device: &Seen) -> NotRead {
    match &device.reading {
        Reading::Failed(why) => NotRead::NotYet(why.clone()),
        Reading::Ok(_) | Reading::Unsupported => NotRead::Never,
    }
}

/// The values of readings that have one.
pub fn values(seen: &[Seen]) -> impl Iterator<Item = f64> {
    seen.iter().filter_map(|device| device.reading.value())
}

/// The reading of one pod from its selected devices, all of which have a value.
fn combined(aggregation: Aggregation, metric: Metric, selected: &[Seen]) -> f64 {
    match (aggregation, metric.combine()) {
        (Aggregation::Total, Combine::Mean) => aggregate(Aggregation::Avg, values(selected)),
        (Aggregation::Total, Combine::Sum) => aggregate(Aggregation::Sum, values(selected)),
        (other, _) => aggregate(other, values(selected)),
    }
}
