//! GPM: samples of counters, and metrics over the time between two of them.

#![expect(unsafe_code, reason = "this is NVML's C interface")]

use std::collections::HashMap;
use std::ffi::c_uint;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use nvml_wrapper_sys::bindings::{
    NVML_GPM_METRICS_GET_VERSION, NVML_GPM_SUPPORT_VERSION, nvmlDevice_t, nvmlGpmMetricsGet_t,
    nvmlGpmSample_t, nvmlGpmSupport_t,
    nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH as VERSION_MISMATCH,
    nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT,
    nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED as NOT_SUPPORTED,
    nvmlReturn_enum_NVML_SUCCESS as SUCCESS, nvmlReturn_t,
};
use parking_lot::Mutex;

use crate::gate::{self, Chosen, Outcome, code, device as on, put, supported};

/// Two samples have to be further apart.
const APART: Duration = Duration::from_millis(100);

/// The counters of a GPU, or of an instance, at a moment.
#[derive(Clone)]
struct Sample {
    at: Instant,
    values: HashMap<u32, f64>,
}

/// Samples by number; one that was not taken yet is empty.
#[derive(Default)]
struct Samples {
    made: usize,
    samples: HashMap<usize, Option<Sample>>,
}

static SAMPLES: LazyLock<Mutex<Samples>> = LazyLock::new(Mutex::default);

/// Whether there is GPM.
///
/// # Safety
/// `support` is null or points to the struct that its version word says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvmlGpmQueryDeviceSupport(
    device: nvmlDevice_t,
    support: *mut nvmlGpmSupport_t,
) -> nvmlReturn_t {
    code((|| {
        let chosen = on("nvmlGpmQueryDeviceSupport", device)?;
        // SAFETY: the caller vouches for a pointer that is not null.
        let version = unsafe { support.as_ref() }.ok_or(INVALID_ARGUMENT)?.version;
        if version != NVML_GPM_SUPPORT_VERSION {
            return Err(VERSION_MISMATCH);
        }
        let is_supported = c_uint::from(chosen.gpu().gpm.is_some());
        put(support, nvmlGpmSupport_t { version, isSupportedDevice: is_supported })
    })())
}

/// Makes an empty sample.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlGpmSampleAlloc(sample: *mut nvmlGpmSample_t) -> nvmlReturn_t {
    code((|| {
        gate::library("nvmlGpmSampleAlloc")?;
        let mut samples = SAMPLES.lock();
        samples.made += 1;
        let made = samples.made;
        samples.samples.insert(made, None);
        put(sample, made as nvmlGpmSample_t)
    })())
}

/// Ends a sample.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlGpmSampleFree(sample: nvmlGpmSample_t) -> nvmlReturn_t {
    code((|| {
        gate::library("nvmlGpmSampleFree")?;
        SAMPLES.lock().samples.remove(&(sample as usize)).map(drop).ok_or(INVALID_ARGUMENT)
    })())
}

/// Takes the counters of a device.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlGpmSampleGet(
    device: nvmlDevice_t,
    sample: nvmlGpmSample_t,
) -> nvmlReturn_t {
    code((|| {
        let chosen = on("nvmlGpmSampleGet", device)?;
        let values = match chosen.instance() {
            Some(instance) => supported(chosen.gpu().gpm.as_ref().and(instance.gpm.as_ref()))?,
            None => supported(chosen.gpu().gpm.as_ref())?,
        };
        fill(sample, values)
    })())
}

/// Takes the counters of a GPU instance.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlGpmMigSampleGet(
    device: nvmlDevice_t,
    gpu_instance: c_uint,
    sample: nvmlGpmSample_t,
) -> nvmlReturn_t {
    code((|| {
        let chosen = on("nvmlGpmMigSampleGet", device)?;
        fill(sample, of_gpu_instance(&chosen, gpu_instance)?)
    })())
}

fn of_gpu_instance(chosen: &Chosen, id: u32) -> Outcome<&HashMap<u32, f64>> {
    let gpu = chosen.whole()?;
    supported(gpu.gpm.as_ref())?;
    let instance = gpu.instances.iter().find(|instance| instance.gi == id);
    supported(instance.ok_or(INVALID_ARGUMENT)?.gpm.as_ref())
}

#[expect(clippy::disallowed_methods, reason = "samples are taken when they are asked for")]
fn fill(sample: nvmlGpmSample_t, values: &HashMap<u32, f64>) -> Outcome<()> {
    let mut samples = SAMPLES.lock();
    let place = samples.samples.get_mut(&(sample as usize)).ok_or(INVALID_ARGUMENT)?;
    *place = Some(Sample { at: Instant::now(), values: values.clone() });
    Ok(())
}

/// Metrics over the time between two samples: the mean of what was so at its ends, whoever's they
/// are.
///
/// # Safety
/// `asked` is null or points to the struct that its version word says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvmlGpmMetricsGet(asked: *mut nvmlGpmMetricsGet_t) -> nvmlReturn_t {
    code((|| {
        gate::library("nvmlGpmMetricsGet")?;
        // SAFETY: the caller vouches for a pointer that is not null.
        let asked = unsafe { asked.as_mut() }.ok_or(INVALID_ARGUMENT)?;
        if asked.version != NVML_GPM_METRICS_GET_VERSION {
            return Err(VERSION_MISMATCH);
        }
        let [first, last] = [taken(asked.sample1)?, taken(asked.sample2)?];
        let count = asked.numMetrics as usize;
        if count > asked.metrics.len() || last.at.saturating_duration_since(first.at) <= APART {
            return Err(INVALID_ARGUMENT);
        }
        for metric in &mut asked.metrics[..count] {
            let id = metric.metricId;
            let ends = first.values.get(&id).zip(last.values.get(&id));
            metric.nvmlReturn = if ends.is_some() { SUCCESS } else { NOT_SUPPORTED };
            metric.value = ends.map_or(0.0, |(first, last)| f64::midpoint(*first, *last));
        }
        Ok(())
    })())
}

fn taken(sample: nvmlGpmSample_t) -> Outcome<Sample> {
    SAMPLES.lock().samples.get(&(sample as usize)).cloned().flatten().ok_or(INVALID_ARGUMENT)
}
