//! One value of one metric, and the readings of one device or engine at one moment.
//!
//! Guarantees: there is no default reading and no zero that means "unknown". What was not
//! reported is `Reading::Unsupported`; what should have been there and is not is
//! `Reading::Failed` with its reason; every `Ok` value is finite and within its unit's range.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::metric::{Metric, MetricSet};

/// Metrics that a device has: so many values are kept in place.
const OF_DEVICE: usize = 14;

/// One value of one metric.
#[derive(Clone, Debug, PartialEq)]
pub enum Reading {
    /// The value, in the metric's unit.
    Ok(f64),
    /// This device or engine does not have the metric.
    Unsupported,
    /// It has the metric, but reading it failed; why.
    Failed(Arc<str>),
}

impl Reading {
    /// `value` if the metric can have it, else a failure that names it.
    #[inline]
    pub fn checked(metric: Metric, value: f64) -> Self {
        if metric.accepts(value) {
            Self::Ok(value)
        } else {
            Self::Failed(out_of_range(metric, value).into())
        }
    }

    /// The value, if there is one.
    pub fn value(&self) -> Option<f64> {
        match self {
            Self::Ok(value) => Some(*value),
            Self::Unsupported | Self::Failed(_) => None,
        }
    }
}

/// What to say about a value that `metric` cannot have.
#[cold]
pub fn out_of_range(metric: Metric, value: f64) -> String {
    let (max, symbol) = (metric.unit().max(), metric.unit().symbol());
    let space = if symbol.is_empty() { "" } else { " " };
    let value = if value.abs() < 1e15 { value.to_string() } else { format!("{value:e}") };
    format!("{metric} {value} is out of range (0 to {max}{space}{symbol})")
}

/// All readings of one device or engine at one moment, kept small and together: a bit per metric, a
/// number per value that is known, nothing for what is unsupported.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Readings {
    known: MetricSet,
    values: SmallVec<[f64; OF_DEVICE]>,
    failed: Box<[(Metric, Arc<str>)]>,
}

/// Where the value of one metric is found in readings that know the same metrics.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    known: MetricSet,
    /// Beyond all values where it is not known.
    at: usize,
}

impl Default for Place {
    /// In readings that know nothing.
    fn default() -> Self {
        Self { known: MetricSet::default(), at: usize::MAX }
    }
}

impl Place {
    /// Whether it is good for `readings`.
    #[inline]
    pub fn is_for(self, readings: &Readings) -> bool {
        self.known == readings.known
    }
}

impl Readings {
    /// Where the value of `metric` is, here and in all readings that know the same metrics.
    #[inline(never)]
    pub fn place(&self, metric: Metric) -> Place {
        let known = self.known;
        let at = if known.contains(metric) { known.rank(metric) } else { usize::MAX };
        Place { known, at }
    }

    /// The value at a place that is for these readings.
    #[inline]
    pub fn at(&self, place: Place) -> Option<f64> {
        self.values.get(place.at).copied()
    }

    /// The reading of `metric`.
    #[inline]
    pub fn get(&self, metric: Metric) -> Reading {
        if let Some(value) = self.value(metric) {
            return Reading::Ok(value);
        }
        match self.failed.iter().find(|(failed, _)| *failed == metric) {
            Some((_, reason)) => Reading::Failed(reason.clone()),
            None => Reading::Unsupported,
        }
    }

    /// The value of `metric`, if it is known.
    #[inline]
    pub fn value(&self, metric: Metric) -> Option<f64> {
        self.known.contains(metric).then(|| self.values[self.known.rank(metric)])
    }

    /// The metrics whose value is known.
    pub fn known(&self) -> MetricSet {
        self.known
    }

    /// Every reading that is not [`Reading::Unsupported`].
    pub fn iter(&self) -> impl Iterator<Item = (Metric, Reading)> {
        Metric::ALL.iter().filter_map(|&metric| match self.get(metric) {
            Reading::Unsupported => None,
            reading => Some((metric, reading)),
        })
    }

