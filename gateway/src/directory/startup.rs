//! How long a workload's pods take from being ordered to their first reading.
//!
//! Guarantees: only moments that were seen to come count. A pod that was there at the first look
//! at its workload teaches nothing of what came before, and one that only lost its readiness for a
//! while is not starting. The newest pods count, and so many of them only.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use shared::identity::{PodKey, PodUid, WorkloadKey};
use shared::time::Timestamp;

use super::{Pod, Snapshot, Workload};

/// Pods of one workload that are followed at a time.
const MAX_FOLLOWED: usize = 1_000;
/// Pods that a figure is made from.
const MAX_SPANS: usize = 256;
/// A pod that is older than this when it is first seen, on a node already, was put there at a
/// moment that was not seen.
const AT_ONCE: Duration = Duration::from_secs(2);
/// A first reading is waited for so long.
const FIRST_READING_WITHIN: Duration = Duration::from_secs(3_600);

/// How long the pods of one workload took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Startup {
    /// From the pod's creation until the scheduler had a place for it.
    pub ordered_to_scheduled: Span,
    /// From there until it was Ready.
    pub scheduled_to_ready: Span,
    /// From there until an agent first spoke of it; zero if one had before.
    pub ready_to_first_reading: Span,
}

/// How long one step took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// The median; `None` if no pod was seen to take the step.
    pub median: Option<Duration>,
    /// Nine of ten pods took at most this long.
    pub p90: Option<Duration>,
    /// Pods it is made from.
    pub pods: usize,
}

/// The workloads' pods on their way.
#[derive(Debug, Default)]
pub(super) struct Startups(HashMap<WorkloadKey, OfWorkload>);

#[derive(Debug, Default)]
struct OfWorkload {
    /// Pods that are not yet where they are going.
    followed: HashMap<PodKey, Way>,
    ordered_to_scheduled: Newest,
    scheduled_to_ready: Newest,
    ready_to_first_reading: Newest,
}

#[derive(Debug, Default)]
struct Newest(VecDeque<Duration>);

/// One pod on its way.
#[derive(Debug)]
struct Way {
    uid: Option<PodUid>,
    seen: Timestamp,
    ordered: Option<Timestamp>,
    /// Whether it was seen without a place.
    was_waiting: bool,
    /// Whether the scheduler said that it had no place for it.
    was_refused: bool,
    scheduled: Option<Timestamp>,
    ready: Option<Timestamp>,
}

impl Startups {
    /// Takes the look `after`, had at `now`, that follows `before`.
    pub(super) fn look(&mut self, before: Option<&Snapshot>, after: &Snapshot, now: Timestamp) {
        self.0.retain(|key, _| after.workload(key).is_some());
        for workload in after.workloads() {
            let known = before.and_then(|before| before.workload(&workload.key));
            if known.is_some_and(|known| std::sync::Arc::ptr_eq(known, workload)) {
                continue;
            }
            let of = self.0.entry(workload.key.clone()).or_default();
            of.look(known.map(|known| &**known), workload, now);
        }
    }

    /// Asks for the first word of every Ready pod that none was heard of.
    pub(super) fn first_readings(
        &mut self,
        first: impl Fn(&WorkloadKey, &PodKey) -> Option<Timestamp>,
        now: Timestamp,
    ) {
        for (key, of) in &mut self.0 {
            let spans = &mut of.ready_to_first_reading;
            of.followed.retain(|pod, way| {
                let Some(ready) = way.ready else { return true };
                let Some(first) = first(key, pod) else {
                    return now.since(ready) < FIRST_READING_WITHIN;
                };
                spans.push(first.since(ready));
                false
            });
        }
    }

    pub(super) fn of(&self, workload: &WorkloadKey) -> Startup {
        self.0.get(workload).map_or_else(Startup::default, |of| Startup {
            ordered_to_scheduled: of.ordered_to_scheduled.span(),
            scheduled_to_ready: of.scheduled_to_ready.span(),
            ready_to_first_reading: of.ready_to_first_reading.span(),
        })
    }
}

