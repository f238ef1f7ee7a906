//! The directory from a YAML file: for a try-out without Kubernetes, for tests and for the demo.
//!
//! Guarantees: a file that cannot be read whole changes nothing: the last good state stays and the
//! fault is logged with its place. Nor does an empty one, or one that is being written to. Unknown
//! keys, duplicates and contradictions refuse the load. An entry that did not change keeps its
//! clock: ages count from the load that brought it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::Metadata;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use shared::identity::{NodeName, PodKey, PodUid, ScaledObjectKey, WorkloadKey};
use shared::process::{Clock, file};
use shared::time::Timestamp;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::by_node::ByNode;
use super::{DeclaredTrigger, Directory, Phase, Pod, ScaledKind, ScaledObject, Snapshot, Workload};
use crate::trigger::observed::TargetType;
use crate::trigger::profile::Profiles;

/// How often the file is looked at; it is taken when two looks see the same.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Bytes a directory file may have.
const MAX_BYTES: u64 = 64 << 20;
/// A file that is saved in place is empty for a moment.
const EMPTY: &str = "it is empty; write {} for none";

/// Device, inode, length, and time of the last write.
type Stamp = (u64, u64, u64, i64, i64);

/// Why a directory file was not taken.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It cannot be read.
    #[error("{}: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: std::io::Error,
    },
    /// It is not YAML of the expected form.
    #[error("{}: {message}", path.display())]
    Form {
        /// The file.
        path: PathBuf,
        /// What and where.
        message: String,
    },
    /// It says nothing, or contradicts itself.
    #[error("{}: {message}", path.display())]
    Meaning {
        /// The file.
        path: PathBuf,
        /// What is missing, or what contradicts what.
        message: String,
    },
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    workloads: Option<Vec<WorkloadEntry>>,
    #[serde(rename = "scaledObjects")]
    scaled_objects: Option<Vec<ScaledObjectEntry>>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct WorkloadEntry {
    namespace: Arc<str>,
    kind: Arc<str>,
    name: Arc<str>,
    replicas: u32,
    status_replicas: Option<u32>,
    #[serde(default)]
    pods: Vec<PodEntry>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct PodEntry {
    name: Arc<str>,
    ready: bool,
    uid: Option<PodUid>,
    node: Option<NodeName>,
    ip: Option<Arc<str>>,
    #[serde(default)]
    ports: BTreeMap<Arc<str>, u16>,
    #[serde(default)]
    annotations: BTreeMap<Arc<str>, Arc<str>>,
    group: Option<Arc<str>>,
    #[serde(default)]
    terminating: bool,
    #[serde(default)]
    phase: Phase,
    ready_for_seconds: Option<f64>,
    unready_for_seconds: Option<f64>,
    #[serde(default)]
    age_seconds: f64,
    /// Why the scheduler has no place for it: the message of its condition `PodScheduled`.
    unscheduled: Option<Arc<str>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct ScaledObjectEntry {
    namespace: Arc<str>,
    name: Arc<str>,
    #[serde(default)]
    kind: KindEntry,
    target: TargetEntry,
    #[serde(default)]
    metric_type: TargetTypeEntry,
    min_replicas: Option<u32>,
    max_replicas: Option<u32>,
    cooldown_seconds: Option<f64>,
    #[serde(default)]
    triggers: Vec<TriggerEntry>,
}

#[derive(Debug, Default, Deserialize)]
enum KindEntry {
    #[default]
    ScaledObject,
    ScaledJob,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TargetEntry {
    #[serde(default = "deployment")]
    kind: Arc<str>,
    name: Arc<str>,
}

fn deployment() -> Arc<str> {
    "Deployment".into()
}

#[derive(Debug, Default, Clone, Copy, Deserialize)]
enum TargetTypeEntry {
    #[default]
    AverageValue,
    Value,
}

impl From<TargetTypeEntry> for TargetType {
    fn from(entry: TargetTypeEntry) -> Self {
        match entry {
            TargetTypeEntry::AverageValue => Self::AverageValue,
            TargetTypeEntry::Value => Self::Value,
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct TriggerEntry {
    name: Option<Arc<str>>,
    #[serde(default, rename = "type")]
    kind: TriggerKindEntry,
    metric_type: Option<TargetTypeEntry>,
    #[serde(default)]
    metadata: HashMap<String, String>,
}

/// What is pushed is decided by the call that is made.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum TriggerKindEntry {
    #[default]
    External,
    ExternalPush,
}

/// The file, and what was made of it.
pub struct FileDirectory {
    path: PathBuf,
    directory: Arc<Directory>,
    profiles: Arc<Profiles>,
    clock: Clock,
    /// What is in force.
    text: String,
    /// What the last look saw, where that was something else: perhaps half written.
    seen: Option<(Stamp, String)>,
    entries: HashMap<WorkloadKey, WorkloadEntry>,
    loads: u64,
    /// The last fault: it is said once, not at every look.
    fault: Option<String>,
}

impl FileDirectory {
    /// Reads the file for the first time.
    ///
    /// # Errors
    /// When it cannot be read or does not say what a directory says.
    pub fn open(
        path: PathBuf,
        directory: Arc<Directory>,
        profiles: Arc<Profiles>,
        clock: Clock,
    ) -> Result<Self, Error> {
        let (_, text) = read(&path)?;
        let mut file = Self {
            path,
            directory,
            profiles,
            clock,
            text: String::new(),
            seen: None,
            entries: HashMap::new(),
            loads: 0,
            fault: None,
        };
        file.load(text)?;
        Ok(file)
    }

    /// Reloads the file whenever its content changes, until `shutdown`.
    pub async fn watch(mut self, shutdown: CancellationToken) {
        let mut look = tokio::time::interval(LOOK_EVERY);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while shutdown.run_until_cancelled(look.tick()).await.is_some() {
            // A large file takes a while to read, and a file of another kind may never end.
            let looked = tokio::task::spawn_blocking(move || {
                self.look();
                self
            });
            match shutdown.run_until_cancelled(looked).await {
                Some(Ok(file)) => self = file,
                Some(Err(error)) => return error!(%error, "the directory file is watched no more"),
                None => return,
            }
        }
    }

    fn look(&mut self) {
        let fault = match read(&self.path) {
            Ok((_, text)) if text == self.text => {
                if let Some(snapshot) = self.directory.snapshot() {
                    snapshot.confirm(self.clock.now());
                }
                self.seen = None;
                None
            }
            // The same text is not enough: one that is written over and over may be caught at the
            // same place twice.
            Ok(read) if self.seen.as_ref() == Some(&read) => {
                let loaded = self.load(read.1);
                if loaded.is_ok() {
                    info!(path = %self.path.display(), "directory file loaded");
                }
                loaded.err()
            }
            Ok(read) => {
                self.seen = Some(read);
                return;
            }
            Err(error) => Some(error),
        };
        let fault = fault.map(|error| error.to_string());
        if let Some(error) = fault.as_ref().filter(|_| fault != self.fault) {
            warn!(%error, "directory file refused, the last good state stays");
        }
        self.fault = fault;
    }

    fn load(&mut self, text: String) -> Result<(), Error> {
        let now = self.clock.now();
        let file: Option<File> = serde_saphyr::from_str_with_options(&text, options())
            .map_err(|error| Error::Form { path: self.path.clone(), message: error.to_string() })?;
        let meaning = |message| Error::Meaning { path: self.path.clone(), message };
        let file = file.ok_or_else(|| meaning(EMPTY.to_owned()))?;
        check(&file).map_err(meaning)?;
        let before = self.directory.snapshot();
        let mut entries = HashMap::new();
        let mut workloads = Vec::new();
        for entry in file.workloads.unwrap_or_default() {
            let key = entry.key();
            let workload = before.as_ref().and_then(|snapshot| snapshot.workload(&key));
            let known = self.entries.get(&key).zip(workload).map(|(e, w)| (e, &**w));
            workloads.push(Arc::new(entry.workload(known, now)));
            entries.insert(key, entry);
        }
        let objects = file.scaled_objects.into_iter().flatten().map(ScaledObject::from).collect();
        let profiles = &self.profiles;
        self.loads += 1;
        let pods = workloads.iter().flat_map(|workload: &Arc<Workload>| workload.pods.clone());
        let nodes = ByNode::of(pods, self.loads);
        let snapshot = Snapshot::new(now, workloads, objects, |object| object.look_back(profiles));
        self.directory.replace(snapshot.with_nodes(nodes));
        self.entries = entries;
        self.text = text;
        self.seen = None;
        Ok(())
    }
}

/// The size of the file is the bound, not the number of its parts.
fn options() -> serde_saphyr::Options {
    let most = usize::try_from(MAX_BYTES).unwrap_or(usize::MAX);
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_nodes: most,
            max_events: most,
            max_total_scalar_bytes: most,
        },
    }
}

fn read(path: &Path) -> Result<(Stamp, String), Error> {
    let (metadata, text) =
        file::text(path, MAX_BYTES).map_err(|error| Error::Read { path: path.into(), error })?;
    Ok((stamp(&metadata), text))
}

fn stamp(metadata: &Metadata) -> Stamp {
    let written = (metadata.mtime(), metadata.mtime_nsec());
    (metadata.dev(), metadata.ino(), metadata.len(), written.0, written.1)
}

/// Names may be anything but empty.
fn named<'a>(what: &str, names: impl IntoIterator<Item = &'a Arc<str>>) -> Result<(), String> {
    let unnamed = names.into_iter().any(|name| name.is_empty());
    if unnamed { Err(format!("{what} has an empty namespace, kind or name")) } else { Ok(()) }
}

fn check(file: &File) -> Result<(), String> {
    let mut seen = HashSet::new();
    for workload in file.workloads.iter().flatten() {
        let key = workload.key();
        named("a workload", [&key.namespace, &key.kind, &key.name])?;
        named(&key.to_string(), workload.pods.iter().map(|pod| &pod.name))?;
        let mut pods = HashSet::new();
        for pod in &workload.pods {
            if !pods.insert(&pod.name) {
                return Err(format!("{key}: pod {} is listed twice", pod.name));
            }
            let (ready_for, unready_for) = (pod.ready_for_seconds, pod.unready_for_seconds);
            if if pod.ready { unready_for.is_some() } else { ready_for.is_some() } {
                let is = if pod.ready { "ready" } else { "not ready" };
                return Err(format!(
                    "{key}: pod {} is {is}, yet says for how long it is the other",
                    pod.name
                ));
            }
            if let Some(ip) = pod.ip.as_ref().filter(|ip| ip.parse::<IpAddr>().is_err()) {
                return Err(format!("{key}: pod {}: ip {ip:?} is no IP address", pod.name));
            }
            if pod.unscheduled.is_some() && (pod.ready || pod.node.is_some()) {
                let is = if pod.ready { "ready" } else { "on a node" };
                return Err(format!("{key}: pod {} is {is}, yet unscheduled", pod.name));
            }
            let seconds = [Some(pod.age_seconds), pod.ready_for_seconds, pod.unready_for_seconds];
            if seconds.into_iter().flatten().any(|seconds| !(0.0..=1e9).contains(&seconds)) {
                return Err(format!("{key}: pod {}: seconds must be 0 to 1e9", pod.name));
            }
        }
        if !seen.insert(key) {
            return Err(format!("{} is listed twice", workload.key()));
        }
    }
    let mut seen = HashSet::new();
    for object in file.scaled_objects.iter().flatten() {
        let key = (&object.namespace, &object.name);
        let target = [&object.target.kind, &object.target.name];
        named("a scaled object", [key.0, key.1].into_iter().chain(target))?;
        if !seen.insert(key) {
            return Err(format!("scaled object {}/{} is listed twice", key.0, key.1));
        }
        if let (Some(min), Some(max)) = (object.min_replicas, object.max_replicas)
            && min > max
        {
            return Err(format!(
                "scaled object {}/{}: minReplicas {min} > maxReplicas {max}",
                key.0, key.1
            ));
        }
        if object.cooldown_seconds.is_some_and(|seconds| !(0.0..=1e9).contains(&seconds)) {
            return Err(format!(
                "scaled object {}/{}: cooldownSeconds must be 0 to 1e9",
                key.0, key.1
            ));
        }
    }
    Ok(())
}

impl WorkloadEntry {
    fn key(&self) -> WorkloadKey {
        WorkloadKey {
            namespace: self.namespace.clone(),
            kind: self.kind.clone(),
            name: self.name.clone(),
        }
    }

    fn workload(&self, known: Option<(&Self, &Workload)>, now: Timestamp) -> Workload {
        let pods = self.pods.iter().map(|entry| {
            let before = known.and_then(|(entries, workload)| {
                let same = |e: &&PodEntry| e.name == entry.name && e.uid == entry.uid;
                let pod = workload.pods.iter().find(|pod| pod.key.name == entry.name)?;
                Some((entries.pods.iter().find(same)?, &**pod))
            });
            Arc::new(entry.pod(&self.namespace, before, now))
        });
        let pods: Vec<Arc<Pod>> = pods.collect();
        let not_terminating = replicas(pods.iter().filter(|pod| !pod.terminating));
        let workload = Workload {
            key: self.key(),
            replicas: self.replicas,
            status_replicas: self
                .status_replicas
                .unwrap_or_else(|| u32::try_from(not_terminating).unwrap_or(u32::MAX)),
            pods,
            gone: Vec::new(),
            short_since: None,
            with_pods_since: None,
        };
        workload.after(known.map(|(_, workload)| workload), now)
    }
}

/// How many replicas the pods are: those of one group are one.
fn replicas<'a>(pods: impl Iterator<Item = &'a Arc<Pod>>) -> usize {
    let one = |pod: &'a Arc<Pod>| pod.group.as_ref().map_or((&pod.key.name, false), |g| (g, true));
    pods.map(one).collect::<HashSet<_>>().len()
}

impl PodEntry {
    fn pod(&self, namespace: &Arc<str>, before: Option<(&Self, &Pod)>, now: Timestamp) -> Pod {
        Pod {
            key: PodKey::new(namespace.clone(), self.name.clone()),
            uid: self.uid.clone(),
            node: self.node.clone(),
            ip: self.ip.clone(),
            ports: self.ports.clone().into_iter().collect(),
            annotations: self.annotations.clone().into_iter().collect(),
            group: self.group.clone(),
            beside: false,
            terminating: self.terminating,
            phase: self.phase,
            ready: self.ready,
            since: self.since(before, now),
            unscheduled: self.unscheduled.clone(),
            containers: Box::default(),
        }
    }

    /// Since when it is Ready, or not.
    fn since(&self, before: Option<(&Self, &Pod)>, now: Timestamp) -> Timestamp {
        let times = |e: &Self| {
            (e.ready, e.ready_for_seconds, e.unready_for_seconds, e.age_seconds.to_bits())
        };
        if let Some((entry, pod)) = before
            && times(entry) == times(self)
        {
            return pod.since;
        }
        let ago = |seconds: f64| now - Duration::from_secs_f64(seconds);
        if self.ready {
            return self.ready_for_seconds.map_or(Timestamp::LONG_AGO, ago);
        }
        match self.unready_for_seconds {
            Some(seconds) => ago(seconds),
            // It was seen to lose its readiness just now.
            None if before.is_some_and(|(_, pod)| pod.ready) => now,
            None => ago(self.age_seconds),
        }
    }
}

impl From<ScaledObjectEntry> for ScaledObject {
    fn from(entry: ScaledObjectEntry) -> Self {
        let triggers =
            entry.triggers.into_iter().enumerate().map(|(index, trigger)| DeclaredTrigger {
                index,
                pushes: matches!(trigger.kind, TriggerKindEntry::ExternalPush),
                name: trigger.name,
                target_type: trigger.metric_type.unwrap_or(entry.metric_type).into(),
                metadata: trigger.metadata,
            });
        Self {
            key: ScaledObjectKey::new(entry.namespace.clone(), entry.name),
            kind: match entry.kind {
                KindEntry::ScaledObject => ScaledKind::Object,
                KindEntry::ScaledJob => ScaledKind::Job,
            },
            target: WorkloadKey {
                namespace: entry.namespace,
                kind: entry.target.kind,
                name: entry.target.name,
            },
            workload: None,
            absent: None,
            target_type: entry.metric_type.into(),
            // KEDA's own default.
            min_replicas: Some(entry.min_replicas.unwrap_or(0)),
            max_replicas: entry.max_replicas,
            cooldown: entry.cooldown_seconds.map(Duration::from_secs_f64),
            triggers: triggers.collect(),
        }
    }
}

#[cfg(test)]
mod tests;
