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

use crate::script::{Gpu, Instance, Script, current};

/// How often the library is initialised, less how often it was shut down.
pub(crate) static USERS: AtomicU32 = AtomicU32::new(0);

/// An error code, in the place of an error.
pub(crate) type Outcome<T> = Result<T, nvmlReturn_t>;

/// A GPU of the script, or an instance that it is cut into.
pub(crate) struct Chosen {
    script: Arc<Script>,
    index: usize,
    /// Place in the GPU's instances.
    instance: Option<usize>,
}

impl Chosen {
    pub(crate) fn gpu(&self) -> &Gpu {
        &self.script.gpus[self.index]
    }

    pub(crate) fn index(&self) -> usize {
        self.index
    }

    /// The instance, where the handle is of one.
    pub(crate) fn instance(&self) -> Option<&Instance> {
        self.instance.map(|instance| &self.gpu().instances[instance])
    }

    /// The GPU where the handle is of a whole one.
    pub(crate) fn whole(&self) -> Outcome<&Gpu> {
        match self.instance {
            Some(_) => Err(INVALID_ARGUMENT),
            None => Ok(self.gpu()),
        }
    }

    /// The GPU where it is not cut and the handle is of no instance: only there time is measured.
    pub(crate) fn uncut(&self) -> Outcome<&Gpu> {
        match self.instance {
            None if !self.gpu().is_cut() => Ok(self.gpu()),
            _ => Err(NOT_SUPPORTED),
        }
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
            return code.map_or(Ok(Chosen { script, index, instance: None }), Err);
        }
        std::thread::sleep(STEP);
    }
}

/// The GPU or instance for a function on the one behind `handle`, wherever that is now.
pub(crate) fn device(function: &str, handle: nvmlDevice_t) -> Outcome<Chosen> {
    let number = (handle as usize).checked_sub(FIRST).ok_or(INVALID_ARGUMENT)?;
    let handle = HANDLES.lock().get(number).cloned().ok_or(INVALID_ARGUMENT)?;
    let script = current();
    let is_it = |gpu: &Gpu| gpu.uuid.bytes() == handle.uuid;
    let index = match script.gpus.get(handle.index).filter(|gpu| is_it(gpu)) {
        Some(_) => handle.index,
        None => script.gpus.iter().position(is_it).ok_or(GPU_IS_LOST)?,
    };
    match handle.slot {
        None => at(function, index),
        Some(slot) => instance_at(function, index, slot),
    }
}

/// The instance in `slot` of the GPU at `index`, whichever that is now.
pub(crate) fn instance_at(function: &str, index: usize, slot: u32) -> Outcome<Chosen> {
    loop {
        let chosen = at(function, index)?;
        let mut instances = chosen.gpu().instances.iter();
        let place = instances.position(|instance| instance.slot == slot).ok_or(INVALID_ARGUMENT)?;
        let instance = &chosen.gpu().instances[place];
        if !is_named(instance.block.iter(), function) {
            let code = instance.errors.get(function).or_else(|| instance.errors.get("*")).copied();
            return code.map_or(Ok(Chosen { instance: Some(place), ..chosen }), Err);
        }
        std::thread::sleep(STEP);
    }
}

/// The handle of a GPU, which stays the GPU's when indices change; or of a place for an instance,
/// which is that of whatever is there.
pub(crate) fn handle(chosen: &Chosen) -> nvmlDevice_t {
    let uuid = chosen.gpu().uuid.bytes().to_vec();
    let slot = chosen.instance().map(|instance| instance.slot);
    let known = Handle { uuid, index: chosen.index, slot };
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

/// What a handle was given out for.
#[derive(Clone, PartialEq)]
struct Handle {
    /// Of the GPU.
    uuid: Vec<u8>,
    index: usize,
    slot: Option<u32>,
}

static HANDLES: Mutex<Vec<Handle>> = Mutex::new(Vec::new());

fn is_named<'a>(mut names: impl Iterator<Item = &'a String>, function: &str) -> bool {
    names.any(|name| name == "*" || name == function)
}
