//! The name under which KEDA knows a metric, where the metadata does not give one.
//!
//! Guarantees: the name depends on nothing but what is measured, in which shape. It is a valid
//! path segment of at most `MAX_NAME` characters; triggers that measure something else have
//! another name. Where the readable form cannot say it all, a hash of the whole text ends it.

use std::fmt::Write as _;

use humantime::format_duration;

use super::goal::Settled;
use super::metadata::{Aggregation, Fields, MAX_NAME, WindowFunction};

/// A dash and eight hexadecimal digits.
const HASH: usize = 9;

pub(super) fn derive(goal: &Settled, fields: &Fields) -> String {
    let mut name = measured(goal) + &shape(fields);
    let labels = fields.engine_labels.iter().flatten();
    let plain = name.len();
    for (label, value) in labels {
        // Written out with its quotes escaped, so that no two lists of labels read the same.
        push(&mut name, format_args!(",{label}={value:?}"));
    }
    if name.len() == plain && plain <= MAX_NAME {
        return name;
    }
    let hash = fnv1a(name.as_bytes());
    name.truncate(plain.min(MAX_NAME - HASH));
    push(&mut name, format_args!("-{hash:08x}"));
    name
}

/// `gpu_utilization`, or `requests_waiting.5-kv_cache_usage.80` for a composite, whose value
/// depends on the parts' targets.
fn measured(goal: &Settled) -> String {
    let one = |part: &super::measure::Part| match goal.composite {
        true => format!("{}.{}", part.metric, part.target),
        false => part.metric.to_string(),
    };
    goal.parts.iter().map(one).collect::<Vec<_>>().join("-")
}

fn shape(fields: &Fields) -> String {
    let mut shape = String::new();
    let aggregation = fields.aggregation.unwrap_or_default();
    if aggregation != Aggregation::Total {
        push(&mut shape, format_args!("-{}", aggregation.word()));
    }
    if let Some(index) = fields.gpu_index.flatten() {
        push(&mut shape, format_args!("-gpu{index}"));
    }
    if let Some(window) = fields.window.filter(|window| !window.is_zero()) {
        let function = fields.window_function.unwrap_or_default();
        // `p9030s` could be read in two ways.
        let dot = if function == WindowFunction::P90 { "." } else { "" };
        let window = format_duration(window).to_string().replace(' ', "").replace('µ', "u");
        push(&mut shape, format_args!("-{}{dot}{window}", function.word()));
    }
    shape
}

fn push(text: &mut String, more: std::fmt::Arguments<'_>) {
    text.write_fmt(more).expect("a string takes any text");
}

/// FNV-1a: the same on every machine and in every version, which a hasher of std is not.
fn fnv1a(bytes: &[u8]) -> u32 {
    let step = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    bytes.iter().fold(0x811c_9dc5, step)
}
