//! Seeded load shapes on devices that do not exist.
//!
//! Guarantees: the same node, spec and tick time give the same readings; UUIDs are stable over
//! restarts and differ between nodes; utilisation is the shape plus noise, kept within 0 to 100.

use std::f64::consts::TAU;
use std::sync::Arc;
use std::time::Duration;

use shared::frame::HolderSource;
use shared::health::{Energy, Health, Origin, RecoveryAction};
use shared::identity::{DeviceUuid, NodeName, PodKey};
use shared::metric::Metric;
use shared::process::file;
use shared::reading::{Reading, Readings};
use shared::time::Timestamp;

use super::{
    Condition, DeviceSource, Error, Observation, ObservedDevice, ObservedHolder, Processes, Seat,
};

/// What is simulated, as written after `sim:`.
pub mod spec;

use spec::Model;
pub use spec::{Shape, Spec};

/// Bytes the file of a shape may have: a level a second for some months.
const MAX_BYTES: u64 = 64 << 20;

/// Devices that exist only here.
pub struct Simulated {
    devices: Vec<Virtual>,
    curve: Curve,
    noise: f64,
    model: &'static Model,
    start: Option<Timestamp>,
    last: Option<Timestamp>,
}

/// What of a device never changes.
struct Virtual {
    uuid: DeviceUuid,
    seed: u64,
    holders: Vec<ObservedHolder>,
    /// What its counter shows.
    joules: f64,
}

/// A shape whose file, if it is one, was read.
enum Curve {
    Constant(f64),
    Ramp { from: f64, to: f64, over: Duration },
    Sine { low: f64, high: f64, period: Duration },
    Steps(Vec<f64>),
}

impl Simulated {
    /// The devices of `spec` on `node`.
    ///
    /// # Errors
    /// When the file of a `file:` shape cannot be read or holds something else than numbers.
    pub fn open(spec: &Spec, node: &NodeName) -> Result<Self, Error> {
        let mut pods = spec.pods.iter();
        let devices = (0..spec.gpus).map(|index| {
            let seed = seed(node, spec.seed, index);
            Virtual {
                uuid: uuid(seed),
                seed,
                holders: pods.next().map(holder).into_iter().collect(),
                joules: 0.0,
            }
        });
        Ok(Self {
            devices: devices.collect(),
            curve: Curve::open(&spec.shape)?,
            noise: spec.noise,
            model: spec.model,
            start: None,
            last: None,
        })
    }

    fn device(&self, index: u32, device: &Virtual, elapsed: Duration) -> ObservedDevice {
        let load = self.load(device, elapsed);
        ObservedDevice {
            uuid: device.uuid.clone(),
            index,
            name: Arc::from(self.model.name),
            memory_total_mib: Some(self.model.memory_mib),
            mig: None,
            holders: device.holders.clone(),
            reason: None,
            age: Duration::ZERO,
            readings: readings(self.model, load),
            seat: Seat::default(),
            processes: Processes::default(),
            condition: Condition {
                energy: Energy::checked(device.joules, Origin::Counter),
                health: Some(Box::new(well())),
                ..Condition::default()
            },
        }
    }

    fn load(&self, device: &Virtual, elapsed: Duration) -> f64 {
        (self.curve.at(elapsed) + self.noise_at(device, elapsed)).clamp(0.0, 100.0)
    }

    fn noise_at(&self, device: &Virtual, elapsed: Duration) -> f64 {
        let tick = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
        let mut random = fastrand::Rng::with_seed(mix(device.seed, &tick.to_le_bytes()));
        (random.f64() * 2.0 - 1.0) * self.noise
    }
}

impl DeviceSource for Simulated {
    fn observe(&mut self, now: Timestamp) -> Observation {
        let elapsed = now.since(*self.start.get_or_insert(now));
        let step = now.since(self.last.replace(now).unwrap_or(now)).as_secs_f64();
        let loads: Vec<_> = self.devices.iter().map(|it| self.load(it, elapsed)).collect();
        for (device, load) in self.devices.iter_mut().zip(loads) {
            device.joules += watts(self.model, load) * step;
        }
        let devices = (0..).zip(&self.devices);
        Observation {
            devices: devices.map(|(index, device)| self.device(index, device, elapsed)).collect(),
            ..Observation::default()
        }
    }

