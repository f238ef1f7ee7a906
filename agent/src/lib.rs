//! The node agent: what one node's GPUs and engines do, and which pods hold them, pushed to every
//! gateway replica.
//!
//! The way of one sample; each module uses only those above it in the list below:
//!
//! ```text
//!  device ──▶ owner ──▶ frame ──▶ watch channel ──▶ uplink ──▶ gateway replicas
//!  (nvml,     (shares)  (inventory (newest frame     (one stream
//!   replay,              + sample)  only, no queue)   per address)
//!   simulated)
//!      └───────── collector ───────────┘ └────────▶ local: shown here
//! ```

// Blank lines keep rustfmt from sorting the list: its order is the rule.

/// What the node's devices and engines say now, whatever the source.
pub mod device;

/// Who holds each device, and with which share.
pub mod owner;

/// The inference engines of this node's pods.
pub mod engine;

/// Observation and owners → the frame that travels.
pub mod frame;

/// The one loop: tick → device → owner → frame → watch channel.
pub mod collector;

/// The newest frame to every gateway replica.
pub mod uplink;

/// Agent-only mode: the same frame, shown here.
pub mod local;

/// Flags and environment; the crate's only reader of either.
pub mod config;

/// Builds all of it and owns the order of shutdown.
pub mod app;
