//! Named defaults: the published ones, ours, and the users' own.
//!
//! Guarantees: a profile is a map of the same keys as a trigger's metadata and nothing else; what
//! a profile says has been checked before any trigger names it.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::goal::Goal;
use super::metadata::{Fields, Problems, is_for_keda, read};
use super::word::quoted;

type Keys = &'static [(&'static str, &'static str)];

const VRAM: (&str, &str) = ("metricType", "memory_used_percent");
const GPU: (&str, &str) = ("metricType", "gpu_utilization");
/// Queue first; running and cache catch an engine that is full before it queues.
const ENGINE: &str = "requests_waiting:5,requests_running:64,kv_cache_usage:80";

/// The ten published profiles, exactly as published, and then ours.
#[rustfmt::skip]
pub(super) const BUILT_IN: &[(&str, Keys)] = &[
    ("vllm-inference", &[VRAM, ("targetValue", "80"), ("activationThreshold", "5")]),
    ("triton-inference", &[GPU, ("targetValue", "75"), ("activationThreshold", "10")]),
    (TRAINING, &[GPU, ("targetValue", "90"), ("activationThreshold", "0")]),
    ("batch", &[VRAM, ("targetValue", "70"), ("activationThreshold", "1")]),
    ("vllm-queue-depth", &[("metricType", "requests_waiting"), ("targetValue", "5"), ("activationThreshold", "1")]),
    ("triton-queue-wait", &[("metricType", "queue_wait_ms"), ("targetValue", "50"), ("activationThreshold", "5")]),
    ("triton-request-rate", &[("metricType", "request_rate"), ("targetValue", "50"), ("activationThreshold", "1")]),
    ("ollama", &[VRAM, ("targetValue", "70"), ("activationThreshold", "3")]),
    ("tgi-inference", &[VRAM, ("targetValue", "75"), ("activationThreshold", "5")]),
    ("distributed-training", &[("metricType", "nvlink_tx_mbps"), ("targetValue", "50000"), ("activationThreshold", "5000")]),
    ("vllm", &[("metricType", ENGINE)]),
    ("sglang", &[("metricType", ENGINE)]),
    // TGI publishes no cache usage.
    ("tgi", &[("metricType", "requests_waiting:5,requests_running:64")]),
    // Triton publishes no running count; the wait is the published profile's, for versions that
    // do not publish the queue either.
    ("triton", &[("metricType", "requests_waiting:5,queue_wait_ms:50")]),
    ("trtllm", &[("metricType", ENGINE)]),
];

/// The profile that stays active while pods exist.
pub(super) const TRAINING: &str = "training";

/// Why a file of profiles was refused.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It is not a YAML map of maps of plain values.
    #[error("not a map of profile names to keys: {0}")]
    Yaml(#[source] Box<serde_saphyr::Error>),
    /// It is, but not of good profiles; every problem found.
    #[error("{}", .0.join("; "))]
    Refused(Vec<String>),
}

/// Every profile that a trigger can name.
#[derive(Clone, Debug)]
pub struct Profiles {
    by_name: BTreeMap<Arc<str>, Profile>,
}

/// One profile, its keys read.
#[derive(Clone, Debug)]
pub(super) struct Profile {
    pub(super) name: Arc<str>,
    pub(super) fields: Fields,
    pub(super) goal: Goal,
}

impl Default for Profiles {
    /// The built-in profiles.
    fn default() -> Self {
        let mut problems = Problems::default();
        let profiles = BUILT_IN
            .iter()
            .map(|(name, keys)| Profile::read(name, keys.iter().copied(), &mut problems));
        Self { by_name: profiles.map(|profile| (profile.name.clone(), profile)).collect() }
    }
}

impl Profiles {
    /// The built-in profiles and those of a file: a YAML map of names to maps of metadata keys.
    pub fn load(yaml: &str) -> Result<Self, Error> {
        let file: Option<BTreeMap<String, BTreeMap<String, String>>> =
            serde_saphyr::from_str(yaml).map_err(|error| Error::Yaml(Box::new(error)))?;
        let mut profiles = Self::default();
        let mut refused = Vec::new();
        for (name, keys) in file.unwrap_or_default() {
            match profiles.check(&name, &keys) {
                Ok(profile) => {
                    profiles.by_name.insert(profile.name.clone(), profile);
                }
                Err(reason) => refused.push(format!("profile {}: {reason}", quoted(&name))),
            }
        }
        if refused.is_empty() { Ok(profiles) } else { Err(Error::Refused(refused)) }
    }

    /// The names of all profiles, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.by_name.keys().map(AsRef::as_ref)
    }

    pub(super) fn get(&self, name: &str) -> Option<&Profile> {
        self.by_name.get(name)
    }

    fn check(&self, name: &str, keys: &BTreeMap<String, String>) -> Result<Profile, String> {
        let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-_.".contains(&b);
        if name.is_empty() || !name.bytes().all(fits) {
            return Err("use lower-case letters, digits, - _ and . in the name".to_owned());
        }
        if self.by_name.contains_key(name) {
            return Err("is built in, choose another name".to_owned());
        }
        let mut problems = Problems::default();
        let profile =
            Profile::read(name, keys.iter().map(|(k, v)| (k.as_str(), v.as_str())), &mut problems);
        // The reader skips what belongs to KEDA, which means nothing here.
        for key in keys.keys().filter(|key| is_for_keda(key) || *key == "profile") {
            problems.add("", format!("{} does not belong in a profile", quoted(key)));
        }
        profile.fields.engine_endpoint(&mut problems);
        problems.none().map(|()| profile).map_err(|error| error.to_string())
    }
}

