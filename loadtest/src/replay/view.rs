//! What the product sees and decides of the simulated cluster, through its own code: the agent's
//! frame builder, the gateway's fleet view and its decision. No socket, no file, no clock.
//!
//! Guarantees: nothing of the cluster reaches the decision but what an agent would read and what
//! Kubernetes would say; `now` is the simulation's.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use agent::device::{
    Condition, Observation, ObservedDevice, ObservedEngine, ObservedHolder, Processes, Seat,
};
use agent::frame::assemble;
use agent::owner::declared::Declaration;
use agent::owner::process::ProcessOwners;
use agent::owner::{Declared, Known, resolve};
use gateway::answer::observe::observe;
use gateway::answer::past::WorkloadPast;
use gateway::answer::roster::Roster;
use gateway::directory::{Phase, Pod as KnownPod, ScaledKind, ScaledObject, Workload};
use gateway::fleet::{Fleet, Session};
use gateway::trigger::observed::{DemandReading, TargetType};
use gateway::trigger::profile::Profiles;
use gateway::trigger::spec::{Trigger, parse};
use gateway::trigger::verdict::Outcome;
use gateway::trigger::{assess, is_active};
use shared::frame::{Engine, HolderSource, Inventory};
use shared::identity::{NodeName, PodKey, ScaledObjectKey, WorkloadKey};
use shared::metric::Metric;
use shared::reading::Reading;
use shared::time::Timestamp;

use super::cluster::{Cluster, Pod, Said};

/// GPUs of a node.
pub const GPUS_PER_NODE: usize = 8;
/// Namespace of everything.
const NAMESPACE: &str = "ml";

/// One node's agent as far as the gateway hears it.
struct Node {
    session: Session,
    inventory: Option<Arc<Inventory>>,
}

/// Gateway and agents.
pub struct View {
    fleet: Arc<Fleet>,
    nodes: Vec<Node>,
    trigger: Trigger,
    object: ScaledObject,
}

/// What KEDA would be told.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Answer {
    /// GetMetrics; `None` for an error.
    pub value: Option<f64>,
    /// GetMetricSpec's target.
    pub target: f64,
    /// IsActive; `None` for an error.
    pub active: Option<bool>,
}

/// A moment of the simulation on the product's clock.
pub fn moment(seconds: f64) -> Timestamp {
    Timestamp::START + Duration::from_secs_f64(seconds)
}

fn node_of(gpu: usize) -> NodeName {
    format!("gpu-node-{}", gpu / GPUS_PER_NODE).as_str().into()
}

impl View {
    /// A gateway with one ScaledObject whose trigger has `metadata`, on nodes for `gpus` GPUs that
    /// are sampled every `interval`.
    ///
    /// # Errors
    /// When the metadata is wrong.
    pub fn new(
        metadata: &HashMap<String, String>,
        gpus: usize,
        interval: Duration,
    ) -> anyhow::Result<Self> {
        let trigger = parse(metadata, &Profiles::default())?;
        let fleet = Arc::new(Fleet::default());
        let open = |node: usize| {
            let session = fleet.open(node_of(node * GPUS_PER_NODE), interval, "replay".into())?;
            Ok(Node { session, inventory: None })
        };
        let nodes: anyhow::Result<Vec<_>> = (0..gpus.div_ceil(GPUS_PER_NODE)).map(open).collect();
        let target = WorkloadKey {
            namespace: NAMESPACE.into(),
            kind: "Deployment".into(),
            name: "llm".into(),
        };
        let object = ScaledObject {
            key: ScaledObjectKey::new(NAMESPACE, "llm"),
            kind: ScaledKind::Object,
            target,
            workload: None,
            absent: None,
            target_type: TargetType::AverageValue,
            min_replicas: Some(0),
            max_replicas: u32::try_from(gpus).ok(),
            cooldown: None,
            triggers: Arc::default(),
        };
        Ok(Self { nodes: nodes?, fleet, trigger, object })
    }

    /// Every agent samples and pushes.
    pub fn sample(&mut self, cluster: &Cluster) {
        let now = moment(cluster.now());
        for (at, node) in self.nodes.iter_mut().enumerate() {
            let observation = observation(cluster, at);
            let (file, declaration) = (Declared::new(), Declaration::default());
            let processes = ProcessOwners::unread();
            let known = Known { file: &file, declaration: &declaration, processes: &processes };
            let owners = resolve(&observation, known);
            let frame = assemble(observation, owners, node.inventory.as_ref());
            node.session.apply(&frame.inventory, frame.sample, now);
            node.inventory = Some(frame.inventory);
        }
        let look_back = self.trigger.look_back();
        self.fleet.tidy(|_| Some(look_back), now);
        let before = self.object.workload.as_deref();
        self.object.workload = Some(Arc::new(self.workload(cluster).after(before, now)));
    }

