//! The second story: users go home, the workload goes to zero, and the router's queue wakes it,
//! with a model that loads for longer than KEDA's cooldown. What its replicas have to do is read at
//! the pages of their engines.
//!
//! It goes by what happens, not by the clock: each part lasts until it is over, or is given up.

use std::collections::BTreeMap;
use std::time::Duration;

use shared::identity::ScaledObjectKey;
use shared::time::Timestamp;
use tokio::sync::mpsc;
use tokio::time::{Interval, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::cluster::Plan;
use crate::feed::ScaledObject;
use crate::hpa::{Behavior, Decision, Hpa, Metric, MetricType, Settings};
use crate::keda::{Action, Activity, Keda, Rules, Why};
use crate::pace;
use crate::router::{Router, SERIES};
use crate::stage::{Setup, Stage, plan};

/// From an order to Ready: longer than the cooldown, so that only the product keeps the pod alive.
pub const MODEL_LOAD: Duration = Duration::from_secs(3);
/// KEDA's `cooldownPeriod`.
pub const COOLDOWN: Duration = Duration::from_secs(2);
/// Requests an engine runs at once.
const SLOTS: f64 = 16.0;
/// Requests in flight by day, and in the morning.
const DAY: f64 = 24.0;
const MORNING: f64 = 40.0;
/// A replica should run 8 requests, and have 5 waiting at most.
const METRIC: &str = "vllm:num_requests_waiting:5,vllm:num_requests_running:8";
/// Replicas by day, and what the morning needs: 24 / 8, 40 / 8.
const BY_DAY: u32 = 3;
/// What the morning's requests need.
pub const NEEDED: u32 = 5;
/// How long a part goes on after all has come about, and when it is given up.
const AFTERGLOW: Duration = Duration::from_millis(1_500);
const PATIENCE: Duration = Duration::from_secs(60);

/// A part of the story.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Three replicas serve.
    Day,
    /// Nobody is there.
    Night,
    /// Requests come to a router with no pod behind it.
    Morning,
}

/// What happens.
#[derive(Clone, Debug)]
pub enum Event {
    /// Another part begins, with so many requests in flight.
    Began(Part, f64),
    /// KEDA has set the replicas, because of a message on the stream or of a poll.
    Scaled {
        /// From.
        from: u32,
        /// To.
        to: u32,
        /// Why.
        why: Why,
        /// Whether the gateway said so by itself.
        pushed: bool,
    },
    /// The HPA has changed the replicas.
    Ordered {
        /// From.
        from: u32,
        /// What it decided.
        decision: Decision,
        /// The value it was given.
        value: f64,
    },
    /// So many of so many pods serve now.
    Ready(u32, u32),
}

/// What was seen.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// The replicas ordered, each change once.
    pub path: Vec<u32>,
    /// Whether a message on the stream woke it, before any poll did.
    pub woken_by_push: bool,
    /// Pods that served and were taken away while there were requests.
    pub killed: u32,
    /// From the first request that waited to the order of a replica.
    pub woken_after: Option<Duration>,
    /// What did not come about.
    pub unfinished: Vec<Part>,
}

/// A run.
struct Night<Tell> {
    stage: Stage,
    router: Router,
    keda: Keda,
    hpa: Hpa,
    report: Report,
    part: Part,
    load: f64,
    ready: u32,
    began: Timestamp,
    tell: Tell,
}

/// Tells the story until its end or `shutdown`, and says what was seen.
///
/// # Errors
/// When gateway or agents cannot be started, or end badly.
pub async fn run(tell: impl FnMut(Event), shutdown: &CancellationToken) -> anyhow::Result<Report> {
    let router = Router::start().await?;
    let stage = Stage::build(setup(&router)).await?;
    stage.warm_up().await?;
    let settings = Settings {
        behavior: Behavior::Unset,
        stabilization: pace::STABILIZATION,
        ..Settings::upstream(1, 8)
    };
    let mut night = Night {
        began: stage.clock.now(),
        keda: Keda::new(Rules { min: 0, cooldown: COOLDOWN }),
        hpa: Hpa::new(settings),
        report: Report::default(),
        part: Part::Day,
        load: DAY,
        ready: BY_DAY,
        stage,
        router,
        tell,
    };
    night.live(shutdown).await?;
    night.stage.close().await?;
    Ok(night.report)
}

fn setup(router: &Router) -> Setup {
    let metadata = [
        ("scalerAddress", "gpu-gateway.keda.svc:6000".to_owned()),
        ("metricType", METRIC.to_owned()),
        ("staleAfter", "2s".to_owned()),
        ("activationWindow", "1s".to_owned()),
        ("demandEndpoint", format!("{}/metrics", router.origin())),
        ("demandMetric", SERIES.to_owned()),
    ];
    let scaled_object = ScaledObject {
        key: ScaledObjectKey::new("ai", "vllm-so"),
        min: 0,
        max: 8,
        cooldown: COOLDOWN,
        metadata: BTreeMap::from(metadata.map(|(key, value)| (key.to_owned(), value))),
    };
    let settle = Duration::from_millis(1);
    let plan = Plan { model_load: MODEL_LOAD, settle, slots: Some(SLOTS), ..plan(8) };
    let demand_allow = vec![router.origin()];
    Setup { scaled_object, plan, replicas: BY_DAY, load: DAY, demand_allow }
}

