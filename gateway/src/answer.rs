//! One question about one trigger → one answer: the directory for pods, the fleet for readings,
//! the trigger to decide.
//!
//! Guarantees: every one of KEDA's calls and every explanation comes through
//! `Answers::assess`, so they cannot disagree; answering reads memory only and never waits.

/// What is asked of the pods' inference engines, declared or not.
mod asks;
/// Triggers asked about before, known again by their metadata.
pub mod known;
/// The workload of a trigger as it is now, gathered from directory and fleet.
pub mod observe;
/// The workload's past, gathered only when a window or the activity needs it.
pub mod past;
/// A workload's pods, and where each was found.
pub mod roster;
/// Declared triggers whose demand is looked at before anybody asks.
mod standing;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dashmap::DashMap;
use foldhash::fast::RandomState;
use shared::identity::{NodeName, ScaledObjectKey};
use shared::process::Clock;
use shared::time::Timestamp;

use crate::demand::Demands;
use crate::demand::place::Rules;
use crate::directory::{Absent, Directory, ScaledKind, ScaledObject, Snapshot};
use crate::engine::Asks;
use crate::fleet::Fleet;
use crate::ledger::books::Books;
use crate::ledger::tariff::Tariff;
use crate::trigger::observed::{DemandReading, Observed, TargetType};
use crate::trigger::profile::Profiles;
use crate::trigger::spec::{self, MetricSpec, Trigger};
use crate::trigger::verdict::{Outcome, Verdict};
use crate::trigger::{self, value};
use known::{Known, Subject};
use past::WorkloadPast;
use roster::Roster;
use tokio::sync::watch;

/// A replica answers for workloads it does not fully cover after this long.
const WARM_AFTER: Duration = Duration::from_secs(15);
/// Answers questions about triggers.
pub struct Answers {
    books: Arc<Books>,
    directory: Arc<Directory>,
    fleet: Arc<Fleet>,
    profiles: Arc<Profiles>,
    demands: Arc<Demands>,
    clock: Clock,
    /// A directory older than this is not answered from.
    max_age: Duration,
    warm: AtomicBool,
    known: DashMap<ScaledObjectKey, Known, RandomState>,
    /// Changes with the undeclared triggers on engine metrics among those asked about.
    engines_asked: watch::Sender<u64>,
    /// What is asked of engines, as of the last look.
    asks: watch::Sender<Arc<Asks>>,
}

/// What a call is about.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// Namespace of the ScaledObject.
    pub namespace: &'a str,
    /// Its name.
    pub name: &'a str,
    /// Metadata of one of its triggers.
    pub metadata: &'a HashMap<String, String>,
}

/// Why there is no answer. The kinds are those of the state table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The metadata is wrong.
    InvalidArgument(String),
    /// There is no such ScaledObject, or no such target.
    NotFound(String),
    /// Not known now.
    Unavailable(String),
    /// Can never be known with this hardware or setting.
    FailedPrecondition(String),
}

/// Everything that was seen and decided about one trigger.
pub struct Assessment {
    /// The ScaledObject.
    pub object: Arc<ScaledObject>,
    /// The trigger.
    pub trigger: Arc<Trigger>,
    /// What was seen.
    pub observed: Observed,
    /// What was decided.
    pub verdict: Verdict,
    /// The moment.
    pub now: Timestamp,
    /// The pods it was seen in.
    roster: Option<Arc<Roster>>,
}

impl Refusal {
    /// The gRPC code's name.
    pub fn code(&self) -> &'static str {
        match self {
            Self::InvalidArgument(_) => "INVALID_ARGUMENT",
            Self::NotFound(_) => "NOT_FOUND",
            Self::Unavailable(_) => "UNAVAILABLE",
            Self::FailedPrecondition(_) => "FAILED_PRECONDITION",
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InvalidArgument(why)
            | Self::NotFound(why)
            | Self::Unavailable(why)
            | Self::FailedPrecondition(why) => f.write_str(why),
        }
    }
}

impl Assessment {
    /// The value for the HPA.
    ///
    /// # Errors
    /// When there is none; the reason names the trigger.
    pub fn value(&self) -> Result<f64, Refusal> {
        let why = || format!("{} {}: {}", self.object.key, self.trigger.name, self.verdict.reason);
        match self.verdict.outcome {
            Outcome::Value(value) => Ok(value),
            Outcome::Unavailable => Err(Refusal::Unavailable(why())),
            Outcome::FailedPrecondition => Err(Refusal::FailedPrecondition(why())),
        }
    }
}

