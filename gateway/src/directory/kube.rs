//! The directory from the Kubernetes API: three watches, the `/scale` of every target, and what DRA
//! drivers publish where the cluster serves it.
//!
//! Guarantees: one task owns what is known and replaces the snapshot at most ten times a second;
//! no snapshot exists before everything has been read once. While the API server is away the last
//! state stays, is not confirmed and so grows old; after an outage it is listed anew. Nothing is
//! ever written.

/// Everything that is asked of the API server.
pub mod access;
/// What the watches have said so far, and the snapshot made of it.
pub mod index;
/// One copy of each text.
pub mod intern;
/// ScaledObjects and ScaledJobs as the API server gives them.
pub mod object;
/// Pods as the API server gives them.
pub mod pod;
/// The `/scale` subresource of every target.
pub mod scale;
/// Label selectors as text.
pub mod selector;
/// ResourceSlices as the API server gives them.
pub mod slice;
/// One watch.
pub mod watch;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ::kube::api::ListParams;
use ::kube::config::{KubeConfigOptions, Kubeconfig};
use ::kube::core::DynamicObject;
use ::kube::{Api, Client, Config};
use anyhow::{Context as _, anyhow};
use shared::process::Clock;
use shared::time::Timestamp;
use tokio::sync::{mpsc, watch as latest};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{Directory, ScaledKind};
use crate::trigger::profile::Profiles;
use index::{Action, Index, Scope, What};
use scale::Wanted;
use slice::Published;
use watch::Follower;

/// Snapshots are at least this far apart, and ten times as long as the last took to make.
const SETTLE: Duration = Duration::from_millis(100);
/// How often the API server is asked whether it is there.
const BEAT: Duration = Duration::from_secs(3);
/// How long it may take to say so.
const BEAT_WITHIN: Duration = Duration::from_secs(3);
/// After an outage of this long everything is listed anew: a watch can be dead without knowing.
const OUTAGE: Duration = Duration::from_secs(20);
/// A watch that was opened again and has not failed for this long is taken to work.
const REOPENED: Duration = Duration::from_secs(1);
/// What is waiting to be written into the index.
const QUEUE: usize = 1_024;

/// What one watch says.
#[derive(Debug)]
pub enum Said {
    /// Something to do.
    Action(Action),
    /// Something about what drivers publish.
    Published(slice::Change),
    /// It failed.
    Failed,
    /// It is tried again from now on.
    Retrying,
}

/// Whether a watch can be relied on.
#[derive(Clone, Copy, Debug)]
enum Line {
    Up,
    Down,
    Retrying(Timestamp),
}

/// The API server, and the index kept of it.
pub struct KubeDirectory {
    client: Client,
    scopes: Vec<Scope>,
    directory: Arc<Directory>,
    profiles: Arc<Profiles>,
    clock: Clock,
}

/// A client of the API server that `kubeconfig` names, or else the usual places. Nothing is asked
/// of it yet.
///
/// # Errors
/// When there is no usable configuration.
pub async fn client(kubeconfig: Option<&Path>) -> anyhow::Result<Client> {
    Client::try_from(config(kubeconfig).await?).context("the Kubernetes client")
}

async fn config(kubeconfig: Option<&Path>) -> anyhow::Result<Config> {
    match kubeconfig {
        // It names its sources itself.
        None => Config::infer()
            .await
            .map_err(|error| anyhow!("neither in a cluster nor with a kubeconfig: {error}")),
        Some(path) => {
            let file = Kubeconfig::read_from(path).with_context(|| path.display().to_string())?;
            let options = KubeConfigOptions::default();
            let config = Config::from_custom_kubeconfig(file, &options).await;
            config.with_context(|| path.display().to_string())
        }
    }
}

impl KubeDirectory {
    /// Prepares to watch: all namespaces, or those given. Nothing is asked of the API server yet.
    ///
    /// # Errors
    /// When there is no usable configuration: neither in a cluster nor in a kubeconfig.
    pub async fn connect(
        kubeconfig: Option<&Path>,
        namespaces: &[String],
        directory: Arc<Directory>,
        profiles: Arc<Profiles>,
        clock: Clock,
    ) -> anyhow::Result<Self> {
        let config = config(kubeconfig).await?;
        info!(server = %config.cluster_url, "directory: the Kubernetes API");
        let client = Client::try_from(config).context("the Kubernetes client")?;
        Ok(Self { client, scopes: scopes(namespaces), directory, profiles, clock })
    }

