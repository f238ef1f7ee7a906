//! Functions on the library as a whole.

#![expect(unsafe_code, reason = "this is NVML's C interface")]

use std::ffi::{c_char, c_uint};
use std::sync::atomic::Ordering;

use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE as INSUFFICIENT_SIZE,
    nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT,
    nvmlReturn_enum_NVML_ERROR_NOT_FOUND as NOT_FOUND,
    nvmlReturn_enum_NVML_ERROR_UNINITIALIZED as UNINITIALIZED, nvmlReturn_t,
};

use crate::gate::{self, Outcome, USERS, code, put, supported};

/// Writes bytes and a NUL to a buffer of `length`.
pub(crate) fn write_text(target: *mut c_char, length: c_uint, text: &[u8]) -> Outcome<()> {
    if target.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    if (length as usize) <= text.len() {
        return Err(INSUFFICIENT_SIZE);
    }
    // SAFETY: the caller vouches for `length` bytes, and that is more than are written.
    unsafe {
        target.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), text.len());
        target.add(text.len()).write(0);
    }
    Ok(())
}

/// Starts the library for one more user.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlInit_v2() -> nvmlReturn_t {
    start("nvmlInit_v2")
}

/// The same, with flags that make no difference here.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlInitWithFlags(_flags: c_uint) -> nvmlReturn_t {
    start("nvmlInitWithFlags")
}

fn start(function: &str) -> nvmlReturn_t {
    code(gate::always(function).map(|_| {
        USERS.fetch_add(1, Ordering::SeqCst);
    }))
}

/// Ends the library for one user.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlShutdown() -> nvmlReturn_t {
    let less = |users: u32| users.checked_sub(1);
    let ended = USERS.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
    code(gate::always("nvmlShutdown").and(ended.map(drop).map_err(|_| UNINITIALIZED)))
}

/// Version of the driver.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlSystemGetDriverVersion(
    text: *mut c_char,
    length: c_uint,
) -> nvmlReturn_t {
    code((|| {
        let script = gate::library("nvmlSystemGetDriverVersion")?;
        write_text(text, length, supported(script.driver.as_ref())?.as_bytes())
    })())
}

/// How many GPUs there are.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetCount_v2(count: *mut c_uint) -> nvmlReturn_t {
    code((|| {
        let script = gate::library("nvmlDeviceGetCount_v2")?;
        put(count, c_uint::try_from(script.gpus.len()).unwrap_or(c_uint::MAX))
    })())
}

/// The GPU at an index.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetHandleByIndex_v2(
    index: c_uint,
    device: *mut nvmlDevice_t,
) -> nvmlReturn_t {
    code((|| {
        let chosen = gate::at("nvmlDeviceGetHandleByIndex_v2", index as usize)?;
        put(device, gate::handle(&chosen))
    })())
}

/// The GPU of a UUID.
///
/// # Safety
/// `uuid` is null or ends with a NUL.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvmlDeviceGetHandleByUUID(
    uuid: *const c_char,
    device: *mut nvmlDevice_t,
) -> nvmlReturn_t {
    code((|| {
        let script = gate::library("nvmlDeviceGetHandleByUUID")?;
        if uuid.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: the caller vouches for it.
        let uuid = unsafe { std::ffi::CStr::from_ptr(uuid) }.to_bytes();
        let index = script.gpus.iter().position(|gpu| gpu.uuid.bytes() == uuid);
        let chosen = gate::at("nvmlDeviceGetHandleByUUID", index.ok_or(NOT_FOUND)?)?;
        put(device, gate::handle(&chosen))
    })())
}
