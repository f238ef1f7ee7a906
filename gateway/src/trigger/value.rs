//! Rules 1 and 2 of the design: S, coverage and the replicas ordered → the value.

use std::sync::Arc;

use shared::metric::{Metric, Scope};
use shared::time::Timestamp;

use crate::trigger::coverage::{Coverage, PodState, classify, unheard};
use crate::trigger::number::thousandths;
use crate::trigger::observed::{DemandReading, Observed, Past, TargetType};
use crate::trigger::pod::NotRead;
use crate::trigger::spec::{Aggregation, Trigger};
use crate::trigger::sum::{Sum, sum_now, sum_over_window};
use crate::trigger::verdict::{Direction, Figures, Outcome, Reason, Verdict};

/// KEDA multiplies by 1000 into 64 bits before 2.20; nothing above this is sent.
const MAX_VALUE: f64 = 9e15;

/// The HPA's tolerance: ratios this close to 1 change nothing.
const TOLERANCE: f64 = 0.1;

/// Names of pods in a reason.
const NAMED: usize = 3;

/// One part of the trigger with the states of the pods for it.
struct Part {
    metric: Metric,
    states: Vec<PodState>,
    coverage: Coverage,
    /// The value it stands for and its figures; `None` while no pod reports it.
    known: Option<(f64, Figures)>,
}

/// What the HPA is told about `trigger`, and why.
pub fn assess(trigger: &Trigger, observed: &Observed, past: &dyn Past, now: Timestamp) -> Verdict {
    if observed.replicas == 0 && observed.pods.is_empty() {
        return from_demand(observed, Coverage::default(), Reason::AtZero);
    }
    let parts: Vec<Part> =
        (0..trigger.parts.len()).map(|at| assess_part(trigger, at, observed, past, now)).collect();
    let covers = |part: &Part| part.coverage.reporting >= observed.replicas;
    if !observed.warm && !parts.iter().all(covers) {
        let unheard = observed.parts.iter().map(|part| unheard(trigger, observed, part, now));
        if let Some(unheard) = unheard.max().filter(|unheard| *unheard > 0) {
            return unavailable(Reason::WarmingUp { unheard }, Coverage::default());
        }
    }
    match decisive(trigger, observed, &parts) {
        Some((part, value, figures)) => Verdict {
            outcome: Outcome::Value(thousandths(value).clamp(0.0, MAX_VALUE)),
            reason: Reason::Measured {
                replicas: observed.replicas,
                filled: filled(observed, part.coverage),
                direction: figures.direction,
                metric: part.metric,
                coverage: part.coverage,
                why: why_unknown(part),
            },
            coverage: part.coverage,
            figures: Some(figures),
        },
        None => unknown(trigger, observed, &parts),
    }
}

/// What KEDA is told about a ScaledJob: the demand, always, never filled.
pub fn assess_job(observed: &Observed) -> Verdict {
    if observed.demand != DemandReading::None {
        return from_demand(observed, Coverage::default(), Reason::JobWithoutDemand);
    }
    Verdict {
        outcome: Outcome::FailedPrecondition,
        reason: Reason::JobWithoutDemand,
        coverage: Coverage::default(),
        figures: None,
    }
}

/// The part with the largest value. A part that is unknown everywhere counts as hold while
/// another is fresh.
fn decisive<'a>(
    trigger: &Trigger,
    observed: &Observed,
    parts: &'a [Part],
) -> Option<(&'a Part, f64, Figures)> {
    let unknown = hold(trigger, observed);
    parts.iter().find(|part| part.known.is_some())?;
    parts
        .iter()
        .map(|part| {
            let (value, figures) = part.known.unwrap_or(unknown);
            (part, value, figures)
        })
        .reduce(|best, next| if next.1 > best.1 { next } else { best })
}

fn hold(trigger: &Trigger, observed: &Observed) -> (f64, Figures) {
    let hold = thousandths(trigger.target * f64::from(observed.replicas));
    let value = match observed.target_type {
        TargetType::AverageValue => hold,
        TargetType::Value => trigger.target,
    };
    (value, Figures { s: 0.0, up: 0.0, down: hold, hold, direction: Direction::Hold })
}

fn assess_part(
    trigger: &Trigger,
    at: usize,
    observed: &Observed,
    past: &dyn Past,
    now: Timestamp,
) -> Part {
    let (metric, target) = (trigger.parts[at].metric, trigger.parts[at].target);
    let readings = &observed.parts[at];
    let (states, coverage) = classify(trigger, metric, observed, readings, now);
    if coverage.reporting == 0 {
        return Part { metric, states, coverage, known: None };
    }
    let sum = if trigger.window.is_zero() {
        None
    } else {
        sum_over_window(trigger, metric, &past.series(at, now - trigger.window), now)
    };
    let sum = sum.unwrap_or_else(|| sum_now(trigger, metric, &states, readings));
    // In a composite every part is measured in percent of its own target.
    let scale = if trigger.composite { trigger.target / target } else { 1.0 };
    let sum = Sum { s: sum.s * scale, literal: sum.literal.map(|literal| literal * scale) };
    let figures = fill(trigger, observed, coverage, sum.s);
    let value = match observed.target_type {
        TargetType::AverageValue => average_value(figures),
        TargetType::Value => plain_value(trigger, observed, coverage, sum, figures),
    };
    Part { metric, states, coverage, known: Some((value, figures)) }
}

/// m of the design: pods whose load is not known but that are, or soon will be, there.
fn filled(observed: &Observed, coverage: Coverage) -> u32 {
    let lacking = observed.replicas.saturating_sub(coverage.reporting);
    lacking.min(coverage.starting + coverage.missing + coverage.unsupported + coverage.absent)
}

