//! Everything one node said at one tick: what it has and who holds it (the inventory, sent when it
//! changes), and the readings (the sample, sent every interval).
//!
//! A sample's `devices` and `engines` run parallel to those of the inventory it belongs to.

use std::sync::Arc;
use std::time::Duration;

use crate::health::{Energy, Health, Throttle};
use crate::identity::{DeviceUuid, PodKey, PodUid};
use crate::metric::Metric;
use crate::reading::Readings;

/// What a node has, and who holds it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Inventory {
    /// The node's devices, each UUID once.
    pub devices: Vec<Device>,
    /// The inference engines that are read, each pod once per selection of series.
    pub engines: Vec<Engine>,
    /// Why there is nothing to show, where the node knows.
    pub reason: Option<Arc<str>>,
}

/// One GPU or MIG instance.
#[derive(Clone, Debug, PartialEq)]
pub struct Device {
    /// Its only key.
    pub uuid: DeviceUuid,
    /// NVML index; for people and for the order of a pod's devices.
    pub index: u32,
    /// Product name.
    pub name: Arc<str>,
    /// Total memory, where known.
    pub memory_total_mib: Option<f64>,
    /// Set for a MIG instance.
    pub mig: Option<Mig>,
    /// Who holds it; empty when free or unattributed.
    pub holders: Vec<Holder>,
    /// Why its holders are not known, where there is something to say.
    pub reason: Option<Arc<str>>,
    /// What is the matter with it, where that is known.
    pub health: Option<Box<Health>>,
}

/// Where a MIG instance was cut from.
#[derive(Clone, Debug, PartialEq)]
pub struct Mig {
    /// UUID of the whole GPU.
    pub parent: DeviceUuid,
    /// Profile, for example `3g.40gb`.
    pub profile: Arc<str>,
}

/// A container that uses a device.
#[derive(Clone, Debug, PartialEq)]
pub struct Holder {
    /// Its pod.
    pub pod: PodKey,
    /// The pod's UID, where known.
    pub uid: Option<PodUid>,
    /// Its container.
    pub container: Arc<str>,
    /// Its share of the device, 0 to 1; `None` when it cannot be told.
    pub share: Option<f64>,
    /// Whether the share is a guess (an equal split) rather than measured or declared.
    pub estimated: bool,
    /// What its part of the device rests on.
    pub source: HolderSource,
    /// Whether it uses the device without having been given it.
    pub undeclared: bool,
}

/// How a holder is known, and what its part of the device rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HolderSource {
    /// Written in a replay file.
    Replay,
    /// Written in a `--holders` file.
    File,
    /// Made up by the simulated source.
    Simulated,
    /// The kubelet gave it the device, and no other.
    Kubelet,
    /// The device was claimed for it through DRA, and for no other.
    Dra,
    /// It is one of several, told apart by what their processes do.
    Process,
    /// It is one of several, told apart by the memory of their processes.
    Memory,
    /// It is one of several that cannot be told apart.
    Equal,
}

impl HolderSource {
    /// The word used for it at every interface.
    pub fn name(self) -> &'static str {
        match self {
            Self::Replay => "replay",
            Self::File => "file",
            Self::Simulated => "simulated",
            Self::Kubelet => "kubelet",
            Self::Dra => "dra",
            Self::Process => "process",
            Self::Memory => "memory",
            Self::Equal => "equal",
        }
    }
}

/// A pod whose inference engine is read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Engine {
    /// The pod.
    pub pod: PodKey,
    /// Its UID, where known.
    pub uid: Option<PodUid>,
    /// Which of its series are read, as `engineLabels` in canonical form; all where it is empty.
    pub labels: Arc<str>,
}

/// The readings of one tick.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// One entry per device of the inventory; `None` where nothing new was read.
    pub devices: Vec<Option<DeviceSample>>,
    /// One entry per engine of the inventory; `None` where nothing new was read.
    pub engines: Vec<Option<EngineSample>>,
}

/// What one device said.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeviceSample {
    /// How long ago it was read, when the sample was made.
    pub age: Duration,
    /// The device's own readings.
    pub readings: Readings,
    /// Readings that are known per holder; these win over the share.
    pub held: Vec<HeldReading>,
    /// What it has used so far.
    pub energy: Option<Energy>,
    /// Why its clock was held down, and for what percentage of the time.
    pub throttled: Box<[(Throttle, f64)]>,
}

/// A reading of one holder of a device.
#[derive(Clone, Debug, PartialEq)]
pub struct HeldReading {
    /// Place of the holder in the device's list.
    pub holder: usize,
    /// The metric.
    pub metric: Metric,
    /// The holder's own value.
    pub value: f64,
}

/// What one engine said.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EngineSample {
    /// How long ago it was read, when the sample was made.
    pub age: Duration,
    /// The engine's readings.
    pub readings: Readings,
}

/// One tick of one node.
#[derive(Clone, Debug, PartialEq)]
pub struct Frame {
    /// Shared by every frame until something changes.
    pub inventory: Arc<Inventory>,
    /// Readings for that inventory.
    pub sample: Sample,
}
