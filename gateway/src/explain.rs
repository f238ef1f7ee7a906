//! Why a ScaledObject gets the answer it gets: every figure of the decision, pod by pod.
//!
//! Guarantees: made from the very assessment that KEDA's calls get; what is not known is null.

/// Whose devices the readings come from.
mod attribution;
/// The ScaledObjects there are.
pub mod known;
/// What KEDA is told, what the HPA makes of it, and why: in one sentence.
mod sentence;
/// The explanation as a table for people.
pub mod table;
/// GPUs whose clock is held down.
mod throttle;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use shared::reading::Reading;
use shared::time::Timestamp;

use self::attribution::{HeldDevices, attribution};
pub(crate) use self::sentence::sentences;
use crate::answer::{Answers, Assessment, Question, Refusal};
use crate::directory::ScaledObject;
use crate::directory::startup::{Span, Startup};
use crate::fleet::free;
use crate::trigger::coverage::{self, PodState};
use crate::trigger::number::thousandths;
use crate::trigger::observed::{self, DemandReading, PartReadings, Seen};
use crate::trigger::spec::{self, Trigger};
use crate::trigger::verdict::{Outcome, Reason};
use crate::trigger::{hpa, pod as of_pod, warning};

/// One ScaledObject, explained.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
    /// What it scales.
    pub target: Target,
    /// How long ago the directory was known to be true.
    pub directory_age_seconds: f64,
    /// How long its pods take to start, as this replica has seen it.
    #[serde(default)]
    pub startup: StartupExplanation,
    /// Devices of the whole cluster that nobody holds, by model.
    #[serde(default)]
    pub gpus_free: BTreeMap<Arc<str>, u32>,
    /// Its triggers: those declared, else those asked about in the last ten minutes.
    pub triggers: Vec<TriggerExplanation>,
}

/// How long pods take from being ordered to their first reading.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StartupExplanation {
    /// From the pod's creation until the scheduler had a place for it.
    pub ordered_to_scheduled: SpanExplanation,
    /// From there until it was Ready.
    pub scheduled_to_ready: SpanExplanation,
    /// From there until an agent first spoke of it; zero if one had before.
    pub ready_to_first_reading: SpanExplanation,
}

/// How long one step takes.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SpanExplanation {
    /// The median.
    pub median_seconds: Option<f64>,
    /// Nine of ten pods took at most this long.
    pub p90_seconds: Option<f64>,
    /// Pods that were seen to take the step.
    pub pods: usize,
}

/// What is scaled.
#[derive(Debug, Serialize, Deserialize)]
pub struct Target {
    /// Kind of the workload.
    pub kind: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
}

/// One trigger, explained.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TriggerExplanation {
    /// What is measured; parts of a composite are joined by commas.
    pub metric: Option<String>,
    /// Its name for KEDA.
    pub metric_name: Option<Arc<str>>,
    /// `AverageValue` or `Value`.
    pub metric_type: Option<String>,
    /// Target per replica.
    pub target: Option<f64>,
    /// What GetMetrics returns.
    pub value: Option<f64>,
    /// What IsActive returns.
    pub active: Option<bool>,
    /// Since when this replica has seen it active (RFC 3339).
    pub active_since: Option<String>,
    /// `OK` or the gRPC code of the error.
    pub status: String,
    /// Why.
    pub reason: String,
    /// What is unsound about the trigger.
    pub warnings: Vec<String>,
    /// `spec.replicas` of the target.
    pub replicas: Option<u32>,
    /// `status.replicas` of the target.
    pub status_replicas: Option<u32>,
    /// Pods by state.
    pub coverage: Option<CoverageExplanation>,
    /// What the reporting pods add up to.
    pub s: Option<f64>,
    /// The value if unknown pods had nothing to do.
    pub up: Option<f64>,
    /// The value if unknown pods were at the target.
    pub down: Option<f64>,
    /// The value that keeps the replicas.
    pub hold: Option<f64>,
    /// What the HPA would order, before its own policies.
    pub hpa: Option<HpaExplanation>,
    /// Pod by pod.
    pub pods: Vec<PodExplanation>,
}

/// Pods by state.
#[derive(Debug, Serialize, Deserialize)]
pub struct CoverageExplanation {
    /// Ready, with fresh readings.
    pub reporting: u32,
    /// On their way, those that do not exist yet included.
    pub starting: u32,
    /// Ready, without (those whose metric is unsupported included).
    pub missing: u32,
    /// Not ready for too long.
    pub stuck: u32,
    /// Of those that start or are stuck: how many the scheduler has no place for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unscheduled: Option<u32>,
}

