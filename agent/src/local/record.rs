//! A recording being written: one line of the replay format per frame.
//!
//! Guarantees: what was recorded before is never overwritten unasked; each line is in the file as
//! soon as it was taken; after a failed write the lines before are whole and nothing else is
//! there. No reader is waited for.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::net::unix::pipe;
use tokio::sync::watch;
use tokio::time::Instant;

use super::view::View;
use super::{json, stale_after};
use crate::collector::Newest;

/// Why a recording cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is one already.
    #[error(
        "recording {}: there is a file of {bytes} bytes already; \
         name another, or write --force to lose what is in it", path.display()
    )]
    There {
        /// The file.
        path: PathBuf,
        /// What would be lost.
        bytes: u64,
    },
    /// It cannot be opened.
    #[error("recording {}: {error}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        error: io::Error,
    },
    /// It cannot be written to any more.
    #[error("recording {}: {error}; the {lines} lines before are whole", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        error: io::Error,
        /// Lines that are in the file.
        lines: u64,
    },
}

/// A file that is being recorded to.
#[derive(Debug)]
pub struct Recording {
    path: PathBuf,
    file: File,
    /// Bytes of the lines that are whole.
    whole: u64,
    lines: u64,
}

impl Recording {
    /// Begins a recording; a file that has something in it is emptied only if `force`. A pipe that
    /// is read from, which needs a runtime of tokio's, and a terminal or `/dev/null` are good too.
    ///
    /// # Errors
    /// When the file cannot be opened, or has something in it.
    pub fn create(path: &Path, force: bool) -> Result<Self, Error> {
        let open = |error| Error::Open { path: path.to_owned(), error };
        let file = writable(path).map_err(open)?;
        let there = file.metadata().map_err(open)?;
        if there.is_file() && there.len() > 0 {
            if !force {
                return Err(Error::There { path: path.to_owned(), bytes: there.len() });
            }
            file.set_len(0).map_err(open)?;
        }
        Ok(Self { path: path.to_owned(), file, whole: 0, lines: 0 })
    }

    /// Lines written so far.
    pub fn lines(&self) -> u64 {
        self.lines
    }

    /// Writes one line, which has no newline yet.
    ///
    /// # Errors
    /// When it could not be written as a whole; then nothing of it stays.
    pub fn append(&mut self, line: &str) -> Result<(), Error> {
        let line = format!("{line}\n");
        if let Err(error) = self.file.write_all(line.as_bytes()) {
            let mut error = error;
            // A device or a pipe has no length, and keeps nothing that could be taken back.
            if self.file.metadata().is_ok_and(|there| there.is_file())
                && let Err(worse) = self.file.set_len(self.whole)
            {
                error = io::Error::other(format!("{error}, and its half line stays: {worse}"));
            }
            return Err(Error::Write { path: self.path.clone(), error, lines: self.lines });
        }
        self.whole += line.len() as u64;
        self.lines += 1;
        Ok(())
    }

    /// Writes every frame of `newest`, taken every `interval`, until there are no more or `length`
    /// has passed since the first.
    ///
    /// # Errors
    /// When a line cannot be written.
    pub async fn follow(
        &mut self,
        mut newest: watch::Receiver<Newest>,
        interval: Duration,
        length: Option<Duration>,
    ) -> Result<(), Error> {
        let mut start = None;
        let mut end = None;
        while is_changed_before(end, &mut newest).await {
            let Some(taken) = newest.borrow_and_update().clone() else { continue };
            if start.is_none() {
                // Too far away to be told is never.
                end = length.and_then(|length| Instant::now().checked_add(length));
            }
            let after = taken.at.since(*start.get_or_insert(taken.at));
            if length.is_some_and(|length| after >= length) {
                return Ok(());
            }
            let view = View::of(&taken, taken.at, stale_after(interval));
            let at_ms = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
            self.append(&json::line(&view, at_ms))?;
        }
        Ok(())
    }
}

/// Opens what can be written to at once. A pipe would make the opener wait for its reader.
fn writable(path: &Path) -> io::Result<File> {
    let there = std::fs::metadata(path).ok().map(|there| there.file_type());
    if there.is_some_and(|kind| kind.is_fifo()) {
        let sender = pipe::OpenOptions::new().open_sender(path);
        let nobody = |_| io::Error::other("is no regular file, but a pipe that nobody reads");
        return Ok(sender.map_err(nobody)?.into_blocking_fd()?.into());
    }
    if there.is_some_and(|kind| !kind.is_file() && !kind.is_char_device()) {
        return Err(io::Error::other("is no regular file"));
    }
    OpenOptions::new().create(true).append(true).open(path)
}

/// Whether there is a newer frame before `end`.
async fn is_changed_before(end: Option<Instant>, newest: &mut watch::Receiver<Newest>) -> bool {
    let changed = newest.changed();
    match end {
        Some(end) => matches!(tokio::time::timeout_at(end, changed).await, Ok(Ok(()))),
        None => changed.await.is_ok(),
    }
}
