//! What the documentation says is there: links, flags, triggers, metrics, a word on every alert.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use clap::CommandFactory as _;
use gateway::check::{self, Known, Source};
use gateway::trigger::profile::Profiles;

/// Pages and folders that are written elsewhere and not there yet. Empty it when they are.
const PENDING_PAGES: &[&str] = &[
    "docs/reference/flags.md",
    "docs/reference/metadata.md",
    "docs/reference/metrics.md",
    "SECURITY.md",
    "deploy/helm/keda-gpu-gateway",
];

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

/// Commands that are written elsewhere and not there yet. Empty it when they are.
const PENDING_COMMANDS: &[&str] = &[];

/// Flags of other programs that stand in the text.
const FOREIGN_FLAGS: &[&str] = &["--enable-metrics", "--horizontal-pod-autoscaler-sync-period"];

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

/// A line in a fence, or outside one.
#[derive(Default)]
pub(crate) struct Page {
    /// Lines of text, without code between back-ticks.
    prose: Vec<String>,
    /// What is between back-ticks.
    spans: Vec<String>,
    /// Code blocks: the word after the fence, and the lines.
    pub(crate) blocks: Vec<(String, String)>,
    /// Anchors of its headings.
    anchors: BTreeSet<String>,
}

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

/// Every Markdown file of the repository, by its path from the root.
pub(crate) fn pages() -> BTreeMap<PathBuf, Page> {
    fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() && !name.starts_with('.') && name != "target" && !path.is_symlink() {
                walk(&path, found);
            } else if name.ends_with(".md") {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    walk(&root(), &mut found);
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).unwrap();
        (path.strip_prefix(root()).unwrap().to_owned(), page(&text))
    };
    found.into_iter().map(read).collect()
}

fn page(text: &str) -> Page {
    let mut page = Page::default();
    let mut fence: Option<(String, String)> = None;
    let mut seen: BTreeMap<String, u32> = BTreeMap::new();
    for line in text.lines() {
        if let Some(word) = line.trim_start().strip_prefix("```") {
            match fence.take() {
                Some(block) => page.blocks.push(block),
                None => fence = Some((word.trim().to_owned(), String::new())),
            }
            continue;
        }
        if let Some((_, block)) = &mut fence {
            block.push_str(line);
            block.push('\n');
            continue;
        }
        let is_heading = line.starts_with('#');
        if is_heading {
            let slug = slug(line.trim_start_matches('#'));
            let count = seen.entry(slug.clone()).or_default();
            page.anchors.insert(if *count == 0 { slug } else { format!("{slug}-{count}") });
            *count += 1;
        }
        let parts: Vec<&str> = line.split('`').collect();
        page.spans.extend(parts.iter().skip(1).step_by(2).map(|part| (*part).to_owned()));
        page.prose.push(parts.into_iter().step_by(2).collect::<Vec<_>>().join("`"));
    }
    page
}

/// The anchor that GitHub gives a heading.
fn slug(heading: &str) -> String {
    let kept = heading.trim().to_lowercase();
    let kept = kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// The targets of `[text](target)` in a line.
fn links(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| rest.split(')').next())
}

/// Takes `.` and `..` out of a path.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            std::path::Component::ParentDir => drop(plain.pop()),
            std::path::Component::CurDir => {}
            part => plain.push(part),
        }
    }
    plain
}

