//! One look at NVIDIA's library, for `doctor`: whether it opens, and if not, which kind of trouble
//! it is.
//!
//! Guarantees: a driver that hangs is waited for only so long; nothing stays open.

use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use nvml_wrapper::error::NvmlError;

use super::fault::{cannot_open, words};
use super::library::{DEFAULT, Library};

/// What the library says of itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// Version of the driver, where it says so.
    pub driver: Option<String>,
    /// The library and its version.
    pub library: String,
    /// GPUs it counts.
    pub devices: u32,
}

/// Why the library does not answer; each with a sentence.
#[derive(Clone, Debug, PartialEq)]
pub enum Trouble {
    /// It is not there.
    NoLibrary(String),
    /// Something else is there.
    NotTheLibrary(String),
    /// It found no driver.
    NoDriver(String),
    /// The driver is of another version.
    Mismatch(String),
    /// It may not be asked.
    NoPermission(String),
    /// It does not come back.
    Hangs(String),
    /// Anything else.
    Other(String),
}

impl Trouble {
    fn of(path: &Path, error: &NvmlError) -> Self {
        let said = cannot_open(path, error);
        match error {
            NvmlError::LibloadingError(error) if error.to_string().contains("No such file") => {
                Self::NoLibrary(said)
            }
            NvmlError::LibloadingError(_) | NvmlError::FailedToLoadSymbol(_) => {
                Self::NotTheLibrary(said)
            }
            NvmlError::LibraryNotFound => Self::NoLibrary(said),
            NvmlError::DriverNotLoaded => Self::NoDriver(said),
            NvmlError::LibRmVersionMismatch => Self::Mismatch(said),
            NvmlError::NoPermission => Self::NoPermission(said),
            _ => Self::Other(said),
        }
    }

    /// What is wrong, in one sentence.
    pub fn said(&self) -> &str {
        match self {
            Self::NoLibrary(said)
            | Self::NotTheLibrary(said)
            | Self::NoDriver(said)
            | Self::Mismatch(said)
            | Self::NoPermission(said)
            | Self::Hangs(said)
            | Self::Other(said) => said,
        }
    }

    /// Whether the driver is to blame, and not the library.
    pub fn is_of_the_driver(&self) -> bool {
        matches!(self, Self::NoDriver(_) | Self::Hangs(_) | Self::Other(_))
    }
}

/// Opens the library at `path`, or where the system finds it, and closes it again; blocks for at
/// most `patience`.
///
/// # Errors
/// When it does not answer.
pub fn probe(path: Option<PathBuf>, patience: Duration) -> Result<Answer, Trouble> {
    let (say, said) = mpsc::sync_channel(1);
    let look = move || drop(say.send(look(path.as_deref())));
    let thread = thread::Builder::new().name("nvml-probe".into()).spawn(look);
    thread.map_err(|error| Trouble::Other(format!("no thread to ask the driver: {error}")))?;
    said.recv_timeout(patience).unwrap_or_else(|_| {
        let seconds = patience.as_secs();
        Err(Trouble::Hangs(format!("the NVIDIA driver did not answer within {seconds} s")))
    })
}

fn look(path: Option<&Path>) -> Result<Answer, Trouble> {
    let name = path.unwrap_or(DEFAULT.as_ref());
    let library = Library::open(path).map_err(|error| Trouble::of(name, &error))?;
    let version = library.sys_nvml_version().ok();
    let devices = library.device_count().map_err(|error| match error {
        NvmlError::NoPermission => Trouble::NoPermission(words(&error)),
        _ => Trouble::Other(words(&error)),
    })?;
    let name = name.display();
    Ok(Answer {
        driver: library.sys_driver_version().ok(),
        library: version
            .map_or_else(|| name.to_string(), |version| format!("{name} is NVML {version}")),
        devices,
    })
}
