//! Builds all of it, returns bound addresses, owns the order of shutdown.
//!
//! Guarantees: nothing is served before every port is bound and the directory is read. Shutdown
//! turns readiness off and ends streams with OK, waits for calls in flight, and is over after
//! `DRAIN` at the latest.

/// What keeps the ports closed to those who may not come in.
mod locks;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use proto::keda::external_scaler_server::ExternalScalerServer;
use proto::uplink::uplink_server::UplinkServer;
use shared::process::{Clock, file};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::server::NamedService;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;
use tracing::{info, warn};

use self::locks::Locks;
use crate::accept;
use crate::answer::Answers;
use crate::config::{DirectorySource, KubeConfig, ServeConfig};
use crate::demand::Demands;
use crate::demand::place::{self, Rules};
use crate::directory::Directory;
use crate::directory::file::FileDirectory;
use crate::directory::kube::KubeDirectory;
use crate::fleet::Fleet;
use crate::http::Pages;
use crate::http::metrics::Metrics;
use crate::ingest::{self, Ingest};
use crate::scaler::{self, Scaler};
use crate::trigger::profile::Profiles;

/// Bytes a file of profiles may have.
const MAX_PROFILES: u64 = 16 << 20;

/// How long shutdown may take.
const DRAIN: Duration = Duration::from_secs(10);
/// KEDA's calls are answered from memory; one that is not by then is an error.
const CALL_WITHIN: Duration = Duration::from_secs(1);
/// A peer that does not answer a ping within a few seconds is gone.
const PING_EVERY: Duration = Duration::from_secs(10);
const PING_WITHIN: Duration = Duration::from_secs(5);
/// Bytes of one request of KEDA's; its metadata are a few hundred.
const MAX_KEDA_BYTES: usize = 256 << 10;
/// Bytes of one message of an agent; an inventory of 1024 devices has some hundred thousand.
const MAX_AGENT_BYTES: usize = 4 << 20;
/// Where the system's resolver is told the names to search.
const RESOLV_CONF: &str = "/etc/resolv.conf";
/// How often readiness is looked at until it is reached, and the fleet is tidied.
const WARM_UP_EVERY: Duration = Duration::from_millis(100);
const TIDY_EVERY: Duration = Duration::from_secs(1);
/// Looks at what is asked of engines are at least this far apart.
const ASKS_APART: Duration = Duration::from_millis(100);
/// The demand of declared triggers is asked for this often, and that long apart where the directory
/// keeps changing.
const DEMAND_EVERY: Duration = Duration::from_secs(60);
const DEMAND_APART: Duration = Duration::from_millis(500);

/// A gateway that is bound but does not serve yet.
pub struct App {
    keda: TcpListener,
    agents: TcpListener,
    http: TcpListener,
    directory: Source,
    fleet: Arc<Fleet>,
    answers: Arc<Answers>,
    demands: Arc<Demands>,
    connection_age: Duration,
    locks: Locks,
    clock: Clock,
}

impl App {
    /// Reads profiles and directory and binds every port.
    ///
    /// # Errors
    /// When any of that fails; the message names what.
    pub async fn build(config: ServeConfig) -> anyhow::Result<Self> {
        let clock = Clock::start();
        let profiles = match &config.profiles {
            None => Profiles::default(),
            Some(path) => {
                let text = file::text(path, MAX_PROFILES);
                let (_, text) = text.with_context(|| path.display().to_string())?;
                Profiles::load(&text).with_context(|| path.display().to_string())?
            }
        };
        let profiles = Arc::new(profiles);
        let directory = Arc::new(Directory::with_clock(clock));
        let source = Source::open(&config, &directory, &profiles, clock).await?;
        let fleet = Arc::new(Fleet::default());
        let demands = Arc::new(Demands::new(demand_rules(&config), clock));
        let mut answers =
            Answers::new(directory, fleet.clone(), profiles, clock).with_demands(demands.clone());
        if config.directory == DirectorySource::Kube {
            answers = answers.with_max_age(config.kube.max_age);
        }
        let answers = Arc::new(answers);
        let locks = Locks::open(&config).await?;
        Ok(Self {
            keda: bind("--keda-listen", config.keda_listen).await?,
            agents: bind("--agent-listen", config.agent_listen).await?,
            http: bind("--http-listen", config.http_listen).await?,
            directory: source,
            fleet,
            answers,
            demands,
            connection_age: config.connection_age,
            locks,
            clock,
        })
    }

