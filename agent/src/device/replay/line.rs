//! Pure: one line of a recording → the node's whole state.
//!
//! Guarantees: a line is taken as a whole or refused as a whole, with a sentence that says what is
//! wrong and what would be right. A field left out is unsupported, `null` is failed.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use proto::convert::{MAX_DEVICES, MAX_ENGINES, MAX_LABELS};
use serde_json::Value;
use shared::exposition::Matchers;
use shared::frame::{Engine, HolderSource, Mig};
use shared::identity::PodKey;
use shared::metric::{Metric, Scope};
use shared::reading::{Reading, Readings, out_of_range};

use super::condition::{KEYS as CONDITION_KEYS, condition};
use crate::device::fields::{Fields, Written};
use crate::device::{
    Observation, ObservedDevice, ObservedEngine, ObservedHolder, Processes, Seat, holder,
};

/// Why a reading failed that is `null` in a recording.
pub const NULL: &str = "null in the recording";
/// What is no holder's, where holders are told apart by metric, and its key.
pub(crate) const UNATTRIBUTED: [(Metric, &str); 3] = [
    (Metric::GpuUtilization, "unattributed_gpu_utilization"),
    (Metric::MemoryUsedMib, "unattributed_memory_used_mib"),
    (Metric::PowerDraw, "unattributed_power_draw"),
];
const SCRAPE_FAILED: &str = "scrape failed";

/// One good line.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// When it was recorded, on the recording's own clock.
    pub at_ms: f64,
    /// The node's whole state from then on.
    pub observation: Observation,
    /// Keys that mean nothing here, as sentences.
    pub unknown: Vec<String>,
}

/// Reads one line.
///
/// # Errors
/// When the line is broken: what is wrong and what would be right.
pub fn parse(text: &[u8]) -> Result<Line, String> {
    let value: Value = serde_json::from_slice(text).map_err(|error| not_json(&error))?;
    let mut unknown = Vec::new();
    let mut fields = Fields::open("the line", value)?;
    let Written::Number(at_ms) = fields.number("at_ms")? else {
        return Err("the line has no at_ms; write \"at_ms\":MILLISECONDS".into());
    };
    let observation = Observation {
        devices: devices(fields.list("devices", MAX_DEVICES)?, &mut unknown)?,
        engines: engines(fields.list("engines", MAX_ENGINES)?, &mut unknown)?,
        reason: fields.text("reason")?.map(Into::into),
    };
    unknown.extend(fields.left("a line", &["at_ms", "devices", "engines", "reason"]));
    Ok(Line { at_ms, observation, unknown })
}

fn not_json(error: &serde_json::Error) -> String {
    let (text, column) = (error.to_string(), error.column());
    // The parser's own line number is always 1 and would only mislead.
    let what = text.split(" at line ").next().unwrap_or(&text);
    format!(
        "not JSON at column {column}: {what}; \
         write one object a line, such as {{\"at_ms\":0,\"devices\":[]}}"
    )
}

fn devices(values: Vec<Value>, unknown: &mut Vec<String>) -> Result<Vec<ObservedDevice>, String> {
    let mut seen = HashSet::new();
    let mut devices = Vec::with_capacity(values.len());
    for (index, value) in (0..).zip(values) {
        let device = device(index, value, unknown)?;
        if !seen.insert(device.uuid.clone()) {
            let uuid = device.uuid;
            return Err(format!("device {uuid} is there twice; write each uuid once a line"));
        }
        devices.push(device);
    }
    Ok(devices)
}

fn device(index: u32, value: Value, unknown: &mut Vec<String>) -> Result<ObservedDevice, String> {
    let mut fields = Fields::open(format!("device {index}"), value)?;
    let uuid = fields.needed_text("uuid", "\"GPU-…\"")?;
    fields.now_at(format!("device {uuid}"));
    let total = total_memory(&mut fields)?;
    let readings = readings(&mut fields, Scope::Device)?;
    let readings = with_used_percent(&fields, readings, total)?;
    let memory_total_mib = match total {
        Written::Number(total) => Some(total),
        Written::Absent | Written::Null => None,
    };
    let device = ObservedDevice {
        uuid: uuid.into(),
        index: fields.count("index")?.unwrap_or(index),
        name: fields.text("name")?.unwrap_or_else(|| "unknown".into()).into(),
        memory_total_mib,
        mig: mig(&mut fields)?,
        holders: holders(&mut fields, memory_total_mib, unknown)?,
        reason: fields.text("reason")?.map(Into::into),
        age: Duration::ZERO,
        readings,
        seat: Seat::default(),
        processes: Processes::default(),
        condition: condition(&mut fields)?,
    };
    fields.skip(&["unattributed"]);
    fields.skip(&UNATTRIBUTED.map(|(_, name)| name));
    let known: Vec<_> = ["uuid", "index", "name", "memory_total_mib", "holders", "mig"]
        .into_iter()
        .chain(CONDITION_KEYS)
        .chain(metrics(Scope::Device).map(Metric::name))
        .collect();
    unknown.extend(fields.left("a device", &known));
    Ok(device)
}

fn total_memory(fields: &mut Fields) -> Result<Written, String> {
    let total = fields.number("memory_total_mib")?;
    match total {
        Written::Number(mib) if mib <= 0.0 || !Metric::MemoryUsedMib.accepts(mib) => Err(format!(
            "{}: memory_total_mib {mib} is out of range; write the MiB the device has",
            fields.place()
        )),
        _ => Ok(total),
    }
}

