//! Node briefs ⇄ uplink messages, both directions side by side.
//!
//! Guarantees: what comes out of `from_wire` is bounded and has each pod once. A bad element is
//! left out by itself and named in the returned refusals.

use std::collections::HashSet;
use std::sync::Arc;

use shared::brief::{
    Brief, BriefedContainer, BriefedPod, EnginePage, EngineTarget, PublishedDevice,
};
use shared::identity::PodKey;

use crate::convert::{MAX_LABELS, MAX_NAME, Refusals};
use crate::uplink as wire;

/// Pods a node may have: ten times what the kubelet allows by default.
pub const MAX_PODS: usize = 1_100;
/// Containers a pod may have.
pub const MAX_CONTAINERS: usize = 256;
/// Pages an engine may be looked for on.
pub const MAX_PAGES: usize = 8;
/// Selections of series an engine may be asked for.
pub const MAX_SELECTIONS: usize = 32;
/// Devices that may be published for a node: every slice and placement of 16 GPUs, twice.
pub const MAX_PUBLISHED: usize = 4_096;
/// Bytes of a page's path.
pub const MAX_PATH: usize = 1_024;

/// Takes a brief off the wire.
pub fn from_wire(message: wire::Brief) -> (Brief, Refusals) {
    let mut refusals = Refusals::new();
    let mut brief = Brief::default();
    let (pods, devices) = (message.pods.len(), message.devices.len());
    if pods > MAX_PODS {
        refusals.push(format!("{pods} pods; only the first {MAX_PODS} are taken"));
    }
    if devices > MAX_PUBLISHED {
        refusals.push(format!("{devices} devices; only the first {MAX_PUBLISHED} are taken"));
    }
    let mut seen = HashSet::new();
    for (place, pod) in message.pods.into_iter().take(MAX_PODS).enumerate() {
        match pod_from_wire(pod, &mut refusals) {
            Ok(pod) if seen.insert(pod.key.clone()) => brief.pods.push(pod),
            Ok(pod) => refusals.push(format!("pod {place}: {} came before", pod.key)),
            Err(why) => refusals.push(format!("pod {place}: {why}")),
        }
    }
    for (place, device) in message.devices.into_iter().take(MAX_PUBLISHED).enumerate() {
        match device_from_wire(&device) {
            Ok(device) => brief.devices.push(device),
            Err(why) => refusals.push(format!("device {place}: {why}")),
        }
    }
    (brief, refusals)
}

fn needed(what: &str, text: &str, max: usize) -> Result<Arc<str>, String> {
    match text.len() {
        0 => Err(format!("the {what} is empty")),
        length if length > max => {
            Err(format!("the {what} has {length} bytes; at most {max} are accepted"))
        }
        _ => Ok(text.into()),
    }
}

/// What may be left out by leaving it empty.
fn optional(what: &str, text: &str) -> Result<Option<Arc<str>>, String> {
    if text.is_empty() { Ok(None) } else { needed(what, text, MAX_NAME).map(Some) }
}

fn pod_from_wire(pod: wire::BriefedPod, refusals: &mut Refusals) -> Result<BriefedPod, String> {
    let namespace = needed("namespace", &pod.namespace, MAX_NAME)?;
    let key = PodKey::new(namespace, needed("name", &pod.name, MAX_NAME)?);
    if pod.containers.len() > MAX_CONTAINERS {
        return Err(format!("{} containers; at most {MAX_CONTAINERS}", pod.containers.len()));
    }
    let mut containers = Vec::with_capacity(pod.containers.len());
    for container in &pod.containers {
        containers.push(BriefedContainer {
            name: needed("container's name", &container.name, MAX_NAME)?,
            id: optional("container's id", &container.id)?,
        });
    }
    let engine = match pod.engine.map(engine_from_wire) {
        None => None,
        Some(Ok(engine)) => Some(engine),
        Some(Err(why)) => {
            refusals.push(format!("engine of {key}: {why}"));
            None
        }
    };
    Ok(BriefedPod {
        uid: needed("uid", &pod.uid, MAX_NAME)?.into(),
        cgroup_uid: optional("cgroup uid", &pod.cgroup_uid)?.map(Into::into),
        containers,
        finished: pod.finished,
        ip: optional("ip", &pod.ip)?,
        engine,
        key,
    })
}

