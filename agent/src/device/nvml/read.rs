//! Pure: one reading of a device, and what its failure as a whole is a failure of.
//!
//! Guarantees: memory in percent and in MiB are of one look; what a device does not have is not
//! failed with it.

use std::sync::Arc;

use shared::health::Throttle;
use shared::metric::{Metric, MetricSet};
use shared::reading::{Reading, Readings};
use shared::time::Timestamp;

use crate::device::Processes;

/// What a GPU is asked for; where it fails as a whole, all of it has failed.
const METRICS: [Metric; 14] = [
    Metric::GpuUtilization,
    Metric::MemoryUtilization,
    Metric::MemoryUsedPercent,
    Metric::MemoryUsedMib,
    Metric::Temperature,
    Metric::PowerDraw,
    Metric::SmActivity,
    Metric::TensorActivity,
    Metric::PcieTxKbps,
    Metric::PcieRxKbps,
    Metric::NvlinkTxMbps,
    Metric::NvlinkRxMbps,
    Metric::SmClockMhz,
    Metric::ThrottledPercent,
];

/// One reading of a device.
#[derive(Clone, Debug, Default)]
pub(super) struct Read {
    pub(super) at: Timestamp,
    pub(super) memory_total_mib: Option<f64>,
    /// Whether its memory is the host's.
    pub(super) shares_memory: bool,
    /// Whether there is a reading that takes another one to be there.
    pub(super) is_waiting: bool,
    /// Whether it is cut into MIG instances.
    pub(super) is_cut: bool,
    pub(super) processes: Processes,
    /// What its energy counter shows.
    pub(super) joules: Option<f64>,
    /// By what its clock was held down.
    pub(super) throttled: Box<[(Throttle, f64)]>,
    readings: Vec<(Metric, Reading)>,
}

impl Read {
    pub(super) fn new(at: Timestamp) -> Self {
        Self { at, ..Self::default() }
    }

    pub(super) fn put(&mut self, metric: Metric, reading: Reading) {
        self.readings.push((metric, reading));
    }

    /// Used memory, also as a part of the total.
    pub(super) fn put_memory(&mut self, used_mib: &Reading) {
        let total = self.memory_total_mib.unwrap_or(f64::INFINITY);
        let percent = match used_mib {
            Reading::Ok(used) => Reading::Ok(used / total * 100.0),
            other => other.clone(),
        };
        self.put(Metric::MemoryUsedPercent, percent);
        self.put(Metric::MemoryUsedMib, used_mib.clone());
    }

    /// The reading of a metric, where it was read.
    pub(super) fn get(&self, metric: Metric) -> Option<&Reading> {
        self.readings.iter().find(|(read, _)| *read == metric).map(|(_, reading)| reading)
    }

    /// Everything that was read.
    pub(super) fn readings(&self) -> impl Iterator<Item = (Metric, Reading)> {
        self.readings.iter().cloned()
    }

    /// Why there is no value at all, where something failed.
    pub(super) fn failure(&self) -> Option<&Arc<str>> {
        let has_value = self.readings.iter().any(|(_, reading)| reading.value().is_some());
        let mut failures = self.readings.iter().filter_map(|(_, reading)| match reading {
            Reading::Failed(reason) => Some(reason),
            Reading::Ok(_) | Reading::Unsupported => None,
        });
        failures.next().filter(|_| !has_value)
    }
}

/// Every reading that a device has, failed; `reads` are its last ones.
pub(super) fn failed<'a>(reads: impl Iterator<Item = &'a Read>, reason: &Arc<str>) -> Readings {
    let mut missing = MetricSet::default();
    for (metric, reading) in reads.flat_map(|read| &read.readings) {
        if *reading == Reading::Unsupported {
            missing.insert(*metric);
        }
    }
    let has = METRICS.into_iter().filter(|metric| !missing.contains(*metric));
    has.map(|metric| (metric, Reading::Failed(reason.clone()))).collect()
}
