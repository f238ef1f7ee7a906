//! One device: what its threads wrote down, and what is to be said of it at a moment.
//!
//! Guarantees: an answer that does not come makes the readings older and then failed, never
//! repeated as if they were new; a device that failed keeps its identity and the age of its last
//! reading; nothing of one device is told of the next at its index.

use std::sync::Arc;
use std::time::Duration;

use nvml_wrapper::error::NvmlError;
use shared::identity::DeviceUuid;
use shared::metric::{Metric, MetricSet};
use shared::process::Clock;
use shared::reading::{Reading, Readings};
use shared::time::Timestamp;

use parking_lot::Mutex;
use tracing::warn;

use crate::device::{ObservedDevice, Processes, Seat};

/// What is read by the device's other thread.
const SLOW: [Metric; 2] = [Metric::PcieTxKbps, Metric::PcieRxKbps];

/// What a GPU is asked for; where it fails as a whole, all of it has failed.
const METRICS: [Metric; 10] = [
    Metric::GpuUtilization,
    Metric::MemoryUtilization,
    Metric::MemoryUsedPercent,
    Metric::MemoryUsedMib,
    Metric::Temperature,
    Metric::PowerDraw,
    Metric::PcieTxKbps,
    Metric::PcieRxKbps,
    Metric::SmClockMhz,
    Metric::ThrottledPercent,
];

/// How long an XID is worth telling.
const XID_TOLD: Duration = Duration::from_secs(3_600);

/// Who a device is.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Identity {
    pub(super) uuid: DeviceUuid,
    pub(super) name: Arc<str>,
    pub(super) index: u32,
}

/// One reading of a device.
#[derive(Clone, Debug, Default)]
pub(super) struct Read {
    pub(super) at: Timestamp,
    pub(super) memory_total_mib: Option<f64>,
    /// Whether its memory is the host's.
    pub(super) shares_memory: bool,
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

/// What is known of the device at one index.
#[derive(Clone, Debug, Default)]
pub(super) struct Lane {
    pub(super) identity: Option<Identity>,
    /// Its handle, for events; 0 until it was met in this session.
    pub(super) handle: usize,
    /// The newest reading.
    pub(super) read: Option<Read>,
    /// Why the device cannot be read, since that reading.
    pub(super) failure: Option<Arc<str>>,
    /// What it was asked and has not answered.
    pub(super) asked: Option<(&'static str, Timestamp)>,
    /// What is read more rarely, by its own thread.
    pub(super) slow: Option<Read>,
    /// Its last XID, and when that was.
    pub(super) xid: Option<(u64, Timestamp)>,
}

/// What decides how a lane is told.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    pub(super) now: Timestamp,
    /// How long a call may take before the device counts as silent.
    pub(super) silence: Duration,
    /// How old what is read more rarely may be.
    pub(super) slow: Duration,
    /// Why no device can be read.
    pub(super) trouble: Option<&'a Arc<str>>,
}

impl Lane {
    /// A lane that knows who its device was before the library was opened anew.
    pub(super) fn after(before: &Self, trouble: Option<Arc<str>>) -> Self {
        if before.identity.is_none() {
            // What was read of nobody known would be told of whoever is there now.
            return Self { failure: trouble, ..Self::default() };
        }
        Self {
            identity: before.identity.clone(),
            failure: trouble,
            read: before.read.clone(),
            xid: before.xid,
            ..Self::default()
        }
    }

    /// Notes who the device is, and says whether it is known to be the one it was before; nothing
    /// of any other is kept.
    pub(super) fn meet(&mut self, identity: Identity, handle: usize) -> bool {
        let before = self.identity.as_ref().map(|before| before.uuid == identity.uuid);
        if before == Some(false) {
            warn!(index = identity.index, uuid = %identity.uuid, "another GPU is at this index now");
            self.forget();
        }
        self.identity = Some(identity);
        self.handle = handle;
        before == Some(true)
    }

    /// Forgets who the device was and all that was known of it, but not what it is asked now.
    pub(super) fn forget(&mut self) {
        let failure = self.failure.take();
        *self = Self { failure, asked: self.asked, ..Self::default() };
    }

    /// Whether there is something to say about it.
    pub(super) fn has_settled(&self, view: View<'_>) -> bool {
        let is_read = self.read.is_some() && self.slow.is_some();
        is_read || self.failure.is_some() || self.silent_for(view).is_some()
    }

