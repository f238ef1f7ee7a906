//! Builds all of it and owns the order of shutdown.
//!
//! Guarantees: what can be found wrong before the start is found in `App::build`; the collector
//! ends first, so that every stream ends by itself after the last frame.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use futures_util::Stream;
use proto::convert::MAX_NAME;
use shared::brief::Brief;
use shared::identity::NodeName;
use shared::process::pages::Attendant;
use shared::process::{self, Clock};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// The subcommands that show the node here.
pub mod alone;
/// The frames of an agent that runs already.
mod follow;
/// The subcommand that shows it in the terminal.
pub mod top;

use crate::collector::Collector;
use crate::config::RunConfig;
use crate::config::alone::ReadConfig;
use crate::config::owners::OwnerConfig;
use crate::device::SourceSpec;
use crate::device::meter::Meters;
use crate::engine::scrape::Limits;
use crate::engine::{DEFAULT_INTERVAL, Engines, Scraper};
use crate::local;
use crate::local::http::Pages;
use crate::owner::declared::Resources;
use crate::owner::file::HoldersFile;
use crate::owner::handover::Handovers;
use crate::owner::kubelet::{self, Kubelet};
use crate::owner::process::Procfs;
use crate::uplink::address::Gateway;
use crate::uplink::credentials::Credentials;
use crate::uplink::{Heard, Uplink};

/// How long the hardware is waited for before the pages are served without it.
const FIRST_LOOK: Duration = Duration::from_secs(5);

/// Connections to the local pages at once; one more is closed.
const MAX_CONNECTIONS: usize = 64;

/// How long accepting rests when the system has no descriptor left.
const REST: Duration = Duration::from_millis(100);

/// How long a client of the local pages may take to leave.
const DRAIN: Duration = Duration::from_secs(2);

/// An agent that is ready to run.
pub struct App {
    node: NodeName,
    interval: Duration,
    engine_interval: Duration,
    /// None in agent-only mode.
    gateways: Vec<Gateway>,
    credentials: Arc<Credentials>,
    collector: Collector,
    briefs: watch::Sender<Option<Arc<Brief>>>,
    http: Option<TcpListener>,
}

impl App {
    /// Opens every file and checks every setting.
    ///
    /// # Errors
    /// When something of it is wrong, in one sentence.
    pub fn build(config: RunConfig) -> anyhow::Result<Self> {
        let gateways: Result<Vec<Gateway>, _> =
            config.gateways.iter().map(|url| url.parse()).collect();
        let gateways = gateways?;
        if gateways.is_empty() {
            bail!("no gateway; write --gateway https://HOST:PORT");
        }
        let credentials = Credentials::new(config.credentials);
        credentials.check(&gateways)?;
        let read = ReadConfig {
            node: config.node,
            source: config.source,
            interval: config.interval,
            holders: config.holders,
            owners: config.owners,
            replay_end: config.replay_end,
        };
        let engine_interval = config.engine_interval;
        let credentials = Arc::new(credentials);
        let app = Self::with(gateways, read, config.http_listen)?;
        Ok(Self { engine_interval, credentials, ..app })
    }

    /// The same for an agent that only serves its local pages, on `listen`.
    ///
    /// # Errors
    /// When something of it is wrong, in one sentence.
    pub fn serve(config: ReadConfig, listen: SocketAddr) -> anyhow::Result<Self> {
        Self::with(Vec::new(), config, Some(listen))
    }

    fn with(
        gateways: Vec<Gateway>,
        config: ReadConfig,
        listen: Option<SocketAddr>,
    ) -> anyhow::Result<Self> {
        let (node, interval) = (config.node.clone(), config.interval);
        let briefs = watch::Sender::new(None);
        let heard = if gateways.is_empty() { alone::no_briefs() } else { briefs.subscribe() };
        let collector = collector(config, heard)?;
        let http = listen.map(bind).transpose()?;
        let engine_interval = DEFAULT_INTERVAL;
        let credentials = Arc::default();
        Ok(Self { node, interval, engine_interval, gateways, credentials, collector, briefs, http })
    }

    /// Where the local pages are, if they are served.
    pub fn http_addr(&self) -> Option<SocketAddr> {
        self.http.as_ref().map(address)
    }

