//! Pure: what has to be remembered of a device from one reading to the next.
//!
//! Guarantees: a mean is over all samples since the one before, however long ago that was, and
//! over none that was in it; a wall clock that jumps costs no more than the samples that the ring
//! held; power is never derived from a counter that stood still.

use std::collections::VecDeque;
use std::time::Duration;

use shared::health::Throttle;
use shared::time::Timestamp;

/// What each process used of a device's time.
pub(super) mod usage;

/// How long a mean may stand without new samples.
const HOLD: Duration = Duration::from_secs(2);
/// What is taken of the driver's ring where nothing was taken before.
const FIRST_WINDOW_US: u64 = 1_000_000;
/// Counters tick a few times a second; over less than this their steps would show.
const ENERGY_SPAN: Duration = Duration::from_secs(1);
/// What the throttled share is a share of.
const THROTTLE_WINDOW: Duration = Duration::from_secs(10);

/// The driver's ring of samples, as far as it was read.
#[derive(Debug, Default)]
pub(super) struct Ring {
    /// Newest time stamp seen. It is of the driver's wall clock, only compared with its like.
    newest: u64,
    /// Whether the last look found nothing newer.
    stands_still: bool,
    mean: Option<(Timestamp, f64)>,
}

impl Ring {
    /// The time stamp to ask for samples after; 0 asks for all.
    ///
    /// A ring that stood still at the last look, and does not give a mean any more, may be one
    /// whose wall clock was set back: only all of it shows where it stands now.
    pub(super) fn ask_after(&self, now: Timestamp) -> u64 {
        if self.stands_still && self.standing(now).is_none() { 0 } else { self.newest }
    }

    /// The mean of the samples that came since the last one; none where the ring stands still.
    pub(super) fn take(&mut self, samples: &[(u64, f64)], now: Timestamp) -> Option<f64> {
        let newest = samples.iter().map(|(stamp, _)| *stamp).max();
        self.stands_still = newest.is_none_or(|newest| newest == self.newest);
        if let Some(newest) = newest.filter(|_| !self.stands_still) {
            let is_continued = self.newest != 0 && newest > self.newest;
            let after =
                if is_continued { self.newest } else { newest.saturating_sub(FIRST_WINDOW_US) };
            // Dying GPUs report utilisations of thousands of percent.
            let is_new =
                |(stamp, value): &&(u64, f64)| *stamp > after && (0.0..=100.0).contains(value);
            let new: Vec<f64> = samples.iter().filter(is_new).map(|(_, value)| *value).collect();
            if !new.is_empty() {
                self.mean = Some((now, new.iter().sum::<f64>() / new.len() as f64));
                self.newest = newest;
            }
        }
        self.standing(now)
    }

    /// The last mean, for as long as it may stand.
    fn standing(&self, now: Timestamp) -> Option<f64> {
        self.mean.filter(|(at, _)| now.since(*at) <= HOLD).map(|(_, mean)| mean)
    }
}

/// A counter of millijoules.
#[derive(Debug, Default)]
pub(super) struct Energy(VecDeque<(Timestamp, u64)>);

impl Energy {
    /// Watts since about a second ago, or since the last reading if that is longer ago; none where
    /// no reading is that old yet.
    pub(super) fn watts(&mut self, millijoules: u64, now: Timestamp) -> Option<f64> {
        if self.0.back().is_some_and(|(at, last)| *last > millijoules || *at >= now) {
            // The driver was loaded anew.
            self.0.clear();
        }
        while self.0.get(1).is_some_and(|(at, _)| now.since(*at) >= ENERGY_SPAN) {
            self.0.pop_front();
        }
        let first = self.0.front().copied();
        self.0.push_back((now, millijoules));
        let (at, before) = first.filter(|(at, _)| now.since(*at) >= ENERGY_SPAN)?;
        let grown = millijoules - before;
        (grown > 0).then(|| grown as f64 / 1_000.0 / now.since(at).as_secs_f64())
    }
}

/// By what the clock was held down, at each look.
#[derive(Debug, Default)]
pub(super) struct Throttled(VecDeque<(Timestamp, Reasons)>);

/// A set of [`Throttle`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Reasons(u8);

impl Reasons {
    pub(super) fn insert(&mut self, throttle: Throttle) {
        self.0 |= 1 << throttle as u8;
    }

    fn contains(self, throttle: Throttle) -> bool {
        self.0 & 1 << throttle as u8 != 0
    }
}

impl Throttled {
    /// Percent of the recent looks at which it was held down.
    pub(super) fn percent(&mut self, reasons: Reasons, now: Timestamp) -> f64 {
        self.0.push_back((now, reasons));
        while self.0.front().is_some_and(|(at, _)| now.since(*at) > THROTTLE_WINDOW) {
            self.0.pop_front();
        }
        self.part(|reasons| reasons != Reasons::default())
    }

    /// By what, where it was, and for what percentage of the looks.
    pub(super) fn by_reason(&self) -> Box<[(Throttle, f64)]> {
        let part = |throttle| (throttle, self.part(|reasons| reasons.contains(throttle)));
        Throttle::ALL.into_iter().map(part).filter(|(_, percent)| *percent > 0.0).collect()
    }

    fn part(&self, is: impl Fn(Reasons) -> bool) -> f64 {
        let count = self.0.iter().filter(|(_, reasons)| is(*reasons)).count();
        count as f64 / self.0.len().max(1) as f64 * 100.0
    }
}

#[cfg(test)]
mod tests;
