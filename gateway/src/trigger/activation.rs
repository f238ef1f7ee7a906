//! Rule 4 of the design: whether the workload is in use.
//!
//! Guarantees: called only beside a verdict with a value, for the same observations and `now`, so
//! that activity and value never contradict each other. A burst between two polls is not lost:
//! every sample of the activation window counts. A pod that should report and does not keeps the
//! workload active, because going to zero is a move too, and what is unknown can only cancel moves.

use std::time::Duration;

use shared::time::Timestamp;

use crate::trigger::coverage::{PodState, classify};
use crate::trigger::observed::{DemandReading, Observed, Past};
use crate::trigger::spec::Trigger;
use crate::trigger::sum::exceeded_at;
use crate::trigger::verdict::{Reason, Verdict};

/// Whether the workload is active, given the verdict on the same observations.
pub fn is_active(
    trigger: &Trigger,
    observed: &Observed,
    verdict: &Verdict,
    past: &dyn Past,
    now: Timestamp,
) -> bool {
    match verdict.reason {
        Reason::AtZero => return false,
        Reason::Demand => return demand_exceeds(trigger, observed),
        Reason::Starting { .. } => return true,
        _ => {}
    }
    if trigger.active_while_pods_exist {
        return true;
    }
    let watched = observed.watched_since.map_or(Duration::ZERO, |since| now.since(since));
    verdict.coverage.starting + verdict.coverage.absent > 0
        || may_be_in_use(trigger, observed, now)
        || watched < trigger.activation_window
        || exceeded_within_window(trigger, past, now)
}

fn demand_exceeds(trigger: &Trigger, observed: &Observed) -> bool {
    match (&observed.demand, &trigger.demand) {
        (DemandReading::Value(value), Some(demand)) => *value > demand.threshold,
        _ => false,
    }
}

/// The threshold for a part's own readings: a composite's is in percent of a replica.
fn threshold(trigger: &Trigger, at: usize) -> f64 {
    let scale = if trigger.composite { trigger.parts[at].target / trigger.target } else { 1.0 };
    trigger.activation_threshold * scale
}

fn may_be_in_use(trigger: &Trigger, observed: &Observed, now: Timestamp) -> bool {
    if trigger.reads_engines() && observed.serving {
        return true;
    }
    (0..trigger.parts.len()).any(|at| {
        let metric = trigger.parts[at].metric;
        let (states, _) = classify(trigger, metric, observed, &observed.parts[at], now);
        states.iter().any(|state| match state {
            PodState::Reporting(x) => *x > threshold(trigger, at),
            // What it does is not known: that is no reason to switch it off.
            PodState::Missing(_) => true,
            _ => false,
        })
    })
}

fn exceeded_within_window(trigger: &Trigger, past: &dyn Past, now: Timestamp) -> bool {
    let from = now - trigger.activation_window;
    if trigger.reads_engines() && past.served_since(from) {
        return true;
    }
    (0..trigger.parts.len()).any(|at| {
        let metric = trigger.parts[at].metric;
        past.series(at, from).iter().any(|series| {
            exceeded_at(trigger, metric, series, threshold(trigger, at)).any(|when| when > from)
        })
    })
}
