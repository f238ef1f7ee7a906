//! YAML → ScaledObjects and ScaledJobs, as far as rules look at them.
//!
//! Guarantees: a document that cannot be read does not hide its neighbours; a field of the wrong
//! kind is named and then taken as absent.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::{Severity, TYPING_MISTAKE, nearest};

/// The group and version whose kinds are checked.
const API_VERSION: &str = "keda.sh/v1alpha1";
/// Lists within lists are followed this deep.
const MAX_LISTS: usize = 4;

const OBJECT_FIELDS: &[&str] = &[
    "scaleTargetRef",
    "pollingInterval",
    "initialCooldownPeriod",
    "cooldownPeriod",
    "idleReplicaCount",
    "minReplicaCount",
    "maxReplicaCount",
    "advanced",
    "triggers",
    "fallback",
];
const JOB_FIELDS: &[&str] = &[
    "jobTargetRef",
    "pollingInterval",
    "successfulJobsHistoryLimit",
    "failedJobsHistoryLimit",
    "rolloutStrategy",
    "rollout",
    "envSourceContainerName",
    "minReplicaCount",
    "maxReplicaCount",
    "scalingStrategy",
    "triggers",
];
const TRIGGER_FIELDS: &[&str] =
    &["type", "name", "useCachedMetrics", "metadata", "authenticationRef", "metricType"];

/// What a document holds.
pub(super) enum Parsed {
    /// It is not YAML.
    Unreadable {
        /// Why and where.
        message: String,
    },
    /// A ScaledObject or ScaledJob.
    Object(Box<Object>),
    /// It is probably meant to be one, and KEDA takes it for none.
    NotChecked {
        /// What is wrong and what would be right.
        message: String,
    },
}

/// A ScaledObject or ScaledJob.
#[derive(Default)]
pub(super) struct Object {
    /// `ScaledObject ai/vllm`.
    pub(super) label: String,
    pub(super) namespace: Option<String>,
    pub(super) is_job: bool,
    pub(super) is_paused: bool,
    pub(super) min: Option<u32>,
    pub(super) max: Option<u32>,
    pub(super) idle: Option<u32>,
    pub(super) cooldown: Option<u32>,
    pub(super) polling: Option<u32>,
    pub(super) fallback: Option<Fallback>,
    /// `advanced.scalingModifiers.target`, where a formula is set.
    pub(super) formula_target: Option<String>,
    pub(super) triggers: Vec<Declared>,
    /// What is wrong with fields of it.
    pub(super) problems: Vec<Problem>,
}

/// What KEDA orders when a trigger fails.
pub(super) struct Fallback {
    pub(super) replicas: Option<u32>,
    pub(super) behavior: String,
}

/// A trigger as it is declared.
pub(super) struct Declared {
    pub(super) index: usize,
    pub(super) name: Option<String>,
    pub(super) kind: String,
    pub(super) metric_type: Option<String>,
    pub(super) metadata: BTreeMap<String, String>,
}

/// A field that is not as it must be.
pub(super) struct Problem {
    pub(super) severity: Severity,
    pub(super) message: String,
}

/// Reads every document of `text`.
pub(super) fn parse(text: &str) -> Vec<Parsed> {
    let mut parsed = Vec::new();
    for (first_line, document) in documents(text) {
        match serde_saphyr::from_str::<Option<Value>>(document) {
            Ok(value) => collect(value.unwrap_or_default(), None, 0, &mut parsed),
            Err(error) => {
                parsed
                    .push(Parsed::Unreadable { message: unreadable(&error, first_line, document) });
            }
        }
    }
    parsed
}

