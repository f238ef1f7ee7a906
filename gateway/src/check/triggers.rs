//! Rules on one trigger: whose it is, whether it can be served, what is unsound about it.

use std::collections::HashMap;
use std::time::Duration;

use humantime::format_duration;

use super::manifest::{Declared, Object};
use super::{Findings, Known, TYPING_MISTAKE, nearest};
use crate::demand::place::Rules;
use crate::trigger::spec::{Demand, KEYS, Trigger, is_for_keda, parse_admitting};
use crate::trigger::warning;

/// Keys that decide what a trigger measures; with one of them unknown, little can be said.
const DECISIVE: &[&str] = &[
    "profile",
    "metricType",
    "targetValue",
    "targetGpuUtilization",
    "targetMemoryUtilization",
    "activationThreshold",
    "aggregation",
];
/// A key this much like one of ours is a typing mistake, not another scaler's key.
const ALIKE: f64 = 0.7;
/// How often KEDA polls unless told otherwise, in seconds.
const DEFAULT_POLLING: u32 = 30;
/// The types of a trigger that asks a scaler outside KEDA.
const OURS: [&str; 2] = ["external", "external-push"];
/// This gateway's Service.
const SERVICE: &str = "gpu-gateway";
/// The existing scaler's Service, behind which every node answers for itself.
const PER_NODE: &str = "keda-gpu-scaler";

/// A trigger that is for this gateway.
pub(super) struct Ours {
    /// Its typed form, where it can be read.
    pub(super) trigger: Option<Trigger>,
    /// Whether it sees demand while no pod is ready.
    pub(super) sees_demand: bool,
}

/// What the rules know besides the trigger.
pub(super) struct Context<'a> {
    pub(super) object: &'a Object,
    pub(super) known: &'a Known<'a>,
    /// Whether it scales to zero.
    pub(super) to_zero: bool,
}

/// Checks a trigger; `None` if it is not for this gateway.
pub(super) fn check(
    declared: &Declared,
    context: &Context<'_>,
    found: &mut Findings,
) -> Option<Ours> {
    if !OURS.contains(&declared.kind.as_str()) {
        kind(declared, found);
        return None;
    }
    if !is_ours(declared) {
        let message = "taken for another scaler's: it has no key of this gateway; not checked";
        found.note("not-ours", Some(declared), message);
        return None;
    }
    address(declared, found);
    push(declared, context, found);
    let is_value = metric_type(declared, context.object.is_job, found);
    let trigger = metadata(declared, context.known, found);
    let sees_demand = declared.metadata.contains_key("demandEndpointFromEnv")
        || trigger.as_ref().is_some_and(|trigger| trigger.demand.is_some())
        || (trigger.is_none() && declared.metadata.contains_key("demandEndpoint"));
    if let Some(demand) = trigger.as_ref().and_then(|trigger| trigger.demand.as_ref()) {
        demand_place(declared, demand, context, found);
    }
    if let Some(trigger) = &trigger
        && !context.object.is_job
    {
        unsound(declared, trigger, is_value, context, found);
    }
    Some(Ours { trigger, sees_demand })
}

/// A type that KEDA does not have, where it is nearly one of ours or is for this gateway.
fn kind(declared: &Declared, found: &mut Findings) {
    let kind = declared.kind.as_str();
    let plain = kind.to_lowercase();
    let (near, edits) = nearest(&plain, &OURS);
    let is_for_us =
        declared.metadata.get("scalerAddress").is_some_and(|address| address.contains(SERVICE));
    if !kind.is_empty() && (is_for_us || edits <= TYPING_MISTAKE) {
        let message = format!("type {kind:?}: KEDA has no such scaler, nearest is {near}");
        found.error("type", Some(declared), message);
    }
}

/// Whether it is for this gateway: by a key, by a key that is nearly one, or by its address.
/// Without an address it is for nobody, which is to be said.
fn is_ours(declared: &Declared) -> bool {
    if !declared.metadata.contains_key("scalerAddress") {
        return true;
    }
    let host = declared.metadata.get("scalerAddress").map(|address| address.to_lowercase());
    host.is_some_and(|host| host.contains("gpu"))
        || declared.metadata.keys().any(|key| {
            let key = key.strip_suffix("FromEnv").unwrap_or(key).to_lowercase();
            let like =
                |known: &str| strsim::normalized_damerau_levenshtein(&key, &known.to_lowercase());
            !is_for_keda(&key) && KEYS.iter().any(|known| like(known.name) >= ALIKE)
        })
}

