//! What is legal in a trigger and yet unlikely to do what was meant.
//!
//! Each warning is one sentence for `check`, `explain` and the log; none changes an answer.

use shared::metric::{Scope, Unit};

use super::number::thousandths;
use super::spec::{Aggregation, Trigger, WindowFunction};

/// The HPA leaves replicas alone until the load is this much above the target.
const TOLERANCE: f64 = 1.1;
/// From here on the mean that scales out is worth knowing: over 95 %.
const NEARLY_FULL: f64 = 87.0;

/// Published profiles whose metric cannot do what their name promises, and what can.
const OUTGROWN: &[(&str, &str)] = &[
    ("vllm-inference", "profile vllm"),
    ("ollama", "targetGpuUtilization with a demandEndpoint"),
    ("tgi-inference", "profile tgi"),
];

/// Everything to be warned about, for a scale target with `min_replicas` (`None`: not known) whose
/// trigger has the HPA's metricType Value (`value_type`) or AverageValue.
pub fn warnings(trigger: &Trigger, min_replicas: Option<u32>, value_type: bool) -> Vec<String> {
    let to_zero = min_replicas == Some(0);
    let mut warnings = Vec::new();
    targets(trigger, &mut warnings);
    aggregation(trigger, value_type, &mut warnings);
    without_effect(trigger, &mut warnings);
    idle(trigger, to_zero, &mut warnings);
    if to_zero {
        from_zero(trigger, &mut warnings);
    }
    warnings
}

fn targets(trigger: &Trigger, warnings: &mut Vec<String>) {
    for part in &trigger.parts {
        let (metric, target, unit) = (part.metric, part.target, part.metric.unit());
        if unit == Unit::Percent && target >= NEARLY_FULL && trigger.aggregation != Aggregation::Sum
        {
            let needed = thousandths(target * TOLERANCE);
            warnings.push(if needed >= 100.0 {
                format!("{metric} target {target}: can never scale out, it takes a mean above {needed} %")
            } else {
                format!("{metric} target {target}: scales out only above {needed} %")
            });
        }
        if unit == Unit::Percent && target <= 1.0 {
            warnings.push(format!(
                "{metric} target {target}: is in percent from 0 to 100, not a fraction"
            ));
        }
        if unit == Unit::Milliseconds && target < 1.0 {
            warnings.push(format!("{metric} target {target}: is in milliseconds, not seconds"));
        }
    }
    let threshold = trigger.activation_threshold;
    let percent =
        !trigger.composite && trigger.parts.iter().all(|part| part.metric.unit() == Unit::Percent);
    if percent && threshold >= 100.0 && trigger.aggregation != Aggregation::Sum {
        warnings.push(format!("activationThreshold {threshold}: no percentage is above it"));
    }
}

fn aggregation(trigger: &Trigger, value_type: bool, warnings: &mut Vec<String>) {
    let word = trigger.aggregation.word();
    let is_flat = !matches!(trigger.aggregation, Aggregation::Total | Aggregation::Sum);
    if is_flat && trigger.aggregation != Aggregation::Avg {
        warnings.push(format!("aggregation {word}: one pod speaks for all"));
    }
    if is_flat && !value_type {
        warnings.push(format!(
            "aggregation {word} under AverageValue: multiplied by the reporting \
             pods here, where one bare figure would order two replicas at most"
        ));
    }
}

fn without_effect(trigger: &Trigger, warnings: &mut Vec<String>) {
    let all = |scope| trigger.parts.iter().all(|part| part.metric.scope() == scope);
    if trigger.gpu_index.is_some() && all(Scope::Engine) {
        warnings.push("gpuIndex: has no effect on metrics of an engine".to_owned());
    }
    if !trigger.engine_labels.is_empty() && all(Scope::Device) {
        warnings.push("engineLabels: has no effect on metrics of a GPU".to_owned());
    }
    if trigger.window_function != WindowFunction::Avg && trigger.window.is_zero() {
        warnings.push("windowFunction: has no effect without a window".to_owned());
    }
}

fn idle(trigger: &Trigger, to_zero: bool, warnings: &mut Vec<String>) {
    let idling: Vec<_> = trigger
        .parts
        .iter()
        .map(|part| part.metric)
        .filter(|metric| metric.has_idle_level())
        .collect();
    for metric in &idling {
        warnings.push(format!(
            "{metric}: stays well above zero on an idle pod, so it does not follow replicas"
        ));
    }
    if let (Some(metric), true) = (idling.first(), to_zero) {
        let threshold = trigger.activation_threshold;
        warnings.push(format!(
            "activationThreshold {threshold}: never reaches zero replicas \
             unless it is above the {metric} of an idle pod"
        ));
    }
}

