//! The explanation in one sentence: what KEDA is told, what the HPA makes of it, and why.

use super::table::figure;
use super::{Explanation, TriggerExplanation};

/// The HPA's default tolerance.
const TOLERANCE: f64 = 0.1;

/// What KEDA itself does, whatever the HPA does.
const NOT_ACTIVE: &str = " It is not active: unless another trigger is, KEDA takes it to zero \
    after the cooldown where minReplicaCount is 0.";

/// One sentence per trigger; of several, also which of them counts.
pub(crate) fn sentences(explanation: &Explanation) -> Vec<String> {
    let Explanation { namespace, name, triggers, .. } = explanation;
    if triggers.is_empty() {
        return vec![format!(
            "{namespace}/{name}: KEDA is told nothing, because no trigger is declared, and none was \
             asked about in the last 10 min."
        )];
    }
    let one = |trigger| format!("{namespace}/{name}: {}", sentence(trigger));
    let mut sentences: Vec<_> = triggers.iter().map(one).collect();
    let desired = || triggers.iter().filter_map(|trigger| trigger.hpa.as_ref());
    if let Some(most) = desired().map(|hpa| hpa.desired).max().filter(|_| triggers.len() > 1) {
        let blind = desired().count() < triggers.len();
        let blind = if blind { ", and none fewer while a trigger has no value" } else { "" };
        sentences.push(format!(
            "Of several triggers the HPA follows the one that orders most: {most}{blind}."
        ));
    }
    sentences
}

fn sentence(trigger: &TriggerExplanation) -> String {
    let name = trigger.metric_name.as_deref().unwrap_or("the trigger");
    let reason = reason(trigger);
    let Some(value) = trigger.value else {
        return format!(
            "KEDA is told {} instead of a value for {name}, so the HPA neither adds nor removes a \
             replica on its account (unless a fallback is set), because {reason}.",
            trigger.status
        );
    };
    let told = format!("KEDA is told {} for {name}", figure(Some(value)));
    match (&trigger.hpa, trigger.replicas) {
        (Some(hpa), Some(replicas)) => {
            let order = if hpa.desired == replicas {
                format!("keeps {}", plural(replicas, "replica"))
            } else {
                format!("will order {} instead of {replicas}", plural(hpa.desired, "replica"))
            };
            let rule = rule(trigger, value);
            let idle = if trigger.active == Some(false) { NOT_ACTIVE } else { "" };
            let stuck = stuck(trigger);
            format!("{told}, so the HPA {order} ({rule}), because {reason}{stuck}.{idle}")
        }
        _ if trigger.active == Some(true) => {
            format!("{told} and that there is work, so KEDA starts it, because {reason}.")
        }
        _ => format!("{told} and that there is no work, so it stays at zero, because {reason}."),
    }
}

/// Why, without the name of the metric, which has been said.
fn reason(trigger: &TriggerExplanation) -> &str {
    let metric = trigger.metric.as_deref().filter(|metric| !metric.is_empty());
    let rest = metric.and_then(|metric| trigger.reason.strip_prefix(metric)?.strip_prefix(": "));
    rest.unwrap_or(&trigger.reason).trim_end_matches('.')
}

/// Replicas that the value leaves out, although they are ordered.
fn stuck(trigger: &TriggerExplanation) -> String {
    match trigger.coverage.as_ref().map_or(0, |coverage| coverage.stuck) {
        0 => String::new(),
        stuck => format!("; {stuck} stuck, no longer counted"),
    }
}

/// The HPA's arithmetic.
fn rule(trigger: &TriggerExplanation, value: f64) -> String {
    let Some(hpa) = &trigger.hpa else { return String::new() };
    let target = trigger.target.unwrap_or(f64::NAN);
    let (value_text, target_text) = (figure(Some(value)), figure(Some(target)));
    let by_value = trigger.metric_type.as_deref() == Some("Value");
    let clamped = hpa.clamped_by.as_ref().map_or_else(String::new, |by| format!(", cut by {by}"));
    let whole = match trigger.status_replicas {
        Some(replicas) if !by_value => format!("{target_text} x {}", plural(replicas, "replica")),
        _ => target_text.clone(),
    };
    match hpa.ratio.filter(|ratio| (1.0 - ratio).abs() <= TOLERANCE) {
        Some(ratio) if !by_value && (1.0 - ratio).abs() < 1e-9 => {
            format!("{value_text} = {whole}{clamped}")
        }
        Some(ratio) => {
            let times = figure(Some(ratio));
            format!("{value_text} / ({whole}) = {times}, within its tolerance of 0.1{clamped}")
        }
        None if by_value => {
            let times = figure(hpa.ratio);
            format!("{value_text} / {target_text} = {times} times its ready pods{clamped}")
        }
        None => {
            let needed = figure(Some((value / target * 1_000.0).round() / 1_000.0));
            let whole = needed.parse::<u32>().is_ok();
            let up = if whole { "" } else { ", rounded up" };
            format!("{value_text} / {target_text} per replica = {needed}{up}{clamped}")
        }
    }
}

