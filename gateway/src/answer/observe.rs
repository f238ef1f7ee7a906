//! The workload of a trigger as it is now, gathered from directory and fleet.
//!
//! Guarantees: a reading counts for a pod only if it comes from the pod's own node and names the
//! pod's UID, wherever both sides know them; else by namespace and name. Pods of one group are one.
//! Nothing is allocated per device, nor per pod that is on one node and alone in its group.

use std::time::Duration;

use shared::metric::{Metric, Scope};
use shared::reading::Reading;
use shared::time::Timestamp;

use super::roster::{Roster, Said, nodes_of, said_of, views_of};
use crate::directory::{Pod, Workload};
use crate::engine;
use crate::fleet::Fleet;
use crate::fleet::view::{PodView, Row};
use crate::trigger::observed::{Observed, PartReadings, Seen};
use crate::trigger::spec::Trigger;

/// A node not heard of for this long does not count towards readiness.
const HEARD_WITHIN: Duration = Duration::from_secs(10);

/// Adds the readings of `metric` of one pod, from what nodes say of it; those of an engine from its
/// series with `labels`. `inventory` is the place of the node's among those that `readings` knows.
/// Returns whether any of them is [`Reading::Unsupported`].
pub fn read_into(
    readings: &mut PartReadings,
    said: &[Said<'_>],
    metric: Metric,
    labels: &str,
    inventory: Option<usize>,
) -> bool {
    let mut unsupported = false;
    match metric.scope() {
        Scope::Device => {
            readings.make_room(said.iter().map(|(_, pod)| pod.most_devices()).sum());
            for (view, pod) in said {
                let places = readings.places(pod.inventory(), inventory);
                let interval_ms = millis(view.intervals.samples);
                let mut plain = pod.plain(metric);
                for claim in pod.claims() {
                    let device = Some(places.of(claim.device));
                    let (index, is_mig) = (claim.index, claim.is_mig);
                    // Nearly always; written where it stays.
                    if let [_] = said
                        && let Some((value, taken_at)) = plain.read(claim)
                    {
                        let (reading, taken_at) = (Reading::Ok(value), Some(taken_at));
                        readings.push(Seen {
                            device,
                            index,
                            reading,
                            taken_at,
                            interval_ms,
                            is_mig,
                        });
                        continue;
                    }
                    let (reading, taken_at) = pod.reading(claim, metric);
                    unsupported |= matches!(reading, Reading::Unsupported);
                    let seen = Seen { device, index, reading, taken_at, interval_ms, is_mig };
                    readings.push_beside(seen, said.len() > 1);
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
                    interval_ms: millis(view.intervals.engines),
                    is_mig: false,
                })
            });
            // One pod has one engine, whatever several nodes say: the newest word counts.
            if let Some(seen) = engines.max_by_key(|seen| seen.taken_at) {
                unsupported = matches!(seen.reading, Reading::Unsupported);
                readings.push(seen);
            }
        }
    }
    unsupported
}

fn millis(interval: Duration) -> u32 {
    u32::try_from(interval.as_millis()).unwrap_or(u32::MAX)
}

/// All of the engine's series, or those of the first selection where only such are read.
pub fn whole_engine<'a>(pod: &PodView<'a>) -> Option<&'a Row> {
    pod.engine("").flatten().or_else(|| pod.engines().find_map(|(_, row)| row))
}

/// The workload of `roster` as it is now; target type, demand and warmth are the caller's. And
/// whether a new roster would find its pods sooner.
pub fn observe(
    fleet: &Fleet,
    trigger: &Trigger,
    roster: &Roster,
    now: Timestamp,
) -> (Observed, bool) {
    let workload = roster.workload();
    let mut seen = Observed {
        replicas: workload.replicas,
        short_since: workload.short_since,
        ready_running: roster.ready_running,
        pods: roster.pods.clone(),
        parts: trigger.parts.iter().map(|_| roster.readings()).collect(),
        ..Observed::default()
    };
    let (mut known_since, mut elsewhere) = (None, false);
    for members in roster.groups() {
        let mut unread = None;
        for member in members {
            elsewhere |= member.said(fleet, |said, inventory| {
                read_pod(&mut seen, trigger, said, inventory);
                let since = said.iter().map(|(_, pod)| pod.known_since());
                known_since = since.chain(known_since).min();
                if trigger.reads_engines() {
                    seen.serving |= is_serving(said, trigger, now);
                    unread = unread.take().or_else(|| why_unread(member.pod(), said, trigger));
                }
            });
        }
        for (part, readings) in trigger.parts.iter().zip(&mut seen.parts) {
            if part.metric.scope() == Scope::Engine && readings.is_empty_so_far() {
                unread.iter().cloned().for_each(|why| readings.push(why));
            }
            readings.end_pod();
        }
    }
    let known_since =
        known_since.map(|since| since.min(known_before(fleet, trigger, workload, now)));
    seen.watched_since = known_since.zip(workload.with_pods_since).map(|(a, b)| a.max(b));
    (seen, elsewhere)
}

/// Adds the readings of one pod to every part.
fn read_pod(seen: &mut Observed, trigger: &Trigger, said: &[Said<'_>], inventory: Option<usize>) {
    let labels = &*trigger.engine_labels;
    for (part, readings) in trigger.parts.iter().zip(&mut seen.parts) {
        let unsupported = read_into(readings, said, part.metric, labels, inventory);
        if unsupported || trigger.gpu_index.is_some() {
            said.iter().for_each(|(_, pod)| seen.offers.extend(pod.offers(labels)));
        }
    }
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

/// Why a node that speaks of `pod` has no readings of its engine for `trigger`; `None` if it has, or
/// if nobody speaks of the pod.
fn why_unread(pod: &Pod, said: &[Said<'_>], trigger: &Trigger) -> Option<Seen> {
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
    let (reading, interval_ms) = (Reading::Failed(why.into()), millis(view.intervals.engines));
    Some(Seen { device: None, index: 0, is_mig: false, reading, taken_at: None, interval_ms })
}

/// Whether the engine of a pod has a request running or waiting, among the series that `trigger`
/// reads.
pub fn is_serving(said: &[Said<'_>], trigger: &Trigger, now: Timestamp) -> bool {
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
