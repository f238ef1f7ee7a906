//! The calls that nvml-wrapper does not have.

#![expect(unsafe_code, reason = "nvml-wrapper 0.13 does not wrap these three")]

use std::mem;

use nvml_wrapper::Device;
use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};

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
