//! What was decided lately, trigger by trigger, and why it changed.
//!
//! Guarantees: fed by one loop that leaves KEDA's calls their room, never by the calls themselves;
//! at most `MAX_TRIGGERS` triggers are remembered, each with so many changes and samples; how many
//! found no room is counted, and one that is gone is forgotten. Nothing is decided by what is remembered here.

/// One look at one trigger.
pub mod look;
/// Looks in order → changes and an evenly spaced history.
pub mod record;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use shared::identity::ScaledObjectKey;
use shared::time::Timestamp;
use tokio_util::sync::CancellationToken;
use tracing::info;

use self::look::Look;
use self::record::{Entry, Record};
use crate::answer::{Answers, Question};
use crate::directory::ScaledObject;
use crate::explain::metadata_of;
use crate::fleet::free;

/// Triggers remembered; those of further ScaledObjects, by name, are not.
pub const MAX_TRIGGERS: usize = 2_000;
/// Every trigger is looked at this often, or as often as the share of time allows.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Rounds are at least this far apart where the directory keeps changing.
const APART: Duration = Duration::from_millis(250);
/// Looking takes at most one part in so many of one core's time.
const SPARED: u32 = 10;
/// Lines of the log per round.
const MAX_TOLD: usize = 20;

/// What is remembered of every trigger.
#[derive(Debug, Default)]
pub struct Timelines {
    records: Mutex<BTreeMap<TriggerKey, Record>>,
    activations: Family<OfTrigger, Counter>,
    changes: Family<OfTrigger, Counter>,
    kept: Gauge,
    left_out: Gauge,
}

/// One trigger: its place among those of its ScaledObject, and its name for KEDA.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TriggerKey {
    /// The ScaledObject.
    pub object: ScaledObjectKey,
    /// Its place.
    pub trigger: u32,
    /// Its name for KEDA; empty where the metadata leave it open.
    pub metric: Arc<str>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfTrigger {
    namespace: String,
    scaledobject: String,
    trigger: u32,
    metric: String,
}

impl From<&TriggerKey> for OfTrigger {
    fn from(key: &TriggerKey) -> Self {
        Self {
            namespace: key.object.namespace.to_string(),
            scaledobject: key.object.name.to_string(),
            trigger: key.trigger,
            metric: key.metric.to_string(),
        }
    }
}

#[cfg(test)]
impl reference::Specimens for Timelines {
    fn specimens(&self) {
        self.activations.specimens();
        self.changes.specimens();
    }
}

impl Timelines {
    /// Registers the metrics.
    pub fn register(&self, registry: &mut Registry) {
        let help = "Edges from inactive to active, as seen by this replica";
        registry.register("trigger_activations", help, self.activations.clone());
        let help = "Changes of the decision noted in the timeline";
        registry.register("trigger_changes", help, self.changes.clone());
        let help = format!("Triggers whose timeline is kept; {MAX_TRIGGERS} at most");
        registry.register("timelines", help, self.kept.clone());
        let help = "Triggers that there is no room for: neither timeline nor dashboard has them";
        registry.register("timelines_left_out", help, self.left_out.clone());
    }

    /// Whether a look at a trigger would be remembered.
    fn has_room(&self, key: &TriggerKey) -> bool {
        let records = self.records.lock();
        records.len() < MAX_TRIGGERS || records.contains_key(key)
    }

    /// Takes one look at a trigger, and returns what is new.
    pub fn note(&self, key: &TriggerKey, look: Look, now: Timestamp) -> Option<Entry> {
        let mut records = self.records.lock();
        if !records.contains_key(key) && records.len() >= MAX_TRIGGERS {
            return None;
        }
        let record = records.entry(key.clone()).or_default();
        let activations = record.activations;
        let entry = record.note(look, now).cloned();
        let label = key.into();
        self.activations.get_or_create(&label).inc_by(record.activations - activations);
        self.changes.get_or_create(&label).inc_by(u64::from(entry.is_some()));
        entry
    }

