//! One tick of one node, indexed by pod.
//!
//! Guarantees: immutable, so a reader may keep it. A pod's reading is its share of the device's:
//! what holders use up together is split, what each feels in full is not, and a share that is not
//! known makes the reading failed, not full.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use shared::frame::{Device, DeviceSample, Engine, EngineSample, HeldReading, Inventory};
use shared::health::{Energy, Health, Throttle};
use shared::identity::{PodKey, PodUid};
use shared::metric::{Metric, MetricSet};
use shared::reading::{Place, Reading, Readings};
use shared::time::Timestamp;
use smallvec::{SmallVec, smallvec};

use super::Seeded;

/// How often an agent reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Intervals {
    /// Time between two samples of its devices.
    pub samples: Duration,
    /// Time between two scrapes of an engine.
    pub engines: Duration,
}

impl Intervals {
    /// The longer of each.
    pub fn max(self, other: Self) -> Self {
        let Self { samples, engines } = self;
        Self { samples: samples.max(other.samples), engines: engines.max(other.engines) }
    }
}

impl From<Duration> for Intervals {
    /// Engines are read as often as devices.
    fn from(interval: Duration) -> Self {
        Self { samples: interval, engines: interval }
    }
}

/// One tick of one node.
#[derive(Debug)]
pub struct NodeView {
    /// When the gateway received it.
    pub received_at: Timestamp,
    /// How often the agent reads.
    pub intervals: Intervals,
    index: Arc<Index>,
    devices: Box<[Option<Row>]>,
    engines: Box<[Option<Row>]>,
}

/// What one tick of a node says of one pod.
#[derive(Clone, Copy, Debug)]
pub struct PodView<'a> {
    view: &'a NodeView,
    claims: &'a Claims,
    uid: Option<&'a PodUid>,
    /// Whether all its devices are the pod's, or none; `None` where each must be looked at.
    all_fit: Option<bool>,
}

/// Reads one metric of a pod's devices.
#[derive(Debug)]
pub struct Plain<'a> {
    rows: &'a [Option<Row>],
    metric: Metric,
    is_split: bool,
    place: Place,
}

/// Where a pod is found in the views of one inventory.
#[derive(Clone, Debug)]
pub struct Spot {
    index: Arc<Index>,
    claims: Arc<Claims>,
    uid: Option<PodUid>,
    all_fit: Option<bool>,
}

/// The readings of one device or engine.
#[derive(Clone, Debug)]
pub struct Row {
    /// When they were read, on the gateway's clock.
    pub taken_at: Timestamp,
    /// The readings.
    pub readings: Readings,
    /// Readings known per holder.
    pub held: Vec<HeldReading>,
    /// What the device has used so far.
    pub energy: Option<Energy>,
    /// Why its clock was held down, and for what percentage of the time.
    pub throttled: Box<[(Throttle, f64)]>,
}

/// An inventory with what each pod holds of it.
#[derive(Debug, Default)]
pub struct Index {
    inventory: Arc<Inventory>,
    pods: HashMap<PodKey, Arc<Claims>, Seeded>,
}

#[derive(Debug)]
struct Claims {
    /// Since when the node has spoken of this pod without a break.
    since: Timestamp,
    devices: SmallVec<[Claim; 1]>,
    /// Whether all devices are claimed with one UID, nearly always so: then one look is enough.
    one_uid: bool,
    /// Places of its engines in the inventory, one per selection of series.
    engines: Vec<usize>,
}

/// What one pod holds of one device. Small, because every answer looks at all of a workload's.
#[derive(Debug)]
pub struct Claim {
    /// Place of the device in the inventory.
    pub device: usize,
    /// Its NVML index.
    pub index: u32,
    /// Whether it is a MIG instance.
    pub is_mig: bool,
    /// Share of all holders; `None` if any is not known.
    pub share: Option<f64>,
    by: Box<Claimants>,
}

/// Who claims a device for a pod.
#[derive(Debug)]
struct Claimants {
    /// The pod's UID as the agent knows it.
    uid: Option<PodUid>,
    /// Places of the pod's containers among the device's holders.
    holders: SmallVec<[usize; 2]>,
}

