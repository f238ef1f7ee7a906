//! `prometheus` triggers that ask for GPU or engine metrics, and the same trigger of ours.

use shared::metric::{Metric, Unit};

use super::Findings;
use super::manifest::Declared;
use crate::trigger::number::thousandths;

/// How a threshold of the query becomes a target of ours.
#[derive(Clone, Copy, PartialEq)]
enum Scale {
    /// As it is.
    Same,
    /// The series is a share of 1; a threshold of at most 1 is in it, a larger one in percent.
    Share,
    /// Seconds there, milliseconds here.
    Seconds,
    /// Another unit: the threshold cannot be taken over.
    Other,
}

/// Series and what they are here. A name stands for itself and its `_sum`, `_count`, `_bucket`.
#[rustfmt::skip]
const SERIES: &[(&str, Metric, Scale)] = &[
    ("DCGM_FI_DEV_GPU_UTIL", Metric::GpuUtilization, Scale::Same),
    ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", Metric::GpuUtilization, Scale::Share),
    ("DCGM_FI_PROF_SM_ACTIVE", Metric::SmActivity, Scale::Share),
    ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", Metric::TensorActivity, Scale::Share),
    ("DCGM_FI_PROF_DRAM_ACTIVE", Metric::MemoryUtilization, Scale::Share),
    ("DCGM_FI_DEV_MEM_COPY_UTIL", Metric::MemoryUtilization, Scale::Same),
    ("DCGM_FI_DEV_FB_USED_PERCENT", Metric::MemoryUsedPercent, Scale::Share),
    ("DCGM_FI_DEV_FB_USED", Metric::MemoryUsedMib, Scale::Same),
    ("DCGM_FI_DEV_FB_FREE", Metric::MemoryUsedPercent, Scale::Other),
    ("DCGM_FI_DEV_GPU_TEMP", Metric::Temperature, Scale::Same),
    ("DCGM_FI_DEV_POWER_USAGE", Metric::PowerDraw, Scale::Same),
    ("DCGM_FI_DEV_SM_CLOCK", Metric::SmClockMhz, Scale::Same),
    ("DCGM_FI_PROF_PCIE_TX_BYTES", Metric::PcieTxKbps, Scale::Other),
    ("DCGM_FI_PROF_PCIE_RX_BYTES", Metric::PcieRxKbps, Scale::Other),
    ("DCGM_FI_PROF_NVLINK_TX_BYTES", Metric::NvlinkTxMbps, Scale::Other),
    ("DCGM_FI_PROF_NVLINK_RX_BYTES", Metric::NvlinkRxMbps, Scale::Other),
    ("vllm:num_requests_waiting", Metric::RequestsWaiting, Scale::Same),
    ("vllm:num_requests_running", Metric::RequestsRunning, Scale::Same),
    ("vllm:gpu_cache_usage_perc", Metric::KvCacheUsage, Scale::Share),
    ("vllm:kv_cache_usage_perc", Metric::KvCacheUsage, Scale::Share),
    ("vllm:avg_generation_throughput_toks_per_s", Metric::TokenThroughput, Scale::Same),
    ("vllm:generation_tokens_total", Metric::TokenThroughput, Scale::Same),
    ("vllm:request_success_total", Metric::RequestRate, Scale::Same),
    ("vllm:request_queue_time_seconds", Metric::QueueWaitMs, Scale::Seconds),
    ("vllm:time_to_first_token_seconds", Metric::TimeToFirstTokenMs, Scale::Seconds),
    ("vllm:e2e_request_latency_seconds", Metric::RequestLatencyMs, Scale::Seconds),
];

/// Notes a query that this gateway answers from the pods themselves, with the trigger that does;
/// whether it is one.
pub(super) fn check(declared: &Declared, found: &mut Findings) -> bool {
    if declared.kind != "prometheus" {
        return false;
    }
    let Some(query) = declared.metadata.get("query") else { return false };
    let Some(name) = series(query) else { return false };
    let base = ["_sum", "_count", "_bucket"].iter().find_map(|end| name.strip_suffix(end));
    let known = |name: &str| SERIES.iter().find(|(series, ..)| *series == name);
    let Some(&(_, metric, scale)) = known(name).or_else(|| known(base?)) else {
        let message = format!(
            "query reads {name}, which this gateway has no metric for; the nearest are \
             gpu_utilization and requests_waiting"
        );
        found.note("prometheus", Some(declared), message);
        return true;
    };
    let message = format!(
        "query reads {name} through Prometheus; the same from the workload's own pods is {}",
        equivalent(declared, metric, scale)
    );
    found.note("prometheus", Some(declared), message);
    flat(declared, query, metric, scale, found);
    true
}

/// The first name in `query` that is DCGM's or vLLM's.
fn series(query: &str) -> Option<&str> {
    let at = ["DCGM_", "vllm:"].iter().filter_map(|start| query.find(start)).min()?;
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ':');
    let rest = &query[at..];
    Some(&rest[..rest.find(|c| !is_part(c)).unwrap_or(rest.len())])
}

fn equivalent(declared: &Declared, metric: Metric, scale: Scale) -> String {
    let number = |key| scaled(declared.metadata.get(key)?, scale);
    let target = number("threshold").map_or_else(|| "…".to_owned(), |target| target.to_string());
    let activation = number("activationThreshold")
        .filter(|threshold| *threshold > 0.0)
        .map_or_else(String::new, |threshold| format!(", activationThreshold: '{threshold}'"));
    format!(
        "{{type: external-push, metadata: {{scalerAddress: \
         'gpu-gateway.gpu-scaler.svc.cluster.local:6000', metricType: {metric}, \
         targetValue: '{target}'{activation}}}}}"
    )
}

fn scaled(text: &str, scale: Scale) -> Option<f64> {
    let number: f64 = text.trim().parse().ok().filter(|number: &f64| number.is_finite())?;
    match scale {
        Scale::Same => Some(number),
        Scale::Share if number <= 1.0 => Some(thousandths(number * 100.0)),
        Scale::Share => Some(number),
        Scale::Seconds => Some(thousandths(number * 1000.0)),
        Scale::Other => None,
    }
}

/// One percentage for the whole fleet cannot order more than a few replicas.
fn flat(declared: &Declared, query: &str, metric: Metric, scale: Scale, found: &mut Findings) {
    let is_flat =
        ["avg", "max", "min", "quantile"].iter().any(|word| query.trim().starts_with(word));
    let is_value = declared.metric_type.as_deref() == Some("Value");
    let threshold = declared.metadata.get("threshold").and_then(|text| scaled(text, scale));
    if let Some(threshold) = threshold.filter(|threshold| *threshold > 0.0)
        && is_flat
        && !is_value
        && metric.unit() == Unit::Percent
    {
        let most = (100.0 / threshold).ceil();
        let message = format!(
            "query is one percentage for the whole fleet: under AverageValue it never asks for more \
             than ceil(100 / {threshold}) = {most} replicas; use ours, or metricType: Value"
        );
        found.warn("flat-average", Some(declared), message);
    }
}
