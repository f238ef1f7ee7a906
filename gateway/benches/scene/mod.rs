//! A workload for the decision, as large as wanted.

pub(crate) use gateway::trigger::observed::NoPast;
use gateway::trigger::observed::{Observed, PartReadings, Pod, Seen};
use shared::reading::Reading;
use shared::time::Timestamp;

pub(crate) const NOW: Timestamp = Timestamp::from_millis(1_000_000);

/// Triggers by what they do with a pod's devices.
pub(crate) const TRIGGERS: [(&str, &[(&str, &str)]); 2] = [
    ("total", &[("targetGpuUtilization", "70")]),
    ("max", &[("targetGpuUtilization", "70"), ("aggregation", "max")]),
];

/// So many ready pods, each with so many GPUs that were read just now.
pub(crate) fn observed(pods: usize, gpus: usize) -> Observed {
    let mut readings = PartReadings::default();
    let mut list = Vec::new();
    for pod in 0..pods {
        for gpu in 0..gpus {
            let percent = u32::try_from((pod * 7 + gpu * 13) % 100).unwrap_or_default();
            readings.push(Seen {
                device: None,
                index: u32::try_from(gpu).unwrap_or_default(),
                reading: Reading::Ok(f64::from(percent)),
                taken_at: Some(NOW),
                interval_ms: 500,
                is_mig: false,
            });
        }
        readings.end_pod();
        list.push(Pod {
            name: format!("pod-{pod}").into(),
            uid: None,
            node: None,
            ready: true,
            since: Timestamp::START,
            unscheduled: None,
        });
    }
    let replicas = u32::try_from(pods).unwrap_or_default();
    Observed {
        replicas,
        ready_running: replicas,
        pods: list.into(),
        watched_since: Some(Timestamp::START),
        warm: true,
        parts: vec![readings],
        ..Observed::default()
    }
}