impl Index {
    /// Indexes an inventory; pods that `before` knew keep the time since when they are known.
    pub fn new(inventory: Arc<Inventory>, before: Option<&Self>, now: Timestamp) -> Self {
        let mut pods: HashMap<PodKey, Claims, Seeded> = HashMap::default();
        let known_since = |pod: &PodKey| {
            before.and_then(|index| index.pods.get(pod)).map_or(now, |claims| claims.since)
        };
        let new = |pod: &PodKey| Claims {
            since: known_since(pod),
            devices: SmallVec::new(),
            one_uid: true,
            engines: Vec::new(),
        };
        for (at, device) in inventory.devices.iter().enumerate() {
            for (place, holder) in device.holders.iter().enumerate() {
                let claims = pods.entry(holder.pod.clone()).or_insert_with(|| new(&holder.pod));
                let first = claims.devices.first();
                claims.one_uid &= first.is_none_or(|first| first.by.uid == holder.uid);
                let same = |claim: &&mut Claim| claim.device == at && claim.by.uid == holder.uid;
                match claims.devices.iter_mut().find(same) {
                    Some(claim) => {
                        claim.by.holders.push(place);
                        let sum = claim.share.zip(holder.share).map(|(a, b)| (a + b).min(1.0));
                        claim.share = sum;
                    }
                    None => claims.devices.push(Claim {
                        device: at,
                        index: device.index,
                        is_mig: device.mig.is_some(),
                        share: holder.share,
                        by: Box::new(Claimants {
                            uid: holder.uid.clone(),
                            holders: smallvec![place],
                        }),
                    }),
                }
            }
        }
        for (at, engine) in inventory.engines.iter().enumerate() {
            let claims = pods.entry(engine.pod.clone()).or_insert_with(|| new(&engine.pod));
            claims.engines.push(at);
        }
        // It stays for as long as the inventory does.
        let whole = |(pod, mut claims): (PodKey, Claims)| {
            claims.devices.shrink_to_fit();
            (pod, Arc::new(claims))
        };
        let pods = pods.into_iter().map(whole).collect();
        Self { inventory, pods }
    }

    /// The inventory it indexes.
    pub fn inventory(&self) -> &Arc<Inventory> {
        &self.inventory
    }
}

impl Claims {
    fn all_fit(&self, uid: Option<&PodUid>) -> Option<bool> {
        let first = self.devices.first().filter(|_| self.one_uid)?;
        Some(may_be(first.by.uid.as_ref(), uid))
    }
}

impl Spot {
    /// The inventory it is for.
    pub fn inventory(&self) -> &Arc<Inventory> {
        &self.index.inventory
    }
}

fn may_be(claimed: Option<&PodUid>, wanted: Option<&PodUid>) -> bool {
    claimed.zip(wanted).is_none_or(|(claimed, wanted)| claimed == wanted)
}

impl NodeView {
    /// One tick; `devices` and `engines` run parallel to the inventory's.
    pub fn new(
        index: Arc<Index>,
        devices: Vec<Option<Row>>,
        engines: Vec<Option<Row>>,
        intervals: Intervals,
        received_at: Timestamp,
    ) -> Self {
        let (devices, engines) = (devices.into(), engines.into());
        Self { received_at, intervals, index, devices, engines }
    }

    /// What the node has.
    pub fn inventory(&self) -> &Arc<Inventory> {
        &self.index.inventory
    }

    /// How many devices and engines it has readings of, and one for itself.
    pub fn size(&self) -> usize {
        1 + self.devices.len() + self.engines.len()
    }

    /// Every pod it speaks of.
    pub fn pods(&self) -> impl Iterator<Item = &PodKey> {
        self.index.pods.keys()
    }

    /// Whether it speaks of `pod`.
    pub fn holds(&self, pod: &PodKey) -> bool {
        self.index.pods.contains_key(pod)
    }

    /// What it says of `pod`, where the UID agrees or one side does not know it.
    pub fn pod<'a>(&'a self, pod: &PodKey, uid: Option<&'a PodUid>) -> Option<PodView<'a>> {
        let claims = self.index.pods.get(pod)?;
        Some(PodView { view: self, claims, uid, all_fit: claims.all_fit(uid) })
    }

