//! A page of metrics in the Prometheus text format (0.0.4) or OpenMetrics 1.0, read line by line.
//!
//! Guarantees: pure; nothing is copied but label values with escapes in them; names are taken
//! exactly as written, colons and all. A broken line is reported by its number and costs that line
//! only. No input makes it panic, and its time grows with the page's length only.

use std::borrow::Cow;
use std::iter::Enumerate;
use std::str::{FromStr, Split};

mod line;
mod matchers;

pub use line::Labels;
pub use matchers::Matchers;

/// One series of a page.
///
/// Timestamps and exemplars are checked and left out: how old a page is counts from its scrape.
#[derive(Clone, Debug, PartialEq)]
pub struct Series<'a> {
    /// Its name, suffixes like `_total` and `_bucket` included.
    pub name: Cow<'a, str>,
    /// Its labels.
    pub labels: Labels<'a>,
    /// Its value: any number, `NaN` and infinities included.
    pub value: f64,
    /// What its family is declared to be.
    pub kind: Kind,
    /// Number of its line, from 1.
    pub line: usize,
}

/// What a `# TYPE` line declares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// Never falls but when its process starts anew.
    Counter,
    /// A level.
    Gauge,
    /// `_bucket`, `_sum` and `_count`.
    Histogram,
    /// Quantiles, `_sum` and `_count`.
    Summary,
    /// Declared as something else or not at all.
    #[default]
    Unknown,
}

impl Kind {
    fn of(word: &str) -> Self {
        match word {
            "counter" => Self::Counter,
            "gauge" => Self::Gauge,
            "histogram" | "gaugehistogram" => Self::Histogram,
            "summary" => Self::Summary,
            _ => Self::Unknown,
        }
    }
}

/// A line that is neither a series nor a comment.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct Broken<'a> {
    /// Its number, from 1.
    pub line: usize,
    /// What is wrong with it.
    pub what: &'static str,
    /// The series name it begins with, as far as there is one.
    pub name: Cow<'a, str>,
    /// Whether the page ends with it and without a newline: as one does that is cut off.
    pub is_end: bool,
}

impl Broken<'_> {
    /// Whether it may be a series of that name; where the page is cut off its name may go on.
    pub fn may_be(&self, name: &str) -> bool {
        if self.is_end { name.starts_with(&*self.name) } else { *name == *self.name }
    }
}

/// A page that is not UTF-8, and so is none in either format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the page is not UTF-8 from byte {offset} on")]
pub struct NotText {
    /// Where the first bytes are that are no character.
    pub offset: usize,
}

/// `page` as text.
///
/// # Errors
/// When it is not UTF-8; both formats are. A label that was guessed could select other series.
pub fn text(page: &[u8]) -> Result<&str, NotText> {
    std::str::from_utf8(page).map_err(|error| NotText { offset: error.valid_up_to() })
}

/// The series of `page` and its broken lines, in order. Ends at `# EOF`.
pub fn parse(page: &str) -> Page<'_> {
    Page { lines: page.split('\n').enumerate(), family: None }
}

/// Iterator over the series of a page; see [`parse`].
#[derive(Clone, Debug)]
pub struct Page<'a> {
    lines: Enumerate<Split<'a, char>>,
    /// Of the last `# TYPE` line. Series stand below the line that declares them.
    family: Option<(Cow<'a, str>, Kind)>,
}

impl<'a> Iterator for Page<'a> {
    type Item = Result<Series<'a>, Broken<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let (before, line) = self.lines.next()?;
            let text = line.trim_matches([' ', '\t', '\r']);
            let Some(comment) = text.strip_prefix('#') else {
                if text.is_empty() {
                    continue;
                }
                return Some(self.series(text, before + 1));
            };
            if comment == " EOF" {
                self.lines = "".split('\n').enumerate();
                return None;
            }
            if let Some(declared) = comment.trim_ascii_start().strip_prefix("TYPE ") {
                self.family =
                    line::declaration(declared).map(|(name, word)| (name, Kind::of(word)));
            }
        }
    }
}

impl<'a> Page<'a> {
    fn series(&self, text: &'a str, number: usize) -> Result<Series<'a>, Broken<'a>> {
        let broken = |what| {
            let is_end = self.lines.clone().next().is_none();
            Broken { line: number, what, name: line::begun(text), is_end }
        };
        let parts = line::parts(text).map_err(broken)?;
        let kind = match &self.family {
            Some((family, kind)) if belongs(&parts.name, family) => *kind,
            _ => Kind::Unknown,
        };
        let line::Parts { name, labels, value } = parts;
        Ok(Series { name, labels, value, kind, line: number })
    }
}

/// Whether a series of that name is one of `family`'s.
fn belongs(name: &str, family: &str) -> bool {
    const SUFFIXES: [&str; 5] = ["", "_total", "_bucket", "_sum", "_count"];
    name.strip_prefix(family).is_some_and(|suffix| SUFFIXES.contains(&suffix))
}

impl FromStr for Matchers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::parse(text)
    }
}
