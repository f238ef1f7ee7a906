//! Pure: what each process used of a device's time, from one answer of the driver to the next.
//!
//! Guarantees: an entry is used once, and only if it is of the time since the answer before; a
//! process without an entry was idle, one whose entries are all impossible is not known; a wall
//! clock that is set back does not make everything idle.

use std::collections::HashMap;

use shared::time::Timestamp;

use super::{FIRST_WINDOW_US, HOLD};

/// One entry: a process, the driver's time stamp, percent.
pub(in super::super) type Entry = (u32, u64, f64);

/// The driver's answers as far as they were read.
#[derive(Debug, Default)]
pub(in super::super) struct Usage {
    /// Newest time stamp seen. It is of the driver's wall clock, only compared with its like.
    newest: u64,
    /// When something newer came last.
    at: Option<Timestamp>,
    /// The newest answer; none where all entries of a process were impossible.
    percent: HashMap<u32, Option<f64>>,
}

impl Usage {
    /// The time stamp to ask for entries after; 0, all, before the first answer.
    pub(in super::super) fn ask_after(&self) -> u64 {
        self.newest
    }

    /// Takes an answer to `ask_after`; an empty one is of processes that are idle, or of a driver
    /// that has not looked again, so what was so stands for a moment.
    pub(in super::super) fn take(&mut self, entries: &[Entry], now: Timestamp) {
        let newest = newest(entries);
        if newest > self.newest {
            let first = newest.saturating_sub(FIRST_WINDOW_US);
            let after = if self.newest == 0 { first } else { self.newest };
            self.set(entries, after, now);
        } else if !self.stands(now) {
            self.percent.clear();
        }
    }

    /// Takes everything that the driver has, where nothing newer came for long: older than what
    /// was seen it is only if the clock was set back.
    pub(in super::super) fn take_all(&mut self, entries: &[Entry], now: Timestamp) {
        let newest = newest(entries);
        if newest != 0 && newest < self.newest {
            self.set(entries, newest.saturating_sub(FIRST_WINDOW_US), now);
        }
    }

    /// Whether the newest answer is still that of now.
    pub(in super::super) fn stands(&self, now: Timestamp) -> bool {
        self.at.is_some_and(|at| now.since(at) <= HOLD)
    }

    /// Percent that a process used.
    pub(in super::super) fn of(&self, pid: u32) -> Option<f64> {
        self.percent.get(&pid).copied().unwrap_or(Some(0.0))
    }

    fn set(&mut self, entries: &[Entry], after: u64, now: Timestamp) {
        let mut stamps = HashMap::new();
        self.percent.clear();
        for &(pid, stamp, percent) in entries.iter().filter(|(_, stamp, _)| *stamp > after) {
            // Zombies are told with thousands of percent, and more than once.
            let is_possible = (0.0..=100.0).contains(&percent);
            let known = self.percent.entry(pid).or_insert(None);
            let latest = stamps.entry(pid).or_insert(0);
            if is_possible && stamp > *latest {
                (*known, *latest) = (Some(percent), stamp);
            }
        }
        self.newest = newest(entries);
        self.at = Some(now);
    }
}

fn newest(entries: &[Entry]) -> u64 {
    entries.iter().map(|(_, stamp, _)| *stamp).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    #[test]
    fn an_entry_is_used_once_and_a_process_without_one_is_idle() {
        let mut usage = Usage::default();
        assert_eq!((usage.ask_after(), usage.of(7)), (0, Some(0.0)));
        usage.take(&[(7, 9_000_000, 60.0), (8, 9_100_000, 20.0), (9, 1_000_000, 90.0)], at(0));
        assert_eq!((usage.of(7), usage.of(8)), (Some(60.0), Some(20.0)));
        assert_eq!(usage.of(9), Some(0.0), "that was eight seconds ago");
        assert_eq!(usage.ask_after(), 9_100_000);
        usage.take(&[(7, 9_000_000, 60.0), (8, 9_600_000, 30.0)], at(1_000));
        assert_eq!((usage.of(7), usage.of(8)), (Some(0.0), Some(30.0)), "7's was used before");
    }

    #[test]
    fn an_empty_answer_is_a_driver_that_has_not_looked_again_and_then_idle() {
        let mut usage = Usage::default();
        usage.take(&[(7, 9_000_000, 60.0)], at(0));
        usage.take(&[], at(1_000));
        assert_eq!(usage.of(7), Some(60.0));
        usage.take(&[], at(2_001));
        assert_eq!(usage.of(7), Some(0.0));
        usage.take(&[(7, 12_000_000, 40.0)], at(3_000));
        assert_eq!(usage.of(7), Some(40.0));
    }

    #[test]
    fn more_than_all_of_the_time_is_dropped_and_the_newest_entry_of_a_process_counts() {
        let mut usage = Usage::default();
        let entries = [
            (7, 9_000_000, 60.0),
            (7, 9_200_000, 10.0),
            (7, 9_300_000, 4_000.0),
            (7, 9_100_000, 80.0),
            (8, 9_300_000, 101.0),
        ];
        usage.take(&entries, at(0));
        assert_eq!(usage.of(7), Some(10.0));
        assert_eq!(usage.of(8), None, "it did something, and nobody knows how much");
    }

    #[test]
    fn a_clock_that_was_set_back_does_not_make_everything_idle() {
        let mut usage = Usage::default();
        usage.take(&[(7, 9_000_000, 60.0)], at(0));
        usage.take(&[], at(3_000));
        usage.take_all(&[(7, 9_000_000, 60.0)], at(3_000));
        assert_eq!(usage.of(7), Some(0.0), "nothing is newer: it is idle");
        usage.take_all(&[(7, 4_000_000, 50.0), (8, 5_500_000, 20.0)], at(4_000));
        assert_eq!((usage.of(7), usage.of(8)), (Some(0.0), Some(20.0)));
        assert_eq!(usage.ask_after(), 5_500_000);
    }
}
