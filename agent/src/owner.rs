//! Pure: holders as written down, as declared and as observed → the owners of each device.
//!
//! Guarantees: holders of a holders file win, and then those that the source itself names; for all
//! other devices the kubelet says who was given them and the processes who uses them. One owner has
//! all of its device; several have parts that never add up to more than it; what is nobody's stays
//! nobody's.

use std::collections::HashMap;
use std::sync::Arc;

use shared::frame::{HeldReading, Holder, HolderSource};
use shared::identity::DeviceUuid;

use crate::device::{Observation, ObservedDevice, ObservedHolder};

/// Text of `/proc/PID/cgroup` → pod and container.
pub mod cgroup;
/// What the kubelet gave to whom → declared holders.
pub mod declared;
/// The holders file.
pub mod file;
/// Holders that were written down.
mod given;
/// Devices that changed hands.
pub mod handover;
/// Device ids as the kubelet lists them.
pub mod id;
/// What the kubelet says.
pub mod kubelet;
/// Given and observed holders put together.
mod merge;
/// Names of pods from the folder of their logs.
pub mod podlogs;
/// Pids on devices → pods.
pub mod process;
/// Parts of a shared device.
pub mod split;

use declared::Declaration;
use merge::Merged;
use process::ProcessOwners;
use split::{Basis, Usage};

/// Holders that were written down, for the devices named there.
pub type Declared = HashMap<DeviceUuid, Vec<ObservedHolder>>;

/// What is known of holders beside what the source says.
#[derive(Clone, Copy, Debug)]
pub struct Known<'a> {
    /// The holders file; empty where there is none.
    pub file: &'a Declared,
    /// What the kubelet says.
    pub declaration: &'a Declaration,
    /// Whose the observed processes are.
    pub processes: &'a ProcessOwners,
}

/// Who holds one device.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Owners {
    /// The holders, each with its share.
    pub holders: Vec<Holder>,
    /// What is known of a holder by itself.
    pub held: Vec<HeldReading>,
    /// Why holders are not known, where there is something to say.
    pub reason: Option<Arc<str>>,
    /// What of them is not known, where that is so.
    pub doubt: Option<Doubt>,
    /// Whether what was read is of a time in which others held the device.
    pub is_handed_over: bool,
}

/// What is not known of a device's holders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// The kubelet's word is not there, or not confirmed any more.
    Kubelet,
    /// Something was given to somebody that names no device here.
    Unresolved,
    /// The driver does not say which processes use it.
    Unread,
    /// Processes are not seen from here.
    Unseen,
    /// What a pod that uses it is called.
    Nameless,
    /// Which pod a process that uses it is of.
    Unknown,
}

/// What there is to say about the holders of one device.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Note {
    /// In one sentence.
    pub said: Option<Arc<str>>,
    /// What of it is not known.
    pub doubt: Option<Doubt>,
}

impl Owners {
    /// What there is to say about them.
    pub fn note(&self) -> Note {
        Note { said: self.reason.clone(), doubt: self.doubt }
    }
}

/// The owners of every observed device, in the order of the devices.
pub fn resolve(observation: &Observation, known: Known<'_>) -> Vec<Owners> {
    let devices = &observation.devices;
    let given = |device: &ObservedDevice| {
        let written = known.file.get(&device.uuid);
        let own = (!device.holders.is_empty()).then_some(&device.holders);
        Some(given::owners(written.or(own)?, device.memory_total_mib))
    };
    let given: Vec<_> = devices.iter().map(given).collect();
    let merge = |device| merge::merge(device, known.declaration, known.processes);
    let merged: Vec<_> = devices
        .iter()
        .zip(&given)
        .map(|(device, given)| given.is_none().then(|| merge(device)))
        .collect();
    let found = |at: usize| found(at, devices, &merged, known.declaration.is_known);
    given
        .into_iter()
        .enumerate()
        .map(|(at, given)| given.or_else(|| found(at)).unwrap_or_default())
        .collect()
}

