//! The load that users offer over the demo's time, in percent of one GPU: idle, rise, peak, fall,
//! gone. Pure: a shape and a moment give the load.

use std::fmt;
use std::time::Duration;

/// The shape: phases are fixed parts of its length.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// From the first moment to the last.
    pub length: Duration,
    /// Load before the rise.
    pub idle: f64,
    /// Load between rise and fall.
    pub peak: f64,
}

/// A part of the shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Little to do.
    Idle,
    /// More and more.
    Rise,
    /// As much as it gets.
    Peak,
    /// Less and less.
    Fall,
    /// Nothing at all.
    Gone,
}

/// Where each phase ends, as a part of the length.
const ENDS: [(Phase, f64); 5] = [
    (Phase::Idle, 0.10),
    (Phase::Rise, 0.20),
    (Phase::Peak, 0.70),
    (Phase::Fall, 0.77),
    (Phase::Gone, 1.0),
];

impl Load {
    /// The moment that is `part` (0 to 1) of the way through.
    pub fn moment(&self, part: f64) -> Duration {
        self.length.mul_f64(part)
    }

    /// The phase at `elapsed`.
    pub fn phase(&self, elapsed: Duration) -> Phase {
        self.place(elapsed).0
    }

    /// The load at `elapsed`, in percent of one GPU.
    pub fn at(&self, elapsed: Duration) -> f64 {
        let (phase, done) = self.place(elapsed);
        match phase {
            Phase::Idle => self.idle,
            Phase::Rise => self.idle + (self.peak - self.idle) * done,
            Phase::Peak => self.peak,
            Phase::Fall => self.peak * (1.0 - done),
            Phase::Gone => 0.0,
        }
    }

    /// The phase at `elapsed` and how much of it is over, 0 to 1.
    fn place(&self, elapsed: Duration) -> (Phase, f64) {
        let part = elapsed.as_secs_f64() / self.length.as_secs_f64();
        let mut start = 0.0;
        for (phase, end) in ENDS {
            if part < end {
                return (phase, (part - start) / (end - start));
            }
            start = end;
        }
        (Phase::Gone, 1.0)
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Idle => "hardly anyone is here",
            Self::Rise => "users arrive",
            Self::Peak => "rush hour",
            Self::Fall => "users leave",
            Self::Gone => "everyone has left",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_load_rises_to_its_peak_stays_and_goes_without_a_jump() {
        let load = Load { length: Duration::from_secs(100), idle: 30.0, peak: 340.0 };
        let at = |seconds| load.at(Duration::from_secs(seconds));
        assert_eq!([at(0), at(9), at(15).round()], [30.0, 30.0, 185.0]);
        assert_eq!([at(20), at(69)], [340.0, 340.0]);
        assert_eq!([at(77), at(100), at(1_000)], [0.0, 0.0, 0.0]);
        for tenth in 1..1_000 {
            let before = load.at(Duration::from_millis(100 * (tenth - 1)));
            let after = load.at(Duration::from_millis(100 * tenth));
            assert!((after - before).abs() < 6.0, "jump at {tenth} tenths");
        }
    }
}
