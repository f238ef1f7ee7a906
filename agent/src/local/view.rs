//! Pure: a frame, looked at from one moment → what is shown of it.
//!
//! Guarantees: what is older than its limit is a failure and not a value, as it is for the
//! gateway; a holder's part is what the gateway would count for it; nothing that failed or is
//! unsupported ever becomes a number.

use std::borrow::Cow;
use std::time::Duration;

use shared::frame::{Device, DeviceSample, Engine, HeldReading, Holder};
use shared::health::{Energy, Throttle};
use shared::metric::Metric;
use shared::reading::{Reading, Readings};
use shared::time::Timestamp;

use crate::device::replay::line::NULL;
use crate::frame::Taken;
use crate::owner::kubelet::Counts;

/// Shares are decimal fractions; less than this is nothing.
const ROUNDING: f64 = 1e-6;

/// What is shown of one node at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct View<'a> {
    /// Its devices, in the order of the inventory.
    pub devices: Vec<DeviceView<'a>>,
    /// Its engines, in the order of the inventory.
    pub engines: Vec<EngineView<'a>>,
    /// Why there is nothing, where the node knows.
    pub reason: Option<&'a str>,
    /// How asking the kubelet went, if it is asked.
    pub kubelet: Option<&'a Counts>,
}

/// What is shown of one device.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceView<'a> {
    /// What it is and who holds it.
    pub device: &'a Device,
    /// How long ago it was read, where it was.
    pub age: Option<Duration>,
    /// What was read.
    pub readings: Cow<'a, Readings>,
    held: &'a [HeldReading],
    /// What it has used so far; it does not grow old.
    pub energy: Option<Energy>,
    /// Why its clock was held down, and for what percentage of the time; nothing once it is old.
    pub throttled: &'a [(Throttle, f64)],
}

/// What is shown of one engine.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineView<'a> {
    /// Its pod.
    pub engine: &'a Engine,
    /// What was read.
    pub readings: Cow<'a, Readings>,
}

impl<'a> View<'a> {
    /// What is to be seen of `taken` at `now`.
    pub fn of(taken: &'a Taken, now: Timestamp, stale_after: Duration) -> Self {
        let (inventory, sample) = (&*taken.frame.inventory, &taken.frame.sample);
        let since = now.since(taken.at);
        let devices = inventory.devices.iter().enumerate().map(|(at, device)| {
            let sample = sample.devices.get(at).and_then(Option::as_ref);
            DeviceView::of(device, sample, since, stale_after)
        });
        let engines = inventory.engines.iter().enumerate().map(|(at, engine)| {
            let sample = sample.engines.get(at).and_then(Option::as_ref);
            let readings = sample.map_or_else(Cow::default, |sample| {
                fresh(&sample.readings, sample.age.saturating_add(since), stale_after)
            });
            EngineView { engine, readings }
        });
        Self {
            devices: devices.collect(),
            engines: engines.collect(),
            reason: inventory.reason.as_deref(),
            kubelet: taken.kubelet.as_ref(),
        }
    }

    /// Whether there is nothing to show.
    pub fn is_empty(&self) -> bool {
        self.devices.is_empty() && self.engines.is_empty()
    }
}

impl<'a> DeviceView<'a> {
    fn of(
        device: &'a Device,
        sample: Option<&'a DeviceSample>,
        since: Duration,
        stale_after: Duration,
    ) -> Self {
        let Some(sample) = sample else {
            let (readings, held) = (Cow::default(), &[][..]);
            return Self { device, age: None, readings, held, energy: None, throttled: &[] };
        };
        let age = sample.age.saturating_add(since);
        let readings = fresh(&sample.readings, age, stale_after);
        let (held, throttled) = match age > stale_after {
            true => (&[][..], &[][..]),
            false => (&*sample.held, &*sample.throttled),
        };
        Self { device, age: Some(age), readings, held, energy: sample.energy, throttled }
    }

    /// The device's holders with their places.
    pub fn holders(&self) -> impl Iterator<Item = (usize, &'a Holder)> {
        self.device.holders.iter().enumerate()
    }

