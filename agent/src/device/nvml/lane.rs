//! One device: what its threads wrote down, and what is to be said of it at a moment.
//!
//! Guarantees: an answer that does not come makes the readings older and then failed, never
//! repeated as if they were new; a device that failed keeps its identity and the age of its last
//! reading; nothing of one device is told of the next at its index.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use nvml_wrapper::error::NvmlError;
use shared::frame::Mig;
use shared::identity::DeviceUuid;
use shared::metric::Metric;
use shared::process::Clock;
use shared::reading::{Reading, Readings};
use shared::time::Timestamp;

use parking_lot::Mutex;
use tracing::warn;

use super::read::{Read, failed};
use super::wear::Wear;
use crate::device::{Condition, ObservedDevice, Processes, Seat};

/// What is read by the device's other thread.
const SLOW: [Metric; 2] = [Metric::PcieTxKbps, Metric::PcieRxKbps];

/// How long an XID is worth telling.
const XID_TOLD: Duration = Duration::from_secs(3_600);

/// Who a device is.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Identity {
    pub(super) uuid: DeviceUuid,
    pub(super) name: Arc<str>,
    pub(super) index: u32,
    pub(super) seat: Seat,
    /// Of a MIG instance.
    pub(super) mig: Option<Mig>,
}

/// A MIG instance of the device at one index.
#[derive(Clone, Debug)]
pub(super) struct Instance {
    pub(super) identity: Identity,
    /// Its newest reading.
    pub(super) read: Option<Read>,
    /// Why it cannot be read, since that reading.
    pub(super) failure: Option<Arc<str>>,
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
    /// How often each XID was reported.
    pub(super) xids: BTreeMap<u32, u64>,
    /// Whether its driver is known to report them.
    pub(super) tells_xids: bool,
    /// What else is the matter with it, once that was read.
    pub(super) wear: Option<Wear>,
    /// What it is cut into.
    pub(super) instances: Vec<Instance>,
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
            xids: before.xids.clone(),
            tells_xids: before.tells_xids,
            wear: before.wear.clone(),
            instances: before.instances.clone(),
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
        let is_read = self.read.is_some() && self.slow.is_some() && !self.is_waiting();
        is_read || self.failure.is_some() || self.silent_for(view).is_some()
    }

    /// Whether it was read after `begun`, or cannot be.
    pub(super) fn was_read_since(&self, begun: Timestamp) -> bool {
        let is_new = self.read.as_ref().is_some_and(|read| read.at >= begun);
        self.failure.is_some() || is_new && !self.is_waiting()
    }

    /// Whether something takes another reading to be there.
    pub(super) fn is_waiting(&self) -> bool {
        let instances = self.instances.iter().filter_map(|instance| instance.read.as_ref());
        self.read.iter().chain(instances).any(|read| read.is_waiting)
    }

    /// What is seen of it and then of its instances; else why it is not to be identified.
    pub(super) fn observed(&self, view: View<'_>) -> Result<Vec<ObservedDevice>, Arc<str>> {
        let failure = self.why_failed(view);
        let Some(identity) = &self.identity else {
            return Err(failure.unwrap_or_else(|| "not read yet".into()));
        };
        let read = self.read.as_ref();
        let failed = |reason| failed(self.read.iter().chain(&self.slow), reason);
        let readings = match (&failure, read) {
            (Some(failure), _) => failed(failure),
            (None, None) => failed(&"not read yet".into()),
            (None, Some(read)) => self.readings(read, view),
        };
        let mut device =
            told(identity, read, failure.as_ref(), (readings, self.remark(view)), view);
        device.condition = self.condition();
        let instances = self.instances.iter().map(|it| it.observed(failure.as_ref(), view));
        Ok(std::iter::once(device).chain(instances).collect())
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
        let slow = SLOW.into_iter().filter(|metric| read.get(*metric).is_none());
        let slow = slow.map(|metric| (metric, self.slow_reading(metric, view)));
        read.readings().chain(slow).collect()
    }

    fn slow_reading(&self, metric: Metric, view: View<'_>) -> Reading {
        let Some(slow) = &self.slow else {
            return Reading::Failed("not read yet".into());
        };
        let age = view.now.since(slow.at);
        match slow.get(metric) {
            Some(Reading::Ok(_)) if age > view.slow => {
                Reading::Failed(format!("not read for {} s", age.as_secs()).into())
            }
            Some(reading) => reading.clone(),
            None => Reading::Unsupported,
        }
    }

    /// What people should know about it; the same text for as long as it is true.
    fn remark(&self, view: View<'_>) -> Option<Arc<str>> {
        let shares = self.read.as_ref().is_some_and(|read| read.shares_memory);
        let shares =
            shares.then(|| "its memory is the host's, shared with everything on it".into());
        let xid = self.recent_xid(view).map(|xid| format!("the driver reported XID {xid}"));
        let is_cut = self.read.as_ref().is_some_and(|read| read.is_cut);
        let cut = is_cut.then(|| "MIG is on; its instances are devices of their own".into());
        let remarks: Vec<String> = shares.into_iter().chain(cut).chain(xid).collect();
        (!remarks.is_empty()).then(|| remarks.join("; ").into())
    }
}

impl Instance {
    /// What is seen of it, where its GPU does not fail as a whole.
    fn observed(&self, of_gpu: Option<&Arc<str>>, view: View<'_>) -> ObservedDevice {
        let read = self.read.as_ref();
        let failure = of_gpu.or(self.failure.as_ref());
        let readings = match (failure, read) {
            (Some(failure), _) => failed(self.read.iter(), failure),
            (None, None) => failed(self.read.iter(), &"not read yet".into()),
            (None, Some(read)) => read.readings().collect(),
        };
        told(&self.identity, read, failure, (readings, None), view)
    }
}

fn told(
    identity: &Identity,
    read: Option<&Read>,
    failure: Option<&Arc<str>>,
    (readings, reason): (Readings, Option<Arc<str>>),
    view: View<'_>,
) -> ObservedDevice {
    let processes = match (read.map(|read| &read.processes), failure) {
        (None | Some(Processes::Unasked), _) => Processes::Unasked,
        (Some(_), Some(failure)) => Processes::Failed(failure.clone()),
        (Some(processes), None) => processes.clone(),
    };
    ObservedDevice {
        uuid: identity.uuid.clone(),
        index: identity.index,
        name: identity.name.clone(),
        memory_total_mib: read.and_then(|read| read.memory_total_mib),
        mig: identity.mig.clone(),
        holders: Vec::new(),
        reason,
        // A failure does not make it younger; what was never read is as old as the source.
        age: view.now.since(read.map_or(Timestamp::START, |read| read.at)),
        readings,
        seat: identity.seat,
        processes,
        condition: Condition::default(),
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