fn address(declared: &Declared, found: &mut Findings) {
    const RIGHT: &str = "gpu-gateway.NAMESPACE.svc.cluster.local:6000";
    if declared.metadata.contains_key("scalerAddressFromEnv") {
        return;
    }
    let address = declared.metadata.get("scalerAddress").map(|text| text.trim());
    let Some(address) = address.filter(|text| !text.is_empty()) else {
        let message = format!("scalerAddress is missing: KEDA has nobody to ask; write {RIGHT}");
        return found.error("address", Some(declared), message);
    };
    if address.starts_with("http://") || address.starts_with("https://") {
        let message = format!("scalerAddress {address:?}: is HOST:PORT, without a scheme");
        return found.error("address", Some(declared), message);
    }
    let host = address.rsplit('/').next().unwrap_or_default();
    if host.split('.').next().is_some_and(|service| service.contains(PER_NODE)) {
        let message = format!(
            "scalerAddress {address:?}: is a scaler on each node, of which one at random answers \
             for its own GPUs only; point it at the gateway, {RIGHT}"
        );
        found.warn("per-node", Some(declared), message);
    }
    let (name, port) = host.rsplit_once(':').unwrap_or((host, ""));
    match port.parse::<u16>() {
        Err(_) => {
            let message =
                format!("scalerAddress {address:?}: has no port, gRPC would call 443; add :6000");
            found.warn("address", Some(declared), message);
        }
        Ok(port @ (6001 | 8080)) if name.contains(SERVICE) => {
            let message = format!(
                "scalerAddress {address:?}: port {port} is not KEDA's: 6001 is the agents', 8080 \
                 the pages'; write :6000"
            );
            found.warn("address", Some(declared), message);
        }
        Ok(_) => {}
    }
    if name == SERVICE {
        let message = format!(
            "scalerAddress {address:?}: a bare name is looked up in KEDA's namespace; write {RIGHT}"
        );
        found.warn("address", Some(declared), message);
    }
}

fn push(declared: &Declared, context: &Context<'_>, found: &mut Findings) {
    match (declared.kind.as_str(), context.object.is_job) {
        ("external-push", true) => {
            let message = "type external-push: KEDA does not take pushes for a ScaledJob; write type: external";
            found.warn("push", Some(declared), message);
        }
        ("external", false) if context.to_zero => {
            let polling = context.object.polling.unwrap_or(DEFAULT_POLLING);
            let message = format!(
                "type external: KEDA sees activity at its next poll, up to {polling} s late; \
                 type: external-push wakes it within a second"
            );
            found.note("push", Some(declared), message);
        }
        _ => {}
    }
}

/// Whether the HPA's metric is of type Value.
fn metric_type(declared: &Declared, is_job: bool, found: &mut Findings) -> bool {
    let wrong = match declared.metric_type.as_deref() {
        None | Some("AverageValue" | "") => return false,
        Some("Value") if !is_job => return true,
        Some("Value") => {
            "metricType Value: with it KEDA reads the target of a ScaledJob as 0 and creates no \
             job; leave it out"
                .to_owned()
        }
        Some("Utilization") => {
            "metricType Utilization: KEDA refuses it for external triggers; leave it out \
             (AverageValue) or write Value"
                .to_owned()
        }
        Some(other) => format!("metricType {other:?}: write AverageValue or Value"),
    };
    found.error("metric-type", Some(declared), wrong);
    false
}

