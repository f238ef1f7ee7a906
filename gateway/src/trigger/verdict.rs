//! The answer and its reasons, as data: KEDA's calls, explanations, logs and tests all read this.

use std::fmt;
use std::sync::Arc;

use shared::metric::{Metric, MetricSet};

use crate::trigger::coverage::Coverage;

/// What is known about one trigger at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// The value for the HPA, or which kind of error.
    pub outcome: Outcome,
    /// Why.
    pub reason: Reason,
    /// How many pods it is made from.
    pub coverage: Coverage,
    /// The figures of rule 1, where there are any.
    pub figures: Option<Figures>,
}

/// The value for the HPA, or which kind of error.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Outcome {
    /// A value: finite, not negative, rounded to three decimals.
    Value(f64),
    /// Not known now.
    Unavailable,
    /// Can never be known with this hardware or setting.
    FailedPrecondition,
}

/// The figures of rule 1 for the part of the trigger that decided.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figures {
    /// What the reporting pods add up to.
    pub s: f64,
    /// The value if unknown pods had nothing to do.
    pub up: f64,
    /// The value if every unknown pod were exactly at the target.
    pub down: f64,
    /// The value that keeps the replicas.
    pub hold: f64,
    /// Which of the three was returned.
    pub direction: Direction,
}

/// Which way the value points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Even with unknown pods at nothing there is more load than the target.
    Up,
    /// Even with unknown pods at the target there is less.
    Down,
    /// What is unknown could tip it either way.
    Hold,
}

/// Why the verdict is what it is.
#[derive(Clone, Debug, PartialEq)]
pub enum Reason {
    /// Pods report; `filled` others are assumed to cancel a move, not to cause one.
    Measured {
        /// Replicas ordered.
        replicas: u32,
        /// Pods filled in.
        filled: u32,
        /// Which way the value points.
        direction: Direction,
        /// The metric that decided.
        metric: Metric,
        /// Pods by state.
        coverage: Coverage,
        /// Why no pod reports, for a part of a composite that counts as hold.
        why: Option<Arc<str>>,
    },
    /// No pod reports yet, and those that exist or were ordered are still starting.
    Starting {
        /// How many.
        pods: u32,
        /// How many of them the scheduler has no place for.
        unscheduled: u32,
    },
    /// Nothing was ordered and nothing is left.
    AtZero,
    /// Nothing is there, and the demand source decides.
    Demand,
    /// The demand source says nothing; why.
    DemandUnknown(Arc<str>),
    /// This replica has not yet heard from every node since it started.
    WarmingUp {
        /// Ready pods it has not heard of.
        unheard: u32,
    },
    /// Pods that should report do not.
    NoFreshReading {
        /// Some of their names.
        pods: Vec<Arc<str>>,
        /// How many they are.
        count: u32,
        /// What is wrong with the first of them.
        why: Arc<str>,
    },
    /// Every pod that reports says that it does not have the metric.
    Unsupported {
        /// The metric.
        metric: Metric,
        /// What is wrong.
        why: Arc<str>,
        /// What these pods do report.
        offers: MetricSet,
    },
    /// Every pod has been without readiness for longer than `coldStartTimeout`.
    Stuck {
        /// How many.
        pods: u32,
        /// How many of them the scheduler has no place for.
        unscheduled: u32,
    },
    /// A ScaledJob without a demand source.
    JobWithoutDemand,
}

fn plural(count: u32, word: &str) -> String {
    if count == 1 { format!("1 {word}") } else { format!("{count} {word}s") }
}