    /// Where KEDA calls.
    pub fn keda_addr(&self) -> SocketAddr {
        address(&self.keda)
    }

    /// Where agents push.
    pub fn agent_addr(&self) -> SocketAddr {
        address(&self.agents)
    }

    /// Where probes, metrics and the API are read.
    pub fn http_addr(&self) -> SocketAddr {
        address(&self.http)
    }

    /// Serves until `shutdown`, then drains.
    ///
    /// # Errors
    /// When a server ends by itself.
    pub async fn run(self, shutdown: CancellationToken) -> anyhow::Result<()> {
        let (keda, agents, http) = (self.keda_addr(), self.agent_addr(), self.http_addr());
        info!(%keda, %agents, %http, "serving");
        let (ingest_counts, calls) = (ingest::Counts::default(), scaler::Calls::default());
        let locks = self.locks;
        let metrics = Metrics::new(&ingest_counts, &calls, &self.demands)
            .with_locks(&locks.refusals, &locks.reloads)
            .with_certificates(locks.certificates());
        let metrics = Arc::new(metrics);
        let (fleet, directory) = (self.fleet.clone(), self.answers.directory().clone());
        let asks = self.answers.asks();
        let counts = ingest_counts;
        let ingest = Ingest::new(fleet, directory, asks, self.clock, counts, shutdown.clone())
            .with_door(locks.door());
        // Replicas that were started together do not send their clients away together.
        let age = self.connection_age.mul_f64(0.75 + 0.25 * fastrand::f64());
        let scaler = Scaler::new(self.answers.clone(), calls, age, shutdown.clone());
        let pages = Pages::new(self.answers.clone(), metrics, shutdown.clone())
            .with_token(locks.http_token.clone());

        let tasks = TaskTracker::new();
        let (health, health_service) = tonic_health::server::health_reporter();
        set_health(&health, ServingStatus::NotServing).await;
        tasks.spawn(self.directory.watch(shutdown.clone()));
        tasks.spawn(self.demands.run(shutdown.clone()));
        tasks.spawn(locks.watch(shutdown.clone()));
        tasks.spawn(warm_up(self.answers.clone(), health, shutdown.clone()));
        tasks.spawn(keep_asks(self.answers.clone(), shutdown.clone()));
        tasks.spawn(keep_demand(self.answers.clone(), shutdown.clone()));
        tasks.spawn(tidy(self.fleet, self.answers, self.clock, shutdown.clone()));

        let keda = server()
            .timeout(CALL_WITHIN)
            .max_connection_age(age)
            .add_service(
                ExternalScalerServer::new(scaler).max_decoding_message_size(MAX_KEDA_BYTES),
            )
            .add_service(health_service)
            .serve_with_incoming_shutdown(
                accept::incoming(self.keda, locks.keda_port()),
                shutdown.clone().cancelled_owned(),
            );
        let agents = server()
            .add_service(UplinkServer::new(ingest).max_decoding_message_size(MAX_AGENT_BYTES))
            .serve_with_incoming_shutdown(
                accept::incoming(self.agents, locks.agent_port()),
                shutdown.clone().cancelled_owned(),
            );
        let http = axum::serve(self.http, pages.router())
            .with_graceful_shutdown(shutdown.clone().cancelled_owned());
        let servers = async {
            let (keda, agents, http) = tokio::join!(
                ended(keda, &shutdown),
                ended(agents, &shutdown),
                ended(http, &shutdown)
            );
            keda.context("KEDA's port")?;
            agents.context("the agents' port")?;
            http.context("the HTTP port")
        };
        Box::pin(drained(servers, &shutdown)).await?;
        tasks.close();
        tasks.wait().await;
        info!("stopped");
        Ok(())
    }
}

/// Waits for the servers to end, but not for ever after `shutdown`.
async fn drained(
    servers: impl Future<Output = anyhow::Result<()>>,
    shutdown: &CancellationToken,
) -> anyhow::Result<()> {
    let drained = async {
        shutdown.cancelled().await;
        tokio::time::sleep(DRAIN).await;
    };
    tokio::select! {
        ended = servers => ended?,
        () = drained => warn!("some clients did not leave in time, closing their connections"),
    }
    Ok(())
}

/// Where the directory comes from.
enum Source {
    File(FileDirectory),
    Kube(KubeDirectory),
}

