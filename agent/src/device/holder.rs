//! How a holder is written, in recordings and in holders files alike.
//!
//! Guarantees: shares are within 0 to 1 and those of different pods do not add up to more than
//! the device; a holder's own values are values its metric can have.

use proto::convert::MAX_HOLDERS;
use serde_json::Value;
use shared::frame::HolderSource;
use shared::identity::PodKey;
use shared::metric::Metric;
use shared::reading::out_of_range;

use super::ObservedHolder;
use super::fields::{Fields, Written};

/// Shares are decimal fractions; their sum may miss 1 by this much.
const ROUNDING: f64 = 1e-6;

/// Metrics that a holder may have its own value of.
pub(crate) const OWN: [Metric; 3] =
    [Metric::GpuUtilization, Metric::MemoryUsedMib, Metric::PowerDraw];

/// Keys of a holder, for the nearest one to a typo.
const KEYS: [&str; 10] = [
    "namespace",
    "pod",
    "uid",
    "container",
    "share",
    "gpu_utilization",
    "memory_used_mib",
    "power_draw",
    "estimated",
    "source",
];

/// Reads the list of holders of the device at `place`; keys it does not know go to `unknown`.
pub(crate) fn list(
    place: &str,
    values: Vec<Value>,
    source: HolderSource,
    unknown: &mut Vec<String>,
) -> Result<Vec<ObservedHolder>, String> {
    if values.len() > MAX_HOLDERS {
        return Err(format!(
            "{place}: {} holders; at most {MAX_HOLDERS} are accepted",
            values.len()
        ));
    }
    let mut holders = Vec::with_capacity(values.len());
    for (number, value) in values.into_iter().enumerate() {
        let fields = Fields::open(format!("{place}: holder {number}"), value)?;
        holders.push(one(fields, source, unknown)?);
    }
    let given: f64 = holders.iter().filter_map(|holder| holder.share).sum();
    // Containers of one pod may each see the whole device.
    let one_pod = holders.windows(2).all(|pair| pair[0].pod == pair[1].pod);
    if !one_pod && given > 1.0 + ROUNDING {
        return Err(format!(
            "{place}: the shares of its pods add up to {given}; write shares of at most 1 together"
        ));
    }
    Ok(holders)
}

fn one(
    mut fields: Fields,
    source: HolderSource,
    unknown: &mut Vec<String>,
) -> Result<ObservedHolder, String> {
    let pod = PodKey::new(
        fields.needed_text("namespace", "\"NAMESPACE\"")?,
        fields.needed_text("pod", "\"POD\"")?,
    );
    let share = match fields.number("share")? {
        Written::Absent | Written::Null => None,
        Written::Number(share) if (0.0..=1.0).contains(&share) => Some(share),
        Written::Number(share) => {
            let place = fields.place();
            return Err(format!("{place}: share {share} is not within 0 to 1"));
        }
    };
    let mut own = Vec::new();
    for metric in OWN {
        match fields.number(metric.name())? {
            Written::Absent | Written::Null => {}
            Written::Number(value) if metric.accepts(value) => own.push((metric, value)),
            Written::Number(value) => {
                return Err(format!("{}: {}", fields.place(), out_of_range(metric, value)));
            }
        }
    }
    let written = fields.value("source");
    let source = match (source, written.as_ref().and_then(Value::as_str)) {
        // Its part is what is written of it and nothing else: there is no share to make up.
        (HolderSource::Replay, Some("process")) => HolderSource::Process,
        (HolderSource::Replay, Some("memory")) => HolderSource::Memory,
        (source, _) => source,
    };
    let holder = ObservedHolder {
        pod,
        uid: fields.text("uid")?.map(Into::into),
        container: fields.text("container")?.unwrap_or_default().into(),
        share,
        estimated: fields.flag("estimated")?,
        source,
        undeclared: fields.flag("undeclared")?,
        own,
    };
    unknown.extend(fields.left("a holder", &KEYS));
    Ok(holder)
}
