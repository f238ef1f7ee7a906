//! The explanation as a table for people: a sentence, then the figures, then the pods.
//!
//! Guarantees: made from the explanation alone, so what a person reads is what JSON says; pods
//! with a problem come first and are never left out before those without.

use std::fmt::Write as _;

use comfy_table::{ContentArrangement, Table, presets};
use shared::text::plain;

use super::sentence::{plural, sentences};
use super::{
    CoverageExplanation, DeviceExplanation, Explanation, PodExplanation, SpanExplanation,
    TriggerExplanation,
};

/// Columns of a paragraph.
const WIDTH: usize = 100;
/// Pods that are listed; the others are counted.
const MAX_PODS: usize = 60;
/// States by how much they need to be seen.
const BY_URGENCY: [&str; 5] = ["stuck", "missing", "unsupported", "starting", "reporting"];

/// The whole explanation as text.
pub fn render(explanation: &Explanation) -> String {
    let mut text = String::new();
    for sentence in sentences(explanation) {
        put_wrapped(&mut text, "", &sentence);
    }
    let Explanation { target, .. } = explanation;
    let age = explanation.directory_age_seconds;
    put(&mut text, format_args!("\n{} {}, directory {age:.0} s old", target.kind, target.name));
    render_startup(&mut text, explanation);
    render_free(&mut text, explanation);
    for trigger in &explanation.triggers {
        render_trigger(&mut text, trigger);
    }
    text
}

fn put(text: &mut String, line: std::fmt::Arguments<'_>) {
    writeln!(text, "{line}").expect("writing to a String does not fail");
}

/// A paragraph after a label; further lines stand under its beginning.
fn put_wrapped(text: &mut String, label: &str, paragraph: &str) {
    let indent = label.chars().count();
    let mut line = label.to_owned();
    let mut is_empty = true;
    for word in paragraph.split_whitespace() {
        if !is_empty && line.chars().count() + 1 + word.chars().count() > WIDTH {
            put(text, format_args!("{}", line.trim_end()));
            line = " ".repeat(indent);
            is_empty = true;
        }
        if !is_empty {
            line.push(' ');
        }
        line.push_str(word);
        is_empty = false;
    }
    put(text, format_args!("{}", line.trim_end()));
}

/// A figure as people write it; `-` where it is not known.
pub(super) fn figure(value: Option<f64>) -> String {
    value.map_or_else(|| "-".into(), |value| ((value * 1_000.0).round() / 1_000.0).to_string())
}

/// What was seen of the pods' way from order to first reading.
fn render_startup(text: &mut String, explanation: &Explanation) {
    let startup = &explanation.startup;
    let steps = [
        ("ordered to scheduled", &startup.ordered_to_scheduled),
        ("scheduled to Ready", &startup.scheduled_to_ready),
        ("Ready to first reading", &startup.ready_to_first_reading),
    ];
    if steps.iter().all(|(_, span)| span.pods == 0) {
        put(text, format_args!("  startup   no pod was seen to start since this gateway did"));
        return;
    }
    for (label, (step, span)) in ["  startup   ", "            ", "            "].iter().zip(steps)
    {
        put(text, format_args!("{label}{step:<22}  {}", took(span)));
    }
}

fn took(span: &SpanExplanation) -> String {
    let (Some(median), Some(p90)) = (span.median_seconds, span.p90_seconds) else {
        return "not seen yet".into();
    };
    let pods = plural(u32::try_from(span.pods).unwrap_or(u32::MAX), "pod");
    format!("median {median:.0} s, nine of ten within {p90:.0} s ({pods})")
}

fn render_free(text: &mut String, explanation: &Explanation) {
    let free = explanation.gpus_free.iter().map(|(model, count)| format!("{count} {model}"));
    let free = free.collect::<Vec<_>>().join(", ");
    let free = if free.is_empty() { "no agent reports a device" } else { &free };
    put_wrapped(text, "  free GPUs ", &format!("{free} (whole cluster)"));
}

fn render_trigger(text: &mut String, trigger: &TriggerExplanation) {
    let name = trigger.metric_name.as_deref().unwrap_or("(no name)");
    let kind = trigger.metric_type.as_deref().unwrap_or("-");
    put(
        text,
        format_args!("\n{name}  {}  target {} {kind}", trigger.status, figure(trigger.target)),
    );
    render_figures(text, trigger);
    if let Some(active) = trigger.active {
        let since =
            trigger.active_since.as_deref().map_or_else(String::new, |at| format!(", since {at}"));
        let active = if active { format!("yes{since}") } else { "no".into() };
        put(text, format_args!("  active    {active}"));
    }
    for warning in &trigger.warnings {
        put_wrapped(text, "  warning   ", warning);
    }
    render_pods(text, &trigger.pods);
}