impl Profile {
    fn read<'a>(
        name: &str,
        keys: impl Iterator<Item = (&'a str, &'a str)>,
        problems: &mut Problems,
    ) -> Self {
        let fields = read(keys, problems);
        let goal = Goal::read(&fields, problems);
        Self { name: name.into(), fields, goal }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use crate::trigger::spec::{Trigger, parse};

    use super::*;

    fn trigger(profiles: &Profiles, name: &str) -> Trigger {
        parse(&HashMap::from([("profile".to_owned(), name.to_owned())]), profiles).unwrap()
    }

    #[test]
    fn published_profiles_are_as_published() {
        let profiles = Profiles::default();
        for (name, metric, target, activation) in [
            ("vllm-inference", "memory_used_percent", 80.0, 5.0),
            ("triton-inference", "gpu_utilization", 75.0, 10.0),
            ("training", "gpu_utilization", 90.0, 0.0),
            ("batch", "memory_used_percent", 70.0, 1.0),
            ("vllm-queue-depth", "requests_waiting", 5.0, 1.0),
            ("triton-queue-wait", "queue_wait_ms", 50.0, 5.0),
            ("triton-request-rate", "request_rate", 50.0, 1.0),
            ("ollama", "memory_used_percent", 70.0, 3.0),
            ("tgi-inference", "memory_used_percent", 75.0, 5.0),
            ("distributed-training", "nvlink_tx_mbps", 50_000.0, 5_000.0),
        ] {
            let trigger = trigger(&profiles, name);
            assert_eq!(trigger.parts[0].metric.name(), metric, "{name}");
            assert_eq!(
                (trigger.target, trigger.activation_threshold),
                (target, activation),
                "{name}"
            );
        }
    }

    #[test]
    fn every_built_in_profile_is_a_good_trigger() {
        let profiles = Profiles::default();
        assert_eq!(profiles.names().count(), BUILT_IN.len());
        for name in profiles.names() {
            assert_eq!(trigger(&profiles, name).profile.as_deref(), Some(name));
        }
        for name in ["vllm", "sglang", "tgi", "triton", "trtllm"] {
            assert!(trigger(&profiles, name).composite, "{name}");
        }
    }

    #[test]
    fn users_add_their_own() {
        let yaml = "mine: {metricType: requests_waiting, targetValue: 2.5, window: 30s}\n\
                    half:\n  targetValue: \"60\"\n  gpuIndex: 0\n";
        let profiles = Profiles::load(yaml).unwrap();
        let mine = trigger(&profiles, "mine");
        assert_eq!((mine.target, &*mine.name), (2.5, "requests_waiting-avg30s"));
        assert_eq!(trigger(&profiles, "half").gpu_index, Some(0));
        assert_eq!(trigger(&profiles, "vllm"), trigger(&Profiles::default(), "vllm"));
        for empty in ["", "# nothing yet\n", "{}"] {
            assert_eq!(Profiles::load(empty).unwrap().names().count(), BUILT_IN.len());
        }
    }

    #[test]
    fn bad_profiles_are_refused_by_name() {
        for (yaml, message) in [
            (
                "mine: {targetvalue: 5}",
                r#"profile "mine": unknown key "targetvalue", nearest is targetValue"#,
            ),
            ("mine: {targetValue: 80%}", r#"profile "mine": targetValue "80%": write 80"#),
            ("mine: {targetValue: .nan}", r#"profile "mine": targetValue ".nan": not a number"#),
            ("mine: {targetValue: true}", r#"profile "mine": targetValue "true": not a number"#),
            ("mine: {targetValue: ''}", r#"profile "mine": targetValue is empty"#),
            ("mine: {profile: vllm}", r#"profile "mine": "profile" does not belong in a profile"#),
            ("mine: {caCert: x}", r#"profile "mine": "caCert" does not belong in a profile"#),
            (
                "mine: {targetValueFromEnv: 5}",
                r#"profile "mine": "targetValueFromEnv" does not belong in a profile"#,
            ),
            ("vllm: {targetValue: 5}", r#"profile "vllm": is built in, choose another name"#),
            (
                "My Own: {targetValue: 5}",
                r#"profile "My Own": use lower-case letters, digits, - _ and . in the name"#,
            ),
            (
                "b: {gpuIndex: x}\na: {targetValue: 1, targetGpuUtilization: 2}",
                "profile \"a\": targetValue says target 1 and targetGpuUtilization says 2, keep one; \
                 profile \"b\": gpuIndex \"x\": not a number",
            ),
        ] {
            assert_eq!(Profiles::load(yaml).unwrap_err().to_string(), message, "{yaml}");
        }
    }

    #[test]
    fn a_file_that_is_not_a_map_of_maps_is_refused() {
        for yaml in [
            "- a",
            "mine: 5",
            "mine: {targetValue: [5]}",
            "mine: {a: 1, a: 2}",
            "mine: {targetValue: 5",
            "mine: {targetValue: }",
        ] {
            let error = Profiles::load(yaml);
            assert!(matches!(error, Err(Error::Yaml(_))), "{yaml}: {error:?}");
        }
    }
}
