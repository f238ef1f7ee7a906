//! The one loop: the world moves, KEDA polls, the HPA syncs, and halfway an agent is killed.
//!
//! What happens is told as `Event`s and judged as a `Story`; nothing is printed here.

use std::time::Duration;

use shared::identity::NodeName;
use shared::time::Timestamp;
use tokio::sync::mpsc;
use tokio::time::{Interval, MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use tonic::Status;

use crate::caller::Observation;
use crate::hpa::{Behavior, Decision, Hpa, Metric, MetricType, Settings};
use crate::keda::{Action, Activity, Keda, Rules, Why};
use crate::load::{Load, Phase};
use crate::stage::{Scaling, Stage};
use crate::story::{Fact, Report, Story};
use crate::{explain, pace};

/// The agent that is killed, and how far through the story.
const VICTIM: usize = 1;
const KILLED_AT: f64 = 0.5;

/// What happens.
#[derive(Clone, Debug)]
pub enum Event {
    /// Another part of the story begins.
    Began(Phase),
    /// The HPA has looked.
    Synced(Sync),
    /// KEDA has set the replicas.
    Scaled(u32, Why),
    /// The agent of a node is gone, and so many pods are out of sight.
    Killed(NodeName, usize),
    /// It runs again.
    Restarted(NodeName),
    /// An answer would mislead the HPA.
    Wrong(String),
}

/// One look of the HPA.
#[derive(Clone, Debug)]
pub struct Sync {
    /// The cluster then.
    pub fact: Fact,
    /// What the gateway answered, or its refusal.
    pub answer: Result<Observation, String>,
    /// What the HPA makes of it.
    pub decision: Decision,
    /// The gateway's own words for its value.
    pub reason: Option<String>,
}

/// How far the killing of an agent is.
#[derive(Clone, Copy, Debug)]
enum Victim {
    Alive,
    Away { since: Duration },
    Back,
}

/// A run.
#[derive(Debug)]
pub struct Simulation<Tell> {
    stage: Stage,
    load: Load,
    began: Timestamp,
    keda: Keda,
    hpa: Hpa,
    story: Story,
    phase: Option<Phase>,
    victim: Victim,
    tell: Tell,
}

impl<Tell: FnMut(Event)> Simulation<Tell> {
    /// A run on `stage` that begins now and tells what happens.
    pub fn new(stage: Stage, scaling: Scaling, load: Load, tell: Tell) -> Self {
        let Scaling { target, min, max } = scaling;
        let cooldown = pace::COOLDOWN;
        let settings = Settings {
            behavior: Behavior::Unset,
            stabilization: pace::STABILIZATION,
            ..Settings::upstream(min.max(1), max)
        };
        Self {
            began: stage.clock.now(),
            keda: Keda::new(Rules { min, cooldown }),
            hpa: Hpa::new(settings),
            story: Story::new(target, min),
            phase: None,
            victim: Victim::Alive,
            stage,
            load,
            tell,
        }
    }

    /// Runs to the end of the load, or until `shutdown`; then stops everything.
    ///
    /// # Errors
    /// When a file cannot be written, or an agent or the gateway cannot be started or stopped.
    pub async fn run(mut self, shutdown: &CancellationToken) -> anyhow::Result<Report> {
        let (activate, mut activations) = mpsc::channel(1);
        let listener = tokio::spawn(self.stage.caller.clone().listen(activate));
        let [mut tick, mut poll, mut sync] = [pace::TICK, pace::POLL, pace::SYNC].map(every);
        while self.elapsed() < self.load.length {
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                _ = tick.tick() => self.advance().await?,
                Some(()) = activations.recv() => self.activity(Activity::Active)?,
                _ = sync.tick() => self.sync().await?,
                _ = poll.tick() => self.poll().await?,
            }
        }
        drop(activations);
        listener.await?;
        self.stage.close().await?;
        Ok(self.story.report().clone())
    }

    fn elapsed(&self) -> Duration {
        self.stage.clock.now().since(self.began)
    }

    fn fact(&self) -> Fact {
        let at = self.elapsed();
        Fact {
            at,
            phase: self.load.phase(at),
            load: self.load.at(at),
            replicas: self.stage.cluster.replicas(),
            ready: self.stage.cluster.ready(),
        }
    }

    /// A tick of the world.
    async fn advance(&mut self) -> anyhow::Result<()> {
        let fact = self.fact();
        if self.phase.replace(fact.phase) != Some(fact.phase) {
            (self.tell)(Event::Began(fact.phase));
        }
        self.stage.tick(fact.load)?;
        self.story.fact(fact);
        self.lose_an_agent(fact).await
    }

    /// Kills an agent once everything is as it should be, and brings it back.
    async fn lose_an_agent(&mut self, fact: Fact) -> anyhow::Result<()> {
        let agent = &mut self.stage.agents[VICTIM];
        let is_time = fact.at >= self.load.moment(KILLED_AT) && fact.phase == Phase::Peak;
        match self.victim {
            Victim::Alive if is_time && fact.ready >= self.story.report().needed => {
                agent.stop().await?;
                self.story.agent_killed();
                self.victim = Victim::Away { since: fact.at };
                let unseen = self.stage.cluster.pods_on(agent.node());
                (self.tell)(Event::Killed(agent.node().clone(), unseen));
            }
            Victim::Away { since } if fact.at >= since + pace::AGENT_AWAY => {
                agent.start()?;
                self.story.agent_returned();
                self.victim = Victim::Back;
                (self.tell)(Event::Restarted(agent.node().clone()));
            }
            Victim::Alive | Victim::Away { .. } | Victim::Back => {}
        }
        Ok(())
    }

    /// KEDA looks.
    async fn poll(&mut self) -> anyhow::Result<()> {
        let answer = self.ask().await;
        self.activity(match answer {
            Ok(answer) if answer.active => Activity::Active,
            Ok(_) => Activity::Inactive,
            Err(_) => Activity::Error,
        })
    }

    /// KEDA acts.
    fn activity(&mut self, activity: Activity) -> anyhow::Result<()> {
        let now = self.stage.clock.now();
        let action = self.keda.decide(now, self.stage.cluster.replicas(), activity);
        let Action::Scale(replicas, why) = action else {
            return Ok(());
        };
        (self.tell)(Event::Scaled(replicas, why));
        self.stage.scale(replicas)
    }

    /// The HPA looks and acts; at zero it does neither.
    async fn sync(&mut self) -> anyhow::Result<()> {
        let fact = self.fact();
        if fact.replicas == 0 {
            return Ok(());
        }
        let answer = self.ask().await;
        let metric = answer.as_ref().ok().and_then(metric);
        let (now, scale) = (self.stage.clock.now(), self.stage.cluster.scale_target());
        let decision = self.hpa.sync(now, scale, metric);
        let reason = explain::reason(self.stage.http, &self.stage.key).await;
        let answer = answer.map_err(|refusal| refusal.message().to_owned());
        (self.tell)(Event::Synced(Sync { fact, answer, decision, reason }));
        self.stage.scale(decision.desired)
    }

    /// Asks the gateway, and judges what it says.
    async fn ask(&mut self) -> Result<Observation, Status> {
        let answer = self.stage.caller.fetch().await;
        let told = answer.as_ref().map_err(Status::message);
        if let Some(wrong) = self.story.answer(told) {
            (self.tell)(Event::Wrong(wrong.to_owned()));
        }
        answer
    }
}

fn metric(answer: &Observation) -> Option<Metric> {
    Some(Metric { kind: MetricType::AverageValue, value: answer.value?, target: answer.target })
}

fn every(period: Duration) -> Interval {
    let mut interval = tokio::time::interval(period);
    interval.set_missed_tick_behavior(MissedTickBehavior::Skip);
    interval
}
