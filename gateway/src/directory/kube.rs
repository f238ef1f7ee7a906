//! The directory from the Kubernetes API: three watches, and the `/scale` of every target.
//!
//! Guarantees: one task owns what is known and replaces the snapshot at most ten times a second;
//! no snapshot exists before everything has been read once. While the API server is away the last
//! state stays, is not confirmed and so grows old; after an outage it is listed anew. Nothing is
//! ever written.

/// Everything that is asked of the API server.
pub mod access;
/// What the watches have said so far, and the snapshot made of it.
pub mod index;
/// ScaledObjects and ScaledJobs as the API server gives them.
pub mod object;
/// Pods as the API server gives them.
pub mod pod;
/// The `/scale` subresource of every target.
pub mod scale;
/// Label selectors as text.
pub mod selector;
/// One watch.
pub mod watch;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ::kube::api::ListParams;
use ::kube::config::{KubeConfigOptions, Kubeconfig};
use ::kube::core::DynamicObject;
use ::kube::{Api, Client, Config};
use anyhow::Context as _;
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
        let config = match kubeconfig {
            None => Config::infer().await.context("neither in a cluster nor with a kubeconfig")?,
            Some(path) => {
                let file =
                    Kubeconfig::read_from(path).with_context(|| path.display().to_string())?;
                let options = KubeConfigOptions::default();
                let config = Config::from_custom_kubeconfig(file, &options).await;
                config.with_context(|| path.display().to_string())?
            }
        };
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
            };
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
        let mut writer = Writer::new(self, want, renew);
        loop {
            tokio::select! {
                () = shutdown.cancelled() => break,
                Some((number, said)) = hears.recv() => writer.hear(number, said),
                Some((target, scale)) = finds.recv() => writer.index.scaled(target, scale),
                Some(asked) = beats.recv() => writer.beat(asked),
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
        let answer = shutdown.run_until_cancelled(timeout(BEAT_WITHIN, api.list(&one))).await;
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
    lines: Vec<Line>,
    /// When the API server was last asked something that it answered.
    last_beat: Option<Timestamp>,
    directory: Arc<Directory>,
    clock: Clock,
    want: latest::Sender<Wanted>,
    renew: latest::Sender<u64>,
    publish_at: Instant,
    is_published: bool,
}

impl Writer {
    fn new(of: KubeDirectory, want: latest::Sender<Wanted>, renew: latest::Sender<u64>) -> Self {
        Self {
            lines: vec![Line::Down; of.scopes.len()],
            index: Index::new(of.scopes),
            last_beat: None,
            directory: of.directory,
            clock: of.clock,
            want,
            renew,
            publish_at: Instant::now(),
            is_published: false,
        }
    }

    fn hear(&mut self, number: usize, said: Said) {
        match said {
            Said::Failed => self.lines[number] = Line::Down,
            Said::Retrying => self.lines[number] = Line::Retrying(self.clock.now()),
            Said::Action(action) => {
                if !matches!(action, Action::Begin) {
                    self.lines[number] = Line::Up;
                }
                self.index.apply(number, action);
            }
        }
    }

    /// The API server answered what it was asked at `asked`.
    fn beat(&mut self, asked: Timestamp) {
        let was_away = self.last_beat.is_some_and(|last| asked.since(last) > OUTAGE);
        self.last_beat = Some(asked);
        if was_away && self.is_published {
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
        self.index.is_dirty() || !self.is_published
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
        if self.is_published || self.index.is_complete() {
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