impl OfWorkload {
    fn look(&mut self, before: Option<&Workload>, after: &Workload, now: Timestamp) {
        let pods: HashMap<&PodKey, &Pod> =
            after.pods.iter().filter(|pod| pod.exists()).map(|pod| (&pod.key, &**pod)).collect();
        let is_there = |key: &PodKey, way: &Way| pods.get(key).is_some_and(|pod| way.is_of(pod));
        self.followed
            .retain(|key, way| is_there(key, way) && (way.ready.is_none() || pods[key].ready));
        let known: HashMap<&PodKey, &Pod> = before
            .into_iter()
            .flat_map(|before| &before.pods)
            .map(|pod| (&pod.key, &**pod))
            .collect();
        for pod in pods.into_values() {
            let is_new = known.get(&pod.key).is_none_or(|known| known.uid != pod.uid);
            if is_new && !pod.ready && self.followed.len() < MAX_FOLLOWED {
                self.followed.insert(pod.key.clone(), Way::new(pod, before.is_some(), now));
            }
            if let Some(way) = self.followed.get_mut(&pod.key) {
                let (scheduled, ready) = way.advance(pod, now);
                self.ordered_to_scheduled.extend(scheduled);
                self.scheduled_to_ready.extend(ready);
            }
        }
    }
}

impl Way {
    /// A pod that is seen for the first time; `appeared` if an earlier look did not have it.
    fn new(pod: &Pod, appeared: bool, now: Timestamp) -> Self {
        Self {
            uid: pod.uid.clone(),
            seen: now,
            ordered: appeared.then(|| pod.since.min(now)),
            was_waiting: pod.node.is_none() || pod.unscheduled.is_some(),
            was_refused: pod.unscheduled.is_some(),
            scheduled: None,
            ready: None,
        }
    }

    fn is_of(&self, pod: &Pod) -> bool {
        self.uid == pod.uid
    }

    /// Takes what is seen of the pod now: how long it took to be scheduled and to be Ready, where
    /// it became so just now.
    fn advance(&mut self, pod: &Pod, now: Timestamp) -> (Option<Duration>, Option<Duration>) {
        let mut spans = (None, None);
        if self.scheduled.is_none() && self.is_scheduled(pod, now) {
            self.scheduled = Some(now);
            spans.0 = self.ordered.map(|ordered| now.since(ordered));
        }
        self.was_refused |= pod.unscheduled.is_some();
        if self.ready.is_none() && pod.ready {
            // Kubernetes writes whole seconds; a source that does not know says long ago.
            let ready = if pod.since >= self.seen { pod.since.min(now) } else { now };
            self.ready = Some(ready);
            spans.1 = self.scheduled.map(|scheduled| ready.since(scheduled));
        }
        spans
    }

    /// Whether it was seen to get its place by now.
    fn is_scheduled(&self, pod: &Pod, now: Timestamp) -> bool {
        let has_place = pod.node.is_some() || (self.was_refused && !pod.ready);
        let at_once = self.ordered.is_some_and(|ordered| now.since(ordered) <= AT_ONCE);
        pod.unscheduled.is_none() && has_place && (self.was_waiting || at_once)
    }
}

impl Newest {
    fn push(&mut self, span: Duration) {
        if self.0.len() == MAX_SPANS {
            self.0.pop_front();
        }
        self.0.push_back(span);
    }

    fn extend(&mut self, span: Option<Duration>) {
        if let Some(span) = span {
            self.push(span);
        }
    }

    fn span(&self) -> Span {
        let mut sorted: Vec<_> = self.0.iter().copied().collect();
        sorted.sort_unstable();
        // Nearest rank: the smallest that so many in a hundred do not exceed.
        let rank = |percent: usize| {
            sorted.get((sorted.len() * percent).div_ceil(100).saturating_sub(1)).copied()
        };
        Span { median: rank(50), p90: rank(90), pods: sorted.len() }
    }
}

#[cfg(test)]
mod tests;
