//! The one table of inference engines: how each of them names what, in which unit, how its series
//! combine, and what it means where one is not there.
//!
//! Guarantees: names are compared exactly, so that no name catches a longer one. Names of one
//! reading are alternatives, in the order of preference: an engine that publishes two of them is
//! read once. A metric without an entry is one the engine never publishes.

use shared::metric::Metric;

use Across::{Mean, Sum};
use Metric::{
    ErrorRate, KvCacheUsage, QueueWaitMs, RequestLatencyMs, RequestRate, RequestsRunning,
    RequestsWaiting, TimeToFirstTokenMs, TokenThroughput,
};

/// One engine's way of publishing.
#[derive(Debug)]
pub struct Dialect {
    /// The word for it in triggers and briefs.
    pub name: &'static str,
    /// What people call it.
    pub title: &'static str,
    /// A page is its own if the name of a series begins with one of these, or is one of these
    /// where it does not end in `:` or `_`.
    pub marks: &'static [&'static str],
    /// Labels over which one reading is repeated: the ranks that work on the same requests. The
    /// largest of the repeated counts.
    pub repeated_over: &'static [&'static str],
    /// What it publishes.
    pub entries: &'static [Entry],
}

/// How one metric is read.
#[derive(Debug)]
pub struct Entry {
    /// The metric.
    pub metric: Metric,
    /// From which series, and how.
    pub how: How,
    /// Only series with this label count.
    pub with: Option<(&'static str, &'static str)>,
    /// What it means that none of the series is there.
    pub absent: Absent,
}

/// Which series, and how they become a reading.
#[derive(Debug)]
pub enum How {
    /// A gauge as it is, times `scale`.
    Level {
        /// Its names.
        names: &'static [&'static str],
        /// Further parts of it, added where they are there.
        plus: &'static [&'static str],
        /// What turns its unit into the metric's.
        scale: f64,
        /// How its series combine.
        across: Across,
    },
    /// A counter's growth per second, summed over its series.
    PerSecond {
        /// Its names.
        names: &'static [&'static str],
    },
    /// The growth of a sum by the growth of its count, over all series, times `scale`.
    MeanOf {
        /// Sum and count.
        names: &'static [(&'static str, &'static str)],
        /// What turns its unit into milliseconds.
        scale: f64,
    },
}

/// How the series of a gauge combine: engines, models, data-parallel ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Across {
    /// Queues.
    Sum,
    /// Ratios.
    Mean,
}

/// What it means that a series is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absent {
    /// It should be: the reading has failed.
    Failed,
    /// This release or this way of running the engine does not have it.
    Unsupported,
    /// The engine publishes the counter from the first event on: nothing was counted.
    Nothing,
}

const SECONDS: f64 = 1_000.0;
const MICROSECONDS: f64 = 0.001;
const RATIO: f64 = 100.0;

const fn entry(metric: Metric, how: How) -> Entry {
    Entry { metric, how, with: None, absent: Absent::Failed }
}

/// A number of requests; over several series their sum.
const fn count(metric: Metric, names: &'static [&'static str]) -> Entry {
    entry(metric, How::Level { names, plus: &[], scale: 1.0, across: Sum })
}

/// A ratio of 0 to 1, in percent; over several series their mean.
const fn ratio(metric: Metric, names: &'static [&'static str]) -> Entry {
    entry(metric, How::Level { names, plus: &[], scale: RATIO, across: Mean })
}

const fn per_second(metric: Metric, names: &'static [&'static str]) -> Entry {
    entry(metric, How::PerSecond { names })
}

const fn mean_of(
    metric: Metric,
    names: &'static [(&'static str, &'static str)],
    scale: f64,
) -> Entry {
    entry(metric, How::MeanOf { names, scale })
}

impl Entry {
    const fn with(self, label: &'static str, value: &'static str) -> Self {
        Self { with: Some((label, value)), ..self }
    }

    const fn optional(self) -> Self {
        Self { absent: Absent::Unsupported, ..self }
    }

    const fn lazy(self) -> Self {
        Self { absent: Absent::Nothing, ..self }
    }

    const fn plus(self, plus: &'static [&'static str]) -> Self {
        match self.how {
            How::Level { names, scale, across, .. } => {
                Self { how: How::Level { names, plus, scale, across }, ..self }
            }
            How::PerSecond { .. } | How::MeanOf { .. } => self,
        }
    }

    /// The names that are looked for, those of alternatives included.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        let (plain, plus, pairs): (&[_], &[_], &[_]) = match self.how {
            How::Level { names, plus, .. } => (names, plus, &[]),
            How::PerSecond { names } => (names, &[], &[]),
            How::MeanOf { names, .. } => (&[], &[], names),
        };
        let pairs = pairs.iter().flat_map(|(sum, count)| [*sum, *count]);
        plain.iter().chain(plus).copied().chain(pairs)
    }
}

