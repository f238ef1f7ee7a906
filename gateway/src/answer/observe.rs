//! The workload of a trigger as it is now, gathered from directory and fleet.
//!
//! Guarantees: a reading counts for a pod only if it comes from the pod's own node and names the
//! pod's UID, wherever both sides know them; else by namespace and name. Pods of one group are one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use shared::identity::NodeName;
use shared::metric::{Metric, Scope};
use shared::reading::Reading;
use shared::time::Timestamp;

use crate::directory::{Pod, Workload};
use crate::engine;
use crate::fleet::Fleet;
use crate::fleet::view::{NodeView, PodView, Row};
use crate::trigger::observed::{self, Observed, PartReadings, Seen};
use crate::trigger::spec::Trigger;

/// A node not heard of for this long does not count towards readiness.
const HEARD_WITHIN: Duration = Duration::from_secs(10);

/// Where `pod` may be: its own node, or wherever agents say it is.
pub fn nodes_of(fleet: &Fleet, pod: &Pod) -> Vec<NodeName> {
    match &pod.node {
        Some(node) => vec![node.clone()],
        None => fleet.homes(&pod.key),
    }
}

/// What is said about `pod` where it may be.
pub fn views_of(fleet: &Fleet, pod: &Pod) -> Vec<Arc<NodeView>> {
    match &pod.node {
        Some(node) => fleet.view(node).into_iter().collect(),
        None => fleet.homes(&pod.key).iter().filter_map(|node| fleet.view(node)).collect(),
    }
}

/// The readings of `metric` of one pod, from what nodes say of it; those of an engine from its
/// series with `labels`.
pub fn seen_of(
    said: &[(&NodeView, PodView<'_>)],
    metric: Metric,
    labels: &str,
    into: &mut impl FnMut(Seen),
) {
    match metric.scope() {
        Scope::Device => {
            for (view, pod) in said {
                for (claim, device) in pod.devices() {
                    let (reading, taken_at) = pod.reading(claim, metric);
                    into(Seen {
                        device: Some(device.uuid.clone()),
                        index: device.index,
                        reading,
                        taken_at,
                        interval: view.intervals.samples,
                        is_mig: device.mig.is_some(),
                    });
                }
            }
        }
        Scope::Engine => {
            let engines = said.iter().filter_map(|(view, pod)| {
                let row = pod.engine(labels)?;
                Some(Seen {
                    device: None,
                    index: 0,
                    reading: row.map_or(Reading::Unsupported, |row| row.readings.get(metric)),
                    taken_at: row.map(|row| row.taken_at),
                    interval: view.intervals.engines,
                    is_mig: false,
                })
            });
            // One pod has one engine, whatever several nodes say: the newest word counts.
            engines.max_by_key(|seen| seen.taken_at).into_iter().for_each(into);
        }
    }
}

/// All of the engine's series, or those of the first selection where only such are read.
pub fn whole_engine<'a>(pod: &PodView<'a>) -> Option<&'a Row> {
    pod.engine("").flatten().or_else(|| pod.engines().find_map(|(_, row)| row))
}

/// What each of `views` says of `pod`.
pub fn said_of<'a>(views: &'a [Arc<NodeView>], pod: &'a Pod) -> Vec<(&'a NodeView, PodView<'a>)> {
    let of = |view: &'a Arc<NodeView>| Some((&**view, view.pod(&pod.key, pod.uid.as_ref())?));
    views.iter().filter_map(of).collect()
}

/// The pods that exist, groups together, in the order of their first pod's name.
pub fn groups(workload: &Workload) -> Vec<Vec<&Pod>> {
    let mut groups: BTreeMap<&Arc<str>, usize> = BTreeMap::new();
    let mut pods: Vec<Vec<&Pod>> = Vec::with_capacity(workload.pods.len());
    for pod in workload.pods.iter().filter(|pod| pod.exists()) {
        match pod.group.as_ref().map(|group| groups.entry(group)) {
            Some(std::collections::btree_map::Entry::Occupied(at)) => pods[*at.get()].push(pod),
            Some(std::collections::btree_map::Entry::Vacant(new)) => {
                new.insert(pods.len());
                pods.push(vec![pod]);
            }
            None => pods.push(vec![pod]),
        }
    }
    pods
}

