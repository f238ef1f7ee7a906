//! NVIDIA's library: opened, watched for being replaced, closed.
//!
//! Guarantees: closing never panics, whatever symbols the library lacks.

use std::fs;
use std::ops::Deref;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::error::nvml_sym;

/// The library where nothing else is said; the loader finds it.
pub(super) const DEFAULT: &str = "libnvidia-ml.so.1";

/// The library, open until it is dropped.
pub(super) struct Library {
    nvml: Option<Nvml>,
    /// Where it was loaded from, and which file that was.
    file: Option<(PathBuf, FileId)>,
}

type FileId = (u64, u64);

impl Library {
    /// Opens the library at `path`.
    pub(super) fn open(path: Option<&Path>) -> Result<Self, NvmlError> {
        let name = path.map_or(DEFAULT.as_ref(), Path::as_os_str);
        let nvml = Nvml::builder().lib_path(name).init()?;
        let path = path
            .filter(|path| path.is_absolute())
            .map_or_else(loaded_from, |path| Some(path.to_owned()));
        let file = path.and_then(|path| file_id(&path).map(|id| (path, id)));
        Ok(Self { nvml: Some(nvml), file })
    }

    /// Whether another file is now where it was loaded from.
    pub(super) fn was_replaced(&self) -> bool {
        self.file.as_ref().is_some_and(|(path, id)| file_id(path).is_some_and(|now| now != *id))
    }

    /// Whether the library can free what `EventSet` makes, which would panic otherwise.
    pub(super) fn can_free_event_sets(&self) -> Result<(), NvmlError> {
        nvml_sym(self.lib().nvmlEventSetFree.as_ref()).map(drop)
    }
}

impl Deref for Library {
    type Target = Nvml;

    fn deref(&self) -> &Nvml {
        self.nvml.as_ref().expect("it is taken only by drop")
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        if let Some(nvml) = self.nvml.take() {
            // The wrapper panics where there is no nvmlShutdown; such a library is left open.
            if nvml.lib().nvmlShutdown.is_err() {
                std::mem::forget(nvml);
            }
        }
    }
}

/// The path that the loader found.
fn loaded_from() -> Option<PathBuf> {
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    let paths = maps.lines().filter_map(|line| line.find('/').map(|start| &line[start..]));
    let mut ours = paths.filter(|path| path.contains("/libnvidia-ml.so"));
    ours.next().map(PathBuf::from)
}

fn file_id(path: &Path) -> Option<FileId> {
    fs::metadata(path).ok().map(|file| (file.dev(), file.ino()))
}
