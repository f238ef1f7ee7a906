//! A workload's pods as the decision takes them, where each of them may be, and where it was found.
//!
//! Guarantees: made anew whenever the directory says anything else of the workload. Where a pod was
//! found is only the shorter way to it: it is taken as long as its node speaks of the very same
//! inventory, and else the pod is looked up; so it cannot change an answer.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use shared::frame::Inventory;
use shared::identity::NodeName;
use smallvec::{SmallVec, smallvec};

use crate::directory::{Pod, Workload};
use crate::fleet::view::{NodeView, PodView, Spot};
use crate::fleet::{Fleet, Slot};
use crate::trigger::observed::{self, PartReadings};

/// Nearly always one.
pub type Few<T> = SmallVec<[T; 1]>;
/// Pods that are read as one.
pub type Members<'a> = Few<&'a Arc<Pod>>;
/// What a node says of a pod.
pub type Said<'a> = (&'a NodeView, PodView<'a>);

/// Where `pod` may be: its own node, or wherever agents say it is.
pub fn nodes_of(fleet: &Fleet, pod: &Pod) -> Vec<NodeName> {
    match &pod.node {
        Some(node) => vec![node.clone()],
        None => fleet.homes(&pod.key),
    }
}

/// What is said about `pod` where it may be.
pub fn views_of(fleet: &Fleet, pod: &Pod) -> Few<Arc<NodeView>> {
    match &pod.node {
        Some(node) => fleet.view(node).map_or_else(Few::new, |view| smallvec![view]),
        None => fleet.homes(&pod.key).iter().filter_map(|node| fleet.view(node)).collect(),
    }
}

/// What each of `views` says of `pod`.
pub fn said_of<'a>(views: &'a [Arc<NodeView>], pod: &'a Pod) -> Few<Said<'a>> {
    let mut said = Few::new();
    for view in views {
        if let Some(of_pod) = view.pod(&pod.key, pod.uid.as_ref()) {
            said.push((&**view, of_pod));
        }
    }
    said
}

/// The pods that exist, groups together, in the order of their first pod's name.
pub fn groups(workload: &Workload) -> Vec<Members<'_>> {
    let mut groups: BTreeMap<&Arc<str>, usize> = BTreeMap::new();
    let mut pods: Vec<Members<'_>> = Vec::with_capacity(workload.pods.len());
    for pod in workload.pods.iter().filter(|pod| pod.exists()) {
        match pod.group.as_ref().map(|group| groups.entry(group)) {
            Some(std::collections::btree_map::Entry::Occupied(at)) => pods[*at.get()].push(pod),
            Some(std::collections::btree_map::Entry::Vacant(new)) => {
                new.insert(pods.len());
                pods.push(smallvec![pod]);
            }
            None => pods.push(smallvec![pod]),
        }
    }
    pods
}

/// The pods of one workload.
pub struct Roster {
    workload: Arc<Workload>,
    /// As the decision takes them: those that exist, groups together.
    pub pods: Arc<[observed::Pod]>,
    /// Those that are Running and Ready.
    pub ready_running: u32,
    /// What the pods' devices are in.
    inventories: Arc<[Arc<Inventory>]>,
    members: Vec<Member>,
    /// Where in `members` each of `pods` ends.
    ends: SmallVec<[usize; 2]>,
}

/// A pod, and where it was found.
pub struct Member {
    pod: Arc<Pod>,
    found: Option<Found>,
}

struct Found {
    slot: Slot,
    spot: Spot,
    /// place of its node's inventory in `Roster::inventories`.
    inventory: usize,
}

impl Roster {
    /// The pods of `workload`, looked for in `fleet`.
    pub fn new(fleet: &Fleet, workload: &Arc<Workload>) -> Self {
        let (mut members, mut ends) = (Vec::with_capacity(workload.pods.len()), SmallVec::new());
        let mut inventories = Vec::new();
        let groups = groups(workload);
        for group in &groups {
            members.extend(group.iter().map(|pod| Member::new(fleet, pod, &mut inventories)));
            ends.push(members.len());
        }
        let ready_running = workload.pods.iter().filter(|pod| pod.is_ready_running()).count();
        Self {
            pods: groups.iter().map(one).collect(),
            ready_running: u32::try_from(ready_running).unwrap_or(u32::MAX),
            inventories: inventories.into(),
            members,
            ends,
            workload: workload.clone(),
        }
    }

    /// Whether it is what the directory says.
    pub fn is_of(&self, workload: &Arc<Workload>) -> bool {
        Arc::ptr_eq(&self.workload, workload)
    }

    /// The workload.
    pub fn workload(&self) -> &Workload {
        &self.workload
    }

    /// Room for the readings of its pods.
    pub fn readings(&self) -> PartReadings {
        PartReadings::of_pods(self.pods.len(), self.inventories.clone())
    }

    /// The pods that are read as one, for each of [`Self::pods`].
    pub fn groups(&self) -> impl Iterator<Item = &[Member]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| &self.members[Range { start, end: *end }])
    }
}

impl Member {
    fn new(fleet: &Fleet, pod: &Arc<Pod>, inventories: &mut Vec<Arc<Inventory>>) -> Self {
        let mut find = || {
            let slot = fleet.slot(pod.node.as_ref()?)?;
            let spot = slot.view().as_ref()?.spot(&pod.key, pod.uid.as_ref())?;
            inventories.push(spot.inventory().clone());
            Some(Found { slot, spot, inventory: inventories.len() - 1 })
        };
        Self { pod: pod.clone(), found: find() }
    }

    /// The pod.
    pub fn pod(&self) -> &Pod {
        &self.pod
    }

    /// Hands to `read` what is said of the pod wherever it may be, and the place of the inventory
    /// among those of the roster where it is one; returns whether it was found where a new roster
    /// would find it sooner.
    #[inline]
    pub fn said(&self, fleet: &Fleet, read: impl FnOnce(&[Said<'_>], Option<usize>)) -> bool {
        if let Some(Found { slot, spot, inventory }) = &self.found
            && let Some(view) = &*slot.view()
            && let Some(pod) = view.pod_at(spot)
        {
            read(&[(&**view, pod)], Some(*inventory));
            return false;
        }
        let views = views_of(fleet, &self.pod);
        let said = said_of(&views, &self.pod);
        read(&said, None);
        self.pod.node.is_some() && !said.is_empty()
    }
}

/// A group is Ready when all of it is, and since the last of it became so.
fn one(members: &Members<'_>) -> observed::Pod {
    let ready = members.iter().all(|pod| pod.ready);
    let same = members.iter().filter(|pod| pod.ready == ready);
    let first = members[0];
    observed::Pod {
        name: first.key.name.clone(),
        uid: first.uid.clone(),
        node: first.node.clone(),
        ready,
        since: same.map(|pod| pod.since).max().unwrap_or_default(),
        unscheduled: members.iter().find_map(|pod| pod.unscheduled.clone()),
    }
}