    /// Keeps the directory current until `shutdown`.
    pub async fn watch(self, shutdown: CancellationToken) {
        let (said, mut hears) = mpsc::channel(QUEUE);
        let (found, mut finds) = mpsc::channel(QUEUE);
        let (beat, mut beats) = mpsc::channel(1);
        let (renew, renewed) = latest::channel(0_u64);
        let (want, wanted) = latest::channel(Wanted::default());
        let mut tasks = JoinSet::new();
        for (number, scope) in self.scopes.iter().enumerate() {
            let follower = Follower {
                client: self.client.clone(),
                said: said.clone(),
                renew: renewed.clone(),
                profiles: self.profiles.clone(),
                clock: self.clock,
                shutdown: shutdown.clone(),
                is_optional: false,
            };
            if number == 0 {
                tasks.spawn(follower.clone().follow_slices(self.scopes.len()));
            }
            tasks.spawn(follower.follow(number, scope.clone()));
        }
        let client = self.client.clone();
        tasks.spawn(scale::keep_reading(client, wanted, found, shutdown.clone()));
        let namespace = self.scopes[0].namespace.clone();
        tasks.spawn(keep_asking(
            self.client.clone(),
            namespace,
            self.clock,
            beat,
            shutdown.clone(),
        ));
        let mut writer = Writer::new(self.scopes, self.directory, self.clock, (want, renew));
        loop {
            tokio::select! {
                () = shutdown.cancelled() => break,
                Some((number, said)) = hears.recv() => writer.hear(number, said),
                Some((target, scale)) = finds.recv() => writer.index.scaled(target, scale),
                Some(asked) = beats.recv() => writer.beat(asked),
                Some(ended) = tasks.join_next() => {
                    // A watch that panicked is not to be missed: the directory panics with it.
                    if let Err(error) = ended && error.is_panic() {
                        std::panic::resume_unwind(error.into_panic());
                    }
                }
                () = tokio::time::sleep_until(writer.publish_at), if writer.has_news() => {
                    writer.publish();
                }
            }
        }
        drop((hears, finds, beats));
        tasks.shutdown().await;
    }
}

fn scopes(namespaces: &[String]) -> Vec<Scope> {
    let namespaces: Vec<Option<Arc<str>>> = if namespaces.is_empty() {
        vec![None]
    } else {
        namespaces.iter().map(|name| Some(name.as_str().into())).collect()
    };
    let whats =
        [What::Scaled(ScaledKind::Object), What::Scaled(ScaledKind::Job), What::Pods].into_iter();
    whats
        .flat_map(|what| {
            namespaces.iter().map(move |namespace| Scope { what, namespace: namespace.clone() })
        })
        .collect()
}

/// Asks the API server over and over whether it is there; says when it was asked what it answered.
async fn keep_asking(
    client: Client,
    namespace: Option<Arc<str>>,
    clock: Clock,
    beat: mpsc::Sender<Timestamp>,
    shutdown: CancellationToken,
) {
    let resource = access::scaled(ScaledKind::Object);
    let api: Api<DynamicObject> = match namespace {
        None => Api::all_with(client, &resource),
        Some(only) => Api::namespaced_with(client, &only, &resource),
    };
    let one = ListParams::default().limit(1);
    let mut due = tokio::time::interval(BEAT);
    due.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    while shutdown.run_until_cancelled(due.tick()).await.is_some() {
        let asked = clock.now();
        let answer =
            shutdown.run_until_cancelled(timeout(BEAT_WITHIN, api.list_metadata(&one))).await;
        if let Some(Ok(Ok(_))) = answer
            && beat.send(asked).await.is_err()
        {
            return;
        }
    }
}

/// The one owner of the index.
struct Writer {
    index: Index,
    published: Published,
    /// Of the watches that must be relied on.
    lines: Vec<Line>,
    /// When the API server was last asked something that it answered.
    last_beat: Option<Timestamp>,
    directory: Arc<Directory>,
    clock: Clock,
    want: latest::Sender<Wanted>,
    renew: latest::Sender<u64>,
    publish_at: Instant,
    is_published: bool,
    /// Whether something that drivers publish changed since the last snapshot.
    has_published: bool,
}

impl Writer {
    fn new(
        scopes: Vec<Scope>,
        directory: Arc<Directory>,
        clock: Clock,
        (want, renew): (latest::Sender<Wanted>, latest::Sender<u64>),
    ) -> Self {
        Self {
            lines: vec![Line::Down; scopes.len()],
            index: Index::new(scopes),
            published: Published::default(),
            last_beat: None,
            directory,
            clock,
            want,
            renew,
            publish_at: Instant::now(),
            is_published: false,
            has_published: false,
        }
    }

