//! Rules on a ScaledObject or ScaledJob as a whole: its triggers together, and its own fields.

use std::time::Duration;

use humantime::format_duration;
use shared::metric::Metric;

use super::manifest::{Declared, Object};
use super::triggers::{Context, Ours};
use super::{Findings, Known, nearest, prometheus, triggers};

/// KEDA's `cooldownPeriod`, in seconds, unless the object says another.
const DEFAULT_COOLDOWN: u32 = 300;
/// What KEDA's `fallback.behavior` may be.
const BEHAVIORS: [&str; 4] =
    ["static", "currentReplicas", "currentReplicasIfHigher", "currentReplicasIfLower"];
/// KEDA's `maxReplicaCount` unless the object says another.
const DEFAULT_MAX: u32 = 100;
/// Triggers of KEDA's own that see nothing while there is no pod.
const BLIND_AT_ZERO: [&str; 2] = ["cpu", "memory"];
/// What does not rise with the load of a fleet that is already busy: heat and clocks stand still,
/// and what is moved or finished per second falls when a server thrashes.
const FLAT_UNDER_LOAD: [Metric; 10] = [
    Metric::Temperature,
    Metric::SmClockMhz,
    Metric::ThrottledPercent,
    Metric::PcieTxKbps,
    Metric::PcieRxKbps,
    Metric::NvlinkTxMbps,
    Metric::NvlinkRxMbps,
    Metric::TokenThroughput,
    Metric::RequestRate,
    Metric::ErrorRate,
];

/// Checks the object and all its triggers.
pub(super) fn check(object: &Object, known: &Known<'_>, found: &mut Findings) {
    let to_zero = !object.is_job && (object.idle == Some(0) || object.min.unwrap_or(0) == 0);
    let context = Context { object, known, to_zero };
    let mut ours = Vec::new();
    let mut others = Vec::new();
    for declared in &object.triggers {
        let reads_gpus = prometheus::check(declared, found);
        match triggers::check(declared, &context, found) {
            Some(trigger) => ours.push((declared, trigger)),
            None => others.push((declared, reads_gpus)),
        }
    }
    limits(object, found);
    let is_blind = others.iter().any(|(_, reads_gpus)| *reads_gpus);
    if to_zero && (is_blind || !ours.is_empty()) {
        no_wake(object, &ours, &others, found);
    }
    if ours.is_empty() {
        return;
    }
    if object.is_paused {
        let message = "paused by an annotation: KEDA asks nothing while it is there";
        found.note("paused", None, message);
    }
    if object.is_job {
        return jobs(&ours, found);
    }
    only_trigger(&ours, &others, found);
    if to_zero {
        cooldown(object, known.load_time, found);
    }
    fallback(object, to_zero, found);
    formula(object, found);
}

fn limits(object: &Object, found: &mut Findings) {
    let (min, max) = (object.min.unwrap_or(0), object.max.unwrap_or(DEFAULT_MAX));
    if min > max {
        let message =
            format!("minReplicaCount {min} is above maxReplicaCount {max}, which KEDA refuses");
        found.error("field", None, message);
    }
}

fn jobs(ours: &[(&Declared, Ours)], found: &mut Findings) {
    for (declared, trigger) in ours {
        if !trigger.sees_demand && trigger.trigger.is_some() {
            let message = "a ScaledJob has no lasting pods to measure, GetMetrics refuses this: set \
                           demandEndpoint and demandMetric of a queue";
            found.error("job-demand", Some(declared), message);
        }
    }
}

fn only_trigger(ours: &[(&Declared, Ours)], others: &[(&Declared, bool)], found: &mut Findings) {
    // A schedule says nothing about load.
    if others.iter().any(|(declared, _)| declared.kind != "cron") {
        return;
    }
    let mut metrics = Vec::new();
    for (_, ours) in ours {
        // What could not be read may be anything.
        let Some(trigger) = &ours.trigger else { return };
        metrics.extend(trigger.parts.iter().map(|part| part.metric));
    }
    if !metrics.is_empty() && metrics.iter().all(|metric| FLAT_UNDER_LOAD.contains(metric)) {
        let names: Vec<_> = metrics.iter().map(|metric| metric.name()).collect();
        let (names, does) = (names.join(", "), if names.len() == 1 { "does" } else { "do" });
        let message = format!(
            "{names} {does} not rise with load once a fleet is busy: with no other trigger a busy \
             fleet is scaled in; add requests_waiting or gpu_utilization"
        );
        found.warn("only-trigger", None, message);
    }
}

