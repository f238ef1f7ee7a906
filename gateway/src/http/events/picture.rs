//! What the dashboard is told: who holds what (the shape), and what is read and decided (ticks).
//!
//! Guarantees: readings come as one list per metric, in the order of the shape's devices, null
//! where there is none; a metric that no device has is not there.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use serde::Serialize;
use shared::frame::{Device, Holder};
use shared::metric::{Metric, Scope};
use shared::process::VERSION;
use shared::time::Timestamp;

use crate::answer::Answers;
use crate::fleet::{NodeStatus, free};
use crate::http::timeline::LookEntry;
use crate::timeline::Timelines;
use crate::vital::Vitals;

/// Points of a spark at most.
const SPARK_POINTS: usize = 60;

#[derive(Serialize)]
pub(super) struct Shape {
    /// Every device metric, with its unit.
    metrics: Vec<(&'static str, &'static str)>,
    nodes: Vec<Node>,
}

#[derive(Serialize)]
struct Node {
    name: String,
    version: Arc<str>,
    reason: Option<Arc<str>>,
    gpus: Vec<Gpu>,
}

#[derive(Serialize)]
struct Gpu {
    uuid: String,
    index: u32,
    model: Arc<str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mib: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mig: Option<Arc<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<Arc<str>>,
    /// What is the matter with it, in words.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    health: Vec<String>,
    holders: Vec<Held>,
}

#[derive(Serialize)]
struct Held {
    ns: Arc<str>,
    pod: Arc<str>,
    container: Arc<str>,
    share: Option<f64>,
    source: &'static str,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    estimated: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    undeclared: bool,
    /// ScaledObjects of the pod's namespace that scale it.
    by: Vec<Arc<str>>,
}

