//! The demo: gateway and agents in one process, on real loopback connections, with the cluster,
//! KEDA and the HPA emulated around them.
//!
//! ```text
//!  load ─▶ cluster ─▶ feed ══ files ══▶ agents ══ gRPC ══▶ gateway ══ gRPC ══▶ caller
//!             ▲                                                                   │
//!             └───────────────────── hpa, keda ◀──────────────────────────────────┘
//! ```
//!
//! Each module uses only those above it.

/// The HPA's arithmetic.
pub mod hpa;

/// KEDA's zero transitions.
pub mod keda;

/// The load that users offer.
pub mod load;

/// Periods, shortened.
pub mod pace;

/// Pods, their GPUs and the load they share.
pub mod cluster;

/// What waits in front of the pods, as a page of metrics.
pub mod router;

/// The pods' engines, as pages of metrics.
pub mod engines;

/// The files through which gateway and agents see the cluster.
pub mod feed;

/// KEDA's calls to the gateway.
pub mod caller;

/// The gateway's own words for its value.
pub mod explain;

/// What has to be true of a run.
pub mod story;

/// The real agents, each stoppable.
pub mod agents;

/// Gateway, agents and cluster, set up.
pub mod stage;

/// The loop that drives them all.
pub mod simulation;

/// The second story: to zero by night, and woken by the router's queue.
pub mod night;

/// The simulations, told to a person.
pub mod demo;

/// Policies compared on a real request trace.
pub mod replay;

/// What the gateway costs, beside a floor.
pub mod measure;
