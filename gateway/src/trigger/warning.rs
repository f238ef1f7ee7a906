//! What is legal in a trigger and yet unlikely to do what was meant.
//!
//! Each warning is one sentence that names the fix, for `check`, `explain` and the log; none
//! changes an answer.

use shared::metric::{Metric, Scope, Unit};

use super::engine::Engine;
use super::number::thousandths;
use super::spec::{Aggregation, Trigger, WindowFunction};

/// The HPA leaves replicas alone until the load is this much above the target.
const TOLERANCE: f64 = 1.1;
/// From here on the mean that scales out is worth knowing: over 95 %.
const NEARLY_FULL: f64 = 87.0;

/// An engine that reserves memory when it starts takes about this much of it, in percent.
const RESERVED: f64 = 90.0;

/// Rule of the warning that the trigger itself cannot wake its workload; another one may.
pub const NO_WAKE: &str = "no-wake";

/// Published profiles whose metric cannot do what their name promises, and what can.
const OUTGROWN: &[(&str, &str)] = &[
    ("vllm-inference", "profile vllm"),
    ("ollama", "targetGpuUtilization with a demandEndpoint"),
    ("tgi-inference", "profile tgi"),
];

/// Something to be warned about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// Which rule it breaks: a short word that does not change.
    pub rule: &'static str,
    /// What is unsound and what would be right.
    pub message: String,
}

/// The messages of [`findings`].
pub fn warnings(trigger: &Trigger, min_replicas: Option<u32>, value_type: bool) -> Vec<String> {
    let findings = findings(trigger, min_replicas, value_type);
    findings.into_iter().map(|warning| warning.message).collect()
}

/// Everything to be warned about, for a scale target with `min_replicas` (`None`: not known) whose
/// trigger has the HPA's metricType Value (`value_type`) or AverageValue.
pub fn findings(trigger: &Trigger, min_replicas: Option<u32>, value_type: bool) -> Vec<Warning> {
    let to_zero = min_replicas == Some(0);
    let mut found = Found::default();
    targets(trigger, &mut found);
    aggregation(trigger, value_type, &mut found);
    without_effect(trigger, &mut found);
    unpublished(trigger, &mut found);
    idle(trigger, &mut found);
    if to_zero {
        never_zero(trigger, &mut found);
        from_zero(trigger, &mut found);
    }
    found.0
}

#[derive(Default)]
struct Found(Vec<Warning>);

impl Found {
    fn add(&mut self, rule: &'static str, message: impl Into<String>) {
        self.0.push(Warning { rule, message: message.into() });
    }
}

fn targets(trigger: &Trigger, found: &mut Found) {
    let can_exceed = trigger.aggregation == Aggregation::Sum;
    for part in &trigger.parts {
        let (metric, target, unit) = (part.metric, part.target, part.metric.unit());
        if unit == Unit::Percent && target >= NEARLY_FULL && !can_exceed {
            let needed = thousandths(target * TOLERANCE);
            let what = if needed >= 100.0 {
                format!("can never scale out, it takes a mean above {needed} %")
            } else {
                format!("scales out only above {needed} %")
            };
            found.add(
                "percent-target",
                format!("{metric} target {target}: {what}; write 80 or less"),
            );
        }
        if unit == Unit::Percent && target <= 1.0 {
            let message =
                format!("{metric} target {target}: is in percent from 0 to 100, not a fraction");
            found.add("unit", message);
        }
        if unit == Unit::Milliseconds && target < 1.0 {
            let message = format!("{metric} target {target}: is in milliseconds, not seconds");
            found.add("unit", message);
        }
    }
    let threshold = trigger.activation_threshold;
    if is_percent(trigger) && threshold >= 100.0 && !can_exceed {
        let message = format!("activationThreshold {threshold}: no percentage is above it");
        found.add("activation", message);
    }
}

