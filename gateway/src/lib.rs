//! The central gateway: one view of every GPU, served to KEDA as an external scaler.
//!
//! A module may use only modules listed above it; `config` and `app` come last and know them all.
//!
//! ```text
//!  agents ◀──▶ ingest ─▶ fleet ──┐
//!                                ├──▶ answer ──▶ scaler ──▶ KEDA
//!  kube ─▶ directory ────────────┤   (trigger     explain ─▶ http ──▶ people
//!  routers ─▶ demand ────────────┤    decides)
//!  KEDA's metadata ─▶ trigger ───┘
//! ```

/// Lines of log that anybody can cause, said now and then.
pub mod seldom;

/// Who may connect, how many at once, and how soon they must speak.
pub mod limit;

/// What a call may cost the process.
pub mod contain;

/// How long a caller waits.
pub mod deadline;

/// Whether the gateway's own parts are alive.
pub mod vital;

/// One gRPC port, connection by connection.
pub mod port;

/// The decision: metadata → typed trigger; trigger + observations at `now` → verdict. Pure.
pub mod trigger;

/// What every node last said, read by pod.
pub mod fleet;

/// What only Kubernetes knows: scaled objects, replicas ordered, pods and their readiness.
pub mod directory;

/// Who held which GPU for how long, and what energy that took.
pub mod ledger;

/// Which page of which pod shows its inference engine, for the agent of the pod's node.
pub mod engine;

/// Files that are read again when they change.
pub mod reload;

/// Who was turned away, and why.
pub mod refusal;

/// What a TLS server needs, and what a client certificate says.
pub mod tls;

/// Connections as they come in, past their handshake.
pub mod accept;

/// Which node an agent may speak for.
pub mod identity;

/// What an agent is told about its own node.
pub mod brief;

/// The agents' stream, handed to the fleet; and briefs, handed to the agents.
pub mod ingest;

/// Demand seen from outside while no pod is ready.
pub mod demand;

/// One question about one trigger → one answer; the only conductor.
pub mod answer;

/// KEDA's service.
pub mod scaler;

/// Why an answer is what it is.
pub mod explain;

/// What was decided lately, and why it changed.
pub mod timeline;

/// Probes, metrics and the API for people.
pub mod http;

/// `gpu-gateway explain` and `ledger`: ask a gateway over HTTP.
pub mod client;

/// `gpu-gateway check`: what is unsound in ScaledObjects, from their YAML alone.
pub mod check;

/// Flags and environment → each part's settings; the crate's only reader of either.
pub mod config;

/// Builds all of it, returns bound addresses, owns the order of shutdown.
pub mod app;
