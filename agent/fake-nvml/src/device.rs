//! Functions on one GPU.

#![expect(unsafe_code, reason = "this is NVML's C interface")]

use std::ffi::{c_char, c_uint, c_ulonglong};
use std::sync::LazyLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlMemory_t, nvmlMemory_v2_t,
    nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH as VERSION_MISMATCH,
    nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE as INSUFFICIENT_SIZE,
    nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT,
    nvmlReturn_enum_NVML_ERROR_NOT_FOUND as NOT_FOUND,
    nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED as NOT_SUPPORTED, nvmlReturn_t, nvmlSample_t,
    nvmlSamplingType_enum_NVML_GPU_UTILIZATION_SAMPLES as GPU_SAMPLES,
    nvmlSamplingType_enum_NVML_MEMORY_UTILIZATION_SAMPLES as MEMORY_SAMPLES, nvmlUtilization_t,
    nvmlValue_t, nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT as UNSIGNED_INT,
};

use crate::gate::{Chosen, Outcome, code, device as on, put, supported};
use crate::library::write_text;
use crate::script::Gpu;

/// Window that PCIe traffic is counted over.
const PCIE_WINDOW: Duration = Duration::from_millis(20);
/// Time between two samples of the generated ring, and how many it holds.
pub(crate) const SAMPLE_EVERY_US: u64 = 1_000_000 / 6;
const RING: u64 = 100;

/// Steps of the energy counter in a second.
const TICKS: f64 = 10.0;

/// Functions that find one value and write it.
macro_rules! getters {
    ($($(#[$doc:meta])* $function:ident -> $type:ty = |$chosen:ident| $value:expr;)*) => { $(
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub(crate) extern "C" fn $function(device: nvmlDevice_t, value: *mut $type) -> nvmlReturn_t {
            code((|| {
                let $chosen = on(stringify!($function), device)?;
                put(value, supported($value)?)
            })())
        }
    )* };
}

getters! {
    /// Utilisation of the last sample.
    nvmlDeviceGetUtilizationRates -> nvmlUtilization_t = |chosen|
        chosen.uncut()?.utilization.map(|[gpu, memory]| nvmlUtilization_t { gpu, memory });
    /// Memory as old drivers count it: what is reserved is used.
    nvmlDeviceGetMemoryInfo -> nvmlMemory_t = |chosen| memory_of(&chosen).map(|[total, reserved, used]| {
        let used = used + reserved;
        nvmlMemory_t { total, free: total.saturating_sub(used), used }
    });
    /// Milliwatts.
    nvmlDeviceGetPowerUsage -> c_uint = |chosen| chosen.gpu().power;
    /// Millijoules since this library was loaded, in steps as of a real counter.
    nvmlDeviceGetTotalEnergyConsumption -> c_ulonglong =
        |chosen| {
            let grown = |milliwatts| (milliwatts * energy_ticks() / TICKS) as u64;
            chosen.gpu().energy.or(chosen.gpu().energy_rate.map(grown))
        };
    /// Bits, under their old name.
    nvmlDeviceGetCurrentClocksThrottleReasons -> c_ulonglong = |chosen| chosen.gpu().throttle;
    /// Bits, under their new name.
    nvmlDeviceGetCurrentClocksEventReasons -> c_ulonglong = |chosen| chosen.gpu().throttle;
    /// Kinds of events.
    nvmlDeviceGetSupportedEventTypes -> c_ulonglong =
        |chosen| Some(chosen.gpu().event_types.unwrap_or(crate::events::DEFAULT_TYPES));
}

/// UUID.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetUUID(
    device: nvmlDevice_t,
    text: *mut c_char,
    length: c_uint,
) -> nvmlReturn_t {
    code(on("nvmlDeviceGetUUID", device).and_then(|chosen| {
        let uuid = chosen.instance().map_or(&chosen.gpu().uuid, |instance| &instance.uuid);
        write_text(text, length, uuid.bytes())
    }))
}

/// Product name.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetName(
    device: nvmlDevice_t,
    text: *mut c_char,
    length: c_uint,
) -> nvmlReturn_t {
    code(on("nvmlDeviceGetName", device).and_then(|chosen| {
        let name = chosen.instance().map_or(&chosen.gpu().name, |instance| &instance.name);
        write_text(text, length, name.bytes())
    }))
}

/// NVML index.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetIndex(
    device: nvmlDevice_t,
    index: *mut c_uint,
) -> nvmlReturn_t {
    code(on("nvmlDeviceGetIndex", device).and_then(|chosen| put(index, chosen.index() as c_uint)))
}

/// The N of `/dev/nvidiaN`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetMinorNumber(
    device: nvmlDevice_t,
    minor: *mut c_uint,
) -> nvmlReturn_t {
    code((|| {
        let chosen = on("nvmlDeviceGetMinorNumber", device)?;
        put(minor, chosen.whole()?.minor.unwrap_or(chosen.index() as c_uint))
    })())
}

