//! What the node's devices and engines say now, whatever the source.
//!
//! Guarantees: `DeviceSource::observe` never waits for hardware; what could not be read is
//! unsupported or failed and never a zero; each UUID and each engine's pod appears once.

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use shared::frame::{Engine, HolderSource, Mig};
use shared::health::{Energy, Health, Throttle};
use shared::identity::{DeviceUuid, NodeName, PodKey, PodUid};
use shared::metric::Metric;
use shared::reading::Readings;
use shared::time::Timestamp;
use tokio::sync::oneshot;

/// Written objects, taken apart key by key.
pub(crate) mod fields;
/// How a holder is written, in recordings and in holders files alike.
pub(crate) mod holder;
/// What devices without an energy counter use.
pub mod meter;
/// The node's own GPUs, through NVIDIA's management library.
pub mod nvml;
/// Recorded samples, also while they are still being recorded.
pub mod replay;
/// Seeded load shapes on devices that do not exist.
pub mod simulated;

use nvml::Nvml;
use replay::{Replay, ReplayEnd};
use simulated::Simulated;

/// Where readings come from.
pub trait DeviceSource: Send {
    /// Asks the hardware for new readings, where that takes time. Resolves once they are there;
    /// hardware may never answer, so it is waited for only so long.
    fn begin(&mut self) -> Option<oneshot::Receiver<()>> {
        None
    }

    /// What is known at `now`; returns at once.
    fn observe(&mut self, now: Timestamp) -> Observation;

    /// Whether there is more to say than that the hardware was not looked at yet.
    fn is_ready(&self) -> bool {
        true
    }

    /// Whether nothing will change any more, so that the agent may end.
    ///
    /// # Errors
    /// When only another process could go on, in one sentence.
    fn finished(&self) -> Result<bool, Error>;
}

/// Everything a source knows at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observation {
    /// Devices, each UUID once.
    pub devices: Vec<ObservedDevice>,
    /// Engines, each pod once.
    pub engines: Vec<ObservedEngine>,
    /// Why there is nothing, where the source knows.
    pub reason: Option<Arc<str>>,
}

/// One device as its source knows it.
#[derive(Clone, Debug, PartialEq)]
pub struct ObservedDevice {
    /// Its only key.
    pub uuid: DeviceUuid,
    /// NVML index.
    pub index: u32,
    /// Product name.
    pub name: Arc<str>,
    /// Total memory, where known.
    pub memory_total_mib: Option<f64>,
    /// Set for a MIG instance.
    pub mig: Option<Mig>,
    /// Who holds it, as the source knows it.
    pub holders: Vec<ObservedHolder>,
    /// Why its holders are not known, where there is something to say.
    pub reason: Option<Arc<str>>,
    /// How long ago it was read.
    pub age: Duration,
    /// What was read.
    pub readings: Readings,
    /// Its place in the machine, for ids that do not name it by UUID.
    pub seat: Seat,
    /// The processes on it.
    pub processes: Processes,
    /// What it used up, and what is the matter with it.
    pub condition: Condition,
}

/// What a device used up, and what is the matter with it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Condition {
    /// The energy it has used so far, where it counts it.
    pub energy: Option<Energy>,
    /// Why its clock was held down lately, and for what percentage of the time.
    pub throttled: Box<[(Throttle, f64)]>,
    /// What is the matter with it, where that is known.
    pub health: Option<Box<Health>>,
}

/// A device's place in the machine, as far as known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seat {
    /// N of `/dev/nvidiaN`; of a MIG instance its parent's.
    pub minor: Option<u32>,
    /// GPU instance id of a MIG instance.
    pub gpu_instance: Option<u32>,
    /// Compute instance id of a MIG instance.
    pub compute_instance: Option<u32>,
}

/// The processes on a device.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Processes {
    /// The source knows nothing of processes.
    #[default]
    Unasked,
    /// They cannot be read: why.
    Failed(Arc<str>),
    /// All of them, each pid once.
    Known(Vec<ObservedProcess>),
}

