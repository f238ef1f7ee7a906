//! One pod's engine: its pages tried in order, the one that answers kept.
//!
//! Guarantees: a page is kept for as long as it is an engine's; what is wrong with each page that
//! was tried is in the reason.

use std::net::IpAddr;
use std::sync::Arc;

use shared::brief::{EnginePage, EngineTarget};
use shared::process::Clock;
use shared::reading::Readings;
use shared::time::Timestamp;

use super::page::no_page;
use super::reader::{Reader, failed};
use super::scrape::{Limits, fetch};

/// Where Ollama listens, which has no page of metrics to say so itself.
const OLLAMA_PORT: u16 = 11_434;

/// One scrape's outcome.
pub(super) struct Scrape {
    /// When the page had arrived, or the last page had failed.
    pub(super) at: Timestamp,
    /// One for each selection.
    pub(super) readings: Vec<(Arc<str>, Readings)>,
    /// Why nothing could be read, where that is so.
    pub(super) trouble: Option<Arc<str>>,
}

/// One pod's engine, scrape after scrape.
pub(super) struct Engine {
    ip: IpAddr,
    /// Why nothing is asked there.
    refused: Option<String>,
    reader: Reader,
    /// The page that was the engine's at the last scrape.
    kept: Option<EnginePage>,
}

impl Engine {
    pub(super) fn new(ip: IpAddr, refused: Option<String>, reader: Reader) -> Self {
        Self { ip, refused, reader, kept: None }
    }

    /// Reads the engine as `target` says.
    pub(super) async fn scrape(
        &mut self,
        target: &EngineTarget,
        limits: Limits,
        clock: Clock,
    ) -> Scrape {
        if let Some(why) = &self.refused {
            return trouble(target, clock.now(), why.clone());
        }
        let expected = target.engine.as_deref();
        if let Some(why) = expected.and_then(no_page) {
            return trouble(target, clock.now(), why);
        }
        let mut wrong = Vec::new();
        for page in in_order(self.kept.take(), &target.pages) {
            let fetched = fetch(self.ip, &page, limits).await;
            let at = clock.now();
            let read =
                fetched.and_then(|text| self.reader.read(&text, expected, &target.labels, at));
            match read {
                Ok(readings) => {
                    self.kept = Some(page);
                    let readings = target.labels.iter().cloned().zip(readings).collect();
                    return Scrape { at, readings, trouble: None };
                }
                Err(why) => wrong.push(sentence(&page, &why)),
            }
        }
        trouble(target, clock.now(), wrong.join("; "))
    }
}

/// The kept page first, if it is still one of them.
fn in_order(kept: Option<EnginePage>, pages: &[EnginePage]) -> Vec<EnginePage> {
    let kept = kept.filter(|kept| pages.contains(kept));
    let others = pages.iter().filter(|page| Some(*page) != kept.as_ref()).cloned();
    kept.iter().cloned().chain(others).collect()
}

fn sentence(page: &EnginePage, why: &str) -> String {
    let EnginePage { port, path } = page;
    let hint = if *port == OLLAMA_PORT && why.starts_with("HTTP 404") {
        " (Ollama publishes no metrics)"
    } else {
        ""
    };
    format!(":{port}{path}: {why}{hint}")
}

fn trouble(target: &EngineTarget, at: Timestamp, why: String) -> Scrape {
    let readings = target.labels.iter().map(|labels| (labels.clone(), failed(&why))).collect();
    Scrape { at, readings, trouble: Some(why.into()) }
}
