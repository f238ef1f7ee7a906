//! What the workspace promises about itself: its folders, its direct dependencies, its arrows.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

/// The crates that are shipped.
const SHIPPED: [&str; 4] = ["agent", "gateway", "proto", "shared"];

/// What they are built on, named by them and not only by something they use.
const FOUNDATIONS: &[&str] = &[
    "dashmap",
    "hyper",
    "kube",
    "nvml-wrapper",
    "prost",
    "serde",
    "tokio",
    "tonic",
    "tower",
    "tracing",
];

const TOP_LEVEL: [&str; 9] = [
    "Cargo.toml",
    "agent",
    "gateway",
    "proto",
    "shared",
    "deploy",
    "loadtest",
    "Dockerfile.agent",
    "Dockerfile.gateway",
];

/// Which of our crates each of our crates may use.
const ARROWS: [(&str, &[&str]); 7] = [
    ("shared", &[]),
    // For tests only.
    ("reference", &[]),
    ("proto", &["shared"]),
    ("agent", &["proto", "reference", "shared"]),
    ("fake-nvml", &[]),
    ("gateway", &["proto", "reference", "shared"]),
    ("loadtest", &["agent", "gateway", "proto", "shared"]),
];

/// What `cargo metadata` says, as far as it is looked at. The crate of that name would add a
/// feature to serde_json, and with it have half of the tree built again for the tests.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    workspace_root: PathBuf,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    /// `dev` or `build`; none for what is shipped.
    kind: Option<String>,
}

fn metadata() -> Metadata {
    let mut command = Command::new(env!("CARGO"));
    command.args(["metadata", "--format-version=1", "--no-deps", "--offline"]);
    serde_json::from_slice(&command.output().unwrap().stdout).unwrap()
}

fn package<'a>(metadata: &'a Metadata, name: &str) -> &'a Package {
    let is_named = |package: &&Package| package.name == name;
    metadata.packages.iter().find(is_named).unwrap()
}

#[test]
fn shipped_crates_name_their_foundations_as_direct_dependencies() {
    let metadata = metadata();
    let is_direct = |wanted: &str| {
        SHIPPED
            .iter()
            .flat_map(|name| &package(&metadata, name).dependencies)
            .any(|dependency| dependency.name == wanted && dependency.kind.is_none())
    };
    for name in FOUNDATIONS {
        assert!(is_direct(name), "{name} is no direct dependency of {SHIPPED:?}");
    }
}

#[test]
fn the_top_level_has_its_fixed_entries() {
    let root = metadata().workspace_root;
    let missing: Vec<_> = TOP_LEVEL.iter().filter(|name| !root.join(name).exists()).collect();
    assert!(missing.is_empty(), "missing in {}: {missing:?}", root.display());
}

#[test]
fn the_fuzz_targets_are_a_workspace_of_their_own() {
    let metadata = metadata();
    assert!(metadata.workspace_root.join("loadtest/fuzz/Cargo.toml").exists());
    assert!(metadata.packages.iter().all(|package| package.name != "fuzz"));
}

#[test]
fn our_crates_use_each_other_only_along_the_arrows() {
    let metadata = metadata();
    let names: Vec<&str> = ARROWS.iter().map(|(name, _)| *name).collect();
    for package in &metadata.packages {
        let name = package.name.as_str();
        assert!(names.contains(&name) || !SHIPPED.contains(&name), "{name} has no arrows yet");
    }
    for (name, allowed) in ARROWS {
        for dependency in &package(&metadata, name).dependencies {
            let used = dependency.name.as_str();
            let is_ours = names.contains(&used);
            assert!(!is_ours || allowed.contains(&used), "{name} must not use {used}");
        }
    }
}

/// Files that may name the wall clock: the one that reads it, what Kubernetes dates by it, and what
/// shows a moment to people. Freshness, windows and deadlines are elsewhere, by the monotonic clock.
const WALL_CLOCK: [&str; 6] = [
    "gateway/src/directory/kube/pod.rs",
    "gateway/src/directory/kube/watch.rs",
    "gateway/src/explain.rs",
    "gateway/src/http/events/picture.rs",
    "gateway/src/http/timeline.rs",
    "shared/src/process.rs",
];

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else {
            found.push(path);
        }
    }
}

#[test]
fn the_wall_clock_is_named_in_few_places_and_decides_nothing() {
    let root = metadata().workspace_root;
    let mut files = Vec::new();
    for name in SHIPPED {
        sources(&root.join(name).join("src"), &mut files);
    }
    assert!(files.len() > 100, "{}", files.len());
    let names_it = |file: &PathBuf| {
        let text = std::fs::read_to_string(file).unwrap();
        ["SystemTime", "UNIX_EPOCH", "OffsetDateTime", ".wall("].iter().any(|w| text.contains(w))
    };
    let found = files.iter().filter(|file| names_it(file));
    let mut found: Vec<_> =
        found.map(|file| file.strip_prefix(&root).unwrap().to_str().unwrap()).collect();
    found.sort_unstable();
    assert_eq!(found, WALL_CLOCK);
}
