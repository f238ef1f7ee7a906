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
use crate::fleet::Fleet;
use crate::fleet::view::NodeView;
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

/// The readings of `metric` of one pod in some views of nodes.
pub fn seen_of(views: &[Arc<NodeView>], pod: &Pod, metric: Metric, into: &mut impl FnMut(Seen)) {
    match metric.scope() {
        Scope::Device => {
            for view in views {
                for (claim, device) in view.devices_of(&pod.key, pod.uid.as_ref()) {
                    let (reading, taken_at) = view.reading(claim, metric);
                    into(Seen {
                        device: Some(device.uuid.clone()),
                        index: device.index,
                        reading,
                        taken_at,
                        interval: view.interval,
                    });
                }
            }
        }
        Scope::Engine => {
            let engines = views.iter().filter_map(|view| {
                let row = view.engine_of(&pod.key, pod.uid.as_ref())?;
                Some(Seen {
                    device: None,
                    index: 0,
                    reading: row.map_or(Reading::Unsupported, |row| row.readings.get(metric)),
                    taken_at: row.map(|row| row.taken_at),
                    interval: view.interval,
                })
            });
            // One pod has one engine, whatever several nodes say: the newest word counts.
            engines.max_by_key(|seen| seen.taken_at).into_iter().for_each(into);
        }
    }
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
    let reads_engines = trigger.parts.iter().any(|part| part.metric.scope() == Scope::Engine);
    let mut parts = vec![PartReadings::default(); trigger.parts.len()];
    let mut seen = Observed {
        replicas: workload.replicas,
        short_since: workload.short_since,
        ready_running: count(workload.pods.iter().filter(|pod| pod.is_ready_running())),
        ..Observed::default()
    };
    let mut known_since: Option<Timestamp> = None;
    for members in groups(workload) {
        for pod in &members {
            let views = views_of(fleet, pod);
            for (part, readings) in trigger.parts.iter().zip(&mut parts) {
                let mut unsupported = false;
                seen_of(&views, pod, part.metric, &mut |s| {
                    unsupported |= s.reading == Reading::Unsupported;
                    readings.push(s);
                });
                if unsupported {
                    views.iter().for_each(|view| seen.offers.extend(view.offers(&pod.key)));
                }
            }
            let known = views.iter().filter_map(|view| view.known_since(&pod.key)).min();
            known_since = known_since.into_iter().chain(known).min();
            seen.serving |= reads_engines && is_serving(&views, pod, trigger, now);
        }
        parts.iter_mut().for_each(PartReadings::end_pod);
        seen.pods.push(one(&members));
    }
    seen.parts = parts;
    seen.watched_since = known_since.zip(workload.with_pods_since).map(|(a, b)| a.max(b));
    seen
}

fn count<'a>(pods: impl Iterator<Item = &'a Pod>) -> u32 {
    u32::try_from(pods.count()).unwrap_or(u32::MAX)
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
        unscheduled: None,
    }
}

/// Whether the engine in `pod` has a request running or waiting.
pub fn is_serving(views: &[Arc<NodeView>], pod: &Pod, trigger: &Trigger, now: Timestamp) -> bool {
    views.iter().any(|view| {
        let Some(Some(row)) = view.engine_of(&pod.key, pod.uid.as_ref()) else {
            return false;
        };
        let fresh = now.since(row.taken_at) <= trigger.stale_after.max(view.interval * 3);
        let some = |metric| row.readings.value(metric).is_some_and(|value| value > 0.0);
        fresh && (some(Metric::RequestsRunning) || some(Metric::RequestsWaiting))
    })
}

/// Whether anything fresh is known of `pod`, of whatever metric.
pub fn is_heard(fleet: &Fleet, pod: &Pod, now: Timestamp) -> bool {
    views_of(fleet, pod).iter().any(|view| {
        let within = HEARD_WITHIN.max(view.interval * 3);
        let fresh = |taken_at: Timestamp| now.since(taken_at) <= within;
        let uid = pod.uid.as_ref();
        let devices =
            view.devices_of(&pod.key, uid).filter_map(|(claim, _)| view.row(claim.device));
        let engine = view.engine_of(&pod.key, uid).flatten();
        devices.chain(engine).any(|row| fresh(row.taken_at))
    })
}
