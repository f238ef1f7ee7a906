//! Pure: the text of a page → which engine wrote it, and the series that are read of it.
//!
//! Guarantees: a series that stands there twice with two values is no reading; a series that is
//! read and stands on a broken line is said to be in doubt, and so is what may be missing where the
//! page is cut off; the number of series kept is bounded, whatever the page.

use std::collections::{HashMap, HashSet};

use shared::exposition::{Broken, Series, parse};

use super::dialect::{DIALECTS, Dialect, Entry, How, OLLAMA};

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
    /// The first broken line.
    pub(super) broken: Option<String>,
    /// Names that broken lines may have, and why they cannot be read.
    doubts: HashMap<&'static str, String>,
    /// Where the page is cut off.
    end: Option<String>,
}

impl Page {
    /// Why not all of an entry's series are known, if so.
    pub(super) fn doubt(&self, entry: &Entry) -> Option<&str> {
        let broken = entry.names().find_map(|name| self.doubts.get(name));
        let end = || self.end.as_ref().filter(|_| !self.has(entry));
        broken.or_else(end).map(String::as_str)
    }

    /// Whether all is there that an entry may consist of.
    fn has(&self, entry: &Entry) -> bool {
        let is_there = |name: &&str| self.samples.contains_key(name);
        match entry.how {
            How::Level { names, plus, .. } => {
                names.iter().any(&is_there) && plus.iter().all(&is_there)
            }
            How::PerSecond { names } => names.iter().any(&is_there),
            How::MeanOf { names, .. } => {
                names.iter().any(|(sum, count)| is_there(sum) && is_there(count))
            }
        }
    }

    fn take_broken(&mut self, broken: &Broken<'_>, wanted: &HashSet<&'static str>) {
        self.broken.get_or_insert_with(|| broken.to_string());
        let mut doubt = |name: &'static str| {
            self.doubts.entry(name).or_insert_with(|| format!("{name} on {broken}"));
        };
        if broken.is_end {
            wanted.iter().filter(|name| broken.may_be(name)).for_each(|name| doubt(name));
            self.end = Some(format!("the page ends within {broken}"));
        } else if let Some(name) = wanted.get(&*broken.name) {
            doubt(name);
        }
    }
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
    let mut page = Page {
        dialect,
        samples: HashMap::new(),
        found: Vec::new(),
        broken: None,
        doubts: HashMap::new(),
        end: None,
    };
    let mut places: HashMap<(&'static str, Labels), usize> = HashMap::new();
    for series in parse(text) {
        let series = match series {
            Ok(series) => series,
            Err(broken) => {
                page.take_broken(&broken, &wanted);
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