    /// Where `pod` is found in this view and in those that follow with the same inventory.
    pub fn spot(&self, pod: &PodKey, uid: Option<&PodUid>) -> Option<Spot> {
        let claims = self.index.pods.get(pod)?.clone();
        let (index, uid, all_fit) = (self.index.clone(), uid.cloned(), claims.all_fit(uid));
        Some(Spot { index, claims, uid, all_fit })
    }

    /// What it says of the pod that `spot` was made for; `None` if the inventory has changed.
    #[inline]
    pub fn pod_at<'a>(&'a self, spot: &'a Spot) -> Option<PodView<'a>> {
        let Spot { index, claims, uid, all_fit } = spot;
        let is_same = Arc::ptr_eq(&self.index, index);
        is_same.then(|| PodView { view: self, claims, uid: uid.as_ref(), all_fit: *all_fit })
    }

    /// Whether both come from the very same inventory.
    pub fn has_index_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.index, &other.index)
    }

    pub(super) fn index(&self) -> &Arc<Index> {
        &self.index
    }

    /// The readings of the device at `at` of the inventory.
    pub fn row(&self, at: usize) -> Option<&Row> {
        self.devices[at].as_ref()
    }

    /// The word for the state of the device at `at`, and what failed of it.
    pub fn device_state(&self, at: usize, now: Timestamp) -> (&'static str, Option<String>) {
        let Some(row) = self.row(at) else { return ("unread", None) };
        let failure = row.failure();
        let is_lost = |health: &Health| health.lost;
        let state = if self.inventory().devices[at].health.as_deref().is_some_and(is_lost) {
            "lost"
        } else if failure.is_some() {
            "failed"
        } else if now.since(row.taken_at) > self.intervals.samples * 3 {
            "stale"
        } else {
            "ok"
        };
        (state, failure)
    }

    /// The readings of that very engine, wherever it is in the inventory.
    pub(super) fn row_of(&self, engine: &Engine) -> Option<&Row> {
        let places = &self.index.pods.get(&engine.pod)?.engines;
        let engines = &self.index.inventory.engines;
        self.engine_row(*places.iter().find(|at| engines[**at] == *engine)?)
    }

    /// The engine readings at `at` of the inventory.
    pub fn engine_row(&self, at: usize) -> Option<&Row> {
        self.engines[at].as_ref()
    }
}

impl<'a> PodView<'a> {
    /// Since when the node has spoken of the pod without a break.
    pub fn known_since(&self) -> Timestamp {
        self.claims.since
    }

