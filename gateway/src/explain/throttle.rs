//! GPUs whose clock is held down: their utilisation is not what it seems.

use std::collections::BTreeMap;

use shared::health::Throttle;
use shared::identity::DeviceUuid;
use shared::metric::{Metric, Scope};
use shared::time::Timestamp;

use crate::answer::roster::{said_of, views_of};
use crate::directory::Workload;
use crate::fleet::Fleet;

/// Less than this percentage of the time is not worth a word.
const WORTH_TELLING: f64 = 10.0;
/// What was read longer ago says nothing of now.
const FRESH: std::time::Duration = std::time::Duration::from_secs(10);

/// What is to be said of readings of `metrics`: one line, whatever the number of GPUs.
pub(super) fn warning(
    fleet: &Fleet,
    workload: &Workload,
    metrics: impl IntoIterator<Item = Metric>,
    now: Timestamp,
) -> Option<String> {
    let mut throttled: BTreeMap<&DeviceUuid, (f64, Option<Throttle>)> = BTreeMap::new();
    let views: Vec<_> = workload.pods.iter().map(|pod| (pod, views_of(fleet, pod))).collect();
    for (pod, views) in &views {
        for (_, said) in said_of(views, pod) {
            for (claim, device) in said.devices() {
                let Some(row) = said.row(claim).filter(|row| now.since(row.taken_at) <= FRESH)
                else {
                    continue;
                };
                let most = row.throttled.iter().max_by(|a, b| a.1.total_cmp(&b.1));
                let share = row.readings.value(Metric::ThrottledPercent);
                let share = share.or(most.map(|(_, percent)| *percent));
                if let Some(share) = share.filter(|share| *share >= WORTH_TELLING) {
                    throttled.insert(&device.uuid, (share, most.map(|(by, _)| *by)));
                }
            }
        }
    }
    let (uuid, (share, by)) = throttled.iter().max_by(|a, b| a.1.0.total_cmp(&b.1.0))?;
    let by = by.map_or_else(String::new, |by| format!(" by {}", by.name().replace('_', " ")));
    let more = match throttled.len() - 1 {
        0 => String::new(),
        more => format!(" (and {more} more)"),
    };
    let of_devices = metrics.into_iter().any(|metric| metric.scope() == Scope::Device);
    let so = match of_devices {
        true => "its utilisation looks higher than its work",
        false => "its engine is slower than it could be",
    };
    Some(format!("{uuid} is throttled{by} {share:.0} % of the time{more}: {so}"))
}
