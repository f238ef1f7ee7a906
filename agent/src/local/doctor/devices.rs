//! Pure: what is shown of a node → whether its devices are read.

use shared::health::Health;
use shared::metric::Metric;
use shared::reading::Reading;

use super::{Broken, quoted};
use crate::device::SourceSpec;
use crate::local::view::{DeviceView, View};
use crate::owner::Note;

/// What is not well.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Subject<'a> {
    /// The device of this UUID.
    Device(&'a str),
    /// Something that did not even say which device it is.
    Unnamed,
    /// There is no device.
    Nothing,
}

/// The command that tells more about it.
fn about(source: &SourceSpec, subject: Subject<'_>) -> String {
    match (source, subject) {
        (SourceSpec::Nvml { .. }, Subject::Device(uuid)) => format!("nvidia-smi -q -i {uuid}"),
        (SourceSpec::Nvml { .. }, Subject::Unnamed) => "dmesg | grep -i nvrm".into(),
        (SourceSpec::Nvml { .. }, Subject::Nothing) => "lspci -d 10de:".into(),
        (SourceSpec::Replay(path), _) => {
            format!("gpu-agent snapshot --source replay:{}", quoted(path))
        }
        (SourceSpec::Simulated(_), _) => "gpu-agent snapshot --source sim".into(),
    }
}

/// Whether every device of `source` is read. What `notes` say of their holders is left out.
///
/// # Errors
/// The first device that is not, or that there is none.
pub fn devices(view: &View<'_>, source: &SourceSpec, notes: &[Note]) -> Result<String, Broken> {
    let all = view.devices.len();
    let broken: Vec<_> = view.devices.iter().filter(|view| is_broken(view)).collect();
    let error = |said: String, subject| Err(Broken::new(said, about(source, subject)));
    if let Some(first) = broken.first() {
        let device = first.device;
        let why = first.reason().unwrap_or_else(|| "nothing can be read of it".into());
        let why = with_health(&why, first);
        let others = others(broken.len(), all - broken.len());
        let said = format!("GPU {} ({}): {why}{others}", device.index, device.uuid);
        return error(said, Subject::Device(device.uuid.as_str()));
    }
    match (view.reason, all) {
        (Some(reason), 0) => error(reason.into(), Subject::Nothing),
        (Some(reason), _) => error(format!("{reason}{}", others(1, all)), Subject::Unnamed),
        (None, 0) => error("there is no device".into(), Subject::Nothing),
        (None, all) => {
            let read = if all == 1 { "1 device is".into() } else { format!("{all} devices are") };
            Ok(format!("{read} read{}", remarks(view, notes)))
        }
    }
}

fn others(broken: usize, good: usize) -> String {
    let read = match good {
        1 => "1 other is read".into(),
        good => format!("{good} others are read"),
    };
    match (broken, good) {
        (1, 0) => String::new(),
        (1, _) => format!("; {read}"),
        (2, _) => format!("; 1 more is broken, {read}"),
        (broken, _) => format!("; {} more are broken, {read}", broken - 1),
    }
}

/// Something failed, or nothing is known at all.
fn is_broken(view: &DeviceView<'_>) -> bool {
    let known = Metric::ALL.iter().any(|metric| view.readings.value(*metric).is_some());
    let failed = view.readings.iter().any(|(_, reading)| matches!(reading, Reading::Failed(_)));
    failed || !known
}

/// What there is to say about devices that are read, such as an XID.
fn remarks(view: &View<'_>, notes: &[Note]) -> String {
    let remark = |(place, view): (usize, &DeviceView<'_>)| {
        let reason = own_reason(view, notes.get(place)).unwrap_or_default();
        let reason = with_health(reason, view);
        (!reason.is_empty())
            .then(|| format!("; GPU {} ({}): {reason}", view.device.index, view.device.uuid))
    };
    view.devices.iter().enumerate().filter_map(remark).collect()
}

/// `said`, and what is the matter with the device beside it.
fn with_health(said: &str, view: &DeviceView<'_>) -> String {
    let health = view.device.health.as_deref();
    let held_down = view.throttled.iter().map(|(by, percent)| {
        let by = by.name().replace('_', " ");
        format!("its clock is held down by {by} {percent:.0} % of the time")
    });
    let mut remarks = health.map(Health::remarks).unwrap_or_default();
    remarks.extend(held_down);
    // The source may have said some of it.
    remarks.retain(|remark| !said.contains(remark.as_str()));
    let is_repeated = |part: &str| remarks.iter().any(|remark| remark.starts_with(part));
    let said = said.split("; ").filter(|part| !part.is_empty() && !is_repeated(part));
    said.chain(remarks.iter().map(String::as_str)).collect::<Vec<_>>().join("; ")
}

/// What its source says of the device, without what `note` says of its holders.
pub(super) fn own_reason<'a>(view: &DeviceView<'a>, note: Option<&Note>) -> Option<&'a str> {
    let reason = view.device.reason.as_deref()?;
    match note.and_then(|note| note.said.as_deref()) {
        Some(said) => reason.strip_suffix(said)?.strip_suffix("; "),
        None => Some(reason),
    }
}