    /// What the places of [`Self::devices`] are places in.
    pub fn inventory(&self) -> &'a Arc<Inventory> {
        self.view.index.inventory()
    }

    /// How many devices it holds at most: some may be another's of the same name.
    pub fn most_devices(&self) -> usize {
        self.claims.devices.len()
    }

    /// The devices the pod holds.
    pub fn devices(&self) -> impl Iterator<Item = (&'a Claim, &'a Device)> + use<'a> {
        let inventory = &self.view.index.inventory;
        self.claims().map(|claim| (claim, &inventory.devices[claim.device]))
    }

    /// What the pod holds of each of its devices.
    #[inline]
    pub fn claims(&self) -> impl Iterator<Item = &'a Claim> + use<'a> {
        let (uid, all_fit) = (self.uid, self.all_fit);
        let fits =
            move |claim: &&Claim| all_fit.unwrap_or_else(|| may_be(claim.by.uid.as_ref(), uid));
        self.claims.devices.iter().filter(fits)
    }

    /// Reads `metric` of one device after another, where there is nothing special to it.
    pub fn plain(&self, metric: Metric) -> Plain<'a> {
        // The devices of a node nearly always know the same metrics.
        let place = Place::default();
        Plain { rows: &self.view.devices, metric, is_split: metric.is_split_by_share(), place }
    }

    /// The pod's own reading of a device it holds, and when it was taken.
    pub fn reading(&self, claim: &Claim, metric: Metric) -> (Reading, Option<Timestamp>) {
        match self.view.row(claim.device) {
            Some(row) => (row.share_of(claim, metric), Some(row.taken_at)),
            None => (Reading::Unsupported, None),
        }
    }

    /// What the node reads of the pod's engine: selections of series, each with its readings,
    /// `None` before the first.
    pub fn engines(&self) -> impl Iterator<Item = (&'a str, Option<&'a Row>)> + use<'a> {
        let (view, uid) = (self.view, self.uid);
        let engines =
            self.claims.engines.iter().map(|at| (*at, &view.index.inventory.engines[*at]));
        engines
            .filter(move |(_, engine)| may_be(engine.uid.as_ref(), uid))
            .map(|(at, engine)| (&*engine.labels, view.engine_row(at)))
    }

    /// The readings of the series with `labels` (canonical; empty for all) of the pod's engine, if
    /// the node reads these: `Some(None)` before the first.
    pub fn engine(&self, labels: &str) -> Option<Option<&'a Row>> {
        self.engines().find(|(known, _)| *known == labels).map(|(_, row)| row)
    }

    /// All that was read of a device that the pod holds.
    pub fn row(&self, claim: &Claim) -> Option<&'a Row> {
        self.view.row(claim.device)
    }

    fn device_rows(&self) -> impl Iterator<Item = &'a Row> + use<'a> {
        let view = self.view;
        self.devices().filter_map(move |(claim, _)| view.row(claim.device))
    }

    /// The rows of the pod's devices and engine that have been read.
    pub fn rows(&self) -> impl Iterator<Item = &'a Row> + use<'a> {
        self.device_rows().chain(self.engines().filter_map(|(_, row)| row))
    }

    /// The metrics the pod has values of, from its devices and the engine series with `labels`.
    pub fn offers(&self, labels: &str) -> MetricSet {
        let mut offers = MetricSet::default();
        let rows = self.device_rows().chain(self.engine(labels).flatten());
        rows.for_each(|row| offers.extend(row.readings.known()));
        offers
    }
}

impl Plain<'_> {
    /// The pod's own value and when it was taken; `None` where there is more to say.
    #[inline]
    pub fn read(&mut self, claim: &Claim) -> Option<(f64, Timestamp)> {
        let row = self.rows[claim.device].as_ref().filter(|row| row.held.is_empty())?;
        if !self.place.is_for(&row.readings) {
            self.place = row.readings.place(self.metric);
        }
        let share = if self.is_split { claim.share? } else { 1.0 };
        Some((row.readings.at(self.place)? * share, row.taken_at))
    }
}

impl Row {
    /// What a device said in a sample that came at `now`.
    pub(super) fn of_device(sample: DeviceSample, now: Timestamp) -> Self {
        let DeviceSample { age, readings, held, energy, throttled } = sample;
        Self { taken_at: now - age, readings, held, energy, throttled }
    }

    /// What an engine said in a sample that came at `now`.
    pub(super) fn of_engine(sample: EngineSample, now: Timestamp) -> Self {
        let (taken_at, readings) = (now - sample.age, sample.readings);
        Self { taken_at, readings, held: Vec::new(), energy: None, throttled: Box::default() }
    }

    pub(super) fn failure(&self) -> Option<String> {
        self.readings.iter().find_map(|(metric, reading)| match reading {
            Reading::Failed(why) => Some(format!("{metric}: {why}")),
            _ => None,
        })
    }

    fn share_of(&self, claim: &Claim, metric: Metric) -> Reading {
        if let Some(held) = self.held_by(claim, metric) {
            return held;
        }
        match (self.readings.value(metric), claim.share) {
            (Some(value), _) if !metric.is_split_by_share() => Reading::Ok(value),
            (Some(value), Some(share)) => Reading::Ok(value * share),
            (Some(_), None) => Reading::Failed("its share of a shared device is not known".into()),
            (None, _) => self.readings.get(metric),
        }
    }

    /// What is known of the holders themselves, together.
    fn held_by(&self, claim: &Claim, metric: Metric) -> Option<Reading> {
        let mut held = self
            .held
            .iter()
            .filter(|r| r.metric == metric && claim.by.holders.contains(&r.holder))
            .peekable();
        held.peek()?;
        Some(Reading::checked(metric, held.map(|reading| reading.value).sum()))
    }
}
