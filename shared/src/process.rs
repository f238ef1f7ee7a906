//! What both binaries do the same way: one clock, one log format, one way to be stopped.

/// Files that are read whole.
pub mod file;

use std::io::IsTerminal as _;
use std::time::SystemTime;

use anyhow::Context as _;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt;
use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::time::Timestamp;

/// Pages over HTTP/1.
pub mod pages;

/// Version of this build, as agents and gateways tell each other.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Commit of this build in seven digits, or `unknown`; from the crate's `build.rs`.
pub const COMMIT: &str = env!("KEDA_GPU_GATEWAY_COMMIT");

/// What `--version` prints after the name: `0.1.0 (1a2b3c4, 2026-11-30)`, or `0.1.0 (unknown)`.
pub const BUILD: &str = env!("KEDA_GPU_GATEWAY_BUILD");

/// The one clock of a process. It is tokio's, so that tests can pause it.
#[derive(Clone, Copy, Debug)]
pub struct Clock(Instant);

impl Clock {
    /// A clock that reads [`Timestamp::START`] now.
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// The present moment.
    pub fn now(&self) -> Timestamp {
        Timestamp::START + self.0.elapsed()
    }

    /// The wall clock's time at `moment`, to show to people; nothing is decided by it.
    #[expect(clippy::disallowed_methods, reason = "the one reading of the wall clock")]
    pub fn wall(&self, moment: Timestamp) -> SystemTime {
        SystemTime::now() - self.now().since(moment)
    }
}

/// Format of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// Starts logging to standard error.
///
/// # Errors
/// When `filter` is not a filter of the form `info,gateway=debug`, or logging runs already.
pub fn start_logging(filter: &str, format: LogFormat) -> anyhow::Result<()> {
    let targets: Targets = filter
        .parse()
        .with_context(|| format!("log filter {filter:?}: write for example info,gateway=debug"))?;
    let lines =
        fmt::layer().with_ansi(std::io::stderr().is_terminal()).with_writer(std::io::stderr);
    let lines = match format {
        LogFormat::Text => lines.boxed(),
        LogFormat::Json => lines.json().boxed(),
    };
    tracing_subscriber::registry()
        .with(lines.with_filter(targets))
        .try_init()
        .context("logging could not be started")
}

/// Cancels `shutdown` at the first SIGINT or SIGTERM; a second one ends the process at once.
///
/// # Errors
/// When the signal handlers cannot be installed.
pub fn cancel_on_signal(shutdown: CancellationToken) -> anyhow::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut interrupt = signal(SignalKind::interrupt()).context("SIGINT handler")?;
    let mut terminate = signal(SignalKind::terminate()).context("SIGTERM handler")?;
    tokio::spawn(async move {
        for round in 0.. {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            if round > 0 {
                std::process::exit(130);
            }
            tracing::info!("shutting down");
            shutdown.cancel();
        }
    });
    Ok(())
}
