//! Whose devices a workload's readings come from: what each pod's part rests on, and who else
//! sits on them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use shared::frame::{Device, Holder, HolderSource};
use shared::identity::{DeviceUuid, PodKey};
use shared::metric::{Metric, Scope};

use crate::answer::roster::{Members, groups, said_of, views_of};
use crate::directory::{Pod, Workload};
use crate::fleet::{Conflict, Fleet};

/// How one pod, or group read as one, holds a device.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) source: HolderSource,
    pub(super) estimated: bool,
    pub(super) undeclared: bool,
    /// Pods that use it too without having been given it.
    strangers: BTreeSet<PodKey>,
}

/// Devices of one pod.
pub(super) type HeldDevices = BTreeMap<DeviceUuid, Held>;

/// The devices of the pods of `workload`, in the order of [`groups`].
pub(super) fn attribution(fleet: &Fleet, workload: &Workload) -> Vec<(Arc<str>, HeldDevices)> {
    let of_group = |members: Members<'_>| {
        let mut held = HeldDevices::new();
        for pod in &members {
            let views = views_of(fleet, pod);
            for (_, said) in said_of(&views, pod) {
                for (_, device) in said.devices() {
                    note(device, pod, &mut held);
                }
            }
        }
        (members[0].key.name.clone(), held)
    };
    groups(workload).into_iter().map(of_group).collect()
}

/// Several containers of one pod are as sure as the least sure of them.
fn note(device: &Device, pod: &Pod, held: &mut HeldDevices) {
    let is_own = |holder: &&Holder| {
        let same_uid = holder.uid.as_ref().zip(pod.uid.as_ref()).is_none_or(|(a, b)| a == b);
        holder.pod == pod.key && same_uid
    };
    let strangers = || {
        let undeclared = device.holders.iter().filter(|holder| holder.undeclared);
        undeclared.map(|holder| &holder.pod).filter(|other| **other != pod.key).cloned().collect()
    };
    for holder in device.holders.iter().filter(is_own) {
        let entry = held.entry(device.uuid.clone()).or_insert_with(|| Held {
            source: holder.source,
            estimated: false,
            undeclared: false,
            strangers: strangers(),
        });
        if holder.estimated && !entry.estimated {
            entry.source = holder.source;
        }
        entry.estimated |= holder.estimated;
        entry.undeclared |= holder.undeclared;
    }
}

/// What is to be said where another node claims a device of these pods too: one line, whatever
/// the number of devices.
pub(super) fn conflict(pods: &[(Arc<str>, HeldDevices)], conflicts: &[Conflict]) -> Option<String> {
    let held =
        |conflict: &&Conflict| pods.iter().any(|(_, held)| held.contains_key(&conflict.uuid));
    let mut conflicts = conflicts.iter().filter(held);
    let Conflict { uuid, nodes } = conflicts.next()?;
    let (pod, _) = pods.iter().find(|(_, held)| held.contains_key(uuid))?;
    let nodes: Vec<_> = nodes.iter().map(|node| node.as_str()).collect();
    let more = match conflicts.count() {
        0 => String::new(),
        more => format!("; {more} more"),
    };
    let nodes = nodes.join(" and ");
    Some(format!(
        "device {uuid} of {pod} is claimed by nodes {nodes}, and only one can have it{more}"
    ))
}

/// What is to be said about readings of `metrics` that rest on this: at most one line about
/// estimates and one about strangers, whatever the number of pods.
pub(super) fn warnings(
    pods: &[(Arc<str>, HeldDevices)],
    metrics: impl IntoIterator<Item = Metric>,
) -> Vec<String> {
    let is_split = metrics.into_iter().any(|m| m.scope() == Scope::Device && m.is_split_by_share());
    let devices = pods.iter().flat_map(|(pod, held)| held.iter().map(move |held| (pod, held)));
    let devices: Vec<(&Arc<str>, (&DeviceUuid, &Held))> = devices.collect();
    let is_estimate = |held: &Held| is_split && held.estimated;
    let mut warnings = Vec::new();
    if let Some((pod, (uuid, held))) = devices.iter().find(|(_, (_, held))| is_estimate(held)) {
        let how = match held.source {
            HolderSource::Memory => {
                "the memory of their processes, which says little of engines that reserve it ahead"
            }
            HolderSource::Process => "what their processes did, as far as that is known",
            _ => "their number alone, because nothing tells them apart",
        };
        let estimates = pods.iter().filter(|(_, held)| held.values().any(is_estimate)).count();
        let readings = and_more("the reading", pod, estimates - 1);
        warnings.push(format!(
            "{readings} an estimate: {uuid} is split between its holders by {how}; an engine \
             metric such as requests_waiting says what a pod needs"
        ));
    }
    let guests: BTreeSet<(&PodKey, &DeviceUuid)> = devices
        .iter()
        .flat_map(|(_, (uuid, held))| held.strangers.iter().map(move |guest| (guest, *uuid)))
        .collect();
    if let Some((guest, uuid)) = guests.first() {
        let more = match guests.len() - 1 {
            0 => String::new(),
            more => format!(" (and {more} more such use)"),
        };
        warnings.push(format!(
            "{guest} uses {uuid}, a device of this workload, without having been given it{more}: \
             what it takes, these pods cannot have"
        ));
    }
    warnings
}

fn and_more(what: &str, pod: &str, more: usize) -> String {
    match more {
        0 => format!("{what} of {pod} rests on"),
        1 => format!("{what}s of {pod} and 1 more pod rest on"),
        more => format!("{what}s of {pod} and {more} more pods rest on"),
    }
}