    /// Every metric whose reading failed, with the reason.
    pub fn failures(&self) -> impl Iterator<Item = (Metric, &Arc<str>)> {
        self.failed.iter().map(|(metric, reason)| (*metric, reason))
    }
}

/// Readings on their way together.
#[derive(Debug, Default)]
pub struct Gathered {
    known: MetricSet,
    /// Values of those, by metric.
    values: [f64; Metric::ALL.len()],
    failed: Vec<(Metric, Arc<str>)>,
}

impl Gathered {
    /// Adds a reading: the last of a metric wins, and a value out of range becomes a failure.
    #[inline]
    pub fn add(&mut self, metric: Metric, reading: Reading) {
        self.known.remove(metric);
        if !self.failed.is_empty() {
            self.failed.retain(|(other, _)| *other != metric);
        }
        let reading = match reading {
            Reading::Ok(value) => Reading::checked(metric, value),
            other => other,
        };
        match reading {
            Reading::Ok(value) => {
                self.known.insert(metric);
                self.values[metric.index()] = value;
            }
            Reading::Failed(reason) => self.failed.push((metric, reason)),
            Reading::Unsupported => {}
        }
    }

    /// All of them.
    pub fn readings(mut self) -> Readings {
        self.failed.sort_unstable_by_key(|(metric, _)| *metric);
        let (known, mut values) = (self.known, SmallVec::new());
        values.extend(known.iter().map(|metric| self.values[metric.index()]));
        Readings { known, values, failed: self.failed.into() }
    }
}

impl FromIterator<(Metric, Reading)> for Readings {
    /// The last reading of a metric wins; values out of range become failures.
    fn from_iter<I: IntoIterator<Item = (Metric, Reading)>>(readings: I) -> Self {
        let mut gathered = Gathered::default();
        readings.into_iter().for_each(|(metric, reading)| gathered.add(metric, reading));
        gathered.readings()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metric::Scope;

    #[test]
    fn unsupported_failed_and_zero_stay_three_different_things() {
        let readings: Readings = [
            (Metric::GpuUtilization, Reading::Ok(0.0)),
            (Metric::RequestLatencyMs, Reading::Ok(7.5)),
            (Metric::Temperature, Reading::Failed("GPU is lost".into())),
            (Metric::PowerDraw, Reading::Ok(f64::NAN)),
        ]
        .into_iter()
        .collect();
        assert_eq!(readings.get(Metric::GpuUtilization), Reading::Ok(0.0));
        assert_eq!(readings.get(Metric::RequestLatencyMs), Reading::Ok(7.5));
        assert_eq!(readings.get(Metric::Temperature), Reading::Failed("GPU is lost".into()));
        assert_eq!(readings.get(Metric::SmActivity), Reading::Unsupported);
        assert!(matches!(readings.get(Metric::PowerDraw), Reading::Failed(_)));
        assert_eq!(readings.iter().count(), 4);
    }

    #[test]
    fn a_devices_values_are_kept_in_place() {
        let of_device = Metric::ALL.iter().filter(|metric| metric.scope() == Scope::Device);
        let readings: Readings = of_device.map(|metric| (*metric, Reading::Ok(1.0))).collect();
        assert_eq!(readings.values.len(), OF_DEVICE);
        assert!(!readings.values.spilled());
    }

    #[test]
    fn the_last_reading_of_a_metric_wins_whatever_it_was_before() {
        let failed = || Reading::Failed("lost".into());
        let all = [Reading::Ok(1.0), failed(), Reading::Unsupported, Reading::Ok(2.0)];
        for (first, last) in all.iter().flat_map(|first| all.iter().map(move |last| (first, last)))
        {
            let readings: Readings = [
                (Metric::PowerDraw, first.clone()),
                (Metric::Temperature, Reading::Ok(3.0)),
                (Metric::PowerDraw, last.clone()),
            ]
            .into_iter()
            .collect();
            assert_eq!(readings.get(Metric::PowerDraw), *last, "after {first:?}");
            assert_eq!(readings.value(Metric::Temperature), Some(3.0));
        }
    }
}
