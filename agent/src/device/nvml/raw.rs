//! The calls that nvml-wrapper does not have, or makes twice where once is enough.
//!
//! Guarantees: nothing is written beyond the room that the driver is told of, and nothing is read
//! beyond what it says it wrote.

#![expect(unsafe_code, reason = "nvml-wrapper 0.13 does not wrap these as they are needed here")]

use std::mem;

use nvml_wrapper::Device;
use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};

/// Memory that the driver cannot tell.
const NOT_AVAILABLE: u64 = u64::MAX;
/// The id of no instance.
const NO_INSTANCE: u32 = u32::MAX;

/// A list of processes.
#[derive(Clone, Copy)]
pub(super) enum List {
    /// With a compute context of their own.
    Compute,
    /// Clients of the MPS server.
    Mps,
}

/// A process that has a context on a device.
pub(super) struct Process {
    pub(super) pid: u32,
    pub(super) bytes: Option<u64>,
    /// GPU instance and compute instance.
    pub(super) instance: Option<(u32, u32)>,
}

/// What one process used of a device's time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Used {
    pub(super) pid: u32,
    /// µs, of the driver's clock.
    pub(super) stamp: u64,
    /// Of the time of the SMs.
    pub(super) percent: u32,
}

/// A list of processes, if it has no more than `room`; else `InsufficientSize` says how much it
/// needs.
pub(super) fn processes(
    device: &Device<'_>,
    list: List,
    room: usize,
) -> Result<Vec<Process>, NvmlError> {
    let library = device.nvml().lib();
    let symbol = nvml_sym(match list {
        List::Compute => library.nvmlDeviceGetComputeRunningProcesses_v3.as_ref(),
        List::Mps => library.nvmlDeviceGetMPSComputeRunningProcesses_v3.as_ref(),
    })?;
    let mut count = u32::try_from(room).unwrap_or(u32::MAX);
    // SAFETY: the struct is plain numbers.
    let mut found = vec![unsafe { mem::zeroed() }; count as usize];
    // SAFETY: the handle is the device's own, and there is room for as many as `count` says.
    let code = unsafe { symbol(device.handle(), &raw mut count, found.as_mut_ptr()) };
    nvml_try(code).map_err(|error| with_need(error, count))?;
    found.truncate(count as usize);
    let processes = found.into_iter().map(|info| Process {
        pid: info.pid,
        bytes: Some(info.usedGpuMemory).filter(|bytes| *bytes != NOT_AVAILABLE),
        instance: Some((info.gpuInstanceId, info.computeInstanceId))
            .filter(|(gpu, compute)| *gpu != NO_INSTANCE && *compute != NO_INSTANCE),
    });
    Ok(processes.collect())
}

/// What each process used since the time stamp `after`, if they are no more than `room`; else
/// `InsufficientSize` says how much it needs.
pub(super) fn process_utilization(
    device: &Device<'_>,
    after: u64,
    room: usize,
) -> Result<Vec<Used>, NvmlError> {
    let symbol = nvml_sym(device.nvml().lib().nvmlDeviceGetProcessUtilization.as_ref())?;
    let mut count = u32::try_from(room).unwrap_or(u32::MAX);
    // SAFETY: the struct is plain numbers.
    let mut found = vec![unsafe { mem::zeroed() }; count as usize];
    // SAFETY: the handle is the device's own, and there is room for as many as `count` says.
    let code = unsafe { symbol(device.handle(), found.as_mut_ptr(), &raw mut count, after) };
    nvml_try(code).map_err(|error| with_need(error, count))?;
    found.truncate(count as usize);
    let used = found.into_iter();
    Ok(used.map(|it| Used { pid: it.pid, stamp: it.timeStamp, percent: it.smUtil }).collect())
}

fn with_need(error: NvmlError, need: u32) -> NvmlError {
    match error {
        NvmlError::InsufficientSize(_) => NvmlError::InsufficientSize(Some(need as usize)),
        other => other,
    }
}

/// GPU instance and compute instance that a MIG device is.
pub(super) fn instance_ids(device: &Device<'_>) -> Result<(u32, u32), NvmlError> {
    let library = device.nvml().lib();
    let gpu_instance = nvml_sym(library.nvmlDeviceGetGpuInstanceId.as_ref())?;
    let compute_instance = nvml_sym(library.nvmlDeviceGetComputeInstanceId.as_ref())?;
    let (mut gpu, mut compute) = (0, 0);
    // SAFETY: the handle is the device's own, the numbers outlive the calls.
    unsafe {
        nvml_try(gpu_instance(device.handle(), &raw mut gpu))?;
        nvml_try(compute_instance(device.handle(), &raw mut compute))?;
    }
    Ok((gpu, compute))
}

/// Total and used bytes as drivers before 510 count them: what is reserved is used.
pub(super) fn memory_v1(device: &Device<'_>) -> Result<(u64, u64), NvmlError> {
    let symbol = nvml_sym(device.nvml().lib().nvmlDeviceGetMemoryInfo.as_ref())?;
    // SAFETY: the handle is the device's own, the struct is plain numbers and outlives the call.
    let memory = unsafe {
        let mut memory = mem::zeroed();
        nvml_try(symbol(device.handle(), &raw mut memory))?;
        memory
    };
    Ok((memory.total, memory.used))
}

/// Whether rows of the memory wait to be replaced, and whether one could not be.
pub(super) fn remapped_rows(device: &Device<'_>) -> Result<(bool, bool), NvmlError> {
    let symbol = nvml_sym(device.nvml().lib().nvmlDeviceGetRemappedRows.as_ref())?;
    let (mut correctable, mut uncorrectable, mut pending, mut failed) = (0, 0, 0, 0);
    // SAFETY: the handle is the device's own, the numbers outlive the call.
    let code = unsafe {
        symbol(
            device.handle(),
            &raw mut correctable,
            &raw mut uncorrectable,
            &raw mut pending,
            &raw mut failed,
        )
    };
    nvml_try(code)?;
    Ok((pending != 0, failed != 0))
}

/// Why the clocks are held down, under the name that newer drivers give it.
pub(super) fn clocks_event_reasons(device: &Device<'_>) -> Result<u64, NvmlError> {
    let symbol = nvml_sym(device.nvml().lib().nvmlDeviceGetCurrentClocksEventReasons.as_ref())?;
    let mut reasons = 0;
    // SAFETY: the handle is the device's own, the number outlives the call.
    nvml_try(unsafe { symbol(device.handle(), &raw mut reasons) })?;
    Ok(reasons)
}

/// What tells a device from the others for as long as the library is open.
pub(super) fn handle(device: &Device<'_>) -> usize {
    // SAFETY: the handle is only compared.
    unsafe { device.handle() as usize }
}
