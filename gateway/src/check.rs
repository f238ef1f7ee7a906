//! `gpu-gateway check`: what is wrong or unsound in ScaledObjects and ScaledJobs, from their YAML
//! alone.
//!
//! Guarantees: reads no file, no cluster and no clock; the same text gives the same report. What a
//! trigger says wrong is said in GetMetrics' own words. Every finding names its rule and the fix.

/// YAML → the fields that rules look at.
mod manifest;

/// Rules on a ScaledObject or ScaledJob as a whole.
mod object;

/// Queries on GPUs and engines that go through Prometheus, and their equivalent here.
mod prometheus;

/// The report for people and for programs.
pub mod render;

/// Rules on one trigger.
mod triggers;

use std::time::Duration;

use serde::Serialize;

use crate::trigger::profile::Profiles;
use manifest::{Declared, Parsed};

/// Edits that still are a typing mistake.
const TYPING_MISTAKE: usize = 2;

/// The word of `good` that takes the fewest edits from `word`, and how many those are.
fn nearest<'a>(word: &str, good: &[&'a str]) -> (&'a str, usize) {
    let edits = |good: &&'a str| {
        (*good, strsim::damerau_levenshtein(&word.to_lowercase(), &good.to_lowercase()))
    };
    good.iter().map(edits).min_by_key(|(_, edits)| *edits).unwrap_or(("", usize::MAX))
}

/// Every rule, in order, and what it finds.
#[rustfmt::skip]
pub const RULES: &[(&str, &str)] = &[
    ("activation", "an activationThreshold that nothing exceeds"),
    ("address", "a scalerAddress that KEDA cannot call"),
    ("cold-start", "coldStartTimeout shorter than --load-time"),
    ("cooldown", "cooldownPeriod shorter than --load-time, at minimum 0"),
    ("demand-place", "a demandEndpoint that the gateway reads with --demand-allow only"),
    ("fallback", "none, or one that shrinks a busy fleet while the gateway is away"),
    ("field", "a field that is missing, unknown or of the wrong kind"),
    ("flat-average", "one figure for all pods under AverageValue"),
    ("formula", "scalingModifiers, which replace targets and metricTypes"),
    ("from-env", "a value that only the target's environment knows"),
    ("idle-level", "a metric that stays up while nothing is done"),
    ("job-demand", "a ScaledJob without a demand source"),
    ("metadata", "what GetMetrics would refuse"),
    ("metric-type", "a metricType that is misplaced, or that KEDA refuses"),
    ("never-zero", "minimum 0 that is never reached"),
    ("no-effect", "a key that does nothing here"),
    ("no-wake", "minimum 0 and no trigger that can wake it"),
    ("not-checked", "nothing to check, or a kind or apiVersion that KEDA does not know"),
    ("not-ours", "an external trigger of another scaler"),
    ("one-pod", "an aggregation in which one pod speaks for all"),
    ("only-trigger", "heat, clocks or throughput as the only trigger"),
    ("paused", "an annotation under which KEDA asks nothing"),
    ("per-node", "the address of a scaler on each node"),
    ("percent-target", "a percent target of 87 or more, with the mean it needs"),
    ("prometheus", "a query on GPUs or vLLM, with the same trigger of this gateway"),
    ("push", "external where external-push wakes faster, or where it cannot push"),
    ("type", "a trigger type with a typing mistake, which KEDA refuses"),
    ("unit", "a fraction for a percentage, seconds for milliseconds"),
    ("unknown-key", "a metadata key with a typing mistake"),
    ("unpublished", "a metric that the engine named does not publish"),
    ("value-slow-start", "metricType Value for pods that are slow to serve"),
    ("vram-zero", "minimum 0 by the memory of engines that never give it back"),
    ("yaml", "a document that cannot be read, with its line"),
];

/// A YAML text and where it is from.
pub struct Source {
    /// The file's name, or `-`.
    pub name: String,
    /// Its content: any number of documents.
    pub text: String,
}

/// How bad it is; the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// It does not work.
    Error,
    /// It works, and probably not as meant.
    Warning,
    /// Worth knowing.
    Note,
}

