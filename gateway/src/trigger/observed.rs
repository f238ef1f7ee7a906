//! What was observed of one workload for one trigger, as the decision takes it.
//!
//! Guarantees: plain data. A pod's devices come sorted by NVML index, then UUID; readings are
//! those of the pod's share of each device. Nothing is allocated or counted per device.

use std::cmp::Ordering;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use shared::frame::{Device, Inventory};
use shared::identity::{NodeName, PodUid};
use shared::metric::MetricSet;
use shared::reading::Reading;
use shared::time::Timestamp;
use smallvec::SmallVec;

/// Readings that room is made for before they come: one pod with many devices says little about
/// the others.
const MOST_AHEAD: usize = 4_096;

/// How the HPA uses the value (`metricType` beside the trigger's `type`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TargetType {
    /// Divided by the replicas already there: KEDA's default.
    #[default]
    AverageValue,
    /// Taken as it is; the ratio to the target multiplies the ready pods.
    Value,
}

impl TargetType {
    /// The word KEDA has for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::AverageValue => "AverageValue",
            Self::Value => "Value",
        }
    }
}

/// One workload at one moment.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// How the HPA uses the value.
    pub target_type: TargetType,
    /// `spec.replicas` of the scale target: what was ordered.
    pub replicas: u32,
    /// The pods that exist: not terminal, not being deleted. A group is one pod.
    pub pods: Arc<[Pod]>,
    /// Since when fewer pods exist than were ordered; `None` while none is lacking.
    pub short_since: Option<Timestamp>,
    /// Pods the HPA divides by under `Value`: Running and Ready, those being deleted included.
    pub ready_running: u32,
    /// Since when this replica has had readings of this workload's pods without a break.
    pub watched_since: Option<Timestamp>,
    /// Whether this replica has had the time to hear from every node since it started.
    pub warm: bool,
    /// What the demand source says.
    pub demand: DemandReading,
    /// Readings per part of the trigger, parallel to its parts.
    pub parts: Vec<PartReadings>,
    /// Everything these pods do report, to name what could be used instead.
    pub offers: MetricSet,
    /// For triggers on engine metrics: pods with a request running or waiting now.
    pub serving: bool,
}

/// One pod, or one group of pods read as one.
#[derive(Clone, Debug)]
pub struct Pod {
    /// Its name.
    pub name: Arc<str>,
    /// Its UID, where the directory gives it.
    pub uid: Option<PodUid>,
    /// Its node, where the directory gives it.
    pub node: Option<NodeName>,
    /// Whether its Ready condition is true.
    pub ready: bool,
    /// Since when it is Ready, or not.
    pub since: Timestamp,
    /// Why it cannot be scheduled, where that is so.
    pub unscheduled: Option<Arc<str>>,
}

/// The demand source, seen when no pod is Ready.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum DemandReading {
    /// The trigger names none.
    #[default]
    None,
    /// It is named but what it says is not known; why.
    Unknown(Arc<str>),
    /// What it says.
    Value(f64),
}

/// The readings of one part of a trigger for every pod of the workload.
#[derive(Clone, Debug, Default)]
pub struct PartReadings {
    seen: Vec<Seen>,
    ends: SmallVec<[usize; 4]>,
    /// Pods that are expected.
    pods: usize,
    /// What the places of devices in `seen` are places in: those that were known before, and then
    /// others. Not counted anew in every answer.
    known: Arc<[Arc<Inventory>]>,
    others: SmallVec<[Arc<Inventory>; 1]>,
}

/// Where a device is found: see [`PartReadings::device`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    inventory: u32,
    device: u32,
}

/// The places of one inventory's devices.
#[derive(Clone, Copy, Debug)]
pub struct Places(u32);

impl Places {
    /// That of the device at `device` of the inventory.
    #[inline]
    pub fn of(self, device: usize) -> Place {
        Place { inventory: self.0, device: short(device) }
    }
}

/// One reading of one device (or engine) of a pod.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    /// The device; `None` for an engine.
    pub device: Option<Place>,
    /// NVML index, for the order.
    pub index: u32,
    /// The pod's share of the device's reading.
    pub reading: Reading,
    /// When it was read, on this gateway's clock; `None` if it never was, and then a failed reading
    /// says why.
    pub taken_at: Option<Timestamp>,
    /// The agent's sampling interval, in milliseconds.
    pub interval_ms: u32,
    /// Whether the device is a MIG instance.
    pub is_mig: bool,
}

