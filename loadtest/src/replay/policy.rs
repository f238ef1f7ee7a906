//! What may decide on the number of replicas: one model each, as plain as its documentation.
//!
//! Guarantees: a policy sees of the cluster only what its chain would have brought to it by then.
//! What it says goes to the same HPA and, where it can be asked whether anything is wanted, to the
//! same KEDA loop.

use std::collections::HashMap;
use std::str::FromStr;
use std::time::Duration;

use super::cluster::{Cluster, EngineSaid};
use super::view::{Answer, GPUS_PER_NODE, View};
use crate::hpa::{Metric, MetricType};

/// Who decides.
#[derive(Clone, Debug, PartialEq)]
pub enum Policy {
    /// Always this many replicas.
    Fixed(u32),
    /// The HPA by CPU use of the pods. An engine's loop keeps one core busy while a step runs, and
    /// 0.15 cores serve; 2 cores are requested and 50 % is the target.
    Cpu,
    /// dcgm-exporter (collects every 30 s) → Prometheus (scrapes every 15 s) → KEDA:
    /// `sum(avg_over_time(DCGM_FI_DEV_GPU_UTIL[1m]))`, 80 per replica. It cannot see demand at zero.
    ExporterUtilization,
    /// The engines' pages → Prometheus (scrapes every 15 s) → KEDA:
    /// `sum(vllm:num_requests_waiting)`, 5 per replica. It cannot see demand at zero.
    PrometheusQueue,
    /// The same with `sum(rate(vllm:generation_tokens_total[1m]))`, 525 per replica.
    PrometheusTokens,
    /// A scaler that answers with the mean utilisation of its own node, 80, as `AverageValue`.
    OneNode,
    /// This project, with a trigger of that metadata.
    Ours(HashMap<String, String>),
}

/// A policy by its name in the tables.
#[derive(Clone, Debug, PartialEq)]
pub struct Named {
    /// Its name.
    pub name: String,
    /// What it is.
    pub policy: Policy,
}

/// Where our triggers see demand at zero, unless they say so themselves.
const DEMAND: [(&str, &str); 2] =
    [("demandEndpoint", "http://router:8000/metrics"), ("demandMetric", "router_queue")];

/// Triggers that are compared, by name. 525 tokens a second is what one simulated replica generates
/// at the highest load at which it keeps the objective (`--load 0.45 --gpus 1`).
const TRIGGERS: [(&str, &[(&str, &str)]); 4] = [
    ("ours, utilisation", &[("metricType", "gpu_utilization"), ("targetValue", "80")]),
    ("ours, queue", &[("metricType", "requests_waiting"), ("targetValue", "5")]),
    ("ours, profile vllm", &[("profile", "vllm")]),
    (
        "ours, composite, tuned",
        &[
            ("metricType", "token_throughput:525,requests_waiting:5,kv_cache_usage:80"),
            ("window", "60s"),
        ],
    ),
];

/// Every policy that decides by itself.
pub fn automatic() -> Vec<Named> {
    let others = [
        ("CPU, HPA", Policy::Cpu),
        ("exporter + Prometheus, utilisation", Policy::ExporterUtilization),
        ("engine + Prometheus, queue", Policy::PrometheusQueue),
        ("engine + Prometheus, tokens", Policy::PrometheusTokens),
        ("one node's utilisation", Policy::OneNode),
    ];
    let others = others.map(|(name, policy)| Named { name: name.into(), policy });
    let ours = TRIGGERS.map(|(name, keys)| {
        let keys = keys.iter().map(|(key, value)| ((*key).into(), (*value).into()));
        Named { name: name.into(), policy: Policy::ours(keys) }
    });
    others.into_iter().chain(ours).collect()
}

/// A trigger to compare as it is written: `key=value;key=value`, its own name.
impl FromStr for Named {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let keys: Result<Vec<_>, _> = text
            .split(';')
            .map(|pair| {
                let (key, value) = pair.split_once('=').ok_or_else(|| {
                    format!("{pair:?} is not key=value; metadata is key=value;key=value")
                })?;
                Ok::<_, String>((key.trim().to_owned(), value.trim().to_owned()))
            })
            .collect();
        Ok(Self { name: format!("ours, {text}"), policy: Policy::ours(keys?) })
    }
}

/// What a policy has seen so far.
pub struct Watch {
    policy: Policy,
    view: Option<View>,
    /// What dcgm-exporter has.
    collected: Looked,
    /// What Prometheus has.
    scraped: Looked,
}

/// A figure that is looked at once in a while, and remembered for a minute.
struct Looked {
    every: f64,
    next: f64,
    /// When, and what; the newest last.
    seen: Vec<(f64, f64)>,
}

impl Looked {
    fn new(every: Duration) -> Self {
        Self { every: every.as_secs_f64(), next: 0.0, seen: Vec::new() }
    }

