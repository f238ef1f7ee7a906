//! The calls on one device, and the readings they become.
//!
//! Guarantees: what a device does not have is asked for once per gauge and unsupported; what fails
//! fails for that metric alone, unless the error is about the device or the library.

use std::cell::RefCell;
use std::fs;
use std::sync::Arc;

use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{Clock, Sampling, TemperatureSensor};
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::Utilization;
use nvml_wrapper::{Device, Nvml};
use shared::identity::DeviceUuid;
use shared::metric::Metric;
use shared::reading::Reading;
use shared::time::Timestamp;

use super::fault::{Fault, VERSION_MISMATCH, is_absent, words};
use super::lane::{Asking, Identity, Read};
use super::past::{Energy, Ring, Throttle};
use super::raw;

const MIB: f64 = 1_048_576.0;

/// Reasons for which a clock is lower than the load wants it: power, heat, a slower neighbour.
const HELD_DOWN: ThrottleReasons = ThrottleReasons::SW_POWER_CAP
    .union(ThrottleReasons::HW_SLOWDOWN)
    .union(ThrottleReasons::SYNC_BOOST)
    .union(ThrottleReasons::SW_THERMAL_SLOWDOWN)
    .union(ThrottleReasons::HW_THERMAL_SLOWDOWN)
    .union(ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN);

/// Two numbers of which one is wrong, and nobody knows which.
const TOO_MUCH_USED: &str = "the NVIDIA driver says that more memory is used than there is";

/// Words in the names of boards whose GPU has no memory of its own: DGX Spark, and Jetsons by the
/// names their drivers give them. Grace Hopper and Grace Blackwell have their own.
const UNIFIED: [&str; 7] = ["GB10", "Spark", "Jetson", "Tegra", "Xavier", "Orin", "Thor"];

/// What is remembered of a device between two readings, also over a new handle.
#[derive(Default)]
pub(super) struct Past {
    gpu: Ring,
    memory: Ring,
    energy: Energy,
    throttle: Throttle,
}

/// A handle of a device, and what was learned with it.
pub(super) struct Gauge<'nvml> {
    pub(super) device: Device<'nvml>,
    asking: Asking<'nvml>,
    /// Whether its memory is known to be the host's.
    is_unified: bool,
    /// What there is not, and whether it is the library that does not have it.
    absent: RefCell<Vec<(&'static str, bool)>>,
}

impl<'nvml> Gauge<'nvml> {
    /// Takes the handle of the device at `index`.
    pub(super) fn open(
        nvml: &'nvml Nvml,
        index: u32,
        asking: Asking<'nvml>,
    ) -> Result<Self, NvmlError> {
        let device = asking.ask("its handle", || nvml.device_by_index(index))?;
        Ok(Self { device, asking, is_unified: false, absent: RefCell::default() })
    }