impl Seen {
    /// The agent's sampling interval.
    pub fn interval(&self) -> Duration {
        Duration::from_millis(self.interval_ms.into())
    }

    /// Whether `other` was read so much later that this one's node can no longer be heard.
    fn is_silent_beside(&self, other: &Self) -> bool {
        match (self.taken_at, other.taken_at) {
            (Some(own), Some(other)) => other.since(own) > self.interval() * 3,
            (own, other) => own < other,
        }
    }
}

impl PartReadings {
    /// Room for `pods` pods, with inventories that their devices may be in.
    pub fn of_pods(pods: usize, known: Arc<[Arc<Inventory>]>) -> Self {
        Self { ends: SmallVec::with_capacity(pods), pods, known, ..Self::default() }
    }

    /// Room for `own` readings of the pod that is being listed; the first pod's make room for as
    /// many of each of the others.
    pub fn make_room(&mut self, own: usize) {
        let pods = if self.seen.is_empty() { self.pods } else { 1 };
        self.seen.reserve(own.saturating_mul(pods).min(MOST_AHEAD).max(own));
    }

    /// Turns places in `inventory` into places here; `known` is its own place among those that are
    /// known, if it is one.
    pub fn places(&mut self, inventory: &Arc<Inventory>, known: Option<usize>) -> Places {
        let is_it = |at: &usize| self.known.get(*at).is_some_and(|it| Arc::ptr_eq(it, inventory));
        let at = known.filter(is_it).unwrap_or_else(|| {
            if !self.others.last().is_some_and(|last| Arc::ptr_eq(last, inventory)) {
                self.others.push(inventory.clone());
            }
            self.known.len() + self.others.len() - 1
        });
        Places(short(at))
    }

    /// The device that was read; `None` for an engine.
    pub fn device(&self, seen: &Seen) -> Option<&Device> {
        let Place { inventory, device } = seen.device?;
        let at = inventory as usize;
        let others = || self.others.get(at - self.known.len());
        self.known.get(at).or_else(others)?.devices.get(device as usize)
    }

    /// Ends the list of one pod: what was pushed since the last call is its readings, brought
    /// into order.
    pub fn end_pod(&mut self) {
        let start = self.start();
        // Inventories are in order already, nearly always.
        let in_order = |a: &Seen, b: &Seen| a.index < b.index || self.order(a, b).is_le();
        if !self.seen[start..].is_sorted_by(in_order) {
            let mut own = self.seen.split_off(start);
            own.sort_by(|a, b| self.order(a, b));
            self.seen.append(&mut own);
        }
        self.ends.push(self.seen.len());
    }

    fn order(&self, a: &Seen, b: &Seen) -> Ordering {
        let uuid = |seen: &Seen| self.device(seen).map(|device| &device.uuid);
        a.index.cmp(&b.index).then_with(|| uuid(a).cmp(&uuid(b)))
    }

    /// Where the readings of the pod that is being listed begin.
    fn start(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Whether the pod that is being listed has no reading so far.
    pub fn is_empty_so_far(&self) -> bool {
        self.seen.len() == self.start()
    }

    /// Adds a reading to the pod that is being listed.
    #[inline]
    pub fn push(&mut self, seen: Seen) {
        self.seen.push(seen);
    }

    /// As [`Self::push`], where several nodes speak of the pod, if `several`: a device that was listed already
    /// for it is kept once, from the node that was listed first unless that one fell silent.
    pub fn push_beside(&mut self, seen: Seen, several: bool) {
        let start = if several { self.start() } else { self.seen.len() };
        let uuid = |seen: &Seen| self.device(seen).map(|device| &device.uuid);
        let own = uuid(&seen);
        let is_twin = |twin: &Seen| own.is_some() && uuid(twin) == own;
        match self.seen[start..].iter().position(is_twin).map(|at| start + at) {
            Some(at) if self.seen[at].is_silent_beside(&seen) => self.seen[at] = seen,
            Some(_) => {}
            None => self.seen.push(seen),
        }
    }

    /// The readings alone; nothing tells any more which devices they are of.
    pub fn into_sample(self) -> Vec<Seen> {
        self.seen
    }

    fn range(&self, pod: usize) -> Range<usize> {
        let start = if pod == 0 { 0 } else { self.ends[pod - 1] };
        start..self.ends[pod]
    }

    /// The readings of the pod at `pod` of [`Observed::pods`].
    pub fn of(&self, pod: usize) -> &[Seen] {
        &self.seen[self.range(pod)]
    }
}

/// No inventory comes near the largest place, where nothing is.
fn short(place: usize) -> u32 {
    u32::try_from(place).unwrap_or(u32::MAX)
}

/// What a pod's devices said over a while, for windows: newest or oldest first, as it comes.
#[derive(Clone, Debug, Default)]
pub struct Series {
    /// From when the pod was Ready.
    pub ready_from: Timestamp,
    /// Until when; `None` for a pod that still is.
    pub ready_until: Option<Timestamp>,
    /// Its readings, one entry per sample; of which devices is not known any more.
    pub samples: Vec<Vec<Seen>>,
}

/// The past of a workload, asked for only where the present does not decide.
pub trait Past {
    /// The series of every pod that was Ready at some moment since `from`, for the trigger's part
    /// at `part`.
    fn series(&self, part: usize, from: Timestamp) -> Vec<Series>;