/// Who holds what.
pub(super) fn shape(answers: &Answers, nodes: &[NodeStatus]) -> Shape {
    let devices = Metric::ALL.iter().filter(|metric| metric.scope() == Scope::Device);
    let snapshot = answers.directory().snapshot();
    let by = |holder: &Holder| {
        let scaled = snapshot.as_ref().and_then(|snapshot| snapshot.scaled(&holder.pod));
        scaled.map_or_else(Vec::new, |s| s.by.iter().map(|object| object.name.clone()).collect())
    };
    let gpu = |device: &Device| Gpu {
        uuid: device.uuid.to_string(),
        index: device.index,
        model: device.name.clone(),
        mib: device.memory_total_mib,
        mig: device.mig.as_ref().map(|mig| mig.profile.clone()),
        parent: device.mig.as_ref().map(|mig| mig.parent.to_string()),
        reason: device.reason.clone(),
        health: device.health.as_ref().map_or_else(Vec::new, |health| health.remarks()),
        holders: device
            .holders
            .iter()
            .map(|holder| Held {
                ns: holder.pod.namespace.clone(),
                pod: holder.pod.name.clone(),
                container: holder.container.clone(),
                share: holder.share,
                source: holder.source.name(),
                estimated: holder.estimated,
                undeclared: holder.undeclared,
                by: by(holder),
            })
            .collect(),
    };
    let node = |node: &NodeStatus| {
        let inventory = node.view.as_ref().map(|view| view.inventory());
        Node {
            name: node.name.to_string(),
            version: node.agent_version.clone(),
            reason: inventory.and_then(|inventory| inventory.reason.clone()),
            gpus: inventory.map_or_else(Vec::new, |i| i.devices.iter().map(gpu).collect()),
        }
    };
    Shape {
        metrics: devices.map(|metric| (metric.name(), metric.unit().symbol())).collect(),
        nodes: nodes.iter().map(node).collect(),
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Tick {
    /// Milliseconds since 1970.
    at: u64,
    gateway: Gateway,
    free: BTreeMap<Arc<str>, u32>,
    /// Milliseconds since each node's last word.
    ages: Vec<Option<u64>>,
    sessions: Vec<usize>,
    /// Readings of each node that failed.
    failed: Vec<usize>,
    /// One letter per device: `o`k, `s`tale, `f`ailed, `l`ost, `u`nread.
    states: String,
    /// What failed, by the device's place.
    why: BTreeMap<usize, String>,
    /// What held its clock down, by the device's place.
    throttled_by: BTreeMap<usize, String>,
    /// Devices that two nodes claim.
    conflicts: Vec<String>,
    readings: BTreeMap<&'static str, Vec<Option<f64>>>,
    triggers: Vec<Trigger>,
    /// Triggers that there was no room for among them.
    triggers_left_out: u64,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Gateway {
    version: &'static str,
    ready: bool,
    ailing: String,
    waits_for: String,
    directory_age_seconds: Option<f64>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Trigger {
    namespace: Arc<str>,
    name: Arc<str>,
    trigger: u32,
    metric_name: Arc<str>,
    kind: Arc<str>,
    workload: Arc<str>,
    min: Option<u32>,
    max: Option<u32>,
    activations: u64,
    changes: u64,
    #[serde(flatten)]
    look: LookEntry,
}

/// What is read and decided now.
pub(super) fn tick(
    answers: &Answers,
    timelines: &Timelines,
    vitals: &Vitals,
    nodes: &[NodeStatus],
) -> Tick {
    let clock = answers.clock();
    let now = clock.now();
    let snapshot = answers.directory().snapshot();
    let wall = clock.wall(now).duration_since(UNIX_EPOCH).unwrap_or_default();
    let conflicts = answers.fleet().conflicts();
    let mut tick = Tick {
        at: u64::try_from(wall.as_millis()).unwrap_or(u64::MAX),
        gateway: Gateway {
            version: VERSION,
            ready: answers.is_warm(),
            ailing: vitals.ailing().trim().to_owned(),
            waits_for: answers.directory().waits_for(),
            directory_age_seconds: snapshot.as_ref().map(|s| now.since(s.as_of()).as_secs_f64()),
        },
        free: free::by_model(answers.fleet(), now),
        ages: nodes.iter().map(|node| Some(millis(now, node.view.as_ref()?.received_at))).collect(),
        sessions: nodes.iter().map(|node| node.sessions).collect(),
        failed: Vec::with_capacity(nodes.len()),
        states: String::new(),
        why: BTreeMap::new(),
        throttled_by: BTreeMap::new(),
        conflicts: conflicts.iter().map(|conflict| conflict.uuid.to_string()).collect(),
        readings: BTreeMap::new(),
        triggers: triggers(answers, timelines),
        triggers_left_out: timelines.left_out(),
    };
    tick.read(nodes, now);
    tick
}

fn millis(now: Timestamp, then: Timestamp) -> u64 {
    u64::try_from(now.since(then).as_millis()).unwrap_or(u64::MAX)
}

impl Tick {
    fn read(&mut self, nodes: &[NodeStatus], now: Timestamp) {
        let mut rows = Vec::new();
        for node in nodes {
            let mut failed = 0;
            let devices = node
                .view
                .iter()
                .flat_map(|view| (0..view.inventory().devices.len()).map(move |at| (view, at)));
            for (view, at) in devices {
                let (state, failure) = view.device_state(at, now);
                self.states.push(state.chars().next().unwrap_or('u'));
                if let Some(failure) = failure {
                    self.why.insert(rows.len(), failure);
                }
                let row = view.row(at);
                if let Some(row) = row.filter(|row| !row.throttled.is_empty()) {
                    let by = row.throttled.iter().map(|(by, _)| by.name().replace('_', " "));
                    self.throttled_by.insert(rows.len(), by.collect::<Vec<_>>().join(", "));
                }
                failed += row.map_or(0, |row| row.readings.failures().count());
                rows.push(row);
            }
            self.failed.push(failed);
        }
        for metric in Metric::ALL.iter().filter(|metric| metric.scope() == Scope::Device) {
            let reading = |row: &Option<&crate::fleet::view::Row>| {
                row.and_then(|r| r.readings.value(*metric))
            };
            if rows.iter().any(|row| reading(row).is_some()) {
                let tenths = |value: f64| (value * 10.0).round() / 10.0;
                let column = rows.iter().map(|row| reading(row).map(tenths)).collect();
                self.readings.insert(metric.name(), column);
            }
        }
    }
}

fn triggers(answers: &Answers, timelines: &Timelines) -> Vec<Trigger> {
    let Some(snapshot) = answers.directory().snapshot() else { return Vec::new() };
    let mut triggers = Vec::new();
    timelines.each(|key, record| {
        let (namespace, name) = (&key.object.namespace, &key.object.name);
        let (Some(object), Some(look)) = (snapshot.object(namespace, name), record.newest()) else {
            return;
        };
        triggers.push(Trigger {
            namespace: namespace.clone(),
            name: name.clone(),
            trigger: key.trigger,
            metric_name: key.metric.clone(),
            kind: object.target.kind.clone(),
            workload: object.target.name.clone(),
            min: object.min_replicas,
            max: object.max_replicas,
            activations: record.activations,
            changes: record.changes,
            look: look.into(),
        });
    });
    triggers
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Spark {
    namespace: Arc<str>,
    name: Arc<str>,
    trigger: u32,
    /// Half an hour of the value, oldest first.
    value: Vec<Option<f64>>,
    /// What would have kept the replicas.
    hold: Vec<Option<f64>>,
}

/// Half an hour of every trigger.
pub(super) fn spark(timelines: &Timelines) -> Vec<Spark> {
    let mut sparks = Vec::new();
    timelines.each(|key, record| {
        let thin = |column| {
            let samples = record.column(column).count();
            let newest_first = record.column(column).rev();
            let step = samples.div_ceil(SPARK_POINTS).max(1);
            let mut points: Vec<_> = newest_first.step_by(step).collect();
            points.reverse();
            points
        };
        sparks.push(Spark {
            namespace: key.object.namespace.clone(),
            name: key.object.name.clone(),
            trigger: key.trigger,
            value: thin(0),
            hold: thin(1),
        });
    });
    sparks
}
