//! ResourceSlices as the API server gives them → the devices that a node's DRA drivers publish. Pure.
//!
//! Guarantees: a pool's devices are those of its highest generation; a list replaces what its watch
//! knew; strange or missing fields leave out the device or slice that has them and nothing else.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use kube::core::DynamicObject;
use serde::Deserialize;
use serde_json::Value;
use shared::brief::PublishedDevice;
use shared::identity::NodeName;

use super::intern::Interner;
use crate::directory::by_node::ByNode;

/// The drivers whose devices are kept.
pub const DRIVERS: [&str; 1] = ["gpu.nvidia.com"];
/// Bytes of a name or an attribute; longer ones are not kept.
const MAX_TEXT: usize = 253;

/// What is kept of one ResourceSlice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    node: NodeName,
    driver: Arc<str>,
    pool: Arc<str>,
    generation: i64,
    devices: Vec<PublishedDevice>,
}

/// One thing to do, from the watch.
#[derive(Debug)]
pub enum Change {
    /// A list begins.
    Begin,
    /// The slice of that name was listed or changed; `None` if it is none of ours.
    Apply(Arc<str>, Option<Box<Slice>>),
    /// It is gone.
    Delete(Arc<str>),
    /// The list is complete: what it did not name is gone.
    Complete,
    /// The cluster does not serve ResourceSlices any more.
    Absent,
}

/// Everything published, by node.
#[derive(Debug, Default)]
pub struct Published {
    nodes: HashMap<NodeName, BTreeMap<Arc<str>, Slice>>,
    /// Slice → its node.
    places: HashMap<Arc<str>, NodeName>,
    named: Option<HashSet<Arc<str>>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    driver: Option<String>,
    node_name: Option<String>,
    pool: Option<Pool>,
    devices: Option<Vec<Value>>,
}

#[derive(Deserialize)]
struct Pool {
    name: Option<String>,
    generation: Option<i64>,
}

#[derive(Deserialize)]
struct Device {
    name: String,
    /// Since v1beta2.
    attributes: Option<HashMap<String, Value>>,
    /// v1beta1.
    basic: Option<Basic>,
}

#[derive(Deserialize)]
struct Basic {
    attributes: Option<HashMap<String, Value>>,
}

/// Reads a ResourceSlice of any served version; `None` for one that is of no node or of no driver
/// that is known.
pub fn slice(object: &DynamicObject, texts: &mut Interner) -> Option<Slice> {
    let spec = Spec::deserialize(object.data.get("spec")?).ok()?;
    let driver = spec.driver.filter(|driver| DRIVERS.contains(&driver.as_str()))?;
    let node = spec.node_name.filter(|node| !node.is_empty())?;
    let pool = spec.pool?;
    let (driver, pool_name) = (texts.one(&driver), texts.one(&pool.name?));
    let devices = spec.devices.into_iter().flatten();
    let devices = devices.filter_map(|device| published(&driver, &pool_name, &device, texts));
    Some(Slice {
        devices: devices.collect(),
        node: texts.one(&node).into(),
        driver: driver.clone(),
        pool: pool_name.clone(),
        generation: pool.generation.unwrap_or_default(),
    })
}

/// A device of which more is known than its name.
fn published(
    driver: &Arc<str>,
    pool: &Arc<str>,
    device: &Value,
    texts: &mut Interner,
) -> Option<PublishedDevice> {
    let device = Device::deserialize(device).ok()?;
    let basic = device.basic.and_then(|basic| basic.attributes);
    let attributes = device.attributes.or(basic).unwrap_or_default();
    let mut text = |name: &str| {
        let own = format!("{driver}/{name}");
        let value = attributes.get(name).or_else(|| attributes.get(&own))?;
        let text = value.get("string")?.as_str()?;
        (1..=MAX_TEXT).contains(&text.len()).then(|| texts.one(text))
    };
    let (uuid, parent, profile) = (text("uuid"), text("parentUUID"), text("profile"));
    let is_known = uuid.is_some() || parent.is_some() || profile.is_some();
    (is_known && (1..=MAX_TEXT).contains(&device.name.len())).then(|| PublishedDevice {
        driver: driver.clone(),
        pool: pool.clone(),
        name: texts.one(&device.name),
        uuid: uuid.map(Into::into),
        parent: parent.map(Into::into),
        profile,
    })
}

impl Published {
    /// Does what the watch says and brings `nodes` in line; true if that changed something.
    pub fn apply(&mut self, change: Change, nodes: &mut ByNode) -> bool {
        match change {
            Change::Begin => {
                self.named = Some(HashSet::new());
                false
            }
            Change::Apply(name, slice) => {
                if let Some(named) = &mut self.named {
                    named.insert(name.clone());
                }
                self.replace(&name, slice.map(|slice| *slice), nodes)
            }
            Change::Delete(name) => self.replace(&name, None, nodes),
            Change::Complete => {
                let named = self.named.take().unwrap_or_default();
                self.keep(&named, nodes)
            }
            Change::Absent => self.keep(&HashSet::new(), nodes),
        }
    }

    fn keep(&mut self, named: &HashSet<Arc<str>>, nodes: &mut ByNode) -> bool {
        let gone: Vec<_> =
            self.places.keys().filter(|name| !named.contains(*name)).cloned().collect();
        for name in &gone {
            self.replace(name, None, nodes);
        }
        !gone.is_empty()
    }

    fn replace(&mut self, name: &Arc<str>, slice: Option<Slice>, nodes: &mut ByNode) -> bool {
        let before = self.places.remove(name);
        let known = before.as_ref().and_then(|node| self.nodes.get(node)?.get(name));
        if known == slice.as_ref() {
            self.places.extend(before.map(|node| (name.clone(), node)));
            return false;
        }
        let left = before.filter(|node| slice.as_ref().is_none_or(|slice| slice.node != *node));
        if let Some(node) = left {
            self.nodes.get_mut(&node).map(|slices| slices.remove(name));
            self.show(&node, nodes);
        }
        if let Some(slice) = slice {
            let node = slice.node.clone();
            self.nodes.entry(node.clone()).or_default().insert(name.clone(), slice);
            self.places.insert(name.clone(), node.clone());
            self.show(&node, nodes);
        }
        true
    }

    /// The devices of the highest generation of each pool of `node`.
    fn show(&mut self, node: &NodeName, nodes: &mut ByNode) {
        let Some(slices) = self.nodes.get(node) else { return };
        let mut newest: HashMap<(&str, &str), i64> = HashMap::new();
        for slice in slices.values() {
            let known = newest.entry((&slice.driver, &slice.pool)).or_insert(slice.generation);
            *known = slice.generation.max(*known);
        }
        let current = slices
            .values()
            .filter(|slice| newest[&(&*slice.driver, &*slice.pool)] == slice.generation);
        nodes.publish(node, current.flat_map(|slice| slice.devices.clone()).collect());
        if slices.is_empty() {
            self.nodes.remove(node);
        }
    }
}
