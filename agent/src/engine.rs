//! The inference engines of this node's pods, read as the node brief says.
//!
//! Guarantees: only pods that the brief names are read, at the addresses it names, unless these are
//! no pod's: loopback, link-local, a cloud's metadata service; at most 16 at a time, spread over the
//! interval. A pod whose engine cannot be read has failed readings with the
//! reason, not old ones; a pod that has left the brief has none. A pod that the source itself
//! speaks for is not read.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use proto::convert::MAX_ENGINES;
use shared::address::refusal;
use shared::brief::{Brief, BriefedPod, EngineTarget};
use shared::frame::Engine;
use shared::identity::{PodKey, PodUid};
use shared::process::Clock;
use shared::time::Timestamp;
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::{info, warn};

use crate::device::{Observation, ObservedEngine};

/// A page that a person names.
pub mod address;
/// How every engine names what.
pub mod dialect;
/// The text of a page → whose it is, and its series.
mod page;
/// Counters → rates and means.
pub mod rate;
/// A page and the ones before it → readings.
pub mod reader;
/// One GET.
pub mod scrape;
/// One pod's pages.
mod target;

use reader::Reader;
use scrape::Limits;
use target::Scrape;

/// Time between two scrapes of an engine where nothing else is said.
pub const DEFAULT_INTERVAL: Duration = Duration::from_secs(1);

/// Engines that are read at a time.
const AT_ONCE: usize = 16;

/// Scrapes further apart than this, or than three intervals, are not compared.
const MAX_GAP: Duration = Duration::from_secs(30);

/// The newest readings of the node's engines; clones share them.
#[derive(Clone, Default)]
pub struct Engines {
    read: Arc<Mutex<HashMap<PodKey, Read>>>,
    /// Pods that the source speaks for.
    replayed: watch::Sender<HashSet<PodKey>>,
}

/// One pod's newest scrape, written by the task that reads it.
struct Read {
    uid: PodUid,
    newest: Newest,
}

type Newest = Arc<Mutex<Option<Scrape>>>;

impl Engines {
    /// Adds the engines that were read to what the source says at `now`. An engine that the source
    /// itself speaks for stays as it is, and is not read from now on.
    pub fn add(&self, observation: &mut Observation, now: Timestamp) {
        let replayed: HashSet<PodKey> =
            observation.engines.iter().map(|engine| engine.engine.pod.clone()).collect();
        let read = self.read.lock();
        let mut pods: Vec<_> = read.iter().filter(|(pod, _)| !replayed.contains(pod)).collect();
        pods.sort_by_key(|(pod, _)| *pod);
        for (pod, Read { uid, newest }) in pods {
            let newest = newest.lock();
            let Some(Scrape { at, readings, .. }) = &*newest else { continue };
            let room = MAX_ENGINES.saturating_sub(observation.engines.len());
            let readings = readings.iter().take(room);
            observation.engines.extend(readings.map(|(labels, readings)| ObservedEngine {
                engine: Engine { pod: pod.clone(), uid: Some(uid.clone()), labels: labels.clone() },
                age: now.since(*at),
                readings: readings.clone(),
            }));
        }
        self.replayed.send_if_modified(|known| {
            let changed = *known != replayed;
            if changed {
                *known = replayed;
            }
            changed
        });
    }
}

/// Reads engines.
pub struct Scraper {
    /// Time between two scrapes of an engine.
    pub interval: Duration,
    /// What a scrape may take.
    pub limits: Limits,
    /// What the gateways say of this node.
    pub briefs: watch::Receiver<Option<Arc<Brief>>>,
    /// Where readings go.
    pub engines: Engines,
    /// Whether pods may have addresses of loopback: in try-outs on one machine, with the gateway
    /// there too. On a node these are the node's own.
    pub loopback: bool,
    /// The clock ages are counted on.
    pub clock: Clock,
}

/// A pod that is being read.
struct Running {
    ip: IpAddr,
    uid: PodUid,
    target: watch::Sender<EngineTarget>,
    _task: AbortOnDropHandle<()>,
}

impl Scraper {
    /// Reads until `shutdown` is cancelled.
    pub async fn run(mut self, shutdown: CancellationToken) {
        let permits = Arc::new(Semaphore::new(AT_ONCE));
        let mut replayed = self.engines.replayed.subscribe();
        let mut running: HashMap<PodKey, Running> = HashMap::new();
        loop {
            let brief = self.briefs.borrow_and_update().clone().unwrap_or_default();
            let without = replayed.borrow_and_update().clone();
            self.follow(&brief, &without, &mut running, &permits);
            tokio::select! {
                () = shutdown.cancelled() => break,
                changed = self.briefs.changed() => if changed.is_err() { break },
                // The sender is this scraper's own.
                _ = replayed.changed() => {}
            }
        }
        drop(running);
        self.engines.read.lock().clear();
    }

