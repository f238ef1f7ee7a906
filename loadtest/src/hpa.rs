//! The HorizontalPodAutoscaler's arithmetic for one external metric: KEDA's ScaledObject with one
//! trigger.
//!
//! Guarantees: the formulas and limits of `autoscaling/v2` with its default behaviour; the same
//! history of calls decides the same way; no clock is read. Periods are parameters, so that a demo
//! can be faster than a cluster.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use shared::time::Timestamp;

/// How the HPA reads the metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricType {
    /// KEDA's default: the value is divided by the replicas.
    AverageValue,
    /// The value is compared as it is, and scales the ready pods.
    Value,
}

/// What one sync reads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Metric {
    /// How the value is meant.
    pub kind: MetricType,
    /// What GetMetrics returned.
    pub value: f64,
    /// What GetMetricSpec returned.
    pub target: f64,
}

/// The scale target as the HPA sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    /// Replicas ordered.
    pub spec: u32,
    /// Replicas that exist.
    pub status: u32,
    /// Pods that are Running and Ready.
    pub ready: u32,
}

/// The HPA's `spec.behavior`: how it grows, and how it remembers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behavior {
    /// Left out, as KEDA does unless the ScaledObject sets it: at most double, or to 4, per sync.
    Unset,
    /// Its defaults: at most 4 pods or 100 % more in each of these periods (15 s).
    Default {
        /// `periodSeconds` of the two policies.
        period: Duration,
    },
}

/// The HPA object, and what the controller's flags set.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// `minReplicas`; KEDA writes 1 when its own minimum is 0.
    pub min: u32,
    /// `maxReplicas`.
    pub max: u32,
    /// How far from 1 the ratio may be without a change.
    pub tolerance: f64,
    /// Limits of growth.
    pub behavior: Behavior,
    /// Scaling down follows the highest wish of this long.
    pub stabilization: Duration,
}

impl Settings {
    /// What KEDA makes in a cluster where nobody changed anything.
    pub const fn upstream(min: u32, max: u32) -> Self {
        Self {
            min,
            max,
            tolerance: 0.1,
            behavior: Behavior::Unset,
            stabilization: Duration::from_secs(300),
        }
    }
}

/// Why a sync decided as it did: the last rule that had a say.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reason {
    /// At 0 replicas the HPA does nothing.
    Disabled,
    /// The metric could not be read.
    MetricError,
    /// Ordered replicas lay outside the limits.
    OutsideLimits,
    /// The ratio is close enough to 1.
    WithinTolerance {
        /// Value by what the replicas would have at target.
        ratio: f64,
    },
    /// The metric decided.
    Metric {
        /// What the metric asks for.
        wish: u32,
        /// Value by what the replicas would have at target.
        ratio: f64,
    },
    /// A higher wish is not old enough.
    Stabilized {
        /// What the metric asks for now.
        wish: u32,
        /// The most it asked for lately.
        highest: u32,
    },
    /// A limit decided.
    Limited {
        /// What the metric asks for now.
        wish: u32,
        /// Which limit.
        by: Limit,
    },
}

/// What keeps the replicas from what the metric asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Growth is limited.
    Rate,
    /// `minReplicas`.
    Min,
    /// `maxReplicas`.
    Max,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disabled => write!(f, "asleep at 0 replicas"),
            Self::MetricError => write!(f, "no value, so nothing moves"),
            Self::OutsideLimits => write!(f, "outside minimum and maximum"),
            Self::WithinTolerance { ratio } => write!(f, "{ratio:.2} × target, close enough"),
            Self::Metric { wish, ratio } => write!(f, "{ratio:.2} × target, asks for {wish}"),
            Self::Stabilized { wish, highest } => {
                write!(f, "asks for {wish} now, but for {highest} a moment ago")
            }
            Self::Limited { wish, by } => write!(f, "asks for {wish}, but {by}"),
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rate => "it may not grow faster",
            Self::Min => "the minimum holds",
            Self::Max => "the maximum holds",
        })
    }
}

/// What one sync decided.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decision {
    /// The replicas to order.
    pub desired: u32,
    /// Why.
    pub reason: Reason,
}

/// The replicas `metric` asks for before any limit, and the ratio that says so.
pub fn wish(metric: Metric, scale: Scale, tolerance: f64) -> (u32, f64) {
    let (value, target) = (millis(metric.value), millis(metric.target));
    let (ratio, unchanged) = match metric.kind {
        MetricType::AverageValue => (value / (target * f64::from(scale.status)), scale.status),
        MetricType::Value => (value / target, scale.spec),
    };
    if is_close(ratio, tolerance) {
        return (unchanged, ratio);
    }
    let wish = match metric.kind {
        MetricType::AverageValue => value / target,
        MetricType::Value => ratio * f64::from(scale.ready),
    };
    (wish.ceil() as u32, ratio)
}

