//! Demand seen from outside while no pod is ready: pages that say it, read while somebody needs it.
//!
//! Guarantees: asking reads memory only; a page is read once however many triggers look at it, and
//! only while somebody asks or a declared trigger has no ready pod; what was read is true for the trigger's `staleAfter` and unknown after
//! that, with the reason. Pages, triggers on a page and pages of one ScaledObject are bounded.

/// Where pages are, and which addresses may be connected to.
pub mod place;

/// A page's text → what a trigger reads from it.
pub mod selection;

/// One page over HTTP.
pub mod page;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use shared::exposition::Matchers;
use shared::identity::ScaledObjectKey;
use shared::process::Clock;
use shared::time::Timestamp;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::trigger::observed::DemandReading;
use crate::trigger::spec::{Absent, Demand};
use page::{Limits, Reader};
use place::{Place, Rules};
use selection::{Counters, Said, Selection};

/// How often a page is read.
const EVERY: Duration = Duration::from_millis(500);
/// Who has not asked for this long does not need it any more. KEDA may poll seldom, and the first
/// question after this one would find nothing read.
const NEEDED_FOR: Duration = Duration::from_secs(3_600);
/// Pages read by one gateway, of them for one ScaledObject, and selections of one page.
const MAX_SOURCES: usize = 1_000;
const MAX_OF_OBJECT: usize = 16;
const MAX_SELECTIONS: usize = 256;

/// Every page that is needed, and what it says.
pub struct Demands {
    rules: Rules,
    clock: Clock,
    limits: Limits,
    polls: Family<Poll, Counter>,
    sources: Mutex<HashMap<Place, Source>>,
    /// There is a source that nobody reads yet.
    added: Notify,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Poll {
    result: &'static str,
}

/// One page.
#[derive(Debug)]
struct Source {
    is_read: bool,
    watched: Vec<Watched>,
    /// Why the last look failed, if it did.
    trouble: Option<Arc<str>>,
    /// Changes when what it says does.
    changed: watch::Sender<()>,
}

/// What somebody looks at on a page.
#[derive(Debug)]
struct Watched {
    selection: Selection,
    /// Who asked, and when last.
    askers: HashMap<ScaledObjectKey, Timestamp>,
    counters: Option<Counters>,
    said: Option<(Timestamp, Said)>,
}

impl Source {
    fn new() -> Self {
        let changed = watch::Sender::new(());
        Self { is_read: false, watched: Vec::new(), trouble: None, changed }
    }

    fn is_for(&self, object: &ScaledObjectKey) -> bool {
        self.watched.iter().any(|watched| watched.askers.contains_key(object))
    }

    /// The place of `selection` among what is looked at.
    fn watch(&mut self, selection: &Selection) -> Option<&mut Watched> {
        let known = self.watched.iter().position(|watched| watched.selection == *selection);
        let at = match known {
            Some(at) => at,
            None if self.watched.len() == MAX_SELECTIONS => return None,
            None => {
                let selection = selection.clone();
                let (askers, counters, said) = (HashMap::new(), None, None);
                self.watched.push(Watched { selection, askers, counters, said });
                self.watched.len() - 1
            }
        };
        Some(&mut self.watched[at])
    }

    /// Forgets who does not need it any more; whether nobody is left.
    fn forget(&mut self, is_needed: impl Fn(&ScaledObjectKey, Timestamp) -> bool) -> bool {
        for watched in &mut self.watched {
            watched.askers.retain(|object, asked| is_needed(object, *asked));
        }
        self.watched.retain(|watched| !watched.askers.is_empty());
        self.watched.is_empty()
    }

