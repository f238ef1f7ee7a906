//! The subcommands that show the node here, with no gateway.
//!
//! Guarantees: a node with nothing to show is an error; the source is closed before the end, but
//! hardware that hangs keeps nobody from ending.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use shared::brief::Brief;
use shared::process::Clock;
use shared::time::Timestamp;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::collector;
use crate::collector::{Collector, Newest};
use crate::config::alone::ReadConfig;
use crate::device::SourceSpec;
use crate::device::nvml::probe::probe;
use crate::engine::address::PageAddress;
use crate::frame::Taken;
use crate::local::doctor::{self, Driver, Report};
use crate::local::record::Recording;
use crate::local::view::View;
use crate::local::{self, Format, render, stale_after};
use crate::uplink::address::Gateway;
use crate::uplink::credentials::Files;

/// How long the driver may take to answer at all.
const PROBE_WITHIN: Duration = Duration::from_secs(5);
/// How long to wait for hardware that does not answer until that can be said of it.
const SILENT_AFTER: Duration = Duration::from_secs(15);
/// How long closing the source may take.
const CLOSE_WITHIN: Duration = Duration::from_secs(1);

/// What the node shows now.
///
/// # Errors
/// When the source cannot be opened or there is nothing to show.
pub async fn snapshot(config: ReadConfig, format: Format) -> anyhow::Result<String> {
    let stale_after = stale_after(config.interval);
    let taken = once(config).await?;
    Ok(render(format, &taken, taken.at, stale_after))
}

/// The first complete look at the node.
pub(super) async fn once(config: ReadConfig) -> anyhow::Result<Taken> {
    let mut collector = collector(config, no_briefs())?;
    let clock = Clock::start();
    let first = local::first(&mut collector, clock, SILENT_AFTER).await;
    close(collector).await;
    Ok(first?)
}

/// Records the node to `file` until `shutdown`, for at most `length`; returns the number of lines.
///
/// # Errors
/// When the source cannot be opened, there is nothing to record, or it cannot be written, also
/// because it is what is read.
pub async fn record(
    config: ReadConfig,
    file: &Path,
    force: bool,
    length: Option<Duration>,
    shutdown: CancellationToken,
) -> anyhow::Result<u64> {
    let interval = config.interval;
    let replayed = match &config.source {
        SourceSpec::Replay(path) => Some(path),
        SourceSpec::Nvml { .. } | SourceSpec::Simulated(_) => None,
    };
    if replayed.into_iter().chain(&config.holders).any(|read| is_same_file(read, file)) {
        bail!("recording {}: it is read from; name another file to write", file.display());
    }
    let Some(running) = Running::start(config, &shutdown).await? else { return Ok(0) };
    // Only now is it known that there is something to record.
    let mut recording = Recording::create(file, force)?;
    let followed = recording.follow(running.newest.clone(), interval, length).await;
    running.end().await?;
    followed?;
    info!(file = %file.display(), lines = recording.lines(), "recorded");
    Ok(recording.lines())
}

/// Whether both names are of one file, however they are written.
fn is_same_file(one: &Path, other: &Path) -> bool {
    let identity = |path: &Path| {
        let file = std::fs::metadata(path).ok().filter(Metadata::is_file)?;
        Some((file.dev(), file.ino()))
    };
    identity(one).is_some_and(|one| Some(one) == identity(other))
}

/// A collector whose first look is over, in a task of its own.
pub(super) struct Running {
    /// The clock of its frames.
    pub(super) clock: Clock,
    /// Its newest frame.
    pub(super) newest: watch::Receiver<Newest>,
    task: tokio::task::JoinHandle<Result<(), crate::device::Error>>,
    stop: CancellationToken,
}

impl Running {
    /// None if `shutdown` came first.
    pub(super) async fn start(
        config: ReadConfig,
        shutdown: &CancellationToken,
    ) -> anyhow::Result<Option<Self>> {
        let mut collector = collector(config, no_briefs())?;
        let clock = Clock::start();
        let first = local::first(&mut collector, clock, SILENT_AFTER);
        match shutdown.run_until_cancelled(first).await {
            None => return Ok(None),
            Some(Err(nothing)) => {
                close(collector).await;
                return Err(nothing.into());
            }
            Some(Ok(_)) => {}
        }
        let (sender, newest) = watch::channel(None);
        let stop = shutdown.child_token();
        let task = tokio::spawn(collector.run(clock, sender, stop.clone()));
        Ok(Some(Self { clock, newest, task, stop }))
    }

