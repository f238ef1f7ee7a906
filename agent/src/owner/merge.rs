//! Pure: who was given a device and whose processes run on it → everyone who holds it.
//!
//! Guarantees: who was given the device holds it, whether it does anything or not; who was not
//! and uses it all the same holds it too, and is marked; a process of no known pod holds nothing,
//! but is counted. Whenever processes cannot be matched with pods beyond doubt, none are, and only
//! what was given counts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proto::convert::MAX_HOLDERS;
use shared::frame::HolderSource;
use shared::identity::{PodKey, PodUid};

use super::Doubt;
use super::declared::Declaration;
use super::process::{Occupant, PodProcess, ProcessOwners};
use super::split::{Basis, Usage};
use crate::device::{ObservedDevice, ObservedProcess, Processes};

/// Everyone on one device.
#[derive(Clone, Debug)]
pub(super) struct Merged {
    /// Those who were given it, in order, and then those who were not.
    pub(super) holders: Vec<Party>,
    /// What everyone else uses.
    pub(super) others: Usage,
    /// Whether there is anyone else.
    pub(super) is_used_by_others: bool,
    /// What it can be split by.
    pub(super) basis: Basis,
    /// What there is to say about its holders.
    pub(super) remarks: Vec<String>,
    /// What of it is not known.
    pub(super) doubt: Option<Doubt>,
}

/// A container on a device.
#[derive(Clone, Debug)]
pub(super) struct Party {
    pub(super) pod: PodKey,
    pub(super) uid: Option<PodUid>,
    pub(super) container: Arc<str>,
    /// Who gave it the device; nobody where it uses it undeclared.
    pub(super) given: Option<HolderSource>,
    pub(super) usage: Usage,
}

impl Party {
    fn is_of(&self, process: &PodProcess) -> bool {
        match (&self.uid, &process.pod) {
            (Some(uid), _) => *uid == process.uid,
            (None, Some(pod)) => self.pod == *pod,
            (None, None) => false,
        }
    }
}

impl Merged {
    /// Whether one pod was given the device and nobody else uses it.
    pub(super) fn is_exclusive(&self) -> bool {
        let mut holders = self.holders.iter();
        let Some(first) = holders.next() else { return false };
        let mut all = self.holders.iter();
        !self.is_used_by_others
            && all.all(|holder| holder.given.is_some())
            && holders.all(|holder| (&holder.pod, &holder.uid) == (&first.pod, &first.uid))
    }
}

/// Everyone on `device`.
pub(super) fn merge(
    device: &ObservedDevice,
    declaration: &Declaration,
    owners: &ProcessOwners,
) -> Merged {
    let given = given(device, declaration);
    let mut remarks = Vec::new();
    // Who was given it is known, even if it may not be any more.
    let trouble = declaration.trouble.as_deref().filter(|_| given.is_empty());
    remarks.extend(trouble.map(str::to_owned));
    let mut unknown = trouble.map(|_| Doubt::Kubelet);
    let (processes, why) = match &device.processes {
        Processes::Unasked => (None, None),
        Processes::Failed(why) => {
            (None, Some((Doubt::Unread, format!("its processes cannot be read: {why}"))))
        }
        Processes::Known(processes) => match doubt(processes, &given, owners) {
            None => (Some(processes), None),
            Some((doubt, why)) => {
                let why = format!("its processes cannot be matched with pods: {why}");
                (None, Some((doubt, why)))
            }
        },
    };
    let is_matched = processes.is_some();
    let mut merged = match processes {
        Some(processes) => observed(given, processes, owners, &mut remarks),
        None => unobserved(given),
    };
    let nobody = merged.holders.is_empty();
    unknown = unknown.or(merged.doubt);
    if nobody && let Some(why) = unresolved(declaration) {
        remarks.push(why);
        unknown = unknown.or(Some(Doubt::Unresolved));
    }
    // Of one owner nothing needs to be told apart, and a device that nobody uses is free.
    let is_used = matches!(&device.processes, Processes::Known(some) if !some.is_empty());
    if !is_matched
        && !merged.is_exclusive()
        && (is_used || !nobody)
        && let Some((doubt, why)) = why
    {
        remarks.push(why);
        unknown = unknown.or(Some(doubt));
    }
    limit(&mut merged, &mut remarks);
    Merged { remarks, doubt: unknown, ..merged }
}

/// What somebody was given may be any device that has no holder.
fn unresolved(declaration: &Declaration) -> Option<String> {
    let first = declaration.unresolved.first()?;
    let more = match declaration.unresolved.len() - 1 {
        0 => String::new(),
        more => format!(", and {more} more"),
    };
    Some(format!("it may be what somebody holds: {first}{more}"))
}

/// Those who were given the device, and nothing of what they do.
fn unobserved(given: Vec<Party>) -> Merged {
    let usage = Usage::UNKNOWN;
    Merged {
        holders: given.into_iter().map(|party| Party { usage, ..party }).collect(),
        others: usage,
        is_used_by_others: false,
        basis: Basis::Equal,
        remarks: Vec::new(),
        doubt: None,
    }
}

