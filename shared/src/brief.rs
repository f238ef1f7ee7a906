//! What the gateway tells an agent about its own node: pods, published devices, engines to read.
//!
//! It comes down the stream that carries the samples up, so that nodes need no access to the
//! Kubernetes API.

use std::sync::Arc;

use crate::identity::{DeviceUuid, PodKey, PodUid};

/// What Kubernetes knows of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Brief {
    /// The node's pods, each namespace and name once.
    pub pods: Vec<BriefedPod>,
    /// Devices that DRA drivers publish for the node.
    pub devices: Vec<PublishedDevice>,
}

/// One pod of the node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BriefedPod {
    /// Its namespace and name.
    pub key: PodKey,
    /// Its UID.
    pub uid: PodUid,
    /// What its cgroups are called after where that is not the UID: a static pod's config hash.
    pub cgroup_uid: Option<PodUid>,
    /// Its containers, init containers included.
    pub containers: Vec<BriefedContainer>,
    /// Succeeded or Failed: it holds nothing any more.
    pub finished: bool,
    /// Its address.
    pub ip: Option<Arc<str>>,
    /// Where its inference engine is read, if it is to be.
    pub engine: Option<EngineTarget>,
}

/// One container of a pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BriefedContainer {
    /// Its name.
    pub name: Arc<str>,
    /// Its id without the runtime's scheme; `None` until it was started.
    pub id: Option<Arc<str>>,
}

/// Where and how a pod's engine is read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EngineTarget {
    /// Tried in this order until one publishes an engine's metrics.
    pub pages: Vec<EnginePage>,
    /// Selections of series (`engineLabels` in canonical form, empty for all), each reported as an
    /// engine of its own.
    pub labels: Vec<Arc<str>>,
    /// The engine that a trigger names.
    pub engine: Option<Arc<str>>,
}

/// A page of metrics in a pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EnginePage {
    /// Its port, from 1.
    pub port: u16,
    /// Its path, from `/`.
    pub path: Arc<str>,
}

/// A device as a DRA driver publishes it in a ResourceSlice.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PublishedDevice {
    /// The driver, for example `gpu.nvidia.com`.
    pub driver: Arc<str>,
    /// The pool, usually named after the node.
    pub pool: Arc<str>,
    /// Its name in the pool, for example `gpu-0`.
    pub name: Arc<str>,
    /// Its UUID, where published.
    pub uuid: Option<DeviceUuid>,
    /// The GPU it is cut from, where published.
    pub parent: Option<DeviceUuid>,
    /// Its MIG profile, where published.
    pub profile: Option<Arc<str>>,
}
