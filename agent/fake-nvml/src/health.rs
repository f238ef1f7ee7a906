//! What is the matter with a GPU: memory errors, rows that were replaced, what the driver wants
//! done.

#![expect(unsafe_code, reason = "this is NVML's C interface")]

use std::ffi::{c_int, c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings::{
    field_id::NVML_FI_DEV_GET_GPU_RECOVERY_ACTION as RECOVERY_ACTION, nvmlDevice_t,
    nvmlFieldValue_t, nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT,
    nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED as NOT_SUPPORTED,
    nvmlReturn_enum_NVML_SUCCESS as SUCCESS, nvmlReturn_t, nvmlValue_t,
    nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT as UNSIGNED_INT,
};

use crate::gate::{code, device as on, put, supported};

/// Kinds of memory errors, and since when they are counted.
const UNCORRECTED: c_uint = 1;
const COUNTERS: c_uint = 2;

/// Memory errors, since the driver was loaded or in the GPU's whole life.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetTotalEccErrors(
    device: nvmlDevice_t,
    kind: c_uint,
    counter: c_uint,
    count: *mut c_ulonglong,
) -> nvmlReturn_t {
    code((|| {
        let chosen = on("nvmlDeviceGetTotalEccErrors", device)?;
        if kind > UNCORRECTED || counter >= COUNTERS {
            return Err(INVALID_ARGUMENT);
        }
        let uncorrected = supported(chosen.whole()?.ecc)?;
        // Nothing here asks for those that were corrected.
        if kind != UNCORRECTED {
            return Err(NOT_SUPPORTED);
        }
        put(count, supported(uncorrected[counter as usize])?)
    })())
}

/// Rows of memory that were replaced, that are to be, and whether that failed.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetRemappedRows(
    device: nvmlDevice_t,
    correctable: *mut c_uint,
    uncorrectable: *mut c_uint,
    pending: *mut c_uint,
    failed: *mut c_uint,
) -> nvmlReturn_t {
    code((|| {
        let chosen = on("nvmlDeviceGetRemappedRows", device)?;
        let rows = supported(chosen.whole()?.remapped_rows)?;
        for (target, value) in [correctable, uncorrectable, pending, failed].into_iter().zip(rows) {
            put(target, value)?;
        }
        Ok(())
    })())
}

/// Fields by number; each has a result of its own.
///
/// # Safety
/// `fields` is null or points to as many fields as `count` says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvmlDeviceGetFieldValues(
    device: nvmlDevice_t,
    count: c_int,
    fields: *mut nvmlFieldValue_t,
) -> nvmlReturn_t {
    code((|| {
        let chosen = on("nvmlDeviceGetFieldValues", device)?;
        let count = usize::try_from(count).map_err(|_| INVALID_ARGUMENT)?;
        if fields.is_null() || count == 0 {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: the caller vouches for a pointer that is not null.
        let fields = unsafe { std::slice::from_raw_parts_mut(fields, count) };
        for field in fields {
            let action = chosen.gpu().recovery_action.filter(|_| field.fieldId == RECOVERY_ACTION);
            field.valueType = UNSIGNED_INT;
            field.nvmlReturn = if action.is_some() { SUCCESS } else { NOT_SUPPORTED };
            field.value = nvmlValue_t { uiVal: action.unwrap_or(0) };
        }
        Ok(())
    })())
}
