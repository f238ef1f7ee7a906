//! Which page of which pod shows its inference engine: what the agent of the pod's node is told.
//!
//! Guarantees: pure; the same triggers in any order give the same target. Only pods of workloads
//! with a trigger on engine metrics have one, and only while they exist and have an address. A
//! target fits the wire: 1 to 8 pages, 1 to 32 selections.

/// Where engines publish, by engine and by what a pod says of itself.
mod page;

use std::collections::HashMap;
use std::sync::Arc;

use proto::brief::MAX_SELECTIONS;
use shared::brief::EngineTarget;
use shared::identity::ScaledObjectKey;

use crate::directory::{DeclaredTrigger, Pod, ScaledKind, Snapshot};
use crate::trigger::engine::{Engine, agreed};
use crate::trigger::profile::Profiles;
use crate::trigger::spec::{EngineEndpoint, Trigger, parse_anywhere};

/// What the triggers of one workload ask of its pods' engines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ask {
    /// Where triggers say that the page is; ordered, each once.
    endpoints: Vec<EngineEndpoint>,
    /// Selections of series in canonical form; ordered, each once.
    labels: Vec<Arc<str>>,
    /// The engine, where all triggers that name one name the same.
    engine: Option<Engine>,
}

/// What is asked of every workload's engines, for one snapshot of the directory.
#[derive(Clone, Debug, Default)]
pub struct Asks {
    by_object: HashMap<ScaledObjectKey, Declared>,
    /// Triggers that were asked about without being declared.
    asked: HashMap<ScaledObjectKey, Ask>,
    /// Another number where something else is asked than before.
    version: u64,
}

impl PartialEq for Asks {
    /// Whether they ask the same.
    fn eq(&self, other: &Self) -> bool {
        self.by_object == other.by_object && self.asked == other.asked
    }
}

/// What the triggers of one ScaledObject ask, for as long as they stay the same.
#[derive(Clone, Debug)]
struct Declared {
    triggers: Arc<[DeclaredTrigger]>,
    ask: Option<Ask>,
}

impl PartialEq for Declared {
    /// Whether they ask the same.
    fn eq(&self, other: &Self) -> bool {
        self.ask == other.ask
    }
}

impl Ask {
    /// What `triggers` ask together; `None` if none of them reads engines.
    pub fn of<'a>(triggers: impl IntoIterator<Item = &'a Trigger>) -> Option<Self> {
        let mut ask = Self::default();
        let mut engines = Vec::new();
        for trigger in triggers.into_iter().filter(|trigger| trigger.reads_engines()) {
            ask.endpoints.extend(trigger.engine_endpoint.clone());
            ask.labels.push(trigger.engine_labels.clone());
            engines.extend(trigger.engine);
        }
        ask.engine = agreed(engines.into_iter());
        (!ask.labels.is_empty()).then(|| ask.ordered())
    }

    fn ordered(mut self) -> Self {
        self.endpoints.sort();
        self.endpoints.dedup();
        self.labels.sort();
        self.labels.dedup();
        self
    }

    /// What both ask; they scale the same pods.
    fn and(mut self, other: &Self) -> Self {
        self.endpoints.extend(other.endpoints.iter().cloned());
        self.labels.extend(other.labels.iter().cloned());
        let engines = [self.engine, other.engine];
        self.engine = agreed(engines.into_iter().flatten());
        self.ordered()
    }

    /// Where and how the engine of `pod` is read; `None` if there is nowhere to look.
    pub fn target(&self, pod: &Pod) -> Option<EngineTarget> {
        // Of a group only the pods that are selected serve; the others work for them.
        if !pod.exists() || pod.beside || pod.ip.is_none() {
            return None;
        }
        let pages = page::of(pod, &self.endpoints, self.engine);
        let labels = self.labels.iter().take(MAX_SELECTIONS).cloned().collect();
        let engine = self.engine.map(|engine| engine.word().into());
        (!pages.is_empty()).then_some(EngineTarget { pages, labels, engine })
    }
}

impl Asks {
    /// What the triggers that `snapshot` declares ask, and those `asked` about beside them.
    /// `before` spares reading again what has not changed.
    pub fn new(
        snapshot: &Snapshot,
        profiles: &Profiles,
        asked: impl IntoIterator<Item = (ScaledObjectKey, Arc<Trigger>)>,
        before: &Self,
    ) -> Self {
        let objects = snapshot.objects().iter();
        let by_object = objects.filter(|object| object.kind == ScaledKind::Object).map(|object| {
            let known = before
                .by_object
                .get(&object.key)
                .filter(|known| Arc::ptr_eq(&known.triggers, &object.triggers));
            let declared = known.cloned().unwrap_or_else(|| Declared {
                triggers: object.triggers.clone(),
                ask: declared(&object.triggers, profiles),
            });
            (object.key.clone(), declared)
        });
        let by_object = by_object.collect();
        let mut triggers: HashMap<ScaledObjectKey, Vec<Arc<Trigger>>> = HashMap::new();
        for (key, trigger) in asked {
            triggers.entry(key).or_default().push(trigger);
        }
        let asked = triggers
            .into_iter()
            .filter_map(|(key, all)| Some((key, Ask::of(all.iter().map(Arc::as_ref))?)));
        let mut asks = Self { by_object, asked: asked.collect(), version: before.version };
        asks.version += u64::from(asks != *before);
        asks
    }

    /// Equal numbers of one process ask the same.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Where and how the engine of `pod` is read, if something that scales it reads engines.
    pub fn target(&self, snapshot: &Snapshot, pod: &Pod) -> Option<EngineTarget> {
        let mut asks = self.of(snapshot, pod).cloned();
        let first = asks.next()?;
        asks.fold(first, |all, ask| all.and(&ask)).target(pod)
    }

    /// Whether something that scales `pod` reads its engine, whether or not it can be read.
    pub fn is_about(&self, snapshot: &Snapshot, pod: &Pod) -> bool {
        self.of(snapshot, pod).next().is_some()
    }

    fn of<'a>(&'a self, snapshot: &'a Snapshot, pod: &Pod) -> impl Iterator<Item = &'a Ask> {
        let scaled = snapshot.scaled(&pod.key).into_iter().flat_map(|scaled| &scaled.by);
        scaled.flat_map(|object| {
            let declared = self.by_object.get(object).and_then(|declared| declared.ask.as_ref());
            declared.into_iter().chain(self.asked.get(object))
        })
    }
}

fn declared(triggers: &[DeclaredTrigger], profiles: &Profiles) -> Option<Ask> {
    // What cannot be read is refused wherever it is asked about.
    let triggers =
        triggers.iter().filter_map(|trigger| parse_anywhere(&trigger.metadata, profiles).ok());
    Ask::of(&triggers.collect::<Vec<_>>())
}

/// Why the engine of `pod` will never be read for `trigger`, where that is so.
pub fn why_never(pod: &Pod, trigger: &Trigger) -> Option<&'static str> {
    let endpoints: Vec<_> = trigger.engine_endpoint.iter().cloned().collect();
    if pod.ip.is_some() && page::of(pod, &endpoints, trigger.engine).is_empty() {
        return Some(
            "its annotation prometheus.io/scrape says false, and no endpoint key says otherwise",
        );
    }
    None
}
