//! Commands in the pages and in the try-out name only what the binaries know.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use clap::{Args as _, CommandFactory as _, Parser as _};
use loadtest::measure::fleet::FleetArgs;
use loadtest::measure::keda::KedaArgs;
use loadtest::measure::repeat::RepeatArgs;
use loadtest::replay;

use super::{pages, root};

/// Commands that are written elsewhere and not there yet. Empty it when they are.
const PENDING_COMMANDS: &[&str] = &[];

/// Flags of other programs that stand in the text.
const FOREIGN_FLAGS: &[&str] =
    &["--build-arg", "--enable-metrics", "--horizontal-pod-autoscaler-sync-period"];

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
    let replay = replay::command::Args::augment_args(clap::Command::new("replay"));
    flags(&replay, "loadtest replay", &mut known);
    let keda = KedaArgs::augment_args(clap::Command::new("keda"));
    flags(&keda, "loadtest keda", &mut known);
    let fleet = FleetArgs::augment_args(clap::Command::new("fleet"));
    flags(&fleet, "loadtest fleet", &mut known);
    let repeat = RepeatArgs::augment_args(clap::Command::new("repeat"));
    flags(&repeat, "loadtest repeat", &mut known);
    known
}

/// What is wrong with the calls of our binaries in a line of a shell.
fn wrong_calls(line: &str, known: &BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    let mut wrong = Vec::new();
    let line = line.split(" #").next().unwrap_or_default();
    for call in line.split(['|', '&', ';', '`']) {
        let mut words = call.split_whitespace().peekable();
        let is_ours = |word: &&str| matches!(*word, "gpu-agent" | "gpu-gateway" | "loadtest");
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

/// The arguments after `start` in a manifest: the lines below it that are items of a list.
fn arguments<'a>(manifest: &'a str, start: &str) -> Vec<&'a str> {
    let lines = manifest.lines().map(str::trim).skip_while(|line| *line != start).skip(1);
    lines.map_while(|line| line.strip_prefix("- ")).collect()
}

#[test]
fn the_try_out_starts_the_binaries_with_arguments_that_they_take() {
    let manifest = root().join("deploy/examples/try-without-gpus.yaml");
    let manifest = fs::read_to_string(manifest).unwrap();
    let agent = arguments(&manifest, "args:");
    assert_eq!(agent[0], "run");
    let agent = ["gpu-agent"].into_iter().chain(agent);
    agent::config::Cli::try_parse_from(agent).unwrap();
    let gateway = manifest.lines().find_map(|line| line.trim().strip_prefix("args: ["));
    let gateway = gateway.unwrap().trim_end_matches(']').split(", ");
    gateway::config::Cli::try_parse_from(["gpu-gateway"].into_iter().chain(gateway)).unwrap();
}
