//! The JSON of nodes, pods and workloads: what the gateway knows, as it is.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use shared::frame::{Device, Holder};
use shared::health::{Health, XidCount};
use shared::identity::PodKey;
use shared::reading::{Reading, Readings};
use shared::time::Timestamp;

use crate::answer::{Answers, observe};
use crate::directory::Workload;
use crate::explain::known::{self, Known};
use crate::fleet::unattributed::unattributed;
use crate::fleet::view::NodeView;
use crate::trigger::number::thousandths;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NodeEntry {
    node: String,
    age_ms: Option<u64>,
    sessions: usize,
    agent_version: Arc<str>,
    reason: Option<Arc<str>>,
    devices: Vec<DeviceEntry>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct DeviceEntry {
    uuid: String,
    index: u32,
    name: Arc<str>,
    state: &'static str,
    reason: Option<String>,
    age_ms: Option<u64>,
    readings: BTreeMap<&'static str, Option<f64>>,
    holders: Vec<HolderEntry>,
    /// Share of its load that no holder has.
    unattributed: Option<f64>,
    /// Percentages of the time in which its clock was held down, by reason.
    throttled_by: BTreeMap<&'static str, f64>,
    health: Option<HealthEntry>,
}

/// What is the matter with a device; null where it is not known.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct HealthEntry {
    /// How often each XID was reported since the agent started.
    xids: Option<BTreeMap<u32, u64>>,
    ecc_uncorrected: Option<u64>,
    row_remap_pending: Option<bool>,
    row_remap_failed: Option<bool>,
    recovery_action: Option<&'static str>,
    lost: bool,
}

impl HealthEntry {
    fn of(health: &Health) -> Self {
        let counts = |xids: &Vec<XidCount>| xids.iter().map(|it| (it.xid, it.count)).collect();
        Self {
            xids: health.xids.as_ref().map(counts),
            ecc_uncorrected: health.ecc_uncorrected,
            row_remap_pending: health.remap_pending,
            row_remap_failed: health.remap_failed,
            recovery_action: health.recovery.map(|action| action.name()),
            lost: health.lost,
        }
    }
}

#[derive(Serialize)]
struct HolderEntry {
    namespace: Arc<str>,
    pod: Arc<str>,
    uid: Option<String>,
    container: Arc<str>,
    share: Option<f64>,
    source: &'static str,
    estimated: bool,
    undeclared: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PodEntry {
    namespace: Arc<str>,
    name: Arc<str>,
    node: String,
    devices: Vec<PodDeviceEntry>,
    engine: Option<BTreeMap<&'static str, Option<f64>>>,
}

#[derive(Serialize)]
struct PodDeviceEntry {
    uuid: String,
    index: u32,
    share: Option<f64>,
}

#[derive(Serialize)]
pub(super) struct WorkloadEntry {
    namespace: Arc<str>,
    kind: Arc<str>,
    name: Arc<str>,
    replicas: u32,
    reporting: usize,
}

fn age_ms(now: Timestamp, then: Timestamp) -> u64 {
    u64::try_from(now.since(then).as_millis()).unwrap_or(u64::MAX)
}

/// Readings by name; null for one that failed. What is unsupported is not listed.
fn by_name(readings: &Readings) -> BTreeMap<&'static str, Option<f64>> {
    let rounded = |reading: Reading| reading.value().map(thousandths);
    readings.iter().map(|(metric, reading)| (metric.name(), rounded(reading))).collect()
}

pub(super) fn nodes(answers: &Answers) -> Vec<NodeEntry> {
    let now = answers.clock().now();
    let conflicts = answers.fleet().conflicts();
    let nodes = answers.fleet().nodes().into_iter();
    nodes
        .map(|node| {
            let view = node.view.as_deref();
            let conflict = conflicts.iter().find(|conflict| conflict.nodes.contains(&node.name));
            let conflict =
                conflict.map(|c| format!("{} is claimed by {:?}", c.uuid, c.nodes).into());
            NodeEntry {
                node: node.name.to_string(),
                age_ms: view.map(|view| age_ms(now, view.received_at)),
                sessions: node.sessions,
                agent_version: node.agent_version,
                reason: conflict.or_else(|| view.and_then(|view| view.inventory().reason.clone())),
                devices: view.map_or_else(Vec::new, |view| devices(view, now)),
            }
        })
        .collect()
}

