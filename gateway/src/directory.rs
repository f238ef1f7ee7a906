//! What only Kubernetes knows: which ScaledObjects there are, what they scale, how many pods were
//! ordered, which exist and which are ready.
//!
//! Guarantees: a snapshot is immutable and swapped whole; looking something up takes no lock and
//! invents nothing. Sources (a file, the API server) replace the snapshot and keep, in
//! `Workload::after`, what a single look at the cluster cannot show: since when.

/// The cluster by node.
pub mod by_node;
/// Containers of pods, and the runtime's ids for them.
pub mod container;
/// The directory from a YAML file, reloaded when it changes.
pub mod file;
/// The directory from the Kubernetes API, kept current by watches.
pub mod kube;
/// How long pods take from being ordered to their first reading.
pub mod startup;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use foldhash::fast::RandomState;
use parking_lot::Mutex;
use shared::identity::{NodeName, PodKey, PodUid, ScaledObjectKey, WorkloadKey};
use shared::process::Clock;
use shared::time::Timestamp;
use tokio::sync::watch;

use self::by_node::{ByNode, OfNode};
use self::container::Container;
use self::startup::{Startup, Startups};
use crate::trigger::observed::TargetType;
use crate::trigger::profile::Profiles;
use crate::trigger::spec::{self, is_for_keda};

/// The longest a trigger may look back; pods that are gone are remembered for this long.
pub const MAX_LOOK_BACK: Duration = Duration::from_secs(3_600);
/// Pods that are gone, remembered per workload.
const MAX_GONE: usize = 1_000;
/// How long triggers that are not listed look back, unless asked for more.
const DEFAULT_LOOK_BACK: Duration = Duration::from_secs(70);

/// The newest snapshot, and a way to wait for the next.
#[derive(Debug)]
pub struct Directory {
    snapshot: ArcSwapOption<Snapshot>,
    /// What the first snapshot waits for.
    waits_for: Mutex<String>,
    changed: watch::Sender<u64>,
    startups: Mutex<Startups>,
    /// Dates what a snapshot shows: `as_of` is older than what watches have brought since.
    clock: Option<Clock>,
}

/// The cluster as of one moment.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// When it was last known to be true.
    as_of: Mutex<Timestamp>,
    /// Namespace → name → ScaledObject or ScaledJob with a trigger of ours.
    objects: HashMap<Arc<str>, ByName, RandomState>,
    /// The same in order. Made when it is first asked for.
    ordered: OnceLock<Box<[Arc<ScaledObject>]>>,
    workloads: BTreeMap<WorkloadKey, Arc<Workload>>,
    /// Pods of workloads that are scaled → by what, and how long their past is needed for it.
    /// Made when it is first asked for, which is not while the snapshot is awaited.
    scaled_pods: OnceLock<HashMap<PodKey, Scaled>>,
    /// How far the declared triggers of each ScaledObject with a workload look back.
    look_backs: Vec<(ScaledObjectKey, WorkloadKey, Duration)>,
    nodes: ByNode,
}

/// Found by every call: hashed, because a look-up in an ordered map costs a dozen cache misses
/// where there are thousands.
type ByName = HashMap<Arc<str>, Arc<ScaledObject>, RandomState>;

/// What scales a pod.
#[derive(Debug, Default)]
pub struct Scaled {
    /// How far the declared triggers look back.
    pub look_back: Duration,
    /// The ScaledObjects; usually one.
    pub by: Vec<ScaledObjectKey>,
}

/// Whether replicas or jobs are scaled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ScaledKind {
    /// A ScaledObject: replicas of a workload.
    #[default]
    Object,
    /// A ScaledJob: jobs started from a template.
    Job,
}

/// A ScaledObject or ScaledJob.
#[derive(Clone, Debug)]
pub struct ScaledObject {
    /// Its namespace and name.
    pub key: ScaledObjectKey,
    /// Which of the two.
    pub kind: ScaledKind,
    /// What it scales.
    pub target: WorkloadKey,
    /// What it scales, as found; `None` if there is no such workload.
    pub workload: Option<Arc<Workload>>,
    /// Why it was not found, where the source knows more than that.
    pub absent: Option<Absent>,
    /// How the HPA uses values, for triggers that are not listed.
    pub target_type: TargetType,
    /// `minReplicaCount`.
    pub min_replicas: Option<u32>,
    /// `maxReplicaCount`.
    pub max_replicas: Option<u32>,
    /// `cooldownPeriod`.
    pub cooldown: Option<Duration>,
    /// Its triggers of ours, where the source lists them.
    pub triggers: Arc<[DeclaredTrigger]>,
}

