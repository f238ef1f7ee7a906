//! What the HPA makes of a value: the two formulas with the default tolerance, for explanations
//! only. Behaviour policies and stabilisation are the HPA's own and are not predicted.

use crate::trigger::observed::TargetType;

/// The HPA's default tolerance.
const TOLERANCE: f64 = 0.1;

/// What cuts a wish where `minReplicaCount` is 0.
pub const HPA_LEAST: &str = "the HPA's least, 1";

/// What the HPA would order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wish {
    /// The ratio that is compared with the tolerance; `None` with no replicas to divide by.
    pub ratio: Option<f64>,
    /// Replicas it would order, within minimum and maximum.
    pub desired: u32,
    /// Which limit cut the wish.
    pub clamped_by: Option<&'static str>,
}

/// Replicas of the scale target as the HPA counts them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Replicas {
    /// `spec.replicas`.
    pub ordered: u32,
    /// `status.replicas`, where known.
    pub status: Option<u32>,
    /// Running and Ready pods.
    pub ready: u32,
    /// `minReplicaCount`; the HPA itself never goes below 1.
    pub min: Option<u32>,
    /// `maxReplicaCount`; KEDA's default is 100.
    pub max: Option<u32>,
}

/// The HPA's wish for `value` against `target`.
pub fn wish(value: f64, target: f64, target_type: TargetType, replicas: Replicas) -> Wish {
    let (ratio, unchanged, base) = match target_type {
        TargetType::AverageValue => {
            let status = replicas.status.unwrap_or(replicas.ordered);
            let ratio = (status > 0).then(|| value / (target * f64::from(status)));
            (ratio, status, value / target)
        }
        TargetType::Value => {
            let ratio = value / target;
            (Some(ratio), replicas.ordered, ratio * f64::from(replicas.ready))
        }
    };
    let within = ratio.is_some_and(|ratio| (1.0 - ratio).abs() <= TOLERANCE);
    let wanted = if within { unchanged } else { ceil(base) };
    let (min, max) = (replicas.min.unwrap_or(0).max(1), replicas.max.unwrap_or(100).max(1));
    let (desired, clamped_by) = if wanted > max {
        (max, Some("maxReplicaCount"))
    } else if wanted < min {
        (min, Some(if replicas.min.unwrap_or(0) == 0 { HPA_LEAST } else { "minReplicaCount" }))
    } else {
        (wanted, None)
    };
    Wish { ratio, desired, clamped_by }
}

/// Whole replicas, as the HPA rounds: in thousandths first, so that 3.0000000001 is 3.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped before")]
fn ceil(replicas: f64) -> u32 {
    ((replicas * 1e6).round() / 1e6).ceil().clamp(0.0, f64::from(u32::MAX)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(replicas: u32) -> Replicas {
        Replicas {
            ordered: replicas,
            status: Some(replicas),
            ready: replicas,
            ..Default::default()
        }
    }

    #[test]
    fn the_formulas_give_the_documented_replicas() {
        let sum = |value, n| wish(value, 70.0, TargetType::AverageValue, at(n)).desired;
        assert_eq!([sum(90.0, 1), sum(180.0, 2), sum(360.0, 4), sum(720.0, 8)], [2, 3, 6, 11]);
        assert_eq!([sum(800.0, 8), sum(400.0, 8), sum(160.0, 8)], [12, 6, 3]);
        let mean = |value, n| wish(value, 70.0, TargetType::Value, at(n)).desired;
        assert_eq!([mean(90.0, 1), mean(90.0, 2), mean(90.0, 4), mean(100.0, 8)], [2, 3, 6, 12]);
    }

    #[test]
    fn limits_are_named_and_no_replicas_is_no_ratio() {
        let mut replicas = at(4);
        replicas.max = Some(6);
        let wish_up = wish(1_000.0, 50.0, TargetType::AverageValue, replicas);
        assert_eq!((wish_up.desired, wish_up.clamped_by), (6, Some("maxReplicaCount")));
        let none = wish(0.0, 50.0, TargetType::AverageValue, at(0));
        assert_eq!((none.ratio, none.desired), (None, 1));
        for (min, by) in [(None, HPA_LEAST), (Some(0), HPA_LEAST), (Some(1), "minReplicaCount")] {
            let idle = wish(0.0, 50.0, TargetType::AverageValue, Replicas { min, ..at(2) });
            assert_eq!((idle.desired, idle.clamped_by), (1, Some(by)), "{min:?}");
        }
    }
}
