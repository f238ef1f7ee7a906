//! What an agent of these tests has on its node, and what it reads of it.

use std::collections::BTreeMap;
use std::time::Duration;

use proto::convert::{inventory_to_wire, sample_to_wire};
use proto::uplink::Hello;
use proto::uplink::agent_message::Body;
use shared::frame::{
    Device, DeviceSample, Engine, EngineSample, HeldReading, Holder, HolderSource, Inventory, Mig,
    Sample,
};
use shared::health::{Energy, Health, Origin, Throttle};
use shared::identity::PodKey;
use shared::metric::Metric;
use shared::reading::{Reading, Readings};

use super::INTERVAL;

/// What an agent of these tests has on its node.
#[derive(Clone)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) interval: Duration,
    gpus: Vec<Gpu>,
    engines: BTreeMap<PodKey, BTreeMap<Metric, Reading>>,
    /// A frozen agent keeps its stream open and says nothing.
    pub(crate) frozen: bool,
}

/// A GPU of such a node.
#[derive(Clone)]
pub(crate) struct Gpu {
    device: Device,
    pub(super) readings: BTreeMap<Metric, Reading>,
    held: Vec<HeldReading>,
    energy: Option<Energy>,
    throttled: Box<[(Throttle, f64)]>,
}

/// A GPU that `pod` (`namespace/name`) has for itself, with this utilisation.
pub(crate) fn gpu(uuid: &str, pod: &str, utilization: f64) -> Gpu {
    let free = Gpu {
        device: Device {
            uuid: uuid.into(),
            index: 0,
            name: "NVIDIA H100 80GB HBM3".into(),
            memory_total_mib: Some(81_559.0),
            mig: None,
            holders: Vec::new(),
            reason: None,
            health: None,
        },
        readings: BTreeMap::new(),
        held: Vec::new(),
        energy: None,
        throttled: Box::default(),
    };
    free.held_by(pod, 1.0).reads(Metric::GpuUtilization, utilization)
}

/// The pod `namespace/name`.
pub(crate) fn pod(text: &str) -> PodKey {
    let (namespace, name) = text.split_once('/').expect("namespace/name");
    PodKey::new(namespace, name)
}

impl Gpu {
    /// Another holder, with its share.
    pub(crate) fn held_by(mut self, holder: &str, share: f64) -> Self {
        self.device.holders.push(Holder {
            pod: pod(holder),
            uid: None,
            container: "main".into(),
            share: Some(share),
            estimated: false,
            source: HolderSource::Replay,
            undeclared: false,
        });
        self
    }

    /// Another holder, of which only what it does is known: this much utilisation.
    pub(crate) fn used_by(mut self, holder: &str, source: HolderSource, utilization: f64) -> Self {
        self = self.held_by(holder, 0.0);
        let place = self.device.holders.len() - 1;
        let last = &mut self.device.holders[place];
        (last.share, last.source) = (None, source);
        last.estimated = matches!(source, HolderSource::Memory | HolderSource::Equal);
        let metric = Metric::GpuUtilization;
        self.held.push(HeldReading { holder: place, metric, value: utilization });
        self
    }

    /// Its last holder was not given it.
    pub(crate) fn undeclared(mut self) -> Self {
        self.device.holders.last_mut().expect("a holder").undeclared = true;
        self
    }

    /// What share its first holder has.
    pub(crate) fn shared(mut self, share: Option<f64>) -> Self {
        self.device.holders[0].share = share;
        self
    }

    /// The UID of its first holder.
    pub(crate) fn uid(mut self, uid: &str) -> Self {
        self.device.holders[0].uid = Some(uid.into());
        self
    }

    /// Nobody holds it.
    pub(crate) fn free(mut self) -> Self {
        self.device.holders.clear();
        self.held.clear();
        self
    }

    /// A MIG instance cut from `parent`.
    pub(crate) fn cut_from(mut self, parent: &str, profile: &str) -> Self {
        self.device.mig = Some(Mig { parent: parent.into(), profile: profile.into() });
        self
    }

