//! GPM: what Hopper and newer count of a GPU, or of a MIG instance, between two samples.
//!
//! Guarantees: a metric is over more than 100 ms and at most 10 s, and of one and the same device;
//! until there are two samples it has failed, never a zero; where the driver restricts it, it is
//! unsupported and that is logged once.

use std::sync::Once;
use std::time::Duration;

use nvml_wrapper::enums::gpm::GpmMetricId;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::gpm::{GpmSample, gpm_metrics_get};
use shared::metric::Metric;
use shared::reading::Reading;
use shared::time::Timestamp;
use tracing::warn;

use super::fault::{Fault, is_absent};
use super::gauge::{Gauge, reading};
use super::read::Read;

/// Samples have to be further apart.
const APART: Duration = Duration::from_millis(100);
/// What is further apart is not of now.
const TOO_LONG: Duration = Duration::from_secs(10);
/// How long metrics may stand without new ones.
const HOLD: Duration = Duration::from_secs(2);
const FIRST: &str = "it is measured between two readings, and this is the first";

/// Traffic is counted in MiB/s.
const MB: f64 = 1.048_576;
const KB: f64 = MB * 1_000.0;

type Row = (GpmMetricId, Metric, f64);

/// What is read of a whole GPU; its utilisation is told better by the driver's samples.
const WHOLE: [Row; 6] = [
    (GpmMetricId::SmUtil, Metric::SmActivity, 1.0),
    (GpmMetricId::AnyTensorUtil, Metric::TensorActivity, 1.0),
    (GpmMetricId::NvlinkTotalTxPerSec, Metric::NvlinkTxMbps, MB),
    (GpmMetricId::NvlinkTotalRxPerSec, Metric::NvlinkRxMbps, MB),
    (GpmMetricId::PcieTxPerSec, Metric::PcieTxKbps, KB),
    (GpmMetricId::PcieRxPerSec, Metric::PcieRxKbps, KB),
];

/// What is read of an instance, whose utilisation nothing else tells: the time in which its
/// graphics engine was active, and the part of its memory's bandwidth that was used.
const INSTANCE: [Row; 4] = [
    (GpmMetricId::GraphicsUtil, Metric::GpuUtilization, 1.0),
    (GpmMetricId::DramBwUtil, Metric::MemoryUtilization, 1.0),
    (GpmMetricId::SmUtil, Metric::SmActivity, 1.0),
    (GpmMetricId::AnyTensorUtil, Metric::TensorActivity, 1.0),
];

/// Whether two samples make a metric.
#[derive(Debug, PartialEq)]
enum Pair {
    TooClose,
    Good,
    TooFarApart,
}

fn pair(apart: Duration) -> Pair {
    match apart {
        _ if apart <= APART => Pair::TooClose,
        _ if apart <= TOO_LONG => Pair::Good,
        _ => Pair::TooFarApart,
    }
}

/// What is counted.
#[derive(Clone, Copy)]
pub(super) enum Of {
    /// The GPU.
    Whole,
    /// This GPU instance of it.
    Instance(u32),
}

/// The samples of one device.
#[derive(Default)]
pub(super) struct Gpm<'nvml> {
    before: Option<(GpmSample<'nvml>, Timestamp)>,
    standing: Option<(Timestamp, Vec<(Metric, Reading)>)>,
}

impl<'nvml> Gpm<'nvml> {
    /// Puts what was counted since the last sample; `gauge` is the GPU's.
    pub(super) fn read(
        &mut self,
        gauge: &Gauge<'nvml>,
        of: Of,
        now: Timestamp,
        read: &mut Read,
    ) -> Result<(), Fault> {
        let rows: &[Row] = match of {
            Of::Whole => &WHOLE,
            Of::Instance(_) => &INSTANCE,
        };
        let measured = match has_gpm(gauge) {
            Ok(true) => self.measure(gauge, of, rows, now),
            Ok(false) => Err(NvmlError::NotSupported),
            Err(error) => Err(error),
        };
        if let Err(error) = measured {
            if matches!(error, NvmlError::NoPermission) {
                gauge.has_gpm.set(Some(false));
            }
            let reading = reading(Err(known(error)))?;
            put(rows.iter().map(|(_, metric, _)| (*metric, reading.clone())), read);
            return Ok(());
        }
        match self.standing.as_ref().filter(|(at, _)| now.since(*at) <= HOLD) {
            Some((_, readings)) => put(readings.iter().cloned(), read),
            None => {
                read.is_waiting = true;
                let first = Reading::Failed(FIRST.into());
                put(rows.iter().map(|(_, metric, _)| (*metric, first.clone())), read);
            }
        }
        Ok(())
    }

