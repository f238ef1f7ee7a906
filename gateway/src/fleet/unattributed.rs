//! What of a device's load nobody can be named for.
//!
//! Guarantees: what is not known is `None`, never a share of nothing.

use shared::frame::Device;
use shared::metric::Metric;

use super::view::{NodeView, Row};

/// The share (0 to 1) of its load that no holder of the device at `at` has. Load is
/// `gpu_utilization`: readings known per holder win over shares. Where the load is not known the
/// shares alone tell. `None` if a holder's part is not known, or nothing is.
pub fn unattributed(view: &NodeView, at: usize) -> Option<f64> {
    let device = &view.inventory().devices[at];
    let row = view.row(at);
    let load = row.and_then(|row| row.readings.value(Metric::GpuUtilization));
    match (row, load) {
        (_, Some(0.0)) => Some(0.0),
        (Some(row), Some(load)) => {
            let parts = (0..device.holders.len()).map(|place| part(device, row, place, load));
            Some(left(parts.sum::<Option<f64>>()? / load))
        }
        _ if device.holders.is_empty() => None,
        _ => {
            let shares = device.holders.iter().map(|holder| holder.share);
            Some(left(shares.sum::<Option<f64>>()?))
        }
    }
}

/// What is left of all of it, rounded to what the sum of several shares can mean.
fn left(held: f64) -> f64 {
    ((1.0 - held).clamp(0.0, 1.0) * 1e6).round() / 1e6
}

/// What one holder has of `load`.
fn part(device: &Device, row: &Row, place: usize, load: f64) -> Option<f64> {
    let mut held = row
        .held
        .iter()
        .filter(|reading| reading.holder == place && reading.metric == Metric::GpuUtilization)
        .peekable();
    if held.peek().is_some() {
        return Some(held.map(|reading| reading.value).sum());
    }
    device.holders[place].share.map(|share| share * load)
}