/// One process on a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ObservedProcess {
    /// Its id, as the host counts.
    pub pid: u32,
    /// Memory it has on the device, in MiB; `None` where the driver does not say.
    pub memory_mib: Option<f64>,
    /// Its part of the device's time since the last reading, in percent; `None` where the driver
    /// does not tell processes apart.
    pub utilization: Option<f64>,
}

/// One holder as its source knows it; what is missing here is for `owner` to resolve.
#[derive(Clone, Debug, PartialEq)]
pub struct ObservedHolder {
    /// Its pod.
    pub pod: PodKey,
    /// The pod's UID, where known.
    pub uid: Option<PodUid>,
    /// Its container.
    pub container: Arc<str>,
    /// Its share, where the source gives one.
    pub share: Option<f64>,
    /// Whether that share is a guess.
    pub estimated: bool,
    /// How the holder is known.
    pub source: HolderSource,
    /// Whether it uses the device without having been given it.
    pub undeclared: bool,
    /// The holder's own values, where the source can tell holders apart.
    pub own: Vec<(Metric, f64)>,
}

/// One engine as its source knows it.
#[derive(Clone, Debug, PartialEq)]
pub struct ObservedEngine {
    /// Its pod.
    pub engine: Engine,
    /// How long ago it was read.
    pub age: Duration,
    /// What was read.
    pub readings: Readings,
}

/// Why a source cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The spec names no source.
    #[error(
        "source {word:?} is none of: nvml, replay:FILE, sim:SPEC{}",
        nearest.as_ref().map_or_else(String::new, |nearest| format!(" (did you mean {nearest}?)"))
    )]
    NoSuchSource {
        /// What was written.
        word: String,
        /// The source it looks like.
        nearest: Option<String>,
    },
    /// `replay:` without a file.
    #[error("source replay needs a file; write replay:FILE")]
    NoFile,
    /// The simulation's spec is broken.
    #[error("source sim: {0}")]
    Simulation(String),
    /// A file cannot be read.
    #[error("source {path}: {error}", path = path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        error: std::io::Error,
    },
    /// The hardware cannot be read, and never will by this process.
    #[error("{0}")]
    Hardware(Arc<str>),
}

/// A source as written in `--source`.
#[derive(Clone, Debug, PartialEq)]
pub enum SourceSpec {
    /// The node's own GPUs.
    Nvml {
        /// NVIDIA's library, where it is not the one that the system finds.
        library: Option<PathBuf>,
    },
    /// `replay:FILE`
    Replay(PathBuf),
    /// `sim:SPEC`
    Simulated(simulated::Spec),
}

impl FromStr for SourceSpec {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text.split_once(':') {
            None if text == "nvml" => Ok(Self::Nvml { library: None }),
            None if text == "replay" => Err(Error::NoFile),
            None if text == "sim" => Ok(Self::Simulated(simulated::Spec::default())),
            Some(("replay", "")) => Err(Error::NoFile),
            Some(("replay", file)) => Ok(Self::Replay(file.into())),
            Some(("sim", spec)) => spec.parse().map(Self::Simulated).map_err(Error::Simulation),
            _ => {
                let word = text.split(':').next().unwrap_or(text);
                let nearest = fields::nearest(word, ["nvml", "replay", "sim"]);
                Err(Error::NoSuchSource {
                    word: word.to_owned(),
                    nearest: nearest.map(str::to_owned),
                })
            }
        }
    }
}

impl SourceSpec {
    /// Opens the source for `node`.
    ///
    /// # Errors
    /// When this build does not have it or a file of it cannot be read.
    pub fn open(self, node: &NodeName, end: ReplayEnd) -> Result<Box<dyn DeviceSource>, Error> {
        match self {
            Self::Nvml { library } => {
                let settings = nvml::Settings { library, ..nvml::Settings::default() };
                Ok(Box::new(Nvml::open(settings)?))
            }
            Self::Replay(path) => match Replay::open(&path, end) {
                Ok(replay) => Ok(Box::new(replay)),
                Err(error) => Err(Error::File { path, error }),
            },
            Self::Simulated(spec) => Ok(Box::new(Simulated::open(&spec, node)?)),
        }
    }
}
