//! One watch: list, then follow, for ever; what it sees becomes actions on the index.
//!
//! Guarantees: whatever breaks, it is tried again with a jittered, bounded delay; a resource
//! version that is too old leads to a new list; a kind that the cluster does not have is waited
//! for and said once.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use kube::core::DynamicObject;
use kube::runtime::watcher::{self, Config, Event, watcher};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use shared::identity::ScaledObjectKey;
use shared::process::Clock;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::index::{Action, Item, Key, Scope, What};
use super::intern::Interner;
use super::object;
use super::pod::{self, Moment, PodObject};
use super::slice;
use super::{Said, access};
use crate::directory::ScaledKind;
use crate::trigger::profile::Profiles;

/// The first delay after a failure; it doubles up to the last.
const FIRST_DELAY: Duration = Duration::from_millis(250);
const LAST_DELAY: Duration = Duration::from_secs(10);
/// Failures further apart than this have nothing to do with each other.
const FORGIVEN: Duration = Duration::from_secs(30);
/// How often to look whether the cluster serves a kind by now that it did not.
const LOOK_AGAIN: Duration = Duration::from_secs(300);

/// What every watch needs.
#[derive(Clone)]
pub struct Follower {
    /// The API server.
    pub client: Client,
    /// Where what is said goes to.
    pub said: mpsc::Sender<(usize, Said)>,
    /// Changes when everything must be listed again.
    pub renew: watch::Receiver<u64>,
    /// What triggers are read with.
    pub profiles: Arc<Profiles>,
    /// The clock.
    pub clock: Clock,
    /// When to stop.
    pub shutdown: CancellationToken,
    /// Whether to give up when the cluster does not have the kind (any more).
    pub is_optional: bool,
}

impl Follower {
    /// Follows `scope` as watch number `number`, until shutdown.
    pub async fn follow(self, number: usize, scope: Scope) {
        let shutdown = self.shutdown.clone();
        let followed = async move {
            match scope.what {
                What::Pods => {
                    let api = match &scope.namespace {
                        None => Api::<PodObject>::all(self.client.clone()),
                        Some(only) => Api::namespaced(self.client.clone(), only),
                    };
                    let clock = self.clock;
                    let mut texts = Interner::default();
                    let action = |event| pod_action(event, clock, &mut texts).map(Said::Action);
                    self.run(number, "pods", (api, Config::default()), action).await;
                }
                What::Scaled(kind) => {
                    let resource = access::scaled(kind);
                    let client = self.client.clone();
                    let api = match &scope.namespace {
                        None => Api::<DynamicObject>::all_with(client, &resource),
                        Some(only) => Api::namespaced_with(client, only, &resource),
                    };
                    let mut reader = ScaledReader::new(kind, self.profiles.clone());
                    let name = resource.plural.as_str();
                    let action = |event| reader.action(event).map(Said::Action);
                    self.run(number, name, (api, Config::default()), action).await;
                }
            }
        };
        shutdown.run_until_cancelled(followed).await;
    }

    /// Follows the ResourceSlices as watch number `number`, wherever the cluster serves them, until
    /// shutdown. Nothing waits for them.
    pub async fn follow_slices(self, number: usize) {
        let shutdown = self.shutdown.clone();
        let followed = async move {
            let mut is_said = false;
            let mut texts = Interner::default();
            let watched = Config::default().fields(&format!("spec.driver={}", slice::DRIVERS[0]));
            loop {
                let served = match access::slices(&self.client).await {
                    Ok(served) => served,
                    Err(error) => {
                        debug!(error = chain(&error), "what is served cannot be read");
                        tokio::time::sleep(LAST_DELAY).await;
                        continue;
                    }
                };
                if let Some(resource) = served {
                    let api = Api::<DynamicObject>::all_with(self.client.clone(), &resource);
                    let change = |event| slice_change(event, &mut texts).map(Said::Published);
                    let follower = Self { is_optional: true, ..self.clone() };
                    let name = resource.plural.as_str();
                    follower.run(number, name, (api, watched.clone()), change).await;
                } else if !std::mem::replace(&mut is_said, true) {
                    debug!("the cluster serves no ResourceSlices");
                }
                let absent = Said::Published(slice::Change::Absent);
                if self.said.send((number, absent)).await.is_err() {
                    return;
                }
                tokio::time::sleep(LOOK_AGAIN).await;
            }
        };
        shutdown.run_until_cancelled(followed).await;
    }

    async fn run<K>(
        mut self,
        number: usize,
        name: &str,
        (api, config): (Api<K>, Config),
        mut said: impl FnMut(Event<K>) -> Option<Said>,
    ) where
        K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    {
        let mut trouble = Trouble::default();
        loop {
            let mut events = std::pin::pin!(watcher(api.clone(), config.clone()));
            let is_over = loop {
                let event = tokio::select! {
                    event = events.next() => event,
                    renewed = self.renew.changed() => break renewed.is_err(),
                };
                let failure = match event {
                    None => break false,
                    Some(Ok(event)) => {
                        // A list that begins has not been answered yet.
                        if !matches!(event, Event::Init) {
                            trouble.is_over(name);
                        }
                        let Some(said) = said(event) else { continue };
                        if self.said.send((number, said)).await.is_err() {
                            return;
                        }
                        continue;
                    }
                    Some(Err(failure)) => failure,
                };
                if self.said.send((number, Said::Failed)).await.is_err() {
                    return;
                }
                if self.is_optional && code_of(&failure) == Some(404) {
                    return;
                }
                let must_list = trouble.begins(name, &failure);
                tokio::time::sleep(trouble.delay()).await;
                if self.said.send((number, Said::Retrying)).await.is_err() {
                    return;
                }
                if must_list {
                    break false;
                }
            };
            if is_over {
                return;
            }
        }
    }
}

