//! What the watches have said so far, and the snapshot made of it. Pure: no I/O, no clock.
//!
//! Guarantees: events in any order of the three watches lead to the same index; a list replaces
//! what its watch knew; a workload is looked at anew only when its scale or a pod of its changed;
//! nothing is read of a namespace but by objects of the same namespace.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use shared::identity::{PodKey, ScaledObjectKey, WorkloadKey};
use shared::time::Timestamp;

use super::object::{Declared, Target};
use super::pod::LabelledPod;
use super::selector::{Labels, Selector};
use crate::directory::by_node::ByNode;
use crate::directory::{Absent, Pod, ScaledKind, ScaledObject, Snapshot, Workload};

/// What one watch sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope {
    /// Which objects.
    pub what: What,
    /// Of which namespace; `None` for all.
    pub namespace: Option<Arc<str>>,
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.what {
            What::Scaled(ScaledKind::Object) => "scaledobjects",
            What::Scaled(ScaledKind::Job) => "scaledjobs",
            What::Pods => "pods",
        })?;
        self.namespace.as_ref().map_or(Ok(()), |namespace| write!(f, " of {namespace}"))
    }
}

/// Which objects are watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// ScaledObjects or ScaledJobs.
    Scaled(ScaledKind),
    /// Pods.
    Pods,
}

/// One thing to do, from one watch.
#[derive(Debug)]
pub enum Action {
    /// A list begins.
    Begin,
    /// Something was listed, or changed.
    Apply(Item),
    /// Something is gone, or does not concern us any more.
    Delete(Key),
    /// The list is complete: what it did not name is gone.
    Complete,
}

/// Something that exists.
#[derive(Debug)]
pub enum Item {
    /// A ScaledObject or ScaledJob, and how long its triggers look back.
    Scaled(Box<Declared>, Duration),
    /// A pod.
    Pod(Box<LabelledPod>),
}

/// The name of something that existed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    /// A ScaledObject or ScaledJob.
    Scaled(ScaledKind, ScaledObjectKey),
    /// A pod.
    Pod(PodKey),
}

/// What `/scale` said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scale {
    /// `status.selector`.
    pub selector: Selector,
    /// `spec.replicas`.
    pub replicas: u32,
    /// `status.replicas`.
    pub status_replicas: u32,
}

/// Everything that is known.
pub struct Index {
    watches: Vec<Watch>,
    objects: HashMap<(ScaledKind, ScaledObjectKey), (Declared, Duration)>,
    scales: HashMap<Target, Result<Scale, Absent>>,
    pods: HashMap<Arc<str>, HashMap<Arc<str>, LabelledPod>>,
    workloads: BTreeMap<Target, Arc<Workload>>,
    /// What changed since the last snapshot, by namespace.
    dirty: HashMap<Arc<str>, Changed>,
    /// How often pods came or went, or an object changed, by namespace.
    churn: HashMap<Arc<str>, u64>,
    /// When all of it was last known to be true.
    as_of: Option<Timestamp>,
    nodes: ByNode,
}

/// Changed pods of one namespace that are looked up one by one.
const MAX_CHANGED: usize = 256;

/// What changed in one namespace.
#[derive(Default)]
struct Changed {
    /// By which labels pods that changed were selected, before or after.
    pods: Vec<Labels>,
    /// Targets whose `/scale` says something else.
    targets: HashSet<Target>,
    /// More than is worth listing.
    much: bool,
}

impl Changed {
    fn pod(&mut self, pod: &LabelledPod) {
        // A member of a group belongs to whatever selects another member.
        self.much |= self.pods.len() >= MAX_CHANGED || pod.pod.group.is_some();
        if self.much {
            self.pods = Vec::new();
        } else {
            self.pods.push(pod.labels.clone());
        }
    }

    fn concerns(&self, target: &Target, selector: &Selector) -> bool {
        self.much
            || self.targets.contains(target)
            || self.pods.iter().any(|labels| selector.matches(labels))
    }
}