    /// Starts and ends tasks so that exactly the brief's engines are read.
    fn follow(
        &self,
        brief: &Brief,
        without: &HashSet<PodKey>,
        running: &mut HashMap<PodKey, Running>,
        permits: &Arc<Semaphore>,
    ) {
        let wanted: HashMap<&PodKey, (&BriefedPod, IpAddr, &EngineTarget)> = brief
            .pods
            .iter()
            .filter(|pod| !pod.finished && !without.contains(&pod.key))
            .filter_map(|pod| Some((&pod.key, (pod, address(pod)?, pod.engine.as_ref()?))))
            .collect();
        let selections: usize = wanted.values().map(|(_, _, target)| target.labels.len()).sum();
        if selections > MAX_ENGINES {
            warn!(selections, "only the first {MAX_ENGINES} selections of engines are reported");
        }
        running.retain(|key, task| {
            let stays =
                wanted.get(key).is_some_and(|(pod, ip, _)| pod.uid == task.uid && *ip == task.ip);
            if !stays {
                self.engines.read.lock().remove(key);
            }
            stays
        });
        for (key, (pod, ip, target)) in wanted {
            match running.get(key) {
                Some(task) => {
                    task.target.send_if_modified(|known| {
                        let changed = known != target;
                        if changed {
                            known.clone_from(target);
                        }
                        changed
                    });
                }
                None => {
                    running.insert(key.clone(), self.start(pod, ip, target, permits.clone()));
                }
            }
        }
    }

    /// Why a pod at `ip` is not read, where that is so.
    fn refusal(&self, ip: IpAddr) -> Option<String> {
        if self.loopback && ip.is_loopback() {
            return None;
        }
        refusal(ip).map(|kind| format!("{ip} is {kind}, which no pod's address is; it is not read"))
    }

    fn start(
        &self,
        pod: &BriefedPod,
        ip: IpAddr,
        target: &EngineTarget,
        permits: Arc<Semaphore>,
    ) -> Running {
        info!(pod = %pod.key, %ip, "engine is read from now on");
        let newest = Newest::default();
        let read = Read { uid: pod.uid.clone(), newest: newest.clone() };
        self.engines.read.lock().insert(pod.key.clone(), read);
        let (target, targets) = watch::channel(target.clone());
        let max_gap = MAX_GAP.max(self.interval.saturating_mul(3));
        let engine = PodEngine {
            pod: pod.key.clone(),
            engine: target::Engine::new(ip, self.refusal(ip), Reader::new(max_gap)),
            targets,
            newest,
            limits: self.limits,
            clock: self.clock,
            permits,
        };
        let task = tokio::spawn(engine.run(phase(&pod.uid, self.interval), self.interval));
        Running { ip, uid: pod.uid.clone(), target, _task: AbortOnDropHandle::new(task) }
    }
}

/// The task that reads one pod.
struct PodEngine {
    pod: PodKey,
    engine: target::Engine,
    targets: watch::Receiver<EngineTarget>,
    newest: Newest,
    limits: Limits,
    clock: Clock,
    permits: Arc<Semaphore>,
}

impl PodEngine {
    async fn run(mut self, phase: Duration, interval: Duration) {
        let mut ticks = interval_at(Instant::now() + phase, interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut was_good = None;
        loop {
            ticks.tick().await;
            let Ok(_permit) = self.permits.acquire().await else { return };
            let target = self.targets.borrow_and_update().clone();
            let scrape = self.engine.scrape(&target, self.limits, self.clock).await;
            let is_good = scrape.trouble.is_none();
            if was_good.replace(is_good) != Some(is_good) {
                match &scrape.trouble {
                    Some(reason) => warn!(pod = %self.pod, %reason, "engine cannot be read"),
                    None => info!(pod = %self.pod, "engine is read"),
                }
            }
            *self.newest.lock() = Some(scrape);
        }
    }
}

/// Where the pod is, once it has an address.
fn address(pod: &BriefedPod) -> Option<IpAddr> {
    let ip = pod.ip.as_deref()?;
    ip.parse().inspect_err(|error| warn!(pod = %pod.key, ip, %error, "not an address")).ok()
}

/// When in the interval the pod's turn is; the same on every start, so that the node's engines are
/// not all asked at once.
fn phase(uid: &PodUid, interval: Duration) -> Duration {
    let mut hasher = DefaultHasher::new();
    uid.hash(&mut hasher);
    interval.mul_f64(f64::from(hasher.finish() as u32) / f64::from(u32::MAX))
}