/// What the HPA would order.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HpaExplanation {
    /// The ratio it compares with its tolerance of 0.1.
    pub ratio: Option<f64>,
    /// Replicas.
    pub desired: u32,
    /// Which limit cut it.
    pub clamped_by: Option<String>,
}

/// One pod, or group read as one.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodExplanation {
    /// Its name.
    pub name: Arc<str>,
    /// Its UID.
    pub uid: Option<String>,
    /// Its node.
    pub node: Option<String>,
    /// `reporting`, `starting`, `missing`, `stuck` or `unsupported`.
    pub state: String,
    /// Whether its reading is part of the sum.
    pub counted: bool,
    /// Why not.
    pub why: Option<String>,
    /// Its reading.
    pub reading: Option<f64>,
    /// Age of its oldest reading.
    pub age_ms: Option<u64>,
    /// Its devices.
    pub devices: Vec<DeviceExplanation>,
}

/// One device of a pod; for an engine the UUID is null.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceExplanation {
    /// Its UUID.
    pub uuid: Option<String>,
    /// The pod's share of its reading.
    pub reading: Option<f64>,
    /// Age of the reading.
    pub age_ms: Option<u64>,
    /// `ok`, `stale`, `unsupported`, `never read` or what failed.
    pub state: String,
    /// What the pod's part of it rests on, for example `kubelet`, `process` or `equal`.
    #[serde(default)]
    pub source: Option<String>,
    /// Whether its part is a guess rather than measured or declared.
    #[serde(default)]
    pub estimated: bool,
    /// Whether it uses the device without having been given it.
    #[serde(default)]
    pub undeclared: bool,
}

/// Explains `namespace/name`.
///
/// # Errors
/// When there is no such ScaledObject, or no directory yet.
pub fn explain(answers: &Answers, namespace: &str, name: &str) -> Result<Explanation, Refusal> {
    explain_at(answers, namespace, name, answers.clock().now())
}

/// Explains `namespace/name` as of `now`.
///
/// # Errors
/// As [`explain`].
pub fn explain_at(
    answers: &Answers,
    namespace: &str,
    name: &str,
    now: Timestamp,
) -> Result<Explanation, Refusal> {
    let loading = || Refusal::Unavailable("the directory is not loaded yet".into());
    let snapshot = answers.directory().snapshot().ok_or_else(loading)?;
    let Some(object) = snapshot.object(namespace, name) else {
        let known = known::names(&snapshot, namespace);
        let why = format!("there is no ScaledObject {namespace}/{name}; {known}");
        return Err(Refusal::NotFound(why));
    };
    answers.note_first_readings(now);
    Ok(Explanation {
        namespace: object.key.namespace.clone(),
        name: object.key.name.clone(),
        target: Target { kind: object.target.kind.clone(), name: object.target.name.clone() },
        directory_age_seconds: now.since(snapshot.as_of()).as_secs_f64(),
        startup: answers.directory().startup(&object.target).into(),
        gpus_free: free::by_model(answers.fleet(), now),
        triggers: metadata_of(answers, object)
            .iter()
            .map(|metadata| trigger(answers, object, metadata, now))
            .collect(),
    })
}

/// The metadata of its triggers: those declared, else those asked about lately.
pub fn metadata_of(answers: &Answers, object: &ScaledObject) -> Vec<HashMap<String, String>> {
    if object.triggers.is_empty() {
        return answers.asked(&object.key).into_iter().map(|asked| asked.metadata).collect();
    }
    object.triggers.iter().map(|trigger| trigger.metadata.clone()).collect()
}

fn trigger(
    answers: &Answers,
    object: &ScaledObject,
    metadata: &HashMap<String, String>,
    now: Timestamp,
) -> TriggerExplanation {
    let question = Question { namespace: &object.key.namespace, name: &object.key.name, metadata };
    let named = answers.metric_spec(metadata).ok();
    let mut explained = match answers.assess(question, now) {
        Err(refusal) => refused(answers, object, metadata, &refusal),
        Ok(assessment) => assessed(answers, &assessment),
    };
    explained.metric_name = named.as_ref().map(|spec| spec.name.clone());
    explained.target = named.map(|spec| spec.target);
    let asked = answers
        .asked(&object.key)
        .into_iter()
        .find(|asked| spec::is_same(&asked.metadata, metadata));
    explained.active_since = asked
        .and_then(|asked| asked.active_since)
        .filter(|_| explained.active == Some(true))
        .map(|since| humantime::format_rfc3339_seconds(answers.clock().wall(since)).to_string());
    explained
}

