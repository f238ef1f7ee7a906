//! The emulated cluster: one Deployment, its pods on fixed nodes with a GPU each, and the load they
//! share.
//!
//! Guarantees: scaling down takes the pods that are still loading first, then the newest; a pod
//! serves only after its model has loaded; a GPU is never busier than 100 %. No clock is read.

use std::time::Duration;

use shared::identity::NodeName;
use shared::time::Timestamp;

use crate::hpa::Scale;

/// Utilisation of a GPU whose model is still loading.
const LOADING_UTILIZATION: f64 = 2.0;
/// Memory of every GPU.
pub const MEMORY_TOTAL_MIB: f64 = 81_559.0;
/// Memory an engine has taken once its model is loaded, whatever it serves.
const MEMORY_SERVING_MIB: f64 = 70_000.0;
/// Memory of a GPU nobody uses.
const MEMORY_FREE_MIB: f64 = 500.0;

/// What the cluster is made of.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Name of the Deployment; its pods are numbered.
    pub deployment: String,
    /// The nodes, filled in turn.
    pub nodes: Vec<NodeName>,
    /// GPUs of each node; together enough for the most replicas that may be ordered.
    pub gpus_per_node: usize,
    /// From a pod's creation to Ready.
    pub model_load: Duration,
    /// From Ready to a full share: what runs elsewhere finishes there.
    pub settle: Duration,
    /// Requests an engine runs at once, where load is requests in flight; without it load is
    /// percent of one GPU.
    pub slots: Option<f64>,
}

/// What an engine says of its requests.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Requests {
    /// Those it works on.
    pub running: f64,
    /// Those it has no room for yet.
    pub waiting: f64,
}

/// One pod and its GPU.
#[derive(Clone, Debug)]
pub struct Pod {
    /// Its name: never used twice.
    pub name: String,
    /// Its place: which GPU of which node.
    pub slot: usize,
    /// When it was created.
    pub created: Timestamp,
    /// Since when it is Ready, if it is.
    pub ready_since: Option<Timestamp>,
    /// Utilisation of its GPU, percent.
    pub utilization: f64,
    /// Memory in use on its GPU.
    pub memory_mib: f64,
    /// Its requests, once it serves and where requests are counted.
    pub requests: Option<Requests>,
}

/// The cluster at one moment.
#[derive(Clone, Debug)]
pub struct Cluster {
    plan: Plan,
    pods: Vec<Pod>,
    created: u32,
    revision: u64,
}

impl Cluster {
    /// A cluster whose first pods have been Ready for long, under `load`.
    pub fn new(plan: Plan, replicas: u32, load: f64) -> Self {
        let mut cluster = Self { plan, pods: Vec::new(), created: 0, revision: 0 };
        cluster.scale(replicas, Timestamp::LONG_AGO);
        cluster.tick(load, Timestamp::START);
        cluster
    }

    /// Sets the Deployment's replicas.
    pub fn scale(&mut self, replicas: u32, now: Timestamp) {
        let wanted = replicas as usize;
        while self.pods.len() > wanted {
            let loading = self.pods.iter().rposition(|pod| pod.ready_since.is_none());
            self.pods.remove(loading.unwrap_or(self.pods.len() - 1));
            self.revision += 1;
        }
        while self.pods.len() < wanted {
            self.create(now);
            self.revision += 1;
        }
    }

    /// Lets pods become Ready and spreads `load` (percent of one GPU) over those that are.
    pub fn tick(&mut self, load: f64, now: Timestamp) {
        let Plan { model_load, settle, .. } = self.plan;
        for pod in &mut self.pods {
            if pod.ready_since.is_none() && now.since(pod.created) >= model_load {
                pod.ready_since = Some(pod.created + model_load);
                self.revision += 1;
            }
        }
        let total: f64 = self.pods.iter().map(|pod| pod.weight(settle, now)).sum();
        for pod in &mut self.pods {
            pod.serve(load, total, &self.plan, now);
        }
    }

    /// The Deployment's pods, oldest first.
    pub fn pods(&self) -> &[Pod] {
        &self.pods
    }

    /// The pod on a node's GPU, if one is there.
    pub fn pod_at(&self, node: usize, gpu: usize) -> Option<&Pod> {
        let slot = gpu * self.plan.nodes.len() + node;
        self.pods.iter().find(|pod| pod.slot == slot)
    }

    /// The node a pod runs on.
    pub fn node_of(&self, pod: &Pod) -> &NodeName {
        &self.plan.nodes[pod.slot % self.plan.nodes.len()]
    }

    /// How many pods run on `node`.
    pub fn pods_on(&self, node: &NodeName) -> usize {
        self.pods.iter().filter(|pod| self.node_of(pod) == node).count()
    }

    /// What the cluster is made of.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The Deployment's replicas, as ordered: pods exist as soon as they are wanted.
    pub fn replicas(&self) -> u32 {
        self.pods.len() as u32
    }

    /// Pods that serve.
    pub fn ready(&self) -> u32 {
        self.pods.iter().filter(|pod| pod.ready_since.is_some()).count() as u32
    }

