//! The JSON of a ScaledObject's decision timeline.

use std::sync::Arc;

use serde::Serialize;
use serde_json::{Map, Value, json};
use shared::process::Clock;
use shared::time::Timestamp;

use crate::explain::CoverageExplanation;
use crate::timeline::look::Look;
use crate::timeline::record::{COLUMNS, Entry, Record, SAMPLE_EVERY};
use crate::timeline::{MAX_TRIGGERS, Timelines, TriggerKey};
use crate::trigger::number::thousandths;

/// The timelines of the triggers of `namespace/name`; `None` if none is known of it.
pub(super) fn timeline(
    timelines: &Timelines,
    clock: Clock,
    namespace: &str,
    name: &str,
) -> Option<Value> {
    let mut triggers = Vec::new();
    timelines.each(|key, record| {
        if &*key.object.namespace == namespace && &*key.object.name == name {
            triggers.push(trigger(key, record, clock));
        }
    });
    let known = !triggers.is_empty();
    known.then(|| json!({ "namespace": namespace, "name": name, "triggers": triggers }))
}

/// Why there is no timeline of `namespace/name`.
pub(super) fn missing(timelines: &Timelines, namespace: &str, name: &str) -> String {
    let not = format!("no trigger of {namespace}/{name} has been looked at");
    match timelines.left_out() {
        0 => not,
        left_out => format!(
            "{not}: it is none that is known, or one of the {left_out} that there is no room for \
             beside {MAX_TRIGGERS} timelines"
        ),
    }
}

fn trigger(key: &TriggerKey, record: &Record, clock: Clock) -> Value {
    let columns = COLUMNS.iter().enumerate().map(|(at, name)| {
        let column: Vec<_> = record.column(at).collect();
        ((*name).to_owned(), json!(column))
    });
    let every = i64::try_from(SAMPLE_EVERY.as_millis()).unwrap_or(i64::MAX);
    let newest = Timestamp::from_millis(record.slot().saturating_mul(every));
    json!({
        "trigger": key.trigger,
        "metricName": key.metric,
        "activations": record.activations,
        "changes": record.changes,
        "entries": record.entries().map(|entry| shown(entry, clock)).collect::<Vec<_>>(),
        "history": {
            "everySeconds": SAMPLE_EVERY.as_secs(),
            "until": rfc3339(clock, newest),
            "columns": Map::from_iter(columns),
        },
    })
}

fn shown(entry: &Entry, clock: Clock) -> Value {
    let mut shown = json!({ "at": rfc3339(clock, entry.at), "changed": entry.changed });
    if let (Some(shown), Ok(Value::Object(look))) =
        (shown.as_object_mut(), serde_json::to_value(LookEntry::from(&entry.look)))
    {
        shown.extend(look);
    }
    shown
}

fn rfc3339(clock: Clock, moment: Timestamp) -> String {
    humantime::format_rfc3339_millis(clock.wall(moment)).to_string()
}

/// A look, as it is shown.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct LookEntry {
    status: &'static str,
    reason: Arc<str>,
    metric: Arc<str>,
    unit: &'static str,
    metric_type: &'static str,
    value: Option<f64>,
    target: Option<f64>,
    active: Option<bool>,
    desired: Option<u32>,
    clamped_by: Option<Arc<str>>,
    replicas: Option<u32>,
    ready: Option<u32>,
    unscheduled: Option<u32>,
    coverage: Option<CoverageExplanation>,
    /// Why nothing can wake the workload.
    deaf: Option<Arc<str>>,
    s: Option<f64>,
    up: Option<f64>,
    down: Option<f64>,
    hold: Option<f64>,
    requests_waiting: Option<f64>,
    requests_running: Option<f64>,
    tokens_per_second: Option<f64>,
    time_to_first_token_ms: Option<f64>,
    engine_pods_unread: u32,
    gpus_free: Option<u32>,
}

impl From<&Look> for LookEntry {
    fn from(look: &Look) -> Self {
        let (figures, engines) = (look.figures, look.engines);
        Self {
            status: look.status,
            reason: look.reason.clone(),
            metric: look.metric.clone(),
            unit: unit(&look.metric),
            metric_type: look.metric_type,
            value: look.value,
            target: look.target,
            active: look.active,
            desired: look.desired,
            clamped_by: look.clamped_by.clone(),
            replicas: look.replicas,
            ready: look.ready,
            unscheduled: look.unscheduled,
            coverage: look.coverage.map(Into::into),
            deaf: look.deaf.clone(),
            s: figures.map(|figures| figures.s),
            up: figures.map(|figures| figures.up),
            down: figures.map(|figures| figures.down),
            hold: figures.map(|figures| figures.hold),
            requests_waiting: engines.waiting.map(thousandths),
            requests_running: engines.running.map(thousandths),
            tokens_per_second: engines.tokens.map(thousandths),
            time_to_first_token_ms: engines.first_token.map(thousandths),
            engine_pods_unread: engines.unread,
            gpus_free: look.gpus_free,
        }
    }
}

/// The unit of a trigger's value; that of a composite is percent of a replica.
fn unit(metric: &str) -> &'static str {
    match shared::metric::Metric::from_name(metric) {
        Some(metric) => metric.unit().symbol(),
        None if metric.contains(',') => "%",
        None => "",
    }
}