/// Each document with the number of lines before it. A line that starts with `---` starts one,
/// wherever it is: YAML allows it nowhere else.
fn documents(text: &str) -> Vec<(usize, &str)> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut found = Vec::new();
    let (mut start, mut start_line, mut at) = (0, 0, 0);
    for (number, line) in text.split_inclusive('\n').enumerate() {
        let is_marker = line
            .strip_prefix("---")
            .is_some_and(|rest| rest.trim_start() != rest || rest.is_empty());
        if is_marker && at > start {
            found.push((start_line, &text[start..at]));
            (start, start_line) = (at, number);
        }
        at += line.len();
    }
    found.push((start_line, &text[start..]));
    let says_something = |line: &str| {
        let rest = line.strip_prefix("---").unwrap_or(line).trim_start();
        !rest.is_empty() && !rest.starts_with('#') && !line.starts_with('%')
    };
    found.retain(|(_, document)| document.lines().any(says_something));
    found
}

fn unreadable(error: &serde_saphyr::Error, first_line: usize, document: &str) -> String {
    let within = error.location().map_or(1, |location| location.line());
    let line = usize::try_from(within).unwrap_or(usize::MAX).saturating_add(first_line);
    let plain = error.without_snippet().to_string();
    let reason = plain.lines().next().unwrap_or_default();
    // The library counts lines from the start of the document.
    let reason = reason
        .split_once(", column ")
        .map_or(reason, |(_, rest)| rest.split_once(": ").map_or(reason, |(_, reason)| reason));
    let reason = reason.split(" at line ").next().unwrap_or(reason);
    // And it names its own options, which nobody here can set.
    let reason = reason.split(", set DuplicateKeyPolicy").next().unwrap_or(reason);
    let hint = match document.contains("{{") {
        true => "; a template is checked after rendering: helm template … | gpu-gateway check -",
        false => "",
    };
    format!("line {line}: cannot be read: {reason}{hint}")
}

/// Finds the objects of a document; `kind` is what a typed list says of its items.
fn collect(value: Value, kind: Option<&str>, depth: usize, parsed: &mut Vec<Parsed>) {
    let Value::Object(mut map) = value else { return };
    let own = map.get("kind").and_then(Value::as_str).or(kind).unwrap_or_default().to_owned();
    let version = map.get("apiVersion").and_then(Value::as_str).map(str::to_owned);
    let version = version.as_deref();
    if let Some(of) = own.strip_suffix("List") {
        let items = map.remove("items");
        let Some(Value::Array(items)) = items.filter(|_| depth < MAX_LISTS) else { return };
        for item in items {
            collect(item, (version == Some(API_VERSION)).then_some(of), depth + 1, parsed);
        }
        return;
    }
    let is_job = own == "ScaledJob";
    let is_ours = version == Some(API_VERSION) || (version.is_none() && kind.is_some());
    if is_ours && (is_job || own == "ScaledObject") {
        parsed.push(Parsed::Object(Box::new(object(&own, is_job, &map))));
    } else if let Some(message) = near_miss(&own, version) {
        parsed.push(Parsed::NotChecked { message });
    }
}

/// What is wrong with a kind or version that is nearly one of KEDA's.
fn near_miss(kind: &str, version: Option<&str>) -> Option<String> {
    let plain = kind.trim().to_lowercase();
    let plain = plain.strip_suffix('s').unwrap_or(&plain);
    let (meant, edits) = nearest(plain, &["ScaledObject", "ScaledJob"]);
    if edits > TYPING_MISTAKE {
        return None;
    }
    // The same word of somebody else's group is none of KEDA's.
    let group = version.map_or("keda.sh", |version| version.split('/').next().unwrap_or_default());
    let group = group.trim().to_lowercase();
    if !group.contains("keda") && nearest(&group, &["keda.sh"]).1 > TYPING_MISTAKE {
        return None;
    }
    let mut wrong = Vec::new();
    if kind != meant {
        wrong.push(format!("kind {kind:?}: write {meant}"));
    }
    match version {
        Some(API_VERSION) => {}
        Some(version) => wrong.push(format!("apiVersion {version:?}: write {API_VERSION}")),
        None => wrong.push(format!("apiVersion is missing: write {API_VERSION}")),
    }
    (!wrong.is_empty()).then(|| format!("not checked, and none of KEDA's: {}", wrong.join("; ")))
}

