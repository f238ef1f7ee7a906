//! The wire, and the one place where it meets the domain.
//!
//! Guarantees: generated types do not travel further than this crate's users' first line, bad
//! elements of a message are refused one by one, and what a message may hold is bounded here.
//! The generated code is committed; a test compiles the protos with a pure-Rust compiler and
//! fails when it is stale (`UPDATE_GENERATED=1 cargo test -p proto` rewrites it).

/// Agents to gateways: `proto/uplink/v1/uplink.proto`.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic, reason = "generated")]
#[rustfmt::skip]
#[path = "generated/keda_gpu_gateway.uplink.v1.rs"]
pub mod uplink;

/// KEDA to gateways: `proto/keda/externalscaler.proto`.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic, reason = "generated")]
#[rustfmt::skip]
#[path = "generated/externalscaler.rs"]
pub mod keda;

/// The kubelet to agents: `proto/kubelet/podresources.proto`.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic, reason = "generated")]
#[rustfmt::skip]
#[path = "generated/v1.rs"]
pub mod kubelet;

/// Frames ⇄ uplink messages.
pub mod convert;

/// Node briefs ⇄ uplink messages.
pub mod brief;
