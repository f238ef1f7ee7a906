//! Pure: what is shown of a node → a table for people.
//!
//! Guarantees: holders and reasons stand below their device, in lines of at most 100 characters as
//! far as words allow; a UUID is cut only as far as it stays unambiguous on this node; what failed and
//! what is unsupported look like neither a value nor each other; no control character of a
//! driver's or a file's text reaches the terminal.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use shared::frame::Device;
use shared::metric::{Metric, Unit};
use shared::reading::{Reading, Readings};

use super::view::{DeviceView, EngineView, View, plain};

/// Characters of a UUID that are always shown.
const SHORTEST: usize = 12;
/// Characters of a line that terminals have.
const WIDTH: usize = 100;
/// Characters of a model: the other columns leave no more.
const MODEL: usize = 35;
/// Place of the first and after the last column of figures.
const FIGURES: std::ops::Range<usize> = 3..7;
const UNSUPPORTED: &str = "-";
const FAILED: &str = "failed";

/// The whole view as text, with a newline at the end.
pub fn render(view: &View<'_>) -> String {
    if view.is_empty() {
        return format!("{}\n", plain(view.reason.unwrap_or("no devices")));
    }
    let mut lines = Vec::new();
    if !view.devices.is_empty() {
        let mut rows = devices(&view.devices).lines().map(trimmed).collect::<Vec<_>>().into_iter();
        lines.extend(rows.next());
        for (row, view) in rows.zip(&view.devices) {
            lines.push(row);
            let below = below(view).into_iter();
            lines.extend(below.flat_map(|text| wrapped(&plain(&text))));
        }
    }
    for view in &view.engines {
        let labels = match view.engine.labels.is_empty() {
            true => String::new(),
            false => format!(" {{{}}}", view.engine.labels),
        };
        lines.push(plain(&format!(" ENGINE {}{labels}", view.engine.pod)));
        lines.extend(wrapped(&plain(&engine(view))));
    }
    lines.extend(view.reason.map(plain));
    lines.join("\n") + "\n"
}

/// What stands below the device's row: its holders, what is nobody's, and what there is to say.
fn below(view: &DeviceView<'_>) -> Vec<String> {
    let mut below: Vec<_> = view.holders().map(|(place, _)| holder(view, place)).collect();
    let left = match view.left(Metric::GpuUtilization) {
        Some(left) => Some((left, " util")),
        None => view.unattributed().map(|share| (share * 100.0, "")),
    };
    let left = left.filter(|(left, _)| *left > 0.0 && !view.device.holders.is_empty());
    below.extend(left.map(|(left, of)| format!("nobody {}{of}", figure(left, Unit::Percent))));
    below.extend(view.reason().map(|reason| format!("! {reason}")));
    below
}

/// The text in indented lines of at most [`WIDTH`] characters, as far as its words allow.
fn wrapped(text: &str) -> Vec<String> {
    const INDENT: &str = "     ";
    let mut lines = Vec::new();
    let mut line = String::new();
    for word in text.split(' ') {
        let longer = INDENT.len() + line.chars().count() + 1 + word.chars().count();
        if !line.is_empty() && longer > WIDTH {
            lines.push(format!("{INDENT}{line}"));
            line = "  ".into();
        } else if !line.is_empty() {
            line.push(' ');
        }
        line += word;
    }
    lines.push(format!("{INDENT}{line}"));
    lines
}

fn trimmed(line: String) -> String {
    line.trim_end().to_owned()
}

