//! Pure: the page of one engine, and what is remembered of earlier ones → readings.
//!
//! Guarantees: each selection of series is read by itself; the order of lines changes nothing; a
//! reading that is not known says what was looked for and what was found.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use proto::convert::MAX_REASON;
use shared::exposition::Matchers;
use shared::metric::{Metric, Scope};
use shared::reading::{Reading, Readings};
use shared::time::Timestamp;

use super::dialect::{Absent, Across, Dialect, Entry, How};
use super::page::{self, Page, Sample};
use super::rate::{Grown, Rates};

const FIRST_SCRAPE: &str = "no earlier scrape to compare with yet";

/// Reads one engine, scrape after scrape.
pub struct Reader {
    /// Whose counters are remembered.
    dialect: Option<&'static Dialect>,
    rates: Rates,
}

/// The samples of one selection.
struct Selected<'a> {
    page: &'a Page,
    selection: &'a Arc<str>,
    matchers: Matchers,
}

impl Reader {
    /// An engine that was not read yet; scrapes further apart than `max_gap` are not compared.
    pub fn new(max_gap: Duration) -> Self {
        Self { dialect: None, rates: Rates::new(max_gap) }
    }

    /// The readings of `text`, scraped at `now`, for each of `selections`. `expected` is the
    /// engine that a trigger names.
    ///
    /// # Errors
    /// When the page is not an engine's, or not that engine's.
    pub fn read(
        &mut self,
        text: &str,
        expected: Option<&str>,
        selections: &[Arc<str>],
        now: Timestamp,
    ) -> Result<Vec<Readings>, String> {
        let page = page::read(text, expected)?;
        let before = self.dialect.replace(page.dialect).map(|dialect| dialect.name);
        if before != Some(page.dialect.name) {
            self.rates.forget();
        }
        self.rates.begin(now);
        let selected: Vec<_> = selections.iter().map(|labels| select(&page, labels)).collect();
        for (place, entry) in page.dialect.entries.iter().enumerate() {
            self.grow(&page, place, entry, &selected);
        }
        let readings = selected.into_iter().map(|selected| match selected {
            Ok(selected) => self.readings(&selected),
            Err(why) => failed(&why),
        });
        Ok(readings.collect())
    }

    /// What people call the engine, once a page was read.
    pub fn engine(&self) -> Option<&'static str> {
        self.dialect.map(|dialect| dialect.title)
    }

    /// Records what the counters of one entry grew by, for every selection.
    fn grow(
        &mut self,
        page: &Page,
        place: usize,
        entry: &Entry,
        selections: &[Result<Selected<'_>, String>],
    ) {
        let mut growths = Vec::new();
        for (sample, value) in cumulative(page, entry) {
            if value.is_none() {
                self.rates.doubt(place);
            }
            let growth = value.and_then(|v| self.rates.growth(place, &key(sample, &[]), v));
            growths.push((sample, growth));
        }
        if matches!(entry.how, How::Level { .. }) {
            return;
        }
        if page.doubt(entry).is_some() {
            self.rates.doubt(place);
            return;
        }
        for selected in selections.iter().flatten() {
            let mut groups: BTreeMap<String, Grown> = BTreeMap::new();
            let mut complete = true;
            for (sample, growth) in growths.iter().filter(|(s, _)| selected.admits(entry, s)) {
                let Some(growth) = growth else {
                    complete = false;
                    continue;
                };
                let group = groups.entry(key(sample, page.dialect.repeated_over)).or_default();
                *group = group.max(*growth);
            }
            // A counter that is published from its first event on has no line until then.
            let is_there = !groups.is_empty() || entry.absent == Absent::Nothing;
            if complete && is_there {
                let mut total = Grown::default();
                groups.into_values().for_each(|grown| total += grown);
                self.rates.record(selected.selection, place, total);
            }
        }
    }

    fn readings(&self, selected: &Selected<'_>) -> Readings {
        let entries = selected.page.dialect.entries.iter().enumerate();
        entries.map(|(place, entry)| (entry.metric, self.reading(selected, place, entry))).collect()
    }

    fn reading(&self, selected: &Selected<'_>, place: usize, entry: &Entry) -> Reading {
        if let Some(why) = selected.page.doubt(entry) {
            return unknown(why);
        }
        let samples = selected.samples(entry);
        if samples.is_empty() {
            match entry.absent {
                Absent::Nothing => {}
                Absent::Unsupported => return Reading::Unsupported,
                Absent::Failed => return unknown(&selected.missing(entry)),
            }
        }
        if let Some(why) = samples.iter().find_map(|(name, sample)| unusable(name, sample)) {
            return unknown(&why);
        }
        let first = || unknown(FIRST_SCRAPE);
        match &entry.how {
            How::Level { plus, scale, across, .. } => {
                let mut parts = vec![selected.level(&samples, *across)];
                for name in *plus {
                    let more = selected.of_name(entry, name);
                    if let Some(why) = more.iter().find_map(|(name, more)| unusable(name, more)) {
                        return unknown(&why);
                    }
                    parts.push(selected.level(&more, *across));
                }
                checked(entry.metric, parts.iter().sum::<f64>() * scale)
            }
            How::PerSecond { .. } => match self.rates.per_second(selected.selection, place) {
                Some(rate) => checked(entry.metric, rate),
                None => first(),
            },
            How::MeanOf { scale, .. } => match self.rates.grown(selected.selection, place) {
                Some(grown) => mean(entry.metric, grown, *scale),
                None => first(),
            },
        }
    }
}