    /// The same, with a counter that stands at so many joules.
    pub(crate) fn used(mut self, joules: f64) -> Self {
        self.energy = Some(Energy { joules, origin: Origin::Counter });
        self
    }

    /// The same, held down for so many percent of the time.
    pub(crate) fn throttled(mut self, by: Throttle, percent: f64) -> Self {
        self.throttled = [(by, percent)].into();
        self.reads(Metric::ThrottledPercent, percent)
    }

    /// The same, with that the matter with it.
    pub(crate) fn ill(mut self, health: Health) -> Self {
        self.device.health = Some(Box::new(health));
        self
    }

    pub(crate) fn index(mut self, index: u32) -> Self {
        self.device.index = index;
        self
    }

    pub(crate) fn reads(self, metric: Metric, value: f64) -> Self {
        self.reading(metric, Reading::Ok(value))
    }

    pub(crate) fn reading(mut self, metric: Metric, reading: Reading) -> Self {
        self.readings.insert(metric, reading);
        self
    }
}

impl Node {
    pub(crate) fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            interval: INTERVAL,
            gpus: Vec::new(),
            engines: BTreeMap::new(),
            frozen: false,
        }
    }

    pub(crate) fn with(mut self, gpu: Gpu) -> Self {
        self.gpus.push(gpu);
        self
    }

    /// The engine in `of` says this.
    pub(crate) fn engine(mut self, of: &str, metric: Metric, value: f64) -> Self {
        let readings = self.engines.entry(pod(of)).or_default();
        readings.insert(metric, Reading::Ok(value));
        self
    }

    /// The engine in `of` says this from now on.
    pub(crate) fn engine_reads(&mut self, of: &str, metric: Metric, reading: Reading) {
        let readings = self.engines.entry(pod(of)).or_default();
        readings.insert(metric, reading);
    }

    /// The GPU of that UUID.
    pub(crate) fn gpu(&mut self, uuid: &str) -> &mut Gpu {
        self.gpus
            .iter_mut()
            .find(|gpu| gpu.device.uuid.as_str() == uuid)
            .expect("the node has that GPU")
    }

    pub(crate) fn inventory(&self) -> Inventory {
        let engines = self.engines.keys().cloned();
        Inventory {
            devices: self.gpus.iter().map(|gpu| gpu.device.clone()).collect(),
            engines: engines.map(|pod| Engine { pod, uid: None, labels: "".into() }).collect(),
            reason: None,
        }
    }

    pub(crate) fn sample(&self) -> Sample {
        let readings = |readings: &BTreeMap<Metric, Reading>| -> Readings {
            readings.iter().map(|(m, r)| (*m, r.clone())).collect()
        };
        let devices = self.gpus.iter().map(|gpu| {
            Some(DeviceSample {
                age: Duration::ZERO,
                readings: readings(&gpu.readings),
                held: gpu.held.clone(),
                energy: gpu.energy,
                throttled: gpu.throttled.clone(),
            })
        });
        let engines = self
            .engines
            .values()
            .map(|engine| Some(EngineSample { age: Duration::ZERO, readings: readings(engine) }));
        Sample { devices: devices.collect(), engines: engines.collect() }
    }

    pub(crate) fn hello(&self) -> Body {
        Body::Hello(Hello {
            node: self.name.clone(),
            version: "test".into(),
            interval_ms: u32::try_from(self.interval.as_millis()).expect("a short interval"),
            engine_interval_ms: 0,
        })
    }

    pub(crate) fn inventory_message(&self, generation: u64) -> Body {
        Body::Inventory(inventory_to_wire(generation, &self.inventory()))
    }

    pub(crate) fn sample_message(&self, generation: u64) -> Body {
        Body::Sample(sample_to_wire(generation, &self.sample(), Duration::ZERO))
    }
}