/// A count with its word.
pub(super) fn plural(count: u32, word: &str) -> String {
    if count == 1 { format!("1 {word}") } else { format!("{count} {word}s") }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::explain::{CoverageExplanation, HpaExplanation, StartupExplanation, Target};

    /// `value` at a target of 50, from 4 replicas; what the HPA orders.
    fn told(value: f64, desired: u32) -> TriggerExplanation {
        TriggerExplanation {
            metric: Some("gpu_utilization".into()),
            metric_name: Some("gpu_utilization".into()),
            metric_type: Some("AverageValue".into()),
            target: Some(50.0),
            value: Some(value),
            active: Some(true),
            status: "OK".into(),
            reason: "gpu_utilization: 4 of 4 replicas report".into(),
            replicas: Some(4),
            status_replicas: Some(4),
            hpa: Some(HpaExplanation { ratio: Some(value / 200.0), desired, clamped_by: None }),
            ..TriggerExplanation::default()
        }
    }

    fn said(triggers: Vec<TriggerExplanation>) -> Vec<String> {
        sentences(&Explanation {
            namespace: "ai".into(),
            name: "so".into(),
            target: Target { kind: "Deployment".into(), name: "vllm".into() },
            directory_age_seconds: 0.0,
            startup: StartupExplanation::default(),
            gpus_free: BTreeMap::new(),
            triggers,
        })
    }

    #[test]
    fn every_way_of_an_answer_has_its_sentence() {
        const BECAUSE: &str = "because 4 of 4 replicas report.";
        let mut clamped = told(1_000.0, 6);
        clamped.hpa.as_mut().unwrap().clamped_by = Some("maxReplicaCount".into());
        let mut by_value = told(75.0, 6);
        by_value.metric_type = Some("Value".into());
        by_value.hpa.as_mut().unwrap().ratio = Some(1.5);
        for (trigger, right) in [
            (told(300.0, 6), "will order 6 replicas instead of 4 (300 / 50 per replica = 6)"),
            (
                told(60.0, 2),
                "will order 2 replicas instead of 4 (60 / 50 per replica = 1.2, rounded up)",
            ),
            (
                told(210.0, 4),
                "keeps 4 replicas (210 / (50 x 4 replicas) = 1.05, within its tolerance of 0.1)",
            ),
            (told(200.0, 4), "keeps 4 replicas (200 = 50 x 4 replicas)"),
            (
                clamped,
                "will order 6 replicas instead of 4 (1000 / 50 per replica = 20, cut by maxReplicaCount)",
            ),
            (by_value, "will order 6 replicas instead of 4 (75 / 50 = 1.5 times its ready pods)"),
        ] {
            let value = figure(trigger.value);
            let right = format!(
                "ai/so: KEDA is told {value} for gpu_utilization, so the HPA {right}, {BECAUSE}"
            );
            assert_eq!(said(vec![trigger]), [right]);
        }
    }

    #[test]
    fn zero_errors_and_idleness_say_what_keda_does() {
        let zero = |active| TriggerExplanation {
            value: Some(0.0),
            active: Some(active),
            replicas: Some(0),
            hpa: None,
            reason: "no replicas ordered and no pods left".into(),
            ..told(0.0, 0)
        };
        let refused = TriggerExplanation {
            value: None,
            hpa: None,
            status: "UNAVAILABLE".into(),
            reason: "no fresh reading of 1 ready pod (a): stale".into(),
            ..told(0.0, 0)
        };
        let idle = TriggerExplanation { active: Some(false), ..told(0.0, 1) };
        let coverage = CoverageExplanation {
            reporting: 3,
            starting: 0,
            missing: 0,
            stuck: 1,
            unscheduled: None,
        };
        let stuck = TriggerExplanation { coverage: Some(coverage), ..told(150.0, 3) };
        for (trigger, words) in [
            (zero(false), ["there is no work, so it stays at zero", "because no replicas ordered"]),
            (zero(true), ["there is work, so KEDA starts it", "because no replicas ordered"]),
            (
                refused,
                ["UNAVAILABLE instead of a value", "because no fresh reading of 1 ready pod"],
            ),
            (stuck, ["will order 3 replicas", "replicas report; 1 stuck, no longer counted."]),
            (idle, ["will order 1 replica instead of 4", "It is not active: unless another"]),
        ] {
            let said = said(vec![trigger]).concat();
            assert!(words.iter().all(|word| said.contains(word)), "{said}");
        }
        assert!(said(Vec::new()).concat().contains("no trigger is declared"));
    }

    #[test]
    fn of_several_triggers_the_one_that_orders_most_is_named() {
        let blind = TriggerExplanation { value: None, hpa: None, ..told(0.0, 0) };
        let two = said(vec![told(300.0, 6), told(60.0, 2)]);
        assert_eq!(two.len(), 3);
        assert_eq!(two[2], "Of several triggers the HPA follows the one that orders most: 6.");
        let one_blind = said(vec![told(300.0, 6), blind]);
        assert!(one_blind[2].ends_with("6, and none fewer while a trigger has no value."));
    }
}
