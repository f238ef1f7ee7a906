//! Event sets: made, filled, waited on, freed.

#![expect(unsafe_code, reason = "this is NVML's C interface")]

use std::collections::HashMap;
use std::ffi::{c_uint, c_ulonglong};
use std::sync::LazyLock;
use std::time::Duration;

use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlEventData_t, nvmlEventSet_t,
    nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT,
    nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED as NOT_SUPPORTED,
    nvmlReturn_enum_NVML_ERROR_TIMEOUT as TIMEOUT, nvmlReturn_t,
};
use parking_lot::Mutex;

use crate::gate::{self, code, put};
use crate::script::Event;

/// XID, double-bit ECC error.
pub(crate) const DEFAULT_TYPES: u64 = 0x8 | 0x2;

/// How often a wait looks at the script.
const STEP: Duration = Duration::from_millis(50);

/// Sets, each with the kinds of events it wants of each GPU.
#[derive(Default)]
struct Sets {
    made: usize,
    sets: HashMap<usize, HashMap<usize, u64>>,
    /// How many of the script's events were delivered.
    delivered: usize,
}

static SETS: LazyLock<Mutex<Sets>> = LazyLock::new(Mutex::default);

/// Makes an empty set.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlEventSetCreate(set: *mut nvmlEventSet_t) -> nvmlReturn_t {
    code((|| {
        gate::library("nvmlEventSetCreate")?;
        let mut sets = SETS.lock();
        sets.made += 1;
        let made = sets.made;
        sets.sets.insert(made, HashMap::new());
        put(set, made as nvmlEventSet_t)
    })())
}

/// Adds a GPU to a set.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceRegisterEvents(
    device: nvmlDevice_t,
    kinds: c_ulonglong,
    set: nvmlEventSet_t,
) -> nvmlReturn_t {
    code((|| {
        let chosen = gate::device("nvmlDeviceRegisterEvents", device)?;
        if kinds & !chosen.gpu().event_types.unwrap_or(DEFAULT_TYPES) != 0 {
            return Err(NOT_SUPPORTED);
        }
        let mut sets = SETS.lock();
        let wanted = sets.sets.get_mut(&(set as usize)).ok_or(INVALID_ARGUMENT)?;
        *wanted.entry(chosen.index()).or_default() |= kinds;
        Ok(())
    })())
}

/// Waits for the next event of a set.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlEventSetWait_v2(
    set: nvmlEventSet_t,
    data: *mut nvmlEventData_t,
    timeout_ms: c_uint,
) -> nvmlReturn_t {
    code((|| {
        let mut left = Duration::from_millis(timeout_ms.into());
        loop {
            let script = gate::library("nvmlEventSetWait_v2")?;
            let mut sets = SETS.lock();
            let wanted = sets.sets.get(&(set as usize)).ok_or(INVALID_ARGUMENT)?.clone();
            while let Some(event) = script.events.get(sets.delivered) {
                sets.delivered += 1;
                if wanted.get(&event.gpu).is_some_and(|kinds| kinds & event.kind != 0) {
                    let device = gate::handle(&gate::at("nvmlEventSetWait_v2", event.gpu)?);
                    return put(data, raw(device, event));
                }
            }
            drop(sets);
            if left.is_zero() {
                return Err(TIMEOUT);
            }
            std::thread::sleep(STEP.min(left));
            left = left.saturating_sub(STEP);
        }
    })())
}

/// Ends a set.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlEventSetFree(set: nvmlEventSet_t) -> nvmlReturn_t {
    code((|| {
        gate::library("nvmlEventSetFree")?;
        SETS.lock().sets.remove(&(set as usize)).map(drop).ok_or(INVALID_ARGUMENT)
    })())
}

fn raw(device: nvmlDevice_t, event: &Event) -> nvmlEventData_t {
    nvmlEventData_t {
        device,
        eventType: event.kind,
        eventData: event.data,
        gpuInstanceId: u32::MAX,
        computeInstanceId: u32::MAX,
    }
}
