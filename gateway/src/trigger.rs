//! The decision: what KEDA is told about one trigger.
//!
//! Guarantees: `assess` and `is_active` depend on nothing but their arguments. The same
//! observations at the same `now` give the same answer, whatever their order, whichever replica
//! answers and whoever asked before. A value is finite and not negative. What is not known is
//! never read as zero: it can cancel a move, never cause or reverse one.
//!
//! Nothing in here reads a clock, takes a lock or knows a transport.

/// Decimals, integers and durations in metadata, strictly.
pub mod number;

/// Closed lists of words, the nearest good one, quoting.
mod word;

/// Keys with a closed list of words.
mod choice;

/// Inference engines: which of them a trigger means.
pub mod engine;

/// URLs in metadata: where demand and engines are.
mod endpoint;

/// What a trigger measures: metric names, aliases, composites.
mod measure;

/// Every metadata key: name, form, default and meaning.
mod metadata;

/// Metric and target, settled between all the keys that set them.
mod goal;

/// Named defaults for trigger metadata, built in and users' own.
pub mod profile;

/// The name KEDA knows a metric by.
mod name;

/// Trigger metadata → [`spec::Trigger`], or everything that is wrong with it.
pub mod spec;

/// What is unsound about a trigger that can be served.
pub mod warning;

/// What was observed of a workload, as the decision takes it.
pub mod observed;

/// Numbers → one number, in any order.
pub mod aggregate;

/// A pod's devices → the pod's reading.
pub mod pod;

/// Which pods report, start, are missing or stuck.
pub mod coverage;

/// Pods' readings → S, now or over a window.
pub mod sum;

/// The answer and its reasons, as data.
pub mod verdict;

/// Rules 1 and 2: S, coverage and the replicas ordered → the value.
pub mod value;

/// Rule 4: whether the workload is in use.
pub mod activation;

/// What the HPA makes of a value; for explanations only.
pub mod hpa;

/// What metadata can say, as the reference lists it.
#[cfg(test)]
mod reference;

pub use activation::is_active;
pub use value::assess;