fn refused(
    answers: &Answers,
    object: &ScaledObject,
    metadata: &HashMap<String, String>,
    refusal: &Refusal,
) -> TriggerExplanation {
    let declared = object.trigger_of(metadata).map(|declared| declared.target_type);
    TriggerExplanation {
        metric: answers.trigger(metadata).ok().map(|trigger| metrics_of(&trigger)),
        metric_type: Some(declared.unwrap_or(object.target_type).name().into()),
        status: refusal.code().into(),
        reason: refusal.to_string(),
        ..TriggerExplanation::default()
    }
}

pub(crate) fn metrics_of(trigger: &Trigger) -> String {
    trigger.parts.iter().map(|part| part.metric.name()).collect::<Vec<_>>().join(",")
}

fn assessed(answers: &Answers, assessment: &Assessment) -> TriggerExplanation {
    let Assessment { object, trigger, observed, verdict, now, .. } = assessment;
    let value = assessment.value();
    let workload = object.workload.as_deref();
    let figures = verdict.figures;
    let value_type = observed.target_type == observed::TargetType::Value;
    let held = workload.map_or_else(Vec::new, |workload| attribution(answers.fleet(), workload));
    let mut warnings = warnings(assessment, value_type);
    warnings.extend(attribution::conflict(&held, &answers.fleet().conflicts()));
    warnings.extend(attribution::warnings(&held, trigger.parts.iter().map(|part| part.metric)));
    let metrics = trigger.parts.iter().map(|part| part.metric);
    let throttled = workload.map(|it| throttle::warning(answers.fleet(), it, metrics, *now));
    warnings.extend(throttled.flatten());
    TriggerExplanation {
        metric: Some(metrics_of(trigger)),
        metric_type: Some(observed.target_type.name().into()),
        value: value.as_ref().ok().copied(),
        active: value.is_ok().then(|| answers.activity(assessment)),
        status: value.as_ref().map_or_else(Refusal::code, |_| "OK").into(),
        reason: verdict.reason.to_string(),
        warnings,
        replicas: workload.map(|workload| workload.replicas),
        status_replicas: workload.map(|workload| workload.status_replicas),
        coverage: Some(verdict.coverage.into()),
        s: figures.map(|figures| figures.s),
        up: figures.map(|figures| figures.up),
        down: figures.map(|figures| figures.down),
        hold: figures.map(|figures| figures.hold),
        hpa: wish(assessment),
        pods: shown_part(assessment).map_or_else(Vec::new, |at| pods(assessment, at, &held, *now)),
        ..TriggerExplanation::default()
    }
}

/// What is unsound in the trigger, and that it sleeps where nothing can wake it.
fn warnings(assessment: &Assessment, value_type: bool) -> Vec<String> {
    let Assessment { object, trigger, observed, .. } = assessment;
    let mut warnings = warning::warnings(trigger, object.min_replicas, value_type);
    if assessment.is_deaf() {
        warnings.push(match &observed.demand {
            DemandReading::Unknown(why) => format!("asleep and deaf: {why}"),
            _ => "asleep and deaf: without demandEndpoint this trigger wakes nothing".into(),
        });
    }
    warnings
}

impl From<Startup> for StartupExplanation {
    fn from(startup: Startup) -> Self {
        Self {
            ordered_to_scheduled: startup.ordered_to_scheduled.into(),
            scheduled_to_ready: startup.scheduled_to_ready.into(),
            ready_to_first_reading: startup.ready_to_first_reading.into(),
        }
    }
}

impl From<Span> for SpanExplanation {
    fn from(span: Span) -> Self {
        let seconds = |span: Duration| thousandths(span.as_secs_f64());
        Self {
            median_seconds: span.median.map(seconds),
            p90_seconds: span.p90.map(seconds),
            pods: span.pods,
        }
    }
}

impl From<coverage::Coverage> for CoverageExplanation {
    fn from(coverage: coverage::Coverage) -> Self {
        Self {
            reporting: coverage.reporting,
            starting: coverage.starting + coverage.absent,
            missing: coverage.missing + coverage.unsupported,
            stuck: coverage.stuck,
            unscheduled: Some(coverage.unscheduled + coverage.stuck_unscheduled)
                .filter(|count| *count > 0),
        }
    }
}

