//! The one table of metadata keys, and reading a map of strings by it.
//!
//! Guarantees: every key is read, or refused with the nearest good one, whatever the map's order.
//! Each value is checked alone; what several keys say together is for `super::spec`.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

pub use super::choice::{Absent, Aggregation, WindowFunction};
use super::endpoint::{self, DemandEndpoint, EngineEndpoint};
use super::engine::Engine;
use super::measure::Measure;
use super::number;
use super::word::{nearest, one_of, quoted};

/// Longest metric name; the HPA's own limit for a name it puts into a path.
pub(super) const MAX_NAME: usize = 63;
/// Most unknown keys that one error names.
const MAX_UNKNOWN: usize = 8;
/// KEDA's own keys, which arrive with every trigger and are not for us.
const KEDA_KEYS: [&str; 7] = [
    "scalerAddress",
    "enableTLS",
    "unsafeSsl",
    "caCert",
    "tlsClientCert",
    "tlsClientKey",
    "tlsCertFile",
];
/// What is said instead of a value that KEDA read in the target's environment.
const HIDDEN: &str = "(value from an environment variable)";
const TENTH: Duration = Duration::from_millis(100);
const TEN_MINUTES: Duration = Duration::from_mins(10);
const HOUR: Duration = Duration::from_hours(1);
const DAY: Duration = Duration::from_hours(24);

/// Why metadata was refused: every problem found, in a fixed order.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join("; "))]
pub struct Error(Vec<String>);

impl Error {
    /// Each problem on its own.
    pub fn problems(&self) -> &[String] {
        &self.0
    }
}

/// One metadata key.
pub struct Key {
    /// How it is written.
    pub name: &'static str,
    /// What holds without it.
    pub default: &'static str,
    /// Which values it takes, in a few words.
    pub accepts: &'static str,
    /// What it is for, in a few words.
    pub meaning: &'static str,
    read: fn(&mut Fields, &str) -> Result<(), String>,
}

macro_rules! fields {
    ($($field:ident: $kind:ty,)*) => {
        /// What a map of keys says, each value typed; `None` where it says nothing.
        #[derive(Clone, Debug, Default, PartialEq)]
        pub(super) struct Fields {
            $(pub(super) $field: Option<$kind>,)*
        }

        impl Fields {
            /// These fields, and those of `base` where they say nothing.
            pub(super) fn over(&self, base: &Self) -> Self {
                Self { $($field: self.$field.clone().or_else(|| base.$field.clone()),)* }
            }
        }
    };
}

fields! {
    profile: String,
    metric_type: Measure,
    metric_engine: Option<Engine>,
    target_value: f64,
    target_gpu_utilization: f64,
    target_memory_utilization: f64,
    activation_threshold: f64,
    aggregation: Aggregation,
    gpu_index: Option<u32>,
    window: Duration,
    window_function: WindowFunction,
    activation_window: Duration,
    stale_after: Duration,
    startup_grace: Duration,
    cold_start_timeout: Duration,
    engine_labels: Vec<(String, String)>,
    demand_endpoint: DemandEndpoint,
    demand_metric: String,
    demand_labels: Vec<(String, String)>,
    demand_threshold: f64,
    demand_absent: Absent,
    metric_name: Arc<str>,
    poll_interval_seconds: u32,
    vllm_endpoint: EngineEndpoint,
    triton_endpoint: EngineEndpoint,
}

impl Fields {
    /// The engine endpoint, of which there can be one.
    pub(super) fn engine_endpoint(&self, problems: &mut Problems) -> Option<EngineEndpoint> {
        if self.vllm_endpoint.is_some() && self.triton_endpoint.is_some() {
            let text = "vllmEndpoint and tritonEndpoint name different engines, keep one";
            problems.add("vllmEndpoint", text);
        }
        self.vllm_endpoint.clone().or_else(|| self.triton_endpoint.clone())
    }
}

/// Reads one key's value into its field.
macro_rules! read {
    ($field:ident, $parse:expr) => {
        |fields, text| {
            fields.$field = Some($parse(text)?);
            Ok(())
        }
    };
}

const fn key(
    name: &'static str,
    default: &'static str,
    accepts: &'static str,
    meaning: &'static str,
    read: fn(&mut Fields, &str) -> Result<(), String>,
) -> Key {
    Key { name, default, accepts, meaning, read }
}

