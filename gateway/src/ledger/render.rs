//! Pure: the ledger as tables for people, and as CSV for spreadsheets.
//!
//! Guarantees: nothing is cut off; no cell of the CSV is a formula to a spreadsheet, whatever pods
//! are called; what is not known is `-` in a table and empty in the CSV.

use comfy_table::presets::NOTHING;
use comfy_table::{ContentArrangement, Table};
use shared::text::plain;

use super::report::{Counted, IdleEntry, NodeEntry, Report};

/// What the rows of a CSV are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum By {
    /// Workloads
    #[default]
    Workload,
    /// Namespaces
    Namespace,
    /// Nodes
    Node,
    /// Devices that are held and do nothing
    Idle,
}

const COUNTED: [&str; 8] = [
    "gpu_seconds_held",
    "gpu_seconds_busy",
    "gpu_seconds_not_held",
    "joules",
    "joules_dynamic",
    "joules_idle",
    "cost",
    "grams_co2e",
];

/// The rows of one kind, with a line of headings.
///
/// # Errors
/// None that a growing text can have.
pub fn csv(report: &Report, by: By) -> anyhow::Result<String> {
    let mut csv = csv::Writer::from_writer(Vec::new());
    let mut put = |row: Vec<String>| csv.write_record(row.iter().map(|cell| inert(cell)));
    put(headings(by))?;
    match by {
        By::Workload => {
            for entry in &report.workloads {
                let name = [&entry.namespace, &entry.kind, &entry.name].map(ToString::to_string);
                put(name.into_iter().chain(counted(&entry.counted)).collect())?;
            }
        }
        By::Namespace => {
            for entry in &report.namespaces {
                let name = [entry.namespace.to_string()];
                put(name.into_iter().chain(counted(&entry.counted)).collect())?;
            }
        }
        By::Node => report.nodes.iter().map(node).try_for_each(&mut put)?,
        By::Idle => report.idle.iter().map(idle).try_for_each(&mut put)?,
    }
    Ok(String::from_utf8(csv.into_inner()?)?)
}

fn headings(by: By) -> Vec<String> {
    let names: &[&str] = match by {
        By::Workload => &["namespace", "kind", "workload"],
        By::Namespace => &["namespace"],
        By::Node => &[
            "node",
            "joules",
            "joules_attributed",
            "joules_unattributed",
            "gpu_seconds_held",
            "gpu_seconds_free",
        ],
        By::Idle => &[
            "namespace",
            "pod",
            "kind",
            "workload",
            "node",
            "uuid",
            "model",
            "idle_seconds",
            "memory_used_mib",
            "last_request_seconds_ago",
        ],
    };
    let counted = matches!(by, By::Workload | By::Namespace);
    let counted = COUNTED.iter().filter(|_| counted);
    names.iter().chain(counted).map(ToString::to_string).collect()
}

fn cell(value: Option<f64>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}

fn counted(counted: &Counted) -> [String; 8] {
    [
        Some(counted.gpu_seconds_held),
        counted.gpu_seconds_busy,
        counted.gpu_seconds_not_held,
        counted.joules,
        counted.joules_dynamic,
        counted.joules_idle,
        counted.cost,
        counted.grams_co2e,
    ]
    .map(cell)
}

fn node(entry: &NodeEntry) -> Vec<String> {
    let figures = [
        entry.joules,
        entry.joules_attributed,
        entry.joules_unattributed,
        Some(entry.gpu_seconds_held),
        Some(entry.gpu_seconds_free),
    ];
    std::iter::once(entry.node.clone()).chain(figures.map(cell)).collect()
}

fn idle(entry: &IdleEntry) -> Vec<String> {
    let (kind, name) = entry.workload.as_ref().map_or_else(Default::default, |workload| {
        (workload.kind.to_string(), workload.name.to_string())
    });
    vec![
        entry.namespace.to_string(),
        entry.pod.to_string(),
        kind,
        name,
        entry.node.clone(),
        entry.uuid.clone(),
        entry.model.to_string(),
        entry.idle_seconds.to_string(),
        cell(entry.memory_used_mib),
        cell(entry.last_request_seconds_ago),
    ]
}

