//! What a function finds before it does its own work: not initialised, an error that the script
//! wants, a driver that does not answer, a handle that is none.

#![expect(unsafe_code, reason = "results are written through the caller's pointers")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST as GPU_IS_LOST,
    nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT,
    nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED as NOT_SUPPORTED,
    nvmlReturn_enum_NVML_ERROR_UNINITIALIZED as UNINITIALIZED,
    nvmlReturn_enum_NVML_SUCCESS as SUCCESS, nvmlReturn_t,
};

use parking_lot::Mutex;

use crate::script::{Gpu, Script, current};

/// How often the library is initialised, less how often it was shut down.
pub(crate) static USERS: AtomicU32 = AtomicU32::new(0);

/// An error code, in the place of an error.
pub(crate) type Outcome<T> = Result<T, nvmlReturn_t>;

/// A GPU of the script.
pub(crate) struct Chosen {
    script: Arc<Script>,
    index: usize,
}

impl Chosen {
    pub(crate) fn gpu(&self) -> &Gpu {
        &self.script.gpus[self.index]
    }

    pub(crate) fn index(&self) -> usize {
        self.index
    }
}

/// The script for a function without a GPU.
pub(crate) fn library(function: &str) -> Outcome<Arc<Script>> {
    if USERS.load(Ordering::SeqCst) == 0 {
        return Err(UNINITIALIZED);
    }
    always(function)
}

/// The script for a function that works before initialisation.
pub(crate) fn always(function: &str) -> Outcome<Arc<Script>> {
    loop {
        let script = current();
        if !is_named(script.block.iter(), function) {
            let code = script.errors.get(function).or_else(|| script.errors.get("*")).copied();
            return code.map_or(Ok(script), Err);
        }
        std::thread::sleep(STEP);
    }
}

/// The GPU for a function on the one at `index`.
pub(crate) fn at(function: &str, index: usize) -> Outcome<Chosen> {
    if USERS.load(Ordering::SeqCst) == 0 {
        return Err(UNINITIALIZED);
    }
    loop {
        let script = current();
        let gpu = script.gpus.get(index).ok_or(INVALID_ARGUMENT)?;
        if !is_named(gpu.block.iter(), function) {
            let code = gpu.errors.get(function).or_else(|| gpu.errors.get("*")).copied();
            return code.map_or(Ok(Chosen { script, index }), Err);
        }
        std::thread::sleep(STEP);
    }
}

/// The GPU for a function on the one behind `handle`, wherever that is now.
pub(crate) fn device(function: &str, handle: nvmlDevice_t) -> Outcome<Chosen> {
    let number = (handle as usize).checked_sub(FIRST).ok_or(INVALID_ARGUMENT)?;
    let (uuid, before) = HANDLES.lock().get(number).cloned().ok_or(INVALID_ARGUMENT)?;
    let script = current();
    let is_it = |gpu: &Gpu| gpu.uuid.bytes() == uuid;
    let index = match script.gpus.get(before).filter(|gpu| is_it(gpu)) {
        Some(_) => before,
        None => script.gpus.iter().position(is_it).ok_or(GPU_IS_LOST)?,
    };
    at(function, index)
}

/// The handle of a GPU; it stays the GPU's when indices change.
pub(crate) fn handle(chosen: &Chosen) -> nvmlDevice_t {
    let known = (chosen.gpu().uuid.bytes().to_vec(), chosen.index);
    let mut handles = HANDLES.lock();
    let number = handles.iter().position(|handle| *handle == known).unwrap_or(handles.len());
    if number == handles.len() {
        handles.push(known);
    }
    (FIRST + number) as nvmlDevice_t
}

/// Whatever the script says, or that it is not supported.
pub(crate) fn supported<T>(value: Option<T>) -> Outcome<T> {
    value.ok_or(NOT_SUPPORTED)
}

/// Writes a result to where the caller wants it.
pub(crate) fn put<T>(target: *mut T, value: T) -> Outcome<()> {
    if target.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: the caller vouches for a pointer that is not null, as it does to the real library.
    unsafe { target.write(value) };
    Ok(())
}

/// The code that a function returns.
pub(crate) fn code(outcome: Outcome<()>) -> nvmlReturn_t {
    outcome.err().unwrap_or(SUCCESS)
}

/// How often a call that is blocked looks whether it still is.
const STEP: Duration = Duration::from_millis(2);
/// Handles look like no index and no pointer.
const FIRST: usize = 0xFA4E_0000;

/// UUID and index of every GPU that a handle was given out for.
static HANDLES: Mutex<Vec<(Vec<u8>, usize)>> = Mutex::new(Vec::new());

fn is_named<'a>(mut names: impl Iterator<Item = &'a String>, function: &str) -> bool {
    names.any(|name| name == "*" || name == function)
}