    /// Forgets every trigger that is not among `known`.
    pub fn keep_only(&self, known: &BTreeSet<TriggerKey>) {
        let gone = |key: &TriggerKey, _: &mut Record| !known.contains(key);
        for (key, _) in self.records.lock().extract_if(.., gone) {
            self.activations.remove(&(&key).into());
            self.changes.remove(&(&key).into());
        }
        let count = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        let kept = self.records.lock().len();
        self.kept.set(count(kept));
        self.left_out.set(count(known.len().saturating_sub(kept)));
    }

    /// Triggers that were known at the last round and had no room.
    pub fn left_out(&self) -> u64 {
        u64::try_from(self.left_out.get()).unwrap_or_default()
    }

    /// Shows every record to `show`, in order of namespace, name and place.
    pub fn each(&self, mut show: impl FnMut(&TriggerKey, &Record)) {
        self.records.lock().iter().for_each(|(key, record)| show(key, record));
    }

    /// Looks at every trigger, until shutdown.
    pub async fn keep(self: Arc<Self>, answers: Arc<Answers>, shutdown: CancellationToken) {
        let clock = answers.clock();
        let mut directory = answers.directory().changes();
        loop {
            directory.mark_unchanged();
            let begun = clock.now();
            self.round(&answers).await;
            let rest = APART.max(clock.now().since(begun) * SPARED);
            let next = async {
                tokio::time::sleep(rest).await;
                tokio::select! {
                    () = tokio::time::sleep(LOOK_EVERY.saturating_sub(rest)) => {}
                    Ok(()) = directory.changed() => {}
                }
            };
            if shutdown.run_until_cancelled(next).await.is_none() {
                return;
            }
        }
    }

    /// One look at every trigger there is; others get their turn in between.
    pub async fn round(&self, answers: &Answers) {
        let Some(snapshot) = answers.directory().snapshot() else { return };
        let gpus_free = free::by_model(answers.fleet(), answers.clock().now()).values().sum();
        let (mut known, mut told) = (BTreeSet::new(), 0);
        for object in snapshot.objects() {
            for (trigger, metadata) in (0..).zip(metadata_of(answers, object)) {
                let question = question(object, &metadata);
                let spec = answers.spec_of(question).ok();
                let key = TriggerKey {
                    object: object.key.clone(),
                    trigger,
                    metric: spec.as_ref().map_or_else(|| "".into(), |spec| spec.name.clone()),
                };
                if self.has_room(&key) {
                    let assessed = answers.assess(question, answers.clock().now());
                    let target = spec.map(|spec| spec.target);
                    let look = Look::new(answers, &assessed, target, gpus_free);
                    if let Some(entry) = self.note(&key, look, answers.clock().now()) {
                        told += usize::from(told < MAX_TOLD && tell(&key, &entry));
                    }
                }
                known.insert(key);
                tokio::task::yield_now().await;
            }
        }
        self.keep_only(&known);
    }
}

fn question<'a>(
    object: &'a ScaledObject,
    metadata: &'a std::collections::HashMap<String, String>,
) -> Question<'a> {
    Question { namespace: &object.key.namespace, name: &object.key.name, metadata }
}

/// Tells the log of what moves replicas, and says whether it did.
fn tell(key: &TriggerKey, entry: &Entry) -> bool {
    let Entry { changed, look, .. } = entry;
    if !changed.iter().any(|fact| ["active", "desired", "ordered", "status"].contains(fact)) {
        return false;
    }
    info!(
        target: "decision",
        scaled_object = %key.object,
        trigger = key.trigger,
        metric = %key.metric,
        changed = changed.join(","),
        status = look.status,
        value = look.value,
        target = look.target,
        active = look.active,
        desired = look.desired,
        replicas = look.replicas,
        ready = look.ready,
        unscheduled = look.unscheduled,
        requests_waiting = look.engines.waiting,
        gpus_free = look.gpus_free,
        reason = %look.reason,
        "decision changed"
    );
    true
}
