//! What both ends of the uplink agree on: who things are, what is measured, in which unit, and
//! what one node said at one moment.
//!
//! Guarantees: without the `process` feature nothing here is async, does I/O, reads a clock or
//! knows a transport. Each module uses only those above it.

/// Names of nodes, pods, devices, workloads and scaled objects.
pub mod identity;

/// The one table of metrics: name, unit, range, how a pod's devices combine.
pub mod metric;

/// Moments on this process's own monotonic clock.
pub mod time;

/// One value of one metric: known, unsupported or failed; never a silent zero.
pub mod reading;

/// What a device used up so far, and what is the matter with it.
pub mod health;

/// Everything one node said at one tick.
pub mod frame;

/// What a gateway tells an agent about its own node.
pub mod brief;

/// Texts of others, for a terminal.
pub mod text;

/// Addresses that are nobody's pod or Service.
pub mod address;

/// Pages of metrics in the Prometheus text format, and which of their series count.
pub mod exposition;

/// Logging, signals, the clock and build information of the two binaries.
#[cfg(feature = "process")]
pub mod process;