struct Watch {
    scope: Scope,
    is_listed: bool,
    /// What the list that is under way has named.
    named: Option<HashSet<Key>>,
}

impl Index {
    /// An index fed by one watch for each of `scopes`.
    pub fn new(scopes: Vec<Scope>) -> Self {
        let watch = |scope| Watch { scope, is_listed: false, named: None };
        Self {
            watches: scopes.into_iter().map(watch).collect(),
            objects: HashMap::new(),
            scales: HashMap::new(),
            pods: HashMap::new(),
            workloads: BTreeMap::new(),
            dirty: HashMap::new(),
            churn: HashMap::new(),
            as_of: None,
            nodes: ByNode::default(),
        }
    }

    /// Does what watch number `watch` says.
    pub fn apply(&mut self, watch: usize, action: Action) {
        match action {
            Action::Begin => self.watches[watch].named = Some(HashSet::new()),
            Action::Apply(item) => {
                if let Some(named) = &mut self.watches[watch].named {
                    named.insert(item.key());
                }
                self.put(item);
            }
            Action::Delete(key) => self.remove(&key),
            Action::Complete => self.complete(watch),
        }
    }

    fn complete(&mut self, watch: usize) {
        let watch = &mut self.watches[watch];
        watch.is_listed = true;
        let Some(named) = watch.named.take() else { return };
        let scope = watch.scope.clone();
        let is_within =
            |namespace: &Arc<str>| scope.namespace.as_ref().is_none_or(|only| only == namespace);
        let known: Vec<Key> = match scope.what {
            What::Scaled(kind) => {
                let keys =
                    self.objects.keys().filter(|(k, key)| *k == kind && is_within(&key.namespace));
                keys.map(|(kind, key)| Key::Scaled(*kind, key.clone())).collect()
            }
            What::Pods => {
                let pods = self.pods.iter().filter(|(namespace, _)| is_within(namespace));
                pods.flat_map(|(_, pods)| pods.values().map(|pod| Key::Pod(pod.pod.key.clone())))
                    .collect()
            }
        };
        for key in known.iter().filter(|key| !named.contains(key)) {
            self.remove(key);
        }
    }

    fn put(&mut self, item: Item) {
        match item {
            Item::Scaled(declared, look_back) => {
                let key = declared.object.key.clone();
                self.stir(&key.namespace);
                let asks = |d: &Declared| (d.target.clone(), d.object.triggers.clone());
                let asked = asks(&declared);
                let key = (declared.object.kind, key);
                let before = self.objects.insert(key, (*declared, look_back));
                if before.is_none_or(|(before, _)| asks(&before) != asked) {
                    self.nodes.declare();
                }
            }
            Item::Pod(mut new) => {
                let key = new.pod.key.clone();
                let pods = self.pods.entry(key.namespace.clone()).or_default();
                let same = pods.get(&key.name).filter(|before| before.pod.uid == new.pod.uid);
                bound_since(&mut new, same, self.as_of);
                if same == Some(&*new) {
                    return;
                }
                let came_or_went = same.is_none_or(|same| same.pod.exists() != new.pod.exists());
                let changed = self.dirty.entry(key.namespace.clone()).or_default();
                changed.pod(&new);
                let pod = new.pod.clone();
                if let Some(before) = pods.insert(key.name, *new) {
                    changed.pod(&before);
                    if before.pod.node != pod.node {
                        self.nodes.remove(&before.pod);
                    }
                }
                self.nodes.put(pod);
                if came_or_went {
                    self.stir(&key.namespace);
                }
            }
        }
    }

    fn remove(&mut self, key: &Key) {
        match key {
            Key::Scaled(kind, key) => {
                if self.objects.remove(&(*kind, key.clone())).is_some() {
                    self.nodes.declare();
                    self.stir(&key.namespace);
                }
            }
            Key::Pod(key) => {
                let pods = self.pods.get_mut(&key.namespace);
                if let Some(gone) = pods.and_then(|pods| pods.remove(&key.name)) {
                    self.nodes.remove(&gone.pod);
                    self.dirty.entry(key.namespace.clone()).or_default().pod(&gone);
                    self.stir(&key.namespace);
                }
            }
        }
    }