    /// The Deployment as the HPA sees it.
    pub fn scale_target(&self) -> Scale {
        Scale { spec: self.replicas(), status: self.replicas(), ready: self.ready() }
    }

    /// Grows with every change that Kubernetes would report.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    fn create(&mut self, now: Timestamp) {
        let is_free = |slot: &usize| self.pods.iter().all(|pod| pod.slot != *slot);
        let slot = (0..).find(is_free).expect("there is always a next slot");
        self.pods.push(Pod {
            name: format!("{}-{}", self.plan.deployment, self.created),
            slot,
            created: now,
            ready_since: None,
            utilization: LOADING_UTILIZATION,
            memory_mib: MEMORY_FREE_MIB,
            requests: None,
        });
        self.created += 1;
    }
}

impl Pod {
    /// Its part in the load: none while loading, then growing to 1.
    fn weight(&self, settle: Duration, now: Timestamp) -> f64 {
        self.ready_since.map_or(0.0, |since| {
            (now.since(since).as_secs_f64() / settle.as_secs_f64()).clamp(0.05, 1.0)
        })
    }

    fn serve(&mut self, load: f64, total: f64, plan: &Plan, now: Timestamp) {
        if self.ready_since.is_some() {
            let share = self.weight(plan.settle, now) / total;
            self.utilization = (load * share).min(100.0);
            if let Some(slots) = plan.slots {
                let running = (load * share).min(slots);
                self.requests = Some(Requests { running, waiting: load * share - running });
                self.utilization = 100.0 * running / slots;
            }
            self.memory_mib = MEMORY_SERVING_MIB;
        } else {
            let loaded = now.since(self.created).as_secs_f64() / plan.model_load.as_secs_f64();
            self.memory_mib = MEMORY_FREE_MIB + (MEMORY_SERVING_MIB - MEMORY_FREE_MIB) * loaded;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(replicas: u32) -> Cluster {
        let plan = Plan {
            deployment: "vllm".into(),
            nodes: ["a", "b", "c"].map(NodeName::from).to_vec(),
            gpus_per_node: 2,
            model_load: Duration::from_secs(3),
            settle: Duration::from_secs(2),
            slots: None,
        };
        Cluster::new(plan, replicas, 0.0)
    }

    fn seconds(seconds: i64) -> Timestamp {
        Timestamp::from_millis(seconds * 1_000)
    }

    fn utilization(cluster: &Cluster) -> Vec<f64> {
        cluster.pods().iter().map(|pod| pod.utilization).collect()
    }

    #[test]
    fn pods_take_the_nodes_in_turn_and_serve_only_when_loaded() {
        let mut cluster = cluster(1);
        cluster.scale(4, seconds(10));
        cluster.tick(240.0, seconds(12));
        assert_eq!(utilization(&cluster), [100.0, 2.0, 2.0, 2.0]);
        let nodes: Vec<_> =
            cluster.pods().iter().map(|pod| cluster.node_of(pod).as_str()).collect();
        assert_eq!(nodes, ["a", "b", "c", "a"]);
        assert_eq!(cluster.pod_at(0, 1).map(|pod| pod.name.as_str()), Some("vllm-3"));
        let before = cluster.revision();
        cluster.tick(240.0, seconds(13));
        assert_eq!(cluster.revision(), before + 3, "three pods became Ready");
        cluster.tick(240.0, seconds(15));
        assert_eq!(utilization(&cluster), [60.0; 4]);
    }

    #[test]
    fn a_new_pod_s_share_grows_so_that_the_total_does_not_jump() {
        let mut cluster = cluster(1);
        cluster.scale(2, seconds(0));
        let mut last = 80.0;
        for tenth in 30..60 {
            cluster.tick(80.0, Timestamp::from_millis(100 * tenth));
            let first = utilization(&cluster)[0];
            assert!((last - first).abs() < 5.0, "{last} to {first}");
            last = first;
        }
        assert_eq!(utilization(&cluster), [40.0, 40.0]);
    }

    #[test]
    fn requests_beyond_the_slots_wait_in_the_pod() {
        let mut cluster = cluster(1);
        cluster.plan.slots = Some(16.0);
        cluster.tick(40.0, seconds(1));
        let said = cluster.pods()[0].requests;
        assert_eq!(said, Some(Requests { running: 16.0, waiting: 24.0 }));
        assert_eq!(utilization(&cluster), [100.0]);
    }

    #[test]
    fn the_loading_pods_go_first_then_the_newest_and_names_are_never_reused() {
        let names = |cluster: &Cluster| -> Vec<String> {
            cluster.pods().iter().map(|pod| pod.name.clone()).collect()
        };
        let mut cluster = cluster(3);
        cluster.scale(4, seconds(10));
        cluster.scale(2, seconds(11));
        assert_eq!(names(&cluster), ["vllm-0", "vllm-1"]);
        cluster.scale(3, seconds(12));
        assert_eq!(names(&cluster), ["vllm-0", "vllm-1", "vllm-4"]);
        assert_eq!(cluster.pods()[2].slot, 2, "the free GPU is used again");
        assert_eq!(cluster.scale_target(), Scale { spec: 3, status: 3, ready: 2 });
    }
}
