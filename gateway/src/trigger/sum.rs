//! Pods' readings → S, now or over a window.

use std::time::Duration;

use shared::metric::Metric;
use shared::time::Timestamp;

use crate::trigger::aggregate::{aggregate, nearest_rank};
use crate::trigger::coverage::PodState;
use crate::trigger::observed::{PartReadings, Seen, Series};
use crate::trigger::pod::{NotRead, read, select, values};
use crate::trigger::spec::{Aggregation, Trigger, WindowFunction};

/// What the reporting pods add up to, for the AverageValue formula, and for a flat aggregation
/// the literal figure too.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sum {
    /// S of the design.
    pub s: f64,
    /// `max` of 90 is 90.
    pub literal: Option<f64>,
}

fn sum_of(aggregation: Aggregation, pods: &[(f64, &[Seen])]) -> Sum {
    let count = u32::try_from(pods.len()).unwrap_or(u32::MAX);
    let devices = || pods.iter().flat_map(|(_, selected)| values(selected));
    match aggregation {
        Aggregation::Total => {
            Sum { s: aggregate(Aggregation::Sum, pods.iter().map(|(x, _)| *x)), literal: None }
        }
        Aggregation::Sum => {
            let sum = aggregate(Aggregation::Sum, devices());
            Sum { s: sum, literal: Some(sum) }
        }
        _ if pods.is_empty() => Sum { s: 0.0, literal: None },
        flat => {
            let literal = aggregate(flat, devices());
            Sum { s: literal * f64::from(count), literal: Some(literal) }
        }
    }
}

/// S of the pods that report now.
pub fn sum_now(
    trigger: &Trigger,
    metric: Metric,
    states: &[PodState],
    readings: &PartReadings,
) -> Sum {
    let mut reporting: Vec<(f64, &[Seen])> = Vec::with_capacity(states.len());
    reporting.extend(states.iter().enumerate().filter_map(|(at, state)| match state {
        PodState::Reporting(x) => Some((*x, select(trigger, metric, readings.of(at)).ok()?)),
        _ => None,
    }));
    sum_of(trigger.aggregation, &reporting)
}

/// S over the trigger's window: formed at each sampling instant from the pods Ready then. Instants
/// at which one of those was missing are skipped; `None` if that leaves none.
pub fn sum_over_window(
    trigger: &Trigger,
    metric: Metric,
    series: &[Series],
    now: Timestamp,
) -> Option<Sum> {
    let step = series
        .iter()
        .flat_map(|pod| pod.samples.iter().flatten())
        .map(Seen::interval)
        .max()?
        .max(Duration::from_millis(100));
    let lines: Vec<TimeLine<'_>> = series.iter().map(TimeLine::of).collect();
    let mut sums = Vec::new();
    let mut back = Duration::ZERO;
    while back < trigger.window {
        sums.extend(sum_at(trigger, metric, &lines, now - back));
        back += step;
    }
    over(trigger.window_function, &sums)
}

/// A pod's samples in the order they were taken, so that a moment is found by halving.
struct TimeLine<'a> {
    pod: &'a Series,
    samples: Vec<(Timestamp, &'a [Seen])>,
}

fn taken_at(sample: &[Seen]) -> Option<Timestamp> {
    sample.iter().filter_map(|seen| seen.taken_at).max()
}

impl<'a> TimeLine<'a> {
    fn of(pod: &'a Series) -> Self {
        let samples = pod.samples.iter().filter_map(|sample| Some((taken_at(sample)?, &**sample)));
        let mut samples: Vec<_> = samples.collect();
        samples.sort_by_key(|(taken_at, _)| *taken_at);
        Self { pod, samples }
    }

    fn newest_at(&self, at: Timestamp) -> Option<&'a [Seen]> {
        let after = self.samples.partition_point(|(taken_at, _)| *taken_at <= at);
        Some(self.samples.get(after.checked_sub(1)?)?.1)
    }
}

fn sum_at(trigger: &Trigger, metric: Metric, lines: &[TimeLine<'_>], at: Timestamp) -> Option<Sum> {
    let mut reporting = Vec::with_capacity(lines.len());
    for line in lines {
        let pod = line.pod;
        let ready = pod.ready_from <= at && pod.ready_until.is_none_or(|until| at < until);
        if !ready || at.since(pod.ready_from) < trigger.startup_grace {
            continue;
        }
        match line.newest_at(at) {
            Some(sample) => match read(trigger, metric, sample, at) {
                Ok(x) => reporting.push((x, select(trigger, metric, sample).ok()?)),
                Err(_) => return None,
            },
            None if at.since(pod.ready_from) < trigger.stale_after => {}
            None => return None,
        }
    }
    (!reporting.is_empty()).then(|| sum_of(trigger.aggregation, &reporting))
}

fn over(function: WindowFunction, sums: &[Sum]) -> Option<Sum> {
    let apply = |all: Vec<f64>| match function {
        WindowFunction::Avg => aggregate(Aggregation::Avg, all.into_iter()),
        WindowFunction::Max => aggregate(Aggregation::Max, all.into_iter()),
        WindowFunction::Min => aggregate(Aggregation::Min, all.into_iter()),
        WindowFunction::P90 => nearest_rank(all, 90),
    };
    if sums.is_empty() {
        return None;
    }
    let literals: Option<Vec<f64>> = sums.iter().map(|sum| sum.literal).collect();
    Some(Sum { s: apply(sums.iter().map(|sum| sum.s).collect()), literal: literals.map(apply) })
}

/// Every moment at which a pod of `series` had a reading above `threshold`, newest not first.
pub fn exceeded_at<'a>(
    trigger: &'a Trigger,
    metric: Metric,
    series: &'a Series,
    threshold: f64,
) -> impl Iterator<Item = Timestamp> + 'a {
    series.samples.iter().filter_map(move |sample| {
        let taken_at = taken_at(sample)?;
        let was_ready = series.ready_from + trigger.startup_grace <= taken_at
            && series.ready_until.is_none_or(|until| taken_at < until);
        let reading: Result<f64, NotRead> = read(trigger, metric, sample, taken_at);
        (was_ready && reading.is_ok_and(|x| x > threshold)).then_some(taken_at)
    })
}
