//! The simulated cluster: pods with an engine and a GPU each, and the router in front of them.
//!
//! Guarantees: a request goes to the ready pod with the fewest requests, and waits in the router
//! while there is none; no request is lost: what a pod that is deleted has not finished in its grace
//! period begins anew elsewhere. Scaling down takes pods that are not ready first, then the newest,
//! as a ReplicaSet does. Times are seconds since the run began; no clock is read.

use std::collections::VecDeque;

use super::engine::{Engine, Finished, Pending};
use super::figures::Figures;

/// `terminationGracePeriodSeconds`: what a pod still has goes elsewhere after it.
const GRACE: f64 = 120.0;
/// Utilisation of a GPU onto which a model is being loaded, in percent.
const LOADING_UTILIZATION: f64 = 2.0;
/// Of the GPU's memory, what the engine takes: vLLM's `--gpu-memory-utilization`.
const MEMORY_TAKEN: f64 = 0.9;

/// What is seen of a pod's GPU and engine over one sampling interval.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Said {
    /// Percent of the interval in which a kernel ran.
    pub utilization: f64,
    /// Watts of the GPU.
    pub watts: f64,
    /// Memory in use, in MiB.
    pub memory_mib: f64,
    /// What the engine says; `None` while it loads.
    pub engine: Option<EngineSaid>,
}

/// An engine's gauges and rates.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EngineSaid {
    /// Requests it has no room for yet.
    pub waiting: f64,
    /// Requests it works on.
    pub running: f64,
    /// Percent of the cache in use.
    pub cache: f64,
    /// Tokens a second over the interval.
    pub tokens: f64,
}

/// A pod.
#[derive(Debug)]
pub struct Pod {
    /// Its name, never used twice.
    pub name: String,
    /// Its GPU; `None` while it has none.
    pub gpu: Option<usize>,
    /// When it becomes ready; `None` while it has no GPU.
    ready_at: Option<f64>,
    /// Since when it is ready, or not.
    pub since: f64,
    /// Its engine, once it is ready.
    pub engine: Option<Engine>,
    /// When its grace period ends, once it is being deleted.
    pub deleted: Option<f64>,
    /// What was last seen of it.
    pub said: Said,
}

/// Pods, GPUs and the router.
#[derive(Debug)]
pub struct Cluster {
    figures: Figures,
    gpus: Vec<bool>,
    /// The pods, oldest first.
    pub pods: Vec<Pod>,
    /// `spec.replicas`.
    pub ordered: u32,
    /// Requests that found no pod.
    pub queue: VecDeque<Pending>,
    /// Requests that were answered.
    pub finished: Vec<Finished>,
    made: u32,
    now: f64,
    /// GPU-seconds held by pods so far.
    pub gpu_seconds: f64,
    /// Joules of the GPUs that pods held.
    pub joules: f64,
}

impl Cluster {
    /// A cluster of `gpus` GPUs without a pod.
    pub fn new(figures: Figures, gpus: usize) -> Self {
        Self {
            figures,
            gpus: vec![false; gpus],
            pods: Vec::new(),
            ordered: 0,
            queue: VecDeque::new(),
            finished: Vec::new(),
            made: 0,
            now: 0.0,
            gpu_seconds: 0.0,
            joules: 0.0,
        }
    }

    /// Orders `replicas` at the moment reached.
    pub fn order(&mut self, replicas: u32) {
        self.ordered = replicas;
        let wanted = replicas as usize;
        while self.existing() < wanted {
            let name = format!("llm-{}", self.made);
            self.made += 1;
            let (gpu, engine, deleted, said) = (None, None, None, Said::default());
            self.pods.push(Pod {
                name,
                gpu,
                ready_at: None,
                since: self.now,
                engine,
                deleted,
                said,
            });
        }
        while self.existing() > wanted {
            self.delete_one();
        }
        self.settle();
    }

