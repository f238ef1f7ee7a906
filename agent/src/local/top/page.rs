//! Pure: `/api/v1/devices` of a running agent → the frame it was made of.
//!
//! Guarantees: holders keep the source they have there; a page that is no such page is refused as
//! a whole.

use std::sync::Arc;

use serde::Deserialize;
use shared::frame::{Frame, HolderSource, Inventory};

use crate::device::replay::line;
use crate::frame::assemble;
use crate::owner::declared::Declaration;
use crate::owner::process::ProcessOwners;
use crate::owner::{Declared, Known, resolve};

/// What the replay format says and its reader has no use for.
#[derive(Deserialize)]
struct Sources {
    devices: Vec<Held>,
}

#[derive(Deserialize)]
struct Held {
    #[serde(default)]
    holders: Vec<Named>,
}

#[derive(Deserialize)]
struct Named {
    source: Option<String>,
}

/// The frame of the page `text`.
///
/// # Errors
/// When it is no page of `/api/v1/devices`: what is wrong with it.
pub fn frame(text: &str, previous: Option<&Arc<Inventory>>) -> Result<Frame, String> {
    let mut observation = line::parse(text.as_bytes())?.observation;
    let sources: Sources = serde_json::from_str(text).map_err(|error| error.to_string())?;
    for (device, named) in observation.devices.iter_mut().zip(sources.devices) {
        for (holder, named) in device.holders.iter_mut().zip(named.holders) {
            holder.source = named.source.as_deref().and_then(source).unwrap_or(holder.source);
        }
    }
    let known = Known {
        file: &Declared::new(),
        declaration: &Declaration::default(),
        processes: &ProcessOwners::unread(),
    };
    let mut owners = resolve(&observation, known);
    for (device, owners) in observation.devices.iter().zip(&mut owners) {
        // Nothing is found out here: what there is to say stands in the page.
        if device.holders.is_empty() {
            *owners = crate::owner::Owners::default();
        }
    }
    Ok(assemble(observation, owners, previous))
}

fn source(word: &str) -> Option<HolderSource> {
    let all = [
        HolderSource::Replay,
        HolderSource::File,
        HolderSource::Simulated,
        HolderSource::Kubelet,
        HolderSource::Dra,
        HolderSource::Process,
        HolderSource::Memory,
        HolderSource::Equal,
    ];
    all.into_iter().find(|source| source.name() == word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_keeps_what_its_holders_are_known_by() {
        let text = r#"{"at_ms":0,"devices":[{"uuid":"GPU-a","gpu_utilization":40,"holders":[
            {"namespace":"ai","pod":"a","source":"kubelet","share":0.5,"estimated":false},
            {"namespace":"ai","pod":"b","source":"process","gpu_utilization":10,"undeclared":true},
            {"namespace":"ai","pod":"c","source":"new one","share":0.1,"estimated":true}]},
            {"uuid":"GPU-b","gpu_utilization":null,"reason":"GPU is lost"}]}"#;
        let frame = frame(text, None).expect("a good page");
        let holders = &frame.inventory.devices[0].holders;
        let known: Vec<_> = holders.iter().map(|of| (of.source.name(), of.undeclared)).collect();
        assert_eq!(known, [("kubelet", false), ("process", true), ("replay", false)]);
        assert_eq!(frame.inventory.devices[1].reason.as_deref(), Some("GPU is lost"));
    }

    #[test]
    fn another_page_is_refused() {
        assert!(frame("gpu_agent_up 1\n", None).is_err());
        assert!(frame("{}", None).is_err());
    }
}