fn no_wake(
    object: &Object,
    ours: &[(&Declared, Ours)],
    others: &[(&Declared, bool)],
    found: &mut Findings,
) {
    let wakes = ours.iter().any(|(_, ours)| ours.sees_demand)
        || others.iter().any(|(declared, reads_gpus)| {
            !reads_gpus && !BLIND_AT_ZERO.contains(&declared.kind.as_str())
        });
    if wakes {
        return;
    }
    let zero = match (object.idle, object.min) {
        (Some(0), _) => "idleReplicaCount 0",
        (_, Some(_)) => "minReplicaCount 0",
        (_, None) => "minReplicaCount is not set, which means 0",
    };
    let message = format!(
        "{zero}: with no pod left there is nothing to measure, so no trigger here can ever wake \
         it; set demandEndpoint and demandMetric of its router or queue, or minReplicaCount: 1"
    );
    found.warn("no-wake", None, message);
}

fn cooldown(object: &Object, load_time: Option<Duration>, found: &mut Findings) {
    let Some(load_time) = load_time else { return };
    let seconds = object.cooldown.unwrap_or(DEFAULT_COOLDOWN);
    let cooldown = Duration::from_secs(seconds.into());
    if cooldown < load_time {
        let (load, needed) = (format_duration(load_time), load_time.as_secs_f64().ceil());
        let message = format!(
            "cooldownPeriod {seconds}: shorter than the {load} a pod takes to load, so it can be \
             gone before it serves; write {needed} or more"
        );
        found.warn("cooldown", None, message);
    }
}

fn fallback(object: &Object, to_zero: bool, found: &mut Findings) {
    const RIGHT: &str =
        "fallback: {failureThreshold: 5, replicas: N, behavior: currentReplicasIfHigher}";
    let Some(fallback) = &object.fallback else {
        let message = format!(
            "no fallback: while the gateway cannot answer, replicas stay as they are, however few; \
             set {RIGHT}"
        );
        return found.note("fallback", None, message);
    };
    let behavior = fallback.behavior.as_str();
    if !BEHAVIORS.contains(&behavior) {
        let (near, _) = nearest(behavior, &BEHAVIORS);
        let message = format!(
            "fallback.behavior {behavior:?}: KEDA has no such behavior and refuses the object, \
             nearest is {near}"
        );
        return found.error("fallback", None, message);
    }
    // What is missing has been said.
    let Some(replicas) = fallback.replicas else { return };
    match behavior {
        "static" | "currentReplicasIfLower" if replicas == 0 => {
            let least = match to_zero {
                true => "zero".to_owned(),
                false => format!("minReplicaCount {}", object.min.unwrap_or(0)),
            };
            let message = format!(
                "fallback.replicas 0: while the gateway cannot answer, KEDA scales this to {least}, \
                 under load too; set {RIGHT}"
            );
            found.warn("fallback", None, message);
        }
        "static" | "currentReplicasIfLower" => {
            let message = format!(
                "fallback.behavior {behavior}: while the gateway cannot answer, a larger fleet is cut \
                 to {replicas}, under load too; set behavior: currentReplicasIfHigher"
            );
            found.note("fallback", None, message);
        }
        _ => {}
    }
}

fn formula(object: &Object, found: &mut Findings) {
    let Some(target) = &object.formula_target else { return };
    let message = "scalingModifiers.formula: the HPA sees its result only, with its own target; \
                   targets and metricTypes of the triggers do nothing";
    found.note("formula", None, message);
    if object.fallback.is_some() && !target.parse::<u64>().is_ok_and(|target| target > 0) {
        let message = format!(
            "scalingModifiers.target {target:?}: KEDA's fallback works only with a whole number \
             from 1 up"
        );
        found.warn("formula", None, message);
    }
}