fn devices(view: &NodeView, now: Timestamp) -> Vec<DeviceEntry> {
    let devices = view.inventory().devices.iter().enumerate();
    devices
        .map(|(at, device)| {
            let row = view.row(at);
            let (state, failure) = view.device_state(at, now);
            DeviceEntry {
                uuid: device.uuid.to_string(),
                index: device.index,
                name: device.name.clone(),
                state,
                reason: reason(device, failure),
                age_ms: row.map(|row| age_ms(now, row.taken_at)),
                readings: row.map(|row| by_name(&row.readings)).unwrap_or_default(),
                holders: device.holders.iter().map(holder).collect(),
                unattributed: unattributed(view, at),
                throttled_by: row
                    .iter()
                    .flat_map(|row| &row.throttled)
                    .map(|(by, percent)| (by.name(), thousandths(*percent)))
                    .collect(),
                health: device.health.as_deref().map(HealthEntry::of),
            }
        })
        .collect()
}

/// What failed, else what is said of it; and what is the matter with it beside that.
fn reason(device: &Device, failure: Option<String>) -> Option<String> {
    let said = failure.or_else(|| device.reason.as_ref().map(ToString::to_string));
    let mut remarks = device.health.as_deref().map(Health::remarks).unwrap_or_default();
    remarks.retain(|remark| !said.as_ref().is_some_and(|said| said.contains(remark.as_str())));
    let all: Vec<_> = said.into_iter().chain(remarks).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

fn holder(holder: &Holder) -> HolderEntry {
    HolderEntry {
        namespace: holder.pod.namespace.clone(),
        pod: holder.pod.name.clone(),
        uid: holder.uid.as_ref().map(ToString::to_string),
        container: holder.container.clone(),
        share: holder.share,
        source: holder.source.name(),
        estimated: holder.estimated,
        undeclared: holder.undeclared,
    }
}

pub(super) fn pods(answers: &Answers) -> Vec<PodEntry> {
    let mut entries = Vec::new();
    for node in answers.fleet().nodes() {
        let Some(view) = node.view else { continue };
        let mut pods: Vec<&PodKey> = view.pods().collect();
        pods.sort();
        for (pod, view) in pods.into_iter().filter_map(|pod| Some((pod, view.pod(pod, None)?))) {
            let devices = view.devices().map(|(claim, device)| PodDeviceEntry {
                uuid: device.uuid.to_string(),
                index: device.index,
                share: claim.share,
            });
            entries.push(PodEntry {
                namespace: pod.namespace.clone(),
                name: pod.name.clone(),
                node: node.name.to_string(),
                devices: devices.collect(),
                engine: observe::whole_engine(&view).map(|row| by_name(&row.readings)),
            });
        }
    }
    entries
}

pub(super) fn workloads(answers: &Answers) -> Vec<WorkloadEntry> {
    let now = answers.clock().now();
    let Some(snapshot) = answers.directory().snapshot() else {
        return Vec::new();
    };
    let entry = |workload: &Arc<Workload>| WorkloadEntry {
        namespace: workload.key.namespace.clone(),
        kind: workload.key.kind.clone(),
        name: workload.key.name.clone(),
        replicas: workload.replicas,
        reporting: workload
            .pods
            .iter()
            .filter(|pod| pod.exists() && pod.ready && observe::is_heard(answers.fleet(), pod, now))
            .count(),
    };
    snapshot.workloads().map(entry).collect()
}

pub(super) fn scaled_objects(answers: &Answers) -> Vec<Known> {
    answers.directory().snapshot().as_deref().map(known::all).unwrap_or_default()
}
