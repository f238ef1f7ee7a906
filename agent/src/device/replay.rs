//! Recorded samples, also while they are still being recorded.
//!
//! Guarantees: a line takes effect when it is due and not before, in the file's order, and
//! replaces the whole state; a broken line is named with its number and changes nothing; memory
//! is bounded by one line of look-ahead, however long the recording is.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use shared::time::Timestamp;
use tracing::{info, warn};

use super::{DeviceSource, Error, Observation};

/// What a recording says of a device beside its readings.
pub(crate) mod condition;
/// A file that grows, shrinks or is replaced.
mod follow;
/// One line of a recording.
pub mod line;

pub(crate) use follow::MAX_LINE;
use follow::{Follower, Piece};
use line::Line;

/// Unknown keys that are named before the rest goes unnamed: the file is not ours.
const MAX_UNKNOWN: usize = 64;

/// What happens after the last line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum ReplayEnd {
    /// Keep reporting the last line as fresh, and wait for more.
    #[default]
    Hold,
    /// Start again.
    Loop,
    /// End the agent.
    Exit,
}

/// A recording being replayed.
pub struct Replay {
    path: PathBuf,
    end: ReplayEnd,
    file: Follower,
    /// Whether the file could be read last time, so that a failure is named once.
    readable: bool,
    pass: Pass,
    pending: Option<(Timestamp, Observation)>,
    state: Observation,
    /// Broken lines up to here were named already.
    complained: u64,
    unknown: HashSet<String>,
    was_at_end: bool,
    finished: bool,
}

/// One way through the file.
#[derive(Clone, Copy, Default)]
struct Pass {
    start: Timestamp,
    /// `at_ms` of the first good line.
    first: Option<f64>,
    /// Time of the latest line so far, after the start.
    last: Duration,
    /// Time between the two latest moments: how long the last one stands before a loop restarts.
    step: Duration,
}

impl Pass {
    fn starting(start: Timestamp) -> Self {
        Self { start, ..Self::default() }
    }

    /// When a line of `at_ms` is due.
    fn due(&mut self, at_ms: f64) -> Timestamp {
        let after = at_ms - *self.first.get_or_insert(at_ms);
        let after = match Duration::try_from_secs_f64(after / 1_000.0) {
            Ok(after) => after,
            Err(_) if after < 0.0 => Duration::ZERO,
            Err(_) => Duration::MAX,
        };
        if after > self.last {
            self.step = after - self.last;
            self.last = after;
        }
        self.start + after
    }
}

impl Replay {
    /// Opens a recording; its time starts at the first [`DeviceSource::observe`].
    ///
    /// # Errors
    /// When the file cannot be opened or is not a regular file.
    pub fn open(path: &Path, end: ReplayEnd) -> io::Result<Self> {
        let file = path.display();
        let none = format!(
            "{file}: no valid line yet; gpu-agent doctor --source replay:{file} names the line"
        );
        Ok(Self {
            path: path.to_owned(),
            end,
            file: Follower::open(path)?,
            readable: true,
            pass: Pass::starting(Timestamp::LONG_AGO),
            pending: None,
            state: Observation { reason: Some(none.into()), ..Observation::default() },
            complained: 0,
            unknown: HashSet::new(),
            was_at_end: false,
            finished: false,
        })
    }

    /// Notices another file at the path.
    fn look(&mut self, now: Timestamp) -> io::Result<()> {
        if let Some(change) = self.file.look()? {
            let file = self.path.display();
            info!(%file, change, "recording is another one now, reading it from its beginning");
            self.complained = 0;
            self.begin(now);
        }
        Ok(())
    }

    fn begin(&mut self, now: Timestamp) {
        self.pass = Pass::starting(now);
        self.pending = None;
        self.was_at_end = false;
    }

    /// Applies every line that is due; says whether the file has no more for now.
    fn advance(&mut self, now: Timestamp) -> io::Result<bool> {
        loop {
            if self.pending.is_none() {
                self.pending = self.next_line()?;
            }
            match self.pending.take() {
                Some((due, observation)) if due <= now => self.state = observation,
                Some(later) => {
                    self.pending = Some(later);
                    return Ok(false);
                }
                None => return Ok(true),
            }
        }
    }

    /// The next good line and when it is due.
    fn next_line(&mut self) -> io::Result<Option<(Timestamp, Observation)>> {
        loop {
            let parsed = match self.file.next()? {
                Piece::Line(text) if text.trim_ascii().is_empty() => continue,
                Piece::Line(text) => line::parse(text),
                Piece::TooLong => Err(format!("more than {MAX_LINE} bytes; write shorter lines")),
                Piece::Tail(text) => match line::parse(text) {
                    Ok(line) => {
                        self.file.accept_tail();
                        Ok(line)
                    }
                    // Perhaps only half written yet.
                    Err(_) => return Ok(None),
                },
                Piece::End => return Ok(None),
            };
            let number = self.file.number();
            match parsed {
                Ok(line) => return Ok(Some(self.take(number, line))),
                Err(error) => self.complain(number, &error),
            }
        }
    }

    fn take(&mut self, number: u64, line: Line) -> (Timestamp, Observation) {
        for key in line.unknown {
            if self.unknown.len() < MAX_UNKNOWN && !self.unknown.contains(&key) {
                let file = self.path.display();
                warn!(%file, line = number, "{key}; it is ignored");
                self.unknown.insert(key);
            }
        }
        (self.pass.due(line.at_ms), line.observation)
    }

    fn complain(&mut self, number: u64, error: &str) {
        if number > self.complained {
            self.complained = number;
            warn!(file = %self.path.display(), line = number, error, "line of the recording skipped");
        }
    }

    /// What is to be done at the end of the file, once its last line was reported.
    fn at_end(&mut self, now: Timestamp) -> io::Result<()> {
        match self.end {
            ReplayEnd::Exit => {
                if self.file.ends_in_a_line() {
                    self.complain(self.file.number(), "the file ends within the line");
                }
                self.finished = true;
            }
            // A recording of a single moment looks the same at every pass.
            ReplayEnd::Loop if self.pass.last > Duration::ZERO => {
                if now >= self.pass.start + self.pass.last + self.pass.step {
                    self.file.rewind()?;
                    self.begin(now);
                    self.advance(now)?;
                }
            }
            ReplayEnd::Loop | ReplayEnd::Hold => {}
        }
        Ok(())
    }

    fn poll(&mut self, now: Timestamp) -> io::Result<()> {
        let looked = self.look(now);
        let at_end = self.advance(now)?;
        self.file.settle()?;
        if at_end && self.was_at_end {
            self.at_end(now)?;
        } else {
            self.was_at_end = at_end;
        }
        looked
    }
}

impl DeviceSource for Replay {
    fn observe(&mut self, now: Timestamp) -> Observation {
        if self.pass.start == Timestamp::LONG_AGO {
            self.pass = Pass::starting(now);
        }
        match self.poll(now) {
            Ok(()) => self.readable = true,
            Err(error) if self.readable => {
                self.readable = false;
                let file = self.path.display();
                warn!(%file, %error, "recording cannot be read, keeping its last state");
            }
            Err(_) => {}
        }
        self.state.clone()
    }

    fn finished(&self) -> Result<bool, Error> {
        Ok(self.finished)
    }
}
