//! Processes on a device, and how much of its time each has.

#![expect(unsafe_code, reason = "this is NVML's C interface")]

use std::ffi::{c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlProcessInfo_t, nvmlProcessUtilizationSample_t,
    nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE as INSUFFICIENT_SIZE,
    nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT,
    nvmlReturn_enum_NVML_ERROR_NO_PERMISSION as NO_PERMISSION,
    nvmlReturn_enum_NVML_ERROR_NOT_FOUND as NOT_FOUND, nvmlReturn_t,
};

use crate::device::{SAMPLE_EVERY_US, wall_clock_us};
use crate::gate::{Chosen, Outcome, code, device as on, put, supported};
use crate::script::{Gpu, Process};

/// Neither in a GPU instance nor in a compute instance.
const NONE: c_uint = c_uint::MAX;
/// Memory that is not available.
const NOT_AVAILABLE: c_ulonglong = c_ulonglong::MAX;

/// Processes with a compute context.
///
/// # Safety
/// `infos` is null or points to as many as `count` says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(
    device: nvmlDevice_t,
    count: *mut c_uint,
    infos: *mut nvmlProcessInfo_t,
) -> nvmlReturn_t {
    code((|| {
        let chosen = on("nvmlDeviceGetComputeRunningProcesses_v3", device)?;
        let processes =
            chosen.instance().map_or(&chosen.gpu().processes, |instance| &instance.processes);
        // SAFETY: the caller vouches for it.
        unsafe { write(count, infos, &listed(&chosen, processes.as_ref())?) }
    })())
}

/// Clients of the MPS server.
///
/// # Safety
/// `infos` is null or points to as many as `count` says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvmlDeviceGetMPSComputeRunningProcesses_v3(
    device: nvmlDevice_t,
    count: *mut c_uint,
    infos: *mut nvmlProcessInfo_t,
) -> nvmlReturn_t {
    code((|| {
        let chosen = on("nvmlDeviceGetMPSComputeRunningProcesses_v3", device)?;
        let clients = chosen.instance().map_or(&chosen.gpu().mps, |instance| &instance.mps);
        // SAFETY: the caller vouches for it.
        unsafe { write(count, infos, &listed(&chosen, clients.as_ref())?) }
    })())
}

/// Only whoever may manage MIG sees what runs on all instances at once.
fn listed(chosen: &Chosen, processes: Option<&Vec<Process>>) -> Outcome<Vec<nvmlProcessInfo_t>> {
    if chosen.instance().is_none() && chosen.gpu().is_cut() {
        return Err(NO_PERMISSION);
    }
    let ids = chosen.instance().map_or((NONE, NONE), |instance| (instance.gi, instance.ci));
    let info = |process: &Process| nvmlProcessInfo_t {
        pid: process.pid,
        usedGpuMemory: process.memory.unwrap_or(NOT_AVAILABLE),
        gpuInstanceId: ids.0,
        computeInstanceId: ids.1,
    };
    Ok(supported(processes)?.iter().map(info).collect())
}

/// What each process used of a GPU's time after a time stamp; none is not found.
///
/// # Safety
/// `samples` is null or points to as many as `count` says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvmlDeviceGetProcessUtilization(
    device: nvmlDevice_t,
    samples: *mut nvmlProcessUtilizationSample_t,
    count: *mut c_uint,
    last_seen: c_ulonglong,
) -> nvmlReturn_t {
    code((|| {
        let chosen = on("nvmlDeviceGetProcessUtilization", device)?;
        let mut used = used(chosen.uncut()?)?;
        used.retain(|sample| sample.timeStamp > last_seen);
        if used.is_empty() {
            return Err(NOT_FOUND);
        }
        // SAFETY: the caller vouches for it.
        unsafe { write(count, samples, &used) }
    })())
}

fn used(gpu: &Gpu) -> Outcome<Vec<nvmlProcessUtilizationSample_t>> {
    let sample = |pid: u32, stamp, sm: u32, memory: u32| nvmlProcessUtilizationSample_t {
        pid,
        timeStamp: stamp,
        smUtil: sm,
        memUtil: memory,
        encUtil: 0,
        decUtil: 0,
    };
    if let Some(samples) = &gpu.process_samples {
        let sample = |&[pid, stamp, sm, memory]: &[u64; 4]| {
            sample(pid as u32, stamp, sm as u32, memory as u32)
        };
        return Ok(samples.iter().map(sample).collect());
    }
    let stamp = wall_clock_us() / SAMPLE_EVERY_US * SAMPLE_EVERY_US;
    let used = supported(gpu.process_utilization.as_ref())?.iter();
    let used = used.filter(|[_, sm, memory]| *sm + *memory > 0);
    Ok(used.map(|&[pid, sm, memory]| sample(pid, stamp, sm, memory)).collect())
}

/// Writes a list, or how long it is where there is not room for it.
///
/// # Safety
/// `target` is null or points to as many as `count` says.
unsafe fn write<T: Copy>(count: *mut c_uint, target: *mut T, list: &[T]) -> Outcome<()> {
    // SAFETY: the caller vouches for a pointer that is not null.
    let room = unsafe { count.as_ref() }.copied().ok_or(INVALID_ARGUMENT)?;
    put(count, list.len() as c_uint)?;
    if list.is_empty() {
        return Ok(());
    }
    if target.is_null() || (room as usize) < list.len() {
        return Err(INSUFFICIENT_SIZE);
    }
    for (place, entry) in list.iter().enumerate() {
        // SAFETY: `place` is below `room`, which the caller vouches for.
        put(unsafe { target.add(place) }, *entry)?;
    }
    Ok(())
}