/// Those who were given the device, in an order of their own.
fn given(device: &ObservedDevice, declaration: &Declaration) -> Vec<Party> {
    let declared = declaration.holders.get(&device.uuid).map_or(&[][..], Vec::as_slice);
    let party = |holder: &super::declared::DeclaredHolder| Party {
        pod: holder.pod.clone(),
        uid: holder.uid.clone(),
        container: holder.container.clone(),
        given: Some(holder.source),
        usage: Usage::NOTHING,
    };
    let mut given: Vec<_> = declared.iter().map(party).collect();
    given.sort_by(|a, b| (&a.pod, &a.uid, &a.container).cmp(&(&b.pod, &b.uid, &b.container)));
    given
}

/// Why these processes cannot be told apart.
fn doubt(
    processes: &[ObservedProcess],
    given: &[Party],
    owners: &ProcessOwners,
) -> Option<(Doubt, Arc<str>)> {
    // An empty list proves nothing then: drivers keep from a caller what it could not see anyway.
    if let Some(trouble) = &owners.trouble {
        return Some((Doubt::Unseen, trouble.clone()));
    }
    let mut occupants = processes.iter().filter_map(|process| owners.occupants.get(&process.pid));
    // A pod that has only a UID, beside one that has only a name: they may be the same.
    let is_unnamed = occupants.any(|occupant| match occupant {
        Occupant::Pod(process) => {
            process.pod.is_none() && !given.iter().any(|party| party.is_of(process))
        }
        Occupant::Stranger | Occupant::Unknown(_) | Occupant::Mps => false,
    });
    let is_in_doubt = is_unnamed && given.iter().any(|party| party.uid.is_none());
    let why = "neither a gateway's brief nor --pod-logs says what they are called";
    is_in_doubt.then(|| (Doubt::Nameless, why.into()))
}

fn observed(
    given: Vec<Party>,
    processes: &[ObservedProcess],
    owners: &ProcessOwners,
    remarks: &mut Vec<String>,
) -> Merged {
    let mut holders = given;
    let mut undeclared: BTreeMap<(PodKey, PodUid, Arc<str>), Usage> = BTreeMap::new();
    let mut others = Usage::NOTHING;
    let mut seen = Vec::with_capacity(processes.len());
    let mut said = BTreeSet::new();
    let mut doubt = None;
    for process in processes {
        let occupant = owners.occupants.get(&process.pid);
        let is_idle = process.utilization.is_none_or(|used| used == 0.0);
        if occupant == Some(&Occupant::Mps) && is_idle {
            continue;
        }
        seen.push(*process);
        match occupant {
            Some(Occupant::Pod(pod)) => {
                if let Some(holder) = holder_of(&mut holders, pod) {
                    holder.usage.add(process);
                    continue;
                }
                let container = pod.container.clone().unwrap_or_default();
                match &pod.pod {
                    Some(key) => {
                        let key = (key.clone(), pod.uid.clone(), container);
                        undeclared.entry(key).or_insert(Usage::NOTHING).add(process);
                        continue;
                    }
                    None => {
                        doubt = doubt.or(Some(Doubt::Nameless));
                        said.insert(format!(
                            "used by a pod that has no known name, UID {}",
                            pod.uid
                        ))
                    }
                }
            }
            Some(Occupant::Stranger) => said.insert("used by processes outside any pod".into()),
            Some(Occupant::Unknown(why)) => {
                doubt = Some(Doubt::Unknown);
                said.insert(format!("used by a process of no known pod: {why}"))
            }
            Some(Occupant::Mps) => said.insert("used by the MPS server itself".into()),
            // It ended before it was looked at.
            None => false,
        };
        others.add(process);
    }
    let is_used_by_others = !said.is_empty();
    remarks.extend(said);
    holders.extend(undeclared.into_iter().map(|((pod, uid, container), usage)| Party {
        pod,
        uid: Some(uid),
        container,
        given: None,
        usage,
    }));
    let basis = Basis::of(&seen);
    Merged { holders, others, is_used_by_others, basis, remarks: Vec::new(), doubt }
}

/// The container of this process among those of its pod; where it is none of them or not known,
/// the first: the device was given to the pod.
fn holder_of<'a>(holders: &'a mut [Party], process: &PodProcess) -> Option<&'a mut Party> {
    let own = |holder: &Party| holder.is_of(process);
    let named = |holder: &Party| process.container.as_ref() == Some(&holder.container);
    let exact = holders.iter().position(|holder| own(holder) && named(holder));
    let place = exact.or_else(|| holders.iter().position(own))?;
    holders.get_mut(place)
}

/// Leaves out holders that no gateway would take; what they use counts all the same.
fn limit(merged: &mut Merged, remarks: &mut Vec<String>) {
    if merged.holders.len() <= MAX_HOLDERS {
        return;
    }
    let left_out = merged.holders.split_off(MAX_HOLDERS);
    remarks.push(format!("{} more holders than {MAX_HOLDERS} are left out", left_out.len()));
    left_out.iter().for_each(|holder| merged.others.merge(&holder.usage));
    merged.is_used_by_others = true;
}
