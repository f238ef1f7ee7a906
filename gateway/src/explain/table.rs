//! The explanation as a table for people.

use std::fmt::Write as _;

use comfy_table::{ContentArrangement, Table, presets};

use super::{CoverageExplanation, Explanation, PodExplanation, TriggerExplanation};

/// The whole explanation as text.
pub fn render(explanation: &Explanation) -> String {
    let mut text = String::new();
    let Explanation { namespace, name, target, .. } = explanation;
    let age = explanation.directory_age_seconds;
    put(&mut text, format_args!("{namespace}/{name} scales {} {}", target.kind, target.name));
    put(&mut text, format_args!("directory known {age:.0} s ago"));
    if explanation.triggers.is_empty() {
        put(
            &mut text,
            format_args!("\nno trigger is declared, and none was asked about in the last 10 min"),
        );
    }
    for trigger in &explanation.triggers {
        render_trigger(&mut text, trigger);
    }
    text
}

fn put(text: &mut String, line: std::fmt::Arguments<'_>) {
    writeln!(text, "{line}").expect("writing to a String does not fail");
}

/// A figure as people write it; `-` where it is not known.
fn figure(value: Option<f64>) -> String {
    value.map_or_else(|| "-".into(), |value| ((value * 1_000.0).round() / 1_000.0).to_string())
}

fn render_trigger(text: &mut String, trigger: &TriggerExplanation) {
    let name = trigger.metric_name.as_deref().unwrap_or("(no name)");
    let kind = trigger.metric_type.as_deref().unwrap_or("-");
    put(
        text,
        format_args!("\n{name}  {}  target {} {kind}", trigger.status, figure(trigger.target)),
    );
    put(text, format_args!("  why       {}", trigger.reason));
    if let Some(active) = trigger.active {
        let since =
            trigger.active_since.as_deref().map_or_else(String::new, |at| format!(", since {at}"));
        put(
            text,
            format_args!(
                "  active    {}",
                if active { format!("yes{since}") } else { "no".into() }
            ),
        );
    }
    render_figures(text, trigger);
    for warning in &trigger.warnings {
        put(text, format_args!("  warning   {warning}"));
    }
    if !trigger.pods.is_empty() {
        for line in pods(&trigger.pods).lines() {
            put(text, format_args!(" {}", line.trim_end()));
        }
    }
}

fn render_figures(text: &mut String, trigger: &TriggerExplanation) {
    if let Some(coverage) = &trigger.coverage {
        let known = |replicas: Option<u32>| replicas.map_or_else(|| "-".into(), |n| n.to_string());
        let (ordered, status) = (known(trigger.replicas), known(trigger.status_replicas));
        let CoverageExplanation { reporting, starting, missing, stuck } = coverage;
        let pods =
            format!("{reporting} reporting, {starting} starting, {missing} missing, {stuck} stuck");
        put(text, format_args!("  replicas  {ordered} ordered, {status} in status; {pods}"));
    }
    if trigger.hold.is_some() {
        let [value, s, up, down, hold] =
            [trigger.value, trigger.s, trigger.up, trigger.down, trigger.hold].map(figure);
        put(
            text,
            format_args!("  value     {value}  (sum {s}, up {up}, down {down}, hold {hold})"),
        );
    }
    if let Some(hpa) = &trigger.hpa {
        let clamped =
            hpa.clamped_by.as_ref().map_or_else(String::new, |by| format!(" (cut by {by})"));
        let ratio = figure(hpa.ratio);
        put(text, format_args!("  the HPA   ratio {ratio}, would order {}{clamped}", hpa.desired));
    }
}

fn pods(pods: &[PodExplanation]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(["POD", "NODE", "STATE", "READING", "AGE", "DEVICES", "WHY"]);
    for pod in pods {
        let devices = pod.devices.iter().map(|device| {
            let uuid = device.uuid.as_deref().unwrap_or("engine");
            let reading = figure(device.reading);
            if device.state == "ok" {
                format!("{uuid} {reading}")
            } else {
                format!("{uuid} {}", device.state)
            }
        });
        table.add_row([
            pod.name.to_string(),
            pod.node.clone().unwrap_or_else(|| "-".into()),
            pod.state.clone(),
            figure(pod.reading),
            pod.age_ms.map_or_else(|| "-".into(), |age| format!("{age} ms")),
            devices.collect::<Vec<_>>().join(", "),
            pod.why.clone().unwrap_or_default(),
        ]);
    }
    table
}