/// Every key of ours, in the order of the documentation.
#[rustfmt::skip]
pub const KEYS: &[Key] = &[
    key("profile", "none", "the name of a profile",
        "named defaults, which any key overrides",
        read!(profile, owned)),
    key("metricType", "gpu_utilization", "`NAME`, `NAME:TARGET` or up to 8 of them with commas",
        "what is measured; of several the one that is fullest for its target",
        |fields, text| {
            fields.metric_type = Some(Measure::parse(text)?);
            fields.metric_engine = Some(Engine::of_metric_type(text));
            Ok(())
        }),
    key("targetValue", "the profile's, else 80 for percent metrics", "0.001 to 9e15",
        "target per replica",
        read!(target_value, number::target)),
    key("targetGpuUtilization", "none", "0.001 to 9e15",
        "sets metricType gpu_utilization and the target",
        read!(target_gpu_utilization, number::target)),
    key("targetMemoryUtilization", "none", "0.001 to 9e15",
        "sets metricType memory_used_percent and the target",
        read!(target_memory_utilization, number::target)),
    key("activationThreshold", "the profile's, else 0", "0 or more",
        "readings strictly above it are activity",
        read!(activation_threshold, number::threshold)),
    key("aggregation", "total", "total max min avg sum p50 p90 p95 p99",
        "how readings of GPUs and pods become one",
        read!(aggregation, |text| one_of(text, Aggregation::ALL, Aggregation::word))),
    key("gpuIndex", "-1", "-1 to 1023",
        "the n-th of each pod's own GPUs, -1 for all",
        read!(gpu_index, gpu_index)),
    key("window", "0s", "0s to 1h",
        "how far back readings are smoothed",
        read!(window, |text| number::duration(text, Duration::ZERO..=HOUR))),
    key("windowFunction", "avg", "avg max min p90",
        "how the readings of the window become one",
        read!(window_function, |text| one_of(text, WindowFunction::ALL, WindowFunction::word))),
    key("activationWindow", "60s", "0s to 1h",
        "inactive only after this long without activity",
        read!(activation_window, |text| number::duration(text, Duration::ZERO..=HOUR))),
    key("staleAfter", "10s", "100ms to 10m",
        "older readings are missing",
        read!(stale_after, |text| number::duration(text, TENTH..=TEN_MINUTES))),
    key("startupGrace", "0s", "0s to 1day",
        "how long after Ready a pod still counts as starting",
        read!(startup_grace, |text| number::duration(text, Duration::ZERO..=DAY))),
    key("coldStartTimeout", "15m", "0s to 1day",
        "how long an unready pod may hold the value",
        read!(cold_start_timeout, |text| number::duration(text, Duration::ZERO..=DAY))),
    key("engineLabels", "all series", "`name=value,name=value`",
        "only engine series with these labels count",
        read!(engine_labels, endpoint::labels)),
    key("demandEndpoint", "none", "`[http://]HOST[:PORT][/PATH]`",
        "page that shows demand while no pod is ready",
        read!(demand_endpoint, DemandEndpoint::parse)),
    key("demandMetric", "none", "the name of a Prometheus series",
        "series of that page, summed",
        read!(demand_metric, endpoint::series_name)),
    key("demandLabels", "all series", "`name=value,name=value`",
        "only demand series with these labels count",
        read!(demand_labels, endpoint::labels)),
    key("demandThreshold", "0", "0 or more",
        "demand strictly above it is activity",
        read!(demand_threshold, number::threshold)),
    key("demandAbsent", "error", "error zero",
        "what an absent demand series means: error or zero",
        read!(demand_absent, |text| one_of(text, Absent::ALL, Absent::word))),
    key("metricName", "derived", "at most 63 lower-case letters, digits, - _ and .",
        "name of the metric in KEDA",
        read!(metric_name, metric_name)),
    key("pollIntervalSeconds", "unused", "1 to 86400",
        "checked, otherwise unused: changes are pushed at once",
        read!(poll_interval_seconds, |text| number::integer(text, 1..=86_400))),
    key("vllmEndpoint", "none", "`http://HOST[:PORT][/PATH]`",
        "says that pods run vLLM, and their port and path",
        read!(vllm_endpoint, |text| EngineEndpoint::parse(Engine::Vllm, text))),
    key("tritonEndpoint", "none", "`http://HOST[:PORT][/PATH]`",
        "says that pods run Triton, and their port and path",
        read!(triton_endpoint, |text| EngineEndpoint::parse(Engine::Triton, text))),
];

/// The problems found so far, each with the key it belongs to.
#[derive(Default)]
pub(super) struct Problems {
    found: Vec<(&'static str, String)>,
    unknown: usize,
    /// Keys whose values come from the target's environment, and may be secrets.
    hidden: Vec<&'static str>,
}

impl Problems {
    pub(super) fn add(&mut self, key: &'static str, text: impl Into<String>) {
        self.found.push((key, text.into()));
    }

    /// The value `text` of `key` as it may be shown.
    pub(super) fn shown(&self, key: &str, text: &str) -> String {
        if self.hidden.contains(&key) { HIDDEN.to_owned() } else { quoted(text) }
    }