    /// What the holder at `place` has of `metric` by itself, where that is known.
    pub fn held(&self, place: usize, metric: Metric) -> Option<f64> {
        let mut held = self.held.iter();
        let own = held.find(|held| held.holder == place && held.metric == metric)?;
        Some(own.value)
    }

    /// The holder's part of `metric`: its own value, else its share of what holders use up
    /// together, else what each feels in full.
    pub fn part(&self, place: usize, metric: Metric) -> Option<f64> {
        if let Some(own) = self.held(place, metric) {
            return Some(own);
        }
        let whole = self.readings.value(metric)?;
        if !metric.is_split_by_share() {
            return Some(whole);
        }
        Some(whole * self.device.holders[place].share?)
    }

    /// The one that has all of the device.
    pub fn sole_holder(&self) -> Option<&'a Holder> {
        match &*self.device.holders {
            [holder] if holder.share.is_some_and(|share| share > 1.0 - ROUNDING) => Some(holder),
            _ => None,
        }
    }

    /// The share (0 to 1) of its load that no holder has, as the gateways tell it. Load is
    /// `gpu_utilization`: readings known per holder win over shares. Where the load is not known
    /// the shares alone tell. `None` if a holder's part is not known, or nothing is.
    pub fn unattributed(&self) -> Option<f64> {
        let holders = &self.device.holders;
        let held = match self.readings.value(Metric::GpuUtilization) {
            Some(0.0) => return Some(0.0),
            Some(load) => {
                let parts = self.holders().map(|(at, _)| self.part(at, Metric::GpuUtilization));
                parts.sum::<Option<f64>>()? / load
            }
            None if holders.is_empty() => return None,
            None => holders.iter().map(|holder| holder.share).sum::<Option<f64>>()?,
        };
        // Rounded to what the sum of several shares can mean.
        Some(((1.0 - held).clamp(0.0, 1.0) * 1e6).round() / 1e6)
    }

    /// What of `metric` is no holder's, where it is split by holder and every part is known.
    pub fn left(&self, metric: Metric) -> Option<f64> {
        if self.device.holders.is_empty() || !metric.is_split_by_share() {
            return None;
        }
        let whole = self.readings.value(metric)?;
        let parts = self.holders().map(|(place, _)| self.part(place, metric));
        let left = (whole - parts.sum::<Option<f64>>()?).max(0.0);
        Some((left * 1e9).round() / 1e9)
    }

    /// Why its holders are not known and why readings failed, where there is something to say.
    pub fn reason(&self) -> Option<String> {
        let mut said: Vec<String> = self.device.reason.iter().map(|why| why.to_string()).collect();
        let mut failures: Vec<(&str, Vec<Metric>)> = Vec::new();
        for (metric, why) in self.readings.failures().filter(|(_, why)| why.as_ref() != NULL) {
            match failures.iter_mut().find(|(known, _)| *known == why.as_ref()) {
                Some((_, metrics)) => metrics.push(metric),
                None => failures.push((why, vec![metric])),
            }
        }
        let all = self.readings.iter().count();
        for (why, metrics) in failures {
            let names: Vec<_> = metrics.iter().map(|metric| metric.name()).collect();
            let new = match names.len() == all {
                true => why.to_owned(),
                false => format!("{}: {why}", names.join(", ")),
            };
            if !said.contains(&new) {
                said.push(new);
            }
        }
        (!said.is_empty()).then(|| said.join("; "))
    }
}

/// The readings while they are fresh, and then failures.
fn fresh(readings: &Readings, age: Duration, stale_after: Duration) -> Cow<'_, Readings> {
    if age <= stale_after {
        return Cow::Borrowed(readings);
    }
    let why: std::sync::Arc<str> = format!("not read for {} s", age.as_secs()).into();
    let stale = readings.iter().map(|(metric, reading)| match reading {
        Reading::Ok(_) => (metric, Reading::Failed(why.clone())),
        other => (metric, other),
    });
    Cow::Owned(stale.collect())
}

pub(super) use shared::text::plain;
