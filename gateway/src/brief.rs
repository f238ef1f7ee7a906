//! What an agent is told about its own node. Pure.
//!
//! Guarantees: made from one node of one snapshot; sorted, so that equal facts make equal briefs;
//! bounded by what an agent takes, with pods that may hold something before those that do not.

use proto::brief::{MAX_CONTAINERS, MAX_PODS, MAX_PUBLISHED};
use shared::brief::{Brief, BriefedContainer, BriefedPod, EngineTarget};
use shared::identity::NodeName;

use crate::directory::kube::pod::CONFIG_HASH;
use crate::directory::{Phase, Pod, Snapshot};

/// Containers of one brief: with them it stays below what a gRPC message may have.
const ALL_CONTAINERS: usize = 8_192;

/// The brief of `node`: every pod of it that the directory knows, scaled or not, because
/// strangers on a device must be named too. `engine` says where a pod's engine is read, if it is.
pub fn brief(
    snapshot: &Snapshot,
    node: &NodeName,
    engine: impl Fn(&Pod) -> Option<EngineTarget>,
) -> Brief {
    let of_node = snapshot.node(node);
    let (mut unfinished, finished): (Vec<&Pod>, Vec<&Pod>) =
        of_node.pods().iter().map(|pod| &**pod).partition(|pod| !is_finished(pod));
    unfinished.extend(finished);
    let mut room = ALL_CONTAINERS;
    let pods = unfinished.into_iter().filter_map(|pod| briefed(pod, &mut room, &engine));
    let mut pods: Vec<_> = pods.take(MAX_PODS).collect();
    pods.sort_by(|a, b| a.key.cmp(&b.key));
    let mut devices = of_node.devices().to_vec();
    devices.sort_by(|a, b| {
        (&a.driver, &a.pool, &a.name, &a.uuid).cmp(&(&b.driver, &b.pool, &b.name, &b.uuid))
    });
    devices.truncate(MAX_PUBLISHED);
    Brief { pods, devices }
}

fn is_finished(pod: &Pod) -> bool {
    matches!(pod.phase, Phase::Succeeded | Phase::Failed)
}

/// A static pod's hash is an MD5 sum. Anyone may write the annotation: in this form it cannot name
/// the cgroups of another pod, whose UID has dashes.
fn is_hash(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// One pod; `None` without a UID, by which agents tell it from its namesakes.
fn briefed(
    pod: &Pod,
    room: &mut usize,
    engine: impl Fn(&Pod) -> Option<EngineTarget>,
) -> Option<BriefedPod> {
    let uid = pod.uid.clone()?;
    let containers = pod.containers.iter().take(MAX_CONTAINERS.min(*room));
    let containers = containers.map(|container| BriefedContainer {
        name: container.name.clone(),
        id: container.id.map(|id| id.to_string().into()),
    });
    let containers: Vec<_> = containers.collect();
    *room -= containers.len();
    Some(BriefedPod {
        key: pod.key.clone(),
        uid,
        cgroup_uid: pod.annotation(CONFIG_HASH).filter(|hash| is_hash(hash)).map(Into::into),
        containers,
        finished: is_finished(pod),
        ip: pod.ip.clone(),
        engine: engine(pod),
    })
}
