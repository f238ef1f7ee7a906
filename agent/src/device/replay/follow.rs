//! A file read line by line while someone else may still be writing it.
//!
//! Guarantees: memory is bounded by one line of `MAX_LINE` bytes; nothing is waited for; a file
//! that shrank, was replaced or was rewritten is noticed and read from its beginning.

use std::fs::{File, Metadata};
use std::hash::{DefaultHasher, Hasher};
use std::io::{self, BufRead, BufReader, Read, Seek};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use shared::process::file;

/// Bytes a line may have.
pub(crate) const MAX_LINE: usize = 1 << 20;

/// Bytes at both ends of what was read that are looked at again to notice a rewrite.
const PRINTED: u64 = 4_096;

/// A file, and how far it was read.
pub(super) struct Follower {
    path: PathBuf,
    reader: BufReader<File>,
    /// Number of the line that `line` belongs to, from 1.
    number: u64,
    line: Vec<u8>,
    state: State,
    position: u64,
    /// What the file looked like when it was last looked at.
    stamp: Stamp,
    /// Fingerprint of the first `.0` bytes.
    print: (u64, u64),
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    /// `line` is the beginning of a line.
    Partial,
    /// `line` was handed out and is of no more use.
    Done,
    /// The line is too long; the rest of it is to be thrown away.
    TooLong,
}

type Stamp = (u64, i64, i64);

fn stamp(metadata: &Metadata) -> Stamp {
    (metadata.len(), metadata.mtime(), metadata.mtime_nsec())
}

/// What comes next in the file.
pub(super) enum Piece<'a> {
    /// A whole line.
    Line(&'a [u8]),
    /// A line of more than [`MAX_LINE`] bytes.
    TooLong,
    /// The file's end, without a newline yet, though perhaps a whole line.
    Tail(&'a [u8]),
    /// Nothing new.
    End,
}

impl Follower {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        // A pipe or a terminal would make `observe` wait.
        let file = file::open(path)?;
        Ok(Self {
            path: path.to_owned(),
            stamp: stamp(&file.metadata()?),
            reader: BufReader::new(file),
            number: 1,
            line: Vec::new(),
            state: State::Partial,
            position: 0,
            print: (0, 0),
        })
    }

    /// Number of the line that was handed out last.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Looks whether the file is still the one that was read; if not, starts it again.
    pub(super) fn look(&mut self) -> io::Result<Option<&'static str>> {
        let (there, read) = (std::fs::metadata(&self.path)?, self.reader.get_ref().metadata()?);
        if (there.dev(), there.ino()) != (read.dev(), read.ino()) {
            *self = Self::open(&self.path)?;
            return Ok(Some("replaced"));
        }
        if stamp(&there) == self.stamp {
            return Ok(None);
        }
        self.stamp = stamp(&there);
        let change = if there.len() < self.position {
            "shorter than before"
        } else if self.fingerprint(self.print.0)? != self.print.1 {
            "rewritten"
        } else {
            return Ok(None);
        };
        self.rewind()?;
        Ok(Some(change))
    }

    /// Reads from the beginning again.
    pub(super) fn rewind(&mut self) -> io::Result<()> {
        self.reader.rewind()?;
        (self.number, self.position, self.print) = (1, 0, (0, 0));
        self.line.clear();
        self.state = State::Partial;
        Ok(())
    }

    /// Takes note of what was read, so that a later [`Self::look`] can tell if it changed.
    pub(super) fn settle(&mut self) -> io::Result<()> {
        if self.print.0 != self.position {
            self.print = (self.position, self.fingerprint(self.position)?);
        }
        Ok(())
    }

    /// The last tail was a whole line; its newline, when it comes, ends nothing more.
    pub(super) fn accept_tail(&mut self) {
        self.line.clear();
    }

    /// The next piece.
    pub(super) fn next(&mut self) -> io::Result<Piece<'_>> {
        if self.state == State::Done {
            self.line.clear();
            self.number += 1;
            self.state = State::Partial;
        }
        loop {
            let room = (MAX_LINE + 1).saturating_sub(self.line.len()) as u64;
            let read = (&mut self.reader).take(room).read_until(b'\n', &mut self.line)?;
            self.position += read as u64;
            if self.line.ends_with(b"\n") {
                let too_long = self.state == State::TooLong;
                self.state = State::Done;
                return Ok(if too_long { Piece::TooLong } else { Piece::Line(&self.line) });
            }
            if self.line.len() > MAX_LINE {
                self.state = State::TooLong;
                self.line.clear();
            } else if self.state == State::TooLong {
                self.line.clear();
                return Ok(Piece::End);
            } else if read > 0 {
                return Ok(Piece::Tail(&self.line));
            } else {
                return Ok(Piece::End);
            }
        }
    }

    /// Whether the file ends in the middle of a line.
    pub(super) fn ends_in_a_line(&self) -> bool {
        self.state == State::TooLong
            || self.state == State::Partial && !self.line.trim_ascii().is_empty()
    }

    fn fingerprint(&self, length: u64) -> io::Result<u64> {
        let mut hasher = DefaultHasher::new();
        let mut buffer = [0; PRINTED as usize];
        let size = length.min(PRINTED);
        let buffer = &mut buffer[..size as usize]; // at most PRINTED
        for offset in [0, length - size] {
            self.reader.get_ref().read_exact_at(buffer, offset)?;
            hasher.write(buffer);
        }
        Ok(hasher.finish())
    }
}
