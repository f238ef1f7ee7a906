//! Pods as the API server gives them, pruned to what is read. Pure.
//!
//! Guarantees: nothing of a pod is kept but what is listed here; texts are bounded.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::Resource;
use serde::Deserialize;
use shared::identity::PodKey;
use shared::time::Timestamp;

use super::selector::{Labels, label};
use crate::directory::{Phase, Pod};

/// Pods of one LeaderWorkerSet group share this label.
const GROUP: &str = "leaderworkerset.sigs.k8s.io/group-key";
/// Annotations that are kept.
const ANNOTATIONS: &str = "prometheus.io/";
/// Bytes kept of an annotation, or of why a pod is not scheduled.
const MAX_TEXT: usize = 256;

/// A pod, and the labels it is selected by.
#[derive(Clone, Debug, PartialEq)]
pub struct LabelledPod {
    /// The pod.
    pub pod: Pod,
    /// All of its labels.
    pub labels: Labels,
    /// When Kubernetes says that it became Ready, or ceased to be.
    pub changed: Option<SystemTime>,
}

/// The same moment on both clocks.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// On this process's clock.
    pub now: Timestamp,
    /// On the wall clock; Kubernetes writes its times by one.
    pub wall: SystemTime,
}

/// The fields of a pod that are read; the others are dropped while they are parsed.
#[derive(Clone, Debug, Deserialize)]
pub struct PodObject {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: Spec,
    #[serde(default)]
    status: Status,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    node_name: Option<String>,
    containers: Vec<Container>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Container {
    ports: Vec<Port>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Port {
    name: Option<String>,
    container_port: u16,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    phase: Option<String>,
    #[serde(rename = "podIP")]
    pod_ip: Option<Arc<str>>,
    conditions: Vec<Condition>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
    reason: Option<String>,
    message: Option<String>,
    last_transition_time: Option<Time>,
}

impl Resource for PodObject {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "Pod".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        "".into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "pods".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// Namespace and name; `None` for what has none.
pub fn key(object: &PodObject) -> Option<PodKey> {
    let meta = &object.metadata;
    Some(PodKey::new(meta.namespace.as_deref()?, meta.name.as_deref()?))
}

/// What is kept of the pod `key`.
pub fn labelled(key: PodKey, object: PodObject, at: Moment) -> LabelledPod {
    let PodObject { metadata, spec, status } = object;
    let condition = |kind: &str| status.conditions.iter().find(|c| c.kind == kind);
    let ready = condition("Ready");
    let changed = ready.and_then(|ready| ready.last_transition_time.as_ref());
    let changed = changed.or(metadata.creation_timestamp.as_ref());
    let changed = changed.map(|time| SystemTime::from(time.0));
    let unscheduled = condition("PodScheduled").filter(|c| c.status == "False");
    let labels = sorted(metadata.labels.unwrap_or_default());
    let annotations = metadata.annotations.unwrap_or_default().into_iter();
    let ports = spec.containers.into_iter().flat_map(|container| container.ports);
    let pod = Pod {
        key,
        uid: metadata.uid.map(Into::into),
        node: spec.node_name.filter(|name| !name.is_empty()).map(Into::into),
        ip: status.pod_ip.clone().filter(|ip| !ip.is_empty()),
        ports: ports.filter_map(|port| Some((port.name?, port.container_port))).collect(),
        annotations: annotations
            .filter(|(k, v)| k.starts_with(ANNOTATIONS) && v.len() <= MAX_TEXT)
            .collect(),
        group: label(&labels, GROUP).map(Into::into),
        beside: false,
        terminating: metadata.deletion_timestamp.is_some(),
        phase: phase(status.phase.as_deref()),
        ready: ready.is_some_and(|ready| ready.status == "True"),
        since: changed.map_or(at.now, |changed| moment(changed, at)),
        unscheduled: unscheduled.map(why_unscheduled),
    };
    LabelledPod { pod, labels, changed }
}

fn sorted(labels: BTreeMap<String, String>) -> Labels {
    labels.into_iter().map(|(key, value)| (key.into_boxed_str(), value.into_boxed_str())).collect()
}

fn phase(text: Option<&str>) -> Phase {
    match text {
        Some("Running") => Phase::Running,
        Some("Succeeded") => Phase::Succeeded,
        Some("Failed") => Phase::Failed,
        Some("Unknown") => Phase::Unknown,
        _ => Phase::Pending,
    }
}

/// A moment that has not come yet by our clock is now.
fn moment(time: SystemTime, at: Moment) -> Timestamp {
    at.now - at.wall.duration_since(time).unwrap_or_default()
}

fn why_unscheduled(condition: &Condition) -> Arc<str> {
    let said = condition.message.as_ref().filter(|text| !text.is_empty());
    let said = said.or(condition.reason.as_ref()).map_or("no reason given", String::as_str);
    said[..said.floor_char_boundary(MAX_TEXT)].into()
}
