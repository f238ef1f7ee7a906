//! What the workspace promises about itself: its folders, its direct dependencies, its arrows.

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand, Package};

/// The crates that are shipped.
const SHIPPED: [&str; 4] = ["agent", "gateway", "proto", "shared"];

/// What they are built on, named by them and not only by something they use.
const FOUNDATIONS: &[&str] =
    &["dashmap", "hyper", "nvml-wrapper", "prost", "serde", "tokio", "tonic", "tower", "tracing"];

/// What joins the foundations with the parts that are still to come.
const STILL_TO_COME: &[&str] = &["kube"];

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
const ARROWS: [(&str, &[&str]); 6] = [
    ("shared", &[]),
    ("proto", &["shared"]),
    ("agent", &["proto", "shared"]),
    ("fake-nvml", &[]),
    ("gateway", &["proto", "shared"]),
    ("loadtest", &["agent", "gateway", "proto", "shared"]),
];

fn metadata() -> Metadata {
    let mut command = MetadataCommand::new();
    command.cargo_path(env!("CARGO")).no_deps().other_options(["--offline".to_owned()]);
    command.exec().unwrap()
}

fn package<'a>(metadata: &'a Metadata, name: &str) -> &'a Package {
    let is_named = |package: &&Package| package.name.as_str() == name;
    metadata.packages.iter().find(is_named).unwrap()
}

#[test]
fn shipped_crates_name_their_foundations_as_direct_dependencies() {
    let metadata = metadata();
    let is_direct = |wanted: &str| {
        SHIPPED.iter().flat_map(|name| &package(&metadata, name).dependencies).any(|dependency| {
            dependency.name == wanted && dependency.kind == DependencyKind::Normal
        })
    };
    for name in FOUNDATIONS {
        assert!(is_direct(name), "{name} is no direct dependency of {SHIPPED:?}");
    }
    for name in STILL_TO_COME {
        assert!(!is_direct(name), "{name} has come: move it to FOUNDATIONS");
    }
}

#[test]
fn the_top_level_has_its_fixed_entries() {
    let root = metadata().workspace_root;
    let missing: Vec<_> = TOP_LEVEL.iter().filter(|name| !root.join(name).exists()).collect();
    assert!(missing.is_empty(), "missing in {root}: {missing:?}");
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