impl Assessment {
    /// Whether nothing is there and this trigger cannot see that something is wanted.
    pub fn is_deaf(&self) -> bool {
        self.deaf_because().is_some()
    }

    /// The same, with why it cannot.
    pub fn deaf_because(&self) -> Option<&str> {
        let observed = &self.observed;
        let is_asleep = self.object.kind == ScaledKind::Job
            || (observed.replicas == 0 && observed.pods.is_empty());
        match &observed.demand {
            DemandReading::Value(_) => None,
            _ if !is_asleep => None,
            DemandReading::Unknown(why) => Some(why),
            DemandReading::None => Some("no demandEndpoint"),
        }
    }
}

impl Answers {
    /// Answers from `directory` and `fleet`.
    pub fn new(
        directory: Arc<Directory>,
        fleet: Arc<Fleet>,
        profiles: Arc<Profiles>,
        clock: Clock,
    ) -> Self {
        let (of_fleet, of_directory) = (fleet.clone(), directory.clone());
        Self {
            books: Books::new(Tariff::default(), of_fleet, of_directory, clock).into(),
            directory,
            fleet,
            profiles,
            demands: Arc::new(Demands::new(Rules::default(), clock)),
            clock,
            max_age: Duration::MAX,
            warm: AtomicBool::new(false),
            known: DashMap::default(),
            engines_asked: watch::Sender::new(0),
            asks: watch::Sender::default(),
        }
    }

    /// Does not answer from a directory that has not been known to be true for `max_age`.
    #[must_use]
    pub fn with_max_age(self, max_age: Duration) -> Self {
        Self { max_age, ..self }
    }

    /// Shows `books`, which somebody else keeps.
    #[must_use]
    pub fn with_books(self, books: Arc<Books>) -> Self {
        Self { books, ..self }
    }

    /// The ledger of this process.
    pub fn books(&self) -> &Arc<Books> {
        &self.books
    }

    /// Reads demand from `demands`; without it demand is never known.
    #[must_use]
    pub fn with_demands(self, demands: Arc<Demands>) -> Self {
        Self { demands, ..self }
    }

    /// Name and target of a trigger: from its metadata alone, with or without any data.
    ///
    /// # Errors
    /// When name or target cannot be derived.
    pub fn metric_spec(&self, metadata: &HashMap<String, String>) -> Result<MetricSpec, Refusal> {
        spec::metric_spec(metadata, &self.profiles)
            .map_err(|error| Refusal::InvalidArgument(error.to_string()))
    }

    /// The trigger that `metadata` describes.
    ///
    /// # Errors
    /// When it describes none.
    pub fn trigger(&self, metadata: &HashMap<String, String>) -> Result<Trigger, Refusal> {
        spec::parse_admitting(metadata, &self.profiles, &self.demands.rules().allowed)
            .map_err(|error| Refusal::InvalidArgument(error.to_string()))
    }

    /// The trigger that `question` is about, if it may be asked in that namespace.
    ///
    /// # Errors
    /// As [`Answers::trigger`], and when its demand endpoint is not for this namespace.
    pub fn trigger_of(&self, question: Question<'_>) -> Result<Trigger, Refusal> {
        let trigger = self.trigger(question.metadata)?;
        if let Some(demand) = &trigger.demand {
            let place = self.demands.rules().place(&demand.endpoint, question.namespace);
            place.map_err(Refusal::InvalidArgument)?;
        }
        Ok(trigger)
    }

    /// The value for the HPA.
    ///
    /// # Errors
    /// As the state table says.
    pub fn value(&self, question: Question<'_>) -> Result<f64, Refusal> {
        let now = self.clock.now();
        self.value_of(question, self.subject(question, now), now)
    }

    /// The same, if `check` has nothing against the name of the trigger.
    ///
    /// # Errors
    /// When the name cannot be derived, what `check` says of it, and as [`Answers::value`].
    pub fn value_named(
        &self,
        question: Question<'_>,
        check: impl FnOnce(&str) -> Result<(), Refusal>,
    ) -> Result<f64, Refusal> {
        let now = self.clock.now();
        let subject = self.subject(question, now);
        match &subject.trigger {
            Ok(trigger) => check(&trigger.name)?,
            // There may be a name even so.
            Err(_) => check(&self.metric_spec(question.metadata)?.name)?,
        }
        self.value_of(question, subject, now)
    }

