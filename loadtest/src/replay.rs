//! A real request trace against simulated replicas, scaled by one policy after another.
//!
//! ```text
//!  trace ─▶ cluster (router, engines) ─▶ view (agent's frames, gateway's fleet and decision) ─▶ policy
//!              ▲                                                                                  │
//!              └────────────────────────────── hpa, keda ◀────────────────────────────────────────┘
//! ```
//!
//! Guarantees: deterministic by trace, seed and settings; the product's own code decides, with the
//! simulation's clock.

/// The requests.
pub mod trace;

/// What a replica is made of.
pub mod figures;

/// One replica.
pub mod engine;

/// Pods, GPUs and the router.
pub mod cluster;

/// What the product sees and decides.
pub mod view;

/// Who decides.
pub mod policy;

/// What came of a run.
pub mod outcome;

/// One policy over one trace.
pub mod run;

/// The comparison of policies.
pub mod table;

/// What came of a run, drawn.
pub mod chart;

/// `loadtest replay`.
pub mod command;