    /// Orders `replicas` that are ready at once, as if they had always been there.
    pub fn begin_with(&mut self, replicas: u32) {
        self.order(replicas);
        for pod in &mut self.pods {
            pod.ready_at = Some(self.now);
        }
        self.settle();
    }

    fn existing(&self) -> usize {
        self.pods.iter().filter(|pod| pod.deleted.is_none()).count()
    }

    fn delete_one(&mut self) {
        let exists = |pod: &&mut Pod| pod.deleted.is_none();
        let worth = |pod: &&mut Pod| (pod.engine.is_some(), -pod.since);
        let victim = self.pods.iter_mut().rev().filter(exists).min_by(|a, b| {
            let (a, b) = (worth(a), worth(b));
            a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))
        });
        if let Some(pod) = victim {
            pod.deleted = Some(self.now + GRACE);
        }
    }

    /// A request arrives at the moment reached.
    pub fn arrive(&mut self, pending: Pending) {
        self.queue.push_back(pending);
        self.dispatch();
    }

    fn dispatch(&mut self) {
        let now = self.now;
        while !self.queue.is_empty() {
            let serving = self.pods.iter_mut().filter(|pod| pod.deleted.is_none());
            let engines = serving.filter_map(|pod| pod.engine.as_mut());
            let Some(idlest) = engines.min_by_key(|e| e.running() + e.waiting()) else { return };
            let Some(pending) = self.queue.pop_front() else { return };
            idlest.offer(pending, now);
        }
    }

    /// Lets time pass until `until`.
    pub fn advance(&mut self, until: f64) {
        while self.now < until {
            let changes = self.pods.iter().flat_map(|pod| [pod.ready_at, pod.deleted]).flatten();
            let next = changes.filter(|at| *at > self.now).fold(until, f64::min);
            let passed = next - self.now;
            let held = self.pods.iter().filter(|pod| pod.gpu.is_some()).count() as f64;
            self.gpu_seconds += held * passed;
            self.joules += held * passed * self.figures.idle_watts;
            for engine in self.pods.iter_mut().filter_map(|pod| pod.engine.as_mut()) {
                engine.advance(next, &mut self.finished);
            }
            self.now = next;
            self.settle();
        }
    }

    /// Takes pods away that are done, gives GPUs to those that wait, and begins those that are ready.
    fn settle(&mut self) {
        let now = self.now;
        for pod in self.pods.iter_mut().filter(|pod| pod.deleted.is_some_and(|end| end <= now)) {
            let left = pod.engine.as_mut().map(Engine::abandon).unwrap_or_default();
            for pending in left.into_iter().rev() {
                self.queue.push_front(pending);
            }
        }
        let gpus = &mut self.gpus;
        self.pods.retain(|pod| {
            let is_done = pod.engine.as_ref().is_none_or(Engine::is_idle);
            let stays = pod.deleted.is_none() || !is_done;
            if !stays && let Some(gpu) = pod.gpu {
                gpus[gpu] = false;
            }
            stays
        });
        for pod in &mut self.pods {
            if pod.gpu.is_none()
                && let Some(free) = gpus.iter().position(|taken| !taken)
            {
                gpus[free] = true;
                pod.gpu = Some(free);
                let Figures { schedule, load, .. } = self.figures;
                pod.ready_at = Some(now + (schedule + load).as_secs_f64());
            }
            if pod.engine.is_none() && pod.ready_at.is_some_and(|at| at <= now) {
                pod.engine = Some(Engine::new(self.figures, now));
                pod.since = now;
            }
        }
        self.dispatch();
    }

    /// Looks at every pod's GPU and engine, `interval` seconds after the last look.
    pub fn look(&mut self, interval: f64) {
        let Figures { memory_mib, idle_watts, .. } = self.figures;
        for pod in self.pods.iter_mut().filter(|pod| pod.gpu.is_some()) {
            let memory_mib = memory_mib * MEMORY_TAKEN;
            let Some(engine) = &mut pod.engine else {
                let utilization = LOADING_UTILIZATION;
                pod.said = Said { utilization, watts: idle_watts, memory_mib, engine: None };
                continue;
            };
            let work = engine.take_work();
            self.joules += work.joules;
            pod.said = Said {
                // A step that ends after the interval is billed to it as a whole.
                utilization: (work.busy / interval * 100.0).min(100.0),
                watts: idle_watts + work.joules / interval,
                memory_mib,
                engine: Some(EngineSaid {
                    waiting: engine.waiting() as f64,
                    running: engine.running() as f64,
                    cache: engine.cache_usage() * 100.0,
                    tokens: f64::from(work.tokens) / interval,
                }),
            };
        }
    }

    /// The moment reached.
    pub fn now(&self) -> f64 {
        self.now
    }

    /// Pods that are ready and not being deleted.
    pub fn ready(&self) -> u32 {
        let ready = self.pods.iter().filter(|pod| pod.engine.is_some() && pod.deleted.is_none());
        u32::try_from(ready.count()).unwrap_or(u32::MAX)
    }

    /// What engines say, of pods that are not being deleted.
    pub fn engines(&self) -> impl Iterator<Item = EngineSaid> {
        let here = self.pods.iter().filter(|pod| pod.deleted.is_none());
        here.filter_map(|pod| pod.said.engine)
    }

    /// Whether no request is anywhere.
    pub fn is_idle(&self) -> bool {
        let mut engines = self.pods.iter().filter_map(|pod| pod.engine.as_ref());
        self.queue.is_empty() && engines.all(Engine::is_idle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::trace::Request;

    fn pending(id: usize) -> Pending {
        Pending::new(id, Request { at: 0.0, input: 100, output: 2_000 })
    }

    #[test]
    fn a_request_waits_for_the_first_pod_and_none_is_lost() {
        let figures = Figures::default();
        let mut cluster = Cluster::new(figures, 2);
        cluster.arrive(pending(0));
        cluster.order(1);
        cluster.advance(92.0);
        assert_eq!((cluster.ready(), cluster.queue.len()), (0, 1), "it loads");
        cluster.advance(94.0);
        assert_eq!((cluster.ready(), cluster.queue.len()), (1, 0));
        cluster.order(0);
        assert_eq!((cluster.ready(), cluster.pods.len()), (0, 1), "it finishes what it has");
        cluster.advance(200.0);
        assert_eq!((cluster.finished.len(), cluster.pods.len()), (1, 0));
        let held = cluster.gpu_seconds;
        cluster.advance(300.0);
        assert_eq!(cluster.gpu_seconds.to_bits(), held.to_bits(), "no GPU is held any more");
    }

    #[test]
    fn what_the_grace_period_cuts_off_begins_anew_elsewhere() {
        let mut cluster =
            Cluster::new(Figures { load: std::time::Duration::ZERO, ..Figures::default() }, 2);
        cluster.begin_with(1);
        cluster.arrive(Pending::new(0, Request { at: 0.0, input: 100, output: 20_000 }));
        cluster.advance(10.0);
        cluster.order(0);
        cluster.advance(131.0);
        assert_eq!((cluster.pods.len(), cluster.queue.len()), (0, 1));
        cluster.order(1);
        cluster.advance(1_000.0);
        assert_eq!(cluster.finished.len(), 1);
        assert!(cluster.is_idle());
    }

    #[test]
    fn pods_that_load_go_first_and_a_gpu_is_never_given_twice() {
        let mut cluster = Cluster::new(Figures::default(), 3);
        cluster.begin_with(2);
        cluster.order(5);
        let with_gpu = cluster.pods.iter().filter(|pod| pod.gpu.is_some()).count();
        assert_eq!(with_gpu, 3, "two wait for a GPU");
        cluster.order(2);
        assert_eq!((cluster.ready(), cluster.pods.len()), (2, 2));
        cluster.order(1);
        assert_eq!(cluster.pods[0].name, "llm-0");
    }
}
