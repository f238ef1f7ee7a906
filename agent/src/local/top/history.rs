//! The past of what is shown, for sparklines.
//!
//! Guarantees: bounded: at most `DEPTH` moments of each device and engine that is there now; a
//! moment that was not read is a gap and not a zero.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use shared::identity::{DeviceUuid, PodKey};
use shared::metric::Metric;

use crate::local::view::View;

/// Moments that are kept.
pub const DEPTH: usize = 240;
/// Metrics of a device that have a past.
pub const OF_DEVICE: [Metric; 3] =
    [Metric::GpuUtilization, Metric::MemoryUsedPercent, Metric::PowerDraw];
/// Metrics of an engine that have a past.
pub const OF_ENGINE: [Metric; 3] =
    [Metric::RequestsWaiting, Metric::RequestsRunning, Metric::TokenThroughput];

/// Whose past it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Whose {
    /// A device's.
    Device(DeviceUuid),
    /// An engine's, with its selection of series.
    Engine(PodKey, Arc<str>),
}

/// The newest moments of everything that is shown.
#[derive(Clone, Debug, Default)]
pub struct History {
    past: HashMap<Whose, VecDeque<[Option<f64>; 3]>>,
}

impl History {
    /// Adds what `view` shows; what is not in it is forgotten.
    pub fn add(&mut self, view: &View<'_>) {
        let devices = view.devices.iter().map(|view| {
            let now = OF_DEVICE.map(|metric| view.readings.value(metric));
            (Whose::Device(view.device.uuid.clone()), now)
        });
        let engines = view.engines.iter().map(|view| {
            let now = OF_ENGINE.map(|metric| view.readings.value(metric));
            (Whose::Engine(view.engine.pod.clone(), view.engine.labels.clone()), now)
        });
        let mut past = HashMap::with_capacity(self.past.len());
        for (whose, now) in devices.chain(engines) {
            let mut values = self.past.remove(&whose).unwrap_or_default();
            if values.len() == DEPTH {
                values.pop_front();
            }
            values.push_back(now);
            past.insert(whose, values);
        }
        self.past = past;
    }

    /// What is known of the metric at `place` of [`OF_DEVICE`] or [`OF_ENGINE`], the oldest first.
    pub fn of(&self, whose: &Whose, place: usize) -> impl DoubleEndedIterator<Item = Option<f64>> {
        self.past.get(whose).into_iter().flatten().map(move |values| values[place])
    }
}
