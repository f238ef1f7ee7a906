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

use super::intern::Interner;
use super::selector::{Labels, label};
use crate::directory::container::{Container, ContainerId};
use crate::directory::{Phase, Pod};

/// Pods of one LeaderWorkerSet group share this label.
const GROUP: &str = "leaderworkerset.sigs.k8s.io/group-key";
/// Annotations that are kept.
const ANNOTATIONS: &str = "prometheus.io/";
/// The annotation a static pod's cgroups are called after.
pub const CONFIG_HASH: &str = "kubernetes.io/config.hash";
/// Bytes kept of an annotation, or of why a pod is not scheduled.
const MAX_TEXT: usize = 256;

/// A pod, and the labels it is selected by.
#[derive(Clone, Debug, PartialEq)]
pub struct LabelledPod {
    /// The pod.
    pub pod: Arc<Pod>,
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

/// The fields of a pod that are read; the others are dropped while they are parsed. Any of them may
/// be missing or null: one odd pod must not end the list of all.
#[derive(Clone, Debug, Deserialize)]
pub struct PodObject {
    metadata: ObjectMeta,
    spec: Option<Spec>,
    status: Option<Status>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    node_name: Option<String>,
    containers: Option<Vec<Declared>>,
}

#[derive(Clone, Debug, Deserialize)]
struct Declared {
    ports: Option<Vec<Port>>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Port {
    name: Option<String>,
    container_port: Option<i64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    phase: Option<String>,
    #[serde(rename = "podIP")]
    pod_ip: Option<Arc<str>>,
    conditions: Option<Vec<Condition>>,
    init_container_statuses: Option<Vec<Started>>,
    container_statuses: Option<Vec<Started>>,
    ephemeral_container_statuses: Option<Vec<Started>>,
}

#[derive(Clone, Debug, Deserialize)]
struct Started {
    name: Option<String>,
    #[serde(rename = "containerID")]
    id: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Condition {
    #[serde(rename = "type")]
    kind: Option<String>,
    status: Option<String>,
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
pub fn key(object: &PodObject, texts: &mut Interner) -> Option<PodKey> {
    let meta = &object.metadata;
    Some(PodKey::new(texts.one(meta.namespace.as_deref()?), meta.name.as_deref()?))
}

/// What is kept of the pod `key`.
pub fn labelled(key: PodKey, object: PodObject, at: Moment, texts: &mut Interner) -> LabelledPod {
    let PodObject { metadata, spec, status } = object;
    let (spec, status) = (spec.unwrap_or_default(), status.unwrap_or_default());
    let conditions = status.conditions.unwrap_or_default();
    let condition = |kind: &str| conditions.iter().find(|c| c.kind.as_deref() == Some(kind));
    let ready = condition("Ready");
    let changed = ready.and_then(|ready| ready.last_transition_time.as_ref());
    let changed = changed.or(metadata.creation_timestamp.as_ref());
    let changed = changed.map(|time| SystemTime::from(time.0));
    let unscheduled = condition("PodScheduled").filter(|c| c.status.as_deref() == Some("False"));
    let labels = pairs(metadata.labels, texts, |_, _| true);
    let is_read = |key: &str, text: &str| {
        (key.starts_with(ANNOTATIONS) || key == CONFIG_HASH) && text.len() <= MAX_TEXT
    };
    let started = [
        status.init_container_statuses,
        status.container_statuses,
        status.ephemeral_container_statuses,
    ];
    let pod = Pod {
        key,
        uid: metadata.uid.map(Into::into),
        node: spec.node_name.filter(|name| !name.is_empty()).map(|name| texts.one(&name).into()),
        ip: status.pod_ip.filter(|ip| !ip.is_empty()),
        ports: ports(spec.containers.as_deref().unwrap_or_default(), texts),
        annotations: pairs(metadata.annotations, texts, is_read),
        group: label(&labels, GROUP).map(|group| texts.one(group)),
        beside: false,
        terminating: metadata.deletion_timestamp.is_some(),
        phase: phase(status.phase.as_deref()),
        ready: ready.is_some_and(|ready| ready.status.as_deref() == Some("True")),
        since: changed.map_or(at.now, |changed| moment(changed, at)),
        unscheduled: unscheduled.map(|condition| texts.one(why_unscheduled(condition))),
        containers: containers(started.into_iter().flatten().flatten(), texts),
    };
    LabelledPod { pod: Arc::new(pod), labels, changed }
}

/// Those of `map` that are read, sorted by key.
fn pairs(
    map: Option<BTreeMap<String, String>>,
    texts: &mut Interner,
    is_read: impl Fn(&str, &str) -> bool,
) -> Labels {
    let read = map.iter().flatten().filter(|(key, text)| is_read(key, text));
    read.map(|(key, text)| (texts.one(key), texts.one(text))).collect()
}

/// The containers that the kubelet speaks of, with their ids as the runtime's scheme has them
/// after `//`.
fn containers(started: impl Iterator<Item = Started>, texts: &mut Interner) -> Box<[Container]> {
    let containers = started.filter_map(|container| {
        let id = container.id.as_deref().and_then(|id| id.split_once("//"));
        let id = id.and_then(|(_, id)| ContainerId::parse(id));
        Some(Container { name: texts.one(container.name.as_deref()?), id })
    });
    containers.collect()
}

fn ports(containers: &[Declared], texts: &mut Interner) -> Box<[(Arc<str>, u16)]> {
    let ports = containers.iter().flat_map(|container| container.ports.iter().flatten());
    let named = ports.filter_map(|port| {
        let number = u16::try_from(port.container_port?).ok()?;
        Some((texts.one(port.name.as_deref()?), number))
    });
    named.collect()
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

fn why_unscheduled(condition: &Condition) -> &str {
    let said = condition.message.as_ref().filter(|text| !text.is_empty());
    let said = said.or(condition.reason.as_ref()).map_or("no reason given", String::as_str);
    &said[..said.floor_char_boundary(MAX_TEXT)]
}
