//! Pure: what a device's energy total showed, and when → what was used since.
//!
//! Guarantees: nothing is counted twice and nothing is made up: a counter that began anew counts
//! from zero, one that says what cannot be is not believed until it has said so three times, and
//! another agent's estimate is not compared with this one's. With what was used comes since when:
//! readings that are missing or not believed lie within that time.

use std::time::Duration;

use shared::health::Energy;
use shared::time::Timestamp;

/// More than any device draws; a total that grows faster is broken.
pub const MAX_WATTS: f64 = 5_000.0;
/// A counter's steps, and the time between its being read and its time stamp.
const SLACK: Duration = Duration::from_millis(250);
/// Looks at which a total must go on from one that could not be, to be taken for the new one.
const CONVINCING: u8 = 3;
/// A counter that fell to no more than this part of what it showed began anew; one that fell less
/// went astray.
const ANEW: f64 = 0.5;

/// One device's total, as far as it was followed.
#[derive(Debug, Default)]
pub struct Meter {
    base: Option<(Timestamp, Energy)>,
    /// Rare, and apart so that those without are small.
    doubt: Option<Box<Doubt>>,
}

/// A total that cannot follow from the one before.
#[derive(Clone, Copy, Debug)]
struct Doubt {
    first: (Timestamp, f64),
    last: (Timestamp, f64),
    looks: u8,
}

/// What was used since the total before.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Used {
    /// There is nothing to compare with.
    Unknown,
    /// So many joules.
    Joules {
        /// How many.
        joules: f64,
        /// Since when.
        since: Timestamp,
    },
    /// The total cannot be true.
    Doubtful,
}

impl Meter {
    /// Takes what the total showed at `at`.
    pub fn follow(&mut self, energy: Option<Energy>, at: Timestamp) -> Used {
        let Some(energy) = energy else { return Used::Unknown };
        let Some((before, base)) = self.base.filter(|(_, base)| base.origin == energy.origin)
        else {
            *self = Self { base: Some((at, energy)), doubt: None };
            return Used::Unknown;
        };
        if at <= before {
            return Used::Unknown;
        }
        let grown = grown(base.joules, energy.joules);
        if let Some(joules) = grown.filter(|grown| *grown <= most(at.since(before))) {
            *self = Self { base: Some((at, energy)), doubt: None };
            return Used::Joules { joules, since: before };
        }
        let shown = (at, energy.joules);
        let doubt = match self.doubt.as_deref() {
            Some(doubt) if goes_on(doubt.last, shown) => {
                Doubt { last: shown, looks: doubt.looks + 1, ..*doubt }
            }
            _ => Doubt { first: shown, last: shown, looks: 1 },
        };
        if doubt.looks < CONVINCING {
            self.doubt = Some(doubt.into());
            return Used::Doubtful;
        }
        *self = Self { base: Some((at, energy)), doubt: None };
        let (since, first) = doubt.first;
        Used::Joules { joules: energy.joules - first, since }
    }
}

/// What a total grew by, if it can have.
fn grown(before: f64, now: f64) -> Option<f64> {
    if now >= before { Some(now - before) } else { Some(now).filter(|now| *now <= before * ANEW) }
}

fn most(time: Duration) -> f64 {
    MAX_WATTS * (time + SLACK).as_secs_f64()
}

fn goes_on((before, last): (Timestamp, f64), (at, joules): (Timestamp, f64)) -> bool {
    (0.0..=most(at.since(before))).contains(&(joules - last))
}

#[cfg(test)]
mod tests {
    use shared::health::Origin;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_millis(second * 1_000)
    }

    fn joules(joules: f64, since: i64) -> Used {
        Used::Joules { joules, since: at(since) }
    }

    /// Totals, a second apart; what was used.
    fn followed(totals: &[f64]) -> Vec<Used> {
        let mut meter = Meter::default();
        let totals = (0..).zip(totals);
        totals
            .map(|(second, joules)| {
                meter.follow(Some(Energy { joules: *joules, origin: Origin::Counter }), at(second))
            })
            .collect()
    }

    #[test]
    fn a_counter_that_began_anew_counts_from_zero() {
        let totals = [1e6, 1e6 + 300.0, 150.0, 450.0];
        let used = [Used::Unknown, joules(300.0, 0), joules(150.0, 1), joules(300.0, 2)];
        assert_eq!(followed(&totals), used);
    }

    #[test]
    fn a_counter_that_blips_back_is_not_counted_again() {
        use Used::{Doubtful, Unknown};
        let blips = [5_000.0, 4_999.0, 5_000.0, 4_000.0, 5_200.0];
        let used = [Unknown, Doubtful, joules(0.0, 0), Doubtful, joules(200.0, 2)];
        assert_eq!(followed(&blips), used);
        let astray = [5_000.0, 4_990.0, 4_992.0, 4_994.0, 4_996.0];
        assert_eq!(
            followed(&astray),
            [Unknown, Doubtful, Doubtful, joules(4.0, 1), joules(2.0, 3)]
        );
    }

    #[test]
    fn one_absurd_look_changes_nothing_and_three_that_agree_are_a_new_counter() {
        use Used::{Doubtful, Unknown};
        let blip = [1e6, 1e12, 1e6 + 600.0, 9e5, 1e6 + 1_200.0];
        assert_eq!(
            followed(&blip),
            [Unknown, Doubtful, joules(600.0, 0), Doubtful, joules(600.0, 2)],
            "the base stands while one look is doubted"
        );
        let other = [1e6, 5e8, 5e8 + 300.0, 5e8 + 600.0, 5e8 + 900.0];
        let used = [Unknown, Doubtful, Doubtful, joules(600.0, 1), joules(300.0, 3)];
        assert_eq!(followed(&other), used, "what is believed at last is of that time");
        let noise = [1e6, 1e12, 1e9, 1e11, 1e10, 1e6 + 1_500.0];
        let used = followed(&noise);
        assert_eq!(used[1..5], [Doubtful; 4]);
        assert_eq!(used[5], joules(1_500.0, 0));
    }

    #[test]
    fn time_that_stands_still_or_runs_back_and_another_agents_estimate_add_nothing() {
        let energy = |joules, agent| Some(Energy { joules, origin: Origin::Integrated(agent) });
        let mut meter = Meter::default();
        assert_eq!(meter.follow(energy(500.0, 1), at(10)), Used::Unknown);
        assert_eq!(meter.follow(energy(900.0, 1), at(10)), Used::Unknown);
        assert_eq!(meter.follow(energy(900.0, 1), at(9)), Used::Unknown);
        assert_eq!(meter.follow(None, at(11)), Used::Unknown);
        assert_eq!(meter.follow(energy(800.0, 1), at(12)), joules(300.0, 10));
        assert_eq!(meter.follow(energy(10.0, 2), at(13)), Used::Unknown);
        assert_eq!(meter.follow(energy(30.0, 2), at(14)), joules(20.0, 13));
    }

    #[test]
    fn a_long_gap_is_counted_as_a_whole() {
        let mut meter = Meter::default();
        let energy = |joules| Some(Energy { joules, origin: Origin::Counter });
        meter.follow(energy(1e6), at(0));
        assert_eq!(meter.follow(energy(1e6 + 180_000.0), at(600)), joules(180_000.0, 0));
    }
}