    fn hear(&mut self, number: usize, said: Said) {
        match said {
            Said::Published(change) => {
                self.has_published |= self.published.apply(change, self.index.nodes_mut());
            }
            Said::Failed => self.set(number, Line::Down),
            Said::Retrying => self.set(number, Line::Retrying(self.clock.now())),
            Said::Action(action) => {
                if !matches!(action, Action::Begin) {
                    self.set(number, Line::Up);
                }
                self.index.apply(number, action);
            }
        }
    }

    fn set(&mut self, number: usize, line: Line) {
        if let Some(known) = self.lines.get_mut(number) {
            *known = line;
        }
    }

    /// The API server answered what it was asked at `asked`.
    fn beat(&mut self, asked: Timestamp) {
        let was_away = self.last_beat.is_some_and(|last| asked.since(last) > OUTAGE);
        self.last_beat = Some(asked);
        if was_away {
            warn!("the API server was away, everything is listed anew");
            self.lines.fill(Line::Down);
            self.renew.send_modify(|number| *number += 1);
            return;
        }
        for line in &mut self.lines {
            if let Line::Retrying(since) = line
                && *since + REOPENED <= asked
            {
                *line = Line::Up;
            }
        }
        let is_up = self.lines.iter().all(|line| matches!(line, Line::Up));
        if is_up && (0..self.lines.len()).all(|number| self.index.is_listed(number)) {
            self.index.confirm(asked);
            if let Some(snapshot) = self.directory.snapshot() {
                snapshot.confirm(asked);
            }
        }
    }

    fn has_news(&self) -> bool {
        self.index.is_dirty() || self.has_published || !self.is_published
    }

    fn publish(&mut self) {
        let begun = Instant::now();
        let targets = self.index.targets();
        self.want.send_if_modified(|wanted| {
            let is_new = **wanted != targets;
            if is_new {
                *wanted = Arc::new(targets);
            }
            is_new
        });
        let waits_for = if self.is_published { None } else { self.index.waits_for() };
        if let Some(what) = waits_for {
            self.directory.wait_for(what);
        } else {
            self.has_published = false;
            self.directory.replace(self.index.snapshot(self.clock.now()));
            if !self.is_published {
                info!("the directory is loaded");
            }
            self.is_published = true;
        }
        let took = begun.elapsed();
        self.publish_at = Instant::now() + SETTLE.max(took * 10);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(writer: &mut Writer, number: usize) {
        writer.hear(number, Said::Action(Action::Begin));
        writer.hear(number, Said::Action(Action::Complete));
    }

    #[test]
    fn it_is_confirmed_only_while_every_watch_can_be_relied_on() {
        let directory = Arc::new(Directory::default());
        let renew = latest::Sender::new(0);
        let renewed = renew.subscribe();
        let ends = (latest::Sender::new(Wanted::default()), renew);
        let mut writer = Writer::new(scopes(&[]), directory.clone(), Clock::start(), ends);
        let at = |seconds: u64| Timestamp::START + Duration::from_secs(seconds);
        let as_of = || directory.snapshot().map(|snapshot| snapshot.as_of());
        writer.publish();
        assert_eq!(directory.waits_for(), "scaledobjects, scaledjobs, pods not listed yet");
        (0..3).for_each(|number| listed(&mut writer, number));
        writer.publish();
        writer.beat(at(10));
        assert_eq!(as_of(), Some(at(10)));
        // One fails: what the API server answers confirms nothing.
        writer.hear(2, Said::Failed);
        writer.beat(at(13));
        assert_eq!(as_of(), Some(at(10)));
        // It is opened again (just now, by the clock) and has not failed since: it does.
        writer.hear(2, Said::Retrying);
        writer.beat(at(16));
        assert_eq!(as_of(), Some(at(16)));
        // A list that has begun is not the truth before it is complete.
        writer.hear(0, Said::Action(Action::Begin));
        writer.beat(at(19));
        assert_eq!(as_of(), Some(at(16)));
        writer.hear(0, Said::Action(Action::Complete));
        writer.beat(at(22));
        assert_eq!(as_of(), Some(at(22)));
        // After an outage everything is listed anew before anything is confirmed.
        writer.beat(at(60));
        assert_eq!((as_of(), *renewed.borrow()), (Some(at(22)), 1));
        writer.beat(at(63));
        assert_eq!(as_of(), Some(at(22)));
        (0..3).for_each(|number| listed(&mut writer, number));
        writer.beat(at(66));
        assert_eq!(as_of(), Some(at(66)));
    }
}