/// The workload as it is now; target type, demand and warmth are the caller's.
pub fn observe(fleet: &Fleet, trigger: &Trigger, workload: &Workload, now: Timestamp) -> Observed {
    let mut parts = vec![PartReadings::default(); trigger.parts.len()];
    let mut seen = Observed {
        replicas: workload.replicas,
        short_since: workload.short_since,
        ready_running: count(workload.pods.iter().filter(|pod| pod.is_ready_running())),
        ..Observed::default()
    };
    let mut known_since: Option<Timestamp> = None;
    for members in groups(workload) {
        let mut unread = None;
        for pod in &members {
            let views = views_of(fleet, pod);
            let said = said_of(&views, pod);
            for (part, readings) in trigger.parts.iter().zip(&mut parts) {
                let mut unsupported = false;
                seen_of(&said, part.metric, &trigger.engine_labels, &mut |s| {
                    unsupported |= s.reading == Reading::Unsupported;
                    if said.len() == 1 { readings.push(s) } else { readings.push_once(s) }
                });
                if unsupported || trigger.gpu_index.is_some() {
                    said.iter().for_each(|(_, pod)| {
                        seen.offers.extend(pod.offers(&trigger.engine_labels));
                    });
                }
            }
            let known = said.iter().map(|(_, pod)| pod.known_since());
            known_since = known_since.into_iter().chain(known).min();
            if trigger.reads_engines() {
                seen.serving |= is_serving(&said, trigger, now);
                unread = unread.or_else(|| why_unread(pod, &said, trigger));
            }
        }
        for (part, readings) in trigger.parts.iter().zip(&mut parts) {
            if part.metric.scope() == Scope::Engine && readings.is_empty_so_far() {
                unread.iter().cloned().for_each(|why| readings.push(why));
            }
            readings.end_pod();
        }
        seen.pods.push(one(&members));
    }
    seen.parts = parts;
    let known_since =
        known_since.map(|since| since.min(known_before(fleet, trigger, workload, now)));
    seen.watched_since = known_since.zip(workload.with_pods_since).map(|(a, b)| a.max(b));
    seen
}

fn count<'a>(pods: impl Iterator<Item = &'a Arc<Pod>>) -> u32 {
    u32::try_from(pods.count()).unwrap_or(u32::MAX)
}

/// Since when pods are known that the workload had within the activation window and has no more:
/// whoever watched them has watched the workload.
fn known_before(
    fleet: &Fleet,
    trigger: &Trigger,
    workload: &Workload,
    now: Timestamp,
) -> Timestamp {
    let lately = |until: Timestamp| now.since(until) < trigger.activation_window;
    let gone = workload.gone.iter().filter(|gone| lately(gone.until)).map(|gone| &gone.pod);
    let known = gone.flat_map(|pod| {
        let ticks = nodes_of(fleet, pod).into_iter();
        let ticks = ticks.flat_map(|node| fleet.history(&node, Timestamp::LONG_AGO));
        ticks.filter_map(|view| Some(view.pod(&pod.key, pod.uid.as_ref())?.known_since()))
    });
    known.min().unwrap_or(now)
}

/// A group is Ready when all of it is, and since the last of it became so.
fn one(members: &[&Pod]) -> observed::Pod {
    let ready = members.iter().all(|pod| pod.ready);
    let same = members.iter().filter(|pod| pod.ready == ready);
    observed::Pod {
        name: members[0].key.name.clone(),
        uid: members[0].uid.clone(),
        node: members[0].node.clone(),
        ready,
        since: same.map(|pod| pod.since).max().unwrap_or_default(),
        unscheduled: members.iter().find_map(|pod| pod.unscheduled.clone()),
    }
}

/// Why a node that speaks of `pod` has no readings of its engine for `trigger`; `None` if it has, or
/// if nobody speaks of the pod.
fn why_unread(pod: &Pod, said: &[(&NodeView, PodView<'_>)], trigger: &Trigger) -> Option<Seen> {
    let labels = &*trigger.engine_labels;
    let (view, _) = said.first()?;
    if said.iter().any(|(_, pod)| pod.engine(labels).is_some()) {
        return None;
    }
    let is_read = said.iter().any(|(_, pod)| pod.engines().next().is_some());
    let why = match engine::why_never(pod, trigger) {
        Some(why) => why.to_owned(),
        None if !is_read => "its engine has not been read yet".to_owned(),
        None if labels.is_empty() => {
            "its engine is read by labels, but not as a whole yet".to_owned()
        }
        // What is read may be a recording, and nothing says so: those have whole engines only.
        None => format!("its engine is read, but not by engineLabels {labels} so far"),
    };
    let (reading, interval) = (Reading::Failed(why.into()), view.intervals.engines);
    Some(Seen { device: None, index: 0, is_mig: false, reading, taken_at: None, interval })
}

/// Whether the engine of a pod has a request running or waiting, among the series that `trigger`
/// reads.
pub fn is_serving(said: &[(&NodeView, PodView<'_>)], trigger: &Trigger, now: Timestamp) -> bool {
    said.iter().any(|(view, pod)| {
        let Some(Some(row)) = pod.engine(&trigger.engine_labels) else { return false };
        let fresh = now.since(row.taken_at) <= trigger.stale_after.max(view.intervals.engines * 3);
        let some = |metric| row.readings.value(metric).is_some_and(|value| value > 0.0);
        fresh && (some(Metric::RequestsRunning) || some(Metric::RequestsWaiting))
    })
}

/// Whether anything fresh is known of `pod`, of whatever metric.
pub fn is_heard(fleet: &Fleet, pod: &Pod, now: Timestamp) -> bool {
    let views = views_of(fleet, pod);
    said_of(&views, pod).iter().any(|(view, pod)| {
        let longest = view.intervals.samples.max(view.intervals.engines);
        let within = HEARD_WITHIN.max(longest * 3);
        pod.rows().any(|row| now.since(row.taken_at) <= within)
    })
}

/// Since when a node that has readings of `pod` has spoken of it.
pub fn first_heard(fleet: &Fleet, pod: &Pod) -> Option<Timestamp> {
    let views = views_of(fleet, pod);
    let said = said_of(&views, pod).into_iter();
    said.filter(|(_, pod)| pod.rows().next().is_some()).map(|(_, pod)| pod.known_since()).min()
}
