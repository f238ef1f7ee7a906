//! The calls on one device, and the readings they become.
//!
//! Guarantees: what a device does not have is asked for once per gauge and unsupported; what fails
//! fails for that metric alone, unless the error is about the device or the library.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{Clock, Sampling, TemperatureSensor};
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::Utilization;
use nvml_wrapper::{Device, Nvml};
use shared::health::Throttle;
use shared::identity::DeviceUuid;
use shared::metric::Metric;
use shared::reading::Reading;
use shared::time::Timestamp;

use super::fault::{Fault, is_absent, words};
use super::gpm::{Gpm, Of};
use super::lane::{Asking, Identity};
use super::memory::is_unified;
use super::past::{Energy, Reasons, Ring, Throttled};
use super::processes::Table;
use super::raw;
use super::read::Read;
use crate::device::Seat;

/// Reasons for which a clock is lower than the load wants it.
const HELD_DOWN: [(ThrottleReasons, Throttle); 6] = [
    (ThrottleReasons::SW_POWER_CAP, Throttle::Power),
    (ThrottleReasons::SW_THERMAL_SLOWDOWN, Throttle::Heat),
    (ThrottleReasons::HW_THERMAL_SLOWDOWN, Throttle::Heat),
    (ThrottleReasons::HW_SLOWDOWN, Throttle::Hardware),
    (ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN, Throttle::PowerBrake),
    (ThrottleReasons::SYNC_BOOST, Throttle::SyncBoost),
];

fn held_down_by(bits: ThrottleReasons) -> Reasons {
    let mut reasons = Reasons::default();
    let held = HELD_DOWN.iter().filter(|(bit, _)| bits.contains(*bit));
    held.for_each(|(_, throttle)| reasons.insert(*throttle));
    reasons
}

/// What is remembered of a device between two readings, also over a new handle.
#[derive(Default)]
pub(super) struct Past<'nvml> {
    gpu: Ring,
    memory: Ring,
    energy: Energy,
    throttled: Throttled,
    gpm: Gpm<'nvml>,
    processes: Table,
}

/// A handle of a device, and what was learned with it.
pub(super) struct Gauge<'nvml> {
    pub(super) device: Device<'nvml>,
    pub(super) asking: Asking<'nvml>,
    /// Whether it has GPM, once that was asked.
    pub(super) has_gpm: Cell<Option<bool>>,
    /// Whether the handle was refused, as that of a MIG instance is that is not there any more.
    pub(super) is_refused: Cell<bool>,
    /// Whether its memory is known to be the host's.
    pub(super) is_unified: bool,
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
        Ok(Self::of(device, asking))
    }

    /// Takes a handle that is there.
    pub(super) fn of(device: Device<'nvml>, asking: Asking<'nvml>) -> Self {
        Self {
            device,
            asking,
            has_gpm: Cell::default(),
            is_refused: Cell::default(),
            is_unified: false,
            absent: RefCell::default(),
        }
    }

    /// Forgets what it does not have, which MIG decides too.
    pub(super) fn forget_absent(&self) {
        self.absent.borrow_mut().clear();
        self.has_gpm.take();
    }

    /// The device's UUID.
    pub(super) fn uuid(&self) -> Result<DeviceUuid, Fault> {
        let uuid = self.ask("its UUID", Device::uuid).map_err(|error| match error {
            NvmlError::Utf8Error(_) => Fault::Device("its UUID is no text".into()),
            other => Fault::of_device(&other),
        })?;
        if !is_uuid(&uuid) {
            return Err(Fault::Device(format!("its UUID {uuid:?} is none").into()));
        }
        Ok(DeviceUuid::from(uuid))
    }

    /// Who the device is.
    pub(super) fn identity(&mut self, index: u32) -> Result<Identity, Fault> {
        let uuid = self.uuid()?;
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
        let minor = match self.ask("its minor number", Device::minor_number) {
            Ok(minor) => Some(minor),
            Err(error) => match Fault::of(&error) {
                Some(fault) => return Err(fault),
                None => None,
            },
        };
        let seat = Seat { minor, ..Seat::default() };
        Ok(Identity { uuid, name: Arc::from(name), index, seat, mig: None })
    }

    /// One reading of everything that is quick. What holds of instances only is not read where it
    /// is cut into some: it would be of all of them.
    pub(super) fn read(
        &self,
        past: &mut Past<'nvml>,
        is_cut: bool,
        now: Timestamp,
    ) -> Result<Read, Fault> {
        let mut read = Read::new(now);
        read.is_cut = is_cut;
        self.utilization(past, now, &mut read)?;
        self.memory(&mut read)?;
        let temperature =
            self.ask("its temperature", |device| device.temperature(TemperatureSensor::Gpu));
        read.put(Metric::Temperature, reading(temperature.map(f64::from))?);
        let counter = self.ask("its energy counter", Device::total_energy_consumption).ok();
        read.joules = counter.map(|millijoules| millijoules as f64 / 1_000.0);
        read.put(Metric::PowerDraw, self.power(&mut past.energy, counter, now)?);
        let clock = self.ask("its SM clock", |device| device.clock_info(Clock::SM));
        read.put(Metric::SmClockMhz, reading(clock.map(f64::from))?);
        let throttled =
            self.clocks().map(|reasons| past.throttled.percent(held_down_by(reasons), now));
        if throttled.is_ok() {
            read.throttled = past.throttled.by_reason();
        }
        read.put(Metric::ThrottledPercent, reading(throttled)?);
        if is_cut {
            past.gpm = Gpm::default();
        } else {
            past.gpm.read(self, Of::Whole, now, &mut read)?;
            read.processes = past.processes.read(self, None, now)?;
        }
        Ok(read)
    }

    /// The mean of the driver's samples since the last reading, or else its last single look.
    fn utilization(
        &self,
        past: &mut Past<'nvml>,
        now: Timestamp,
        read: &mut Read,
    ) -> Result<(), Fault> {
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

    fn power(
        &self,
        energy: &mut Energy,
        counter: Option<u64>,
        now: Timestamp,
    ) -> Result<Reading, Fault> {
        if let Some(watts) = counter.and_then(|counter| energy.watts(counter, now)) {
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
    pub(super) fn ask<T>(
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
        if matches!(answer, Err(NvmlError::InvalidArg | NvmlError::NotFound)) {
            self.is_refused.set(true);
        }
        if let Err(error) = &answer
            && is_absent(error)
        {
            let in_library = !matches!(error, NvmlError::NotSupported);
            self.absent.borrow_mut().push((what, in_library));
        }
        answer
    }
}

/// Whether it can be the key of a device.
pub(super) fn is_uuid(text: &str) -> bool {
    !text.is_empty() && !text.chars().any(|c| c.is_control() || c.is_whitespace())
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

fn number(value: &SampleValue) -> f64 {
    match value {
        SampleValue::F64(value) => *value,
        SampleValue::U32(value) => f64::from(*value),
        SampleValue::U64(value) => *value as f64,
        SampleValue::I64(value) => *value as f64,
    }
}
