//! Real agents whose readings are set from here: the agent's collector, frame builder and uplink,
//! over devices that say what a dial says.
//!
//! Guarantees: a reading that was set is what the next tick of the agent reads.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use agent::collector::Collector;
use agent::device::meter::Meters;
use agent::device::{
    Condition, DeviceSource, Error, Observation, ObservedDevice, ObservedHolder, Processes, Seat,
};
use agent::engine::Engines;
use agent::owner::handover::Handovers;
use agent::uplink::address::Gateway;
use agent::uplink::credentials::Credentials;
use agent::uplink::{Heard, Uplink};
use anyhow::Context as _;
use shared::frame::HolderSource;
use shared::identity::{NodeName, PodKey};
use shared::metric::Metric;
use shared::process::Clock;
use shared::reading::Reading;
use shared::time::Timestamp;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::measure::site::NAMESPACE;

/// Utilisation of one GPU, in percent.
#[derive(Clone, Debug, Default)]
pub struct Dial(Arc<AtomicU32>);

impl Dial {
    /// From the next tick on it reads so.
    pub fn set(&self, percent: u32) {
        self.0.store(percent, Ordering::Relaxed);
    }

    fn percent(&self) -> f64 {
        f64::from(self.0.load(Ordering::Relaxed))
    }
}

/// GPUs that read what their dials say, each held by one pod.
struct Dialled {
    node: NodeName,
    gpus: Vec<(String, Dial)>,
}

impl DeviceSource for Dialled {
    fn observe(&mut self, _: Timestamp) -> Observation {
        let device = |(index, (pod, dial)): (u32, &(String, Dial))| ObservedDevice {
            uuid: format!("GPU-{}-{index}", self.node).as_str().into(),
            index,
            name: "NVIDIA H100 80GB HBM3".into(),
            memory_total_mib: Some(81_920.0),
            mig: None,
            holders: vec![holder(pod)],
            reason: None,
            age: Duration::ZERO,
            readings: [(Metric::GpuUtilization, Reading::Ok(dial.percent()))].into_iter().collect(),
            seat: Seat::default(),
            processes: Processes::default(),
            condition: Condition::default(),
        };
        let devices = (0..).zip(&self.gpus).map(device).collect();
        Observation { devices, ..Observation::default() }
    }

    fn finished(&self) -> Result<bool, Error> {
        Ok(false)
    }
}

fn holder(pod: &str) -> ObservedHolder {
    ObservedHolder {
        pod: PodKey::new(NAMESPACE, pod),
        uid: None,
        container: "main".into(),
        share: Some(1.0),
        estimated: false,
        source: HolderSource::Simulated,
        undeclared: false,
        own: Vec::new(),
    }
}

/// An agent of `node` that pushes to `gateway` until `stop`; each GPU is held by the pod named.
///
/// # Errors
/// When the gateway's address is none.
pub fn start(
    tasks: &mut JoinSet<()>,
    gateway: &str,
    node: NodeName,
    gpus: Vec<(String, Dial)>,
    interval: Duration,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    let gateway: Gateway = gateway.parse().context("the gateway")?;
    let (clock, briefs) = (Clock::start(), watch::Sender::new(None));
    let (newest, frames) = watch::channel(None);
    let collector = Collector {
        source: Box::new(Dialled { node: node.clone(), gpus }),
        holders: None,
        engines: Engines::default(),
        kubelet: None,
        processes: None,
        briefs: briefs.subscribe(),
        handovers: Handovers::default(),
        notes: Vec::new(),
        meters: Meters::default(),
        interval,
    };
    let uplink = Uplink {
        node,
        interval,
        engine_interval: Duration::from_secs(60),
        newest: frames,
        briefs: Heard::new(briefs),
        clock,
        credentials: Arc::<Credentials>::default(),
        shutdown: stop.clone(),
    };
    let stop = stop.clone();
    tasks.spawn(async move {
        // A source that cannot end badly.
        collector.run(clock, newest, stop).await.ok();
    });
    tasks.spawn(uplink.run(gateway));
    Ok(())
}