fn object(kind: &str, is_job: bool, map: &Map<String, Value>) -> Object {
    let mut read = Reader::default();
    let nothing = Map::new();
    let metadata = read.map(map, "", "metadata").unwrap_or(&nothing);
    let name = match read.required(metadata, "metadata.", "name") {
        name if name.is_empty() => "(no name)".to_owned(),
        name => name,
    };
    let namespace = read.text(metadata, "metadata.", "namespace");
    let label = match &namespace {
        Some(namespace) => format!("{kind} {namespace}/{name}"),
        None => format!("{kind} {name}"),
    };
    let annotations = read.map(metadata, "metadata.", "annotations").unwrap_or(&nothing);
    let paused = ["autoscaling.keda.sh/paused", "autoscaling.keda.sh/paused-replicas"];
    let is_paused = paused.iter().any(|key| annotations.get(*key).is_some_and(|v| *v != "false"));
    let spec = read.map(map, "", "spec");
    if spec.is_none() {
        read.wrong("spec is missing");
    }
    let spec = spec.unwrap_or(&nothing);
    read.known(spec, "spec.", if is_job { JOB_FIELDS } else { OBJECT_FIELDS });
    if !is_job && !spec.is_empty() {
        let target = read.map(spec, "spec.", "scaleTargetRef").unwrap_or(&nothing);
        read.required(target, "spec.scaleTargetRef.", "name");
    }
    let mut number = |key| read.number(spec, "spec.", key);
    let (min, max) = (number("minReplicaCount"), number("maxReplicaCount"));
    let (idle, cooldown) = (number("idleReplicaCount"), number("cooldownPeriod"));
    let polling = number("pollingInterval");
    Object {
        label,
        namespace,
        is_job,
        is_paused,
        min,
        max,
        idle,
        cooldown,
        polling,
        fallback: fallback(spec, &mut read),
        formula_target: formula_target(spec, &mut read),
        triggers: triggers(spec, &mut read),
        problems: read.problems,
    }
}

fn fallback(spec: &Map<String, Value>, read: &mut Reader) -> Option<Fallback> {
    let fallback = read.map(spec, "spec.", "fallback")?;
    let path = "spec.fallback.";
    read.known(fallback, path, &["failureThreshold", "replicas", "behavior"]);
    let replicas = read.number(fallback, path, "replicas");
    read.number(fallback, path, "failureThreshold");
    for key in ["failureThreshold", "replicas"].iter().filter(|key| !fallback.contains_key(**key)) {
        read.wrong(format!("{path}{key} is missing"));
    }
    let behavior = read.text(fallback, path, "behavior").unwrap_or_else(|| "static".to_owned());
    Some(Fallback { replicas, behavior })
}

fn formula_target(spec: &Map<String, Value>, read: &mut Reader) -> Option<String> {
    let advanced = read.map(spec, "spec.", "advanced")?;
    let modifiers = read.map(advanced, "spec.advanced.", "scalingModifiers")?;
    let path = "spec.advanced.scalingModifiers.";
    read.text(modifiers, path, "formula").filter(|formula| !formula.is_empty())?;
    Some(read.text(modifiers, path, "target").unwrap_or_default())
}

fn triggers(spec: &Map<String, Value>, read: &mut Reader) -> Vec<Declared> {
    if spec.is_empty() {
        return Vec::new();
    }
    let triggers = match spec.get("triggers") {
        Some(Value::Array(triggers)) if !triggers.is_empty() => triggers,
        Some(other) if !other.is_null() && !other.is_array() => {
            read.wrong("spec.triggers is not a list");
            return Vec::new();
        }
        _ => {
            read.wrong("spec.triggers is empty: nothing scales this");
            return Vec::new();
        }
    };
    let read_one = |(index, value): (usize, &Value)| {
        let path = format!("spec.triggers[{index}].");
        let Value::Object(trigger) = value else {
            read.wrong(format!("spec.triggers[{index}] is not a map"));
            return None;
        };
        read.known(trigger, &path, TRIGGER_FIELDS);
        Some(Declared {
            index,
            kind: read.required(trigger, &path, "type"),
            name: read.text(trigger, &path, "name").filter(|name| !name.is_empty()),
            metric_type: read.text(trigger, &path, "metricType"),
            metadata: read.strings(trigger, &path, "metadata"),
        })
    };
    triggers.iter().enumerate().filter_map(read_one).collect()
}

