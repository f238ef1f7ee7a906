//! What each fuzz target does with an input, and what must hold of whatever is accepted.
//!
//! Guarantees: no input makes a target panic, loop or grow without bound while its promises hold;
//! each target depends on its input alone. The project's own tests run the seeds through the same
//! functions, with a stable compiler.

/// What gateways tell agents.
pub mod brief;

/// Paths of cgroups.
pub mod cgroup;

/// Device ids of the kubelet.
pub mod device_id;

/// Directory files of the gateway.
pub mod directory;

/// Pages of metrics.
pub mod exposition;

/// Holders files of the agent.
pub mod holders;

/// Manifests for `gpu-gateway check`.
pub mod manifest;

/// Metadata of triggers.
pub mod metadata;

/// Lines of recordings.
pub mod replay;

/// What agents send.
pub mod telemetry;

/// A target's name and what it does with an input.
pub type Target = (&'static str, fn(&[u8]));

/// Every target; each has a file in `fuzz_targets` and a folder in `seeds`.
pub const TARGETS: &[Target] = &[
    ("brief", brief::read),
    ("cgroup", cgroup::read),
    ("device_id", device_id::read),
    ("directory", directory::read),
    ("exposition", exposition::read),
    ("holders", holders::read),
    ("manifest", manifest::read),
    ("metadata", metadata::read),
    ("replay", replay::read),
    ("telemetry", telemetry::read),
];