impl Source {
    async fn open(
        config: &ServeConfig,
        directory: &Arc<Directory>,
        profiles: &Arc<Profiles>,
        clock: Clock,
    ) -> anyhow::Result<Self> {
        let (directory, profiles) = (directory.clone(), profiles.clone());
        match &config.directory {
            DirectorySource::File(path) => {
                let file = FileDirectory::open(path.clone(), directory, profiles, clock);
                file.map(Self::File).context("directory file")
            }
            DirectorySource::Kube => {
                let KubeConfig { namespaces, kubeconfig, .. } = &config.kube;
                let kubeconfig = kubeconfig.as_deref();
                let kube =
                    KubeDirectory::connect(kubeconfig, namespaces, directory, profiles, clock);
                kube.await.map(Self::Kube).context("--directory kube")
            }
        }
    }

    async fn watch(self, shutdown: CancellationToken) {
        match self {
            Self::File(file) => file.watch(shutdown).await,
            Self::Kube(kube) => kube.watch(shutdown).await,
        }
    }
}

/// The cluster's domain is the one a pod's names are completed with; outside a cluster there is none.
fn demand_rules(config: &ServeConfig) -> Rules {
    let allowed = config.demand_allow.clone();
    let conf = std::fs::read_to_string(RESOLV_CONF).unwrap_or_default();
    let domain = place::domain(&conf).unwrap_or(place::DEFAULT_DOMAIN).to_owned();
    Rules { allowed, domain }
}

async fn bind(flag: &str, address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| format!("{flag} {address}"))
}

fn address(listener: &TcpListener) -> SocketAddr {
    listener.local_addr().expect("a bound listener has an address")
}

fn server() -> tonic::transport::Server {
    tonic::transport::Server::builder()
        .http2_keepalive_interval(Some(PING_EVERY))
        .http2_keepalive_timeout(Some(PING_WITHIN))
}

/// A server that ends takes the others along, so that none goes on half alive.
async fn ended<E>(
    server: impl IntoFuture<Output = Result<(), E>>,
    shutdown: &CancellationToken,
) -> Result<(), E> {
    let result = server.await;
    shutdown.cancel();
    result
}

/// Says over gRPC whether this replica is ready.
async fn set_health(health: &HealthReporter, status: ServingStatus) {
    for name in ["", <ExternalScalerServer<Scaler> as NamedService>::NAME] {
        health.set_service_status(name, status).await;
    }
}

/// Turns gRPC health on when this replica is ready, and off at shutdown.
async fn warm_up(answers: Arc<Answers>, health: HealthReporter, shutdown: CancellationToken) {
    let mut look = tokio::time::interval(WARM_UP_EVERY);
    while !answers.warm_up() {
        if shutdown.run_until_cancelled(look.tick()).await.is_none() {
            return;
        }
    }
    info!("ready");
    set_health(&health, ServingStatus::Serving).await;
    shutdown.cancelled().await;
    set_health(&health, ServingStatus::NotServing).await;
}

/// Keeps what is asked of engines current, for the briefs of agents.
async fn keep_asks(answers: Arc<Answers>, shutdown: CancellationToken) {
    let (mut directory, mut asked) = (answers.directory().changes(), answers.engines_asked());
    loop {
        directory.mark_unchanged();
        asked.mark_unchanged();
        answers.renew_asks();
        tokio::select! {
            () = shutdown.cancelled() => return,
            changed = directory.changed() => if changed.is_err() { return },
            changed = asked.changed() => if changed.is_err() { return },
        }
        tokio::time::sleep(ASKS_APART).await;
    }
}

/// Keeps the demand of declared triggers read, whether or not anybody asks.
async fn keep_demand(answers: Arc<Answers>, shutdown: CancellationToken) {
    let mut directory = answers.directory().changes();
    loop {
        directory.mark_unchanged();
        answers.seek_demand();
        tokio::select! {
            () = shutdown.cancelled() => return,
            changed = directory.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(DEMAND_EVERY) => {}
        }
        tokio::time::sleep(DEMAND_APART).await;
    }
}

async fn tidy(fleet: Arc<Fleet>, answers: Arc<Answers>, clock: Clock, shutdown: CancellationToken) {
    let mut tick = tokio::time::interval(TIDY_EVERY);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    while shutdown.run_until_cancelled(tick.tick()).await.is_some() {
        answers.tidy();
        fleet.tidy(|pod| answers.look_back(pod), clock.now());
    }
}
