//! Pure: what is shown of a node → whether its devices are read.

use shared::metric::Metric;
use shared::reading::Reading;

use super::{Broken, quoted};
use crate::device::SourceSpec;
use crate::local::view::{DeviceView, View};

/// What tells more about one device of `source`, or about all of them.
pub fn about(source: &SourceSpec, uuid: Option<&str>) -> String {
    match (source, uuid) {
        (SourceSpec::Nvml { .. }, Some(uuid)) => format!("nvidia-smi -q -i {uuid}"),
        (SourceSpec::Nvml { .. }, None) => "lspci -d 10de:".into(),
        (SourceSpec::Replay(path), _) => {
            format!("gpu-agent snapshot --source replay:{}", quoted(path))
        }
        (SourceSpec::Simulated(_), _) => "gpu-agent snapshot --source sim".into(),
    }
}

/// Whether every device is read; `next` tells more about one of them, or about all.
///
/// # Errors
/// The first device that is not, or that there is none.
pub fn devices(view: &View<'_>, next: impl Fn(Option<&str>) -> String) -> Result<String, Broken> {
    let all = view.devices.len();
    let broken: Vec<_> = view.devices.iter().filter(|view| is_broken(view)).collect();
    if let Some(first) = broken.first() {
        let device = first.device;
        let why = first.reason().unwrap_or_else(|| "nothing can be read of it".into());
        let others = others(broken.len(), all - broken.len());
        let said = format!("GPU {} ({}): {why}{others}", device.index, device.uuid);
        return Err(Broken::new(said, next(Some(device.uuid.as_str()))));
    }
    match (view.reason, all) {
        (Some(reason), 0) => Err(Broken::new(reason, next(None))),
        (Some(reason), _) => Err(Broken::new(format!("{reason}{}", others(1, all)), next(None))),
        (None, 0) => Err(Broken::new("there is no device", next(None))),
        (None, 1) => Ok(format!("1 device is read, {}", held(view))),
        (None, _) => Ok(format!("{all} devices are read, {}", held(view))),
    }
}

fn others(broken: usize, good: usize) -> String {
    let are = |number: usize| if number == 1 { "is" } else { "are" };
    match (broken, good) {
        (1, 0) => String::new(),
        (1, good) => format!("; {good} other {} read", are(good)),
        (broken, good) => {
            let more = broken - 1;
            format!("; {more} more {} broken, {good} {} read", are(more), are(good))
        }
    }
}

/// Something failed, or nothing is known at all.
fn is_broken(view: &DeviceView<'_>) -> bool {
    let known = Metric::ALL.iter().any(|metric| view.readings.value(*metric).is_some());
    let failed = view.readings.iter().any(|(_, reading)| matches!(reading, Reading::Failed(_)));
    failed || !known
}

fn held(view: &View<'_>) -> String {
    match view.devices.iter().filter(|view| !view.device.holders.is_empty()).count() {
        0 => "none has a known holder".into(),
        held => format!("{held} with a known holder"),
    }
}