    /// Takes what a page that was taken at `now` says.
    fn take(&mut self, looks: Vec<(Selection, Option<Counters>)>, said: Vec<Said>, now: Timestamp) {
        self.trouble = None;
        let mut is_new = false;
        for ((selection, counters), said) in looks.into_iter().zip(said) {
            let mut watched = self.watched.iter_mut();
            let Some(watched) = watched.find(|watched| watched.selection == selection) else {
                continue;
            };
            is_new |= watched.said.as_ref().is_none_or(|(_, before)| *before != said);
            (watched.counters, watched.said) = (counters, Some((now, said)));
        }
        if is_new {
            self.changed.send_replace(());
        }
    }
}

impl Watched {
    /// What is known of it at `now`; `trouble` is that of the last look.
    fn reading(
        &self,
        demand: &Demand,
        stale_after: Duration,
        trouble: Option<&Arc<str>>,
        now: Timestamp,
    ) -> DemandReading {
        let fresh = self.said.as_ref().filter(|(at, _)| now.since(*at) <= stale_after);
        match (fresh, trouble) {
            (Some((_, Said::Value(value))), _) => DemandReading::Value(*value),
            (Some((_, Said::Absent(_))), _) if demand.absent == Absent::Zero => {
                DemandReading::Value(0.0)
            }
            // Newer than what the last page that could be read said.
            (_, Some(why)) | (Some((_, Said::Unknown(why))), None) => unknown(demand, why),
            (Some((_, Said::Absent(why))), None) => {
                unknown(demand, &format!("{why} (demandAbsent: error)"))
            }
            (None, None) => unknown(demand, NOT_YET),
        }
    }
}

/// What is said between the first question and the first look, half a second at most.
const NOT_YET: &str = "it has not been read yet";

fn unknown(demand: &Demand, why: &str) -> DemandReading {
    let (origin, path) = (demand.endpoint.origin(), &demand.endpoint.path);
    DemandReading::Unknown(format!("{origin}{path}: {why}").into())
}

#[cfg(test)]
impl reference::Specimens for Demands {
    fn specimens(&self) {
        self.polls.specimens();
    }
}

impl Demands {
    /// Pages under `rules`, none needed yet.
    pub fn new(rules: Rules, clock: Clock) -> Self {
        Self {
            rules,
            clock,
            limits: Limits::default(),
            polls: Family::default(),
            sources: Mutex::default(),
            added: Notify::new(),
        }
    }

    /// Registers the counters.
    pub fn register(&self, registry: &mut Registry) {
        let help = "Looks at pages of demand, by how they ended";
        registry.register("demand_polls", help, self.polls.clone());
    }

    /// Which pages may be read.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// How many pages are read.
    pub fn len(&self) -> usize {
        self.sources.lock().len()
    }

    /// Whether no page is read.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What `demand` is now, for `object`; from now on it is read until [`Demands::release`], or
    /// until nobody asks any more.
    pub fn reading(
        &self,
        object: &ScaledObjectKey,
        demand: &Demand,
        stale_after: Duration,
        now: Timestamp,
    ) -> DemandReading {
        let (place, selection) = match self.key(object, demand) {
            Ok(key) => key,
            Err(why) => return DemandReading::Unknown(why.into()),
        };
        let mut sources = self.sources.lock();
        if !sources.contains_key(&place) {
            let of_object = sources.values().filter(|source| source.is_for(object)).count();
            if sources.len() >= MAX_SOURCES {
                return unknown(demand, "this gateway reads 1,000 pages of demand already");
            }
            if of_object >= MAX_OF_OBJECT {
                return unknown(
                    demand,
                    "16 pages of demand are read for this ScaledObject already",
                );
            }
            sources.insert(place.clone(), Source::new());
            self.added.notify_one();
        }
        let Some(source) = sources.get_mut(&place) else {
            return unknown(demand, NOT_YET);
        };
        let trouble = source.trouble.clone();
        let Some(watched) = source.watch(&selection) else {
            return unknown(demand, "256 different selections of this page are read already");
        };
        watched.askers.insert(object.clone(), now);
        watched.reading(demand, stale_after, trouble.as_ref(), now)
    }