fn is_percent(trigger: &Trigger) -> bool {
    !trigger.composite && trigger.parts.iter().all(|part| part.metric.unit() == Unit::Percent)
}

fn aggregation(trigger: &Trigger, value_type: bool, found: &mut Found) {
    let word = trigger.aggregation.word();
    let is_flat = !matches!(trigger.aggregation, Aggregation::Total | Aggregation::Sum);
    if is_flat && trigger.aggregation != Aggregation::Avg {
        let message = format!("aggregation {word}: one pod speaks for all; total counts every pod");
        found.add("one-pod", message);
    }
    if is_flat && !value_type {
        let target = trigger.target;
        let bare = if is_percent(trigger) {
            let most = (100.0 / target).ceil();
            format!(
                "one bare figure never asks for more than ceil(100 / {target}) = {most} replicas"
            )
        } else {
            "one bare figure asks for the same replicas however many share the load".to_owned()
        };
        let message = format!(
            "aggregation {word} under AverageValue: {bare}, so it is multiplied by the reporting \
             pods here; write aggregation total, or metricType: Value beside `type:`"
        );
        found.add("flat-average", message);
    }
}

fn without_effect(trigger: &Trigger, found: &mut Found) {
    let all = |scope| trigger.parts.iter().all(|part| part.metric.scope() == scope);
    if trigger.gpu_index.is_some() && all(Scope::Engine) {
        found.add("no-effect", "gpuIndex: has no effect on metrics of an engine");
    }
    if !trigger.engine_labels.is_empty() && all(Scope::Device) {
        found.add("no-effect", "engineLabels: has no effect on metrics of a GPU");
    }
    if trigger.window_function != WindowFunction::Avg && trigger.window.is_zero() {
        found.add("no-effect", "windowFunction: has no effect without a window");
    }
}

fn unpublished(trigger: &Trigger, found: &mut Found) {
    let Some(engine) = trigger.engine else { return };
    for metric in trigger.parts.iter().map(|part| part.metric).filter(|m| engine.lacks(*m)) {
        let instead = match (engine, metric) {
            (Engine::Ollama, _) => {
                "gpu_utilization, and count requests in a proxy (demandEndpoint)"
            }
            (_, Metric::ErrorRate | Metric::TokenThroughput) => "request_rate",
            _ => "requests_waiting",
        };
        let message = format!("{metric}: {engine} does not publish it; measure {instead}");
        found.add("unpublished", message);
    }
}

fn idling(trigger: &Trigger) -> impl Iterator<Item = Metric> {
    trigger.parts.iter().map(|part| part.metric).filter(|metric| metric.has_idle_level())
}

fn is_vram(metric: Metric) -> bool {
    matches!(metric, Metric::MemoryUsedPercent | Metric::MemoryUsedMib)
}

fn idle(trigger: &Trigger, found: &mut Found) {
    for metric in idling(trigger) {
        found.add(
            "idle-level",
            format!(
                "{metric}: stays well above zero on an idle pod, so it does not follow replicas; \
                 measure load, such as gpu_utilization or requests_waiting"
            ),
        );
    }
}

/// What keeps a workload active that has nothing to do.
fn never_zero(trigger: &Trigger, found: &mut Found) {
    let threshold = trigger.activation_threshold;
    let is_below = |metric| metric != Metric::MemoryUsedPercent || threshold < RESERVED;
    if let Some(metric) = idling(trigger).find(|&metric| is_vram(metric) && is_below(metric)) {
        let profile = trigger.profile.as_deref().unwrap_or_default();
        let outgrown = OUTGROWN.iter().find(|(name, _)| *name == profile);
        let (what, better) = match outgrown {
            Some((name, better)) => (format!("profile {name}"), *better),
            None => (metric.to_string(), "profile vllm, sglang, tgi or trtllm, or gpu_utilization"),
        };
        found.add(
            "vram-zero",
            format!(
                "{what}: an engine holds its memory while idle, above activationThreshold \
                 {threshold}, so this does not scale to zero, better is {better}"
            ),
        );
    } else if let Some(metric) = idling(trigger).next() {
        found.add(
            "never-zero",
            format!(
                "activationThreshold {threshold}: never reaches zero replicas \
                 unless it is above the {metric} of an idle pod; set it above that"
            ),
        );
    }
    if trigger.active_while_pods_exist {
        found.add(
            "never-zero",
            "profile training: active while a pod exists, so it never reaches zero replicas by \
             itself; set activationThreshold to change that",
        );
    }
}