    fn stir(&mut self, namespace: &Arc<str>) {
        self.dirty.entry(namespace.clone()).or_default();
        *self.churn.entry(namespace.clone()).or_default() += 1;
    }

    /// Takes what was found at the `/scale` of `target`.
    pub fn scaled(&mut self, target: Target, found: Result<Scale, Absent>) {
        let before = self.scales.get(&target);
        // What cannot be read now is what it was.
        let keeps = matches!((before, &found), (Some(Ok(_)), Err(Absent::Unread(_))));
        if !keeps && before != Some(&found) {
            let selector = |found: &Result<Scale, Absent>| {
                found.as_ref().ok().map(|scale| scale.selector.clone())
            };
            if before.and_then(selector) != selector(&found) {
                self.nodes.declare();
            }
            let changed = self.dirty.entry(target.key.namespace.clone()).or_default();
            changed.targets.insert(target.clone());
            self.scales.insert(target, found);
        }
    }

    /// Every target, and a number that changes when it should be looked at again.
    pub fn targets(&self) -> BTreeMap<Target, u64> {
        let targets = self.objects.values().filter_map(|(declared, _)| declared.target.as_ref());
        let asked = |target: &Target| self.churn.get(&target.key.namespace).copied();
        targets.map(|target| (target.clone(), asked(target).unwrap_or_default())).collect()
    }

    /// What has not been read yet; `None` once everything has.
    pub fn waits_for(&self) -> Option<String> {
        let unlisted: Vec<String> = self
            .watches
            .iter()
            .filter(|watch| !watch.is_listed)
            .map(|watch| watch.scope.to_string())
            .collect();
        if !unlisted.is_empty() {
            return Some(format!("{} not listed yet", unlisted.join(", ")));
        }
        let targets = self.targets();
        let mut unread = targets.keys().filter(|target| !self.scales.contains_key(*target));
        let first = unread.next()?;
        let more = unread.count();
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        Some(format!("/scale of {}{more} not read yet", first.key))
    }

    /// Whether watch number `watch` has been listed and is not being listed again.
    pub fn is_listed(&self, watch: usize) -> bool {
        self.watches[watch].is_listed && self.watches[watch].named.is_none()
    }

    /// All of it was known to be true at `moment`.
    pub fn confirm(&mut self, moment: Timestamp) {
        self.as_of = self.as_of.max(Some(moment));
    }

    /// Whether there is anything that the last snapshot does not show.
    pub fn is_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// A snapshot of everything.
    pub fn snapshot(&mut self, now: Timestamp) -> Snapshot {
        let dirty = std::mem::take(&mut self.dirty);
        let targets = self.targets();
        self.scales.retain(|target, _| targets.contains_key(target));
        let names = Names::of(targets.keys());
        let mut workloads = BTreeMap::new();
        for target in targets.keys() {
            let Some(Ok(scale)) = self.scales.get(target) else { continue };
            let changed = dirty.get(&target.key.namespace);
            let concerns = changed.is_some_and(|all| all.concerns(target, &scale.selector));
            let (before, key) = (self.workloads.get(target), names.shown(target));
            let workload = match before {
                Some(before) if before.key == key && !concerns => before.clone(),
                _ => Arc::new(self.workload(target, key, scale).after(before.map(|w| &**w), now)),
            };
            workloads.insert(target.clone(), workload);
        }
        self.workloads = workloads;
        let objects = self.shown_objects(&names);
        let look_back = |object: &ScaledObject| {
            self.objects
                .get(&(object.kind, object.key.clone()))
                .map_or(Duration::ZERO, |(_, time)| *time)
        };
        let as_of = *self.as_of.get_or_insert(now);
        let snapshot = Snapshot::new(as_of, self.workloads.values().cloned(), objects, look_back);
        snapshot.with_nodes(self.nodes.clone())
    }

    /// What is known by node, to add what drivers publish.
    pub fn nodes_mut(&mut self) -> &mut ByNode {
        &mut self.nodes
    }