/// The value without what adding and dividing fractions leaves behind the last digit that counts.
fn checked(metric: Metric, value: f64) -> Reading {
    const BILLIONTHS: f64 = 1e9;
    let rounded = (value * BILLIONTHS).round() / BILLIONTHS;
    Reading::checked(metric, if rounded.is_finite() { rounded } else { value })
}

/// 0/0 is zero: nothing happened. Something by nothing is not known.
fn mean(metric: Metric, grown: Grown, scale: f64) -> Reading {
    if grown.count > 0.0 {
        checked(metric, grown.sum / grown.count * scale)
    } else if grown.sum > 0.0 {
        let time = grown.sum * scale;
        unknown(&format!("{time} ms were counted for no finished request"))
    } else {
        Reading::Ok(0.0)
    }
}

impl<'a> Selected<'a> {
    fn admits(&self, entry: &Entry, sample: &Sample) -> bool {
        self.is_selected(sample) && is_of(entry, sample)
    }

    fn is_selected(&self, sample: &Sample) -> bool {
        self.matchers.iter().all(|(name, value)| sample.label(name).unwrap_or("") == value)
    }

    fn of_name(&self, entry: &Entry, name: &'static str) -> Vec<(&'static str, &'a Sample)> {
        let all = self.page.samples.get(name).into_iter().flatten();
        all.filter(|sample| self.admits(entry, sample)).map(|sample| (name, sample)).collect()
    }

    /// The samples of the first of the entry's names that has any; of a mean, sums and counts.
    fn samples(&self, entry: &Entry) -> Vec<(&'static str, &'a Sample)> {
        let found = match entry.how {
            How::Level { names, .. } | How::PerSecond { names } => {
                names.iter().map(|name| self.of_name(entry, name)).find(|found| !found.is_empty())
            }
            How::MeanOf { names, .. } => names
                .iter()
                .map(|(sum, count)| (self.of_name(entry, sum), self.of_name(entry, count)))
                .find(|(sums, counts)| !sums.is_empty() && !counts.is_empty())
                .map(|(sums, counts)| sums.into_iter().chain(counts).collect()),
        };
        found.unwrap_or_default()
    }

    fn level(&self, samples: &[(&'static str, &'a Sample)], across: Across) -> f64 {
        let mut groups: BTreeMap<String, f64> = BTreeMap::new();
        for (_, sample) in samples {
            let Some(value) = sample.value else { continue };
            let group = groups.entry(key(sample, self.page.dialect.repeated_over)).or_insert(value);
            *group = group.max(value);
        }
        let sum: f64 = groups.values().sum();
        match across {
            Across::Mean if !groups.is_empty() => sum / groups.len() as f64,
            Across::Mean | Across::Sum => sum,
        }
    }

    /// What to say where none of the entry's series is there.
    fn missing(&self, entry: &Entry) -> String {
        let Dialect { title, .. } = self.page.dialect;
        let names = entry.names().collect::<Vec<_>>().join(", ");
        let with =
            entry.with.map_or_else(String::new, |(label, value)| format!(" with {label}={value}"));
        let selection = match self.selection.is_empty() {
            true => String::new(),
            false => format!(" with {}", self.selection),
        };
        let found = self.page.found.join(", ");
        let broken = self.page.broken.as_ref();
        let broken = broken.map_or_else(String::new, |broken| format!("; {broken}"));
        format!("{title} has no {names}{with}{selection} here; found {found}{broken}")
    }
}

