//! One look at one trigger: what was decided, from what, and what the HPA makes of it.
//!
//! Guarantees: nothing is invented; what is not known is `None`. A look depends on the assessment
//! and on what nodes said at its moment, and on nothing else.

use std::sync::Arc;
use std::time::Duration;

use shared::metric::Metric;
use shared::reading::Readings;
use shared::time::Timestamp;

use crate::answer::roster::{said_of, views_of};
use crate::answer::{Answers, Assessment, Refusal};
use crate::directory::Workload;
use crate::explain::{metrics_of, wish};
use crate::fleet::Fleet;
use crate::trigger::coverage::Coverage;
use crate::trigger::verdict::Figures;

/// What was decided about one trigger at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Look {
    /// `OK` or the gRPC code of the error.
    pub status: &'static str,
    /// Why.
    pub reason: Arc<str>,
    /// What it measures, by name; empty where the metadata is broken.
    pub metric: Arc<str>,
    /// `AverageValue` or `Value`; empty where the metadata is broken.
    pub metric_type: &'static str,
    /// The value KEDA is told.
    pub value: Option<f64>,
    /// Target per replica.
    pub target: Option<f64>,
    /// Whether KEDA is told that it is active.
    pub active: Option<bool>,
    /// Replicas the HPA would order; `None` without a value and at zero replicas.
    pub desired: Option<u32>,
    /// Which limit cut that.
    pub clamped_by: Option<Arc<str>>,
    /// Replicas ordered.
    pub replicas: Option<u32>,
    /// Pods, or groups of pods, that are Ready.
    pub ready: Option<u32>,
    /// Pods that the scheduler has no place for.
    pub unscheduled: Option<u32>,
    /// Pods by state.
    pub coverage: Option<Coverage>,
    /// Why nothing can wake the workload, where nothing is there and this trigger sees no demand.
    pub deaf: Option<Arc<str>>,
    /// The figures of rule 1.
    pub figures: Option<Figures>,
    /// What the pods' engines say.
    pub engines: Engines,
    /// Devices that nobody holds, of whatever model.
    pub gpus_free: Option<u32>,
}

/// What the inference engines of a workload's ready pods say, together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Engines {
    /// Requests queued.
    pub waiting: Option<f64>,
    /// Requests being served.
    pub running: Option<f64>,
    /// Tokens generated per second.
    pub tokens: Option<f64>,
    /// Time to the first token in milliseconds, the mean over pods.
    pub first_token: Option<f64>,
    /// Ready pods whose engine is read but has no fresh readings: sums lack these.
    pub unread: u32,
}

impl Look {
    /// What an assessment says, or why there is none.
    pub fn new(
        answers: &Answers,
        assessed: &Result<Assessment, Refusal>,
        target: Option<f64>,
        gpus_free: u32,
    ) -> Self {
        let gpus_free = Some(gpus_free);
        let assessment = match assessed {
            Ok(assessment) => assessment,
            Err(refusal) => {
                let (status, reason) = (refusal.code(), refusal.to_string().into());
                return Self { status, reason, target, gpus_free, ..Self::default() };
            }
        };
        let Assessment { object, trigger, observed, verdict, now, .. } = assessment;
        let value = assessment.value();
        let hpa = wish(assessment);
        let workload = object.workload.as_deref();
        let known = workload.map(|_| observed);
        let count = |pods: usize| u32::try_from(pods).unwrap_or(u32::MAX);
        let waits = |pod: &&crate::trigger::observed::Pod| !pod.ready && pod.unscheduled.is_some();
        Self {
            status: value.as_ref().map_or_else(Refusal::code, |_| "OK"),
            reason: verdict.reason.to_string().into(),
            metric: metrics_of(trigger).into(),
            metric_type: observed.target_type.name(),
            active: value.is_ok().then(|| answers.activity(assessment)),
            value: value.ok(),
            target: target.or(Some(trigger.target)),
            desired: hpa.as_ref().map(|hpa| hpa.desired),
            clamped_by: hpa.and_then(|hpa| hpa.clamped_by).map(Into::into),
            replicas: known.map(|seen| seen.replicas),
            ready: known.map(|seen| count(seen.pods.iter().filter(|pod| pod.ready).count())),
            unscheduled: known.map(|seen| count(seen.pods.iter().filter(waits).count())),
            coverage: known.map(|_| verdict.coverage),
            deaf: assessment.deaf_because().map(Into::into),
            figures: verdict.figures,
            engines: workload.map_or_else(Engines::default, |w| {
                Engines::of(answers.fleet(), w, trigger.stale_after, *now)
            }),
            gpus_free,
        }
    }
}

impl Engines {
    /// What the engines of the ready pods of `workload` say at `now`; readings older than
    /// `stale_after` and three of the agent's intervals say nothing.
    pub fn of(fleet: &Fleet, workload: &Workload, stale_after: Duration, now: Timestamp) -> Self {
        let mut engines = Self::default();
        let (mut first_tokens, mut pods) = (0.0, 0.0);
        for pod in workload.pods.iter().filter(|pod| pod.exists() && pod.ready) {
            let views = views_of(fleet, pod);
            let said = said_of(&views, pod);
            let mut is_read = false;
            let newest = said.iter().filter_map(|(view, pod)| {
                let row = pod.engine("").or_else(|| pod.engines().next().map(|(_, row)| row))?;
                is_read = true;
                let row = row?;
                let fresh_for = stale_after.max(view.intervals.engines * 3);
                (now.since(row.taken_at) <= fresh_for).then_some(row)
            });
            let Some(row) = newest.max_by_key(|row| row.taken_at) else {
                engines.unread += u32::from(is_read);
                continue;
            };
            engines.add(&row.readings);
            if let Some(time) = row.readings.value(Metric::TimeToFirstTokenMs) {
                first_tokens += time;
                pods += 1.0;
            }
        }
        engines.first_token = (pods > 0.0).then(|| first_tokens / pods);
        engines
    }

    fn add(&mut self, readings: &Readings) {
        for (sum, metric) in [
            (&mut self.waiting, Metric::RequestsWaiting),
            (&mut self.running, Metric::RequestsRunning),
            (&mut self.tokens, Metric::TokenThroughput),
        ] {
            if let Some(value) = readings.value(metric) {
                *sum = Some(sum.unwrap_or(0.0) + value);
            }
        }
    }
}
