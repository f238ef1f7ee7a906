//! What a trigger measures: the value of `metricType`, a metric or a composite of metrics.

use shared::metric::{Metric, Unit};

use super::number;
use super::word::{nearest, quoted};

/// Most parts of a composite.
const MAX_PARTS: usize = 8;
/// Target of a percent metric when none is given.
pub(super) const PERCENT_TARGET: f64 = 80.0;
/// KEDA's own metric types, which belong beside the trigger's type.
const KEDA_TYPES: [&str; 3] = ["averagevalue", "value", "utilization"];

/// Other names of metrics: those of pmady/keda-gpu-scaler and vLLM's own.
/// The unit stays ours: percent for cache usage, milliseconds for times.
pub(super) const ALIASES: &[(&str, Metric)] = &[
    ("vllm_queue_depth", Metric::RequestsWaiting),
    ("vllm_kv_cache_usage", Metric::KvCacheUsage),
    ("triton_queue_wait_ms", Metric::QueueWaitMs),
    ("triton_request_rate", Metric::RequestRate),
    ("vllm:num_requests_waiting", Metric::RequestsWaiting),
    ("vllm:num_requests_running", Metric::RequestsRunning),
    ("vllm:gpu_cache_usage_perc", Metric::KvCacheUsage),
    ("vllm:kv_cache_usage_perc", Metric::KvCacheUsage),
    ("vllm:avg_generation_throughput_tok_per_s", Metric::TokenThroughput),
    ("vllm:avg_generation_throughput_toks_per_s", Metric::TokenThroughput),
    // The counters that these gauges were removed for; rates here.
    ("vllm:generation_tokens_total", Metric::TokenThroughput),
    ("vllm:request_success_total", Metric::RequestRate),
    ("vllm:time_to_first_token_seconds", Metric::TimeToFirstTokenMs),
    ("vllm:e2e_request_latency_seconds", Metric::RequestLatencyMs),
    ("vllm:request_queue_time_seconds", Metric::QueueWaitMs),
];

/// One metric with its target per replica.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Part {
    /// What is measured.
    pub metric: Metric,
    /// How much of it one replica should carry.
    pub target: f64,
}

/// What `metricType` says.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Measure {
    /// One metric; its target is said elsewhere, or after its colon.
    One(Metric, Option<f64>),
    /// The part with the largest load for its target.
    Composite(Vec<Part>),
}

impl Measure {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        if KEDA_TYPES.contains(&text.to_ascii_lowercase().as_str()) {
            return Err(
                "belongs beside `type:` of the trigger, here it names what is measured".to_owned()
            );
        }
        if !text.contains(',') {
            return one(text).map(|(metric, target)| Self::One(metric, target));
        }
        let mut parts: Vec<Part> = Vec::new();
        for text in text.split(',') {
            let part = part(text.trim_ascii())?;
            if parts.len() == MAX_PARTS {
                return Err(format!("has more than {MAX_PARTS} parts"));
            }
            if parts.iter().any(|other| other.metric == part.metric) {
                return Err(format!("{} is there twice", part.metric));
            }
            parts.push(part);
        }
        Ok(Self::Composite(parts))
    }

    /// The unit of its value; `None` for a composite, whose value is load in percent of a replica.
    pub(super) fn unit(&self) -> Option<Unit> {
        match self {
            Self::One(metric, _) => Some(metric.unit()),
            Self::Composite(_) => None,
        }
    }
}

fn part(text: &str) -> Result<Part, String> {
    if text.is_empty() {
        return Err("has an empty part".to_owned());
    }
    let (metric, target) = one(text)?;
    let usual = (metric.unit() == Unit::Percent).then_some(PERCENT_TARGET);
    match target.or(usual) {
        Some(target) => Ok(Part { metric, target }),
        None => Err(format!("{metric} needs its target, such as {metric}:5")),
    }
}

