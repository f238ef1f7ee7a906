//! Readings ⇄ the wire, of devices and of their holders.
//!
//! Guarantees: values are in range, or failures that say so; each holder has each metric once.

use std::collections::HashSet;

use shared::frame::HeldReading;
use shared::metric::Metric;
use shared::reading::{Gathered, Reading, Readings, out_of_range};

use super::{DevicePlace, MAX_REASON, Refusals, cut, refuse};
use crate::uplink as wire;

fn metric_from_wire(number: u32) -> Option<Metric> {
    Metric::ALL.get((number as usize).checked_sub(1)?).copied()
}

pub(super) fn metric_to_wire(metric: Metric) -> u32 {
    u32::from(metric as u8) + 1
}

pub(super) fn readings_from_wire(
    metrics: &[u32],
    values: &[f64],
    failures: &[wire::Failure],
    refusals: &mut Refusals,
) -> Result<Readings, String> {
    if metrics.len() != values.len() {
        return Err(format!("{} metrics, but {} values", metrics.len(), values.len()));
    }
    let unknown = |number| format!("metric number {number} is not known here");
    let mut readings = Gathered::default();
    for (&number, &value) in metrics.iter().zip(values) {
        match metric_from_wire(number) {
            Some(metric) => {
                if !metric.accepts(value) {
                    refuse(refusals, || out_of_range(metric, value));
                }
                // What is out of range becomes a failure among the readings.
                readings.add(metric, Reading::Ok(value));
            }
            None => refuse(refusals, || unknown(number)),
        }
    }
    for wire::Failure { metric: number, reason } in failures {
        match metric_from_wire(*number) {
            Some(metric) => readings.add(metric, Reading::Failed(cut(reason, MAX_REASON).into())),
            None => refuse(refusals, || unknown(*number)),
        }
    }
    Ok(readings.readings())
}

pub(super) fn held_from_wire(
    held: &[wire::HeldReading],
    device: &DevicePlace,
    refusals: &mut Refusals,
) -> Vec<HeldReading> {
    let mut readings = Vec::new();
    let mut seen = HashSet::new();
    for reading in held {
        match (metric_from_wire(reading.metric), device.holder(reading.holder)) {
            (Some(metric), Some(Some(holder)))
                if metric.accepts(reading.value) && seen.insert((holder, metric)) =>
            {
                readings.push(HeldReading { holder, metric, value: reading.value });
            }
            (Some(_), Some(None)) => {}
            _ => refuse(refusals, || {
                format!(
                    "reading of holder {}: metric {} value {}",
                    reading.holder, reading.metric, reading.value
                )
            }),
        }
    }
    readings
}

pub(super) fn readings_to_wire(readings: &Readings) -> (Vec<u32>, Vec<f64>, Vec<wire::Failure>) {
    let (mut metrics, mut values) = (Vec::new(), Vec::new());
    for (metric, reading) in readings.iter() {
        if let Reading::Ok(value) = reading {
            metrics.push(metric_to_wire(metric));
            values.push(value);
        }
    }
    let failures = readings.failures().map(|(metric, reason)| wire::Failure {
        metric: metric_to_wire(metric),
        reason: reason.to_string(),
    });
    (metrics, values, failures.collect())
}