/// What the HPA would order; at zero replicas it does not act.
pub(crate) fn wish(assessment: &Assessment) -> Option<HpaExplanation> {
    let Assessment { object, trigger, observed, verdict, .. } = assessment;
    let Outcome::Value(value) = verdict.outcome else { return None };
    let replicas = hpa::Replicas {
        ordered: observed.replicas,
        status: object.workload.as_ref().map(|workload| workload.status_replicas),
        ready: observed.ready_running,
        min: object.min_replicas,
        max: object.max_replicas,
    };
    let wish = hpa::wish(value, trigger.target, observed.target_type, replicas);
    (observed.replicas > 0).then(|| HpaExplanation {
        ratio: wish.ratio,
        desired: wish.desired,
        clamped_by: wish.clamped_by.map(Into::into),
    })
}

/// The part whose pods are shown: the one that decided.
fn shown_part(assessment: &Assessment) -> Option<usize> {
    let parts = &assessment.trigger.parts;
    let decided = match &assessment.verdict.reason {
        Reason::Measured { metric, .. } => parts.iter().position(|part| part.metric == *metric),
        _ => None,
    };
    let at = decided.unwrap_or(0);
    (at < assessment.observed.parts.len()).then_some(at)
}

fn pods(
    assessment: &Assessment,
    at: usize,
    held: &[(Arc<str>, HeldDevices)],
    now: Timestamp,
) -> Vec<PodExplanation> {
    let Assessment { trigger, observed, .. } = assessment;
    let readings: &PartReadings = &observed.parts[at];
    let metric = trigger.parts[at].metric;
    let (states, _) = coverage::classify(trigger, metric, observed, readings, now);
    let pods = observed.pods.iter().zip(states).enumerate();
    pods.map(|(at, (pod, state))| {
        let seen = readings.of(at);
        let own = held.get(at).map(|(_, held)| held);
        let age = |seen: &Seen| Some(millis(now.since(seen.taken_at?)));
        PodExplanation {
            name: pod.name.clone(),
            uid: pod.uid.as_ref().map(ToString::to_string),
            node: pod.node.as_ref().map(ToString::to_string),
            state: state.name().into(),
            counted: matches!(state, PodState::Reporting(_)),
            why: why(&state, pod, now),
            reading: match state {
                PodState::Reporting(x) => Some(x),
                _ => of_pod::read(trigger, metric, seen, now).ok(),
            },
            age_ms: seen.iter().filter_map(age).max(),
            devices: seen
                .iter()
                .map(|seen| {
                    let device = readings.device(seen).map(|device| &device.uuid);
                    let held = device.and_then(|device| own?.get(device));
                    DeviceExplanation {
                        uuid: device.map(ToString::to_string),
                        reading: seen.reading.value(),
                        age_ms: age(seen),
                        state: device_state(seen, of_pod::fresh_for(trigger, seen), now),
                        source: held.map(|held| held.source.name().into()),
                        estimated: held.is_some_and(|held| held.estimated),
                        undeclared: held.is_some_and(|held| held.undeclared),
                    }
                })
                .collect(),
        }
    })
    .collect()
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn why(state: &PodState, pod: &observed::Pod, now: Timestamp) -> Option<String> {
    let seconds = now.since(pod.since).as_secs();
    let too_long = if *state == PodState::Stuck { ", longer than coldStartTimeout" } else { "" };
    let what_for = pod.unscheduled.as_deref().map(|said| (waits_for(said), said));
    match state {
        PodState::Reporting(_) => None,
        PodState::Missing(why) | PodState::Unsupported(why) => Some(why.to_string()),
        PodState::Starting if pod.ready => Some(format!("ready for {seconds} s only")),
        PodState::Starting | PodState::Stuck => Some(match what_for {
            Some((what, said)) => format!("waiting {what}: {said} (for {seconds} s{too_long})"),
            None if too_long.is_empty() => format!("not ready for {seconds} s: loading"),
            None => format!("not ready for {seconds} s{too_long}"),
        }),
    }
}

/// What a pod waits for, by what the scheduler said.
fn waits_for(said: &str) -> &'static str {
    let said = said.to_ascii_lowercase();
    let gpu = ["gpu", "nvidia.com/"].iter().any(|word| said.contains(word));
    if gpu { "for a GPU" } else { "to be scheduled" }
}

fn device_state(seen: &Seen, fresh_for: Duration, now: Timestamp) -> String {
    match (&seen.reading, seen.taken_at) {
        (_, None) => "never read".into(),
        (_, Some(taken_at)) if now.since(taken_at) > fresh_for => "stale".into(),
        (Reading::Ok(_), _) => "ok".into(),
        (Reading::Unsupported, _) => "unsupported".into(),
        (Reading::Failed(why), _) => why.to_string(),
    }
}