    fn value_of(
        &self,
        question: Question<'_>,
        subject: Subject,
        now: Timestamp,
    ) -> Result<f64, Refusal> {
        let assessment = self.assess_subject(question, subject, now)?;
        self.remember(question, &assessment, None);
        assessment.value()
    }

    /// Whether the workload is active.
    ///
    /// # Errors
    /// The same as [`Answers::value`] at the same moment.
    pub fn is_active(&self, question: Question<'_>) -> Result<bool, Refusal> {
        let assessment = self.assess(question, self.clock.now())?;
        let active = assessment.value().map(|_| self.activity(&assessment));
        self.remember(question, &assessment, active.as_ref().ok().copied());
        active
    }

    /// Whether an assessment that has a value is one of an active workload.
    pub fn activity(&self, assessment: &Assessment) -> bool {
        let Assessment { object, trigger, observed, verdict, now, .. } = assessment;
        let past = WorkloadPast::new(&self.fleet, object, trigger);
        trigger::is_active(trigger, observed, verdict, &past, *now)
    }

    /// Sees and decides.
    ///
    /// # Errors
    /// When the question cannot be decided about at all: broken metadata, nothing by that name, or
    /// no directory yet.
    pub fn assess(&self, question: Question<'_>, now: Timestamp) -> Result<Assessment, Refusal> {
        self.assess_subject(question, self.subject(question, now), now)
    }

    fn assess_subject(
        &self,
        question: Question<'_>,
        Subject { trigger, object, roster }: Subject,
        now: Timestamp,
    ) -> Result<Assessment, Refusal> {
        let (trigger, object) = (trigger?, object?);
        let target_type = object.target_type_of(question.metadata);
        self.decide(object, trigger, target_type, roster, now)
    }

    /// The ScaledObject that `question` is about.
    fn object(
        &self,
        Question { namespace, name, .. }: Question<'_>,
        now: Timestamp,
    ) -> Result<Arc<ScaledObject>, Refusal> {
        let snapshot = self.directory.glance();
        let snapshot = self.current(snapshot.as_deref(), now)?;
        snapshot.object(namespace, name).cloned().ok_or_else(|| {
            Refusal::NotFound(format!(
                "there is no ScaledObject or ScaledJob {namespace}/{name} with a trigger of this scaler"
            ))
        })
    }

    fn decide(
        &self,
        object: Arc<ScaledObject>,
        trigger: Arc<Trigger>,
        target_type: TargetType,
        roster: Option<Arc<Roster>>,
        now: Timestamp,
    ) -> Result<Assessment, Refusal> {
        if object.kind == ScaledKind::Job {
            let demand = self.demand(&object, &trigger, true, now);
            let observed = Observed { demand, ..Observed::default() };
            let verdict = value::assess_job(&observed);
            return Ok(Assessment { object, trigger, observed, verdict, now, roster: None });
        }
        let Some(workload) = &object.workload else {
            return Err(without_workload(&object));
        };
        let new = || Arc::new(Roster::new(&self.fleet, workload));
        let mut roster = roster.filter(|roster| roster.is_of(workload)).unwrap_or_else(new);
        let (mut observed, elsewhere) = observe::observe(&self.fleet, &trigger, &roster, now);
        if elsewhere {
            roster = new();
        }
        observed.target_type = target_type;
        observed.warm = self.warm.load(Ordering::Relaxed);
        let is_needed = !observed.pods.iter().any(|pod| pod.ready);
        observed.demand = self.demand(&object, &trigger, is_needed, now);
        let past = WorkloadPast::new(&self.fleet, &object, &trigger);
        let verdict = trigger::assess(&trigger, &observed, &past, now);
        Ok(Assessment { object, trigger, observed, verdict, now, roster: Some(roster) })
    }

    /// What the trigger's demand source says, where that can matter.
    fn demand(
        &self,
        object: &ScaledObject,
        trigger: &Trigger,
        is_needed: bool,
        now: Timestamp,
    ) -> DemandReading {
        let Some(demand) = &trigger.demand else { return DemandReading::None };
        if is_needed {
            return self.demands.reading(&object.key, demand, trigger.stale_after, now);
        }
        self.demands.release(&object.key, demand);
        DemandReading::Unknown("it is not read while a pod is ready".into())
    }