/// Used memory in percent is computed wherever it can be, so that it cannot contradict the MiB.
fn with_used_percent(
    fields: &Fields,
    mut readings: Vec<(Metric, Reading)>,
    total: Written,
) -> Result<Readings, String> {
    let of = |metric| readings.iter().find(|(known, _)| *known == metric);
    let used = of(Metric::MemoryUsedMib).map(|(_, reading)| reading);
    let given = of(Metric::MemoryUsedPercent).is_some();
    let computed = match (used, total) {
        (Some(Reading::Ok(used)), Written::Number(total)) if *used > total => {
            return Err(format!(
                "{}: memory_used_mib {used} is more than memory_total_mib {total}",
                fields.place()
            ));
        }
        (Some(Reading::Ok(used)), Written::Number(total)) => Reading::Ok(used / total * 100.0),
        (Some(Reading::Failed(_)), Written::Number(_) | Written::Null)
        | (Some(Reading::Ok(_)), Written::Null)
            if !given =>
        {
            Reading::Failed(NULL.into())
        }
        _ => return Ok(readings.into_iter().collect()),
    };
    readings.push((Metric::MemoryUsedPercent, computed));
    Ok(readings.into_iter().collect())
}

fn mig(fields: &mut Fields) -> Result<Option<Mig>, String> {
    let Some(value) = fields.value("mig").filter(|value| !value.is_null()) else {
        return Ok(None);
    };
    let mut fields = Fields::open(format!("{}: mig", fields.place()), value)?;
    Ok(Some(Mig {
        parent: fields.needed_text("parent", "\"GPU-…\"")?.into(),
        profile: fields.needed_text("profile", "\"3g.40gb\"")?.into(),
    }))
}

fn holders(
    fields: &mut Fields,
    total: Option<f64>,
    unknown: &mut Vec<String>,
) -> Result<Vec<ObservedHolder>, String> {
    let values = fields.list("holders", usize::MAX)?;
    let place = fields.place();
    let holders = holder::list(place, values, HolderSource::Replay, unknown)?;
    for holder in &holders {
        for (metric, used) in &holder.own {
            if *metric == Metric::MemoryUsedMib && total.is_some_and(|total| *used > total) {
                let pod = &holder.pod;
                return Err(format!(
                    "{place}: memory_used_mib {used} of {pod} is more than the device has"
                ));
            }
        }
    }
    Ok(holders)
}

fn engines(values: Vec<Value>, unknown: &mut Vec<String>) -> Result<Vec<ObservedEngine>, String> {
    let mut seen = HashSet::new();
    let mut engines = Vec::with_capacity(values.len());
    for (number, value) in values.into_iter().enumerate() {
        let engine = engine(number, value, unknown)?;
        let Engine { pod, labels, .. } = &engine.engine;
        if !seen.insert((pod.clone(), labels.clone())) {
            return Err(format!(
                "engine of {pod} is there twice; write each pod once a line, or with other labels"
            ));
        }
        engines.push(engine);
    }
    Ok(engines)
}

fn engine(
    number: usize,
    value: Value,
    unknown: &mut Vec<String>,
) -> Result<ObservedEngine, String> {
    let mut fields = Fields::open(format!("engine {number}"), value)?;
    let pod = PodKey::new(
        fields.needed_text("namespace", "\"NAMESPACE\"")?,
        fields.needed_text("pod", "\"POD\"")?,
    );
    let readings = match fields.value("metrics") {
        None => {
            return Err(format!(
                "engine of {pod} has no metrics; write an object, or null where the scrape failed"
            ));
        }
        Some(Value::Null) => {
            let reason: Arc<str> = SCRAPE_FAILED.into();
            let failed = |metric| (metric, Reading::Failed(reason.clone()));
            metrics(Scope::Engine).map(failed).collect()
        }
        Some(value) => {
            let mut fields = Fields::open(format!("metrics of {pod}"), value)?;
            let readings = readings(&mut fields, Scope::Engine)?;
            let known: Vec<_> = metrics(Scope::Engine).map(Metric::name).collect();
            unknown.extend(fields.left("an engine's metrics", &known));
            readings.into_iter().collect()
        }
    };
    let uid = fields.text("uid")?.map(Into::into);
    let labels = fields.text_up_to(MAX_LABELS, "labels")?.unwrap_or_default();
    let labels: Matchers = labels.parse().map_err(|why| format!("labels of {pod}: {why}"))?;
    unknown.extend(fields.left("an engine", &["namespace", "pod", "uid", "labels", "metrics"]));
    Ok(ObservedEngine {
        engine: Engine { pod, uid, labels: labels.to_string().into() },
        age: Duration::ZERO,
        readings,
    })
}

fn metrics(scope: Scope) -> impl Iterator<Item = Metric> {
    let all = Metric::ALL.iter().copied();
    all.filter(move |metric| metric.scope() == scope)
}

fn readings(fields: &mut Fields, scope: Scope) -> Result<Vec<(Metric, Reading)>, String> {
    let mut readings = Vec::new();
    for metric in metrics(scope) {
        let reading = match fields.number(metric.name())? {
            Written::Absent => continue,
            Written::Null => Reading::Failed(NULL.into()),
            Written::Number(value) if metric.accepts(value) => Reading::Ok(value),
            Written::Number(value) => {
                return Err(format!("{}: {}", fields.place(), out_of_range(metric, value)));
            }
        };
        readings.push((metric, reading));
    }
    Ok(readings)
}