    pub(super) fn concern(&self, keys: &[&str]) -> bool {
        self.found.iter().any(|(key, _)| keys.contains(key))
    }

    /// Fails if there is any problem.
    pub(super) fn none(self) -> Result<(), Error> {
        let hidden = self.unknown.saturating_sub(MAX_UNKNOWN);
        let more = (hidden > 0).then(|| format!("{hidden} more unknown keys"));
        refuse(self.found.into_iter().map(|(_, text)| text).chain(more).collect())
    }

    /// Fails if any problem belongs to one of `keys`.
    pub(super) fn none_with(self, keys: &[&str]) -> Result<(), Error> {
        let ours = self.found.into_iter().filter(|(key, _)| keys.contains(key));
        refuse(ours.map(|(_, text)| text).collect())
    }

    fn unknown(&mut self, name: &str) {
        self.unknown += 1;
        // Naming them all would let one request ask for any amount of work.
        if self.unknown <= MAX_UNKNOWN {
            let near =
                nearest(name, KEYS.iter().map(|key| key.name).chain(KEDA_KEYS.iter().copied()));
            self.add("", format!("unknown key {}, nearest is {near}", quoted(name)));
        }
    }
}

/// Reads a map of metadata. A broken value leaves its field empty and its problem noted.
pub(super) fn read<'a>(
    metadata: impl Iterator<Item = (&'a str, &'a str)>,
    problems: &mut Problems,
) -> Fields {
    let metadata: BTreeMap<_, _> = metadata.collect();
    let mut fields = Fields::default();
    for (&name, value) in &metadata {
        let from_env = name.strip_suffix("FromEnv");
        let Some(key) = find(from_env.unwrap_or(name)) else {
            if !is_for_keda(name) {
                problems.unknown(name);
            }
            continue;
        };
        let text = value.trim_ascii();
        if from_env.is_some() && !metadata.contains_key(key.name) {
            problems.hidden.push(key.name);
        }
        match metadata.get(key.name) {
            Some(other) if from_env.is_some() => {
                if other.trim_ascii() != text {
                    problems.add(key.name, format!("{} and {name} differ, keep one", key.name));
                }
            }
            _ if text.is_empty() => problems.add(key.name, format!("{name} is empty")),
            _ => {
                let Err(reason) = (key.read)(&mut fields, text) else { continue };
                let problem = match from_env {
                    // It may be a secret, and so may what the reason quotes of it.
                    Some(_) => {
                        let accepts = key.accepts.replace('`', "");
                        format!("{name} {HIDDEN} is wrong, it takes {accepts}")
                    }
                    None => format!("{name} {}: {reason}", quoted(text)),
                };
                problems.add(key.name, problem);
            }
        }
    }
    fields
}

/// Whether KEDA reads that key of a trigger itself.
pub fn is_for_keda(name: &str) -> bool {
    KEDA_KEYS.contains(&name) || name.ends_with("FromEnv")
}

/// Whether that key, as KEDA sends it, says something here.
fn is_ours(name: &str) -> bool {
    find(name.strip_suffix("FromEnv").unwrap_or(name)).is_some()
}

/// What of `metadata`, as KEDA sends it, says something here.
pub fn ours(metadata: &HashMap<String, String>) -> HashMap<String, String> {
    let ours = metadata.iter().filter(|(key, _)| is_ours(key));
    ours.map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// Whether two maps, as KEDA sends them, say the same here.
pub fn is_same(one: &HashMap<String, String>, other: &HashMap<String, String>) -> bool {
    let count = |map: &HashMap<String, String>| map.keys().filter(|key| is_ours(key)).count();
    let mut ours = one.iter().filter(|(key, _)| is_ours(key));
    count(one) == count(other) && ours.all(|(key, value)| other.get(key) == Some(value))
}

fn find(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}

fn refuse(problems: Vec<String>) -> Result<(), Error> {
    if problems.is_empty() { Ok(()) } else { Err(Error(problems)) }
}

fn owned(text: &str) -> Result<String, String> {
    Ok(text.to_owned())
}

fn gpu_index(text: &str) -> Result<Option<u32>, String> {
    match number::decimal(text)? {
        -1.0 => Ok(None),
        _ => number::integer(text, 0..=1023)
            .map(Some)
            .map_err(|reason| format!("{reason}, or -1 for all")),
    }
}

fn metric_name(text: &str) -> Result<Arc<str>, String> {
    let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-_.".contains(&b);
    if text.len() <= MAX_NAME && text.bytes().all(fits) {
        Ok(text.into())
    } else {
        Err(format!("use at most {MAX_NAME} lower-case letters, digits, - _ and ."))
    }
}