    /// `snapshot`, if it may be answered from.
    fn current<'a>(
        &self,
        snapshot: Option<&'a Snapshot>,
        now: Timestamp,
    ) -> Result<&'a Snapshot, Refusal> {
        let Some(snapshot) = snapshot else {
            let waits_for = self.directory.waits_for();
            let why = if waits_for.is_empty() { waits_for } else { format!(": {waits_for}") };
            return Err(Refusal::Unavailable(format!("the directory is not loaded yet{why}")));
        };
        let age = now.since(snapshot.as_of());
        if age <= self.max_age {
            return Ok(snapshot);
        }
        Err(Refusal::Unavailable(format!(
            "the directory is {} s old: the API server has not been heard since",
            age.as_secs()
        )))
    }

    /// The nodes whose word could change the answer.
    pub fn nodes_of(&self, question: Question<'_>) -> Vec<NodeName> {
        let workload = self.directory.snapshot().and_then(|snapshot| {
            snapshot.object(question.namespace, question.name)?.workload.clone()
        });
        let mut nodes: Vec<_> = workload
            .iter()
            .flat_map(|workload| &workload.pods)
            .flat_map(|pod| roster::nodes_of(&self.fleet, pod))
            .collect();
        nodes.sort();
        nodes.dedup();
        nodes
    }

    /// Whether the ScaledObject's target is known to have no replicas, ordered or left.
    pub fn is_at_zero(&self, question: Question<'_>) -> bool {
        self.directory
            .snapshot()
            .and_then(|snapshot| {
                snapshot.object(question.namespace, question.name)?.workload.clone()
            })
            .is_some_and(|workload| workload.replicas == 0 && workload.status_replicas == 0)
    }

    /// Notes since when pods that have just started are heard of.
    pub fn note_first_readings(&self, now: Timestamp) {
        self.directory.first_readings(|pod| observe::first_heard(&self.fleet, pod), now);
    }

    /// Forgets triggers that nobody asks about and ScaledObjects that are gone, and notes first
    /// readings.
    pub fn tidy(&self) {
        let now = self.clock.now();
        self.note_first_readings(now);
        let snapshot = self.directory.snapshot();
        let is_gone = |key: &ScaledObjectKey| {
            let snapshot = snapshot.as_ref();
            snapshot.is_some_and(|snapshot| snapshot.object(&key.namespace, &key.name).is_none())
        };
        self.demands.retain(|key| !is_gone(key));
        self.forget(is_gone, now);
    }

    /// Whether this replica answers for everything it is asked about.
    pub fn is_warm(&self) -> bool {
        self.warm.load(Ordering::Relaxed)
    }

    /// Looks whether this replica has heard enough to be ready, and keeps it so from then on.
    pub fn warm_up(&self) -> bool {
        let now = self.clock.now();
        let warm = match self.directory.snapshot() {
            None => false,
            Some(_) if now.since(Timestamp::START) >= WARM_AFTER => true,
            Some(snapshot) => self.is_covered(&snapshot, now),
        };
        if warm {
            self.warm.store(true, Ordering::Relaxed);
        }
        warm
    }

    fn is_covered(&self, snapshot: &Snapshot, now: Timestamp) -> bool {
        let workloads = snapshot.objects().iter().filter_map(|object| object.workload.as_ref());
        workloads
            .flat_map(|workload| &workload.pods)
            .filter(|pod| pod.ready && pod.exists())
            .all(|pod| observe::is_heard(&self.fleet, pod, now))
    }

    /// The directory it answers from.
    pub fn directory(&self) -> &Arc<Directory> {
        &self.directory
    }

    /// Where it reads demand.
    pub fn demands(&self) -> &Demands {
        &self.demands
    }

    /// The fleet it answers from.
    pub fn fleet(&self) -> &Arc<Fleet> {
        &self.fleet
    }

    /// The clock it goes by.
    pub fn clock(&self) -> Clock {
        self.clock
    }
}

fn without_workload(object: &ScaledObject) -> Refusal {
    let of = format!("{} is the target of {}, but", object.target, object.key);
    match &object.absent {
        None => Refusal::NotFound(format!("{of} there is no such workload")),
        Some(Absent::Missing(why)) => Refusal::NotFound(format!("{of} {why}")),
        Some(Absent::Unread(why)) => Refusal::Unavailable(format!("{of} {why}")),
    }
}
