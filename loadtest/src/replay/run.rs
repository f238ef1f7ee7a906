//! One policy over one trace: the loop that closes it.
//!
//! Guarantees: the same trace, figures and policy give the same outcome to the last digit. The HPA
//! looks every 15 s, KEDA polls every 30 s, and a wake-up that is pushed arrives at the next look of
//! the demand source (500 ms), as in a cluster. No clock is read.

use std::time::Duration;

use super::cluster::Cluster;
use super::engine::Pending;
use super::figures::Figures;
use super::outcome::{Outcome, Point};
use super::policy::{Policy, Watch, together};
use super::trace::Request;
use super::view::{Answer, moment};
use crate::hpa::{Hpa, Scale, Settings};
use crate::keda::{Action, Activity, Keda, Rules};

/// How often the demand source is looked at while nothing is ready, and the world moves: seconds.
const STEP: f64 = 0.5;
/// How often agents sample, in steps.
const SAMPLE: u32 = 2;
/// The HPA's sync period, in steps.
const SYNC: u32 = 30;
/// KEDA's `pollingInterval`, in steps.
const POLL: u32 = 60;
/// How often a point of the chart is noted, in steps.
const POINT: u32 = 20;
/// The longest that is waited for the last answers after the tail, in seconds.
const LAST: f64 = 3_600.0;

/// What is run.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// What a replica is made of.
    pub figures: Figures,
    /// GPUs of the cluster, and `maxReplicaCount`.
    pub gpus: u32,
    /// Replicas that are ready when it begins, where the policy would not have fewer anyway.
    pub begin: u32,
    /// Nothing happens for this long before the first request.
    pub lead: Duration,
    /// Nothing comes for this long after the last.
    pub tail: Duration,
    /// KEDA's `cooldownPeriod`.
    pub cooldown: Duration,
    /// The HPA's downscale stabilization.
    pub stabilization: Duration,
}

impl Default for Setting {
    fn default() -> Self {
        Self {
            figures: Figures::default(),
            gpus: 16,
            begin: 0,
            lead: Duration::from_secs(30),
            tail: Duration::from_secs(1_200),
            cooldown: Duration::from_secs(300),
            stabilization: Duration::from_secs(300),
        }
    }
}

struct Loop<'a> {
    is_fixed: bool,
    cluster: Cluster,
    watch: Watch,
    hpa: Hpa,
    keda: Keda,
    was_active: bool,
    requests: &'a [Request],
    lead: f64,
    next: usize,
    outcome: Outcome,
}

/// Runs `policy` over `requests`, which begin after the lead.
///
/// # Errors
/// When the policy's trigger is wrong.
pub fn run(policy: &Policy, requests: &[Request], setting: Setting) -> anyhow::Result<Outcome> {
    let Setting { figures, gpus, begin, lead, tail, cooldown, stabilization } = setting;
    let min = policy.minimum();
    let is_fixed = matches!(policy, Policy::Fixed(_));
    let settings = Settings { stabilization, ..Settings::upstream(min.max(1), gpus.max(min)) };
    let interval = Duration::from_secs_f64(STEP * f64::from(SAMPLE));
    let mut run = Loop {
        is_fixed,
        cluster: Cluster::new(figures, gpus as usize),
        watch: Watch::new(policy.clone(), gpus as usize, interval)?,
        hpa: Hpa::new(settings),
        keda: Keda::new(Rules { min, cooldown }),
        was_active: false,
        requests,
        lead: lead.as_secs_f64(),
        next: 0,
        outcome: Outcome::default(),
    };
    run.cluster.begin_with(if is_fixed { min } else { begin.max(min) });
    let end = lead.as_secs_f64() + requests.last().map_or(0.0, |last| last.at) + tail.as_secs_f64();
    let mut step = 0_u32;
    loop {
        let now = f64::from(step) * STEP;
        let is_over = now >= end && run.next == requests.len() && run.cluster.is_idle();
        if is_over {
            break;
        }
        if now >= end + LAST {
            break;
        }
        run.until(now);
        run.step(step);
        step += 1;
    }
    Ok(run.ended())
}

impl Loop<'_> {
    /// Requests arrive until `now`.
    fn until(&mut self, now: f64) {
        while let Some(request) = self.requests.get(self.next) {
            let at = self.lead + request.at;
            if at > now {
                break;
            }
            self.cluster.advance(at);
            self.cluster.arrive(Pending::new(self.next, Request { at, ..*request }));
            self.next += 1;
        }
        self.cluster.advance(now);
    }

    fn step(&mut self, step: u32) {
        if step.is_multiple_of(SAMPLE) {
            self.cluster.look(STEP * f64::from(SAMPLE));
            self.watch.sample(&self.cluster);
        }
        if !self.is_fixed {
            self.keda(step.is_multiple_of(POLL));
            if step.is_multiple_of(SYNC) {
                self.sync();
            }
        }
        if self.cluster.ordered == 0 && self.cluster.pods.is_empty() {
            self.outcome.seconds_at_zero += STEP;
        }
        self.outcome.peak = self.outcome.peak.max(self.cluster.ordered);
        if step.is_multiple_of(POINT) {
            let said = together(&self.cluster);
            self.outcome.points.push(Point {
                at: self.cluster.now() - self.lead,
                ordered: self.cluster.ordered,
                ready: self.cluster.ready(),
                waiting: said.waiting + self.cluster.queue.len() as f64,
                running: said.running,
            });
        }
    }

    /// KEDA polls, or hears of a workload that became active while it is at zero.
    fn keda(&mut self, is_poll: bool) {
        if !is_poll && self.cluster.ordered > 0 {
            return;
        }
        let Some(Answer { active, .. }) = self.watch.answer(&self.cluster) else { return };
        let became_active = active == Some(true) && !self.was_active;
        self.was_active = active.unwrap_or(self.was_active);
        if !is_poll && !became_active {
            return;
        }
        let seen = match active {
            Some(true) => Activity::Active,
            Some(false) => Activity::Inactive,
            None => Activity::Error,
        };
        let now = moment(self.cluster.now());
        if let Action::Scale(replicas, _) = self.keda.decide(now, self.cluster.ordered, seen) {
            self.order(replicas);
        }
    }

    fn sync(&mut self) {
        let status = u32::try_from(self.cluster.pods.len()).unwrap_or(u32::MAX);
        let scale = Scale { spec: self.cluster.ordered, status, ready: self.cluster.ready() };
        let metric = self.watch.metric(&self.cluster);
        let decision = self.hpa.sync(moment(self.cluster.now()), scale, metric);
        self.order(decision.desired);
    }

    fn order(&mut self, replicas: u32) {
        if replicas != self.cluster.ordered {
            self.outcome.moves += 1;
            self.cluster.order(replicas);
        }
    }

    fn ended(mut self) -> Outcome {
        let arrived = |id: usize| self.lead + self.requests[id].at;
        for finished in &self.cluster.finished {
            let request = self.requests[finished.id];
            self.outcome.answered(arrived(finished.id), request.output, finished);
        }
        let all = u64::try_from(self.requests.len()).unwrap_or(u64::MAX);
        self.outcome.never_answered(all - self.outcome.answered);
        self.outcome.gpu_seconds = self.cluster.gpu_seconds;
        self.outcome.joules = self.cluster.joules;
        self.outcome
    }
}