fn engine_from_wire(engine: wire::EngineTarget) -> Result<EngineTarget, String> {
    if !(1..=MAX_PAGES).contains(&engine.pages.len()) {
        return Err(format!("{} pages; 1 to {MAX_PAGES} are accepted", engine.pages.len()));
    }
    if !(1..=MAX_SELECTIONS).contains(&engine.labels.len()) {
        let count = engine.labels.len();
        return Err(format!("{count} selections of series; 1 to {MAX_SELECTIONS} are accepted"));
    }
    let mut pages = Vec::with_capacity(engine.pages.len());
    for page in &engine.pages {
        let port = u16::try_from(page.port).ok().filter(|port| *port > 0);
        let port = port.ok_or_else(|| format!("port {}; 1 to 65535 are ports", page.port))?;
        let path = needed("path", &page.path, MAX_PATH)?;
        if !path.starts_with('/') {
            return Err(format!("path {path:?} does not begin with /"));
        }
        pages.push(EnginePage { port, path });
    }
    if let Some(long) = engine.labels.iter().find(|labels| labels.len() > MAX_LABELS) {
        return Err(format!("labels of {} bytes; at most {MAX_LABELS} are accepted", long.len()));
    }
    Ok(EngineTarget {
        pages,
        labels: engine.labels.iter().map(|labels| labels.as_str().into()).collect(),
        engine: optional("engine", &engine.engine)?,
    })
}

fn device_from_wire(device: &wire::PublishedDevice) -> Result<PublishedDevice, String> {
    Ok(PublishedDevice {
        driver: needed("driver", &device.driver, MAX_NAME)?,
        pool: needed("pool", &device.pool, MAX_NAME)?,
        name: needed("name", &device.name, MAX_NAME)?,
        uuid: optional("uuid", &device.uuid)?.map(Into::into),
        parent: optional("parent's uuid", &device.parent_uuid)?.map(Into::into),
        profile: optional("profile", &device.profile)?,
    })
}

/// Puts a brief on the wire.
pub fn to_wire(version: u64, brief: &Brief) -> wire::Brief {
    wire::Brief {
        version,
        pods: brief.pods.iter().map(pod_to_wire).collect(),
        devices: brief.devices.iter().map(device_to_wire).collect(),
    }
}

fn text<T: ToString>(value: Option<&T>) -> String {
    value.map_or_else(String::new, ToString::to_string)
}

fn pod_to_wire(pod: &BriefedPod) -> wire::BriefedPod {
    let containers = pod.containers.iter().map(|container| wire::BriefedContainer {
        name: container.name.to_string(),
        id: text(container.id.as_ref()),
    });
    let engine = pod.engine.as_ref().map(|engine| wire::EngineTarget {
        pages: engine
            .pages
            .iter()
            .map(|page| wire::EnginePage { port: page.port.into(), path: page.path.to_string() })
            .collect(),
        labels: engine.labels.iter().map(ToString::to_string).collect(),
        engine: text(engine.engine.as_ref()),
    });
    wire::BriefedPod {
        namespace: pod.key.namespace.to_string(),
        name: pod.key.name.to_string(),
        uid: pod.uid.to_string(),
        cgroup_uid: text(pod.cgroup_uid.as_ref()),
        containers: containers.collect(),
        finished: pod.finished,
        ip: text(pod.ip.as_ref()),
        engine,
    }
}

fn device_to_wire(device: &PublishedDevice) -> wire::PublishedDevice {
    wire::PublishedDevice {
        driver: device.driver.to_string(),
        pool: device.pool.to_string(),
        name: device.name.to_string(),
        uuid: text(device.uuid.as_ref()),
        parent_uuid: text(device.parent.as_ref()),
        profile: text(device.profile.as_ref()),
    }
}