/// Reads `NAME` or `NAME:TARGET`; names may have colons of their own.
fn one(text: &str) -> Result<(Metric, Option<f64>), String> {
    if let Some((name, tail)) = text.rsplit_once(':') {
        let (name, tail) = (name.trim_ascii(), tail.trim_ascii());
        if number::decimal(tail).is_ok() || named(name).is_some() {
            let target = number::target(tail)
                .map_err(|reason| format!("target {}: {reason}", quoted(tail)))?;
            return Ok((metric(name)?, Some(target)));
        }
    }
    Ok((metric(text)?, None))
}

fn metric(name: &str) -> Result<Metric, String> {
    let names = Metric::ALL.iter().map(|metric| metric.name());
    let all = names.chain(ALIASES.iter().map(|(alias, _)| *alias));
    named(name)
        .ok_or_else(|| format!("no metric {}, nearest is {}", quoted(name), nearest(name, all)))
}

fn named(name: &str) -> Option<Metric> {
    let alias = || ALIASES.iter().find(|(alias, _)| *alias == name);
    Metric::from_name(name).or_else(|| alias().map(|(_, metric)| *metric))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_and_alias_is_a_metric_with_or_without_a_target() {
        for &metric in Metric::ALL {
            assert_eq!(Measure::parse(metric.name()), Ok(Measure::One(metric, None)));
        }
        for &(alias, metric) in ALIASES {
            assert_eq!(Measure::parse(alias), Ok(Measure::One(metric, None)));
            let with_target = Measure::parse(&format!("{alias}:2.5"));
            assert_eq!(with_target, Ok(Measure::One(metric, Some(2.5))));
        }
    }

    #[test]
    fn a_composite_has_commas() {
        let parts = vec![
            Part { metric: Metric::RequestsWaiting, target: 5.0 },
            Part { metric: Metric::KvCacheUsage, target: 80.0 },
        ];
        for text in [
            "requests_waiting:5,kv_cache_usage:80",
            "requests_waiting:5, kv_cache_usage",
            "vllm:num_requests_waiting : 5 ,vllm:kv_cache_usage_perc",
        ] {
            assert_eq!(Measure::parse(text), Ok(Measure::Composite(parts.clone())), "{text}");
        }
    }

    #[test]
    fn broken_measures_say_what_is_wrong() {
        let many = ["gpu_utilization"; 9].join(",");
        for (text, reason) in [
            (
                "AverageValue",
                "belongs beside `type:` of the trigger, here it names what is measured",
            ),
            (
                "UTILIZATION",
                "belongs beside `type:` of the trigger, here it names what is measured",
            ),
            ("gpu_utilisation", r#"no metric "gpu_utilisation", nearest is gpu_utilization"#),
            ("GPU_UTILIZATION", r#"no metric "GPU_UTILIZATION", nearest is gpu_utilization"#),
            ("gpu_utilization:80%", r#"target "80%": write 80"#),
            ("gpu_utilization:", r#"target "": not a number"#),
            ("gpu_utilization:0", r#"target "0": must be at least 0.001"#),
            ("gpu:80", r#"no metric "gpu", nearest is gpu_utilization"#),
            (
                "requests_waiting,kv_cache_usage",
                "requests_waiting needs its target, such as requests_waiting:5",
            ),
            ("requests_waiting:5,", "has an empty part"),
            (",", "has an empty part"),
            ("requests_waiting:5,vllm_queue_depth:6", "requests_waiting is there twice"),
            (&many, "gpu_utilization is there twice"),
        ] {
            let refused = Measure::parse(text).unwrap_err();
            if text != "gpu:80" {
                assert_eq!(refused, reason, "{text}");
            }
        }
        let nine: Vec<String> =
            Metric::ALL[..9].iter().map(|metric| format!("{metric}:5")).collect();
        assert_eq!(Measure::parse(&nine.join(",")), Err("has more than 8 parts".to_owned()));
    }
}