    /// Frames that another task makes until `stop`.
    pub(super) fn of(
        clock: Clock,
        newest: watch::Receiver<Newest>,
        task: tokio::task::JoinHandle<Result<(), crate::device::Error>>,
        stop: CancellationToken,
    ) -> Self {
        Self { clock, newest, task, stop }
    }

    pub(super) async fn end(self) -> anyhow::Result<()> {
        self.stop.cancel();
        match tokio::time::timeout(CLOSE_WITHIN, self.task).await {
            Ok(ended) => Ok(ended.context("collector")??),
            // Its hardware hangs; the end of the process frees what it holds.
            Err(_) => Ok(()),
        }
    }
}

/// Nobody briefs an agent that has no gateway.
pub(super) fn no_briefs() -> watch::Receiver<Option<Arc<Brief>>> {
    watch::Sender::new(None).subscribe()
}

async fn close(collector: Collector) {
    if tokio::time::timeout(CLOSE_WITHIN, collector.close()).await.is_err() {
        tracing::warn!("the hardware does not answer; it is not waited for");
    }
}

/// Looks at every link of the way from the driver to the gateways, until one is broken. Engines'
/// pages and gateways are looked at where some are named.
///
/// # Errors
/// When what was asked for cannot even be looked at, such as a broken holders file.
pub async fn doctor(
    config: ReadConfig,
    engine_pages: &[PageAddress],
    gateways: &[Gateway],
    credentials: Files,
) -> anyhow::Result<Report> {
    let mut report = Report::default();
    let good = match &config.source {
        SourceSpec::Nvml { library } => {
            hardware(&mut report, library.clone(), &config.owners.proc_root).await?
        }
        SourceSpec::Replay(path) => report.note("recording", doctor::recording(path)),
        SourceSpec::Simulated(_) => {
            report.note("source", Ok("a simulation; no hardware is looked at".into()))
        }
    };
    let good = good && held(&mut report, config, !gateways.is_empty()).await?;
    let good = good
        && (engine_pages.is_empty()
            || report.note("engine pages", doctor::engines(engine_pages).await));
    if good && !gateways.is_empty() {
        report.note("gateway", doctor::gateways(gateways, credentials).await);
    }
    Ok(report)
}

/// The links of devices and their holders.
async fn held(report: &mut Report, config: ReadConfig, is_briefed: bool) -> anyhow::Result<bool> {
    let source = config.source.clone();
    let owners = config.owners.clone();
    let file = config.holders.is_some();
    let stale_after = stale_after(config.interval);
    let mut collector = collector(config, no_briefs())?;
    if let Some(kubelet) = &mut collector.kubelet {
        // Until it answered, or is known not to.
        kubelet.start(SILENT_AFTER).await;
    }
    let clock = Clock::start();
    let mut taken = collector.first(clock).await;
    while !collector.source.is_ready() && clock.now() < Timestamp::START + SILENT_AFTER {
        taken = collector.first(clock).await;
    }
    let kubelet = collector.kubelet.take();
    let notes = std::mem::take(&mut collector.notes);
    close(collector).await;
    let view = View::of(&taken, taken.at, stale_after);
    if !report.note("devices", doctor::devices(&view, &source, &notes)) {
        return Ok(false);
    }
    let is_asked = kubelet.is_some();
    if let (Some(kubelet), Some(socket)) = (kubelet, &owners.kubelet_socket) {
        let has_folder = socket.parent().is_some_and(Path::exists);
        let place = doctor::Socket { path: socket, has_folder };
        if !report.note("kubelet", doctor::kubelet(kubelet.declared(), kubelet.fault(), place)) {
            return Ok(false);
        }
    }
    let unheld = match &source {
        _ if file => "not in the holders file",
        _ if is_asked => "free",
        SourceSpec::Nvml { .. } => "nobody known to hold it; the kubelet is not asked",
        SourceSpec::Replay(_) => "no holder is recorded",
        SourceSpec::Simulated(_) => "free",
    };
    let circumstances = doctor::Circumstances { unheld, is_briefed, proc_root: &owners.proc_root };
    let (details, found) = doctor::holders(&view, &notes, circumstances);
    Ok(report.note_all("holders", found, details))
}

async fn hardware(
    report: &mut Report,
    library: Option<PathBuf>,
    proc_root: &Path,
) -> anyhow::Result<bool> {
    let file = proc_root.join("driver/nvidia/version");
    let driver =
        Driver { said: std::fs::read_to_string(&file).ok(), file: file.display().to_string() };
    let probe = tokio::task::spawn_blocking(move || probe(library, PROBE_WITHIN));
    Ok(doctor::hardware(report, &driver, probe.await.context("probe")?))
}
