//! What gateways tell agents about their node.
//!
//! Guarantees: what comes off the wire is bounded, has each pod once and goes over the wire again
//! unchanged.

use std::collections::HashSet;

use prost::Message;
use proto::brief::{
    MAX_CONTAINERS, MAX_PAGES, MAX_PODS, MAX_PUBLISHED, MAX_SELECTIONS, from_wire, to_wire,
};
use proto::uplink::GatewayMessage;
use proto::uplink::gateway_message::Body;
use shared::brief::{Brief, EngineTarget};

/// Reads `data` as one message of a gateway.
pub fn read(data: &[u8]) {
    let Ok(message) = GatewayMessage::decode(data) else { return };
    let Some(Body::Brief(brief)) = message.body else { return };
    let (brief, _) = from_wire(brief);
    is_brief(&brief);
    let (again, refusals) = from_wire(to_wire(1, &brief));
    assert!(refusals.is_empty(), "{refusals:?}");
    assert_eq!(again, brief);
}

fn is_brief(brief: &Brief) {
    assert!(brief.pods.len() <= MAX_PODS && brief.devices.len() <= MAX_PUBLISHED);
    let pods: HashSet<_> = brief.pods.iter().map(|pod| &pod.key).collect();
    assert_eq!(pods.len(), brief.pods.len());
    for pod in &brief.pods {
        assert!(pod.containers.len() <= MAX_CONTAINERS);
        assert!(pod.containers.iter().all(|container| !container.name.is_empty()));
        pod.engine.iter().for_each(is_target);
    }
}

fn is_target(target: &EngineTarget) {
    assert!((1..=MAX_PAGES).contains(&target.pages.len()));
    assert!((1..=MAX_SELECTIONS).contains(&target.labels.len()));
    for page in &target.pages {
        assert!(page.port > 0 && page.path.starts_with('/'));
    }
}
