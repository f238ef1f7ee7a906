//! The workload's past, gathered only when a window or the activity needs it.
//!
//! Guarantees: the pods that were Ready then count, also those that are gone by now. Pods of one
//! group are read as one here too.

use std::sync::Arc;

use shared::time::Timestamp;
use smallvec::smallvec;

use super::observe::{is_serving, read_into};
use super::roster::{Members, groups, nodes_of, said_of};
use crate::directory::{Pod, ScaledObject, Workload};
use crate::fleet::Fleet;
use crate::fleet::view::NodeView;
use crate::trigger::observed::{PartReadings, Past, Seen, Series};
use crate::trigger::spec::Trigger;

/// The past of what a ScaledObject scales.
pub struct WorkloadPast<'a> {
    fleet: &'a Fleet,
    workload: Option<&'a Workload>,
    trigger: &'a Trigger,
}

impl<'a> WorkloadPast<'a> {
    /// The past of `object`'s workload as `trigger` looks at it.
    pub fn new(fleet: &'a Fleet, object: &'a ScaledObject, trigger: &'a Trigger) -> Self {
        Self { fleet, workload: object.workload.as_deref(), trigger }
    }

    /// Pods, groups together, that were Ready at some moment since `from`: from when, until when.
    fn ready_since(&self, from: Timestamp) -> Vec<(Members<'a>, Timestamp, Option<Timestamp>)> {
        let Some(workload) = self.workload else {
            return Vec::new();
        };
        let here =
            groups(workload).into_iter().filter(|members| members.iter().all(|pod| pod.ready));
        let here = here.map(|members| {
            let since = members.iter().map(|pod| workload.ready_from(pod)).max();
            (members, since.unwrap_or_default(), None)
        });
        let gone =
            workload.gone.iter().filter(|gone| gone.until > from && gone.pod.group.is_none());
        let gone = gone.map(|gone| (smallvec![&gone.pod], gone.pod.since, Some(gone.until)));
        here.chain(gone).collect()
    }

    /// What was said about `pod` since `from`, one entry per tick.
    fn ticks(&self, pod: &Pod, from: Timestamp) -> Vec<Arc<NodeView>> {
        nodes_of(self.fleet, pod).iter().flat_map(|node| self.fleet.history(node, from)).collect()
    }

    fn samples(&self, pod: &Pod, part: usize, from: Timestamp) -> Vec<Vec<Seen>> {
        let metric = self.trigger.parts[part].metric;
        let samples = self.ticks(pod, from).into_iter().map(|tick| {
            let mut readings = PartReadings::default();
            let labels = &self.trigger.engine_labels;
            read_into(&mut readings, &said_of(&[tick], pod), metric, labels, None);
            readings.end_pod();
            readings.into_sample()
        });
        samples.filter(|sample| !sample.is_empty()).collect()
    }
}

impl Past for WorkloadPast<'_> {
    fn series(&self, part: usize, from: Timestamp) -> Vec<Series> {
        // The first instants of a window are judged by readings from shortly before it.
        let earlier = from - self.trigger.stale_after;
        self.ready_since(from)
            .into_iter()
            .map(|(members, ready_from, ready_until)| {
                let each = members.iter().map(|pod| self.samples(pod, part, earlier)).collect();
                Series { ready_from, ready_until, samples: together(each) }
            })
            .collect()
    }

    fn served_since(&self, from: Timestamp) -> bool {
        self.ready_since(from).into_iter().any(|(members, _, _)| {
            members.iter().any(|pod| {
                self.ticks(pod, from).into_iter().any(|tick| {
                    let at = tick.received_at;
                    is_serving(&said_of(&[tick], pod), self.trigger, at)
                })
            })
        })
    }
}

/// The samples of several pods read as one: whenever one of them speaks, with the newest word of
/// the others.
fn together(mut each: Vec<Vec<Vec<Seen>>>) -> Vec<Vec<Seen>> {
    if each.len() == 1 {
        return each.remove(0);
    }
    let taken = |sample: &[Seen]| sample.iter().filter_map(|seen| seen.taken_at).max();
    let mut moments: Vec<_> = each.iter().flatten().filter_map(|sample| taken(sample)).collect();
    moments.sort_unstable();
    moments.dedup();
    let at = |moment| {
        let newest = each.iter().filter_map(|samples| {
            let until_then = samples.iter().filter(|sample| taken(sample) <= Some(moment));
            until_then.max_by_key(|sample| taken(sample))
        });
        newest.flatten().cloned().collect()
    };
    moments.into_iter().map(at).collect()
}
