//! Builds all of it, returns bound addresses, owns the order of shutdown.
//!
//! Guarantees: nothing is served before every port is bound and the directory is read. Shutdown
//! turns readiness off and ends streams with OK, waits for calls in flight, and is over after
//! `DRAIN` at the latest.

/// The timeline and the dashboard's stream.
mod live;
/// What keeps the ports closed to those who may not come in.
mod locks;
/// The ports at work.
mod ports;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use futures_util::FutureExt as _;
use proto::keda::external_scaler_server::ExternalScalerServer;
use shared::process::{Clock, file};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::server::NamedService;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;
use tracing::{info, warn};

use self::live::Live;
use self::locks::Locks;
use self::ports::{Grpc, Ports};
use crate::accept::Entrance;
use crate::answer::Answers;
use crate::config::{DirectorySource, KubeConfig, ServeConfig};
use crate::contain::{self, Contain};
use crate::demand::Demands;
use crate::demand::place::{self, Rules};
use crate::directory::Directory;
use crate::directory::file::FileDirectory;
use crate::directory::kube::KubeDirectory;
use crate::fleet::Fleet;
use crate::http::Pages;
use crate::http::metrics::Metrics;
use crate::ingest::{self, Ingest};
use crate::ledger::books::Books;
use crate::limit::{self, Connections};
use crate::port::Port;
use crate::scaler::{self, Scaler};
use crate::trigger::profile::Profiles;
use crate::vital::{Pace, Vitals};

/// Bytes a file of profiles may have.
const MAX_PROFILES: u64 = 16 << 20;