fn is_close(ratio: f64, tolerance: f64) -> bool {
    (1.0 - ratio).abs() <= tolerance
}

/// As KEDA prints a number: three decimals, and zero for what is no quantity.
fn millis(number: f64) -> f64 {
    if number.is_finite() { (number * 1_000.0).round().max(0.0) } else { 0.0 }
}

/// One HPA: its settings and what it remembers between syncs.
#[derive(Clone, Debug)]
pub struct Hpa {
    settings: Settings,
    wishes: VecDeque<(Timestamp, u32)>,
    changes: VecDeque<(Timestamp, i64)>,
}

impl Hpa {
    /// An HPA that has seen nothing yet.
    pub fn new(settings: Settings) -> Self {
        Self { settings, wishes: VecDeque::new(), changes: VecDeque::new() }
    }

    /// One sync: `None` is a metric that could not be read. The decision is taken as carried out.
    pub fn sync(&mut self, now: Timestamp, scale: Scale, metric: Option<Metric>) -> Decision {
        let decision = self.decide(now, scale, metric);
        let change = i64::from(decision.desired) - i64::from(scale.spec);
        if change != 0 && self.settings.behavior != Behavior::Unset {
            self.changes.push_back((now, change));
        }
        decision
    }

    fn decide(&mut self, now: Timestamp, scale: Scale, metric: Option<Metric>) -> Decision {
        let Settings { min, max, .. } = self.settings;
        if self.wishes.is_empty() {
            self.wishes.push_back((now, scale.spec));
        }
        if scale.spec == 0 {
            return Decision::new(0, Reason::Disabled);
        }
        if scale.spec < min || scale.spec > max {
            return Decision::new(scale.spec.clamp(min, max), Reason::OutsideLimits);
        }
        let Some(metric) = metric else {
            return Decision::new(scale.spec, Reason::MetricError);
        };
        let (wish, ratio) = wish(metric, scale, self.settings.tolerance);
        let stable = self.stabilize(now, scale.spec, wish);
        let (desired, limit) = self.limit(now, scale.spec, stable);
        let reason = match limit {
            Some(by) => Reason::Limited { wish, by },
            None if stable != wish => Reason::Stabilized { wish, highest: self.highest_wish() },
            None if is_close(ratio, self.settings.tolerance) => Reason::WithinTolerance { ratio },
            None => Reason::Metric { wish, ratio },
        };
        Decision::new(desired, reason)
    }

    /// Up at once, down only as far as the highest wish of the window.
    fn stabilize(&mut self, now: Timestamp, current: u32, wish: u32) -> u32 {
        let window = self.settings.stabilization;
        self.wishes.retain(|(at, _)| now.since(*at) < window);
        self.wishes.push_back((now, wish));
        let highest = self.highest_wish();
        match self.settings.behavior {
            Behavior::Unset => highest,
            Behavior::Default { .. } => current.clamp(wish, highest),
        }
    }

    fn highest_wish(&self) -> u32 {
        let wishes = self.wishes.iter().map(|(_, wish)| *wish);
        wishes.max().unwrap_or(0)
    }

    fn limit(&mut self, now: Timestamp, current: u32, stable: u32) -> (u32, Option<Limit>) {
        let Settings { min, max, .. } = self.settings;
        let rate = self.growth_limit(now, current);
        if stable > rate.min(max) {
            let limit = if rate < max { Limit::Rate } else { Limit::Max };
            (rate.min(max), Some(limit))
        } else if stable < min {
            (min, Some(Limit::Min))
        } else {
            (stable, None)
        }
    }

    /// The most replicas that may be ordered now.
    fn growth_limit(&mut self, now: Timestamp, current: u32) -> u32 {
        let Behavior::Default { period } = self.settings.behavior else {
            return current.saturating_mul(2).max(4);
        };
        self.changes.retain(|(at, _)| now.since(*at) < period);
        let changed: i64 = self.changes.iter().map(|(_, change)| change).sum();
        let start = (i64::from(current) - changed).max(0);
        u32::try_from((start + 4).max(start * 2)).unwrap_or(u32::MAX).max(current)
    }
}

impl Decision {
    fn new(desired: u32, reason: Reason) -> Self {
        Self { desired, reason }
    }
}

#[cfg(test)]
mod tests;