/// How many of them wait for a place, where some do.
fn waiting(unscheduled: u32) -> String {
    if unscheduled == 0 {
        return String::new();
    }
    format!(" ({unscheduled} waiting to be scheduled)")
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Measured { replicas, filled, direction, metric, coverage, why } => {
                let (reporting, ordered) = (coverage.reporting, plural(*replicas, "replica"));
                let report = if reporting == 1 { "reports" } else { "report" };
                write!(f, "{metric}: {reporting} of {ordered} {report}")?;
                if let Some(why) = why {
                    write!(f, " ({why})")?;
                }
                if *filled == 0 { Ok(()) } else { fmt_filled(f, *replicas, *coverage, *direction) }
            }
            Self::Starting { pods, unscheduled } => {
                let (pods, waiting) = (plural(*pods, "pod"), waiting(*unscheduled));
                write!(f, "{pods} starting{waiting}, none reports yet: nothing moves")
            }
            Self::AtZero => f.write_str("no replicas ordered and no pods left"),
            Self::Demand => f.write_str("no pod is ready; the demand source decides"),
            Self::DemandUnknown(why) => {
                write!(f, "no pod is ready and the demand source is not known: {why}")
            }
            Self::WarmingUp { unheard } => {
                let pods = plural(*unheard, "ready pod");
                write!(
                    f,
                    "warming up: the gateway has just started and has not heard of {pods} yet"
                )
            }
            Self::NoFreshReading { pods, count, why } => {
                let names = pods.iter().map(|name| &**name).collect::<Vec<_>>().join(", ");
                let more = if *count as usize > pods.len() { ", …" } else { "" };
                let pods = plural(*count, "ready pod");
                write!(f, "no fresh reading of {pods} ({names}{more}): {why}")
            }
            Self::Unsupported { metric, why, offers } => fmt_unsupported(f, *metric, why, *offers),
            Self::Stuck { pods, unscheduled } => {
                let (pods, waiting) = (plural(*pods, "pod"), waiting(*unscheduled));
                write!(f, "{pods} not ready for longer than coldStartTimeout{waiting}, ")?;
                f.write_str("and no demand source")
            }
            Self::JobWithoutDemand => f.write_str(
                "a ScaledJob is scaled by its demand source: set demandEndpoint and demandMetric",
            ),
        }
    }
}

/// Whose load is not known, and what was made of that.
fn fmt_filled(
    f: &mut fmt::Formatter<'_>,
    replicas: u32,
    coverage: Coverage,
    direction: Direction,
) -> fmt::Result {
    let unscheduled = coverage.unscheduled;
    let starting = coverage.starting + coverage.absent - unscheduled;
    let missing = coverage.missing + coverage.unsupported;
    let waiting = (unscheduled, "waiting to be scheduled");
    let others = [waiting, (starting, "starting"), (missing, "missing")].into_iter();
    let others =
        others.filter(|(count, _)| *count > 0).map(|(count, word)| format!("{count} {word}"));
    let others = others.collect::<Vec<_>>().join(" and ");
    match direction {
        Direction::Up => {
            write!(f, "; {others}, counted as idle, and even so all {replicas} are needed")
        }
        Direction::Down => {
            let all = plural(replicas, "replica");
            write!(f, "; {others}, counted as at the target, and even so {all} can take more load")
        }
        Direction::Hold => write!(f, "; {others} could tip it either way, so nothing moves"),
    }
}

fn fmt_unsupported(
    f: &mut fmt::Formatter<'_>,
    metric: Metric,
    why: &str,
    offers: MetricSet,
) -> fmt::Result {
    write!(f, "{metric}: {why}")?;
    if offers.contains(metric) {
        // Another metric would be no better: it is not the metric that these pods lack.
        return Ok(());
    }
    f.write_str("; ")?;
    // What an engine does not publish is better replaced by what it does than by the GPU's.
    let alike = |offered: &Metric| offered.scope() == metric.scope();
    let some_are = offers.iter().any(|offered| alike(&offered));
    let offered = offers.iter().filter(|offered| !some_are || alike(offered));
    let offered: Vec<_> = offered.map(Metric::name).collect();
    if offered.is_empty() {
        return f.write_str("these pods report no metric at all");
    }
    write!(f, "use one that these pods report: {}", offered.join(", "))
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Up => "up",
            Self::Down => "down",
            Self::Hold => "hold",
        })
    }
}
