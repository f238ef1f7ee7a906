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
#[error("{0}")]
pub struct Nothing(Arc<str>);

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

/// The first complete look at the node.
///
/// # Errors
/// When there is nothing to show.
pub async fn first(collector: &mut Collector, clock: Clock) -> Result<Taken, Nothing> {
    let taken = collector.first(clock).await;
    let inventory = &taken.frame.inventory;
    if !inventory.devices.is_empty() || !inventory.engines.is_empty() {
        return Ok(taken);
    }
    Err(Nothing(inventory.reason.clone().unwrap_or_else(|| "the source has no devices".into())))
}