    /// Runs until `shutdown` is cancelled or the source has finished.
    ///
    /// # Errors
    /// When the collector or an uplink ended in a way that is a bug.
    pub async fn run(mut self, shutdown: CancellationToken) -> anyhow::Result<()> {
        let clock = Clock::start();
        let mut first = None;
        if self.gateways.is_empty() {
            let look = local::first(&mut self.collector, clock, FIRST_LOOK);
            match shutdown.run_until_cancelled(look).await {
                None => return Ok(()),
                Some(Ok(taken)) => first = Some(Arc::new(taken)),
                Some(Err(nothing)) if nothing.is_known => return Err(nothing.into()),
                Some(Err(nothing)) => warn!(reason = %nothing, "nothing to serve yet"),
            }
        }
        let (newest, frames) = watch::channel(first);
        let serving = shutdown.child_token();
        let mut tasks = JoinSet::new();
        if let Some(listener) = self.http {
            let pages = Pages::new(frames.clone(), clock, self.interval);
            tasks.spawn(serve(listener, pages, serving.clone()));
        }
        let no_more_tries = CancellationToken::new();
        let scraper = Scraper {
            interval: self.engine_interval,
            limits: Limits::default(),
            briefs: self.briefs.subscribe(),
            engines: self.collector.engines.clone(),
            loopback: self.gateways.iter().all(Gateway::is_here),
            clock,
        };
        let scraping = tokio::spawn(scraper.run(no_more_tries.clone()));
        let heard = Heard::new(self.briefs.clone());
        let mut uplinks = JoinSet::new();
        for gateway in self.gateways {
            let uplink = Uplink {
                node: self.node.clone(),
                interval: self.interval,
                engine_interval: self.engine_interval,
                newest: frames.clone(),
                briefs: heard.clone(),
                clock,
                credentials: self.credentials.clone(),
                shutdown: no_more_tries.clone(),
            };
            info!(node = %self.node, %gateway, "agent starts");
            uplinks.spawn(uplink.run(gateway));
        }
        let collector = tokio::spawn(self.collector.run(clock, newest, shutdown));
        let collected = collector.await.context("collector");
        no_more_tries.cancel();
        serving.cancel();
        scraping.await.context("engines")?;
        while let Some(ended) = uplinks.join_next().await {
            ended.context("uplink")?;
        }
        while let Some(ended) = tasks.join_next().await {
            ended.context("local pages")??;
        }
        Ok(collected??)
    }
}

/// Opens what `config` names; `briefs` are what the gateways say of the node.
fn collector(
    config: ReadConfig,
    briefs: watch::Receiver<Option<Arc<Brief>>>,
) -> anyhow::Result<Collector> {
    let length = config.node.as_str().len();
    if length == 0 || length > MAX_NAME {
        bail!("the node's name has {length} bytes; 1 to {MAX_NAME} are accepted");
    }
    let holders = config.holders.as_deref().map(HoldersFile::open);
    let OwnerConfig { kubelet_socket, gpu_resources, proc_root, pod_logs } = config.owners;
    // What is replayed or made up runs no processes here.
    let is_here = matches!(config.source, SourceSpec::Nvml { .. });
    let processes = is_here.then(|| Procfs::new(proc_root, pod_logs));
    let kubelet = kubelet_socket.map(|socket| {
        let resources = Resources { extra: gpu_resources };
        Kubelet::new(kubelet::Settings::new(socket, resources), briefs.clone())
    });
    Ok(Collector {
        source: config.source.open(&config.node, config.replay_end)?,
        holders: holders.transpose()?,
        engines: Engines::default(),
        kubelet,
        processes,
        briefs,
        meters: Meters::default(),
        handovers: Handovers::default(),
        notes: Vec::new(),
        interval: config.interval,
    })
}

fn bind(listen: SocketAddr) -> anyhow::Result<TcpListener> {
    let bound = TcpListener::bind(listen).and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    bound.with_context(|| format!("--http-listen {listen}"))
}

fn address(listener: &TcpListener) -> SocketAddr {
    listener.local_addr().expect("a bound listener has an address")
}

/// A connection's place, given back when dropped.
struct Place {
    _permit: OwnedSemaphorePermit,
}

impl Attendant for Place {}

/// The connections of `listener`, each with its place among [`MAX_CONNECTIONS`].
fn incoming(listener: tokio::net::TcpListener) -> impl Stream<Item = (TcpStream, Place)> {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    futures_util::stream::unfold((listener, places), async |(listener, places)| {
        loop {
            let Ok((connection, _)) = listener.accept().await else {
                tokio::time::sleep(REST).await;
                continue;
            };
            if let Ok(place) = places.clone().try_acquire_owned() {
                return Some(((connection, Place { _permit: place }), (listener, places)));
            }
        }
    })
}

/// Serves the local pages until `shutdown`, and then for as long as clients need, but not longer
/// than [`DRAIN`].
async fn serve(
    listener: TcpListener,
    pages: Pages,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    info!(http = %address(&listener), "serving");
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let server =
        process::pages::serve(incoming(listener), pages.router(), |_| {}, shutdown.clone());
    let drained = async {
        shutdown.cancelled().await;
        tokio::time::sleep(DRAIN).await;
    };
    tokio::select! {
        () = server => {}
        () = drained => warn!("some clients did not leave in time, closing their connections"),
    }
    Ok(())
}