/// One thing found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The trigger it is about, unless it is about the whole object.
    pub trigger: Option<TriggerRef>,
    /// How bad it is.
    pub severity: Severity,
    /// Which rule found it: a short word that does not change.
    pub rule: &'static str,
    /// What is unsound and what would be right.
    pub message: String,
}

/// A trigger of the object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TriggerRef {
    /// Its place, from 0.
    pub index: usize,
    /// Its name, where it has one.
    pub name: Option<String>,
}

/// What was looked at, and what was found there; the worst first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// The source's name.
    pub file: String,
    /// `ScaledObject ai/vllm`; `None` where there is none, or a document cannot be read.
    pub object: Option<String>,
    /// What was found.
    pub findings: Vec<Finding>,
}

/// Everything that was looked at, in the order of the texts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Objects, and documents that cannot be read or are nearly objects.
    pub subjects: Vec<Subject>,
}

impl Report {
    /// How many findings are of `severity`.
    pub fn count(&self, severity: Severity) -> usize {
        let findings = self.subjects.iter().flat_map(|subject| &subject.findings);
        findings.filter(|finding| finding.severity == severity).count()
    }

    /// Whether nothing is wrong; with `strict`, whether nothing is unsound either.
    pub fn is_good(&self, strict: bool) -> bool {
        self.count(Severity::Error) == 0 && (!strict || self.count(Severity::Warning) == 0)
    }
}

/// What is known beside the texts.
#[derive(Clone, Copy)]
pub struct Known<'a> {
    /// The profiles triggers may name.
    pub profiles: &'a Profiles,
    /// How long a pod takes from being ordered to serving.
    pub load_time: Option<Duration>,
    /// Origins of demand endpoints that the gateway admits.
    pub demand_allow: &'a [String],
}

/// Checks every ScaledObject and ScaledJob in `sources`; other kinds are passed over, unless there
/// is nothing else in any of the texts.
pub fn check(sources: &[Source], known: &Known<'_>) -> Report {
    let subjects = sources.iter().flat_map(|source| {
        manifest::parse(&source.text).into_iter().map(|parsed| {
            let mut findings = Findings::default();
            let object = match parsed {
                Parsed::Unreadable { message } => {
                    findings.add(Severity::Error, "yaml", None, message);
                    None
                }
                Parsed::NotChecked { message } => {
                    findings.add(Severity::Error, "not-checked", None, message);
                    None
                }
                Parsed::Object(read) => {
                    for problem in &read.problems {
                        findings.add(problem.severity, "field", None, problem.message.clone());
                    }
                    object::check(&read, known, &mut findings);
                    Some(read.label)
                }
            };
            Subject { file: source.name.clone(), object, findings: findings.in_order() }
        })
    });
    let mut subjects: Vec<_> = subjects.collect();
    if subjects.is_empty() {
        subjects.extend(sources.iter().map(|source| {
            let mut findings = Findings::default();
            findings.warn("not-checked", None, "there is no ScaledObject or ScaledJob in it");
            Subject { file: source.name.clone(), object: None, findings: findings.in_order() }
        }));
    }
    Report { subjects }
}

/// The findings about one object so far.
#[derive(Default)]
struct Findings(Vec<Finding>);

impl Findings {
    fn add(
        &mut self,
        severity: Severity,
        rule: &'static str,
        trigger: Option<&Declared>,
        message: impl Into<String>,
    ) {
        let trigger = trigger
            .map(|declared| TriggerRef { index: declared.index, name: declared.name.clone() });
        self.0.push(Finding { trigger, severity, rule, message: message.into() });
    }

    fn error(
        &mut self,
        rule: &'static str,
        trigger: Option<&Declared>,
        message: impl Into<String>,
    ) {
        self.add(Severity::Error, rule, trigger, message);
    }

    fn warn(&mut self, rule: &'static str, trigger: Option<&Declared>, message: impl Into<String>) {
        self.add(Severity::Warning, rule, trigger, message);
    }

    fn note(&mut self, rule: &'static str, trigger: Option<&Declared>, message: impl Into<String>) {
        self.add(Severity::Note, rule, trigger, message);
    }

    fn in_order(mut self) -> Vec<Finding> {
        let place = |finding: &Finding| finding.trigger.as_ref().map(|trigger| trigger.index);
        self.0.sort_by_key(|finding| (finding.severity, place(finding)));
        self.0
    }
}
