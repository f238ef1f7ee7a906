//! The report as text for people and as JSON for programs.

use std::fmt::Write as _;

use serde::Serialize;

use super::{Finding, Report, Severity};

/// One finding with where it is.
#[derive(Serialize)]
struct Located<'a> {
    file: &'a str,
    object: Option<&'a str>,
    #[serde(flatten)]
    finding: &'a Finding,
}

#[derive(Serialize)]
struct Whole<'a> {
    objects: usize,
    errors: usize,
    warnings: usize,
    notes: usize,
    findings: Vec<Located<'a>>,
}

/// The report as JSON: counts, and the findings in order.
///
/// # Errors
/// Never with what a report holds.
pub fn json(report: &Report) -> serde_json::Result<String> {
    let findings = report.subjects.iter().flat_map(|subject| {
        subject.findings.iter().map(|finding| Located {
            file: &subject.file,
            object: subject.object.as_deref(),
            finding,
        })
    });
    serde_json::to_string_pretty(&Whole {
        objects: objects(report),
        errors: report.count(Severity::Error),
        warnings: report.count(Severity::Warning),
        notes: report.count(Severity::Note),
        findings: findings.collect(),
    })
}

/// The report as text: each object with its findings, then the counts.
pub fn table(report: &Report) -> String {
    let mut text = String::new();
    for subject in &report.subjects {
        let good = if subject.findings.is_empty() { "  ok" } else { "" };
        let object = subject.object.as_ref().map_or_else(String::new, |name| format!("  {name}"));
        put(&mut text, format_args!("{}{good}", plain(&format!("{}{object}", subject.file))));
        for finding in &subject.findings {
            put(&mut text, format_args!("  {}", plain(&line(finding))));
        }
    }
    let counts = [
        (objects(report), "object"),
        (report.count(Severity::Error), "error"),
        (report.count(Severity::Warning), "warning"),
        (report.count(Severity::Note), "note"),
    ];
    let counts = counts.map(|(n, what)| format!("{n} {what}{}", if n == 1 { "" } else { "s" }));
    let gap = if report.subjects.is_empty() { "" } else { "\n" };
    put(&mut text, format_args!("{gap}{}", counts.join(", ")));
    text
}

fn objects(report: &Report) -> usize {
    report.subjects.iter().filter(|subject| subject.object.is_some()).count()
}

fn line(finding: &Finding) -> String {
    let severity = match finding.severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
        Severity::Note => "note",
    };
    let trigger = finding.trigger.as_ref().map_or_else(String::new, |trigger| {
        let name = trigger.name.as_ref().map_or_else(String::new, |name| format!(" ({name})"));
        format!("trigger {}{name}: ", trigger.index)
    });
    format!("{severity:<7}  {:<16}  {trigger}{}", finding.rule, finding.message)
}

/// Files are others' words: none of them may move a terminal's cursor or start a line.
fn plain(text: &str) -> String {
    let escaped =
        |c: char| if c.is_control() { c.escape_default().collect() } else { c.to_string() };
    text.chars().map(escaped).collect()
}

fn put(text: &mut String, line: std::fmt::Arguments<'_>) {
    writeln!(text, "{line}").expect("writing to a String does not fail");
}