/// Whether the sample has the label that the entry is about.
fn is_of(entry: &Entry, sample: &Sample) -> bool {
    entry.with.is_none_or(|(label, value)| sample.label(label) == Some(value))
}

/// Counters of an entry, or sums with their counts; no value where it is no number of things.
fn cumulative<'a>(page: &'a Page, entry: &Entry) -> Vec<(&'a Sample, Option<Grown>)> {
    let samples = |name: &&str| page.samples.get(*name).map_or(&[] as &[Sample], Vec::as_slice);
    let usable = |sample: &Sample| sample.value.filter(|v| v.is_finite() && *v >= 0.0);
    match entry.how {
        How::Level { .. } => Vec::new(),
        How::PerSecond { names } => {
            let found = names.iter().map(&samples).find(|found| !found.is_empty());
            let found = found.unwrap_or_default().iter();
            found
                .map(|sample| (sample, usable(sample).map(|sum| Grown { sum, count: 0.0 })))
                .collect()
        }
        How::MeanOf { names, .. } => {
            let found = names.iter().map(|(sum, count)| (samples(sum), samples(count)));
            let (sums, counts) =
                found.into_iter().find(|(sums, _)| !sums.is_empty()).unwrap_or_default();
            let counts: BTreeMap<_, _> =
                counts.iter().map(|sample| (&sample.labels, usable(sample))).collect();
            let pair = |sample: &'a Sample| {
                let count = counts.get(&sample.labels)?;
                let value = || Some(Grown { sum: usable(sample)?, count: (*count)? });
                Some((sample, value()))
            };
            sums.iter().filter_map(pair).collect()
        }
    }
}

/// Why a sample's value cannot be a part of a reading.
fn unusable(name: &str, sample: &Sample) -> Option<String> {
    match sample.value {
        None => Some(format!("{name} is on the page twice, with two values")),
        Some(value) if value.is_nan() => Some(format!("{name} is NaN")),
        Some(value) if value < 0.0 || value.is_infinite() => Some(format!("{name} is {value}")),
        Some(_) => None,
    }
}

/// What tells a sample from others, but for the labels `without`.
fn key(sample: &Sample, without: &[&str]) -> String {
    let labels = sample.labels.iter().filter(|(name, _)| !without.contains(&name.as_str()));
    labels.fold(String::new(), |key, (name, value)| key + name + "\0" + value + "\0")
}

/// The samples of `selection`, an `engineLabels` text.
fn select<'a>(page: &'a Page, selection: &'a Arc<str>) -> Result<Selected<'a>, String> {
    let matchers: Matchers =
        selection.parse().map_err(|why| format!("engine labels {selection:?}: {why}"))?;
    let selected = Selected { page, selection, matchers };
    let any = page.samples.values().flatten().any(|sample| selected.is_selected(sample));
    if any || selection.is_empty() { Ok(selected) } else { Err(nothing_selected(&selected)) }
}

fn nothing_selected(selected: &Selected<'_>) -> String {
    let found = selected.matchers.iter().map(|(name, _)| {
        let all = selected.page.samples.values().flatten();
        let values: BTreeSet<_> = all.filter_map(|sample| sample.label(name)).collect();
        let shown: Vec<_> = values.into_iter().take(8).collect();
        match shown.is_empty() {
            true => format!("no series has a label {name}"),
            false => format!("{name} is one of: {}", shown.join(", ")),
        }
    });
    let found = found.collect::<Vec<_>>().join("; ");
    format!("no series of {} has {}; {found}", selected.page.dialect.title, selected.selection)
}

/// Every engine metric as failed for one reason.
pub fn failed(why: &str) -> Readings {
    let why = unknown(why);
    let metrics = Metric::ALL.iter().filter(|metric| metric.scope() == Scope::Engine);
    metrics.map(|metric| (*metric, why.clone())).collect()
}

/// A failure; what a page says of itself may be as long as the page.
fn unknown(why: &str) -> Reading {
    Reading::Failed(why[..why.floor_char_boundary(MAX_REASON)].into())
}
