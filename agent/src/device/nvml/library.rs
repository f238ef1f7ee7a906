//! NVIDIA's library: opened, watched for being replaced, closed.
//!
//! Guarantees: closing never panics, whatever symbols the library lacks; what the loader had still
//! loaded is not taken for the file that is there now.

use std::ffi::OsString;
use std::fs;
use std::ops::Deref;
use std::os::unix::fs::MetadataExt as _;
use std::path::{self, Path, PathBuf};
use std::sync::{Arc, Weak};

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::error::nvml_sym;
use parking_lot::Mutex;

/// The library where nothing else is said; the loader finds it.
pub(super) const DEFAULT: &str = "libnvidia-ml.so.1";

/// The library, open until it is dropped.
pub(super) struct Library {
    nvml: Option<Nvml>,
    /// Outlives `nvml`: for as long as it lives, the loader gives the same object to whoever asks.
    origin: Arc<Origin>,
}

/// What is at the places that the library came from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum File {
    /// What was loaded.
    Same,
    /// Nothing, which may be so while a driver is installed.
    Gone,
    /// Something else.
    Replaced,
}

/// What the loader has loaded, and from which files.
struct Origin {
    /// Of a function in it; no two objects have the same at once.
    address: usize,
    /// Every path that leads to the file, with what it led to.
    files: Vec<(PathBuf, FileId)>,
    /// Whether its file was gone already, as that of a container's mount can be.
    was_deleted: bool,
}

type FileId = (u64, u64);

/// What is loaded in this process, as far as it is not unloaded again.
static LOADED: Mutex<Vec<Weak<Origin>>> = Mutex::new(Vec::new());

impl Library {
    /// Opens the library at `path`.
    pub(super) fn open(path: Option<&Path>) -> Result<Self, NvmlError> {
        let name = path.map_or_else(|| DEFAULT.into(), name_for_the_loader);
        let nvml = Nvml::builder().lib_path(&name).init()?;
        let address = nvml.lib().nvmlInit_v2.as_ref().map_or(0, |init| *init as usize);
        let origin = origin(address, Path::new(&name));
        Ok(Self { nvml: Some(nvml), origin })
    }

    /// What is now where it was loaded from.
    pub(super) fn file(&self) -> File {
        self.origin.file()
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
                std::mem::forget((nvml, self.origin.clone()));
            }
        }
    }
}

impl Origin {
    fn new(address: usize, name: &Path) -> Self {
        let mapping = mapping(address);
        let mapped = mapping.as_ref().map(|mapping| &mapping.path);
        // The link in the same folder is what an upgrade turns to another file.
        let link = mapped.map(|path| path.with_file_name(DEFAULT));
        let id = mapped.or(Some(&name.to_owned())).and_then(|path| file_id(path));
        let named = Some(name.to_owned()).filter(|name| name.is_absolute());
        let paths = mapped.cloned().into_iter().chain(named).chain(link);
        let files = paths.filter_map(|path| file_id(&path).map(|id| (path, id)));
        let files = files.filter(|(path, now)| path == name || Some(*now) == id).collect();
        // A mapping of a deleted file, with another one in its place, is that of an old library.
        let was_deleted = mapping.is_some_and(|mapping| {
            mapping.is_deleted && id.is_some_and(|(_, inode)| inode == mapping.inode)
        });
        Self { address, files, was_deleted }
    }

    fn file(&self) -> File {
        let now = self.files.iter().map(|(path, id)| (file_id(path), *id));
        let mut is_gone = false;
        for (now, id) in now {
            match now {
                Some(now) if now != id => return File::Replaced,
                Some(_) => {}
                None => is_gone = true,
            }
        }
        let is_deleted = || mapping(self.address).is_some_and(|mapping| mapping.is_deleted);
        match is_gone {
            true => File::Gone,
            false if !self.was_deleted && is_deleted() => File::Replaced,
            false => File::Same,
        }
    }
}

/// The origin of the object at `address`, which is that of whoever loaded it first.
fn origin(address: usize, name: &Path) -> Arc<Origin> {
    let mut loaded = LOADED.lock();
    loaded.retain(|origin| origin.strong_count() > 0);
    let mut same = loaded.iter().filter_map(Weak::upgrade);
    if let Some(same) = same.find(|origin| origin.address == address) {
        return same;
    }
    let origin = Arc::new(Origin::new(address, name));
    loaded.push(Arc::downgrade(&origin));
    origin
}

/// A path is made absolute, so that it stays the same; a mere name is for the loader to find.
fn name_for_the_loader(path: &Path) -> OsString {
    if path.components().count() < 2 {
        return path.into();
    }
    path::absolute(path).map_or_else(|_| path.into(), PathBuf::into_os_string)
}

/// A file in the memory of this process.
struct Mapping {
    inode: u64,
    path: PathBuf,
    is_deleted: bool,
}

/// The file that `address` is of.
fn mapping(address: usize) -> Option<Mapping> {
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    maps.lines().find_map(|line| {
        let (from, to) = line.split_once(' ')?.0.split_once('-')?;
        let from = usize::from_str_radix(from, 16).ok()?;
        let to = usize::from_str_radix(to, 16).ok()?;
        if !(from..to).contains(&address) {
            return None;
        }
        let path = line.find('/').map(|start| &line[start..])?;
        let existing = path.strip_suffix(" (deleted)");
        Some(Mapping {
            inode: line.split_ascii_whitespace().nth(4)?.parse().ok()?,
            path: existing.unwrap_or(path).into(),
            is_deleted: existing.is_some(),
        })
    })
}

fn file_id(path: &Path) -> Option<FileId> {
    fs::metadata(path).ok().map(|file| (file.dev(), file.ino()))
}
