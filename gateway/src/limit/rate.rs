//! Pure: messages per second, with room for a burst.
//!
//! Guarantees: over any long time no more than `PER_SECOND` pass, and never more than `BURST` at
//! once; who keeps to that never waits.

use std::time::Duration;

use shared::time::Timestamp;

/// Messages of one agent in a second: five times what the shortest interval needs.
pub const PER_SECOND: u32 = 50;
/// Messages that may come at once, as after a pause of the network.
pub const BURST: u32 = 100;

/// One agent's allowance.
#[derive(Debug, Default)]
pub struct Rate {
    /// When everything that was taken is paid for; the past if nothing is owed.
    paid: Timestamp,
}

impl Rate {
    /// Takes one message, and says how long to wait before the next.
    pub fn take(&mut self, now: Timestamp) -> Duration {
        let each = Duration::from_secs(1) / PER_SECOND;
        self.paid = self.paid.max(now) + each;
        self.paid.since(now).saturating_sub(each * BURST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_keeps_to_the_shortest_interval_never_waits() {
        let mut rate = Rate::default();
        for tick in 0..1_000 {
            // An inventory and a sample at each tick.
            for _ in 0..2 {
                assert_eq!(rate.take(Timestamp::from_millis(tick * 100)), Duration::ZERO);
            }
        }
    }

    #[test]
    fn a_flood_passes_at_the_rate_after_its_burst() {
        let mut rate = Rate::default();
        let (mut now, mut taken) = (Timestamp::START, 0);
        while now < Timestamp::START + Duration::from_secs(10) {
            now = now + rate.take(now);
            taken += 1;
        }
        let most = BURST + 10 * PER_SECOND;
        assert!((most - 2..=most + 2).contains(&taken), "{taken}");
    }
}