    fn finished(&self) -> Result<bool, Error> {
        Ok(false)
    }
}

impl Curve {
    fn open(shape: &Shape) -> Result<Self, Error> {
        Ok(match shape {
            Shape::Constant(level) => Self::Constant(*level),
            Shape::Ramp { from, to, over } => Self::Ramp { from: *from, to: *to, over: *over },
            Shape::Sine { low, high, period } => {
                Self::Sine { low: *low, high: *high, period: *period }
            }
            Shape::File(path) => {
                let (_, text) = file::text(path, MAX_BYTES)
                    .map_err(|error| Error::File { path: path.clone(), error })?;
                let broken = |why| Error::Simulation(format!("{}: {why}", path.display()));
                Self::Steps(spec::steps(&text).map_err(broken)?)
            }
        })
    }

    fn at(&self, elapsed: Duration) -> f64 {
        match self {
            Self::Constant(level) => *level,
            Self::Ramp { from, to, over } => {
                let part = (elapsed.as_secs_f64() / over.as_secs_f64()).min(1.0);
                from + (to - from) * part
            }
            Self::Sine { low, high, period } => {
                let turns = elapsed.as_secs_f64() / period.as_secs_f64();
                let middle = f64::midpoint(*low, *high);
                middle + (high - middle) * (TAU * turns).sin()
            }
            Self::Steps(steps) => {
                let second = usize::try_from(elapsed.as_secs()).unwrap_or(usize::MAX);
                steps[second.min(steps.len() - 1)]
            }
        }
    }
}

fn holder(pod: &PodKey) -> ObservedHolder {
    ObservedHolder {
        pod: pod.clone(),
        uid: None,
        container: "main".into(),
        share: None,
        estimated: false,
        source: HolderSource::Simulated,
        undeclared: false,
        own: Vec::new(),
    }
}

/// Readings that go together: what a GPU of this model would show at `load` percent.
fn readings(model: &Model, load: f64) -> Readings {
    let part = load / 100.0;
    let used = (0.05 + 0.75 * part) * model.memory_mib;
    let clock = if load > 0.0 { model.boost_mhz } else { model.idle_mhz };
    [
        (Metric::GpuUtilization, load),
        (Metric::MemoryUtilization, 0.6 * load),
        (Metric::MemoryUsedPercent, used / model.memory_mib * 100.0),
        (Metric::MemoryUsedMib, used),
        (Metric::Temperature, 32.0 + 40.0 * part),
        (Metric::PowerDraw, watts(model, load)),
        (Metric::SmClockMhz, clock),
        (Metric::ThrottledPercent, 0.0),
    ]
    .into_iter()
    .map(|(metric, value)| (metric, Reading::Ok(value)))
    .collect()
}

fn watts(model: &Model, load: f64) -> f64 {
    model.watts * (0.12 + 0.83 * load / 100.0)
}

/// Nothing is ever the matter with what does not exist.
fn well() -> Health {
    Health {
        xids: Some(Vec::new()),
        ecc_uncorrected: Some(0),
        remap_pending: Some(false),
        remap_failed: Some(false),
        recovery: Some(RecoveryAction::None),
        lost: false,
    }
}

/// FNV-1a: the same on every machine and in every release, unlike the standard hasher.
fn mix(seed: u64, bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(seed, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

fn seed(node: &NodeName, seed: u64, index: u32) -> u64 {
    let hash = mix(0xcbf2_9ce4_8422_2325, node.as_str().as_bytes());
    mix(mix(hash, &seed.to_le_bytes()), &index.to_le_bytes())
}

fn uuid(seed: u64) -> DeviceUuid {
    let hex = format!("{:032x}", fastrand::Rng::with_seed(seed).u128(..));
    let (a, b, c) = (&hex[..8], &hex[8..12], &hex[12..16]);
    format!("GPU-{a}-{b}-{c}-{}-{}", &hex[16..20], &hex[20..]).into()
}
