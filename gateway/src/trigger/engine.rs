//! Inference engines: their words, which of them a trigger means, and what they do not publish.
//!
//! Guarantees: an engine is implied only by what names it: an endpoint key, a metric's name in
//! that engine's own words, a built-in profile. Where its pages are is not for here.

use std::fmt;

use shared::metric::{Metric, Scope};

/// An inference engine that metadata can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Engine {
    /// vLLM.
    Vllm,
    /// SGLang.
    Sglang,
    /// Hugging Face TGI.
    Tgi,
    /// NVIDIA Triton.
    Triton,
    /// TensorRT-LLM, served by `trtllm-serve`.
    Trtllm,
    /// Ollama.
    Ollama,
}

/// Which engine the published and our own profiles are for.
const PROFILES: &[(&str, Engine)] = &[
    ("vllm", Engine::Vllm),
    ("vllm-inference", Engine::Vllm),
    ("vllm-queue-depth", Engine::Vllm),
    ("sglang", Engine::Sglang),
    ("tgi", Engine::Tgi),
    ("tgi-inference", Engine::Tgi),
    ("triton", Engine::Triton),
    ("triton-inference", Engine::Triton),
    ("triton-queue-wait", Engine::Triton),
    ("triton-request-rate", Engine::Triton),
    ("trtllm", Engine::Trtllm),
    ("ollama", Engine::Ollama),
];

/// How the names of metrics begin that are in one engine's own words.
const PREFIXES: &[(&str, Engine)] =
    &[("vllm:", Engine::Vllm), ("vllm_", Engine::Vllm), ("triton_", Engine::Triton)];

impl Engine {
    /// The word for it between gateway and agents.
    pub fn word(self) -> &'static str {
        match self {
            Self::Vllm => "vllm",
            Self::Sglang => "sglang",
            Self::Tgi => "tgi",
            Self::Triton => "triton",
            Self::Trtllm => "trtllm",
            Self::Ollama => "ollama",
        }
    }

    /// The engine of a built-in profile.
    pub(super) fn of_profile(name: &str) -> Option<Self> {
        PROFILES.iter().find(|(profile, _)| *profile == name).map(|(_, engine)| *engine)
    }

    /// The engine in whose words `metricType` is written; `None` where the words are everybody's,
    /// or of more than one engine.
    pub(super) fn of_metric_type(text: &str) -> Option<Self> {
        let of = |part: &str| {
            let prefix = PREFIXES.iter().find(|(prefix, _)| part.trim_ascii().starts_with(prefix));
            prefix.map(|(_, engine)| *engine)
        };
        agreed(text.split(',').filter_map(of))
    }

    /// Whether no version of it publishes `metric`.
    pub fn lacks(self, metric: Metric) -> bool {
        match self {
            Self::Tgi => matches!(metric, Metric::KvCacheUsage | Metric::TimeToFirstTokenMs),
            Self::Triton => metric == Metric::TokenThroughput,
            Self::Sglang | Self::Trtllm => metric == Metric::ErrorRate,
            Self::Ollama => metric.scope() == Scope::Engine,
            Self::Vllm => false,
        }
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Vllm => "vLLM",
            Self::Sglang => "SGLang",
            Self::Tgi => "TGI",
            Self::Triton => "Triton",
            Self::Trtllm => "TensorRT-LLM",
            Self::Ollama => "Ollama",
        })
    }
}

/// The one engine that all of `engines` are, if they agree.
pub fn agreed(mut engines: impl Iterator<Item = Engine>) -> Option<Engine> {
    let first = engines.next()?;
    engines.all(|engine| engine == first).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_is_implied_by_its_own_words_only() {
        for (text, engine) in [
            ("vllm:num_requests_waiting", Some(Engine::Vllm)),
            ("vllm_queue_depth:5", Some(Engine::Vllm)),
            ("kv_cache_usage:80, vllm_queue_depth:5", Some(Engine::Vllm)),
            ("triton_queue_wait_ms", Some(Engine::Triton)),
            ("triton_queue_wait_ms:5,vllm_queue_depth:5", None),
            ("requests_waiting:5", None),
        ] {
            assert_eq!(Engine::of_metric_type(text), engine, "{text}");
        }
    }
}
