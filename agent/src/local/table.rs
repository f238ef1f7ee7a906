//! Pure: what is shown of a node → a table for people.
//!
//! Guarantees: a UUID is cut only as far as it stays unambiguous on this node; what failed and
//! what is unsupported look like neither a value nor each other; no control character of a
//! driver's or a file's text reaches the terminal.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use shared::frame::Holder;
use shared::metric::{Metric, Unit};
use shared::reading::{Reading, Readings};

use super::view::{DeviceView, EngineView, View, plain};

/// Characters of a UUID that are always shown.
const SHORTEST: usize = 12;
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
        lines.extend(devices(&view.devices).lines().map(trimmed));
    }
    if !view.engines.is_empty() {
        lines.extend(engines(&view.engines).lines().map(trimmed));
    }
    lines.extend(view.reason.map(plain));
    lines.join("\n") + "\n"
}

fn trimmed(line: String) -> String {
    line.trim_end().to_owned()
}

fn table(header: Vec<String>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header);
    table
}

fn devices(devices: &[DeviceView<'_>]) -> Table {
    let header = ["GPU", "UUID", "MODEL", "UTIL", "MEMORY", "TEMP", "POWER", "HOLDER", "REASON"];
    let mut table = table(header.map(str::to_owned).into());
    let length = unambiguous(devices);
    for view in devices {
        let device = view.device;
        let model = match &device.mig {
            Some(mig) => format!("{} {}", device.name, mig.profile),
            None => device.name.to_string(),
        };
        let uuid: String = device.uuid.as_str().chars().take(length).collect();
        table.add_row([
            device.index.to_string(),
            plain(&uuid),
            plain(&model),
            cell(&view.readings, Metric::GpuUtilization),
            memory(view),
            cell(&view.readings, Metric::Temperature),
            cell(&view.readings, Metric::PowerDraw),
            plain(&holders(view)),
            plain(&view.reason().unwrap_or_default()),
        ]);
    }
    for (place, column) in table.column_iter_mut().enumerate() {
        if FIGURES.contains(&place) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
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

fn holders(view: &DeviceView<'_>) -> String {
    let of = |(place, holder): (usize, &Holder)| {
        let container = match &*holder.container {
            "" => String::new(),
            container => format!(" ({container})"),
        };
        let guess = if holder.estimated { "~" } else { "" };
        let own = view.held(place, Metric::GpuUtilization);
        let part = match (holder.share, own) {
            (Some(share), _) => format!(" {guess}{}", figure(share * 100.0, Unit::Percent)),
            (None, Some(own)) => format!(" {guess}{} util", figure(own, Unit::Percent)),
            (None, None) => " ?".into(),
        };
        let undeclared = if holder.undeclared { " undeclared" } else { "" };
        format!("{}{container}{part}{undeclared}", holder.pod)
    };
    let mut holders: Vec<_> = view.holders().map(of).collect();
    if holders.is_empty() {
        return UNSUPPORTED.into();
    }
    let by_metric = view.device.holders.iter().any(|holder| holder.share.is_none());
    let left = view.left(Metric::GpuUtilization).filter(|left| by_metric && *left > 0.0);
    holders.extend(left.map(|left| format!("nobody {} util", figure(left, Unit::Percent))));
    holders.join(", ")
}

/// A column for every metric that an engine here has.
fn engines(engines: &[EngineView<'_>]) -> Table {
    let has = |metric: &Metric| {
        engines.iter().any(|view| view.readings.get(*metric) != Reading::Unsupported)
    };
    let metrics: Vec<_> = Metric::ALL.iter().copied().filter(has).collect();
    let names = metrics.iter().map(|metric| metric.name().to_uppercase().replace('_', " "));
    let mut table = table(std::iter::once("ENGINE".to_owned()).chain(names).collect());
    for view in engines {
        let values = metrics.iter().map(|metric| cell(&view.readings, *metric));
        let labels = match view.engine.labels.is_empty() {
            true => String::new(),
            false => format!(" {{{}}}", view.engine.labels),
        };
        let pod = plain(&format!("{}{labels}", view.engine.pod));
        table.add_row(std::iter::once(pod).chain(values));
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}
