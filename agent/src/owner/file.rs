//! The holders file: device UUID → holders, read again when it changes.
//!
//! Guarantees: a file that is broken at the start is an error; one that breaks later leaves the
//! last good state in force and is named once per change; a file that is still being written is
//! not taken for what it will say.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use shared::frame::HolderSource;
use shared::process::file;
use shared::time::Timestamp;
use tracing::{info, warn};

use super::Declared;
use crate::device::holder;

/// Time between two looks at the file.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Time until a file that changed is looked at again: one that is saved in place is empty, or half
/// there, for a moment.
const SETTLES_IN: Duration = Duration::from_millis(250);

/// Bytes a holders file may have.
const MAX_BYTES: u64 = 16 << 20;

/// Device, inode, length, and time of the last change.
type Stamp = (u64, u64, u64, i64, i64);

/// What one look at the file found: its text, or why it cannot be read.
type Seen = Result<(Stamp, String), String>;

/// Why a holders file was refused.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It cannot be read.
    #[error("holders file {}: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        error: std::io::Error,
    },
    /// It says something it must not say.
    #[error("holders file {}: {why}", path.display())]
    Broken {
        /// The file.
        path: PathBuf,
        /// What is wrong and what would be right.
        why: String,
    },
}

/// A holders file and what it said when it was last good.
pub struct HoldersFile {
    path: PathBuf,
    stamp: Option<Stamp>,
    looked: Timestamp,
    /// A change that only one look saw.
    changing: Option<Seen>,
    declared: Declared,
}

impl HoldersFile {
    /// Reads the file.
    ///
    /// # Errors
    /// When it cannot be read or is broken.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let (stamp, declared) = read(path)?;
        Ok(Self {
            path: path.to_owned(),
            stamp: Some(stamp),
            looked: Timestamp::LONG_AGO,
            changing: None,
            declared,
        })
    }

    /// What the file says at `now`; it is looked at about once a second, and a change counts once
    /// two looks saw the same.
    pub fn declared(&mut self, now: Timestamp) -> &Declared {
        let pause = if self.changing.is_some() { SETTLES_IN } else { LOOK_EVERY };
        if now.since(self.looked) >= pause {
            self.looked = now;
            self.look();
        }
        &self.declared
    }

    fn look(&mut self) {
        let found = std::fs::metadata(&self.path).ok().as_ref().map(stamp);
        if found == self.stamp {
            self.changing = None;
            return;
        }
        let seen = text(&self.path);
        let told = seen.as_ref().map_err(ToString::to_string).cloned();
        if self.changing.as_ref() != Some(&told) {
            self.changing = Some(told);
            return;
        }
        self.changing = None;
        self.stamp = found;
        match seen.and_then(|(stamp, text)| Ok((stamp, parsed(&self.path, &text)?))) {
            Ok((stamp, declared)) => {
                let file = self.path.display();
                info!(%file, devices = declared.len(), "holders file read again");
                self.stamp = Some(stamp);
                self.declared = declared;
            }
            Err(error) => warn!(%error, "holders file is broken, keeping what it said before"),
        }
    }
}

fn stamp(metadata: &Metadata) -> Stamp {
    let changed = (metadata.mtime(), metadata.mtime_nsec());
    let (device, inode) = (metadata.dev(), metadata.ino());
    (device, inode, metadata.len(), changed.0, changed.1)
}

fn read(path: &Path) -> Result<(Stamp, Declared), Error> {
    let (stamp, text) = text(path)?;
    Ok((stamp, parsed(path, &text)?))
}

fn text(path: &Path) -> Result<(Stamp, String), Error> {
    let read = |error| Error::Read { path: path.to_owned(), error };
    let (metadata, text) = file::text(path, MAX_BYTES).map_err(read)?;
    Ok((stamp(&metadata), text))
}

fn parsed(path: &Path, text: &str) -> Result<Declared, Error> {
    parse(text).map_err(|why| Error::Broken { path: path.to_owned(), why })
}

/// Reads the text of a holders file, YAML or JSON.
///
/// # Errors
/// What is wrong and what would be right.
pub fn parse(text: &str) -> Result<Declared, String> {
    const FORM: &str = "write UUID: [{namespace: …, pod: …}]";
    // The end of a message that is meant for programmers.
    const NOT_OURS: &str = ", set DuplicateKeyPolicy in Options if acceptable";
    if text.trim().is_empty() {
        return Err(format!("it is empty; {FORM}, or {{}} for no holders at all"));
    }
    let value = serde_saphyr::from_str(text);
    let value = value.map_err(|error| format!("{error}; {FORM}").replace(NOT_OURS, ""))?;
    let devices = match value {
        Value::Object(devices) => devices,
        Value::Null => return Ok(Declared::new()),
        _ => return Err(format!("it is not a map; {FORM}")),
    };
    let mut declared = Declared::new();
    let mut unknown = Vec::new();
    for (uuid, holders) in devices {
        let Value::Array(holders) = holders else {
            return Err(format!("device {uuid} has no list of holders; {FORM}"));
        };
        let place = format!("device {uuid}");
        let holders = holder::list(&place, holders, HolderSource::File, &mut unknown)?;
        if let Some(unknown) = unknown.first() {
            return Err(format!("{place}: {unknown}"));
        }
        declared.insert(uuid.into(), holders);
    }
    Ok(declared)
}