/// What has gone wrong in a row.
#[derive(Default)]
struct Trouble {
    failures: u32,
    said: Option<String>,
    last: Option<Instant>,
}

impl Trouble {
    fn is_over(&mut self, name: &str) {
        if self.failures > 0 {
            info!(watch = name, failures = self.failures, "the watch works again");
        }
        *self = Self::default();
    }

    /// Says what is new about `failure`; true if only a new list can help.
    fn begins(&mut self, name: &str, failure: &watcher::Error) -> bool {
        let now = Instant::now();
        if self.last.replace(now).is_some_and(|last| now - last > FORGIVEN) {
            self.failures = 0;
        }
        self.failures = self.failures.saturating_add(1);
        let code = code_of(failure);
        let said = match code {
            Some(404) => format!("{name} are not installed in the cluster, waiting for them"),
            // The API server ends watches now and then; that is no fault.
            Some(410) => return true,
            Some(403) => format!("not allowed to list and watch {name}: {}", chain(failure)),
            _ => chain(failure),
        };
        if self.said.as_ref() != Some(&said) {
            warn!(watch = name, error = %said, "the watch failed, the last known state stays");
            self.said = Some(said);
        }
        false
    }

    fn delay(&self) -> Duration {
        let doubled = FIRST_DELAY * 2_u32.saturating_pow(self.failures.saturating_sub(1).min(16));
        doubled.min(LAST_DELAY).mul_f64(0.5 + 0.5 * fastrand::f64())
    }
}

/// An error with what is behind it, each said once.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let said = source.to_string();
        if !text.contains(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        next = source.source();
    }
    text
}

fn code_of(failure: &watcher::Error) -> Option<u16> {
    use watcher::Error;
    match failure {
        Error::InitialListFailed(kube::Error::Api(status))
        | Error::WatchStartFailed(kube::Error::Api(status))
        | Error::WatchFailed(kube::Error::Api(status))
        | Error::WatchError(status) => Some(status.code),
        _ => None,
    }
}

fn pod_action(event: Event<PodObject>, clock: Clock, texts: &mut Interner) -> Option<Action> {
    match event {
        Event::Init => Some(Action::Begin),
        Event::InitDone => Some(Action::Complete),
        Event::Delete(object) => Some(Action::Delete(Key::Pod(pod::key(&object, texts)?))),
        Event::Apply(object) | Event::InitApply(object) => {
            let now = clock.now();
            let at = Moment { now, wall: clock.wall(now) };
            let pod = pod::labelled(pod::key(&object, texts)?, object, at, texts);
            Some(Action::Apply(Item::Pod(Box::new(pod))))
        }
    }
}

fn slice_change(event: Event<DynamicObject>, texts: &mut Interner) -> Option<slice::Change> {
    match event {
        Event::Init => Some(slice::Change::Begin),
        Event::InitDone => Some(slice::Change::Complete),
        Event::Delete(object) => Some(slice::Change::Delete(object.metadata.name?.into())),
        Event::Apply(object) | Event::InitApply(object) => {
            let slice = slice::slice(&object, texts).map(Box::new);
            Some(slice::Change::Apply(object.metadata.name?.into(), slice))
        }
    }
}

/// Reads ScaledObjects or ScaledJobs, and says once why one is left out.
struct ScaledReader {
    kind: ScaledKind,
    profiles: Arc<Profiles>,
    left_out: HashMap<ScaledObjectKey, String>,
}

impl ScaledReader {
    fn new(kind: ScaledKind, profiles: Arc<Profiles>) -> Self {
        Self { kind, profiles, left_out: HashMap::new() }
    }

    fn action(&mut self, event: Event<DynamicObject>) -> Option<Action> {
        match event {
            Event::Init => Some(Action::Begin),
            Event::InitDone => Some(Action::Complete),
            Event::Delete(object) => {
                let key = object::key(&object)?;
                self.left_out.remove(&key);
                Some(Action::Delete(Key::Scaled(self.kind, key)))
            }
            Event::Apply(object) | Event::InitApply(object) => {
                let key = object::key(&object)?;
                match object::declared(self.kind, key.clone(), &object) {
                    Ok(Some(declared)) => {
                        self.left_out.remove(&key);
                        let look_back = declared.object.look_back(&self.profiles);
                        Some(Action::Apply(Item::Scaled(Box::new(declared), look_back)))
                    }
                    Ok(None) => Some(Action::Delete(Key::Scaled(self.kind, key))),
                    Err(why) => {
                        if self.left_out.get(&key) != Some(&why) {
                            warn!(object = %key, %why, "left out");
                            self.left_out.insert(key.clone(), why);
                        }
                        Some(Action::Delete(Key::Scaled(self.kind, key)))
                    }
                }
            }
        }
    }
}
