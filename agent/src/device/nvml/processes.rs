//! The processes on a device: who they are, their memory, and their part of its time.
//!
//! Guarantees: asked for at most once a second, however often the device is read; each pid once,
//! whether it runs by itself or through MPS; part of a list is never taken for the whole; what a
//! process used is over the time since it was asked before.

use std::time::Duration;

use nvml_wrapper::error::NvmlError;
use shared::time::Timestamp;

use super::fault::{Fault, is_absent, words};
use super::gauge::Gauge;
use super::memory::MIB;
use super::past::usage::Usage;
use super::raw::{self, List, Process};
use crate::device::{ObservedProcess, Processes};

/// Time between two readings, and how much earlier than that a tick may come.
const EVERY: Duration = Duration::from_secs(1);
const SLACK: Duration = Duration::from_millis(100);
/// Room for processes at first, and at most.
const ROOM: usize = 32;
const MOST: usize = 1 << 16;

/// The processes of one device, as they were read last.
pub(super) struct Table {
    /// When they are read next.
    due: Timestamp,
    usage: Usage,
    room: usize,
    last: Processes,
}

impl Default for Table {
    fn default() -> Self {
        let usage = Usage::default();
        Self { due: Timestamp::LONG_AGO, usage, room: ROOM, last: Processes::Unasked }
    }
}

impl Table {
    /// The processes of a device; of a MIG instance where its GPU and compute instance are given.
    pub(super) fn read(
        &mut self,
        gauge: &Gauge<'_>,
        instance: Option<(u32, u32)>,
        now: Timestamp,
    ) -> Result<Processes, Fault> {
        if now + SLACK >= self.due {
            let next = self.due + EVERY;
            self.due = if next + SLACK < now + EVERY { now + EVERY } else { next };
            self.last = self.read_now(gauge, instance, now)?;
        }
        Ok(self.last.clone())
    }

    fn read_now(
        &mut self,
        gauge: &Gauge<'_>,
        instance: Option<(u32, u32)>,
        now: Timestamp,
    ) -> Result<Processes, Fault> {
        let mut all = match self.list(gauge, "its processes", List::Compute) {
            Ok(all) => all,
            Err(error) if is_absent(&error) => return Ok(Processes::Unasked),
            Err(error) => return failed(&error),
        };
        match self.list(gauge, "its MPS clients", List::Mps) {
            Ok(clients) => all.extend(clients),
            Err(error) if is_absent(&error) => {}
            Err(error) => return failed(&error),
        }
        // The driver does not measure time where there are instances.
        let tells_time = instance.is_none() && self.read_usage(gauge, now)?;
        all.retain(|process| {
            instance.is_none() || process.instance.is_none_or(|it| Some(it) == instance)
        });
        all.sort_by_key(|process| (process.pid, process.bytes.is_none()));
        all.dedup_by_key(|process| process.pid);
        let observed = all.iter().map(|process| ObservedProcess {
            pid: process.pid,
            memory_mib: process.bytes.map(|bytes| bytes as f64 / MIB),
            utilization: tells_time.then(|| self.usage.of(process.pid)).flatten(),
        });
        Ok(Processes::Known(observed.collect()))
    }

    fn list(
        &mut self,
        gauge: &Gauge<'_>,
        what: &'static str,
        list: List,
    ) -> Result<Vec<Process>, NvmlError> {
        self.with_room(|room| gauge.ask(what, |device| raw::processes(device, list, room)))
    }

    /// Reads what each process used, and says whether that is known.
    fn read_usage(&mut self, gauge: &Gauge<'_>, now: Timestamp) -> Result<bool, Fault> {
        match self.used(gauge, self.usage.ask_after()) {
            Ok(entries) => self.usage.take(&entries, now),
            Err(error) if Fault::of(&error).is_some() => return Err(Fault::of_device(&error)),
            Err(error) if is_absent(&error) => return Ok(false),
            // It is not known what became of it since.
            Err(_) => return Ok(self.usage.stands(now)),
        }
        if !self.usage.stands(now)
            && self.usage.ask_after() != 0
            && let Ok(all) = self.used(gauge, 0)
        {
            self.usage.take_all(&all, now);
        }
        Ok(true)
    }

    fn used(&mut self, gauge: &Gauge<'_>, after: u64) -> Result<Vec<(u32, u64, f64)>, NvmlError> {
        let what = "what its processes use";
        let ask = |room| gauge.ask(what, |device| raw::process_utilization(device, after, room));
        match self.with_room(ask) {
            Ok(used) => {
                Ok(used.iter().map(|it| (it.pid, it.stamp, f64::from(it.percent))).collect())
            }
            // So the driver says that all are idle.
            Err(NvmlError::NotFound) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// Asks once more, and with twice the room, if there was not enough.
    fn with_room<T>(
        &mut self,
        ask: impl Fn(usize) -> Result<T, NvmlError>,
    ) -> Result<T, NvmlError> {
        match ask(self.room) {
            Err(NvmlError::InsufficientSize(Some(need))) if need <= MOST => {
                self.room = 2 * self.room.max(need);
                ask(self.room)
            }
            other => other,
        }
    }
}

fn failed(error: &NvmlError) -> Result<Processes, Fault> {
    match Fault::of(error) {
        Some(fault) => Err(fault),
        None => Ok(Processes::Failed(words(error).into())),
    }
}