    /// Who the device is.
    pub(super) fn identity(&mut self, index: u32) -> Result<Identity, Fault> {
        let uuid = self.asking.ask("its UUID", || self.device.uuid());
        let uuid = uuid.map_err(|error| match error {
            NvmlError::Utf8Error(_) => Fault::Device("its UUID is no text".into()),
            other => Fault::of_device(&other),
        })?;
        if uuid.is_empty() || uuid.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return Err(Fault::Device(format!("its UUID {uuid:?} is none").into()));
        }
        let name = match self.asking.ask("its name", || self.device.name()) {
            Ok(name) if !name.trim().is_empty() => {
                name.trim().replace(|c: char| c.is_control(), "\u{fffd}")
            }
            Ok(_) => format!("GPU {index} without a name"),
            Err(error) => match Fault::of(&error) {
                Some(fault) => return Err(fault),
                None => format!("GPU {index} (name: {})", words(&error)),
            },
        };
        self.is_unified = is_unified(&name);
        Ok(Identity { uuid: DeviceUuid::from(uuid), name: Arc::from(name), index })
    }

    /// One reading of everything that is quick.
    pub(super) fn read(&self, past: &mut Past, now: Timestamp) -> Result<Read, Fault> {
        let mut read = Read::new(now);
        self.utilization(past, now, &mut read)?;
        self.memory(&mut read)?;
        let temperature =
            self.ask("its temperature", |device| device.temperature(TemperatureSensor::Gpu));
        read.put(Metric::Temperature, reading(temperature.map(f64::from))?);
        read.put(Metric::PowerDraw, self.power(&mut past.energy, now)?);
        let clock = self.ask("its SM clock", |device| device.clock_info(Clock::SM));
        read.put(Metric::SmClockMhz, reading(clock.map(f64::from))?);
        let throttled =
            self.clocks().map(|reasons| past.throttle.percent(reasons.intersects(HELD_DOWN), now));
        read.put(Metric::ThrottledPercent, reading(throttled)?);
        Ok(read)
    }

    /// The mean of the driver's samples since the last reading, or else its last single look.
    fn utilization(&self, past: &mut Past, now: Timestamp, read: &mut Read) -> Result<(), Fault> {
        let gpu = self.mean("its GPU samples", Sampling::GpuUtilization, &mut past.gpu, now);
        let memory =
            self.mean("its memory samples", Sampling::MemoryUtilization, &mut past.memory, now);
        let (gpu, memory) = match (gpu, memory) {
            (Ok(Some(gpu)), Ok(Some(memory))) => (Ok(gpu), Ok(memory)),
            (gpu, memory) => {
                let rates = self.ask("its utilisation", Device::utilization_rates);
                (
                    instead(gpu, &rates, |rates| rates.gpu),
                    instead(memory, &rates, |rates| rates.memory),
                )
            }
        };
        read.put(Metric::GpuUtilization, reading(gpu)?);
        read.put(Metric::MemoryUtilization, reading(memory)?);
        Ok(())
    }

    fn mean(
        &self,
        what: &'static str,
        kind: Sampling,
        ring: &mut Ring,
        now: Timestamp,
    ) -> Result<Option<f64>, NvmlError> {
        let after = ring.ask_after(now);
        let ask = || self.ask(what, |device| device.samples(kind, after));
        // The ring may have grown between the two calls that this is.
        let samples = match ask() {
            Err(NvmlError::InsufficientSize(_)) => ask(),
            other => other,
        };
        let samples = match samples {
            Ok(samples) => samples,
            Err(NvmlError::NotFound) => Vec::new(),
            Err(error) => return Err(error),
        };
        let samples: Vec<_> =
            samples.iter().map(|sample| (sample.timestamp, number(&sample.value))).collect();
        Ok(ring.take(&samples, now))
    }

    fn memory(&self, read: &mut Read) -> Result<(), Fault> {
        let memory = match self.memory_bytes() {
            Ok((0, _)) => Err(NvmlError::NoData),
            Ok((total, used)) if used > total => {
                read.put_memory(&Reading::Failed(TOO_MUCH_USED.into()));
                return Ok(());
            }
            Ok((total, used)) => Ok((total as f64 / MIB, used as f64 / MIB)),
            // On other boards it says nothing about the host's.
            Err(NvmlError::NotSupported) if self.is_unified => {
                read.shares_memory = true;
                host_memory().ok_or(NvmlError::NotSupported)
            }
            Err(error) => Err(error),
        };
        read.memory_total_mib = memory.as_ref().ok().map(|(total, _)| *total);
        let used = reading(memory.map(|(_, used)| used))?;
        read.put_memory(&used);
        Ok(())
    }

    /// Total and used.
    fn memory_bytes(&self) -> Result<(u64, u64), NvmlError> {
        let v2 = self.ask("its memory", |device| {
            device.memory_info().map(|memory| (memory.total, memory.used))
        });
        match v2 {
            // An older driver; there, what is reserved is used.
            Err(error) if is_absent(&error) || is_version(&error) => {
                self.ask("its memory as old drivers tell it", raw::memory_v1)
            }
            other => other,
        }
    }

    fn power(&self, energy: &mut Energy, now: Timestamp) -> Result<Reading, Fault> {
        let counter = self.ask("its energy counter", Device::total_energy_consumption);
        if let Some(watts) = counter.ok().and_then(|counter| energy.watts(counter, now)) {
            return Ok(Reading::Ok(watts));
        }
        let power = self.ask("its power draw", Device::power_usage);
        reading(power.map(|milliwatts| f64::from(milliwatts) / 1_000.0))
    }

    fn clocks(&self) -> Result<ThrottleReasons, NvmlError> {
        match self.ask("its clocks", Device::current_throttle_reasons) {
            Err(error) if is_absent(&error) => self
                .ask("its clocks as new drivers tell it", raw::clocks_event_reasons)
                .map(ThrottleReasons::from_bits_truncate),
            other => other,
        }
    }

    /// Asks the device, unless it said before that it has no such thing.
    fn ask<T>(
        &self,
        what: &'static str,
        call: impl FnOnce(&Device<'nvml>) -> Result<T, NvmlError>,
    ) -> Result<T, NvmlError> {
        match self.absent.borrow().iter().find(|(absent, _)| *absent == what) {
            Some((_, true)) => return Err(NvmlError::FunctionNotFound),
            Some((_, false)) => return Err(NvmlError::NotSupported),
            None => {}
        }
        let answer = self.asking.ask(what, || call(&self.device));
        if let Err(error) = &answer
            && is_absent(error)
        {
            let in_library = !matches!(error, NvmlError::NotSupported);
            self.absent.borrow_mut().push((what, in_library));
        }
        answer
    }
}

