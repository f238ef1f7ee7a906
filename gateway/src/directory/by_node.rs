//! The cluster by node: the pods on it and the devices that DRA drivers publish for it.
//!
//! Guarantees: copies share what did not change, so a change costs its own node and one list of
//! the nodes; two looks at a node tell without a comparison of contents whether anything changed.

use std::collections::HashMap;
use std::sync::Arc;

use shared::brief::PublishedDevice;
use shared::identity::{NodeName, PodKey};

use super::Pod;

/// Pods and published devices of every node.
#[derive(Clone, Debug, Default)]
pub struct ByNode {
    pods: Arc<HashMap<NodeName, Arc<Vec<Arc<Pod>>>>>,
    devices: Arc<HashMap<NodeName, Arc<[PublishedDevice]>>>,
    /// Changes with everything else that a node's brief may depend on: triggers and selectors.
    declared: u64,
}

/// One node at one moment.
#[derive(Clone, Debug, Default)]
pub struct OfNode {
    pods: Option<Arc<Vec<Arc<Pod>>>>,
    devices: Option<Arc<[PublishedDevice]>>,
    declared: u64,
}

impl ByNode {
    /// The pods of a source that reads all of them at once, as its look number `declared`.
    pub fn of(pods: impl IntoIterator<Item = Arc<Pod>>, declared: u64) -> Self {
        let mut all = Self { declared, ..Self::default() };
        pods.into_iter().for_each(|pod| all.put(pod));
        all
    }

    /// Adds a pod that is on a node, or replaces its namesake there.
    pub fn put(&mut self, pod: Arc<Pod>) {
        let Some(node) = &pod.node else { return };
        let pods = Arc::make_mut(&mut self.pods).entry(node.clone()).or_default();
        let pods = Arc::make_mut(pods);
        match place(pods, &pod.key) {
            Ok(at) => pods[at] = pod,
            Err(at) => pods.insert(at, pod),
        }
    }

    /// Takes a pod off its node.
    pub fn remove(&mut self, pod: &Pod) {
        let Some(node) = &pod.node else { return };
        let all = Arc::make_mut(&mut self.pods);
        let Some(pods) = all.get_mut(node) else { return };
        let Ok(at) = place(pods, &pod.key) else { return };
        Arc::make_mut(pods).remove(at);
        if pods.is_empty() {
            all.remove(node);
        }
    }

    /// Replaces the devices published for `node`.
    pub fn publish(&mut self, node: &NodeName, devices: Vec<PublishedDevice>) {
        let all = Arc::make_mut(&mut self.devices);
        if devices.is_empty() {
            all.remove(node);
        } else {
            all.insert(node.clone(), devices.into());
        }
    }

    /// Triggers or selectors changed.
    pub fn declare(&mut self) {
        self.declared += 1;
    }

    /// One node.
    pub fn node(&self, node: &NodeName) -> OfNode {
        OfNode {
            pods: self.pods.get(node).cloned(),
            devices: self.devices.get(node).cloned(),
            declared: self.declared,
        }
    }
}

fn place(pods: &[Arc<Pod>], key: &PodKey) -> Result<usize, usize> {
    pods.binary_search_by(|pod| pod.key.cmp(key))
}

impl OfNode {
    /// Its pods, by namespace and name; finished ones and those being deleted included.
    pub fn pods(&self) -> &[Arc<Pod>] {
        self.pods.as_ref().map_or(&[], |pods| pods)
    }

    /// The devices published for it.
    pub fn devices(&self) -> &[PublishedDevice] {
        self.devices.as_ref().map_or(&[], |devices| devices)
    }

    /// Whether nothing changed between the two looks.
    pub fn is_same_as(&self, other: &Self) -> bool {
        let same_pods = match (&self.pods, &other.pods) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            (a, b) => a.is_none() && b.is_none(),
        };
        let same_devices = match (&self.devices, &other.devices) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            (a, b) => a.is_none() && b.is_none(),
        };
        same_pods && same_devices && self.declared == other.declared
    }
}