    fn measure(
        &mut self,
        gauge: &Gauge<'nvml>,
        of: Of,
        rows: &[Row],
        now: Timestamp,
    ) -> Result<(), NvmlError> {
        match self.before.as_ref().map(|(_, at)| pair(now.since(*at))) {
            Some(Pair::TooClose) => return Ok(()),
            Some(Pair::TooFarApart) => self.before = None,
            Some(Pair::Good) | None => {}
        }
        let sample = match of {
            Of::Whole => gauge.ask("its counters", |device| device.gpm_sample()),
            Of::Instance(id) => {
                gauge.ask("counters of its instances", |device| device.gpm_mig_sample(id))
            }
        }?;
        let Some((before, _)) = self.before.replace((sample, now)) else { return Ok(()) };
        let after = self.before.as_ref().map_or(&before, |(sample, _)| sample);
        let ids: Vec<_> = rows.iter().map(|(id, _, _)| *id).collect();
        // Not a call on a handle, so a refusal says nothing of one.
        let metrics = gauge.asking.ask("its counted metrics", || {
            gpm_metrics_get(gauge.device.nvml(), &before, after, &ids)
        })?;
        let readings = rows.iter().zip(metrics).map(|((_, metric, factor), answer)| {
            let value = match answer {
                Ok(answer) => counted(*metric, answer.value * factor),
                Err(error) => reading(Err(error)).unwrap_or(Reading::Unsupported),
            };
            (*metric, value)
        });
        self.standing = Some((now, readings.collect()));
        Ok(())
    }
}

/// A quotient of two counters that are not read at once may be a little more than all.
fn counted(metric: Metric, value: f64) -> Reading {
    let max = metric.unit().max();
    Reading::checked(metric, if value <= max * 1.01 { value.min(max) } else { value })
}

/// Whether the GPU has GPM; samples that could not be freed are not taken.
fn has_gpm(gauge: &Gauge<'_>) -> Result<bool, NvmlError> {
    if let Some(known) = gauge.has_gpm.get() {
        return Ok(known);
    }
    let can_free = gauge.device.nvml().lib().nvmlGpmSampleFree.is_ok();
    let answer = gauge.ask("whether it has GPM", |device| device.gpm_support());
    let has = match answer.map_err(known) {
        Ok(has) => has && can_free,
        Err(error) if is_absent(&error) => false,
        Err(error) => return Err(error),
    };
    gauge.has_gpm.set(Some(has));
    Ok(has)
}

/// A driver that restricts GPM is one that does not have it.
fn known(error: NvmlError) -> NvmlError {
    static SAID: Once = Once::new();
    if !matches!(error, NvmlError::NoPermission) {
        return error;
    }
    SAID.call_once(|| {
        warn!(
            "the NVIDIA driver restricts GPM to administrators: no SM and tensor activity, and no \
             utilisation of MIG instances"
        );
    });
    NvmlError::NotSupported
}

/// PCIe traffic that is not counted is measured by the device's other thread.
fn put(readings: impl Iterator<Item = (Metric, Reading)>, read: &mut Read) {
    for (metric, reading) in readings {
        let is_traffic = matches!(metric, Metric::PcieTxKbps | Metric::PcieRxKbps);
        if !is_traffic || reading.value().is_some() {
            read.put(metric, reading);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_make_a_metric_if_they_are_more_than_100_ms_and_at_most_10_s_apart() {
        let millis = Duration::from_millis;
        assert_eq!(pair(millis(100)), Pair::TooClose);
        assert_eq!(pair(millis(101)), Pair::Good);
        assert_eq!(pair(millis(10_000)), Pair::Good);
        assert_eq!(pair(millis(10_001)), Pair::TooFarApart);
    }

    #[test]
    fn a_percent_that_is_hardly_too_much_is_all_and_one_that_is_far_too_much_is_none() {
        assert_eq!(counted(Metric::SmActivity, 100.4), Reading::Ok(100.0));
        assert!(matches!(counted(Metric::SmActivity, 150.0), Reading::Failed(_)));
        assert!(matches!(counted(Metric::SmActivity, f64::NAN), Reading::Failed(_)));
    }
}
