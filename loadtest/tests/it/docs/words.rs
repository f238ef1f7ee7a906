//! Triggers in the pages are good ones; metrics, profiles, series and alerts are those there are.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use gateway::check::{self, Known, Source};
use gateway::trigger::profile::Profiles;

use super::{pages, root};

/// A block of YAML as a whole object, if it is a ScaledObject, ScaledJob or a piece of one.
fn whole(block: &str) -> Option<String> {
    if block.contains("kind: ScaledObject") || block.contains("kind: ScaledJob") {
        return Some(block.to_owned());
    }
    if !block.contains("scalerAddress:") {
        return None;
    }
    let cut = |block: &str| {
        let least = block.lines().filter(|line| !line.trim().is_empty());
        let least = least.map(|line| line.len() - line.trim_start().len()).min().unwrap_or(0);
        let lines =
            block.lines().map(|line| format!("      {}\n", line.get(least..).unwrap_or("")));
        lines.collect::<String>()
    };
    let first = block.trim_start();
    let triggers = match first {
        _ if first.starts_with("scalerAddress:") => {
            format!(
                "    - type: external-push\n      metadata:\n{}",
                cut(block).replace("      ", "        ")
            )
        }
        _ if first.starts_with("triggers:") => {
            cut(block.split_once("triggers:\n").map_or("", |(_, rest)| rest))
        }
        _ if first.starts_with("metadata:") => {
            format!("    - type: external-push\n{}", cut(block))
        }
        _ => cut(block),
    };
    Some(format!(
        "apiVersion: keda.sh/v1alpha1\nkind: ScaledObject\nmetadata: {{name: a, namespace: ai}}\n\
         spec:\n  scaleTargetRef: {{name: a}}\n  minReplicaCount: 1\n  triggers:\n{triggers}"
    ))
}

#[test]
fn triggers_in_the_text_are_good_ones() {
    let profiles = Profiles::default();
    let known = Known { profiles: &profiles, load_time: None, demand_allow: &[] };
    let mut looked_at = 0;
    for (path, page) in pages() {
        for (_, block) in page.blocks.iter().filter(|(word, _)| word == "yaml") {
            let Some(text) = whole(block) else { continue };
            looked_at += 1;
            let source = Source { name: path.display().to_string(), text };
            let report = check::check(&[source], &known);
            let objects = report.subjects.iter().filter(|subject| subject.object.is_some());
            let is_good = objects.count() > 0 && report.is_good(false);
            assert!(is_good, "{block}\n{}", check::render::table(&report));
        }
    }
    assert!(looked_at > 5, "only {looked_at} were found");
}

#[test]
fn every_metric_and_profile_is_explained() {
    let pages = pages();
    let profiles = &pages[Path::new("docs/profiles.md")];
    let names = shared::metric::Metric::ALL.iter().map(|metric| metric.name().to_owned());
    let built_in = Profiles::default();
    for name in names.chain(built_in.names().map(str::to_owned)) {
        assert!(profiles.spans.contains(&name), "{name}");
    }
}

/// The series that `text` names.
fn series(text: &str) -> impl Iterator<Item = &str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let names = text.split(move |c| !is_part(c));
    names.filter(|name| ["gpu_gateway_", "gpu_agent_"].iter().any(|start| name.starts_with(start)))
}

#[test]
fn series_in_the_text_are_in_the_reference() {
    let pages = pages();
    // It is generated from the code; where it is not there yet, there is nothing to compare.
    let Some(reference) = pages.get(Path::new("docs/reference/metrics.md")) else { return };
    let known: BTreeSet<&str> = reference.spans.iter().flat_map(|span| series(span)).collect();
    let mut wrong = BTreeSet::new();
    for (path, page) in &pages {
        let blocks = page.blocks.iter().map(|(_, block)| block);
        for name in page.spans.iter().chain(blocks).flat_map(|text| series(text)) {
            // `gpu_agent_unattributed_*` stands for all that begin so.
            if !name.ends_with('_') && !known.contains(name) {
                wrong.insert(format!("{}: {name}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_alert_has_a_heading_that_says_what_it_means() {
    let operations = fs::read_to_string(root().join("docs/operations.md")).unwrap();
    let (_, section) = operations.split_once("\n## Alerts\n").unwrap();
    let explained = section.lines().filter_map(|line| line.strip_prefix("### "));
    let explained: BTreeSet<String> = explained.map(str::to_owned).collect();
    assert!(explained.len() > 10, "{explained:?}");
    // The chart's rules; where they are not there yet, there is nothing to compare.
    let rules = root().join("deploy/helm/keda-gpu-gateway/rules");
    let Ok(files) = fs::read_dir(rules) else { return };
    let mut alerts = BTreeSet::new();
    for file in files.map(|entry| entry.unwrap().path()).filter(|path| path.is_file()) {
        let text = fs::read_to_string(file).unwrap();
        let names = text.lines().filter_map(|line| line.trim().split_once("alert: "));
        alerts.extend(names.map(|(_, name)| name.trim().to_owned()));
    }
    assert_eq!(explained, alerts);
}
