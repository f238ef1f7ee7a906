//! Which pods report, start, are missing or stuck: the words of the design, decided in one place.

use shared::metric::Metric;
use shared::time::Timestamp;

use crate::trigger::observed::{Observed, PartReadings, Pod, Seen};
use crate::trigger::pod::{NotRead, fresh_for, read};
use crate::trigger::spec::Trigger;

/// How many pods are in which state, for one part of a trigger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Ready, with a fresh reading of every selected device.
    pub reporting: u32,
    /// On the way to that, within the time they may take.
    pub starting: u32,
    /// Ready, without a fresh reading.
    pub missing: u32,
    /// Not Ready for longer than `coldStartTimeout`.
    pub stuck: u32,
    /// Ready, and saying that they do not have the metric.
    pub unsupported: u32,
    /// Ordered, but not existing yet, within the time they may take.
    pub absent: u32,
    /// Of those that start: how many the scheduler has no place for.
    pub unscheduled: u32,
    /// Of those that are stuck: how many the scheduler has no place for.
    pub stuck_unscheduled: u32,
}

/// The state of one pod.
#[derive(Clone, Debug, PartialEq)]
pub enum PodState {
    /// Ready, with this reading.
    Reporting(f64),
    /// On the way to it.
    Starting,
    /// Ready, without a fresh reading; why.
    Missing(NotRead),
    /// Not Ready for too long.
    Stuck,
    /// Ready, without the metric; why.
    Unsupported(NotRead),
}

impl PodState {
    /// The word used for it at every interface.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Reporting(_) => "reporting",
            Self::Starting => "starting",
            Self::Missing(_) => "missing",
            Self::Stuck => "stuck",
            Self::Unsupported(_) => "unsupported",
        }
    }
}

/// The state of every pod for the part of the trigger that reads `metric`, and their counts.
pub fn classify(
    trigger: &Trigger,
    metric: Metric,
    observed: &Observed,
    readings: &PartReadings,
    now: Timestamp,
) -> (Vec<PodState>, Coverage) {
    let mut coverage = Coverage { absent: absent(trigger, observed, now), ..Coverage::default() };
    let states = (observed.pods.iter().enumerate())
        .map(|(at, pod)| {
            let state = state_of(trigger, metric, pod, readings.of(at), now);
            let unscheduled = u32::from(!pod.ready && pod.unscheduled.is_some());
            match state {
                PodState::Reporting(_) => coverage.reporting += 1,
                PodState::Starting => {
                    coverage.starting += 1;
                    coverage.unscheduled += unscheduled;
                }
                PodState::Missing(_) => coverage.missing += 1,
                PodState::Stuck => {
                    coverage.stuck += 1;
                    coverage.stuck_unscheduled += unscheduled;
                }
                PodState::Unsupported(_) => coverage.unsupported += 1,
            }
            state
        })
        .collect();
    (states, coverage)
}

fn state_of(
    trigger: &Trigger,
    metric: Metric,
    pod: &Pod,
    seen: &[Seen],
    now: Timestamp,
) -> PodState {
    let for_how_long = now.since(pod.since);
    if !pod.ready {
        let stuck = for_how_long >= trigger.cold_start_timeout;
        return if stuck { PodState::Stuck } else { PodState::Starting };
    }
    if for_how_long < trigger.startup_grace {
        return PodState::Starting;
    }
    match read(trigger, metric, seen, now) {
        Ok(value) => PodState::Reporting(value),
        Err(NotRead::Never | NotRead::NotYet(_)) if for_how_long < trigger.stale_after => {
            PodState::Starting
        }
        Err(
            why @ (NotRead::Unsupported | NotRead::UnsupportedByMig | NotRead::NoSuchDevice { .. }),
        ) => PodState::Unsupported(why),
        Err(why) => PodState::Missing(why),
    }
}

/// Ordered pods that do not exist yet; after `coldStartTimeout` they are not on their way any more.
fn absent(trigger: &Trigger, observed: &Observed, now: Timestamp) -> u32 {
    let existing = u32::try_from(observed.pods.len()).unwrap_or(u32::MAX);
    match observed.short_since {
        Some(since) if now.since(since) < trigger.cold_start_timeout => {
            observed.replicas.saturating_sub(existing)
        }
        _ => 0,
    }
}

/// Ready pods that no agent has given a fresh word of, for whatever metric.
pub fn unheard(
    trigger: &Trigger,
    observed: &Observed,
    readings: &PartReadings,
    now: Timestamp,
) -> u32 {
    let heard = |seen: &Seen| {
        seen.taken_at.is_some_and(|taken_at| now.since(taken_at) <= fresh_for(trigger, seen))
    };
    let unheard = observed.pods.iter().enumerate().filter(|(at, pod)| {
        let seen = readings.of(*at);
        pod.ready && (seen.is_empty() || !seen.iter().all(heard))
    });
    u32::try_from(unheard.count()).unwrap_or(u32::MAX)
}
