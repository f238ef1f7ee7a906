//! Pure: pods that hold a device and do nothing with it.
//!
//! Guarantees: what is not known to be idle is not idle; since when survives what does not change
//! it, and nothing else.

use std::sync::Arc;
use std::time::Duration;

use shared::identity::PodUid;
use shared::metric::Metric;
use shared::time::Timestamp;

use super::party::{Party, Tenancy};
use super::unit;
use crate::fleet::view::NodeView;

/// A device of which less than this is used does nothing, in percent.
const BUSY_FROM: f64 = 1.0;
/// What lasts no longer is a pause between two requests.
pub(super) const PAUSE: Duration = Duration::from_secs(10);

/// What is known of a pod's rest on a device.
#[derive(Clone, Debug)]
pub(super) struct Rest {
    pub(super) tenancy: Tenancy,
    /// Name of the device.
    pub(super) model: Arc<str>,
    /// Since when it has done nothing, if it does nothing.
    pub(super) since: Option<Timestamp>,
    /// Until when this stands if nothing more is said.
    pub(super) known_until: Timestamp,
    /// Device memory that it has.
    pub(super) memory_mib: Option<f64>,
    /// When its engine was last seen to have a request.
    pub(super) last_request: Option<Timestamp>,
}

impl Rest {
    /// What is known at a tick, of everyone who holds something.
    pub(super) fn after(
        before: &[Self],
        view: &NodeView,
        parties: &[Party],
        taken_at: Timestamp,
        is_close: bool,
        now: Timestamp,
    ) -> Vec<Self> {
        let holding = parties.iter().filter(|party| party.fraction > 0.0);
        holding
            .map(|party| {
                let known = before.iter().find(|rest| rest.tenancy == party.tenancy);
                let is_idle = party.load.is_some_and(|load| load < BUSY_FROM);
                let since = known.and_then(|rest| rest.since).filter(|_| is_close);
                let uid = party.tenancy.uid.as_ref();
                let seen = last_request(view, party, uid, now);
                Self {
                    tenancy: party.tenancy.clone(),
                    model: party.model.clone(),
                    since: is_idle.then(|| since.unwrap_or(taken_at)),
                    known_until: taken_at + unit::close(view),
                    memory_mib: party.memory_mib,
                    last_request: seen.or(known.and_then(|rest| rest.last_request)),
                }
            })
            .collect()
    }

    /// How long it has done nothing, if that is known now and is no mere pause.
    pub(super) fn idle_for(&self, now: Timestamp) -> Option<Duration> {
        let idle = now.since(self.since?);
        (now <= self.known_until && idle >= PAUSE).then_some(idle)
    }
}

/// When its engine last had a request, if it has one now.
fn last_request(
    view: &NodeView,
    party: &Party,
    uid: Option<&PodUid>,
    now: Timestamp,
) -> Option<Timestamp> {
    let pod = view.pod(&party.tenancy.pod, uid)?;
    let has = |metric, readings: &shared::reading::Readings| {
        readings.value(metric).is_some_and(|value| value > 0.0)
    };
    let working = pod.engines().filter_map(|(_, row)| row).filter(|row| {
        [Metric::RequestsRunning, Metric::RequestsWaiting, Metric::RequestRate]
            .into_iter()
            .any(|metric| has(metric, &row.readings))
    });
    working.map(|row| row.taken_at.min(now)).max()
}