/// Of an instance its own, else of the GPU.
fn memory_of(chosen: &Chosen) -> Option<[u64; 3]> {
    chosen.instance().map_or(chosen.gpu().memory, |instance| instance.memory)
}

/// Memory as drivers from 510 on count it.
///
/// # Safety
/// `memory` is null or points to the struct that its version word says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvmlDeviceGetMemoryInfo_v2(
    device: nvmlDevice_t,
    memory: *mut nvmlMemory_v2_t,
) -> nvmlReturn_t {
    code((|| {
        let chosen = on("nvmlDeviceGetMemoryInfo_v2", device)?;
        // SAFETY: the caller vouches for a pointer that is not null.
        let version = unsafe { memory.as_ref() }.ok_or(INVALID_ARGUMENT)?.version;
        if version as usize != size_of::<nvmlMemory_v2_t>() | 2 << 24 {
            return Err(VERSION_MISMATCH);
        }
        let [total, reserved, used] = supported(memory_of(&chosen))?;
        let free = total.saturating_sub(reserved + used);
        put(memory, nvmlMemory_v2_t { version, total, reserved, free, used })
    })())
}

/// Degrees Celsius.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetTemperature(
    device: nvmlDevice_t,
    sensor: c_uint,
    value: *mut c_uint,
) -> nvmlReturn_t {
    code((|| {
        let chosen = on("nvmlDeviceGetTemperature", device)?;
        if sensor != 0 {
            return Err(INVALID_ARGUMENT);
        }
        put(value, supported(chosen.gpu().temperature)?)
    })())
}

/// Megahertz.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetClockInfo(
    device: nvmlDevice_t,
    clock: c_uint,
    value: *mut c_uint,
) -> nvmlReturn_t {
    code((|| {
        let chosen = on("nvmlDeviceGetClockInfo", device)?;
        if clock > 3 {
            return Err(INVALID_ARGUMENT);
        }
        put(value, supported(chosen.gpu().clock)?)
    })())
}

/// KB/s over the last 20 ms, which it waits for.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetPcieThroughput(
    device: nvmlDevice_t,
    counter: c_uint,
    value: *mut c_uint,
) -> nvmlReturn_t {
    code((|| {
        let chosen = on("nvmlDeviceGetPcieThroughput", device)?;
        let traffic = supported(chosen.gpu().pcie)?;
        let value_read = traffic.get(counter as usize).ok_or(INVALID_ARGUMENT)?;
        std::thread::sleep(PCIE_WINDOW);
        put(value, *value_read)
    })())
}

/// The ring of samples after a time stamp.
///
/// # Safety
/// `samples` is null or points to as many samples as `count` says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvmlDeviceGetSamples(
    device: nvmlDevice_t,
    kind: c_uint,
    last_seen: c_ulonglong,
    value_type: *mut c_uint,
    count: *mut c_uint,
    samples: *mut nvmlSample_t,
) -> nvmlReturn_t {
    code((|| {
        let chosen = on("nvmlDeviceGetSamples", device)?;
        let mut ring = ring(chosen.uncut()?, kind)?;
        ring.retain(|(stamp, _)| *stamp > last_seen);
        if ring.is_empty() {
            return Err(NOT_FOUND);
        }
        put(value_type, chosen.gpu().sample_type.unwrap_or(UNSIGNED_INT))?;
        // SAFETY: the caller vouches for a pointer that is not null.
        let room = unsafe { count.as_ref() }.copied().ok_or(INVALID_ARGUMENT)?;
        put(count, ring.len() as c_uint)?;
        if samples.is_null() {
            return Ok(());
        }
        if (room as usize) < ring.len() {
            return Err(INSUFFICIENT_SIZE);
        }
        for (place, (stamp, value)) in ring.into_iter().enumerate() {
            let sample =
                nvmlSample_t { timeStamp: stamp, sampleValue: nvmlValue_t { ullVal: value } };
            // SAFETY: `place` is below `room`, which the caller vouches for.
            put(unsafe { samples.add(place) }, sample)?;
        }
        Ok(())
    })())
}

/// Time stamps and values, oldest first.
fn ring(gpu: &Gpu, kind: c_uint) -> Outcome<Vec<(u64, u64)>> {
    let which = match kind {
        GPU_SAMPLES => 0,
        MEMORY_SAMPLES => 1,
        _ => return Err(NOT_SUPPORTED),
    };
    if let Some(samples) = &gpu.samples {
        return Ok(samples.iter().map(|sample| (sample[0], sample[1 + which])).collect());
    }
    let value = u64::from(supported(gpu.utilization)?[which]);
    let newest = wall_clock_us() / SAMPLE_EVERY_US;
    Ok((newest - RING + 1..=newest).map(|step| (step * SAMPLE_EVERY_US, value)).collect())
}

#[expect(clippy::disallowed_methods, reason = "the driver stamps samples with the wall clock")]
pub(crate) fn wall_clock_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

#[expect(clippy::disallowed_methods, reason = "the energy counter runs by itself")]
fn energy_ticks() -> f64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    (START.elapsed().as_secs_f64() * TICKS).floor()
}