impl Dialect {
    /// Whether a series of that name is one of this engine's.
    pub fn owns(&self, name: &str) -> bool {
        self.marks.iter().any(|mark| {
            if mark.ends_with([':', '_']) { name.starts_with(mark) } else { name == *mark }
        })
    }

    /// The engine of that name.
    pub fn named(name: &str) -> Option<&'static Self> {
        DIALECTS.iter().find(|dialect| dialect.name.eq_ignore_ascii_case(name))
    }
}

/// Sum and count of a histogram.
macro_rules! histogram {
    ($name:literal) => {
        (concat!($name, "_sum"), concat!($name, "_count"))
    };
}

/// Has no page at all, in no release.
pub const OLLAMA: &str = "ollama";

/// Every engine, in the order in which a page is tried: Triton with vLLM inside publishes both.
pub static DIALECTS: &[Dialect] = &[VLLM, SGLANG, TRTLLM, TGI, TRITON, LLAMA_CPP, NIM];

/// Labels `model_name` and `engine`, the data-parallel rank.
const VLLM: Dialect = Dialect {
    name: "vllm",
    title: "vLLM",
    marks: &["vllm:"],
    repeated_over: &[],
    entries: &[
        count(RequestsWaiting, &["vllm:num_requests_waiting"]),
        count(RequestsRunning, &["vllm:num_requests_running"]),
        // The second is of releases before 0.10.
        ratio(KvCacheUsage, &["vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"]),
        // Also what `avg_generation_throughput_toks_per_s` said until it was removed.
        per_second(TokenThroughput, &["vllm:generation_tokens_total", "vllm:generation_tokens"]),
        per_second(RequestRate, &["vllm:request_success_total", "vllm:request_success"]),
        // Older releases have no such reason. Aborted ones were given up by their client.
        per_second(ErrorRate, &["vllm:request_success_total", "vllm:request_success"])
            .with("finished_reason", "error")
            .optional(),
        mean_of(QueueWaitMs, &[histogram!("vllm:request_queue_time_seconds")], SECONDS),
        mean_of(TimeToFirstTokenMs, &[histogram!("vllm:time_to_first_token_seconds")], SECONDS),
        mean_of(RequestLatencyMs, &[histogram!("vllm:e2e_request_latency_seconds")], SECONDS),
    ],
};

/// Tensor- and pipeline-parallel ranks publish the same queue, data-parallel ones their own.
const SGLANG: Dialect = Dialect {
    name: "sglang",
    title: "SGLang",
    marks: &["sglang:"],
    repeated_over: &["tp_rank", "pp_rank", "moe_ep_rank", "pid"],
    entries: &[
        // Grammars being compiled, and the queues of disaggregated serving.
        count(RequestsWaiting, &["sglang:num_queue_reqs"]).plus(&[
            "sglang:num_grammar_queue_reqs",
            "sglang:num_prefill_prealloc_queue_reqs",
            "sglang:num_prefill_inflight_queue_reqs",
            "sglang:num_decode_prealloc_queue_reqs",
            "sglang:num_decode_transfer_queue_reqs",
        ]),
        count(RequestsRunning, &["sglang:num_running_reqs"]),
        ratio(KvCacheUsage, &["sglang:token_usage"]),
        per_second(TokenThroughput, &["sglang:generation_tokens_total"]),
        per_second(RequestRate, &["sglang:num_requests_total"]),
        mean_of(QueueWaitMs, &[histogram!("sglang:queue_time_seconds")], SECONDS).optional(),
        mean_of(TimeToFirstTokenMs, &[histogram!("sglang:time_to_first_token_seconds")], SECONDS),
        mean_of(RequestLatencyMs, &[histogram!("sglang:e2e_request_latency_seconds")], SECONDS),
    ],
};

/// `trtllm-serve`; what it has depends on the release and on what is switched on.
const TRTLLM: Dialect = Dialect {
    name: "trtllm",
    title: "TensorRT-LLM",
    marks: &["trtllm_"],
    repeated_over: &[],
    entries: &[
        count(RequestsWaiting, &["trtllm_num_requests_waiting"]),
        count(RequestsRunning, &["trtllm_num_requests_running"]),
        ratio(KvCacheUsage, &["trtllm_kv_cache_utilization"]),
        per_second(
            TokenThroughput,
            &["trtllm_generation_tokens_total", "trtllm_generation_tokens"],
        )
        .optional(),
        per_second(RequestRate, &["trtllm_request_success_total", "trtllm_request_success"]),
        mean_of(QueueWaitMs, &[histogram!("trtllm_request_queue_time_seconds")], SECONDS),
        mean_of(TimeToFirstTokenMs, &[histogram!("trtllm_time_to_first_token_seconds")], SECONDS),
        mean_of(RequestLatencyMs, &[histogram!("trtllm_e2e_request_latency_seconds")], SECONDS),
    ],
};

