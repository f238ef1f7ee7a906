//! `deploy/examples`: every file is checked by the real binary, and its head says what is found.
//!
//! `# check: ok`, or `# check: warning RULE` and `# check: note RULE` for each finding;
//! `# check flags: …` adds flags. Errors are never expected.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use gateway::trigger::profile::Profiles;
use serde_json::Value;

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/examples")
}

/// Every YAML file of `folder` and of the folders in it.
fn files(folder: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(files(&path));
        } else if path.extension().is_some_and(|extension| extension == "yaml") {
            found.insert(path);
        }
    }
    found
}

/// What is found in a file: `SEVERITY RULE` each, in order; `ok` if nothing.
fn said(file: &Path, flags: &str) -> Vec<String> {
    let output = Command::new(env!("CARGO_BIN_EXE_gpu-gateway"))
        .args(["check", "-o", "json"])
        .args(flags.split_whitespace())
        .arg(file)
        .env_clear()
        .current_dir(examples())
        .output()
        .expect("the binary starts");
    let error = String::from_utf8(output.stderr).expect("UTF-8");
    assert!(error.is_empty(), "{}: {error}", file.display());
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let findings = report["findings"].as_array().expect("a list").iter();
    let said = findings.map(|finding| {
        let word = |key: &str| finding[key].as_str().expect("a text");
        format!("{} {}", word("severity"), word("rule"))
    });
    let mut said: Vec<String> = said.collect();
    if said.is_empty() {
        said.push("ok".to_owned());
    }
    said.sort();
    said
}

#[test]
fn every_example_is_found_to_be_what_its_head_says() {
    let files = files(&examples());
    assert!(files.len() > 30, "{files:?}");
    let mut wrong = Vec::new();
    for file in &files {
        let text = fs::read_to_string(file).unwrap();
        let head = |start: &'static str| text.lines().filter_map(move |l| l.strip_prefix(start));
        let mut expected: Vec<String> = head("# check: ").map(str::to_owned).collect();
        expected.sort();
        let said = said(file, head("# check flags: ").next().unwrap_or_default());
        let is_error = said.iter().any(|finding| finding.starts_with("error"));
        if said != expected || is_error {
            wrong.push(format!("{}: head {expected:?}, check {said:?}", file.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_built_in_profile_has_an_example_that_uses_it() {
    let profiles = Profiles::default();
    for name in profiles.names() {
        let file = examples().join(format!("profiles/{name}.yaml"));
        let text = fs::read_to_string(&file);
        let text = text.unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        assert!(text.contains(&format!("profile: {name}\n")), "{}", file.display());
    }
}

#[test]
fn every_scaled_object_says_what_happens_while_nothing_is_known_and_how_fast_it_shrinks() {
    // These show what others wrote, or are for looking only.
    let exempt = ["-before.yaml", "try-without-gpus.yaml", "scaledobject.yaml"];
    for file in files(&examples()) {
        let text = fs::read_to_string(&file).unwrap();
        let name = file.to_string_lossy();
        if exempt.iter().any(|end| name.ends_with(end)) || !text.contains("kind: ScaledObject\n") {
            continue;
        }
        for key in ["cooldownPeriod: ", "fallback:", "stabilizationWindowSeconds: ", "Percent"] {
            assert!(text.contains(key), "{name}: no {key}");
        }
    }
}

#[test]
fn the_index_names_every_example() {
    let index = fs::read_to_string(examples().join("README.md")).unwrap();
    for file in files(&examples()) {
        let relative = file.strip_prefix(examples()).unwrap();
        let is_there = index.contains(&format!("({})", relative.display()))
            || relative.starts_with("migration") && index.contains("(migration)");
        assert!(is_there, "{}", relative.display());
    }
}
