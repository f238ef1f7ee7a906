//! Who was given which device, as far as the kubelet says.
//!
//! Guarantees: what is not known is said, and is not an empty list.

use std::collections::HashMap;
use std::sync::Arc;

use shared::frame::HolderSource;
use shared::identity::{DeviceUuid, PodKey, PodUid};

/// Who was given which device, as far as the kubelet says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Declaration {
    /// The holders of each device; each pod's container once per device.
    pub holders: HashMap<DeviceUuid, Vec<DeclaredHolder>>,
    /// Ids that nobody could resolve.
    pub unresolved: Vec<Unresolved>,
    /// Why nothing is known at all, or why it is old.
    pub trouble: Option<Arc<str>>,
    /// False before the first listing and once the last one was dropped.
    pub is_known: bool,
}

/// A container that was given a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeclaredHolder {
    /// Its pod.
    pub pod: PodKey,
    /// The pod's UID, where known.
    pub uid: Option<PodUid>,
    /// Its container.
    pub container: Arc<str>,
    /// The kubelet's device plugins or DRA.
    pub source: HolderSource,
}

/// An id that could not be resolved to a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unresolved {
    /// The pod that was given it.
    pub pod: PodKey,
    /// The id.
    pub id: Arc<str>,
}

impl std::fmt::Display for Unresolved {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} was given {:?}", self.pod, self.id)
    }
}