    /// What KEDA would be told now.
    pub fn answer(&self, cluster: &Cluster) -> Answer {
        let target = self.trigger.target;
        let Some(workload) = &self.object.workload else {
            return Answer { value: None, target, active: None };
        };
        let now = moment(cluster.now());
        let roster = Roster::new(&self.fleet, workload);
        let (mut observed, _) = observe(&self.fleet, &self.trigger, &roster, now);
        observed.warm = true;
        observed.demand = match &self.trigger.demand {
            Some(_) => DemandReading::Value(cluster.queue.len() as f64),
            None => DemandReading::None,
        };
        let past = WorkloadPast::new(&self.fleet, &self.object, &self.trigger);
        let verdict = assess(&self.trigger, &observed, &past, now);
        let value = match verdict.outcome {
            Outcome::Value(value) => Some(value),
            Outcome::Unavailable | Outcome::FailedPrecondition => None,
        };
        let active = value.map(|_| is_active(&self.trigger, &observed, &verdict, &past, now));
        Answer { value, target, active }
    }

    fn workload(&self, cluster: &Cluster) -> Workload {
        Workload {
            key: self.object.target.clone(),
            replicas: cluster.ordered,
            status_replicas: u32::try_from(cluster.pods.len()).unwrap_or(u32::MAX),
            pods: cluster.pods.iter().map(known_pod).collect(),
            gone: Vec::new(),
            short_since: None,
            with_pods_since: None,
        }
    }
}

/// A pod as Kubernetes tells it.
fn known_pod(pod: &Pod) -> Arc<KnownPod> {
    Arc::new(KnownPod {
        key: PodKey::new(NAMESPACE, &*pod.name),
        uid: None,
        node: pod.gpu.map(node_of),
        ip: None,
        ports: Box::default(),
        annotations: Box::default(),
        group: None,
        beside: false,
        terminating: pod.deleted.is_some(),
        phase: if pod.gpu.is_some() { Phase::Running } else { Phase::Pending },
        ready: pod.engine.is_some(),
        since: moment(pod.since),
        unscheduled: pod.gpu.is_none().then(|| "0/2 nodes have a free nvidia.com/gpu".into()),
        containers: Box::default(),
    })
}

/// What a node's agent reads.
fn observation(cluster: &Cluster, node: usize) -> Observation {
    let here = |pod: &&Pod| pod.gpu.is_some_and(|gpu| gpu / GPUS_PER_NODE == node);
    let mut observation = Observation::default();
    for pod in cluster.pods.iter().filter(here) {
        let key = PodKey::new(NAMESPACE, &*pod.name);
        observation.devices.push(device(pod, key.clone()));
        observation.engines.extend(engine(&pod.said, key));
    }
    observation
}

fn device(pod: &Pod, key: PodKey) -> ObservedDevice {
    let gpu = pod.gpu.unwrap_or_default();
    let holder = ObservedHolder {
        pod: key,
        uid: None,
        container: "engine".into(),
        share: Some(1.0),
        estimated: false,
        source: HolderSource::Simulated,
        undeclared: false,
        own: Vec::new(),
    };
    let Said { utilization, watts, memory_mib, .. } = pod.said;
    let readings = [
        (Metric::GpuUtilization, utilization),
        (Metric::PowerDraw, watts),
        (Metric::MemoryUsedMib, memory_mib),
    ];
    ObservedDevice {
        uuid: format!("GPU-{gpu}").as_str().into(),
        index: u32::try_from(gpu % GPUS_PER_NODE).unwrap_or_default(),
        name: "NVIDIA A100-SXM4-40GB".into(),
        memory_total_mib: Some(40_960.0),
        mig: None,
        holders: vec![holder],
        reason: None,
        age: Duration::ZERO,
        readings: readings
            .map(|(metric, value)| (metric, Reading::Ok(value)))
            .into_iter()
            .collect(),
        seat: Seat::default(),
        processes: Processes::Unasked,
        condition: Condition::default(),
    }
}

fn engine(said: &Said, pod: PodKey) -> Option<ObservedEngine> {
    let said = said.engine?;
    let readings = [
        (Metric::RequestsWaiting, said.waiting),
        (Metric::RequestsRunning, said.running),
        (Metric::KvCacheUsage, said.cache),
        (Metric::TokenThroughput, said.tokens),
    ];
    Some(ObservedEngine {
        engine: Engine { pod, uid: None, labels: "".into() },
        age: Duration::ZERO,
        readings: readings
            .map(|(metric, value)| (metric, Reading::Ok(value)))
            .into_iter()
            .collect(),
    })
}