    fn look(&mut self, now: f64, figure: impl FnOnce() -> f64) {
        if now >= self.next {
            self.next = now + self.every;
            self.seen.push((now, figure()));
            self.seen.retain(|(at, _)| now - at < 60.0);
        }
    }

    fn newest(&self) -> Option<f64> {
        self.seen.last().map(|(_, value)| *value)
    }

    /// Over the last minute.
    fn mean(&self) -> Option<f64> {
        mean(&self.seen.iter().map(|(_, value)| *value).collect::<Vec<_>>())
    }
}

impl Policy {
    /// This project, with metadata that sees the simulated router's queue unless it says otherwise.
    fn ours(keys: impl IntoIterator<Item = (String, String)>) -> Self {
        let demand = DEMAND.map(|(key, value)| (key.to_owned(), value.to_owned()));
        Self::Ours(demand.into_iter().chain(keys).collect())
    }

    /// The fewest replicas it may leave: 0 if it can see demand when there is no pod.
    pub fn minimum(&self) -> u32 {
        match self {
            Self::Fixed(replicas) => *replicas,
            Self::Ours(_) => 0,
            _ => 1,
        }
    }
}

impl Watch {
    /// A policy that has seen nothing yet, over `gpus` GPUs sampled every `interval`.
    ///
    /// # Errors
    /// When the trigger's metadata is wrong.
    pub fn new(policy: Policy, gpus: usize, interval: Duration) -> anyhow::Result<Self> {
        let view = match &policy {
            Policy::Ours(metadata) => Some(View::new(metadata, gpus, interval)?),
            _ => None,
        };
        let collected = Looked::new(Duration::from_secs(30));
        let scraped = Looked::new(Duration::from_secs(15));
        Ok(Self { policy, view, collected, scraped })
    }

    /// A sampling interval has passed.
    pub fn sample(&mut self, cluster: &Cluster) {
        let now = cluster.now();
        let sum = |of: fn(EngineSaid) -> f64| cluster.engines().map(of).sum();
        match self.policy {
            Policy::Ours(_) => self.view.iter_mut().for_each(|view| view.sample(cluster)),
            Policy::ExporterUtilization => {
                self.collected.look(now, || utilizations(cluster).sum());
                if let Some(collected) = self.collected.newest() {
                    self.scraped.look(now, || collected);
                }
            }
            Policy::PrometheusQueue => self.scraped.look(now, || sum(|said| said.waiting)),
            Policy::PrometheusTokens => self.scraped.look(now, || sum(|said| said.tokens)),
            Policy::Fixed(_) | Policy::Cpu | Policy::OneNode => {}
        }
    }

    /// What KEDA would be told now; `None` for a policy that KEDA does not ask.
    pub fn answer(&self, cluster: &Cluster) -> Option<Answer> {
        Some(self.view.as_ref()?.answer(cluster))
    }

    /// What the HPA reads now.
    pub fn metric(&self, cluster: &Cluster) -> Option<Metric> {
        let average =
            |value, target| Some(Metric { kind: MetricType::AverageValue, value, target });
        match self.policy {
            Policy::Fixed(_) => None,
            Policy::Cpu => {
                let cores: Vec<f64> =
                    utilizations(cluster).map(|busy| busy / 100.0 + 0.15).collect();
                let mean = mean(&cores)? / 2.0 * 100.0;
                Some(Metric { kind: MetricType::Value, value: mean, target: 50.0 })
            }
            Policy::ExporterUtilization => average(self.scraped.mean()?, 80.0),
            Policy::PrometheusQueue => average(self.scraped.newest()?, 5.0),
            Policy::PrometheusTokens => average(self.scraped.mean()?, 525.0),
            Policy::OneNode => {
                let first = cluster.pods.iter().filter(|pod| {
                    pod.engine.is_some() && pod.gpu.is_some_and(|gpu| gpu < GPUS_PER_NODE)
                });
                let busy: Vec<f64> = first.map(|pod| pod.said.utilization).collect();
                average(mean(&busy)?, 80.0)
            }
            Policy::Ours(_) => {
                let Answer { value, target, .. } = self.answer(cluster)?;
                average(value?, target)
            }
        }
    }
}

/// Of every pod that is ready, in percent.
fn utilizations(cluster: &Cluster) -> impl Iterator<Item = f64> {
    let ready = cluster.pods.iter().filter(|pod| pod.engine.is_some() && pod.deleted.is_none());
    ready.map(|pod| pod.said.utilization)
}

fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// What all engines say together, for the charts.
pub fn together(cluster: &Cluster) -> EngineSaid {
    cluster.engines().fold(EngineSaid::default(), |sum, said| EngineSaid {
        waiting: sum.waiting + said.waiting,
        running: sum.running + said.running,
        cache: sum.cache.max(said.cache),
        tokens: sum.tokens + said.tokens,
    })
}
