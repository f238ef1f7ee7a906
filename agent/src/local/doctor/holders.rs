//! Pure: what is shown of a node and what is known of its holders → who holds each device, and why
//! nobody does.
//!
//! Guarantees: every device has its line; one that nobody holds has the reason. The link is broken
//! only where something is not known, or where a pod uses what it was not given.

use std::path::Path;

use shared::metric::Metric;

use super::devices::own_reason;
use super::{Broken, quoted};
use crate::local::table::holder;
use crate::local::view::{DeviceView, View};
use crate::owner::{Doubt, Note};

/// What decides what can be known.
#[derive(Clone, Copy, Debug)]
pub struct Circumstances<'a> {
    /// What it means that nobody holds a device and nothing is said of it.
    pub unheld: &'a str,
    /// Whether a gateway tells a running agent what pods are called.
    pub is_briefed: bool,
    /// Where the kernel's files are mounted.
    pub proc_root: &'a Path,
}

/// A line for every device of `view`, and whether who holds it is known; `notes` run parallel to
/// its devices.
///
/// # Errors
/// The first device of which it is not.
pub fn holders(
    view: &View<'_>,
    notes: &[Note],
    circumstances: Circumstances<'_>,
) -> (Vec<String>, Result<String, Broken>) {
    let nothing = Note::default();
    let devices = || {
        let note = |place| notes.get(place).unwrap_or(&nothing);
        view.devices.iter().enumerate().map(move |(place, device)| (device, note(place)))
    };
    let lines = devices().map(|(device, note)| line(view, device, note, circumstances));
    let lines = lines.collect();
    let mut broken = devices().filter_map(|(device, note)| wrong(device, note, circumstances));
    if let Some(Broken { said, next }) = broken.next() {
        let more = match broken.count() {
            0 => String::new(),
            more => format!("; {more} more"),
        };
        return (lines, Err(Broken::new(format!("{said}{more}"), next)));
    }
    let all = view.devices.len();
    let held = view.devices.iter().filter(|view| !view.device.holders.is_empty()).count();
    (lines, Ok(format!("{held} of {all} {} held", if all == 1 { "is" } else { "are" })))
}

fn line(
    view: &View<'_>,
    device: &DeviceView<'_>,
    note: &Note,
    circumstances: Circumstances<'_>,
) -> String {
    let said = note.said.as_deref();
    let holders: Vec<_> = device.holders().map(|(place, _)| holder(device, place)).collect();
    let words = match holders.is_empty() {
        true => nobody(view, device, note, circumstances),
        false => holders.join(", ") + &said.map(|said| format!("; {said}")).unwrap_or_default(),
    };
    format!("{}: {words}", name(device))
}

/// Why nobody holds the device.
fn nobody(
    view: &View<'_>,
    device: &DeviceView<'_>,
    note: &Note,
    circumstances: Circumstances<'_>,
) -> String {
    let uuid = &device.device.uuid;
    let is_cut_from_it =
        |other: &&DeviceView<'_>| other.device.mig.as_ref().is_some_and(|mig| mig.parent == *uuid);
    match view.devices.iter().filter(is_cut_from_it).count() {
        0 => {}
        1 => return "cut into 1 MIG instance".into(),
        instances => return format!("cut into {instances} MIG instances"),
    }
    if let Some(said) = note.said.as_deref().or_else(|| own_reason(device, Some(note))) {
        return format!("nobody; {said}");
    }
    let unheld = circumstances.unheld;
    match device.readings.value(Metric::GpuUtilization) {
        Some(busy) if busy > 0.0 => format!("{unheld}, though it is {busy:.0} % busy"),
        _ => unheld.into(),
    }
}

/// What is not known of the device's holders, or contradicts itself.
fn wrong(device: &DeviceView<'_>, note: &Note, circumstances: Circumstances<'_>) -> Option<Broken> {
    let doubt = note.doubt.filter(|doubt| {
        // A running agent is told by its gateway.
        *doubt != Doubt::Nameless || !circumstances.is_briefed
    });
    if let Some(doubt) = doubt {
        let said = note.said.as_deref().unwrap_or("its holders are not known");
        return Some(Broken::new(format!("{}: {said}", name(device)), next(doubt, circumstances)));
    }
    let (_, undeclared) = device.holders().find(|(_, holder)| holder.undeclared)?;
    let (namespace, pod) = (&*undeclared.pod.namespace, &*undeclared.pod.name);
    let said = format!("{}: {namespace}/{pod} uses it and was not given it", name(device));
    let [namespace, pod] = [namespace, pod].map(|name| quoted(Path::new(name)));
    Some(Broken::new(said, format!("kubectl get pod -n {namespace} {pod} -o yaml")))
}

fn name(device: &DeviceView<'_>) -> String {
    let device = device.device;
    let profile = device.mig.as_ref().map(|mig| format!(", {}", mig.profile)).unwrap_or_default();
    format!("GPU {} ({}{profile})", device.index, device.uuid)
}

/// The command that tells more.
fn next(doubt: Doubt, circumstances: Circumstances<'_>) -> String {
    match doubt {
        Doubt::Kubelet => "journalctl -u kubelet".into(),
        Doubt::Unresolved => "nvidia-smi -L".into(),
        Doubt::Unseen => {
            format!("readlink {}", quoted(&circumstances.proc_root.join("self/ns/pid")))
        }
        Doubt::Nameless => "gpu-agent doctor --pod-logs /var/log/pods".into(),
        Doubt::Unread | Doubt::Unknown => {
            "nvidia-smi --query-compute-apps=gpu_uuid,pid,process_name --format=csv".into()
        }
    }
}