impl<Tell: FnMut(Event)> Night<Tell> {
    async fn live(&mut self, shutdown: &CancellationToken) -> anyhow::Result<()> {
        let (activate, mut activations) = mpsc::channel(1);
        let listener = tokio::spawn(self.stage.caller.clone().listen(activate));
        let [mut tick, mut poll, mut sync] = [pace::TICK, pace::POLL, pace::SYNC].map(every);
        for (part, load) in [(Part::Day, DAY), (Part::Night, 0.0), (Part::Morning, MORNING)] {
            self.begin(part, load);
            let mut done = None;
            loop {
                tokio::select! {
                    biased;
                    () = shutdown.cancelled() => break,
                    _ = tick.tick() => self.tick()?,
                    Some(()) = activations.recv() => self.activity(Activity::Active, true)?,
                    _ = sync.tick() => self.sync().await?,
                    _ = poll.tick() => self.poll().await?,
                }
                let now = self.stage.clock.now();
                if self.has_come_about() {
                    done = done.or(Some(now));
                }
                if done.is_some_and(|done| now.since(done) >= AFTERGLOW) {
                    break;
                }
                if now.since(self.began) > PATIENCE {
                    self.report.unfinished.push(part);
                    break;
                }
            }
        }
        drop(activations);
        listener.await?;
        Ok(())
    }

    fn begin(&mut self, part: Part, load: f64) {
        (self.part, self.load, self.began) = (part, load, self.stage.clock.now());
        (self.tell)(Event::Began(part, load));
    }

    fn has_come_about(&self) -> bool {
        let (replicas, ready) = (self.stage.cluster.replicas(), self.stage.cluster.ready());
        match self.part {
            Part::Day => ready == BY_DAY,
            Part::Night => replicas == 0,
            Part::Morning => ready >= NEEDED,
        }
    }

    /// A tick of the world: requests wait at the router while no pod serves.
    fn tick(&mut self) -> anyhow::Result<()> {
        self.stage.tick(self.load)?;
        let (replicas, ready) = (self.stage.cluster.replicas(), self.stage.cluster.ready());
        let waits = if ready == 0 { self.load } else { 0.0 };
        self.router.holds(waits as u64);
        if self.report.path.last() != Some(&replicas) {
            self.report.path.push(replicas);
        }
        if std::mem::replace(&mut self.ready, ready) != ready {
            (self.tell)(Event::Ready(ready, replicas));
        }
        Ok(())
    }

    async fn poll(&mut self) -> anyhow::Result<()> {
        let seen = match self.stage.caller.fetch().await {
            Ok(answer) if answer.active => Activity::Active,
            Ok(_) => Activity::Inactive,
            Err(_) => Activity::Error,
        };
        self.activity(seen, false)
    }

    fn activity(&mut self, seen: Activity, pushed: bool) -> anyhow::Result<()> {
        let (now, from) = (self.stage.clock.now(), self.stage.cluster.replicas());
        let Action::Scale(to, why) = self.keda.decide(now, from, seen) else { return Ok(()) };
        if from == 0 {
            self.report.woken_by_push = pushed;
            self.report.woken_after = Some(now.since(self.began));
        }
        (self.tell)(Event::Scaled { from, to, why, pushed });
        self.scale(to)
    }

    async fn sync(&mut self) -> anyhow::Result<()> {
        let scale = self.stage.cluster.scale_target();
        if scale.spec == 0 {
            return Ok(());
        }
        let answer = self.stage.caller.fetch().await.ok();
        let metric = answer.and_then(|answer| {
            let (kind, value) = (MetricType::AverageValue, answer.value?);
            Some(Metric { kind, value, target: answer.target })
        });
        let decision = self.hpa.sync(self.stage.clock.now(), scale, metric);
        if decision.desired != scale.spec
            && let Some(Metric { value, .. }) = metric
        {
            (self.tell)(Event::Ordered { from: scale.spec, decision, value });
        }
        self.scale(decision.desired)
    }

    fn scale(&mut self, replicas: u32) -> anyhow::Result<()> {
        let before = self.stage.cluster.ready();
        self.stage.scale(replicas)?;
        if self.load > 0.0 {
            self.report.killed += before.saturating_sub(self.stage.cluster.ready());
        }
        if self.report.path.last() != Some(&replicas) {
            self.report.path.push(replicas);
        }
        Ok(())
    }
}

impl Report {
    /// What went wrong in a run that ended by itself: nothing, if all is well.
    pub fn problems(&self) -> Vec<String> {
        let path = &self.path;
        let mut problems = Vec::new();
        let mut demand = |holds: bool, problem: String| {
            if !holds {
                problems.push(problem);
            }
        };
        let wakes = path.starts_with(&[BY_DAY, 0, 1]);
        demand(wakes, format!("it did not go from {BY_DAY} to 0 and to 1: {path:?}"));
        demand(path.last() == Some(&NEEDED), format!("it did not end at {NEEDED}: {path:?}"));
        let grows = path.iter().skip(1).is_sorted();
        demand(grows, format!("it shrank while requests were there: {path:?}"));
        demand(self.killed == 0, format!("{} serving pods were killed", self.killed));
        demand(self.unfinished.is_empty(), format!("given up: {:?}", self.unfinished));
        problems
    }
}

fn every(period: Duration) -> Interval {
    let mut interval = interval(period);
    interval.set_missed_tick_behavior(MissedTickBehavior::Skip);
    interval
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_story_is_good_only_if_it_slept_woke_grew_and_killed_nobody() {
        let good = Report { path: vec![3, 0, 1, 4, 5], ..Report::default() };
        assert_eq!(good.problems(), Vec::<String>::new());
        for (path, killed, named) in [
            (vec![3, 1, 5], 0, "from 3 to 0 and to 1"),
            (vec![3, 0, 1, 4], 0, "did not end at 5"),
            (vec![3, 0, 1, 0, 1, 5], 0, "it shrank"),
            (vec![3, 0, 1, 5], 2, "2 serving pods"),
        ] {
            let bad = Report { path, killed, ..Report::default() };
            assert!(bad.problems().join("; ").contains(named), "{bad:?}");
        }
    }
}
