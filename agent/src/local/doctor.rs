//! Where the way from the driver to the readings, and to who holds what, is broken.
//!
//! Guarantees: the links are looked at in order, and the first broken one ends the report with one
//! sentence and one command; what comes after it is not guessed at.

use std::path::Path;

use serde::Serialize;

use super::view::plain;

/// Whether the devices are read.
mod devices;
/// Whether engines' pages are read.
mod engines;
/// Whether gateways take streams.
mod gateways;
/// Whether driver and library are there and fit each other.
mod hardware;
/// Whether it is known who holds what.
mod holders;
/// Whether the kubelet tells who holds what.
mod kubelet;
/// Whether a recording can be replayed.
mod recording;

pub use devices::devices;
pub use engines::engines;
pub use gateways::gateways;
pub use hardware::{Driver, hardware};
pub use holders::{Circumstances, holders};
pub use kubelet::{Socket, kubelet};
pub use recording::recording;

/// Form of the report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For people.
    #[default]
    #[value(alias = "table")]
    Text,
    /// One object.
    Json,
}

/// One link and what was found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Step {
    /// Its name.
    pub link: &'static str,
    /// Whether it holds.
    pub good: bool,
    /// What was found, in one sentence.
    pub said: String,
    /// A line for each thing that was looked at.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub details: Vec<String>,
}

/// What was found, link by link.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// The links as far as they were looked at; only the last one can be broken.
    pub steps: Vec<Step>,
    /// The command to run next, where a link is broken.
    pub next: Option<String>,
}

/// A broken link: what is wrong, and the command to run next.
#[derive(Clone, Debug, PartialEq)]
pub struct Broken {
    /// What is wrong, in one sentence.
    pub said: String,
    /// The command to run next.
    pub next: String,
}

impl Broken {
    /// `said` is wrong; `next` tells more.
    pub fn new(said: impl Into<String>, next: impl Into<String>) -> Self {
        Self { said: said.into(), next: next.into() }
    }
}

impl Report {
    /// Takes note of a link; false if it is broken and nothing after it can be looked at.
    pub fn note(&mut self, link: &'static str, found: Result<String, Broken>) -> bool {
        self.note_all(link, found, Vec::new())
    }

    /// The same with a line for each thing that was looked at.
    pub fn note_all(
        &mut self,
        link: &'static str,
        found: Result<String, Broken>,
        details: Vec<String>,
    ) -> bool {
        let good = found.is_ok();
        let said = match found {
            Ok(said) => said,
            Err(Broken { said, next }) => {
                self.next = Some(next);
                said
            }
        };
        let details = details.iter().map(|line| plain(line)).collect();
        self.steps.push(Step { link, good, said: plain(&said), details });
        good
    }

    /// Whether no link is broken.
    pub fn is_good(&self) -> bool {
        self.steps.iter().all(|step| step.good)
    }

    /// The report in the form asked for.
    pub fn render(&self, format: Format) -> String {
        match format {
            Format::Text => self.text(),
            Format::Json => {
                let json = serde_json::to_string(self).expect("texts and flags are always JSON");
                json + "\n"
            }
        }
    }

    fn text(&self) -> String {
        let width = self.steps.iter().map(|step| step.link.len()).max().unwrap_or(0);
        let line = |step: &Step| {
            let state = if step.good { "ok    " } else { "broken" };
            let details = step.details.iter().map(|detail| format!("    {detail}\n"));
            let details: String = details.collect();
            format!("{:width$}  {state}  {}\n{details}", step.link, step.said)
        };
        let mut text: String = self.steps.iter().map(line).collect();
        if let Some(next) = &self.next {
            text += &format!("\nnext: {next}\n");
        }
        text
    }
}

/// A path as a shell takes it.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+,:@".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text;
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}