/// Rule 1.
fn fill(trigger: &Trigger, observed: &Observed, coverage: Coverage, s: f64) -> Figures {
    let m = f64::from(filled(observed, coverage));
    let up = thousandths(s);
    let down = thousandths(s + m * trigger.target);
    let hold = thousandths(trigger.target * f64::from(observed.replicas));
    let direction = if up >= hold {
        Direction::Up
    } else if down <= hold {
        Direction::Down
    } else {
        Direction::Hold
    };
    Figures { s: up, up, down, hold, direction }
}

fn average_value(figures: Figures) -> f64 {
    match figures.direction {
        Direction::Up => figures.up,
        Direction::Down => figures.down,
        Direction::Hold => figures.hold,
    }
}

/// Rule 2: what the HPA multiplies its ready pods by.
fn plain_value(
    trigger: &Trigger,
    observed: &Observed,
    coverage: Coverage,
    sum: Sum,
    figures: Figures,
) -> f64 {
    if observed.ready_running == 0 {
        return trigger.target;
    }
    let ready = f64::from(observed.ready_running);
    if trigger.aggregation != Aggregation::Total
        && let Some(literal) = sum.literal
    {
        let ready_pod_missing = coverage.missing + coverage.unsupported > 0;
        return if ready_pod_missing { literal.max(trigger.target) } else { literal };
    }
    match figures.direction {
        Direction::Hold => trigger.target,
        Direction::Up if figures.up <= figures.hold * (1.0 + TOLERANCE) => trigger.target,
        Direction::Up => figures.up / ready,
        Direction::Down => figures.down / ready,
    }
}

/// No pod reports any part: error, hold, or the demand source.
fn unknown(trigger: &Trigger, observed: &Observed, parts: &[Part]) -> Verdict {
    let first = &parts[0];
    let coverage = first.coverage;
    if parts.iter().all(|part| part.coverage.unsupported > 0) {
        return Verdict {
            outcome: Outcome::FailedPrecondition,
            reason: Reason::Unsupported {
                metric: first.metric,
                why: why_unsupported(trigger, first).into(),
                offers: observed.offers,
            },
            coverage,
            figures: None,
        };
    }
    if let Some(part) =
        parts.iter().find(|part| part.coverage.missing + part.coverage.unsupported > 0)
    {
        return unavailable(no_fresh_reading(observed, part), part.coverage);
    }
    let on_their_way = coverage.starting + coverage.absent;
    if on_their_way == 0 {
        let pods = observed.replicas.max(coverage.stuck);
        let reason = Reason::Stuck { pods, unscheduled: coverage.stuck_unscheduled };
        return from_demand(observed, coverage, reason);
    }
    let (value, figures) = hold(trigger, observed);
    Verdict {
        outcome: Outcome::Value(thousandths(value).clamp(0.0, MAX_VALUE)),
        reason: Reason::Starting { pods: on_their_way, unscheduled: coverage.unscheduled },
        coverage,
        figures: Some(figures),
    }
}

/// Why no pod reports a part that counts as hold.
fn why_unknown(part: &Part) -> Option<Arc<str>> {
    let reason = |state: &PodState| match state {
        PodState::Missing(why) | PodState::Unsupported(why) => Some(why.to_string().into()),
        _ => None,
    };
    if part.coverage.reporting > 0 { None } else { part.states.iter().find_map(reason) }
}

fn why_unsupported(trigger: &Trigger, part: &Part) -> String {
    let why = part.states.iter().find_map(|state| match state {
        PodState::Unsupported(why) => Some(why),
        _ => None,
    });
    match (why.unwrap_or(&NotRead::Unsupported), trigger.engine) {
        (NotRead::Unsupported, Some(engine)) if part.metric.scope() == Scope::Engine => {
            format!("{engine} does not publish it in these pods")
        }
        (why, _) => why.to_string(),
    }
}

fn no_fresh_reading(observed: &Observed, part: &Part) -> Reason {
    let mut why = None;
    let pods: Vec<Arc<str>> = observed
        .pods
        .iter()
        .zip(&part.states)
        .filter_map(|(pod, state)| match state {
            PodState::Missing(reason) | PodState::Unsupported(reason) => {
                why.get_or_insert(reason);
                Some(pod.name.clone())
            }
            _ => None,
        })
        .collect();
    Reason::NoFreshReading {
        count: part.coverage.missing + part.coverage.unsupported,
        pods: pods.into_iter().take(NAMED).collect(),
        why: why.unwrap_or(&NotRead::Never).to_string().into(),
    }
}

/// With no pod to ask, the demand source speaks; `without` is the reason where there is none.
fn from_demand(observed: &Observed, coverage: Coverage, without: Reason) -> Verdict {
    let (outcome, reason) = match &observed.demand {
        DemandReading::Value(value) => {
            (Outcome::Value(thousandths(*value).clamp(0.0, MAX_VALUE)), Reason::Demand)
        }
        DemandReading::Unknown(why) => (Outcome::Unavailable, Reason::DemandUnknown(why.clone())),
        DemandReading::None if without == Reason::AtZero => (Outcome::Value(0.0), without),
        DemandReading::None => (Outcome::Unavailable, without),
    };
    Verdict { outcome, reason, coverage, figures: None }
}

fn unavailable(reason: Reason, coverage: Coverage) -> Verdict {
    Verdict { outcome: Outcome::Unavailable, reason, coverage, figures: None }
}
