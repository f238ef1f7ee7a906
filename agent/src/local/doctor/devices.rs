//! Pure: what is shown of a node → whether its devices are read.

use shared::metric::Metric;
use shared::reading::Reading;

use super::Broken;
use crate::local::view::{DeviceView, View};

/// Whether every device is read; `command` tells more about one of them.
///
/// # Errors
/// The first device that is not, or that there is none.
pub fn devices(view: &View<'_>, command: impl Fn(&str) -> String) -> Result<String, Broken> {
    let all = view.devices.len();
    let broken: Vec<_> = view.devices.iter().filter(|view| is_broken(view)).collect();
    let Some(first) = broken.first() else {
        return match all {
            0 => Err(Broken::new(view.reason.unwrap_or("there is no device"), command("all"))),
            1 => Ok(format!("1 device is read, {}", held(view))),
            _ => Ok(format!("{all} devices are read, {}", held(view))),
        };
    };
    let device = first.device;
    let why = first.reason().unwrap_or_else(|| "nothing can be read of it".into());
    let others = match (broken.len(), all - broken.len()) {
        (1, 0) => String::new(),
        (1, good) => format!("; the other {good} are read"),
        (bad, good) => format!("; {bad} are like it, {good} are read"),
    };
    let said = format!("GPU {} ({}): {why}{others}", device.index, device.uuid);
    Err(Broken::new(said, command(device.uuid.as_str())))
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
