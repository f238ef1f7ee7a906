//! Pure: what an error of NVML means, and in which words it is told.
//!
//! Guarantees: an error that is only about one reading never costs a device, one that is only
//! about a device never costs the others.

use std::path::Path;
use std::sync::Arc;

use nvml_wrapper::error::NvmlError;

/// `NVML_ERROR_ARGUMENT_VERSION_MISMATCH`, which the wrapper has no name for.
pub(super) const VERSION_MISMATCH: u32 = 25;
/// `NVML_ERROR_GPU_NOT_FOUND`, which the wrapper has no name for.
const GPU_NOT_FOUND: u32 = 28;

/// An error that is about more than one reading.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Fault {
    /// The device cannot be read.
    Device(Arc<str>),
    /// The library has to be opened again.
    Library(Arc<str>),
}

impl Fault {
    /// The fault that `error` stands for, if it is about more than the call that brought it.
    pub(super) fn of(error: &NvmlError) -> Option<Self> {
        match error {
            NvmlError::GpuLost
            | NvmlError::ResetRequired
            | NvmlError::UnexpectedVariant(GPU_NOT_FOUND) => {
                Some(Self::Device(words(error).into()))
            }
            NvmlError::Uninitialized
            | NvmlError::DriverNotLoaded
            | NvmlError::LibRmVersionMismatch => Some(Self::Library(words(error).into())),
            _ => None,
        }
    }

    /// The same for a call without which there is no device.
    pub(super) fn of_device(error: &NvmlError) -> Self {
        Self::of(error).unwrap_or_else(|| Self::Device(words(error).into()))
    }
}

/// Whether `error` says that there is no such thing here, rather than that it failed.
pub(super) fn is_absent(error: &NvmlError) -> bool {
    matches!(
        error,
        NvmlError::NotSupported | NvmlError::FailedToLoadSymbol(_) | NvmlError::FunctionNotFound
    )
}

/// Whether a reason is that the GPU is there no more.
pub(super) fn is_lost(reason: &str) -> bool {
    let gone = [NvmlError::GpuLost, NvmlError::UnexpectedVariant(GPU_NOT_FOUND)];
    gone.iter().any(|error| words(error) == reason)
}

/// What `error` says, for people.
pub(super) fn words(error: &NvmlError) -> String {
    match error {
        NvmlError::GpuLost => "the GPU has fallen off the bus".into(),
        NvmlError::ResetRequired => "the GPU must be reset before it can be used again".into(),
        NvmlError::UnexpectedVariant(GPU_NOT_FOUND) => "the GPU is no longer there".into(),
        NvmlError::Uninitialized => "the NVIDIA driver was unloaded".into(),
        NvmlError::DriverNotLoaded => {
            "the NVIDIA driver is not loaded on this node, though its library is here".into()
        }
        NvmlError::LibRmVersionMismatch => {
            "NVIDIA's library and the loaded driver are of different versions; \
             only a new container gets the new library"
                .into()
        }
        NvmlError::NoPermission => "no permission to ask the NVIDIA driver".into(),
        NvmlError::Unknown => "the NVIDIA driver failed with an unknown error (999)".into(),
        NvmlError::UnexpectedVariant(code) => {
            format!("the NVIDIA driver answered with the unknown code {code}")
        }
        NvmlError::Utf8Error(_) => "it is no text".into(),
        other => format!("NVML: {other}"),
    }
}

/// Why the library cannot be opened.
pub(super) fn cannot_open(path: &Path, error: &NvmlError) -> String {
    let path = path.display();
    match error {
        NvmlError::LibloadingError(error) => {
            let said = error.to_string();
            if said.contains("No such file") {
                format!(
                    "NVIDIA's library {path} is not here; install the NVIDIA driver, or let the \
                     container have it (runtimeClassName: nvidia)"
                )
            } else {
                format!("NVIDIA's library {path} cannot be loaded: {said}")
            }
        }
        NvmlError::FailedToLoadSymbol(_) => {
            format!("{path} is not NVIDIA's management library: it has no nvmlInit_v2")
        }
        other => words(other),
    }
}