/// The text so that a spreadsheet takes it for one.
fn inert(cell: &str) -> String {
    match cell.chars().next() {
        Some('=' | '+' | '-' | '@' | '\t' | '\r' | '\n') => format!("'{cell}"),
        _ => cell.to_owned(),
    }
}

/// Everything, for people.
pub fn table(report: &Report) -> String {
    let mut text = format!("Since {}.\n", time(report.since_seconds));
    let figures = ["GPU-HOURS", "BUSY", "NOT HELD", "ENERGY", "WORK", "IDLE", "COST", "CO2E"];
    let head = |names: &[&str]| names.iter().chain(&figures).map(ToString::to_string).collect();
    let workloads = report.workloads.iter().map(|entry| {
        let name = [&entry.namespace, &entry.kind, &entry.name].map(|name| plain(name));
        name.into_iter().chain(shown(&entry.counted)).collect()
    });
    put(&mut text, head(&["NAMESPACE", "KIND", "WORKLOAD"]), workloads, "no workload held a GPU");
    let namespaces = report.namespaces.iter().map(|entry| {
        let name = if entry.namespace.is_empty() { "(others)" } else { &entry.namespace };
        std::iter::once(plain(name)).chain(shown(&entry.counted)).collect()
    });
    put(&mut text, head(&["NAMESPACE"]), namespaces, "no namespace held a GPU");
    let nodes = report.nodes.iter().map(|entry| {
        vec![
            plain(&entry.node),
            energy(entry.joules),
            energy(entry.joules_attributed),
            energy(entry.joules_unattributed),
            hours(Some(entry.gpu_seconds_held)),
            hours(Some(entry.gpu_seconds_free)),
        ]
    });
    let names = ["NODE", "ENERGY", "OF WORKLOADS", "OF NOBODY", "GPU-HOURS HELD", "FREE"];
    put(&mut text, names.map(Into::into).into(), nodes, "no node was heard");
    let idle = report.idle.iter().map(|entry| {
        vec![
            format!("{}/{}", plain(&entry.namespace), plain(&entry.pod)),
            plain(&entry.node),
            plain(&entry.uuid),
            time(entry.idle_seconds),
            entry.memory_used_mib.map_or_else(none, |mib| format!("{mib:.0} MiB")),
            entry.last_request_seconds_ago.map_or_else(none, |ago| format!("{} ago", time(ago))),
        ]
    });
    let names = ["IDLE POD", "NODE", "DEVICE", "FOR", "MEMORY", "LAST REQUEST"];
    put(&mut text, names.map(Into::into).into(), idle, "nothing that is held is idle");
    text
}

fn put(
    text: &mut String,
    head: Vec<String>,
    rows: impl Iterator<Item = Vec<String>>,
    nothing: &str,
) {
    let mut table = Table::new();
    table.load_style(NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(head);
    table.add_rows(rows);
    text.push('\n');
    if table.is_empty() {
        *text += nothing;
        text.push('\n');
        return;
    }
    for line in table.lines() {
        *text += line.trim_end();
        text.push('\n');
    }
}

fn shown(counted: &Counted) -> [String; 8] {
    [
        hours(Some(counted.gpu_seconds_held)),
        hours(counted.gpu_seconds_busy),
        hours(counted.gpu_seconds_not_held),
        energy(counted.joules),
        energy(counted.joules_dynamic),
        energy(counted.joules_idle),
        counted.cost.map_or_else(none, |cost| format!("{cost:.2}")),
        counted.grams_co2e.map_or_else(none, |grams| format!("{grams:.1} g")),
    ]
}

fn none() -> String {
    "-".into()
}

fn hours(seconds: Option<f64>) -> String {
    seconds.map_or_else(none, |seconds| format!("{:.3}", seconds / 3_600.0))
}

fn energy(joules: Option<f64>) -> String {
    match joules {
        None => none(),
        Some(joules) if joules < 3.6e6 => format!("{:.2} Wh", joules / 3_600.0),
        Some(joules) => format!("{:.3} kWh", joules / 3.6e6),
    }
}

fn time(seconds: f64) -> String {
    let whole = std::time::Duration::try_from_secs_f64(seconds.floor()).unwrap_or_default();
    humantime::format_duration(whole).to_string()
}
