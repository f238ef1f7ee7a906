//! ScaledObjects and ScaledJobs as the API server gives them → what the directory keeps. Pure.
//!
//! Guarantees: strange or missing fields leave the object out, with the reason; nothing panics.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use kube::core::DynamicObject;
use serde::Deserialize;
use serde_json::Value;
use shared::identity::{ScaledObjectKey, WorkloadKey};

use crate::directory::{DeclaredTrigger, ScaledKind, ScaledObject};
use crate::trigger::observed::TargetType;

/// KEDA's own defaults.
const MAX_REPLICAS: u32 = 100;
const COOLDOWN: u32 = 300;

/// An object with a `/scale` subresource.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Target {
    /// Its API version, for example `apps/v1`.
    pub api_version: Arc<str>,
    /// Its namespace, kind and name.
    pub key: WorkloadKey,
}

impl Target {
    /// Its API group; empty for the core group.
    pub fn group(&self) -> &str {
        self.api_version.split_once('/').map_or("", |(group, _)| group)
    }
}

/// A ScaledObject or ScaledJob with a trigger of ours, as declared.
#[derive(Clone, Debug)]
pub struct Declared {
    /// What the directory shows.
    pub object: ScaledObject,
    /// What it scales; `None` for a ScaledJob.
    pub target: Option<Target>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    scale_target_ref: Option<TargetRef>,
    min_replica_count: Option<u32>,
    max_replica_count: Option<u32>,
    cooldown_period: Option<u32>,
    triggers: Option<Vec<Trigger>>,
    advanced: Option<Advanced>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Advanced {
    scaling_modifiers: Option<Modifiers>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Modifiers {
    formula: Option<String>,
    metric_type: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TargetRef {
    api_version: Option<Arc<str>>,
    kind: Option<Arc<str>>,
    name: Arc<str>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Trigger {
    #[serde(rename = "type")]
    kind: String,
    name: Option<Arc<str>>,
    metric_type: Option<String>,
    metadata: Option<Value>,
}

/// Namespace and name; `None` for what has none.
pub fn key(object: &DynamicObject) -> Option<ScaledObjectKey> {
    let (namespace, name) =
        (object.metadata.namespace.as_deref()?, object.metadata.name.as_deref()?);
    Some(ScaledObjectKey::new(namespace, name))
}

/// Reads a ScaledObject or ScaledJob; `None` if it has no external trigger.
///
/// # Errors
/// Why it is left out.
pub fn declared(
    kind: ScaledKind,
    key: ScaledObjectKey,
    object: &DynamicObject,
) -> Result<Option<Declared>, String> {
    let spec = object.data.get("spec").ok_or("it has no spec")?;
    let spec = Spec::deserialize(spec).map_err(|error| format!("spec: {error}"))?;
    let mut triggers = Vec::new();
    let formula = spec.advanced.and_then(|advanced| advanced.scaling_modifiers);
    let formula =
        formula.filter(|modifiers| modifiers.formula.as_ref().is_some_and(|f| !f.is_empty()));
    for (index, mut trigger) in spec.triggers.into_iter().flatten().enumerate() {
        // The HPA sees the formula's result; the triggers' own types are ignored.
        if let Some(modifiers) = &formula {
            trigger.metric_type.clone_from(&modifiers.metric_type);
        }
        let ours = declared_trigger(index, trigger);
        triggers.extend(ours.map_err(|why| format!("spec.triggers[{index}]: {why}"))?);
    }
    if triggers.is_empty() {
        return Ok(None);
    }
    let target = match (kind, spec.scale_target_ref) {
        (ScaledKind::Job, _) => None,
        (ScaledKind::Object, None) => return Err("it has no spec.scaleTargetRef".into()),
        (ScaledKind::Object, Some(target)) => Some(named_target(&key, target)?),
    };
    let shown = target.as_ref().map_or_else(
        || WorkloadKey {
            namespace: key.namespace.clone(),
            kind: "ScaledJob".into(),
            name: key.name.clone(),
        },
        |target| target.key.clone(),
    );
    let object = ScaledObject {
        key,
        kind,
        target: shown,
        workload: None,
        absent: None,
        target_type: TargetType::default(),
        min_replicas: Some(spec.min_replica_count.unwrap_or(0)),
        max_replicas: Some(spec.max_replica_count.unwrap_or(MAX_REPLICAS)),
        cooldown: Some(Duration::from_secs(spec.cooldown_period.unwrap_or(COOLDOWN).into())),
        triggers: triggers.into(),
    };
    Ok(Some(Declared { object, target }))
}

fn named_target(key: &ScaledObjectKey, target: TargetRef) -> Result<Target, String> {
    if target.name.is_empty() {
        return Err("spec.scaleTargetRef has no name".into());
    }
    let given = |text: Option<Arc<str>>, default: &str| {
        text.filter(|text| !text.is_empty()).unwrap_or_else(|| default.into())
    };
    Ok(Target {
        api_version: given(target.api_version, "apps/v1"),
        key: WorkloadKey {
            namespace: key.namespace.clone(),
            kind: given(target.kind, "Deployment"),
            name: target.name,
        },
    })
}

fn declared_trigger(index: usize, trigger: Trigger) -> Result<Option<DeclaredTrigger>, String> {
    let pushes = match trigger.kind.as_str() {
        "external" => false,
        "external-push" => true,
        _ => return Ok(None),
    };
    let target_type = match trigger.metric_type.as_deref() {
        None | Some("" | "AverageValue") => TargetType::AverageValue,
        Some("Value") => TargetType::Value,
        Some(other) => return Err(format!("metricType {other:?} is not for external triggers")),
    };
    let metadata = match trigger.metadata {
        None | Some(Value::Null) => HashMap::new(),
        Some(value) => HashMap::deserialize(value).map_err(|error| format!("metadata: {error}"))?,
    };
    Ok(Some(DeclaredTrigger { index, pushes, name: trigger.name, target_type, metadata }))
}
