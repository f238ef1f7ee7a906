//! Pure: readings → the cells of the table.
//!
//! Guarantees: what is unsupported, failed, untold and zero look different, with and without
//! colours.

use shared::metric::Metric;
use shared::reading::{Reading, Readings};

use super::column::{COLUMNS, Column};
use crate::local::view::DeviceView;

/// A reading that this device or engine does not have.
pub const UNSUPPORTED: &str = "-";
/// A reading that should be there and is not.
pub const FAILED: &str = "!";
/// A part of a device that cannot be told.
pub const UNTOLD: &str = "?";
/// Memory is read in MiB and shown in GiB.
pub const MIB_PER_GIB: f64 = 1024.0;

/// How a text is meant; colours and weights follow from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tone {
    /// As it is.
    #[default]
    Plain,
    /// More than the others.
    Strong,
    /// Less than the others.
    Faint,
    /// To be looked at.
    Warning,
    /// Broken.
    Broken,
}

/// What stands in a column.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cell {
    /// The text.
    pub text: String,
    /// How it is meant.
    pub tone: Tone,
}

/// One cell a column.
pub type Cells = [Cell; COLUMNS];

/// Columns of a device.
pub const OF_DEVICE: [(Column, Metric); 8] = [
    (Column::Utilization, Metric::GpuUtilization),
    (Column::MemoryPercent, Metric::MemoryUsedPercent),
    (Column::Temperature, Metric::Temperature),
    (Column::Power, Metric::PowerDraw),
    (Column::Frequency, Metric::SmClockMhz),
    (Column::Throttled, Metric::ThrottledPercent),
    (Column::Sm, Metric::SmActivity),
    (Column::Tensor, Metric::TensorActivity),
];

/// What a holder has a part of.
pub const OF_HOLDER: [(Column, Metric); 5] = [
    (Column::Utilization, Metric::GpuUtilization),
    (Column::MemoryPercent, Metric::MemoryUsedPercent),
    (Column::Power, Metric::PowerDraw),
    (Column::Sm, Metric::SmActivity),
    (Column::Tensor, Metric::TensorActivity),
];

/// Columns of an engine.
pub const OF_ENGINE: [(Column, Metric); 7] = [
    (Column::Waiting, Metric::RequestsWaiting),
    (Column::Running, Metric::RequestsRunning),
    (Column::Cache, Metric::KvCacheUsage),
    (Column::Tokens, Metric::TokenThroughput),
    (Column::Requests, Metric::RequestRate),
    (Column::FirstToken, Metric::TimeToFirstTokenMs),
    (Column::QueueWait, Metric::QueueWaitMs),
];

/// One cell for each of `columns`.
pub fn readings(readings: &Readings, columns: &[(Column, Metric)]) -> Cells {
    let mut cells: Cells = Default::default();
    for &(column, metric) in columns {
        cells[column as usize] = reading(&readings.get(metric));
    }
    cells
}

fn reading(reading: &Reading) -> Cell {
    match reading {
        Reading::Ok(value) => cell(figure(*value), Tone::Plain),
        Reading::Unsupported => cell(UNSUPPORTED, Tone::Faint),
        Reading::Failed(_) => cell(FAILED, Tone::Broken),
    }
}

/// What of the device's memory is in use.
pub fn memory(view: &DeviceView<'_>) -> Cell {
    let used = view.readings.get(Metric::MemoryUsedMib);
    let percent = view.readings.value(Metric::MemoryUsedPercent);
    let total = view.device.memory_total_mib.map(|mib| format!("/{:.1}", mib / MIB_PER_GIB));
    match used {
        Reading::Ok(mib) => {
            cell(format!("{:.1}{}", mib / MIB_PER_GIB, total.unwrap_or_default()), Tone::Plain)
        }
        // Some boards say only how full they are.
        Reading::Unsupported => match percent {
            Some(percent) => cell(format!("{}%", figure(percent)), Tone::Plain),
            None => reading(&used),
        },
        other => reading(&other),
    }
}

/// The holder's part of the device's `metric`.
pub fn part(view: &DeviceView<'_>, place: usize, metric: Metric) -> Cell {
    match (view.part(place, metric), view.readings.get(metric)) {
        (Some(value), _) if metric == Metric::MemoryUsedMib => {
            cell(format!("{:.1}", value / MIB_PER_GIB), Tone::Plain)
        }
        (Some(value), _) => cell(figure(value), Tone::Plain),
        (None, Reading::Ok(_)) => cell(UNTOLD, Tone::Warning),
        (None, other) => reading(&other),
    }
}

/// The holder's share, or where it is told by readings its part of the load.
pub fn share(view: &DeviceView<'_>, place: usize) -> Cell {
    let holder = &view.device.holders[place];
    let guess = if holder.estimated { "~" } else { "" };
    let tone = if holder.estimated { Tone::Warning } else { Tone::Plain };
    let load = view.readings.value(Metric::GpuUtilization).filter(|load| *load > 0.0);
    let of_load = || Some(view.held(place, Metric::GpuUtilization)? / load?);
    match holder.share.or_else(of_load) {
        Some(share) => cell(format!("{guess}{}%", figure(share * 100.0)), tone),
        None => cell(UNTOLD, Tone::Warning),
    }
}

/// A text and how it is meant.
pub fn cell(text: impl Into<String>, tone: Tone) -> Cell {
    Cell { text: text.into(), tone }
}

/// A value for people: three digits tell enough.
pub fn figure(value: f64) -> String {
    match value {
        value if value < 9.95 => ((value * 10.0).round() / 10.0).to_string(),
        value if value < 99_999.5 => format!("{value:.0}"),
        value if value < 9_999_500.0 => format!("{:.0}k", value / 1e3),
        value => format!("{:.0}M", value / 1e6),
    }
}