/// Why nothing is known of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Absent {
    /// There is none, or none that can be scaled: what is the matter with it.
    Missing(Arc<str>),
    /// It could not be read yet: why.
    Unread(Arc<str>),
}

/// One trigger as declared.
#[derive(Clone, Debug, PartialEq)]
pub struct DeclaredTrigger {
    /// Its place in the list of all triggers: KEDA names the HPA's metric `s<index>-…`.
    pub index: usize,
    /// Whether it is `external-push`.
    pub pushes: bool,
    /// Its name in formulas.
    pub name: Option<Arc<str>>,
    /// How the HPA uses its value.
    pub target_type: TargetType,
    /// Its metadata, as KEDA will send it.
    pub metadata: HashMap<String, String>,
}

/// What a ScaledObject scales.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Its kind, namespace and name.
    pub key: WorkloadKey,
    /// `spec.replicas`.
    pub replicas: u32,
    /// `status.replicas`.
    pub status_replicas: u32,
    /// Pods its selector matches, by name; terminal ones and those being deleted included.
    pub pods: Vec<Arc<Pod>>,
    /// Pods that were Ready and are so no more.
    pub gone: Vec<GonePod>,
    /// Since when fewer pods exist than are ordered.
    pub short_since: Option<Timestamp>,
    /// Since when it has had pods without a break.
    pub with_pods_since: Option<Timestamp>,
}

/// One pod.
#[derive(Clone, Debug, PartialEq)]
pub struct Pod {
    /// Its namespace and name.
    pub key: PodKey,
    /// Its UID.
    pub uid: Option<PodUid>,
    /// Its node.
    pub node: Option<NodeName>,
    /// Its address.
    pub ip: Option<Arc<str>>,
    /// Its named ports.
    pub ports: Box<[(Arc<str>, u16)]>,
    /// The annotations we read.
    pub annotations: Box<[(Arc<str>, Arc<str>)]>,
    /// Pods of one group are read as one (LeaderWorkerSet).
    pub group: Option<Arc<str>>,
    /// Whether only its group is selected, and not the pod itself.
    pub beside: bool,
    /// Whether it is being deleted.
    pub terminating: bool,
    /// Its phase.
    pub phase: Phase,
    /// Whether its Ready condition is true.
    pub ready: bool,
    /// Since when it is Ready, or not.
    pub since: Timestamp,
    /// Why the scheduler has no place for it; `None` where it has, or is not known.
    pub unscheduled: Option<Arc<str>>,
    /// Its containers: init, ordinary and ephemeral ones; empty where the source does not say.
    pub containers: Box<[Container]>,
}

/// A pod that was Ready once and is so no more.
#[derive(Clone, Debug, PartialEq)]
pub struct GonePod {
    /// The pod, as it was.
    pub pod: Arc<Pod>,
    /// Until when it was Ready.
    pub until: Timestamp,
}

/// A pod's phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
pub enum Phase {
    /// Not all containers have started.
    Pending,
    /// At least one container runs.
    #[default]
    Running,
    /// All containers ended well.
    Succeeded,
    /// All containers ended, one badly.
    Failed,
    /// The node does not answer.
    Unknown,
}

impl Pod {
    /// Whether it exists for the decision: neither terminal nor being deleted.
    pub fn exists(&self) -> bool {
        !self.terminating && !matches!(self.phase, Phase::Succeeded | Phase::Failed)
    }

    /// Whether the HPA counts it as ready: Running and Ready, even while it is being deleted.
    pub fn is_ready_running(&self) -> bool {
        self.ready && self.phase == Phase::Running && !self.beside
    }

    /// The port of that name.
    pub fn port(&self, name: &str) -> Option<u16> {
        self.ports.iter().find(|(known, _)| &**known == name).map(|(_, port)| *port)
    }

    /// The annotation of that name.
    pub fn annotation(&self, name: &str) -> Option<&str> {
        self.annotations.iter().find(|(known, _)| &**known == name).map(|(_, text)| &**text)
    }

    fn is_same_as(&self, other: &Self) -> bool {
        self.key == other.key && self.uid == other.uid
    }
}

