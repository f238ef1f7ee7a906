//! What is scraped: counters kept while serving, and the state as it is at the scrape.
//!
//! Guarantees: sizes and ages are read at scrape time, never kept in step by hand; a node, device,
//! trigger or workload that is gone is gone from the next scrape; labels come from bounded sets. A
//! series that `docs/reference/metrics.md` does not describe fails the tests.

/// What is the matter with devices.
mod health;
/// What the ledger counted.
mod ledger;
/// What is scraped of nodes and their devices.
mod nodes;
/// Every series there can be, as the reference lists them.
#[cfg(test)]
mod reference;
/// What is scraped of triggers.
mod triggers;
/// What is scraped of workloads.
mod workloads;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::encoding::{EncodeLabelSet, prometheus_text};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use shared::process::{COMMIT, VERSION};
use shared::time::Timestamp;

use self::health::OfHealth;
use self::ledger::OfLedger;
use self::nodes::OfNodes;
use self::triggers::OfTriggers;
use self::workloads::OfWorkloads;
use crate::answer::Answers;
use crate::demand::Demands;
use crate::fleet::MAX_NODES;
use crate::fleet::view::Row;
use crate::http::series::{MAX_SERIES, bounded};
use crate::ingest;
use crate::refusal::Refusals;
use crate::reload::{self, Reloaded};
use crate::scaler;
use crate::tls::Server;

pub use self::workloads::OfWorkload;

/// What every name begins with.
const PREFIX: &str = "gpu_gateway";
/// Readings count for this long, or for three intervals of their agent.
const FRESH: Duration = Duration::from_secs(10);

type Number = Gauge<f64, AtomicU64>;

/// The counters, and how to write everything.
pub struct Metrics {
    counters: Mutex<Registry>,
    certificates: Vec<(&'static str, Arc<Reloaded<Server>>)>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfPort {
    port: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Build {
    version: &'static str,
    commit: &'static str,
}

/// The state as it is at one moment.
#[derive(Default)]
struct Shown {
    nodes: OfNodes,
    triggers: OfTriggers,
    workloads: OfWorkloads,
    health: OfHealth,
    ledger: OfLedger,
    certificates: Family<OfPort, Gauge>,
}

impl Metrics {
    /// Metrics over the counters of ingest, scaler and demand.
    pub fn new(ingest: &ingest::Counts, scaler: &scaler::Calls, demands: &Demands) -> Self {
        let mut registry = Registry::with_prefix(PREFIX);
        ingest.register(&mut registry);
        scaler.register(&mut registry);
        demands.register(&mut registry);
        Self { counters: Mutex::new(registry), certificates: Vec::new() }
    }

    /// The same, with what is counted of peers turned away and of files read again.
    #[must_use]
    pub fn with_locks(self, refusals: &Refusals, reloads: &reload::Counts) -> Self {
        {
            let mut registry = self.counters.lock();
            refusals.register(&mut registry);
            reloads.register(&mut registry);
        }
        self
    }

    /// The same, with the certificates of ports, by the ports' names.
    #[must_use]
    pub fn with_certificates(
        self,
        certificates: Vec<(&'static str, Arc<Reloaded<Server>>)>,
    ) -> Self {
        Self { certificates, ..self }
    }

    /// More counters of this process.
    pub fn add(&mut self, register: impl FnOnce(&mut Registry)) {
        register(self.counters.get_mut());
    }

    /// Everything in the Prometheus text format 0.0.4.
    pub fn text(&self, answers: &Answers) -> String {
        let state = self.shown(answers).registry(answers);
        let mut text = String::new();
        for registry in [&*self.counters.lock(), &state] {
            prometheus_text::encode(&mut text, registry)
                .expect("writing to a String does not fail");
        }
        bounded(text, MAX_SERIES)
    }

    fn shown(&self, answers: &Answers) -> Shown {
        let certificates = Family::<OfPort, Gauge>::default();
        for (port, tls) in &self.certificates {
            if let Some(ends) = tls.get().ends {
                certificates.get_or_create(&OfPort { port }).set(ends);
            }
        }
        Shown {
            nodes: OfNodes::of(answers),
            triggers: OfTriggers::of(answers),
            workloads: OfWorkloads::of(answers),
            health: OfHealth::of(answers),
            ledger: OfLedger::of(answers),
            certificates,
        }
    }
}

impl Shown {
    /// All of it, and what is known of the gateway itself.
    fn registry(self, answers: &Answers) -> Registry {
        let mut state = Registry::with_prefix(PREFIX);
        gateway(&mut state, answers);
        self.nodes.register(&mut state);
        self.triggers.register(&mut state);
        self.workloads.register(&mut state);
        self.health.register(&mut state);
        self.ledger.register(&mut state);
        let help = "When the certificate of a port ends, in seconds since 1970";
        state.register("certificate_expiry_timestamp_seconds", help, self.certificates);
        state
    }
}

/// Whether a reading still counts: as a trigger of the default `staleAfter` judges it.
fn is_fresh(row: &Row, interval: Duration, now: Timestamp) -> bool {
    now.since(row.taken_at) <= FRESH.max(interval * 3)
}

fn number(registry: &mut Registry, name: &str, help: &str, value: f64) {
    let gauge = Number::default();
    gauge.set(value);
    registry.register(name, help, gauge);
}

#[expect(clippy::cast_precision_loss, reason = "counts of sessions and conflicts")]
fn gateway(registry: &mut Registry, answers: &Answers) {
    let build = Family::<Build, Gauge>::default();
    build.get_or_create(&Build { version: VERSION, commit: COMMIT }).set(1);
    registry.register("build_info", "Version of this gateway", build);
    let ready = f64::from(u8::from(answers.is_warm()));
    number(registry, "ready", "Whether this replica answers for everything", ready);
    let sessions = answers.fleet().sessions() as f64;
    number(registry, "agent_sessions", "Agent streams that are open", sessions);
    let known = answers.fleet().len() as f64;
    number(registry, "nodes", &format!("Nodes that are known; {MAX_NODES} at most"), known);
    let conflicts = answers.fleet().conflicts().len() as f64;
    number(registry, "device_conflicts", "Devices that more than one node claims", conflicts);
    let sources = answers.demands().len() as f64;
    number(registry, "demand_sources", "Pages of demand that are read", sources);
    if let Some(snapshot) = answers.directory().snapshot() {
        let age = answers.clock().now().since(snapshot.as_of()).as_secs_f64();
        let gauge = Number::default();
        gauge.set(age);
        let help = "How long ago the directory was known to be true";
        registry.register_with_unit("directory_age", help, Unit::Seconds, gauge);
    }
}
