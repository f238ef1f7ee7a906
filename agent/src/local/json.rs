//! Pure: what is shown of a node → one line of the replay format.
//!
//! Guarantees: the reader of recordings takes every line written here, and what it reads is what
//! was shown: known values to the last bit, `null` for what failed, nothing for what is
//! unsupported.

use proto::convert::MAX_NAME;
use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};
use serde_json::Number;
use shared::frame::{Holder, Mig};
use shared::metric::{Metric, Scope};
use shared::reading::{Reading, Readings};

use super::condition::WrittenCondition;
use super::view::{DeviceView, EngineView, View};
use crate::device::holder::OWN;
use crate::device::replay::line::UNATTRIBUTED;

/// The line for what is shown at `at_ms` of a recording, without the newline.
pub fn line(view: &View<'_>, at_ms: u64) -> String {
    let line = Line {
        at_ms,
        reason: view.reason.map(cut),
        devices: view.devices.iter().map(device).collect(),
        engines: view.engines.iter().map(engine).collect(),
    };
    serde_json::to_string(&line).expect("texts and finite numbers are always JSON")
}

#[derive(Serialize)]
struct Line<'a> {
    at_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    devices: Vec<WrittenDevice<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    engines: Vec<WrittenEngine<'a>>,
}

#[derive(Serialize)]
struct WrittenDevice<'a> {
    uuid: &'a str,
    index: u32,
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_total_mib: Option<Number>,
    #[serde(flatten)]
    values: Values,
    #[serde(flatten)]
    condition: WrittenCondition,
    #[serde(skip_serializing_if = "Option::is_none")]
    mig: Option<WrittenMig<'a>>,
    holders: Vec<WrittenHolder<'a>>,
    /// `None` if there is nothing to say of it, null if a holder's part of the load is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    unattributed: Option<Option<Number>>,
    #[serde(flatten)]
    left: Left,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

#[derive(Serialize)]
struct WrittenMig<'a> {
    parent: &'a str,
    profile: &'a str,
}

#[derive(Serialize)]
struct WrittenHolder<'a> {
    namespace: &'a str,
    pod: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    uid: Option<&'a str>,
    #[serde(skip_serializing_if = "str::is_empty")]
    container: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    share: Option<Number>,
    #[serde(flatten)]
    own: Values,
    source: &'static str,
    estimated: bool,
    undeclared: bool,
}

#[derive(Serialize)]
struct WrittenEngine<'a> {
    namespace: &'a str,
    pod: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    uid: Option<&'a str>,
    /// Which of its series were read; all where it is empty.
    #[serde(skip_serializing_if = "str::is_empty")]
    labels: &'a str,
    /// None where nothing could be read.
    metrics: Option<Values>,
}

/// Metrics under their names; `None` is a failure.
struct Values(Vec<(Metric, Option<f64>)>);

/// What is no holder's, under names of its own.
struct Left(Vec<(&'static str, f64)>);

impl Serialize for Left {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in &self.0 {
            map.serialize_entry(name, &number(*value))?;
        }
        map.end()
    }
}

impl Serialize for Values {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (metric, value) in &self.0 {
            map.serialize_entry(metric.name(), &value.map(number))?;
        }
        map.end()
    }
}

/// A value as people write it: whole numbers without a point.
pub(super) fn number(value: f64) -> Number {
    const EXACT: f64 = 9_007_199_254_740_992.0; // 2^53: every whole number below it is exact
    if value.fract() == 0.0 && value.abs() < EXACT {
        return Number::from(value as i64);
    }
    Number::from_f64(value).expect("readings and shares are finite")
}

/// A text cut to what the reader takes.
fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_NAME)]
}

fn device<'a>(view: &DeviceView<'a>) -> WrittenDevice<'a> {
    let device = view.device;
    let total = device
        .memory_total_mib
        .filter(|total| *total > 0.0 && Metric::MemoryUsedMib.accepts(*total));
    let holders = view.holders().map(|(place, of)| holder(view, place, of, total));
    // Where holders have shares, the share that is left says it all.
    let by_metric = device.holders.iter().any(|holder| holder.share.is_none());
    let left = UNATTRIBUTED.iter().filter(|_| by_metric);
    let left = left.filter_map(|&(metric, name)| Some((name, view.left(metric)?)));
    WrittenDevice {
        uuid: device.uuid.as_str(),
        index: device.index,
        name: cut(&device.name),
        memory_total_mib: total.map(number),
        values: device_values(&view.readings, total),
        condition: WrittenCondition::of(view),
        mig: device.mig.as_ref().map(mig),
        holders: holders.collect(),
        unattributed: match view.unattributed() {
            Some(0.0) => None,
            None if device.holders.is_empty() => None,
            share => Some(share.map(number)),
        },
        left: Left(left.collect()),
        reason: view.reason().map(|reason| cut(&reason).to_owned()),
    }
}

/// More memory in use than there is would make the whole line unreadable, and cannot be true.
fn fits(metric: Metric, value: f64, total: Option<f64>) -> bool {
    metric != Metric::MemoryUsedMib || total.is_none_or(|total| value <= total)
}

fn device_values(readings: &Readings, total: Option<f64>) -> Values {
    let used = readings.value(Metric::MemoryUsedMib);
    let computed = total.is_some() && used.is_some();
    let written = readings.iter().filter_map(|(metric, reading)| match reading {
        // Its reader computes it from the two others.
        _ if metric == Metric::MemoryUsedPercent && computed => None,
        _ if metric.scope() != Scope::Device => None,
        Reading::Ok(value) => Some((metric, fits(metric, value, total).then_some(value))),
        Reading::Failed(_) => Some((metric, None)),
        Reading::Unsupported => None,
    });
    Values(written.collect())
}

fn mig(mig: &Mig) -> WrittenMig<'_> {
    WrittenMig { parent: mig.parent.as_str(), profile: &mig.profile }
}

fn holder<'a>(
    view: &DeviceView<'a>,
    place: usize,
    holder: &'a Holder,
    total: Option<f64>,
) -> WrittenHolder<'a> {
    // The percent of its memory is computed by the reader.
    let own = OWN.into_iter().filter_map(|metric| {
        let value = view.held(place, metric)?;
        fits(metric, value, total).then_some((metric, Some(value)))
    });
    WrittenHolder {
        namespace: &holder.pod.namespace,
        pod: &holder.pod.name,
        uid: holder.uid.as_ref().map(|uid| uid.as_str()),
        container: &holder.container,
        share: holder.share.map(number),
        own: Values(own.collect()),
        source: holder.source.name(),
        estimated: holder.estimated,
        undeclared: holder.undeclared,
    }
}

fn engine<'a>(view: &EngineView<'a>) -> WrittenEngine<'a> {
    let values: Vec<_> = view.readings.iter().map(|(metric, r)| (metric, r.value())).collect();
    let all = Metric::ALL.iter().filter(|metric| metric.scope() == Scope::Engine).count();
    let failed = values.len() == all && values.iter().all(|(_, value)| value.is_none());
    WrittenEngine {
        namespace: &view.engine.pod.namespace,
        pod: &view.engine.pod.name,
        uid: view.engine.uid.as_ref().map(|uid| uid.as_str()),
        labels: &view.engine.labels,
        metrics: (!failed).then_some(Values(values)),
    }
}
