//! What to measure and how much of it a replica should carry: what the keys that say so add up to.

use shared::metric::{Metric, Unit};

use super::measure::{Measure, PERCENT_TARGET, Part};
use super::metadata::{Fields, Problems};

/// The keys that metric and target come from; without any problem in them both are known.
pub(super) const GOAL_KEYS: [&str; 4] =
    ["metricType", "targetValue", "targetGpuUtilization", "targetMemoryUtilization"];
/// The target of a composite, in percent of a replica.
const COMPOSITE_TARGET: f64 = 100.0;

/// What one map of keys says, before anything is assumed.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Goal {
    measure: Option<Measure>,
    target: Option<f64>,
}

/// Metric and target, settled.
#[derive(Debug)]
pub(super) struct Settled {
    pub(super) parts: Vec<Part>,
    pub(super) composite: bool,
    pub(super) target: f64,
    /// Whether thresholds of the profile still mean what they meant there.
    pub(super) unit_is_the_profiles: bool,
}

/// `targetGpuUtilization` or `targetMemoryUtilization`: metric and target in one key.
#[derive(Clone, Copy)]
struct Short {
    key: &'static str,
    metric: Metric,
    target: f64,
}

impl Goal {
    /// Puts the keys of one map together.
    pub(super) fn read(fields: &Fields, problems: &mut Problems) -> Self {
        let short = short(fields, problems);
        let measure = match (&fields.metric_type, short) {
            (Some(Measure::One(metric, _)), Some(short)) if *metric != short.metric => {
                let Short { key, metric: other, .. } = short;
                problems.add(
                    key,
                    format!("{key} measures {other}, but metricType says {metric}, keep one"),
                );
                return Self::default();
            }
            (Some(measure), _) => Some(measure.clone()),
            (None, short) => short.map(|short| Measure::One(short.metric, None)),
        };
        let target = target(fields, short, problems);
        Self { measure, target }
    }

    /// Whether nothing is left to a profile or a default.
    pub(super) fn is_complete(&self) -> bool {
        match self.measure {
            Some(Measure::Composite(_)) => true,
            Some(Measure::One(..)) => self.target.is_some(),
            None => false,
        }
    }

    /// Fills what is not said from the profile's goal, then from the defaults.
    ///
    /// A target of the profile survives another metric only in the same unit. Where something is
    /// wrong the result is a stand-in, and the problem is noted under one of [`GOAL_KEYS`].
    pub(super) fn settle(self, profile: &Self, problems: &mut Problems) -> Settled {
        let base = profile.measure.clone().unwrap_or(Measure::One(Metric::GpuUtilization, None));
        let same = self.measure.as_ref().is_none_or(|measure| measure.unit() == base.unit());
        let (parts, composite, target) = match self.measure.unwrap_or(base) {
            Measure::Composite(parts) => {
                if self.target.is_some() {
                    problems.add(
                        "targetValue",
                        "targetValue does not go with the composite of the profile, \
                         set metricType too or remove it",
                    );
                }
                (parts, true, COMPOSITE_TARGET)
            }
            Measure::One(metric, _) => {
                let kept = profile.target.filter(|_| same);
                let target = self.target.or(kept).or_else(|| usual_target(metric, problems));
                let target = target.unwrap_or(PERCENT_TARGET);
                (vec![Part { metric, target }], false, target)
            }
        };
        Settled { parts, composite, target, unit_is_the_profiles: same }
    }
}

fn short(fields: &Fields, problems: &mut Problems) -> Option<Short> {
    let gpu = fields.target_gpu_utilization.map(|target| Short {
        key: "targetGpuUtilization",
        metric: Metric::GpuUtilization,
        target,
    });
    let memory = fields.target_memory_utilization.map(|target| Short {
        key: "targetMemoryUtilization",
        metric: Metric::MemoryUsedPercent,
        target,
    });
    if let (Some(gpu), Some(memory)) = (gpu, memory) {
        problems.add(
            gpu.key,
            format!("{} and {} name different metrics, keep one", gpu.key, memory.key),
        );
        return None;
    }
    gpu.or(memory)
}

/// The target all keys agree on.
fn target(fields: &Fields, short: Option<Short>, problems: &mut Problems) -> Option<f64> {
    let mut said = Vec::new();
    said.extend(fields.target_value.map(|target| ("targetValue", target)));
    said.extend(short.map(|short| (short.key, short.target)));
    match &fields.metric_type {
        Some(Measure::Composite(_)) => {
            for (key, _) in said {
                problems.add(
                    key,
                    format!(
                        "{key} does not go with a composite metricType, \
                     whose parts have their own targets, keep one"
                    ),
                );
            }
            return None;
        }
        Some(Measure::One(_, target)) => said.extend(target.map(|target| ("metricType", target))),
        None => {}
    }
    let &(first, target) = said.first()?;
    for (key, other) in said.iter().filter(|(_, other)| *other != target) {
        problems.add(key, format!("{first} says target {target} and {key} says {other}, keep one"));
    }
    Some(target)
}

fn usual_target(metric: Metric, problems: &mut Problems) -> Option<f64> {
    if metric.unit() == Unit::Percent {
        return Some(PERCENT_TARGET);
    }
    // A key that is broken may be the very one that says the target.
    if !problems.concern(&GOAL_KEYS) && !problems.concern(&["profile"]) {
        problems.add("targetValue", format!("targetValue is required for {metric}"));
    }
    None
}