fn devices(devices: &[DeviceView<'_>]) -> Table {
    let header = ["GPU", "UUID", "MODEL", "UTIL", "MEMORY", "TEMP", "POWER"];
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header);
    let length = unambiguous(devices);
    for view in devices {
        let device = view.device;
        let model = model(device);
        let uuid: String = device.uuid.as_str().chars().take(length).collect();
        table.add_row([
            device.index.to_string(),
            plain(&uuid),
            plain(&model),
            cell(&view.readings, Metric::GpuUtilization),
            memory(view),
            cell(&view.readings, Metric::Temperature),
            cell(&view.readings, Metric::PowerDraw),
        ]);
    }
    for (place, column) in table.column_iter_mut().enumerate() {
        if FIGURES.contains(&place) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// The name, cut so that rows fit, and the profile of an instance.
fn model(device: &Device) -> String {
    let profile = device.mig.as_ref().map(|mig| format!(" {}", mig.profile)).unwrap_or_default();
    let room = MODEL.saturating_sub(profile.chars().count());
    let name = &device.name;
    match name.chars().count() <= room {
        true => format!("{name}{profile}"),
        false => {
            let start: String = name.chars().take(room.saturating_sub(1)).collect();
            format!("{}…{profile}", start.trim_end())
        }
    }
}

/// Characters of a UUID that tell every device of the node from the others.
fn unambiguous(devices: &[DeviceView<'_>]) -> usize {
    let mut uuids: Vec<_> = devices.iter().map(|view| view.device.uuid.as_str()).collect();
    uuids.sort_unstable();
    let common = |pair: &[&str]| {
        let same = pair[0].chars().zip(pair[1].chars()).take_while(|(a, b)| a == b);
        same.count() + 1
    };
    uuids.windows(2).map(common).max().unwrap_or(0).max(SHORTEST)
}

fn memory(view: &DeviceView<'_>) -> String {
    let used = match view.readings.get(Metric::MemoryUsedMib) {
        Reading::Ok(mib) => format!("{mib:.0}"),
        Reading::Failed(_) => FAILED.into(),
        // Some boards say only how full they are.
        Reading::Unsupported => return cell(&view.readings, Metric::MemoryUsedPercent),
    };
    match view.device.memory_total_mib {
        Some(total) => format!("{used}/{total:.0} MiB"),
        None => format!("{used} MiB"),
    }
}

fn cell(readings: &Readings, metric: Metric) -> String {
    match readings.get(metric) {
        Reading::Ok(value) => figure(value, metric.unit()),
        Reading::Failed(_) => FAILED.into(),
        Reading::Unsupported => UNSUPPORTED.into(),
    }
}

/// A value for people: as exact as they read it.
fn figure(value: f64, unit: Unit) -> String {
    let value = (value * 10.0).round() / 10.0;
    match unit {
        Unit::Count => value.to_string(),
        _ => format!("{value} {}", unit.symbol()),
    }
}

/// The holder at `place`: who, which part of the device, how that is known.
pub(super) fn holder(view: &DeviceView<'_>, place: usize) -> String {
    let holder = &view.device.holders[place];
    let container = match &*holder.container {
        "" => String::new(),
        container => format!(" ({container})"),
    };
    let guess = if holder.estimated { "~" } else { "" };
    let own = view.held(place, Metric::GpuUtilization);
    let part = match (holder.share, own) {
        (Some(share), _) => format!("{guess}{}", figure(share * 100.0, Unit::Percent)),
        (None, Some(own)) => format!("{guess}{} util", figure(own, Unit::Percent)),
        (None, None) => "?".into(),
    };
    let flags = [(holder.estimated, ", estimated"), (holder.undeclared, ", undeclared")];
    let flags = flags.map(|(is_so, flag)| if is_so { flag } else { "" }).concat();
    format!("{}{container} {part} [{}{flags}]", holder.pod, holder.source.name())
}

/// What is known of the engine.
fn engine(view: &EngineView<'_>) -> String {
    let values = view.readings.iter();
    let all = values.map(|(metric, _)| format!("{metric} {}", cell(&view.readings, metric)));
    let all: Vec<_> = all.collect();
    if view.readings.iter().all(|(_, reading)| matches!(reading, Reading::Failed(_))) {
        return FAILED.into();
    }
    all.join(", ")
}