/// The owners of the device at `at`, whose holders nobody wrote down.
fn found(
    at: usize,
    devices: &[ObservedDevice],
    all: &[Option<Merged>],
    is_declared: bool,
) -> Option<Owners> {
    let (device, merged) = (&devices[at], all[at].as_ref()?);
    let reason = (!merged.remarks.is_empty()).then(|| merged.remarks.join("; ").into());
    let mut owners = Owners { reason, doubt: merged.doubt, ..Owners::default() };
    let together = together(at, devices);
    if together.len() == 1 && merged.is_exclusive() {
        owners.holders = exclusive(merged);
        return Some(owners);
    }
    let crowd = Crowd::of(&together, all);
    let (total, others) = (device.memory_total_mib, crowd.others);
    let parts = split::split(crowd.basis, &device.readings, total, &crowd.parties, others);
    let first = crowd.first(at);
    for (holder, (party, part)) in merged.holders.iter().zip(&parts[first..]).enumerate() {
        owners.holders.push(Holder {
            pod: party.pod.clone(),
            uid: party.uid.clone(),
            container: party.container.clone(),
            share: part.share,
            estimated: crowd.basis.is_estimate(),
            source: crowd.basis.source(),
            undeclared: is_declared && party.given.is_none(),
        });
        let own = part.held.iter();
        owners.held.extend(own.map(|&(metric, value)| HeldReading { holder, metric, value }));
    }
    Some(owners)
}

/// Everyone on devices that are split as one.
struct Crowd {
    parties: Vec<split::Party>,
    others: Usage,
    basis: Basis,
    /// Of each device the place of its first party.
    first: Vec<(usize, usize)>,
}

impl Crowd {
    fn of(places: &[usize], all: &[Option<Merged>]) -> Self {
        let mut crowd = Self {
            parties: Vec::new(),
            others: Usage::NOTHING,
            basis: Basis::Process,
            first: Vec::new(),
        };
        let mut pods = Vec::new();
        for (place, merged) in
            places.iter().filter_map(|&place| Some((place, all[place].as_ref()?)))
        {
            crowd.first.push((place, crowd.parties.len()));
            crowd.others.merge(&merged.others);
            crowd.basis = crowd.basis.max(merged.basis);
            for party in &merged.holders {
                let pod = (place, &party.pod, &party.uid);
                let known = pods.iter().position(|known| *known == pod);
                let pod = known.unwrap_or_else(|| {
                    pods.push(pod);
                    pods.len() - 1
                });
                let is_declared = party.given.is_some();
                crowd.parties.push(split::Party { pod, is_declared, usage: party.usage });
            }
        }
        crowd
    }

    fn first(&self, at: usize) -> usize {
        self.first.iter().find(|(place, _)| *place == at).map_or(0, |(_, first)| *first)
    }
}

/// Places of the devices whose readings are not theirs alone: the compute instances of one GPU
/// instance read the same.
fn together(at: usize, devices: &[ObservedDevice]) -> Vec<usize> {
    let instance = |device: &ObservedDevice| {
        Some((device.mig.as_ref()?.parent.clone(), device.seat.gpu_instance?))
    };
    match instance(&devices[at]) {
        None => vec![at],
        own => (0..devices.len()).filter(|&place| instance(&devices[place]) == own).collect(),
    }
}

/// One pod has all of the device, its containers as much each.
fn exclusive(merged: &Merged) -> Vec<Holder> {
    let containers = merged.holders.len();
    let holder = |holder: &merge::Party| Holder {
        pod: holder.pod.clone(),
        uid: holder.uid.clone(),
        container: holder.container.clone(),
        share: Some(1.0 / containers as f64),
        estimated: containers > 1,
        source: match holder.given {
            Some(source) if containers == 1 => source,
            _ => HolderSource::Equal,
        },
        undeclared: false,
    };
    merged.holders.iter().map(holder).collect()
}
