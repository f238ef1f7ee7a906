//! Pure: what devices used up, and what is the matter with them → Prometheus text.
//!
//! Guarantees: what is not known is not there; an error that was not reported has no line.

use std::fmt;

use prometheus_client::encoding::{EncodeLabelSet, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use shared::health::{Energy, Health, RecoveryAction};

use super::{Counters, OfDevice, OfNode, label, put, rounded};
use crate::local::view::{DeviceView, View};

#[derive(Clone, Debug, EncodeLabelSet)]
struct Counted {
    #[prometheus(flatten)]
    device: OfDevice,
    /// Whether it was computed from power.
    estimated: &'static str,
}

#[derive(Clone, Debug, EncodeLabelSet)]
struct Because {
    #[prometheus(flatten)]
    device: OfDevice,
    reason: &'static str,
}

#[derive(Clone, Debug, EncodeLabelSet)]
struct OfXid {
    #[prometheus(flatten)]
    device: OfDevice,
    xid: u32,
}

#[derive(Clone, Debug, EncodeLabelSet)]
struct Wanted {
    #[prometheus(flatten)]
    device: OfDevice,
    action: &'static str,
}

/// Counters that are no whole numbers.
#[derive(Debug)]
struct Totals(Vec<(Counted, f64)>);

impl EncodeMetric for Totals {
    fn encode(&self, mut encoder: MetricEncoder) -> fmt::Result {
        for (labels, value) in &self.0 {
            let mut line = encoder.encode_family(labels)?;
            line.encode_counter::<OfNode, _, u64>(&rounded(*value), None)?;
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Counter
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Everything that is known of the devices' condition.
pub(super) fn conditions(registry: &mut Registry, view: &View<'_>) {
    let devices = || view.devices.iter();
    let energy = devices().filter_map(|view| {
        // An estimate that has not begun is no figure.
        let begun = |energy: &Energy| !energy.is_estimate() || energy.joules > 0.0;
        let energy = view.energy.filter(begun)?;
        let estimated = if energy.is_estimate() { "true" } else { "false" };
        Some((Counted { device: label(view), estimated }, energy.joules))
    });
    let help = "Energy used, since the driver was loaded where the device counts it itself";
    registry.register_with_unit("energy", help, Unit::Joules, Totals(energy.collect()));
    let throttled = devices().flat_map(|view| {
        let of = |reason| Because { device: label(view), reason };
        view.throttled.iter().map(move |(by, percent)| (of(by.name()), percent / 100.0))
    });
    let help = "Share of time in which the clock was held down for this reason";
    put(registry, "throttled_by_ratio", help, throttled.collect());
    errors(registry, view);
    let flag = |is: fn(&Health) -> Option<bool>| {
        let of = move |view: &DeviceView<'_>| {
            let value = is(view.device.health.as_deref()?)?;
            Some((label(view), f64::from(u8::from(value))))
        };
        devices().filter_map(of).collect()
    };
    let help = "Whether the GPU has fallen off the bus";
    put(registry, "lost", help, flag(|health| Some(health.lost)));
    let help = "Whether rows of memory are replaced at the next reset";
    put(registry, "row_remap_pending", help, flag(|health| health.remap_pending));
    let help = "Whether a row of memory could not be replaced";
    put(registry, "row_remap_failed", help, flag(|health| health.remap_failed));
}

fn errors(registry: &mut Registry, view: &View<'_>) {
    let known =
        || view.devices.iter().filter_map(|view| Some((view, view.device.health.as_deref()?)));
    let xids = known().flat_map(|(view, health)| {
        let of = |xid| OfXid { device: label(view), xid };
        health.xids.iter().flatten().map(move |it| (of(it.xid), it.count))
    });
    let help = "Errors that the driver reported since this agent started";
    registry.register("xid_errors", help, Counters(xids.collect()));
    let ecc = known().filter_map(|(view, health)| Some((label(view), health.ecc_uncorrected?)));
    let help = "Memory errors of the device that could not be corrected";
    registry.register("ecc_uncorrected_errors", help, Counters(ecc.collect()));
    let wanted = known().filter_map(|(view, health)| match health.recovery? {
        RecoveryAction::None => None,
        action => Some((Wanted { device: label(view), action: action.name() }, 1.0)),
    });
    let help = "What the driver wants done with the device";
    put(registry, "recovery_action", help, wanted.collect());
}
