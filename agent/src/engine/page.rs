//! Pure: the text of a page → which engine wrote it, and the series that are read of it.
//!
//! Guarantees: a series that stands there twice with two values is no reading; the number of
//! series kept is bounded, whatever the page.

use std::collections::{HashMap, HashSet};

use shared::exposition::{Broken, Series, parse};

use super::dialect::{DIALECTS, Dialect, OLLAMA};

/// Series of an engine's own metrics that a page may have: some hundreds of models.
const MAX_SERIES: usize = 8_192;
/// Names shown of what was found.
const MAX_FOUND: usize = 8;

/// Names and values, ordered by name.
pub(super) type Labels = Vec<(String, String)>;

/// One series that is read.
pub(super) struct Sample {
    pub(super) labels: Labels,
    /// None where the page gives it two values.
    pub(super) value: Option<f64>,
}

impl Sample {
    pub(super) fn label(&self, name: &str) -> Option<&str> {
        self.labels.iter().find(|(label, _)| label == name).map(|(_, value)| value.as_str())
    }
}

/// What a page says, as far as its engine's dialect goes.
pub(super) struct Page {
    pub(super) dialect: &'static Dialect,
    /// By name.
    pub(super) samples: HashMap<&'static str, Vec<Sample>>,
    /// Names of the engine's series, some of them.
    pub(super) found: Vec<String>,
    pub(super) broken: Option<Broken>,
}

/// Reads a page; `expected` is the engine that a trigger names.
///
/// # Errors
/// When it is not an engine's, or not that engine's.
pub(super) fn read(text: &str, expected: Option<&str>) -> Result<Page, String> {
    // llama.cpp issue 17384: one release sends the whole page as a JSON string.
    let unquoted: Option<String> =
        text.trim_start().starts_with('"').then(|| serde_json::from_str(text).ok()).flatten();
    let text = unquoted.as_deref().unwrap_or(text);
    let dialect = dialect(text, expected)?;
    collect(text, dialect)
}

/// Why pods of an engine that has no page cannot be read.
pub(super) fn no_page(engine: &str) -> Option<String> {
    engine
        .eq_ignore_ascii_case(OLLAMA)
        .then(|| "Ollama publishes no metrics; count requests in a proxy in front of it".to_owned())
}

fn dialect(text: &str, expected: Option<&str>) -> Result<&'static Dialect, String> {
    let series = || parse(text).filter_map(Result::ok);
    if let Some(expected) = expected {
        let known = DIALECTS.iter().map(|dialect| dialect.name).collect::<Vec<_>>().join(", ");
        let dialect = Dialect::named(expected)
            .ok_or_else(|| format!("engine {expected:?} is none of: {known}"))?;
        if series().any(|series| dialect.owns(&series.name)) {
            return Ok(dialect);
        }
        return Err(format!("it has no series of {}{}", dialect.title, instead(text)));
    }
    let owned = |dialect: &&Dialect| series().any(|series| dialect.owns(&series.name));
    DIALECTS.iter().find(owned).ok_or_else(|| {
        let titles = DIALECTS.iter().map(|dialect| dialect.title).collect::<Vec<_>>().join(", ");
        format!("it has no series of {titles}{}", instead(text))
    })
}

/// What a page that is no engine's has instead.
fn instead(text: &str) -> String {
    let mut names: Vec<String> = Vec::new();
    for series in parse(text) {
        match series {
            Ok(series) if names.iter().any(|known| *known == series.name) => {}
            Ok(series) if names.len() < 3 => names.push(series.name.chars().take(64).collect()),
            Ok(_) => return format!("; it has {}, …", names.join(", ")),
            Err(broken) if names.is_empty() => return format!("; {broken}"),
            Err(_) => {}
        }
    }
    if names.is_empty() {
        "; it is empty".to_owned()
    } else {
        format!("; it has {}", names.join(", "))
    }
}

fn collect(text: &str, dialect: &'static Dialect) -> Result<Page, String> {
    let wanted: HashSet<&'static str> =
        dialect.entries.iter().flat_map(|entry| entry.names()).collect();
    let mut page = Page { dialect, samples: HashMap::new(), found: Vec::new(), broken: None };
    let mut places: HashMap<(&'static str, Labels), usize> = HashMap::new();
    for series in parse(text) {
        let series = match series {
            Ok(series) => series,
            Err(broken) => {
                page.broken.get_or_insert(broken);
                continue;
            }
        };
        if page.found.len() < MAX_FOUND
            && dialect.owns(&series.name)
            && !page.found.iter().any(|found| *found == series.name)
        {
            page.found.push(series.name.chars().take(64).collect());
        }
        let Some(&name) = wanted.get(series.name.as_ref()) else { continue };
        if places.len() == MAX_SERIES {
            let title = dialect.title;
            return Err(format!("it has more than {MAX_SERIES} series of what is read of {title}"));
        }
        let labels = labels(&series);
        let samples = page.samples.entry(name).or_default();
        match places.get(&(name, labels.clone())) {
            None => {
                places.insert((name, labels.clone()), samples.len());
                samples.push(Sample { labels, value: Some(series.value) });
            }
            Some(&place) => {
                let known = &mut samples[place];
                if known.value.map(f64::to_bits) != Some(series.value.to_bits()) {
                    known.value = None;
                }
            }
        }
    }
    Ok(page)
}

fn labels(series: &Series<'_>) -> Labels {
    let mut labels: Labels =
        series.labels.iter().map(|(name, value)| (name.into_owned(), value.into_owned())).collect();
    labels.sort();
    labels
}
