//! What a simulated replica is made of: published figures, each with its source.
//!
//! Guarantees: nothing here is fitted to a result. Where a source gives no figure, the comment says
//! from what it is reckoned.

use std::time::Duration;

/// One replica: Llama 3.1 8B in BF16, served by vLLM on one A100 40 GB.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figures {
    /// Seconds of a step, whatever it does: the weights are read once. 13.3 ms a token for one
    /// request at a time: 75 tokens/s, J. Musgrave, "vLLM throughput-latency sweep on NVIDIA A100"
    /// (vLLM 0.23).
    pub step_seconds: f64,
    /// Seconds for a token of a prompt: 16 GFLOP at half of the 312 TFLOP/s of NVIDIA's data sheet.
    pub prompt_token_seconds: f64,
    /// Seconds for each further sequence of a step: the same sweep has 6.6 times the tokens at 8
    /// requests, hence 2.8 ms for seven more.
    pub sequence_seconds: f64,
    /// Seconds for a token that is in the cache when a step reads it: 131,072 bytes (32 layers, 8
    /// heads of 128, keys and values, 2 bytes) at 1,555 GB/s.
    pub cached_token_seconds: f64,
    /// Tokens that the cache has room for: 90 % of 40 GB (vLLM's default) less 16.1 GB of weights
    /// and 1.5 GB for activations, at 131,072 bytes.
    pub cache_tokens: u32,
    /// Tokens of a step: vLLM's `--max-num-batched-tokens` of 2,048.
    pub step_tokens: u32,
    /// Sequences at once: vLLM's `--max-num-seqs` of 256.
    pub max_sequences: usize,
    /// Watts of a GPU that does nothing but hold a model.
    pub idle_watts: f64,
    /// Watts while tokens are generated: about 60 % of the limit, Patel et al., "Splitwise", §III.
    pub decode_watts: f64,
    /// Watts while a prompt is worked on: the limit of 400 W, ibid.
    pub prompt_watts: f64,
    /// Device memory, in MiB.
    pub memory_mib: f64,
    /// From a pod's creation to a node and a container: pulled images, a warm node.
    pub schedule: Duration,
    /// From there to Ready. 60 to 180 s are usual for vLLM with weights on a local disk, compilation
    /// and graph capture included.
    pub load: Duration,
}

impl Default for Figures {
    fn default() -> Self {
        Self {
            step_seconds: 0.0133,
            prompt_token_seconds: 0.000_102,
            sequence_seconds: 0.000_4,
            cached_token_seconds: 0.000_000_084_3,
            cache_tokens: 140_000,
            step_tokens: 2_048,
            max_sequences: 256,
            idle_watts: 60.0,
            decode_watts: 240.0,
            prompt_watts: 400.0,
            memory_mib: 40_960.0,
            schedule: Duration::from_secs(3),
            load: Duration::from_secs(90),
        }
    }
}

impl Figures {
    /// Seconds of a step over `prompt` tokens of prompts and `decoding` sequences, with `cached`
    /// tokens in the cache.
    pub fn step(&self, prompt: u32, decoding: u32, cached: u32) -> f64 {
        self.step_seconds
            + f64::from(prompt) * self.prompt_token_seconds
            + f64::from(decoding.saturating_sub(1)) * self.sequence_seconds
            + f64::from(cached) * self.cached_token_seconds
    }

    /// Watts beyond idling during such a step.
    pub fn watts(&self, prompt: u32) -> f64 {
        let of_prompts = f64::from(prompt) / f64::from(self.step_tokens);
        self.decode_watts + (self.prompt_watts - self.decode_watts) * of_prompts - self.idle_watts
    }
}
