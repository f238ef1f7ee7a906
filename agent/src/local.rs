//! Agent-only mode: the frame that travels to the gateways, shown here, with no gateway, kubelet
//! or cluster.
//!
//! Guarantees: every form shows the same view of the same frame; a node with nothing to show is an
//! error with one sentence, never an empty answer.

use std::sync::Arc;
use std::time::Duration;

use shared::process::Clock;
use shared::time::Timestamp;

use crate::collector::Collector;
use crate::frame::Taken;

/// What is shown of a frame.
pub mod view;

mod condition;
/// One line of the replay format.
pub mod json;
/// Prometheus text.
pub mod metrics;
/// A table for people.
pub mod table;

/// What is found broken on the way from the driver to the readings.
pub mod doctor;
/// The local HTTP port.
pub mod http;
/// A recording being written.
pub mod record;
/// The terminal view.
pub mod top;

use view::View;

/// A reading older than this is missing: the gateway's `staleAfter` where nothing else is said.
const STALE_AFTER: Duration = Duration::from_secs(10);

/// Form of what is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For people.
    #[default]
    Table,
    /// One line of the replay format, for scripts and for `--source replay:FILE`.
    Json,
    /// Prometheus text 0.0.4, for a textfile collector.
    Prometheus,
}

/// Why there is nothing to show, in one sentence.
#[derive(Debug, thiserror::Error)]
#[error("{why}")]
pub struct Nothing {
    why: Arc<str>,
    /// Whether the source said so, rather than nothing yet.
    pub is_known: bool,
}

/// How old a reading may be at `interval` and still be shown.
pub fn stale_after(interval: Duration) -> Duration {
    STALE_AFTER.max(interval.saturating_mul(3))
}

/// What is to be seen of `taken` at `now`, in the form asked for.
pub fn render(format: Format, taken: &Taken, now: Timestamp, stale_after: Duration) -> String {
    let view = View::of(taken, now, stale_after);
    match format {
        Format::Table => table::render(&view),
        Format::Json => json::line(&view, 0) + "\n",
        Format::Prometheus => metrics::render(&view),
    }
}

/// The first complete look at the node; hardware that says nothing yet is waited for until
/// `patience` is over.
///
/// # Errors
/// When there is nothing to show.
pub async fn first(
    collector: &mut Collector,
    clock: Clock,
    patience: Duration,
) -> Result<Taken, Nothing> {
    let until = clock.now() + patience;
    loop {
        // What was taken before that may be from before there was something to say.
        let is_known = collector.source.is_ready();
        let taken = collector.first(clock).await;
        let inventory = &taken.frame.inventory;
        if !inventory.devices.is_empty() || !inventory.engines.is_empty() {
            return Ok(taken);
        }
        if is_known || clock.now() >= until {
            let none = || "the source has no devices".into();
            let why = inventory.reason.clone().unwrap_or_else(none);
            return Err(Nothing { why, is_known });
        }
    }
}