/// Publishes a series from the first request on that touches it.
const TGI: Dialect = Dialect {
    name: "tgi",
    title: "Text Generation Inference",
    marks: &["tgi_"],
    repeated_over: &[],
    entries: &[
        count(RequestsWaiting, &["tgi_queue_size"]),
        count(RequestsRunning, &["tgi_batch_current_size"]),
        // Of a histogram: tokens count when their request has ended.
        per_second(TokenThroughput, &["tgi_request_generated_tokens_sum"]),
        per_second(RequestRate, &["tgi_request_success", "tgi_request_success_total"]),
        per_second(ErrorRate, &["tgi_request_failure", "tgi_request_failure_total"]).lazy(),
        mean_of(QueueWaitMs, &[histogram!("tgi_request_queue_duration")], SECONDS),
        mean_of(RequestLatencyMs, &[histogram!("tgi_request_duration")], SECONDS),
    ],
};

/// Labels `model` and `version`. Durations are counters in microseconds.
const TRITON: Dialect = Dialect {
    name: "triton",
    title: "Triton",
    marks: &["nv_inference_"],
    repeated_over: &[],
    entries: &[
        count(RequestsWaiting, &["nv_inference_pending_request_count"]),
        // What the TensorRT-LLM backend adds.
        count(RequestsRunning, &["nv_trt_llm_request_metrics"])
            .with("request_type", "scheduled")
            .optional(),
        ratio(KvCacheUsage, &["nv_trt_llm_kv_cache_block_metrics"])
            .with("kv_cache_block_type", "fraction")
            .optional(),
        per_second(RequestRate, &["nv_inference_request_success"]),
        per_second(ErrorRate, &["nv_inference_request_failure"]),
        mean_of(
            QueueWaitMs,
            &[("nv_inference_queue_duration_us", "nv_inference_request_success")],
            MICROSECONDS,
        ),
        // Of decoupled models, with a flag; in milliseconds.
        mean_of(TimeToFirstTokenMs, &[histogram!("nv_inference_first_response_histogram_ms")], 1.0)
            .optional(),
        mean_of(
            RequestLatencyMs,
            &[("nv_inference_request_duration_us", "nv_inference_request_success")],
            MICROSECONDS,
        ),
    ],
};

/// One request at a time a slot; no histograms.
const LLAMA_CPP: Dialect = Dialect {
    name: "llamacpp",
    title: "llama.cpp",
    marks: &["llamacpp:"],
    repeated_over: &[],
    entries: &[
        count(RequestsWaiting, &["llamacpp:requests_deferred"]),
        count(RequestsRunning, &["llamacpp:requests_processing"]),
        // Removed in newer releases.
        ratio(KvCacheUsage, &["llamacpp:kv_cache_usage_ratio"]).optional(),
        per_second(TokenThroughput, &["llamacpp:tokens_predicted_total"]),
    ],
};

/// Names without a prefix, so it is tried last and known by its own gauges only.
const NIM: Dialect = Dialect {
    name: "nim",
    title: "NIM",
    marks: &[
        "num_requests_waiting",
        "num_requests_running",
        "num_request_max",
        "gpu_cache_usage_perc",
    ],
    repeated_over: &[],
    entries: &[
        count(RequestsWaiting, &["num_requests_waiting"]),
        count(RequestsRunning, &["num_requests_running"]),
        ratio(KvCacheUsage, &["kv_cache_usage_perc", "gpu_cache_usage_perc"]),
        per_second(TokenThroughput, &["generation_tokens_total", "generation_tokens"]),
        per_second(RequestRate, &["request_success_total", "request_finish_total"]),
        per_second(ErrorRate, &["request_failure_total"]).optional(),
        mean_of(QueueWaitMs, &[histogram!("request_queue_time_seconds")], SECONDS).optional(),
        mean_of(TimeToFirstTokenMs, &[histogram!("time_to_first_token_seconds")], SECONDS),
        mean_of(RequestLatencyMs, &[histogram!("e2e_request_latency_seconds")], SECONDS),
    ],
};

/// What each engine publishes, as the reference lists it.
#[cfg(test)]
mod reference;
