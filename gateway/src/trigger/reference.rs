//! What metadata can say, as the reference lists it.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use reference::{compare, described, table};
use shared::metric::{Combine, Metric, Scope, Unit};

use super::measure::ALIASES;
use super::metadata::KEYS;
use super::profile::{BUILT_IN, Profiles};
use super::spec::parse;

/// A wrong value of every key, to show what is said of it.
const WRONG: &[(&str, &str)] = &[
    ("profile", "vlm"),
    ("metricType", "gpu_utilisation"),
    ("targetValue", "80%"),
    ("targetGpuUtilization", "0"),
    ("targetMemoryUtilization", "0,8"),
    ("activationThreshold", "-1"),
    ("aggregation", "mean"),
    ("gpuIndex", "-2"),
    ("window", "30"),
    ("windowFunction", "p99"),
    ("activationWindow", "2h"),
    ("staleAfter", "10ms"),
    ("startupGrace", "soon"),
    ("coldStartTimeout", "2days"),
    ("engineLabels", "model"),
    ("demandEndpoint", "https://router:9090"),
    ("demandMetric", "queue{model=a}"),
    ("demandLabels", "model"),
    ("demandThreshold", "-1"),
    ("demandAbsent", "ignore"),
    ("metricName", "GPU"),
    ("pollIntervalSeconds", "0.5"),
    ("vllmEndpoint", "vllm:8000"),
    ("tritonEndpoint", "https://triton:8002"),
];

fn refusal(key: &str, value: &str) -> String {
    let metadata = HashMap::from([(key.to_owned(), value.to_owned())]);
    let error = parse(&metadata, &Profiles::default()).expect_err("it is wrong");
    error.problems()[0].clone()
}

#[test]
fn the_reference_lists_every_key() {
    let wrong: BTreeMap<_, _> = WRONG.iter().copied().collect();
    let rows = KEYS.iter().map(|key| {
        described(&key.name, key.meaning);
        described(&key.name, key.accepts);
        let Some(value) = wrong.get(key.name) else {
            panic!("{} has no wrong value to show", key.name)
        };
        let refused = refusal(key.name, value);
        assert!(refused.contains(key.name), "{refused}");
        let name = format!("`{}`", key.name);
        [name, key.default.into(), key.accepts.into(), key.meaning.into(), format!("`{refused}`")]
    });
    let head = ["key", "default", "values", "meaning", "what is said of a wrong one, for example"];
    compare("metadata.md", "keys", &table(head, rows));
}

#[test]
fn ranges_are_those_that_refusals_name() {
    for key in KEYS {
        let said = ["99999999", "999days"].map(|value| refusal_of(key.name, value));
        let range = said.iter().flatten().find_map(|said| said.split_once("must be from "));
        let Some((_, range)) = range else { continue };
        let range = range.split(',').next().unwrap_or_default();
        let accepts = key.accepts.replace("-1 to", "0 to");
        assert_eq!(accepts, range, "{}", key.name);
    }
    let timed = KEYS.iter().filter(|key| key.default.ends_with(['s', 'm']));
    let timed = timed.filter(|key| humantime::parse_duration(key.default).is_ok());
    for key in timed {
        let metadata = HashMap::from([(key.name.to_owned(), key.default.to_owned())]);
        let (said, silent) = (metadata, HashMap::new());
        let [said, silent] = [said, silent].map(|map| parse(&map, &Profiles::default()).unwrap());
        assert_eq!(said, silent, "{} is not {} by itself", key.name, key.default);
        assert_ne!(humantime::parse_duration(key.default), Ok(Duration::MAX));
    }
}

fn refusal_of(key: &str, value: &str) -> Option<String> {
    let metadata = HashMap::from([(key.to_owned(), value.to_owned())]);
    let error = parse(&metadata, &Profiles::default()).err()?;
    Some(error.problems()[0].clone())
}

#[test]
fn the_reference_lists_every_metric() {
    let rows = Metric::ALL.iter().map(|&metric| {
        described(&metric, metric.about());
        let aliases = ALIASES.iter().filter(|(_, of)| *of == metric);
        let aliases: Vec<String> = aliases.map(|(alias, _)| format!("`{alias}`")).collect();
        let scope = match metric.scope() {
            Scope::Device => "GPU",
            Scope::Engine => "engine",
        };
        let combine = match metric.combine() {
            Combine::Mean => "mean",
            Combine::Sum => "sum",
        };
        let unit = match metric.unit() {
            Unit::Count => "number",
            unit => unit.symbol(),
        };
        let metadata = HashMap::from([("metricType".to_owned(), metric.name().to_owned())]);
        let usual = parse(&metadata, &Profiles::default()).map(|trigger| trigger.target);
        let target = usual.map_or_else(|_| "to be given".into(), |target| target.to_string());
        let (name, about) = (format!("`{metric}`"), metric.about().to_owned());
        [name, unit.into(), scope.into(), combine.into(), target, aliases.join(" "), about]
    });
    let head = ["metric", "unit", "of", "over a pod's GPUs", "target", "aliases", "what it is"];
    compare("metadata.md", "metrics", &table(head, rows));
}

#[test]
fn the_reference_lists_every_profile() {
    let profiles = Profiles::default();
    let rows = BUILT_IN.iter().map(|(name, keys)| {
        let metadata = HashMap::from([("profile".to_owned(), (*name).to_owned())]);
        let trigger = parse(&metadata, &profiles).expect("a built-in profile is a good trigger");
        let keys: Vec<String> =
            keys.iter().map(|(key, value)| format!("`{key}: {value}`")).collect();
        let engine = trigger.engine.map_or(String::new(), |engine| engine.to_string());
        let unsound = super::warning::warnings(&trigger, Some(1), false);
        [format!("`{name}`"), engine, keys.join("<br>"), unsound.join("<br>")]
    });
    let head = ["profile", "engine", "what it sets", "what `check` says of it"];
    compare("metadata.md", "profiles", &table(head, rows));
}