fn render_figures(text: &mut String, trigger: &TriggerExplanation) {
    if let Some(coverage) = &trigger.coverage {
        let known = |replicas: Option<u32>| replicas.map_or_else(|| "-".into(), |n| n.to_string());
        let (ordered, status) = (known(trigger.replicas), known(trigger.status_replicas));
        let CoverageExplanation { reporting, starting, missing, stuck, unscheduled } = coverage;
        let mut pods =
            format!("{reporting} reporting, {starting} starting, {missing} missing, {stuck} stuck");
        if let Some(unscheduled) = unscheduled {
            pods += &format!("; {unscheduled} waiting to be scheduled");
        }
        put(text, format_args!("  replicas  {ordered} ordered, {status} in status; {pods}"));
    }
    if trigger.hold.is_some() {
        let [value, s, up, down, hold] =
            [trigger.value, trigger.s, trigger.up, trigger.down, trigger.hold].map(figure);
        put(
            text,
            format_args!("  value     {value}  (sum {s}, up {up}, down {down}, hold {hold})"),
        );
        if up != down {
            let meaning = "up: pods without a reading idle, down: at the target, hold: no change";
            put(text, format_args!("            {meaning}"));
        }
    }
    if let Some(hpa) = &trigger.hpa {
        let clamped =
            hpa.clamped_by.as_ref().map_or_else(String::new, |by| format!(" (cut by {by})"));
        let ratio = figure(hpa.ratio);
        let fewer = trigger.replicas.is_some_and(|replicas| hpa.desired < replicas);
        let later =
            if fewer { "; it scales in after its stabilization, 300 s unless set" } else { "" };
        let desired = hpa.desired;
        put(text, format_args!("  the HPA   ratio {ratio}, would order {desired}{clamped}{later}"));
    }
}

fn render_pods(text: &mut String, pods: &[PodExplanation]) {
    if pods.is_empty() {
        return;
    }
    let urgency = |pod: &&PodExplanation| {
        let waits = pod.why.as_ref().is_some_and(|why| why.starts_with("waiting"));
        (BY_URGENCY.iter().position(|state| *state == pod.state), !waits)
    };
    let mut pods: Vec<&PodExplanation> = pods.iter().collect();
    pods.sort_by_key(urgency);
    put(text, format_args!(""));
    for line in table(&pods[..pods.len().min(MAX_PODS)]).lines() {
        put(text, format_args!(" {}", line.trim_end()));
    }
    if let Some(first) = pods.get(MAX_PODS) {
        let (more, state) = (pods.len() - MAX_PODS, &first.state);
        put(text, format_args!("  … and {more} more, from {state} on; -o json has them all"));
    }
}

fn table(pods: &[&PodExplanation]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(["POD", "NODE", "STATE", "READING", "AGE", "DEVICES", "WHY"]);
    for pod in pods {
        let devices = pod.devices.iter().map(|device| {
            let uuid = device.uuid.as_deref().unwrap_or("engine");
            let reading = figure(device.reading);
            let said = if device.state == "ok" { &reading } else { &device.state };
            format!("{uuid} {said}{}", footing(device))
        });
        table.add_row([
            pod.name.to_string(),
            pod.node.as_deref().map_or_else(|| "-".into(), plain),
            pod.state.clone(),
            figure(pod.reading),
            pod.age_ms.map_or_else(|| "-".into(), |age| format!("{age} ms")),
            plain(&devices.collect::<Vec<_>>().join(", ")),
            pod.why.as_deref().map(plain).unwrap_or_default(),
        ]);
    }
    table
}

/// What a reading rests on, where that is not simply the pod's own device.
fn footing(device: &DeviceExplanation) -> String {
    let source = device.source.as_deref().unwrap_or("?");
    let estimated = device.estimated.then(|| format!("estimated by {source}"));
    let undeclared = device.undeclared.then(|| "undeclared".to_owned());
    let said: Vec<_> = estimated.into_iter().chain(undeclared).collect();
    if said.is_empty() { String::new() } else { format!(" ({})", said.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: String, state: &str, why: Option<&str>) -> PodExplanation {
        PodExplanation {
            name: name.into(),
            uid: None,
            node: None,
            state: state.into(),
            counted: false,
            why: why.map(Into::into),
            reading: None,
            age_ms: None,
            devices: Vec::new(),
        }
    }

    #[test]
    fn pods_with_a_problem_come_first_and_a_long_list_is_cut_at_its_healthy_end() {
        let mut pods: Vec<_> =
            (0..MAX_PODS).map(|number| pod(format!("well-{number}"), "reporting", None)).collect();
        pods.push(pod("loads".into(), "starting", Some("not ready for 3 s: loading")));
        pods.push(pod("waits".into(), "starting", Some("waiting for a GPU: none")));
        pods.push(pod("silent".into(), "missing", Some("stale")));
        let mut text = String::new();
        render_pods(&mut text, &pods);
        let names: Vec<_> =
            text.lines().filter_map(|line| line.split_whitespace().next()).collect();
        assert_eq!(names[..5], ["POD", "silent", "waits", "loads", "well-0"]);
        assert!(
            text.ends_with("… and 3 more, from reporting on; -o json has them all\n"),
            "{text}"
        );
    }

    #[test]
    fn a_paragraph_keeps_its_words_and_its_indent() {
        let words = vec!["word"; 60].join(" ");
        let mut text = String::new();
        put_wrapped(&mut text, "  why   ", &words);
        assert!(text.lines().all(|line| line.len() <= WIDTH));
        assert!(text.lines().skip(1).all(|line| line.starts_with("        word")), "{text}");
        assert_eq!(text.matches("word").count(), 60);
    }
}