/// Reads the metadata as GetMetrics would, without what only the cluster knows.
fn metadata(declared: &Declared, known: &Known<'_>, found: &mut Findings) -> Option<Trigger> {
    let from_env: Vec<&str> =
        declared.metadata.keys().filter_map(|key| key.strip_suffix("FromEnv")).collect();
    for key in &from_env {
        let variable = &declared.metadata[&format!("{key}FromEnv")];
        let message = match KEYS.iter().any(|known| known.name == *key) || is_for_keda(key) {
            true => format!(
                "{key}FromEnv: the value is in the target's variable {variable:?}, not checked here"
            ),
            false => format!("{key}FromEnv: {key} is no key of this gateway, ignored"),
        };
        found.note("from-env", Some(declared), message);
    }
    let here = declared.metadata.iter().filter(|(key, _)| !key.ends_with("FromEnv"));
    let here: HashMap<String, String> =
        here.map(|(key, value)| (key.clone(), value.clone())).collect();
    let is_partial = DECISIVE.iter().any(|key| from_env.contains(key));
    match parse_admitting(&here, known.profiles, known.demand_allow) {
        Ok(trigger) => (!is_partial).then_some(trigger),
        Err(error) => {
            for problem in error.problems() {
                if is_certain(problem, &from_env, is_partial) {
                    found.error(rule_of(problem), Some(declared), problem.clone());
                }
            }
            None
        }
    }
}

/// Whether a problem stays one whatever the variables say.
fn is_certain(problem: &str, from_env: &[&str], is_partial: bool) -> bool {
    let is_awaited = from_env.iter().any(|key| problem.ends_with(&format!(" needs {key}")));
    // Some problems lie in what several keys say together.
    let is_of_one_key = problem.contains("unknown key")
        || KEYS.iter().any(|key| {
            problem
                .strip_prefix(key.name)
                .is_some_and(|rest| rest.starts_with(" \"") || rest == " is empty")
        });
    !is_awaited && (!is_partial || is_of_one_key)
}

fn rule_of(problem: &str) -> &'static str {
    if problem.contains("unknown key") {
        "unknown-key"
    } else if problem.contains("belongs beside `type:`") {
        "metric-type"
    } else {
        "metadata"
    }
}

/// Whether the gateway reads the page of a trigger there. The domain of the cluster does not matter.
fn demand_place(declared: &Declared, demand: &Demand, context: &Context<'_>, found: &mut Findings) {
    let Some(namespace) = &context.object.namespace else { return };
    let allowed = context.known.demand_allow.to_vec();
    let rules = Rules { allowed, ..Rules::default() };
    if let Err(why) = rules.place(&demand.endpoint, namespace) {
        found.warn("demand-place", Some(declared), why);
    }
}

/// What is legal and unlikely to do what was meant.
fn unsound(
    declared: &Declared,
    trigger: &Trigger,
    is_value: bool,
    context: &Context<'_>,
    found: &mut Findings,
) {
    let min = if context.to_zero { Some(0) } else { context.object.min };
    for warning in warning::findings(trigger, min, is_value) {
        // Another trigger may wake it, which is seen over all of them.
        if warning.rule != warning::NO_WAKE {
            found.warn(warning.rule, Some(declared), warning.message);
        }
    }
    if is_value {
        value_type(declared, trigger, context.known.load_time, found);
    }
    if let Some(load_time) = context.known.load_time
        && trigger.cold_start_timeout < load_time
    {
        let (timeout, load) =
            (format_duration(trigger.cold_start_timeout), format_duration(load_time));
        let message = format!(
            "coldStartTimeout {timeout}: a pod that takes {load} to load is taken for stuck \
             before it serves; write more than {load}"
        );
        found.warn("cold-start", Some(declared), message);
    }
}

fn value_type(
    declared: &Declared,
    trigger: &Trigger,
    load_time: Option<Duration>,
    found: &mut Findings,
) {
    let grace = trigger.startup_grace;
    if !grace.is_zero() && load_time.is_none_or(|load| grace >= load) {
        return;
    }
    let load = load_time.map_or_else(
        || "the time a pod takes to serve".to_owned(),
        |load| format_duration(load).to_string(),
    );
    let message = format!(
        "metricType Value: the HPA multiplies by the Ready pods, so pods that are Ready before they \
         serve make it overshoot; leave metricType out (AverageValue), or set startupGrace to {load}"
    );
    found.warn("value-slow-start", Some(declared), message);
}