/// What a value, or the lack of one, is to the user.
pub(super) fn reading(answer: Result<f64, NvmlError>) -> Result<Reading, Fault> {
    match answer {
        Ok(value) => Ok(Reading::Ok(value)),
        Err(error) if is_absent(&error) => Ok(Reading::Unsupported),
        Err(error) => match Fault::of(&error) {
            Some(fault) => Err(fault),
            None => Ok(Reading::Failed(words(&error).into())),
        },
    }
}

/// The mean, or the rates where there is none; a mean that failed says more than rates that did.
fn instead(
    mean: Result<Option<f64>, NvmlError>,
    rates: &Result<Utilization, NvmlError>,
    which: fn(&Utilization) -> u32,
) -> Result<f64, NvmlError> {
    match (mean, rates) {
        (Ok(Some(mean)), _) => Ok(mean),
        (Err(error), _) if !is_absent(&error) => Err(error),
        (_, Ok(rates)) => Ok(f64::from(which(rates))),
        (Ok(None), Err(error)) if is_absent(error) => Err(NvmlError::NoData),
        (_, Err(error)) => Err(again(error)),
    }
}

/// The same error once more: the wrapper's cannot be cloned.
fn again(error: &NvmlError) -> NvmlError {
    match error {
        NvmlError::FailedToLoadSymbol(symbol) => NvmlError::FailedToLoadSymbol(symbol.clone()),
        NvmlError::GpuLost => NvmlError::GpuLost,
        NvmlError::ResetRequired => NvmlError::ResetRequired,
        NvmlError::Uninitialized => NvmlError::Uninitialized,
        NvmlError::DriverNotLoaded => NvmlError::DriverNotLoaded,
        NvmlError::LibRmVersionMismatch => NvmlError::LibRmVersionMismatch,
        NvmlError::NotSupported => NvmlError::NotSupported,
        NvmlError::FunctionNotFound => NvmlError::FunctionNotFound,
        NvmlError::NoPermission => NvmlError::NoPermission,
        NvmlError::UnexpectedVariant(code) => NvmlError::UnexpectedVariant(*code),
        _ => NvmlError::Unknown,
    }
}

fn is_version(error: &NvmlError) -> bool {
    matches!(error, NvmlError::UnexpectedVariant(VERSION_MISMATCH))
}

fn number(value: &SampleValue) -> f64 {
    match value {
        SampleValue::F64(value) => *value,
        SampleValue::U32(value) => f64::from(*value),
        SampleValue::U64(value) => *value as f64,
        SampleValue::I64(value) => *value as f64,
    }
}

/// Whether a board of that name shares the host's memory.
fn is_unified(name: &str) -> bool {
    let mut words = name.split(|c: char| !c.is_ascii_alphanumeric());
    words.any(|word| UNIFIED.iter().any(|known| word.eq_ignore_ascii_case(known)))
}

/// The host's memory, total and used MiB, where a GPU shares it.
fn host_memory() -> Option<(f64, f64)> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let mib = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key))?;
        line.trim().strip_suffix(" kB")?.parse().ok().map(|kib: f64| kib / 1_024.0)
    };
    let total = mib("MemTotal:")?;
    Some((total, total - mib("MemAvailable:")?))
}
