//! The explanation in one sentence: what KEDA is told, what the HPA makes of it, and why.

use super::table::figure;
use super::{Explanation, TriggerExplanation};

/// The HPA's default tolerance.
const TOLERANCE: f64 = 0.1;

/// What KEDA itself does, whatever the HPA does.
const NOT_ACTIVE: &str = " It is not active: unless another trigger is, KEDA takes it to zero \
    after the cooldown where minReplicaCount is 0.";

/// One sentence per trigger; of several, also which of them counts.
pub(super) fn sentences(explanation: &Explanation) -> Vec<String> {
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
            format!("{told}, so the HPA {order} ({rule}), because {reason}.{idle}")
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