impl Workload {
    /// This look at the workload, after `before`: carries over since when things are so.
    #[must_use]
    pub fn after(mut self, before: Option<&Self>, now: Timestamp) -> Self {
        self.pods.sort_by(|a, b| a.key.cmp(&b.key));
        let existing = self.existing();
        let grew = before.is_none_or(|before| before.replicas < self.replicas);
        let was_short = before.and_then(|before| before.short_since).filter(|_| !grew);
        let fell = before.is_some_and(|before| before.existing() > existing);
        self.short_since =
            (existing < self.replicas).then(|| if fell { now } else { was_short.unwrap_or(now) });
        let had_pods = before.and_then(|before| before.with_pods_since);
        self.with_pods_since = (existing > 0).then(|| had_pods.unwrap_or(now));
        if let Some(before) = before {
            self.gone = before.gone.clone();
            for pod in before.pods.iter().filter(|pod| pod.ready && pod.exists()) {
                let at = self.pods.binary_search_by(|known| known.key.cmp(&pod.key));
                let here = at.ok().map(|at| &self.pods[at]);
                let still = here.is_some_and(|p| p.is_same_as(pod) && p.ready && p.exists());
                if !still {
                    let pod = Pod { since: before.ready_from(pod), ..(**pod).clone() };
                    self.gone.push(GonePod { pod: Arc::new(pod), until: now });
                }
            }
            self.gone.retain(|gone| now.since(gone.until) < MAX_LOOK_BACK);
            let surplus = self.gone.len().saturating_sub(MAX_GONE);
            self.gone.drain(..surplus);
        }
        self
    }

    /// From when a pod counts as Ready: what it was under the same name before, counts as that.
    pub fn ready_from(&self, pod: &Pod) -> Timestamp {
        let before = self.gone.iter().filter(|gone| gone.pod.key == pod.key).map(|gone| gone.until);
        before.fold(pod.since, Timestamp::max)
    }

    /// Pods, or groups of pods, that exist.
    pub fn existing(&self) -> u32 {
        let mut groups: Vec<_> =
            self.pods.iter().filter(|pod| pod.exists()).map(|pod| pod.group.as_ref()).collect();
        groups.sort_unstable();
        let single = groups.iter().filter(|group| group.is_none()).count();
        groups.retain(Option::is_some);
        groups.dedup();
        u32::try_from(single + groups.len()).unwrap_or(u32::MAX)
    }
}

impl Default for Directory {
    fn default() -> Self {
        Self {
            snapshot: ArcSwapOption::empty(),
            waits_for: Mutex::default(),
            changed: watch::Sender::new(0),
            startups: Mutex::default(),
            clock: None,
        }
    }
}

impl Directory {
    /// An empty directory that dates what it sees by `clock`; without one, by the snapshots' own
    /// moments.
    pub fn with_clock(clock: Clock) -> Self {
        Self { clock: Some(clock), ..Self::default() }
    }

    /// The newest snapshot, for as long as it takes to look something up in it.
    pub fn glance(&self) -> arc_swap::Guard<Option<Arc<Snapshot>>> {
        self.snapshot.load()
    }

    /// The newest snapshot; `None` until the first is loaded.
    pub fn snapshot(&self) -> Option<Arc<Snapshot>> {
        self.snapshot.load_full()
    }

    /// What the first snapshot waits for, in words; empty where nothing is known of it.
    pub fn waits_for(&self) -> String {
        self.waits_for.lock().clone()
    }

    /// Says what the first snapshot waits for.
    pub fn wait_for(&self, what: String) {
        *self.waits_for.lock() = what;
    }

    /// Replaces the snapshot.
    pub fn replace(&self, snapshot: Snapshot) {
        let now = self.clock.map_or_else(|| snapshot.as_of(), |clock| clock.now());
        self.startups.lock().look(self.snapshot.load().as_deref(), &snapshot, now);
        self.snapshot.store(Some(Arc::new(snapshot)));
        self.changed.send_modify(|version| *version += 1);
    }

    /// How long the pods of `workload` took to start, as seen by this process.
    pub fn startup(&self, workload: &WorkloadKey) -> Startup {
        self.startups.lock().of(workload)
    }

    /// Asks `first` when each Ready pod that was followed since its start was first heard of.
    pub fn first_readings(&self, first: impl Fn(&Pod) -> Option<Timestamp>, now: Timestamp) {
        let Some(snapshot) = self.snapshot() else { return };
        let of = |workload: &WorkloadKey, pod: &PodKey| {
            let pods = &snapshot.workload(workload)?.pods;
            first(&pods[pods.binary_search_by(|other| other.key.cmp(pod)).ok()?])
        };
        self.startups.lock().first_readings(of, now);
    }

    /// Changes with every new snapshot.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }
}