    /// Whether a pod had a request running or waiting at some moment since `from`.
    fn served_since(&self, from: Timestamp) -> bool;
}

/// No past at all: what a test or a first moment knows.
#[derive(Clone, Copy, Debug)]
pub struct NoPast;

impl Past for NoPast {
    fn series(&self, _: usize, _: Timestamp) -> Vec<Series> {
        Vec::new()
    }

    fn served_since(&self, _: Timestamp) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inventory(uuids: &[&str]) -> Arc<Inventory> {
        let device = |(uuid, index): (&&str, u32)| Device {
            uuid: (*uuid).into(),
            index,
            name: "H100".into(),
            memory_total_mib: None,
            mig: None,
            health: None,
            reason: None,
            holders: Vec::new(),
        };
        let devices = uuids.iter().zip(0..).map(device).collect();
        Arc::new(Inventory { devices, engines: Vec::new(), reason: None })
    }

    fn seen(device: Place, index: u32, seconds: i64) -> Seen {
        let taken_at = Some(Timestamp::from_millis(seconds * 1_000));
        let reading = Reading::Ok(f64::from(index));
        Seen { device: Some(device), index, reading, taken_at, interval_ms: 500, is_mig: false }
    }

    fn named(readings: &PartReadings, pod: usize) -> Vec<(&str, u32)> {
        let uuid = |seen| readings.device(seen).unwrap().uuid.as_str();
        readings.of(pod).iter().map(|seen| (uuid(seen), seen.index)).collect()
    }

    #[test]
    fn devices_come_in_order_and_keep_their_names() {
        let mut readings = PartReadings::of_pods(2, Arc::default());
        for _ in 0..2 {
            let place = readings.places(&inventory(&["GPU-c", "GPU-a", "GPU-b"]), None);
            readings.push(seen(place.of(0), 1, 0));
            readings.push(seen(place.of(1), 1, 0));
            readings.push(seen(place.of(2), 0, 0));
            readings.end_pod();
        }
        let right = vec![("GPU-b", 0), ("GPU-a", 1), ("GPU-c", 1)];
        assert_eq!([named(&readings, 0), named(&readings, 1)], [right.clone(), right]);
    }

    #[test]
    fn a_device_of_two_nodes_is_listed_once_by_the_one_that_is_heard() {
        let list = |second: i64| {
            let mut readings = PartReadings::default();
            let place = readings.places(&inventory(&["GPU-a", "GPU-b"]), None);
            readings.push_beside(seen(place.of(0), 7, 0), true);
            readings.push_beside(seen(place.of(1), 8, 0), true);
            let place = readings.places(&inventory(&["GPU-b"]), None);
            readings.push_beside(seen(place.of(0), 9, second), true);
            readings.end_pod();
            named(&readings, 0).iter().map(|(name, index)| format!("{name} {index}")).collect()
        };
        let lists: [Vec<String>; 2] = [list(1), list(2)];
        assert_eq!(lists[0], ["GPU-a 7", "GPU-b 8"], "both are heard: the first counts");
        assert_eq!(lists[1], ["GPU-a 7", "GPU-b 9"], "the first has fallen silent");
    }
}