    /// What is seen of it; else why it is not to be identified.
    pub(super) fn observed(&self, view: View<'_>) -> Result<ObservedDevice, Arc<str>> {
        let failure = self.why_failed(view);
        let Some(identity) = &self.identity else {
            return Err(failure.unwrap_or_else(|| "not read yet".into()));
        };
        let read = self.read.as_ref();
        let readings = match (failure, read) {
            (Some(failure), _) => self.failed(&failure),
            (None, None) => self.failed(&"not read yet".into()),
            (None, Some(read)) => self.readings(read, view),
        };
        // A failure does not make it younger; what was never read is as old as the source.
        let age = view.now.since(read.map_or(Timestamp::START, |read| read.at));
        Ok(ObservedDevice {
            uuid: identity.uuid.clone(),
            index: identity.index,
            name: identity.name.clone(),
            memory_total_mib: read.and_then(|read| read.memory_total_mib),
            mig: None,
            holders: Vec::new(),
            reason: self.remark(view),
            age,
            readings,
            seat: Seat::default(),
            processes: Processes::default(),
        })
    }

    fn why_failed(&self, view: View<'_>) -> Option<Arc<str>> {
        let with_xid = |reason: &Arc<str>| match self.recent_xid(view) {
            Some(xid) => format!("{reason} (its last XID is {xid})").into(),
            None => reason.clone(),
        };
        if let Some(trouble) = view.trouble {
            return Some(trouble.clone());
        }
        match self.silent_for(view) {
            Some((what, silence)) => {
                let silence = silence.as_secs();
                let reason = format!(
                    "the NVIDIA driver was asked for {what} and is not answering for {silence} s"
                );
                Some(with_xid(&reason.into()))
            }
            None => self.failure.as_ref().map(with_xid),
        }
    }

    fn recent_xid(&self, view: View<'_>) -> Option<u64> {
        self.xid.filter(|(_, at)| view.now.since(*at) < XID_TOLD).map(|(xid, _)| xid)
    }

    fn silent_for(&self, view: View<'_>) -> Option<(&'static str, Duration)> {
        let (what, since) = self.asked?;
        let silence = view.now.since(since);
        (silence >= view.silence).then_some((what, silence))
    }

    fn readings(&self, read: &Read, view: View<'_>) -> Readings {
        let slow = SLOW.into_iter().map(|metric| (metric, self.slow_reading(metric, view)));
        read.readings.iter().cloned().chain(slow).collect()
    }

    fn slow_reading(&self, metric: Metric, view: View<'_>) -> Reading {
        let Some(slow) = &self.slow else {
            return Reading::Failed("not read yet".into());
        };
        let age = view.now.since(slow.at);
        match slow.readings.iter().find(|(read, _)| *read == metric) {
            Some((_, Reading::Ok(_))) if age > view.slow => {
                Reading::Failed(format!("not read for {} s", age.as_secs()).into())
            }
            Some((_, reading)) => reading.clone(),
            None => Reading::Unsupported,
        }
    }

    /// Every reading that the device has, failed.
    fn failed(&self, reason: &Arc<str>) -> Readings {
        let mut missing = MetricSet::default();
        let reads = self.read.iter().chain(&self.slow);
        for (metric, reading) in reads.flat_map(|read| &read.readings) {
            if *reading == Reading::Unsupported {
                missing.insert(*metric);
            }
        }
        let has = METRICS.into_iter().filter(|metric| !missing.contains(*metric));
        has.map(|metric| (metric, Reading::Failed(reason.clone()))).collect()
    }

    /// What people should know about it; the same text for as long as it is true.
    fn remark(&self, view: View<'_>) -> Option<Arc<str>> {
        let shares = self.read.as_ref().is_some_and(|read| read.shares_memory);
        let shares =
            shares.then(|| "its memory is the host's, shared with everything on it".into());
        let xid = self.recent_xid(view).map(|xid| format!("the driver reported XID {xid}"));
        let remarks: Vec<String> = shares.into_iter().chain(xid).collect();
        (!remarks.is_empty()).then(|| remarks.join("; ").into())
    }
}

/// Notes what a device is asked for as long as it does not answer.
#[derive(Clone, Copy)]
pub(super) struct Asking<'a> {
    pub(super) lane: &'a Mutex<Lane>,
    pub(super) clock: Clock,
}

impl Asking<'_> {
    /// Makes a call that may never return.
    pub(super) fn ask<T>(
        &self,
        what: &'static str,
        call: impl FnOnce() -> Result<T, NvmlError>,
    ) -> Result<T, NvmlError> {
        self.lane.lock().asked = Some((what, self.clock.now()));
        let answer = call();
        self.lane.lock().asked = None;
        answer
    }
}