    /// `object` does not need `demand` any more: a pod is ready.
    pub fn release(&self, object: &ScaledObjectKey, demand: &Demand) {
        let mut sources = self.sources.lock();
        if sources.is_empty() {
            return;
        }
        let Ok((place, selection)) = self.key(object, demand) else { return };
        let Some(source) = sources.get_mut(&place) else { return };
        let mut watched = source.watched.iter_mut();
        if let Some(watched) = watched.find(|watched| watched.selection == selection) {
            watched.askers.remove(object);
        }
    }

    /// Wakes when what the page says changes; `None` while it is not read.
    pub fn changes(
        &self,
        object: &ScaledObjectKey,
        demand: &Demand,
    ) -> Option<watch::Receiver<()>> {
        let (place, _) = self.key(object, demand).ok()?;
        Some(self.sources.lock().get(&place)?.changed.subscribe())
    }

    /// Forgets ScaledObjects that are gone.
    pub fn retain(&self, is_there: impl Fn(&ScaledObjectKey) -> bool) {
        for source in self.sources.lock().values_mut() {
            source.forget(|object, _| is_there(object));
        }
    }

    /// Reads every page that is needed, until `shutdown`.
    pub async fn run(self: Arc<Self>, shutdown: CancellationToken) {
        let mut readers = JoinSet::new();
        loop {
            for place in self.unread() {
                readers.spawn(self.clone().follow(place));
            }
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = self.added.notified() => {}
                Some(_) = readers.join_next() => {}
            }
        }
    }

    fn unread(&self) -> Vec<Place> {
        let mut sources = self.sources.lock();
        let unread = sources.iter_mut().filter(|(_, source)| !source.is_read);
        unread
            .map(|(place, source)| {
                source.is_read = true;
                place.clone()
            })
            .collect()
    }

    /// Reads one page until nobody needs it.
    async fn follow(self: Arc<Self>, place: Place) {
        let mut reader = Reader::new(place.clone(), self.limits.clone());
        let mut tick = interval(EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            if self.is_done_with(&place) {
                return;
            }
            let page = reader.read().await;
            let result = if page.is_ok() { "ok" } else { "failed" };
            self.polls.get_or_create(&Poll { result }).inc();
            let now = self.clock.now();
            match page.as_ref().map_err(Clone::clone).and_then(page::Page::text) {
                Ok(text) => self.take(&place, text, now),
                Err(why) => self.fail(&place, why),
            }
        }
    }

    /// Takes a page; it is read while nobody is kept waiting.
    fn take(&self, place: &Place, text: &str, now: Timestamp) {
        let mut looks: Vec<_> = match self.sources.lock().get_mut(place) {
            None => return,
            Some(source) => {
                let watched = source.watched.iter_mut();
                watched.map(|w| (w.selection.clone(), w.counters.take())).collect()
            }
        };
        let selections = looks.iter_mut().map(|(selection, counters)| (&*selection, counters));
        let said = selection::read_all(text, selections, now);
        if let Some(source) = self.sources.lock().get_mut(place) {
            source.take(looks, said, now);
        }
    }

    fn fail(&self, place: &Place, why: String) {
        if let Some(source) = self.sources.lock().get_mut(place) {
            source.trouble = Some(why.into());
        }
    }

    /// Whether nobody needs the page any more; it is forgotten then.
    fn is_done_with(&self, place: &Place) -> bool {
        let now = self.clock.now();
        let mut sources = self.sources.lock();
        let Some(source) = sources.get_mut(place) else { return true };
        let done = source.forget(|_, asked| now.since(asked) < NEEDED_FOR);
        if done {
            sources.remove(place);
        }
        done
    }

    fn key(&self, object: &ScaledObjectKey, demand: &Demand) -> Result<(Place, Selection), String> {
        let place = self.rules.place(&demand.endpoint, &object.namespace)?;
        let labels: Matchers = demand.labels.iter().cloned().collect();
        Ok((place, Selection { metric: demand.metric.clone(), labels }))
    }
}
