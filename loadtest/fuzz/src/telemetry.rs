//! What agents send: messages, each with its length before it.
//!
//! Guarantees: what comes off the wire is bounded, holds only values in range and goes over the
//! wire again unchanged; the fleet shows it without finding anything missing.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use gateway::fleet::{Fleet, Session};
use prost::Message;
use proto::convert::{
    Link, MAX_DEVICES, MAX_ENGINES, MAX_HOLDERS, MAX_NAME, MAX_REASON, MAX_REFUSALS,
    inventory_to_wire, sample_to_wire,
};
use proto::uplink::agent_message::Body;
use proto::uplink::{self as wire, AgentMessage};
use shared::frame::{Device, Inventory, Sample};
use shared::reading::{Reading, Readings};
use shared::time::Timestamp;

/// Reads `data` as the messages of one agent.
pub fn read(mut data: &[u8]) {
    let fleet = Arc::new(Fleet::default());
    let session = fleet.open("node".into(), Duration::from_secs(1), "1".into()).unwrap();
    let mut link: Option<Link> = None;
    let mut now = Timestamp::START;
    while !data.is_empty() {
        let Ok(message) = AgentMessage::decode_length_delimited(&mut data) else { return };
        now = now + Duration::from_secs(1);
        match (message.body, &link) {
            (Some(Body::Inventory(inventory)), _) => {
                let Ok((opened, refusals)) = Link::open(inventory) else { continue };
                assert!(refusals.len() <= MAX_REFUSALS);
                is_inventory(opened.inventory());
                link = Some(opened);
            }
            (Some(Body::Sample(sample)), Some(link)) => take(link, sample, &session, now),
            _ => {}
        }
    }
    shown(&fleet);
}

fn take(link: &Link, message: wire::Sample, session: &Session, now: Timestamp) {
    let Ok((sample, refusals)) = link.sample(message) else { return };
    assert!(refusals.len() <= MAX_REFUSALS);
    is_sample(link.inventory(), &sample);
    let (again, refusals) = Link::open(inventory_to_wire(7, link.inventory())).unwrap();
    assert!(refusals.is_empty(), "{refusals:?}");
    assert_eq!(again.inventory(), link.inventory());
    let (same, refusals) = again.sample(sample_to_wire(7, &sample, Duration::ZERO)).unwrap();
    assert!(refusals.is_empty(), "{refusals:?}");
    assert_eq!(same, sample);
    session.apply(link.inventory(), sample, now);
}

fn is_inventory(inventory: &Inventory) {
    assert!(inventory.devices.len() <= MAX_DEVICES && inventory.engines.len() <= MAX_ENGINES);
    let uuids: HashSet<_> = inventory.devices.iter().map(|device| &device.uuid).collect();
    assert_eq!(uuids.len(), inventory.devices.len());
    let engines: HashSet<_> =
        inventory.engines.iter().map(|engine| (&engine.pod, &engine.labels)).collect();
    assert_eq!(engines.len(), inventory.engines.len());
    inventory.devices.iter().for_each(is_device);
}

fn is_device(device: &Device) {
    assert!((1..=MAX_NAME).contains(&device.uuid.as_str().len()));
    assert!(device.holders.len() <= MAX_HOLDERS);
    assert!(device.memory_total_mib.is_none_or(|total| total > 0.0 && total.is_finite()));
    assert!(device.reason.as_ref().is_none_or(|reason| reason.len() <= MAX_REASON));
    for holder in &device.holders {
        assert!(!holder.pod.name.is_empty() && !holder.pod.namespace.is_empty());
        assert!(holder.share.is_none_or(|share| (0.0..=1.0).contains(&share)));
    }
}

fn is_sample(inventory: &Inventory, sample: &Sample) {
    assert_eq!(sample.devices.len(), inventory.devices.len());
    assert_eq!(sample.engines.len(), inventory.engines.len());
    for (device, sample) in inventory.devices.iter().zip(&sample.devices) {
        let Some(sample) = sample else { continue };
        are_in_range(&sample.readings);
        let mut seen = HashSet::new();
        for held in &sample.held {
            assert!(held.holder < device.holders.len() && held.metric.accepts(held.value));
            assert!(seen.insert((held.holder, held.metric)), "{held:?} twice");
        }
    }
    sample.engines.iter().flatten().for_each(|engine| are_in_range(&engine.readings));
}

fn are_in_range(readings: &Readings) {
    for (metric, reading) in readings.iter() {
        match reading {
            Reading::Ok(value) => assert!(metric.accepts(value), "{metric} {value}"),
            Reading::Failed(why) => assert!(why.len() <= MAX_REASON),
            Reading::Unsupported => panic!("{metric} is there and is not"),
        }
    }
}

/// Every pod that was spoken of can be looked up.
fn shown(fleet: &Fleet) {
    let Some(view) = fleet.view(&"node".into()) else { return };
    let inventory = view.inventory();
    let holders = inventory.devices.iter().flat_map(|device| &device.holders);
    let pods = holders.map(|holder| &holder.pod);
    for pod in pods.chain(inventory.engines.iter().map(|engine| &engine.pod)) {
        assert!(!fleet.homes(pod).is_empty(), "{pod} is nowhere");
        assert!(view.pod(pod, None).is_some(), "{pod} is on no view");
    }
}