fn from_zero(trigger: &Trigger, warnings: &mut Vec<String>) {
    let profile = trigger.profile.as_deref().unwrap_or_default();
    let measures_idle = trigger.parts.iter().any(|part| part.metric.has_idle_level());
    if let Some((_, better)) = OUTGROWN.iter().find(|(name, _)| *name == profile && measures_idle) {
        warnings.push(format!(
            "profile {profile}: an engine holds its memory while idle, \
             so this does not scale to zero, better is {better}"
        ));
    }
    if trigger.demand.is_none() {
        warnings.push(
            "demandEndpoint: without it only another trigger can wake this workload from zero"
                .to_owned(),
        );
    }
}

#[cfg(test)]
mod tests {
    use crate::trigger::profile::Profiles;
    use crate::trigger::spec::parse;

    use super::*;

    fn of(pairs: &[(&str, &str)], min_replicas: u32, value_type: bool) -> Vec<String> {
        let metadata =
            pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect();
        let trigger = parse(&metadata, &Profiles::default()).unwrap();
        warnings(&trigger, Some(min_replicas), value_type)
    }

    #[test]
    fn an_ordinary_trigger_has_none() {
        for pairs in [
            &[][..],
            &[("profile", "vllm")],
            &[("targetValue", "86.999")],
            &[("profile", "triton")],
        ] {
            assert_eq!(of(pairs, 1, false), [""; 0], "{pairs:?}");
        }
        let demand = [("profile", "vllm"), ("demandEndpoint", "router"), ("demandMetric", "queue")];
        assert_eq!(of(&demand, 0, false), [""; 0]);
    }

    #[test]
    fn legal_oddities_are_told() {
        for (pairs, expected) in [
            (
                &[("targetValue", "87")][..],
                "gpu_utilization target 87: scales out only above 95.7 %",
            ),
            (&[("targetValue", "90")], "gpu_utilization target 90: scales out only above 99 %"),
            (
                &[("targetValue", "91")],
                "gpu_utilization target 91: can never scale out, it takes a mean above 100.1 %",
            ),
            (
                &[("metricType", "requests_waiting:5,kv_cache_usage:95")],
                "kv_cache_usage target 95: can never scale out, it takes a mean above 104.5 %",
            ),
            (
                &[("metricType", "kv_cache_usage"), ("targetValue", "0.8")],
                "kv_cache_usage target 0.8: is in percent from 0 to 100, not a fraction",
            ),
            (
                &[("metricType", "vllm:time_to_first_token_seconds:0.5")],
                "time_to_first_token_ms target 0.5: is in milliseconds, not seconds",
            ),
            (
                &[("activationThreshold", "100")],
                "activationThreshold 100: no percentage is above it",
            ),
            (
                &[("gpuIndex", "0"), ("profile", "vllm")],
                "gpuIndex: has no effect on metrics of an engine",
            ),
            (&[("engineLabels", "a=b")], "engineLabels: has no effect on metrics of a GPU"),
            (&[("windowFunction", "max")], "windowFunction: has no effect without a window"),
            (
                &[("metricType", "power_draw:300")],
                "power_draw: stays well above zero on an idle pod, so it does not follow replicas",
            ),
        ] {
            assert_eq!(of(pairs, 1, false), [expected], "{pairs:?}");
        }
        assert_eq!(of(&[("targetValue", "95"), ("aggregation", "sum")], 1, false), [""; 0]);
    }

    #[test]
    fn one_figure_for_all_pods_is_told() {
        assert_eq!(
            of(&[("aggregation", "max")], 1, true),
            ["aggregation max: one pod speaks for all"]
        );
        assert_eq!(of(&[("aggregation", "avg")], 1, true), [""; 0]);
        let flat = of(&[("aggregation", "p95")], 1, false);
        assert_eq!(flat[0], "aggregation p95: one pod speaks for all");
        assert_eq!(
            flat[1],
            "aggregation p95 under AverageValue: multiplied by the reporting pods here, \
             where one bare figure would order two replicas at most"
        );
    }

    #[test]
    fn what_never_reaches_zero_is_told_with_the_better_profile() {
        assert_eq!(
            of(&[("profile", "vllm-inference")], 0, false),
            [
                "memory_used_percent: stays well above zero on an idle pod, so it does not follow replicas",
                "activationThreshold 5: never reaches zero replicas \
                 unless it is above the memory_used_percent of an idle pod",
                "profile vllm-inference: an engine holds its memory while idle, \
                 so this does not scale to zero, better is profile vllm",
                "demandEndpoint: without it only another trigger can wake this workload from zero",
            ]
        );
        let better = [("profile", "tgi-inference"), ("metricType", "gpu_utilization")];
        assert!(!of(&better, 0, false).iter().any(|warning| warning.contains("better is")));
    }
}
