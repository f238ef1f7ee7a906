//! `docs/reference`, written by tests from the code's own tables. For tests only.
//!
//! Guarantees: a committed page differs from what the code says, or a series that is registered has
//! nothing to show, and a test fails that says what to do. With `UPDATE_GENERATED=1` pages are written instead.

mod flags;

use std::collections::BTreeSet;
use std::fmt::{Debug, Write as _};
use std::hash::Hash;
use std::path::{Path, PathBuf};
use std::{env, fs};

pub use flags::flags;
use parking_lot::Mutex;
use prometheus_client::encoding::prometheus_text;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::registry::Registry;

/// Tests run at once, and several write parts of one page.
static WRITING: Mutex<()> = Mutex::new(());

/// Something that has no series before something happens, and can be given one of each.
pub trait Specimens {
    /// Makes one series of every family, with empty labels.
    fn specimens(&self);
}

impl<L, M, C> Specimens for Family<L, M, C>
where
    L: Clone + Default + Eq + Hash,
    C: MetricConstructor<M>,
{
    fn specimens(&self) {
        drop(self.get_or_create(&L::default()));
    }
}

/// A series as it is scraped.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Series {
    /// Its name; a histogram's without `_bucket`, `_sum` and `_count`.
    pub name: String,
    /// `counter`, `gauge` or `histogram`.
    pub kind: String,
    /// What it is.
    pub help: String,
    /// The names of its labels.
    pub labels: Vec<String>,
}

impl Series {
    /// The unit that its name says; empty for a plain number.
    pub fn unit(&self) -> &'static str {
        let name = self.name.trim_end_matches("_total");
        let units = [
            ("_timestamp_seconds", "seconds since 1970"),
            ("_tokens_per_second", "tokens a second"),
            ("_requests_per_second", "requests a second"),
            ("_errors_per_second", "requests a second"),
            ("_bytes_per_second", "bytes a second"),
            ("_seconds", "seconds"),
            ("_bytes", "bytes"),
            ("_ratio", "0 to 1"),
            ("_celsius", "°C"),
            ("_watts", "watts"),
            ("_joules", "joules"),
            ("_hertz", "hertz"),
        ];
        units.iter().find(|(end, _)| name.ends_with(end)).map_or("", |(_, unit)| unit)
    }
}

/// Every series of `registry`, in its order.
///
/// # Panics
/// When one that is registered has no sample, or no help.
pub fn series(registry: &Registry) -> Vec<Series> {
    let mut text = String::new();
    prometheus_text::encode(&mut text, registry).expect("writing to a String does not fail");
    let series = scraped(&text);
    let short = |name: &str| name.trim_end_matches("_total").to_owned();
    let shown: BTreeSet<String> = series.iter().map(|series| short(&series.name)).collect();
    for name in registered(registry) {
        assert!(
            shown.iter().any(|shown| shown.ends_with(&format!("_{name}"))),
            "{name} is registered, but shows nothing: add it to the specimens beside its counts"
        );
    }
    for series in &series {
        assert!(series.help.len() > 5, "{} has no help", series.name);
    }
    series
}

/// What the Prometheus text format says of each series.
fn scraped(text: &str) -> Vec<Series> {
    let mut found: Vec<Series> = Vec::new();
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, help) = help.split_once(' ').expect("a name and its help");
            let (name, help) = (name.to_owned(), help.to_owned());
            found.push(Series { name, kind: String::new(), help, labels: Vec::new() });
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let last = found.last_mut().expect("HELP comes first");
            last.kind = kind.rsplit(' ').next().unwrap_or_default().to_owned();
        } else {
            let last = found.last_mut().expect("HELP comes first");
            // Values of the specimens have no quotes.
            let labels = line.split_once('{').map_or("", |(_, labels)| labels);
            for label in labels.split("=\"").filter_map(|part| part.rsplit(['"', ',', ' ']).next())
            {
                let is_name = label.chars().all(|c| c.is_ascii_lowercase() || c == '_');
                let is_new = !last.labels.iter().any(|known| known == label);
                if is_name && is_new && !label.is_empty() && label != "le" {
                    last.labels.push(label.to_owned());
                }
            }
        }
    }
    found
}

/// The names of what is registered, with or without a sample.
fn registered(registry: &Registry) -> Vec<String> {
    // The only way to see them all.
    let text = format!("{registry:?}");
    let descriptors = text.split("Descriptor { name: \"").skip(1).map(|rest| {
        let name = rest.split('"').next().unwrap_or_default();
        let unit = rest.split_once("unit: ").and_then(|(_, unit)| unit.split_once(" }"));
        let unit = unit.map_or("None", |(unit, _)| unit).to_lowercase();
        match unit.split(|c: char| !c.is_ascii_alphanumeric()).rfind(|word| !word.is_empty()) {
            None | Some("none") => name.to_owned(),
            Some(unit) => format!("{name}_{unit}"),
        }
    });
    descriptors.collect()
}

/// The series as a table.
pub fn series_table(series: &[Series]) -> String {
    let rows = series.iter().map(|series| {
        let labels: Vec<String> = series.labels.iter().map(|label| format!("`{label}`")).collect();
        let Series { name, kind, help, .. } = series;
        [format!("`{name}`"), kind.clone(), series.unit().into(), labels.join(" "), help.clone()]
    });
    table(["series", "type", "unit", "labels", "what it is"], rows)
}

/// A table of Markdown.
pub fn table<const N: usize>(
    head: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> String {
    let mut text = format!("| {} |\n|{}\n", head.join(" | "), " --- |".repeat(N));
    for row in rows {
        let cells = row.map(|cell| cell.replace('|', "\\|"));
        writeln!(text, "| {} |", cells.join(" | ")).expect("writing to a String does not fail");
    }
    text
}

/// Compares `text` with the part of `docs/reference/PAGE` between the marks for `part`.
///
/// # Panics
/// When they differ, unless `UPDATE_GENERATED` is set: then the part is replaced.
pub fn compare(page: &str, part: &str, text: &str) {
    let _alone = WRITING.lock();
    let file = folder().join(page);
    let whole = fs::read_to_string(&file).unwrap_or_else(|why| panic!("{}: {why}", file.display()));
    let (begin, end) = (format!("<!-- begin {part} -->\n"), format!("<!-- end {part} -->"));
    let marks = whole.split_once(&begin).and_then(|(before, rest)| {
        let (old, after) = rest.split_once(&end)?;
        Some((before, old, after))
    });
    let Some((before, old, after)) = marks else {
        panic!("{} has no marks for {part}", file.display());
    };
    let text = format!("\n{}\n\n", text.trim());
    if env::var_os("UPDATE_GENERATED").is_some() {
        let whole = format!("{before}{begin}{text}{end}{after}");
        fs::write(&file, whole).unwrap_or_else(|why| panic!("{}: {why}", file.display()));
    } else {
        assert!(
            old == text,
            "docs/reference/{page} is stale: run UPDATE_GENERATED=1 cargo test reference"
        );
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference")
}

/// Whether `what` is described by `text`; the test fails where it is not.
///
/// # Panics
/// When `text` is too short to say anything.
pub fn described(what: &impl Debug, text: &str) {
    assert!(text.trim().len() > 5, "{what:?} is not described");
}
