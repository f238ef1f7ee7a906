//! KEDA's part: what the operator does with activity, once per poll or push.
//!
//! Guarantees: the zero transitions of a ScaledObject with one trigger and no fallback; an error
//! holds; nothing else is scaled here (1 to N is the HPA's). No clock is read.

use std::fmt;
use std::time::Duration;

use shared::time::Timestamp;

/// What the ScaledObject says.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// `minReplicaCount`.
    pub min: u32,
    /// `cooldownPeriod`.
    pub cooldown: Duration,
}

/// What a poll saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// The trigger is active.
    Active,
    /// It is not.
    Inactive,
    /// One of the calls failed.
    Error,
}

/// What KEDA does, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Replicas stay.
    Hold(Why),
    /// Replicas are set, past the HPA.
    Scale(u32, Why),
}

/// Why KEDA does what it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Active at zero.
    Woken,
    /// Active and running: the HPA decides.
    Active,
    /// Inactive for longer than the cooldown.
    Asleep,
    /// Inactive, but not for long enough yet.
    CoolingDown,
    /// Inactive, and not allowed to go to zero.
    Floor,
    /// No answer.
    Error,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Woken => "active at zero",
            Self::Active => "active",
            Self::Asleep => "inactive for the whole cooldown",
            Self::CoolingDown => "inactive, cooling down",
            Self::Floor => "inactive, at the floor",
            Self::Error => "no answer: replicas stay",
        })
    }
}

/// One ScaledObject's scale loop.
#[derive(Clone, Debug)]
pub struct Keda {
    rules: Rules,
    last_active: Option<Timestamp>,
}

impl Keda {
    /// A loop that has seen nothing yet.
    pub fn new(rules: Rules) -> Self {
        Self { rules, last_active: None }
    }

    /// What a poll, or a `true` pushed on the stream, leads to.
    pub fn decide(&mut self, now: Timestamp, replicas: u32, seen: Activity) -> Action {
        match seen {
            Activity::Error => Action::Hold(Why::Error),
            Activity::Active => {
                self.last_active = Some(now);
                if replicas == 0 {
                    Action::Scale(self.rules.min.max(1), Why::Woken)
                } else {
                    Action::Hold(Why::Active)
                }
            }
            Activity::Inactive if replicas < self.rules.min => {
                Action::Scale(self.rules.min, Why::Floor)
            }
            Activity::Inactive if replicas == 0 || self.rules.min > 0 => Action::Hold(Why::Floor),
            Activity::Inactive if self.has_cooled_down(now) => Action::Scale(0, Why::Asleep),
            Activity::Inactive => Action::Hold(Why::CoolingDown),
        }
    }

    /// What was never seen active does not have to cool down.
    fn has_cooled_down(&self, now: Timestamp) -> bool {
        self.last_active.is_none_or(|at| now.since(at) > self.rules.cooldown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Activity::{Active, Error, Inactive};

    fn seconds(seconds: i64) -> Timestamp {
        Timestamp::from_millis(seconds * 1_000)
    }

    fn keda(min: u32) -> Keda {
        let cooldown = Duration::from_secs(10);
        Keda::new(Rules { min, cooldown })
    }

    #[test]
    fn a_workload_wakes_and_falls_asleep_only_after_the_cooldown() {
        let mut keda = keda(0);
        let steps = [
            (0, 0, Inactive, Action::Hold(Why::Floor)),
            (5, 0, Active, Action::Scale(1, Why::Woken)),
            (10, 4, Active, Action::Hold(Why::Active)),
            (15, 4, Inactive, Action::Hold(Why::CoolingDown)),
            (20, 4, Inactive, Action::Hold(Why::CoolingDown)),
            (21, 4, Inactive, Action::Scale(0, Why::Asleep)),
            (25, 0, Inactive, Action::Hold(Why::Floor)),
        ];
        for (at, replicas, seen, expected) in steps {
            assert_eq!(keda.decide(seconds(at), replicas, seen), expected, "at {at} s");
        }
    }

    #[test]
    fn an_error_neither_wakes_nor_kills_nor_counts_as_active() {
        let mut keda = keda(0);
        assert_eq!(keda.decide(seconds(0), 0, Error), Action::Hold(Why::Error));
        assert_eq!(keda.decide(seconds(1), 4, Active), Action::Hold(Why::Active));
        assert_eq!(keda.decide(seconds(60), 4, Error), Action::Hold(Why::Error));
        let action = keda.decide(seconds(61), 4, Inactive);
        assert_eq!(action, Action::Scale(0, Why::Asleep));
    }

    #[test]
    fn a_minimum_is_restored_and_never_left() {
        let mut keda = keda(2);
        assert_eq!(keda.decide(seconds(0), 0, Active), Action::Scale(2, Why::Woken));
        assert_eq!(keda.decide(seconds(99), 5, Inactive), Action::Hold(Why::Floor));
        assert_eq!(keda.decide(seconds(99), 1, Inactive), Action::Scale(2, Why::Floor));
    }

    #[test]
    fn what_was_never_active_goes_to_zero_at_once() {
        let action = keda(0).decide(seconds(0), 3, Inactive);
        assert_eq!(action, Action::Scale(0, Why::Asleep));
    }
}
