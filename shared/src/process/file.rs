//! Files that people name and that are read as a whole.
//!
//! Guarantees: what is no regular file is refused before it is opened, since a pipe or a device
//! may never end; at most the bytes that were allowed are kept, whatever the system says of the
//! file's size. Symbolic links are followed.

use std::fs::{File, Metadata};
use std::io::{self, Read as _};
use std::path::Path;

/// Opens a regular file to read it.
///
/// # Errors
/// When it cannot be opened or is no regular file.
pub fn open(path: &Path) -> io::Result<File> {
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::other("is no regular file"));
    }
    File::open(path)
}

/// The text of a regular file of at most so many bytes, and what the system said of the file once
/// it was read.
///
/// # Errors
/// When it cannot be read, is no regular file, is larger or is not UTF-8.
pub fn text(path: &Path, most: u64) -> io::Result<(Metadata, String)> {
    let file = open(path)?;
    let mut bytes = Vec::new();
    (&file).take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(io::Error::other(format!("more than {most} bytes")));
    }
    let text = String::from_utf8(bytes).map_err(|_| io::Error::other("is not UTF-8"))?;
    Ok((file.metadata()?, text))
}