impl Snapshot {
    /// Builds a snapshot from what a source read; `look_back` says how long a ScaledObject's
    /// triggers look back.
    pub fn new(
        as_of: Timestamp,
        workloads: impl IntoIterator<Item = Arc<Workload>>,
        objects: Vec<ScaledObject>,
        look_back: impl Fn(&ScaledObject) -> Duration,
    ) -> Self {
        let mut snapshot = Self { as_of: Mutex::new(as_of), ..Self::default() };
        for workload in workloads {
            snapshot.workloads.insert(workload.key.clone(), workload);
        }
        for mut object in objects {
            object.workload = snapshot.workloads.get(&object.target).cloned();
            if object.workload.is_some() {
                let look_back = (object.key.clone(), object.target.clone(), look_back(&object));
                snapshot.look_backs.push(look_back);
            }
            let (namespace, name) = (object.key.namespace.clone(), object.key.name.clone());
            snapshot.objects.entry(namespace).or_default().insert(name, Arc::new(object));
        }
        snapshot
    }

    /// The same, with the cluster by node.
    #[must_use]
    pub fn with_nodes(self, nodes: ByNode) -> Self {
        Self { nodes, ..self }
    }

    /// What is known of `node`.
    pub fn node(&self, node: &NodeName) -> OfNode {
        self.nodes.node(node)
    }

    /// When it was last known to be true.
    pub fn as_of(&self) -> Timestamp {
        *self.as_of.lock()
    }

    /// It was found to be still true.
    pub fn confirm(&self, now: Timestamp) {
        *self.as_of.lock() = now;
    }

    /// The ScaledObject `namespace/name`.
    pub fn object(&self, namespace: &str, name: &str) -> Option<&Arc<ScaledObject>> {
        self.objects.get(namespace)?.get(name)
    }

    /// Every ScaledObject, by namespace and name.
    pub fn objects(&self) -> &[Arc<ScaledObject>] {
        self.ordered.get_or_init(|| {
            let objects = self.objects.values().flat_map(HashMap::values);
            let mut objects: Box<[_]> = objects.cloned().collect();
            objects.sort_unstable_by(|a, b| a.key.cmp(&b.key));
            objects
        })
    }

    /// Every workload, by key.
    pub fn workloads(&self) -> impl Iterator<Item = &Arc<Workload>> {
        self.workloads.values()
    }

    /// The workload of that key.
    pub fn workload(&self, key: &WorkloadKey) -> Option<&Arc<Workload>> {
        self.workloads.get(key)
    }

    /// What scales `pod`; `None` if nothing here does.
    pub fn scaled(&self, pod: &PodKey) -> Option<&Scaled> {
        self.scaled_pods.get_or_init(|| self.scaled_pods()).get(pod)
    }

    fn scaled_pods(&self) -> HashMap<PodKey, Scaled> {
        let mut scaled_pods = HashMap::new();
        for (object, workload, look_back) in &self.look_backs {
            let Some(workload) = self.workload(workload) else { continue };
            let gone = workload.gone.iter().map(|gone| &gone.pod);
            for pod in workload.pods.iter().chain(gone) {
                let scaled: &mut Scaled = scaled_pods.entry(pod.key.clone()).or_default();
                scaled.look_back = scaled.look_back.max(*look_back);
                // Usually one: no room for more.
                scaled.by.reserve_exact(1);
                scaled.by.push(object.clone());
            }
        }
        scaled_pods
    }
}

impl ScaledObject {
    /// How long its triggers look back.
    pub fn look_back(&self, profiles: &Profiles) -> Duration {
        let triggers =
            self.triggers.iter().filter_map(|t| spec::parse_anywhere(&t.metadata, profiles).ok());
        triggers.map(|trigger| trigger.look_back()).max().unwrap_or_default().max(DEFAULT_LOOK_BACK)
    }

    /// How the HPA uses the value of the trigger with that metadata.
    pub fn target_type_of(&self, metadata: &HashMap<String, String>) -> TargetType {
        // Nearly always all triggers agree: then it need not be known which one it is.
        if self.triggers.iter().all(|trigger| trigger.target_type == self.target_type) {
            return self.target_type;
        }
        self.trigger_of(metadata).map_or(self.target_type, |trigger| trigger.target_type)
    }

    /// The trigger with that metadata, if the source lists triggers. Keys that KEDA reads itself,
    /// and `…FromEnv` keys, whose values it replaces or drops, are not compared.
    pub fn trigger_of(&self, metadata: &HashMap<String, String>) -> Option<&DeclaredTrigger> {
        let ours =
            |map: &HashMap<String, String>| map.keys().filter(|key| !is_for_keda(key)).count();
        self.triggers.iter().find(|trigger| {
            let mut declared = trigger.metadata.iter().filter(|(key, _)| !is_for_keda(key));
            ours(&trigger.metadata) == ours(metadata)
                && declared.all(|(key, value)| metadata.get(key) == Some(value))
        })
    }
}