/// How long shutdown may take.
const DRAIN: Duration = Duration::from_secs(10);
/// Where the process's own limits are told.
const LIMITS: &str = "/proc/self/limits";
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
    locks: Locks,
    clock: Clock,
    connections: Connections,
    connection_age: Duration,
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
                let name = || format!("--profiles: {}", path.display());
                let (_, text) = file::text(path, MAX_PROFILES).with_context(name)?;
                Profiles::load(&text).with_context(name)?
            }
        };
        let profiles = Arc::new(profiles);
        let directory = Arc::new(Directory::with_clock(clock));
        let source = Source::open(&config, &directory, &profiles, clock).await?;
        let fleet = Arc::new(Fleet::default());
        let demands = Arc::new(Demands::new(demand_rules(&config), clock));
        let mut answers =
            Answers::new(directory, fleet.clone(), profiles, clock).with_demands(demands.clone());
        let (of_fleet, of_directory) = (fleet.clone(), answers.directory().clone());
        let books = Books::new(config.tariff.clone(), of_fleet, of_directory, clock);
        answers = answers.with_books(books.into());
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
            locks,
            clock,
            connections: config.connections,
            connection_age: config.connection_age,
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
    /// None at present: a port that cannot accept says so and goes on.
    pub async fn run(self, shutdown: CancellationToken) -> anyhow::Result<()> {
        let (keda, agents, http) = (self.keda_addr(), self.agent_addr(), self.http_addr());
        info!(%keda, %agents, %http, "serving");
        let tasks = TaskTracker::new();
        let servers = self.start(&tasks, &shutdown).await;
        let drained = async {
            shutdown.cancelled().await;
            tokio::time::sleep(DRAIN).await;
        };
        tokio::select! {
            () = servers => {}
            () = drained => warn!("some clients did not leave in time, closing their connections"),
        }
        tasks.close();
        tasks.wait().await;
        info!("stopped");
        Ok(())
    }

    /// Starts every part and returns what ends when all ports have.
    async fn start(
        self,
        tasks: &TaskTracker,
        shutdown: &CancellationToken,
    ) -> impl Future<Output = ()> + use<> {
        let contained = contain::Counts::default();
        let (ingest_counts, limits) = (ingest::Counts::default(), limit::Counts::default());
        let calls = scaler::Calls::default().contained(contained.clone());
        let locks = self.locks;
        let mut metrics = Metrics::new(&ingest_counts, &calls, &self.demands)
            .with_locks(&locks.refusals, &locks.reloads)
            .with_certificates(locks.certificates());
        metrics.add(|registry| contained.register(registry));
        metrics.add(|registry| limits.register(registry));
        let live = Live::new(&mut metrics);
        let vitals = Vitals::new(contained.clone(), self.clock);
        let (fleet, directory) = (self.fleet.clone(), self.answers.directory().clone());
        let (asks, clock) = (self.answers.asks(), self.clock);
        let counts = ingest_counts.contained(contained.clone());
        let ingest = Ingest::new(fleet, directory, asks, clock, counts, shutdown.clone())
            .with_door(locks.door());
        let scaler = Scaler::new(self.answers.clone(), calls, shutdown.clone());
        let pages =
            Pages::new(self.answers.clone(), metrics.into(), vitals.clone(), shutdown.clone())
                .with_token(locks.http_token.clone())
                .contained(contained.clone());
        let pages = live.on(pages);
        let (health, health_service) = tonic_health::server::health_reporter();
        set_health(&health, ServingStatus::NotServing).await;

        let watch = |name, pace, part| {
            tasks.spawn(vitals.clone().watch(name, pace, shutdown.clone(), part));
        };
        let (stop, answers) = (|| shutdown.clone(), || self.answers.clone());
        watch("directory", self.directory.pace(), self.directory.watch(stop()).boxed());
        watch("certificates and tokens", Pace::Nudged, locks.watch(stop()).boxed());
        watch("demand", Pace::Nudged, self.demands.run(stop()).boxed());
        watch("triggers asked for", Pace::Nudged, keep_asked(answers(), stop()).boxed());
        let live = live.keep(answers(), vitals.clone(), stop());
        watch("timeline and events", Pace::Nudged, live.boxed());
        watch("fleet", Pace::Own, tidy(self.fleet, answers(), clock, stop()).boxed());
        watch("ledger", Pace::Own, self.answers.books().clone().keep(stop()).boxed());
        let readiness = tell_health(answers(), vitals.clone(), health, stop());
        watch("readiness", Pace::Own, readiness.boxed());

        let contain = |entrance: &Entrance| Contain::new(entrance.name, contained.clone());
        let (keda, agents) = (locks.keda_entrance(), locks.agent_entrance());
        let (of_keda, of_agents) = (contain(&keda), contain(&agents));
        let ports = Ports {
            keda: Grpc {
                listener: self.keda,
                entrance: keda,
                port: Port::for_keda(scaler, health_service, of_keda, self.connection_age),
            },
            agents: Grpc {
                listener: self.agents,
                entrance: agents,
                port: Port::for_agents(ingest, of_agents),
            },
            http: (self.http, pages.router()),
            connections: connections(self.connections),
            contained,
            limits,
        };
        ports.serve(tasks, &vitals, shutdown)
    }
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
                file.map(Self::File).context("--directory file")
            }
            DirectorySource::Kube => {
                let KubeConfig { namespaces, kubeconfig, .. } = &config.kube;
                let kubeconfig = kubeconfig.as_deref();
                let kube =
                    KubeDirectory::connect(kubeconfig, namespaces, directory, profiles, clock);
                let hint = match kubeconfig {
                    None => "; to try it without a cluster, --directory file:PATH",
                    Some(_) => "",
                };
                kube.await
                    .map(Self::Kube)
                    .map_err(|error| anyhow!("--directory kube: {error:#}{hint}"))
            }
        }
    }

    /// A file is looked at every few moments; watches of the API server may wait without end.
    fn pace(&self) -> Pace {
        match self {
            Self::File(_) => Pace::Own,
            Self::Kube(_) => Pace::Nudged,
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

/// What the ports may hold, given what this process may have open.
fn connections(wanted: Connections) -> Connections {
    let limits = std::fs::read_to_string(LIMITS).unwrap_or_default();
    let Some(descriptors) = limit::descriptors(&limits) else { return wanted };
    let connections = wanted.within(descriptors);
    if connections != wanted {
        let Connections { keda, agents, http } = connections;
        warn!(
            descriptors,
            keda,
            agents,
            http,
            "the limit of open files is too low for all connections; the ports hold fewer"
        );
    }
    connections
}

/// Says over gRPC whether this replica is ready.
async fn set_health(health: &HealthReporter, status: ServingStatus) {
    for name in ["", <ExternalScalerServer<Scaler> as NamedService>::NAME] {
        health.set_service_status(name, status).await;
    }
}

/// Turns gRPC health on while this replica is ready and all its parts are well, and off at
/// shutdown.
async fn tell_health(
    answers: Arc<Answers>,
    vitals: Vitals,
    health: HealthReporter,
    shutdown: CancellationToken,
) {
    let mut look = tokio::time::interval(WARM_UP_EVERY);
    let (mut serving, mut ailed) = (false, String::new());
    while shutdown.run_until_cancelled(look.tick()).await.is_some() {
        let ailing = vitals.ailing();
        if ailing != ailed {
            warn!(ailing = ailing.trim(), "parts of the gateway are not well, or are again");
            ailed = ailing;
        }
        let is_ready = (answers.is_warm() || answers.warm_up()) && ailed.is_empty();
        if is_ready != serving {
            serving = is_ready;
            info!(ready = serving, "readiness changed");
            let status = if serving { ServingStatus::Serving } else { ServingStatus::NotServing };
            set_health(&health, status).await;
        }
    }
    set_health(&health, ServingStatus::NotServing).await;
}

/// Keeps what triggers ask for read: of engines, and of demand.
async fn keep_asked(answers: Arc<Answers>, shutdown: CancellationToken) {
    tokio::join!(keep_asks(answers.clone(), shutdown.clone()), keep_demand(answers, shutdown));
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
        fleet.tidy(answers.look_backs(), clock.now());
    }
}
