//! MIG: the mode, the sparse slots, and what only an instance has.

#![expect(unsafe_code, reason = "this is NVML's C interface")]

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlDeviceAttributes_t,
    nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT,
    nvmlReturn_enum_NVML_ERROR_NOT_FOUND as NOT_FOUND, nvmlReturn_t,
};

use crate::gate::{self, Outcome, code, device as on, put, supported};
use crate::script::Instance;

/// Instances that a GPU can be cut into.
const SLOTS: u32 = 7;

/// Whether the GPU is cut into instances, now and after the next reset.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetMigMode(
    device: nvmlDevice_t,
    current: *mut c_uint,
    pending: *mut c_uint,
) -> nvmlReturn_t {
    code((|| {
        let chosen = on("nvmlDeviceGetMigMode", device)?;
        let [now, then] = supported(chosen.whole()?.mig)?;
        put(current, now)?;
        put(pending, then)
    })())
}

/// How many slots there are; not all of them are in use.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetMaxMigDeviceCount(
    device: nvmlDevice_t,
    count: *mut c_uint,
) -> nvmlReturn_t {
    code((|| {
        let chosen = on("nvmlDeviceGetMaxMigDeviceCount", device)?;
        let slots = chosen.whole()?.mig.map_or(0, |_| SLOTS);
        put(count, slots)
    })())
}

/// The instance in a slot.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetMigDeviceHandleByIndex(
    device: nvmlDevice_t,
    slot: c_uint,
    instance: *mut nvmlDevice_t,
) -> nvmlReturn_t {
    code((|| {
        let function = "nvmlDeviceGetMigDeviceHandleByIndex";
        let chosen = on(function, device)?;
        if !chosen.whole()?.is_cut() || slot >= SLOTS {
            return Err(INVALID_ARGUMENT);
        }
        if !chosen.gpu().instances.iter().any(|instance| instance.slot == slot) {
            return Err(NOT_FOUND);
        }
        put(instance, gate::handle(&gate::instance_at(function, chosen.index(), slot)?))
    })())
}

/// Whether a handle is that of an instance.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceIsMigDeviceHandle(
    device: nvmlDevice_t,
    is_instance: *mut c_uint,
) -> nvmlReturn_t {
    code((|| {
        let chosen = on("nvmlDeviceIsMigDeviceHandle", device)?;
        put(is_instance, c_uint::from(chosen.instance().is_some()))
    })())
}

/// The GPU of an instance.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(
    instance: nvmlDevice_t,
    device: *mut nvmlDevice_t,
) -> nvmlReturn_t {
    code((|| {
        let function = "nvmlDeviceGetDeviceHandleFromMigDeviceHandle";
        let chosen = on(function, instance)?;
        chosen.instance().ok_or(INVALID_ARGUMENT)?;
        put(device, gate::handle(&gate::at(function, chosen.index())?))
    })())
}

/// The GPU instance of an instance.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetGpuInstanceId(
    device: nvmlDevice_t,
    id: *mut c_uint,
) -> nvmlReturn_t {
    code(of_instance("nvmlDeviceGetGpuInstanceId", device, |it| put(id, it.gi)))
}

/// The compute instance of an instance.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetComputeInstanceId(
    device: nvmlDevice_t,
    id: *mut c_uint,
) -> nvmlReturn_t {
    code(of_instance("nvmlDeviceGetComputeInstanceId", device, |it| put(id, it.ci)))
}

/// The size of an instance.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetAttributes_v2(
    device: nvmlDevice_t,
    attributes: *mut nvmlDeviceAttributes_t,
) -> nvmlReturn_t {
    code(of_instance("nvmlDeviceGetAttributes_v2", device, |it| {
        let [gpu_slices, compute_slices, mib] = supported(it.attributes)?;
        let size = nvmlDeviceAttributes_t {
            multiprocessorCount: 14 * compute_slices,
            sharedCopyEngineCount: gpu_slices,
            sharedDecoderCount: 0,
            sharedEncoderCount: 0,
            sharedJpegCount: 0,
            sharedOfaCount: 0,
            gpuInstanceSliceCount: gpu_slices,
            computeInstanceSliceCount: compute_slices,
            memorySizeMB: mib.into(),
        };
        put(attributes, size)
    }))
}

fn of_instance(
    function: &str,
    device: nvmlDevice_t,
    write: impl FnOnce(&Instance) -> Outcome<()>,
) -> Outcome<()> {
    on(function, device).and_then(|chosen| write(chosen.instance().ok_or(INVALID_ARGUMENT)?))
}
