//! Moments on this process's own monotonic clock.
//!
//! A `Timestamp` never travels between machines and is never compared with a wall clock: ages
//! travel as durations instead, so wrong node clocks have no effect. Nothing here reads a clock.

use std::ops::{Add, Sub};
use std::time::Duration;

/// A moment, in microseconds since this process started; negative before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(i64);

impl Timestamp {
    /// The start of the process.
    pub const START: Self = Self(0);

    /// Before anything this process cares about, for what was so "all along".
    pub const LONG_AGO: Self = Self(i64::MIN / 4);

    /// `millis` milliseconds after the start of the process.
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis.saturating_mul(1_000))
    }

    /// How long after `earlier` this moment is; zero if it is not after it.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

impl Add<Duration> for Timestamp {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(micros(duration)))
    }
}

impl Sub<Duration> for Timestamp {
    type Output = Self;

    fn sub(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(micros(duration)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_is_never_negative_and_extremes_do_not_wrap() {
        let late = Timestamp::from_millis(1_500);
        assert_eq!(late.since(Timestamp::START), Duration::from_millis(1_500));
        assert_eq!(Timestamp::START.since(late), Duration::ZERO);
        assert!(Timestamp::LONG_AGO - Duration::MAX < Timestamp::LONG_AGO);
        assert!(late + Duration::MAX > late);
    }
}
