//! What is scraped of workloads: their pods, what their engines say, how long pods take to start.
//!
//! Guarantees: what the engines of a workload say is made from fresh readings only; without any it
//! is absent, and how many pods are not part of it is said beside it. A group of pods is one pod.

use std::collections::HashMap;
use std::sync::Arc;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::{Registry, Unit};
use shared::identity::WorkloadKey;
use shared::metric::{Combine, Metric};
use shared::time::Timestamp;

use super::{Number, is_fresh};
use crate::answer::{Answers, observe, roster};
use crate::directory::{Pod, Snapshot, Workload};
use crate::engine::Asks;

/// A workload, in every series about one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct OfWorkload {
    namespace: String,
    kind: String,
    workload: String,
}

impl From<&WorkloadKey> for OfWorkload {
    fn from(key: &WorkloadKey) -> Self {
        let WorkloadKey { namespace, kind, name } = key;
        Self {
            namespace: namespace.to_string(),
            kind: kind.to_string(),
            workload: name.to_string(),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Step {
    #[prometheus(flatten)]
    of: OfWorkload,
    step: &'static str,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StepQuantile {
    #[prometheus(flatten)]
    of: OfWorkload,
    step: &'static str,
    quantile: &'static str,
}

type Shown = Family<OfWorkload, Number>;

/// What is shown per workload.
#[derive(Default)]
pub(super) struct OfWorkloads {
    ready: Shown,
    unscheduled: Shown,
    unread: Shown,
    waiting: Shown,
    running: Shown,
    tokens: Shown,
    requests: Shown,
    first_token: Shown,
    cache: Shown,
    steps: Family<StepQuantile, Number>,
    stepped: Family<Step, Number>,
}

/// The newest readings of a workload's engines, added up.
#[derive(Default)]
struct Engines {
    unread: u32,
    /// Sum and count of what is known.
    known: HashMap<Metric, (f64, u32)>,
}

impl Engines {
    /// Adds a ready pod; whether its engine said something.
    fn add(&mut self, answers: &Answers, pod: &Pod, now: Timestamp) -> bool {
        let views = roster::views_of(answers.fleet(), pod);
        let said = roster::said_of(&views, pod);
        let rows = said.iter().filter_map(|(view, pod)| {
            let row = observe::whole_engine(pod)?;
            is_fresh(row, view.intervals.engines, now).then_some(row)
        });
        // One pod has one engine, whatever several nodes say: the newest word counts.
        let Some(row) = rows.max_by_key(|row| row.taken_at) else { return false };
        let mut is_read = false;
        for (metric, reading) in row.readings.iter() {
            let Some(value) = reading.value() else { continue };
            let (sum, count) = self.known.entry(metric).or_default();
            *sum += value;
            *count += 1;
            is_read = true;
        }
        is_read
    }

    /// The workload's `metric`: the sum of its pods' amounts, or the mean of their levels.
    fn of(&self, metric: Metric) -> Option<f64> {
        let (sum, count) = self.known.get(&metric)?;
        Some(match metric.combine() {
            Combine::Sum => *sum,
            Combine::Mean => sum / f64::from(*count),
        })
    }
}

impl OfWorkloads {
    /// Every workload as it is now.
    pub(super) fn of(answers: &Answers) -> Self {
        let shown = Self::default();
        let Some(snapshot) = answers.directory().snapshot() else { return shown };
        let asks = answers.asks().borrow().clone();
        for workload in snapshot.workloads() {
            shown.pods(answers, &snapshot, &asks, workload);
            shown.startup(answers, workload);
        }
        shown
    }

    fn pods(&self, answers: &Answers, snapshot: &Snapshot, asks: &Asks, workload: &Workload) {
        let now = answers.clock().now();
        let (mut ready, mut unscheduled) = (0_u32, 0_u32);
        let (mut engines, mut is_asked) = (Engines::default(), false);
        for members in roster::groups(workload) {
            let all_ready = members.iter().all(|pod| pod.ready);
            ready += u32::from(all_ready);
            unscheduled += u32::from(members.iter().any(|pod| pod.unscheduled.is_some()));
            // Of a group only the pods that are selected serve; the others work for them.
            for pod in members.iter().filter(|pod| pod.ready && !pod.beside) {
                let asked = asks.is_about(snapshot, pod);
                is_asked |= asked;
                let is_read = engines.add(answers, pod, now);
                engines.unread += u32::from(asked && !is_read);
            }
        }
        let label = OfWorkload::from(&workload.key);
        let show = |family: &Shown, value: f64| family.get_or_create(&label).set(value);
        show(&self.ready, f64::from(ready));
        show(&self.unscheduled, f64::from(unscheduled));
        if is_asked {
            show(&self.unread, f64::from(engines.unread));
        }
        for (family, metric, per) in [
            (&self.waiting, Metric::RequestsWaiting, 1.0),
            (&self.running, Metric::RequestsRunning, 1.0),
            (&self.tokens, Metric::TokenThroughput, 1.0),
            (&self.requests, Metric::RequestRate, 1.0),
            (&self.first_token, Metric::TimeToFirstTokenMs, 1e3),
            (&self.cache, Metric::KvCacheUsage, 100.0),
        ] {
            if let Some(value) = engines.of(metric) {
                show(family, value / per);
            }
        }
    }

    /// How long pods took from step to step, where any was seen to take the step.
    #[expect(clippy::cast_precision_loss, reason = "at most a few hundred pods are kept")]
    fn startup(&self, answers: &Answers, workload: &Arc<Workload>) {
        let startup = answers.directory().startup(&workload.key);
        for (step, span) in [
            ("ordered_to_scheduled", startup.ordered_to_scheduled),
            ("scheduled_to_ready", startup.scheduled_to_ready),
            ("ready_to_first_reading", startup.ready_to_first_reading),
        ] {
            let of = OfWorkload::from(&workload.key);
            for (quantile, time) in [("0.5", span.median), ("0.9", span.p90)] {
                let Some(time) = time else { continue };
                let label = StepQuantile { of: of.clone(), step, quantile };
                self.steps.get_or_create(&label).set(time.as_secs_f64());
            }
            if span.pods > 0 {
                self.stepped.get_or_create(&Step { of, step }).set(span.pods as f64);
            }
        }
    }

    /// Registers what is shown.
    pub(super) fn register(self, registry: &mut Registry) {
        let help = "Pods that are ready; a group of pods counts once, here and below";
        registry.register("workload_pods_ready", help, self.ready);
        let help = "Pods that the scheduler has no place for";
        registry.register("workload_pods_unscheduled", help, self.unscheduled);
        let help = "Ready pods whose engine a trigger wants read and that say nothing now; what \
                    the engines of the workload say is without them";
        registry.register("workload_engine_pods_unread", help, self.unread);
        let help = "Requests queued in the workload's engines";
        registry.register("workload_requests_waiting", help, self.waiting);
        let help = "Requests that the workload's engines serve";
        registry.register("workload_requests_running", help, self.running);
        let help = "Tokens that the workload's engines generate";
        registry.register("workload_tokens_per_second", help, self.tokens);
        let help = "Requests that the workload's engines finish";
        registry.register("workload_requests_per_second", help, self.requests);
        let help = "Time to the first token, mean over the workload's pods";
        let name = "workload_time_to_first_token";
        registry.register_with_unit(name, help, Unit::Seconds, self.first_token);
        let help = "KV cache in use, of its total, mean over the workload's pods";
        registry.register_with_unit(
            "workload_kv_cache_usage",
            help,
            Unit::Other("ratio".into()),
            self.cache,
        );
        let help = "How long the workload's newest pods took for a step of their start";
        registry.register_with_unit("startup", help, Unit::Seconds, self.steps);
        registry.register("startup_pods", "Pods that startup is made from", self.stepped);
    }
}

#[cfg(test)]
impl reference::Specimens for OfWorkloads {
    fn specimens(&self) {
        self.ready.specimens();
        self.unscheduled.specimens();
        self.unread.specimens();
        self.waiting.specimens();
        self.running.specimens();
        self.tokens.specimens();
        self.requests.specimens();
        self.first_token.specimens();
        self.cache.specimens();
        self.steps.specimens();
        self.stepped.specimens();
    }
}
