//! Numbers → one number.
//!
//! Guarantees: sums are exact, so the order of pods and devices cannot change a digit; nothing is
//! allocated per value but the one list that a quantile needs.

use crate::trigger::spec::Aggregation;

/// Floats below it are whole billionths of 64 bits.
const SMALL: f64 = 9e18;

/// A sum in whole billionths: adding in another order gives the same bits.
#[derive(Clone, Copy, Default)]
struct ExactSum {
    /// What fits 64 bits, which is nearly always all: no call is needed to add to it.
    small: i64,
    /// The rest.
    large: i128,
    count: u32,
}

impl ExactSum {
    #[expect(clippy::cast_possible_truncation, reason = "readings are at most 1e12")]
    #[expect(clippy::cast_precision_loss, reason = "a float cut to a whole number is one")]
    fn add(mut self, value: f64) -> Self {
        self.count += 1;
        let exact = value * 1e9;
        if (0.0..SMALL).contains(&exact) {
            let whole = exact as i64;
            // As `round` does it, halves up.
            let rounded = whole + i64::from(exact - whole as f64 >= 0.5);
            match self.small.checked_add(rounded) {
                Some(sum) => self.small = sum,
                None => self.large += i128::from(rounded),
            }
        } else {
            self.large += exact.round() as i128;
        }
        self
    }

    #[expect(clippy::cast_precision_loss, reason = "rounded to three decimals later")]
    fn sum(self) -> f64 {
        let billionths = match self.large {
            0 => self.small as f64,
            large => (large + i128::from(self.small)) as f64,
        };
        billionths / 1e9
    }

    fn mean(self) -> f64 {
        if self.count == 0 { 0.0 } else { self.sum() / f64::from(self.count) }
    }
}

/// The sum, and how many there were.
fn exact_sum(values: impl Iterator<Item = f64>) -> ExactSum {
    values.fold(ExactSum::default(), ExactSum::add)
}

/// Nearest rank: the smallest value that at least `percent` of all are not above.
pub fn nearest_rank(mut all: Vec<f64>, percent: usize) -> f64 {
    let rank = (all.len() * percent).div_ceil(100).max(1) - 1;
    *all.select_nth_unstable_by(rank, f64::total_cmp).1
}

/// One aggregation over values, as it is; `total` is the sum.
pub fn aggregate(aggregation: Aggregation, values: impl Iterator<Item = f64>) -> f64 {
    match aggregation {
        Aggregation::Total | Aggregation::Sum => exact_sum(values).sum(),
        Aggregation::Avg => exact_sum(values).mean(),
        Aggregation::Max => values.fold(0.0, f64::max),
        Aggregation::Min => values.fold(f64::INFINITY, f64::min),
        Aggregation::P50 => nearest_rank(values.collect(), 50),
        Aggregation::P90 => nearest_rank(values.collect(), 90),
        Aggregation::P95 => nearest_rank(values.collect(), 95),
        Aggregation::P99 => nearest_rank(values.collect(), 99),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Values of every size a reading can have, and some that it cannot.
    fn value() -> impl Strategy<Value = f64> {
        prop_oneof![
            0.0..100.0,
            0.0..1e-7,
            0.0..1e12,
            (0..1_000_000_000_000_u64).prop_map(|n| n as f64 / 2e9),
            any::<f64>().prop_filter("finite", |v| v.is_finite() && v.abs() < 1e20),
        ]
    }

    proptest! {
        #[test]
        fn the_short_way_to_billionths_gives_the_bits_of_the_long_one(
            values in prop::collection::vec(value(), 0..20),
        ) {
            let long = |values: &[f64]| values.iter().map(|v| (v * 1e9).round() as i128).sum();
            let billionths: i128 = long(&values);
            let sum = aggregate(Aggregation::Sum, values.iter().copied());
            prop_assert_eq!(sum.to_bits(), (billionths as f64 / 1e9).to_bits());
            let back = aggregate(Aggregation::Sum, values.iter().rev().copied());
            prop_assert_eq!(sum.to_bits(), back.to_bits());
        }
    }

    #[test]
    fn every_published_aggregation_has_its_exact_answer() {
        let eight = || [10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 95.0].into_iter();
        for (aggregation, right) in [
            (Aggregation::Max, 95.0),
            (Aggregation::Min, 10.0),
            (Aggregation::Avg, 46.875),
            (Aggregation::Sum, 375.0),
            (Aggregation::P50, 40.0),
            (Aggregation::P90, 95.0),
            (Aggregation::P95, 95.0),
            (Aggregation::P99, 95.0),
        ] {
            assert_eq!(aggregate(aggregation, eight()), right, "{aggregation:?}");
        }
        let hundred = || (1..=100).map(f64::from);
        assert_eq!(aggregate(Aggregation::P50, hundred()), 50.0);
        assert_eq!(aggregate(Aggregation::P90, hundred()), 90.0);
        assert_eq!(aggregate(Aggregation::P99, hundred()), 99.0);
    }

    #[test]
    fn a_sum_does_not_depend_on_the_order() {
        let parts = [0.1, 1e9, 0.2, 3.3e-3, 77.7, 1e-9];
        let there = aggregate(Aggregation::Sum, parts.into_iter());
        let back = aggregate(Aggregation::Sum, parts.into_iter().rev());
        assert_eq!(there.to_bits(), back.to_bits());
    }
}