fn from_zero(trigger: &Trigger, found: &mut Found) {
    if trigger.demand.is_none() {
        let message =
            "demandEndpoint: without it only another trigger can wake this workload from zero";
        found.add(NO_WAKE, message);
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
                "gpu_utilization target 87: scales out only above 95.7 %; write 80 or less",
            ),
            (
                &[("targetValue", "90")],
                "gpu_utilization target 90: scales out only above 99 %; write 80 or less",
            ),
            (
                &[("targetValue", "91")],
                "gpu_utilization target 91: can never scale out, it takes a mean above 100.1 %; write 80 or less",
            ),
            (
                &[("metricType", "requests_waiting:5,kv_cache_usage:95")],
                "kv_cache_usage target 95: can never scale out, it takes a mean above 104.5 %; write 80 or less",
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
            (
                &[("profile", "tgi"), ("metricType", "kv_cache_usage")],
                "kv_cache_usage: TGI does not publish it; measure requests_waiting",
            ),
            (
                &[("profile", "ollama"), ("metricType", "requests_waiting:5")],
                "requests_waiting: Ollama does not publish it; measure gpu_utilization, and count \
                 requests in a proxy (demandEndpoint)",
            ),
            (&[("windowFunction", "max")], "windowFunction: has no effect without a window"),
            (
                &[("metricType", "power_draw:300")],
                "power_draw: stays well above zero on an idle pod, so it does not follow replicas; \
                 measure load, such as gpu_utilization or requests_waiting",
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
            ["aggregation max: one pod speaks for all; total counts every pod"]
        );
        assert_eq!(of(&[("aggregation", "avg")], 1, true), [""; 0]);
        let flat = of(&[("aggregation", "p95")], 1, false);
        assert_eq!(flat[0], "aggregation p95: one pod speaks for all; total counts every pod");
        assert_eq!(
            flat[1],
            "aggregation p95 under AverageValue: one bare figure never asks for more than \
             ceil(100 / 80) = 2 replicas, so it is multiplied by the reporting pods here; \
             write aggregation total, or metricType: Value beside `type:`"
        );
    }

    #[test]
    fn what_never_reaches_zero_is_told_with_the_better_profile() {
        assert_eq!(
            of(&[("profile", "vllm-inference")], 0, false),
            [
                "memory_used_percent: stays well above zero on an idle pod, so it does not follow \
                 replicas; measure load, such as gpu_utilization or requests_waiting",
                "profile vllm-inference: an engine holds its memory while idle, above \
                 activationThreshold 5, so this does not scale to zero, better is profile vllm",
                "demandEndpoint: without it only another trigger can wake this workload from zero",
            ]
        );
        let better = [("profile", "tgi-inference"), ("metricType", "gpu_utilization")];
        assert!(!of(&better, 0, false).iter().any(|warning| warning.contains("better is")));
        let vram = of(&[("targetMemoryUtilization", "70")], 0, false);
        assert!(vram[1].starts_with("memory_used_percent: an engine holds its memory"), "{vram:?}");
        let heat = of(&[("metricType", "temperature:60")], 0, false);
        assert!(heat[1].starts_with("activationThreshold 0: never reaches zero"), "{heat:?}");
        let training = of(&[("profile", "training")], 0, false);
        assert!(training[1].starts_with("profile training: active while a pod"), "{training:?}");
    }
}