/// Reads fields and notes what is wrong with them.
#[derive(Default)]
struct Reader {
    problems: Vec<Problem>,
}

impl Reader {
    fn wrong(&mut self, message: impl Into<String>) {
        self.problems.push(Problem { severity: Severity::Error, message: message.into() });
    }

    fn known(&mut self, map: &Map<String, Value>, path: &str, fields: &[&str]) {
        for key in map.keys().filter(|key| !fields.contains(&key.as_str())) {
            let likeness = |field: &str| {
                strsim::normalized_damerau_levenshtein(&key.to_lowercase(), &field.to_lowercase())
            };
            let near = fields.iter().max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
            let near = near.copied().unwrap_or_default();
            let message = format!("{path}{key}: unknown field, dropped; nearest is {near}");
            self.problems.push(Problem { severity: Severity::Warning, message });
        }
    }

    fn map<'a>(
        &mut self,
        map: &'a Map<String, Value>,
        path: &str,
        key: &str,
    ) -> Option<&'a Map<String, Value>> {
        match map.get(key)? {
            Value::Object(inner) => Some(inner),
            Value::Null => None,
            _ => {
                self.wrong(format!("{path}{key} is not a map"));
                None
            }
        }
    }

    fn text(&mut self, map: &Map<String, Value>, path: &str, key: &str) -> Option<String> {
        match map.get(key)? {
            Value::String(text) => Some(text.clone()),
            Value::Null => None,
            Value::Number(_) | Value::Bool(_) => {
                self.unquoted(path, key, &map[key]);
                Some(map[key].to_string())
            }
            _ => {
                self.wrong(format!("{path}{key} is not a text"));
                None
            }
        }
    }

    fn unquoted(&mut self, path: &str, key: &str, value: &Value) {
        self.wrong(format!(
            "{path}{key}: {value} is not a string, which the API server refuses; write \"{value}\" with its quotes"
        ));
    }

    fn required(&mut self, map: &Map<String, Value>, path: &str, key: &str) -> String {
        let text = self.text(map, path, key);
        if text.as_ref().is_none_or(String::is_empty) && !map.get(key).is_some_and(Value::is_object)
        {
            self.wrong(format!("{path}{key} is missing"));
        }
        text.unwrap_or_default()
    }

    fn number(&mut self, map: &Map<String, Value>, path: &str, key: &str) -> Option<u32> {
        let value = map.get(key).filter(|value| !value.is_null())?;
        let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
        if number.is_none() {
            self.wrong(format!("{path}{key}: {value} is not a whole number from 0 up"));
        }
        number
    }

    fn strings(
        &mut self,
        map: &Map<String, Value>,
        path: &str,
        key: &str,
    ) -> BTreeMap<String, String> {
        let Some(inner) = self.map(map, path, key) else { return BTreeMap::new() };
        let path = format!("{path}{key}.");
        let text = |(key, _): (&String, &Value)| Some((key.clone(), self.text(inner, &path, key)?));
        inner.iter().filter_map(text).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<usize> {
        documents(text).into_iter().map(|(line, _)| line).collect()
    }

    #[test]
    fn documents_are_told_apart_with_their_lines() {
        assert_eq!(lines("a: 1\n---\nb: 2\n"), [0, 1]);
        assert_eq!(lines("---\na: 1\n---\n# nothing\n---\n\n--- # c\nc: 1\n----\n"), [0, 6]);
        assert_eq!(lines("# only\n\n"), [0; 0]);
        assert_eq!(lines(""), [0; 0]);
        assert_eq!(lines("a: 1\r\n---\r\nb: 2"), [0, 1]);
    }
}
