//! What is scraped: counters kept while serving, and the state as it is at the scrape.
//!
//! Guarantees: sizes and ages are read at scrape time, never kept in step by hand; a node, device
//! or trigger that is gone is gone from the next scrape; labels come from bounded sets.

/// What is the matter with devices.
mod health;
/// What the ledger counted.
mod ledger;

use parking_lot::Mutex;
use prometheus_client::encoding::{EncodeLabelSet, prometheus_text};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use shared::identity::WorkloadKey;
use shared::metric::Metric;
use shared::process::VERSION;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use crate::answer::{Answers, Question};
use crate::demand::Demands;
use crate::explain::{CoverageExplanation, metadata_of};
use crate::fleet::free;
use crate::fleet::unattributed::unattributed;
use crate::ingest;
use crate::refusal::Refusals;
use crate::reload::{self, Reloaded};
use crate::scaler;
use crate::tls::Server;

type Number = Gauge<f64, AtomicU64>;

/// The counters, and how to write everything.
pub struct Metrics {
    counters: Mutex<Registry>,
    certificates: Vec<(&'static str, Arc<Reloaded<Server>>)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfPort {
    port: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Build {
    version: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfNode {
    node: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfDevice {
    node: String,
    gpu_uuid: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfModel {
    model: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfTrigger {
    namespace: String,
    scaledobject: String,
    /// Its place among the ScaledObject's triggers.
    trigger: u32,
    metric: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PodsOfTrigger {
    namespace: String,
    scaledobject: String,
    /// Its place among the ScaledObject's triggers.
    trigger: u32,
    metric: String,
    state: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StepOfWorkload {
    namespace: String,
    kind: String,
    workload: String,
    step: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StepQuantile {
    namespace: String,
    kind: String,
    workload: String,
    step: &'static str,
    quantile: &'static str,
}

impl Metrics {
    /// Metrics over the counters of ingest, scaler and demand.
    pub fn new(ingest: &ingest::Counts, scaler: &scaler::Calls, demands: &Demands) -> Self {
        let mut registry = Registry::with_prefix("gpu_gateway");
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
        let mut state = Registry::with_prefix("gpu_gateway");
        gateway(&mut state, answers);
        ledger::ledger(&mut state, answers);
        health::health(&mut state, answers);
        nodes(&mut state, answers);
        free_gpus(&mut state, answers);
        triggers(&mut state, answers);
        startups(&mut state, answers);
        self.certificates(&mut state);
        let mut text = String::new();
        for registry in [&*self.counters.lock(), &state] {
            prometheus_text::encode(&mut text, registry)
                .expect("writing to a String does not fail");
        }
        text
    }

    fn certificates(&self, registry: &mut Registry) {
        let family = Family::<OfPort, Gauge>::default();
        let help = "When the certificate of a port ends, in seconds since 1970";
        registry.register("certificate_expiry_timestamp_seconds", help, family.clone());
        for (port, tls) in &self.certificates {
            if let Some(ends) = tls.get().ends {
                family.get_or_create(&OfPort { port }).set(ends);
            }
        }
    }
}

fn number(registry: &mut Registry, name: &str, help: &str, value: f64) {
    let gauge = Number::default();
    gauge.set(value);
    registry.register(name, help, gauge);
}

#[expect(clippy::cast_precision_loss, reason = "counts of sessions and conflicts")]
fn gateway(registry: &mut Registry, answers: &Answers) {
    let build = Family::<Build, Gauge>::default();
    build.get_or_create(&Build { version: VERSION }).set(1);
    registry.register("build_info", "Version of this gateway", build);
    let ready = f64::from(u8::from(answers.is_warm()));
    number(registry, "ready", "Whether this replica answers for everything", ready);
    let sessions = answers.fleet().sessions() as f64;
    number(registry, "agent_sessions", "Agent streams that are open", sessions);
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

#[expect(clippy::cast_precision_loss, reason = "a node has at most 1024 devices")]
fn nodes(registry: &mut Registry, answers: &Answers) {
    let now = answers.clock().now();
    let [age, devices, undeclared, estimated] =
        [(); 4].map(|()| Family::<OfNode, Number>::default());
    let [failed, device_age, utilization, memory, left] =
        [(); 5].map(|()| Family::<OfDevice, Number>::default());
    for node in answers.fleet().nodes() {
        let Some(view) = node.view else { continue };
        let label = OfNode { node: node.name.to_string() };
        age.get_or_create(&label).set(now.since(view.received_at).as_secs_f64());
        devices.get_or_create(&label).set(view.inventory().devices.len() as f64);
        let holders = || view.inventory().devices.iter().flat_map(|device| &device.holders);
        let count = holders().filter(|holder| holder.undeclared).count();
        undeclared.get_or_create(&label).set(count as f64);
        let count = holders().filter(|holder| holder.estimated).count();
        estimated.get_or_create(&label).set(count as f64);
        for (at, device) in view.inventory().devices.iter().enumerate() {
            let label = OfDevice { node: node.name.to_string(), gpu_uuid: device.uuid.to_string() };
            if let Some(share) = unattributed(&view, at) {
                left.get_or_create(&label).set(share);
            }
            let Some(row) = view.row(at) else { continue };
            device_age.get_or_create(&label).set(now.since(row.taken_at).as_secs_f64());
            failed.get_or_create(&label).set(row.readings.failures().count() as f64);
            if let Some(value) = row.readings.value(Metric::GpuUtilization) {
                utilization.get_or_create(&label).set(value / 100.0);
            }
            if let Some(value) = row.readings.value(Metric::MemoryUsedMib) {
                memory.get_or_create(&label).set(value * 1_048_576.0);
            }
        }
    }
    let help = "Time since the node's last sample";
    registry.register_with_unit("node_age", help, Unit::Seconds, age);
    registry.register("node_devices", "Devices the node reports", devices);
    let help = "Containers that use a device of the node without having been given it";
    registry.register("node_undeclared_holders", help, undeclared);
    let help = "Containers whose part of a device of the node is a guess";
    registry.register("node_estimated_holders", help, estimated);
    registry.register(
        "device_failed_readings",
        "Metrics of the device that could not be read",
        failed,
    );
    let help = "Time since the device was read";
    registry.register_with_unit("device_age", help, Unit::Seconds, device_age);
    let help = "Share of time in which the GPU was busy (gpu_utilization)";
    registry.register_with_unit(
        "device_utilization",
        help,
        Unit::Other("ratio".into()),
        utilization,
    );
    let help = "Device memory in use (memory_used_mib)";
    registry.register_with_unit("device_memory_used", help, Unit::Bytes, memory);
    let help = "Share of the device's load that no holder has";
    registry.register_with_unit("device_unattributed", help, Unit::Other("ratio".into()), left);
}

fn free_gpus(registry: &mut Registry, answers: &Answers) {
    let free = Family::<OfModel, Number>::default();
    for (model, count) in free::by_model(answers.fleet(), answers.clock().now()) {
        free.get_or_create(&OfModel { model: model.to_string() }).set(f64::from(count));
    }
    registry.register("gpus_free", "Devices that nobody holds, fresh and not failed", free);
}

/// How long pods took from step to step, where any was seen to take the step.
#[expect(clippy::cast_precision_loss, reason = "at most a few hundred pods are kept")]
fn startups(registry: &mut Registry, answers: &Answers) {
    let Some(snapshot) = answers.directory().snapshot() else { return };
    let times = Family::<StepQuantile, Number>::default();
    let pods = Family::<StepOfWorkload, Number>::default();
    for workload in snapshot.workloads() {
        let WorkloadKey { namespace, kind, name } = &workload.key;
        let startup = answers.directory().startup(&workload.key);
        for (step, span) in [
            ("ordered_to_scheduled", startup.ordered_to_scheduled),
            ("scheduled_to_ready", startup.scheduled_to_ready),
            ("ready_to_first_reading", startup.ready_to_first_reading),
        ] {
            let (namespace, kind, workload) =
                (namespace.to_string(), kind.to_string(), name.to_string());
            for (quantile, time) in [("0.5", span.median), ("0.9", span.p90)] {
                let Some(time) = time else { continue };
                let (namespace, kind, workload) =
                    (namespace.clone(), kind.clone(), workload.clone());
                let label = StepQuantile { namespace, kind, workload, step, quantile };
                times.get_or_create(&label).set(time.as_secs_f64());
            }
            if span.pods > 0 {
                let label = StepOfWorkload { namespace, kind, workload, step };
                pods.get_or_create(&label).set(span.pods as f64);
            }
        }
    }
    let help = "How long the workload's newest pods took for a step of their start";
    registry.register_with_unit("startup", help, Unit::Seconds, times);
    registry.register("startup_pods", "Pods that startup is made from", pods);
}

/// What is shown per trigger.
#[derive(Default)]
struct OfTriggers {
    value: Family<OfTrigger, Number>,
    target: Family<OfTrigger, Number>,
    active: Family<OfTrigger, Number>,
    up: Family<OfTrigger, Number>,
    deaf: Family<OfTrigger, Number>,
    replicas: Family<OfTrigger, Number>,
    pods: Family<PodsOfTrigger, Number>,
}

fn triggers(registry: &mut Registry, answers: &Answers) {
    let Some(snapshot) = answers.directory().snapshot() else { return };
    let shown = OfTriggers::default();
    for object in snapshot.objects() {
        let (namespace, name) = (&*object.key.namespace, &*object.key.name);
        for (trigger, metadata) in (0..).zip(metadata_of(answers, object)) {
            shown.add(answers, Question { namespace, name, metadata: &metadata }, trigger);
        }
    }
    shown.register(registry);
}

fn yes(condition: bool) -> f64 {
    f64::from(u8::from(condition))
}

impl OfTriggers {
    fn add(&self, answers: &Answers, question: Question<'_>, trigger: u32) {
        let Ok(spec) = answers.metric_spec(question.metadata) else { return };
        let label = OfTrigger {
            namespace: question.namespace.into(),
            scaledobject: question.name.into(),
            trigger,
            metric: spec.name.to_string(),
        };
        self.target.get_or_create(&label).set(spec.target);
        let answered = answers.assess(question, answers.clock().now());
        let value = answered.as_ref().ok().and_then(|assessment| assessment.value().ok());
        self.up.get_or_create(&label).set(yes(value.is_some()));
        let Ok(assessment) = answered else { return };
        if let Some(value) = value {
            self.value.get_or_create(&label).set(value);
            self.active.get_or_create(&label).set(yes(answers.activity(&assessment)));
        }
        self.deaf.get_or_create(&label).set(yes(assessment.is_deaf()));
        self.replicas.get_or_create(&label).set(f64::from(assessment.observed.replicas));
        let coverage = CoverageExplanation::from(assessment.verdict.coverage);
        for (state, count) in [
            ("reporting", coverage.reporting),
            ("starting", coverage.starting),
            ("missing", coverage.missing),
            ("stuck", coverage.stuck),
        ] {
            let OfTrigger { namespace, scaledobject, trigger, metric } = label.clone();
            let label = PodsOfTrigger { namespace, scaledobject, trigger, metric, state };
            self.pods.get_or_create(&label).set(f64::from(count));
        }
    }

    fn register(self, registry: &mut Registry) {
        registry.register("trigger_value", "Value that GetMetrics returns", self.value);
        registry.register("trigger_target", "Target per replica", self.target);
        registry.register("trigger_active", "Whether IsActive returns true", self.active);
        registry.register("trigger_up", "Whether there is a value, not an error", self.up);
        let help = "Whether the target is at zero and the trigger sees no demand";
        registry.register("trigger_asleep_and_deaf", help, self.deaf);
        registry.register("trigger_replicas", "Replicas ordered", self.replicas);
        registry.register("trigger_pods", "Pods of the workload by state", self.pods);
    }
}
