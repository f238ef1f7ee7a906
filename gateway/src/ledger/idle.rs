//! Pure: pods that hold a device and do nothing with it.
//!
//! Guarantees: what is not known to be idle is not idle; since when survives what does not change
//! it, and nothing else.

use std::time::Duration;

use shared::metric::Metric;
use shared::reading::Readings;
use shared::time::Timestamp;

use super::party::{Party, Tenancy, Use};
use crate::fleet::view::NodeView;

/// A device of which less than this is used does nothing, in percent.
const BUSY_FROM: f64 = 1.0;
/// What lasts no longer is a pause between two requests.
pub(super) const PAUSE: Duration = Duration::from_secs(10);

/// What is known of a pod's rest on a device.
#[derive(Clone, Debug, Default)]
pub(super) struct Rest {
    /// Since when it has done nothing, if it holds the device and does nothing.
    since: Option<Timestamp>,
    /// Device memory that it has.
    pub(super) memory_mib: Option<f64>,
    /// When its engine was last seen to have a request.
    pub(super) last_request: Option<Timestamp>,
}

impl Rest {
    /// Takes what is known at a tick.
    pub(super) fn go_on(
        &mut self,
        (party, used): (&Party, &Use),
        (taken_at, is_close): (Timestamp, bool),
    ) {
        let is_idle = party.fraction > 0.0 && used.load.is_some_and(|load| load < BUSY_FROM);
        let since = self.since.filter(|_| is_close);
        self.since = is_idle.then(|| since.unwrap_or(taken_at));
        self.memory_mib = used.memory_mib;
    }

    /// How long it has done nothing, if that is no mere pause.
    pub(super) fn idle_for(&self, now: Timestamp) -> Option<Duration> {
        let idle = now.since(self.since?);
        (idle >= PAUSE).then_some(idle)
    }
}

/// When the engine of the pod last had a request, if it has one now.
pub(super) fn last_request(
    view: &NodeView,
    Tenancy { pod, uid, .. }: Tenancy<'_>,
    now: Timestamp,
) -> Option<Timestamp> {
    let pod = view.pod(pod, uid)?;
    let has = |metric, readings: &Readings| readings.value(metric).is_some_and(|value| value > 0.0);
    let working = pod.engines().filter_map(|(_, row)| row).filter(|row| {
        [Metric::RequestsRunning, Metric::RequestsWaiting, Metric::RequestRate]
            .into_iter()
            .any(|metric| has(metric, &row.readings))
    });
    working.map(|row| row.taken_at.min(now)).max()
}