#[test]
fn every_link_leads_somewhere() {
    let pages = pages();
    let mut broken = Vec::new();
    for (path, page) in &pages {
        for link in page.prose.iter().flat_map(|line| links(line)) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (file, anchor) = link.split_once('#').map_or((link, None), |(f, a)| (f, Some(a)));
            let file = match file {
                "" => path.clone(),
                file => plain(&path.parent().unwrap().join(file)),
            };
            let is_pending = PENDING_PAGES.iter().any(|pending| file.starts_with(pending));
            let is_there = root().join(&file).exists();
            let has_anchor = anchor.is_none_or(|anchor| {
                pages.get(&file).is_some_and(|page| page.anchors.contains(anchor))
            });
            if !(is_pending && !is_there) && !(is_there && has_anchor) {
                broken.push(format!("{}: {link}", path.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// The long flags of a command and of all below it, by the words that lead there.
fn flags(command: &clap::Command, words: &str, found: &mut BTreeMap<String, BTreeSet<String>>) {
    let long = |argument: &clap::Arg| argument.get_long().map(|long| format!("--{long}"));
    let mut own: BTreeSet<String> = command.get_arguments().filter_map(long).collect();
    own.extend(["--help", "--version"].map(str::to_owned));
    found.insert(words.to_owned(), own);
    for below in command.get_subcommands() {
        flags(below, &format!("{words} {}", below.get_name()), found);
    }
}

fn known_flags() -> BTreeMap<String, BTreeSet<String>> {
    let mut known = BTreeMap::new();
    flags(&agent::config::Cli::command(), "gpu-agent", &mut known);
    flags(&gateway::config::Cli::command(), "gpu-gateway", &mut known);
    known
}

/// What is wrong with the calls of our binaries in a line of a shell.
fn wrong_calls(line: &str, known: &BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    let mut wrong = Vec::new();
    let line = line.split(" #").next().unwrap_or_default();
    for call in line.split(['|', '&', ';', '`']) {
        let mut words = call.split_whitespace().peekable();
        let is_ours = |word: &&str| matches!(*word, "gpu-agent" | "gpu-gateway");
        let Some(binary) = words.by_ref().find(is_ours) else { continue };
        let Some(below) = words.peek().filter(|word| !word.starts_with('-')) else { continue };
        let words_so_far = format!("{binary} {below}");
        if PENDING_COMMANDS.contains(&&*words_so_far) {
            continue;
        }
        // `daemonset/gpu-agent`, `-c gpu-agent` and the like are names, not calls.
        let Some(flags) = known.get(&words_so_far) else {
            if call.trim_start().starts_with(binary) {
                wrong.push(words_so_far);
            }
            continue;
        };
        let used = words.filter(|word| word.starts_with("--") && word.len() > 2);
        let unknown = used.map(|word| word.split('=').next().unwrap_or(word));
        let unknown = unknown.filter(|flag| !flags.contains(*flag));
        wrong.extend(unknown.map(|flag| format!("{words_so_far} {flag}")));
    }
    wrong
}

#[test]
fn commands_and_flags_are_those_of_the_binaries() {
    let known = known_flags();
    let all: BTreeSet<&String> = known.values().flatten().collect();
    let mut wrong = Vec::new();
    let mut calls = 0;
    for (path, page) in pages() {
        let shell = |word: &str| matches!(word, "sh" | "console" | "bash" | "shell");
        for (_, block) in page.blocks.iter().filter(|(word, _)| shell(word)) {
            for line in block.replace("\\\n", " ").lines() {
                calls += usize::from(line.contains("gpu-agent ") || line.contains("gpu-gateway "));
                let found = wrong_calls(line, &known);
                wrong.extend(found.into_iter().map(|what| format!("{}: {what}", path.display())));
            }
        }
        for span in &page.spans {
            let found = wrong_calls(span, &known);
            wrong.extend(found.into_iter().map(|what| format!("{}: {what}", path.display())));
            let is_flag = span.starts_with("--") && !span.contains("--http2-prior-knowledge");
            let flag = span.split([' ', '=', '|']).next().unwrap_or_default();
            if is_flag && !all.contains(&flag.to_owned()) && !FOREIGN_FLAGS.contains(&flag) {
                wrong.push(format!("{}: {span}", path.display()));
            }
        }
    }
    assert!(calls > 20, "only {calls} calls were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

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
    assert!(looked_at > 3, "only {looked_at} were found");
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