    /// ScaledJobs first: where both have one name, the ScaledObject is the one that is shown.
    fn shown_objects(&self, names: &Names<'_>) -> Vec<ScaledObject> {
        let of = |wanted| self.objects.values().filter(move |(d, _)| d.object.kind == wanted);
        let both = of(ScaledKind::Job).chain(of(ScaledKind::Object));
        let objects = both.map(|(declared, _)| {
            let scale = declared.target.as_ref().map(|target| self.scales.get(target));
            let absent = match scale {
                Some(None) => Some(Absent::Unread("its /scale has not been read yet".into())),
                Some(Some(Err(absent))) => Some(absent.clone()),
                Some(Some(Ok(_))) | None => None,
            };
            let mut object = ScaledObject { absent, ..declared.object.clone() };
            if let Some(target) = &declared.target {
                object.target = names.shown(target);
            }
            object
        });
        objects.collect()
    }

    fn workload(&self, target: &Target, key: WorkloadKey, scale: &Scale) -> Workload {
        Workload {
            key,
            replicas: scale.replicas,
            status_replicas: scale.status_replicas,
            pods: self.selected(&target.key.namespace, &scale.selector),
            gone: Vec::new(),
            short_since: None,
            with_pods_since: None,
        }
    }

    /// The pods that `selector` selects, and those of their groups.
    fn selected(&self, namespace: &str, selector: &Selector) -> Vec<Arc<Pod>> {
        let Some(all) = self.pods.get(namespace) else { return Vec::new() };
        let is_selected = |pod: &&LabelledPod| selector.matches(&pod.labels);
        let mut pods: Vec<Arc<Pod>> =
            all.values().filter(is_selected).map(|pod| pod.pod.clone()).collect();
        let groups: HashSet<Arc<str>> = pods.iter().filter_map(|pod| pod.group.clone()).collect();
        if !groups.is_empty() {
            let beside = all
                .values()
                .filter(|pod| !is_selected(pod))
                .filter(|pod| pod.pod.group.as_ref().is_some_and(|group| groups.contains(group)));
            pods.extend(beside.map(|pod| Arc::new(Pod { beside: true, ..(*pod.pod).clone() })));
        }
        pods
    }
}

/// What targets are called: by kind, namespace and name, and where these are the same in several
/// API groups, by `Kind.group`, as kubectl has it.
struct Names<'a>(HashMap<&'a WorkloadKey, BTreeSet<&'a str>>);

impl<'a> Names<'a> {
    fn of(targets: impl Iterator<Item = &'a Target>) -> Self {
        let mut groups: HashMap<_, BTreeSet<_>> = HashMap::new();
        for target in targets {
            groups.entry(&target.key).or_default().insert(target.group());
        }
        Self(groups)
    }

    fn shown(&self, target: &Target) -> WorkloadKey {
        let group = target.group();
        let is_alone = self.0.get(&target.key).is_none_or(|groups| groups.len() < 2);
        if is_alone || group.is_empty() {
            return target.key.clone();
        }
        let kind = format!("{}.{group}", target.key.kind).into();
        WorkloadKey { kind, ..target.key.clone() }
    }
}

impl Item {
    fn key(&self) -> Key {
        match self {
            Self::Scaled(declared, _) => {
                Key::Scaled(declared.object.kind, declared.object.key.clone())
            }
            Self::Pod(pod) => Key::Pod(pod.pod.key.clone()),
        }
    }
}

/// Kubernetes dates a change by some node's wall clock. What we saw otherwise at `as_of` changed
/// after it, whatever that clock says; what did not change keeps its time.
fn bound_since(new: &mut LabelledPod, before: Option<&LabelledPod>, as_of: Option<Timestamp>) {
    let since = match (before, as_of) {
        (Some(before), _) if before.pod.ready == new.pod.ready && before.changed == new.changed => {
            before.pod.since
        }
        (_, Some(as_of)) => as_of.max(new.pod.since),
        (_, None) => return,
    };
    Arc::make_mut(&mut new.pod).since = since;
}
