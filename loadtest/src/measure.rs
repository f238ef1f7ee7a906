//! The measurements: what the gateway costs beside a bare tonic service with the same messages.
//!
//! Guarantees: each server is a process of its own, so that its CPU time and memory are its own;
//! rounds alternate between the servers, and what is quoted is the median of the rounds' ratios
//! with their spread; every answer is compared with what the readings were set to.

/// Numbers of several rounds, and budgets for them.
pub mod figures;

/// What is made of them.
pub mod verdict;

/// Bare services with the same messages.
pub mod floor;

/// A server as a process of its own.
pub mod server;

/// What a gateway is told, and what it must answer.
pub mod site;

/// Calls flat out and at a fixed rate.
pub mod round;

/// A gateway that has heard of a site.
pub mod told;

/// Real agents whose readings are set from here.
pub mod dial;

/// KEDA's cadence.
pub mod cadence;

/// From a changed reading to the message on the stream.
pub mod push;

/// From a signal to the replicas ordered.
pub mod signal;

/// `loadtest keda`.
pub mod keda;

/// `loadtest fleet`.
pub mod fleet;

/// `loadtest repeat`.
pub mod repeat;
