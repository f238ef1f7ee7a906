//! Triggers in the pages are good ones; metrics, profiles, series and alerts are those there are.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use gateway::check::{self, Known, Source};
use gateway::trigger::profile::Profiles;

use super::{pages, root};

/// Series that are written elsewhere and not there yet. Empty it when they are.
const PENDING_SERIES: &[&str] = &[
    "gpu_gateway_device_ecc_uncorrected_errors_total",
    "gpu_gateway_device_idle_seconds",
    "gpu_gateway_device_lost",
    "gpu_gateway_device_recovery_action",
    "gpu_gateway_device_temperature_celsius",
    "gpu_gateway_device_throttled_ratio",
    "gpu_gateway_device_xid_errors_total",
    "gpu_gateway_trigger_activations_total",
    "gpu_gateway_workload_engine_pods_unread",
    "gpu_gateway_workload_pods_ready",
    "gpu_gateway_workload_pods_unscheduled",
    "gpu_gateway_workload_requests_waiting",
];

/// Each alert has a heading in `docs/operations.md`, whose anchor its `runbook_url` ends with.
const ALERTS: &[&str] = &[
    "GpuAgentSilent",
    "GpuCoverageLost",
    "GpuEngineSeriesAbsent",
    "GpuDeviceLost",
    "GpuXidErrors",
    "GpuThrottled",
    "GpuTemperatureHigh",
    "GpuDirectoryStale",
    "GpuActivationFlapping",
    "GpuQueueGrowsPodsUnschedulable",
    "GpuQueueGrowsPodsReady",
    "GpuDemandSourceDeaf",
    "GpuIdle",
    "GpuCertificateExpiring",
    "GpuGatewayNotReady",
];

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

/// Every text between quotes in the sources of a folder.
fn quoted(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            quoted(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            found.extend(text.split('"').map(str::to_owned).filter(|text| text.len() < 80));
        }
    }
}

/// Whether a series is registered: its name, less the prefix of its registry and what the encoder adds.
fn is_registered(series: &str, prefix: &str, quoted: &BTreeSet<String>) -> bool {
    let name = series.strip_prefix(prefix).unwrap_or(series);
    let ends = ["", "_total", "_seconds", "_bytes", "_info", "_seconds_total", "_ratio"];
    let base = ends.iter().filter_map(|end| name.strip_suffix(end));
    quoted.contains(series) || base.into_iter().any(|base| quoted.contains(base))
}

#[test]
fn series_in_the_text_are_those_of_the_binaries() {
    let mut wrong = BTreeSet::new();
    for (prefix, folder) in [("gpu_gateway_", "gateway/src"), ("gpu_agent_", "agent/src")] {
        let mut words = BTreeSet::new();
        quoted(&root().join(folder), &mut words);
        quoted(&root().join("shared/src"), &mut words);
        for (path, page) in pages() {
            let blocks = page.blocks.iter().map(|(_, block)| block.as_str());
            for text in page.spans.iter().map(String::as_str).chain(blocks) {
                let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
                let names = text.split(|c| !is_part(c)).filter(|name| name.starts_with(prefix));
                for name in names.filter(|name| *name != prefix) {
                    // `gpu_agent_unattributed_*` stands for all that begin so.
                    let is_family = name.ends_with('_');
                    if !is_family
                        && !is_registered(name, prefix, &words)
                        && !PENDING_SERIES.contains(&name)
                    {
                        wrong.insert(format!("{}: {name}", path.display()));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_alert_has_a_heading_that_says_what_it_means() {
    let pages = pages();
    let operations = &pages[Path::new("docs/operations.md")];
    for alert in ALERTS {
        assert!(operations.anchors.contains(&alert.to_lowercase()), "{alert}");
    }
    let rules = root().join("deploy/helm/keda-gpu-gateway/rules");
    if let Ok(files) = fs::read_dir(rules) {
        for file in files.map(|entry| entry.unwrap().path()).filter(|path| path.is_file()) {
            let text = fs::read_to_string(file).unwrap();
            let names = text.lines().filter_map(|line| line.trim().split_once("alert: "));
            for (_, name) in names {
                assert!(operations.anchors.contains(&name.trim().to_lowercase()), "{name}");
            }
        }
    }
}
