//! Every series there can be, as the reference lists them.

use std::sync::Arc;
use std::time::Duration;

use reference::{compare, series_table};
use shared::frame::{
    Device, DeviceSample, Engine, EngineSample, Frame, Holder, HolderSource, Inventory, Sample,
};
use shared::health::{Energy, Health, Origin, RecoveryAction, Throttle, XidCount};
use shared::identity::PodKey;
use shared::metric::{Metric, Scope};
use shared::reading::{Reading, Readings};
use shared::time::Timestamp;

use super::{View, registry};
use crate::frame::Taken;
use crate::owner::kubelet::Counts;

fn readings(scope: Scope, reading: &Reading) -> Readings {
    let of_scope = Metric::ALL.iter().filter(|metric| metric.scope() == scope);
    of_scope.map(|metric| (*metric, reading.clone())).collect()
}

/// A device that two containers have four tenths of each, so that two are left.
fn device(index: u32) -> Device {
    let holder = Holder {
        pod: PodKey::new("a", "a"),
        uid: None,
        container: "a".into(),
        share: Some(0.4),
        estimated: false,
        source: HolderSource::File,
        undeclared: false,
    };
    Device {
        uuid: format!("GPU-{index}").as_str().into(),
        index,
        name: "a".into(),
        memory_total_mib: Some(100.0),
        mig: None,
        health: Some(Box::new(health())),
        holders: vec![holder.clone(), Holder { container: "b".into(), ..holder }],
        reason: None,
    }
}

/// All that can be the matter.
fn health() -> Health {
    Health {
        xids: Some(vec![XidCount { xid: 79, count: 1 }]),
        ecc_uncorrected: Some(1),
        remap_pending: Some(true),
        remap_failed: Some(true),
        recovery: Some(RecoveryAction::GpuReset),
        lost: true,
    }
}

fn engine(pod: &str) -> Engine {
    Engine { pod: PodKey::new("a", pod), uid: None, labels: "a=b".into() }
}

#[test]
fn the_reference_lists_every_series() {
    let inventory = Inventory {
        devices: vec![device(0), device(1)],
        engines: vec![engine("a"), engine("b")],
        reason: None,
    };
    let (age, held) = (Duration::ZERO, Vec::new());
    let energy = Energy { joules: 1.0, origin: Origin::Counter };
    let [good, bad] = [Reading::Ok(50.0), Reading::Failed("a".into())];
    let device = |reading| {
        let readings = readings(Scope::Device, reading);
        let throttled = [(Throttle::ALL[0], 50.0)].into();
        Some(DeviceSample { age, readings, held: held.clone(), energy: Some(energy), throttled })
    };
    let engine = |reading| Some(EngineSample { age, readings: readings(Scope::Engine, reading) });
    let sample = Sample {
        devices: vec![device(&good), device(&bad)],
        engines: vec![engine(&good), engine(&bad)],
    };
    let kubelet = Counts { age: Some(age), ..Counts::default() };
    let frame = Frame { inventory: Arc::new(inventory), sample };
    let taken = Taken { frame, at: Timestamp::START, kubelet: Some(kubelet) };
    let view = View::of(&taken, Timestamp::START, Duration::from_secs(1));
    let mut all = reference::series(&registry(&view));
    all.sort();
    compare("metrics.md", "gpu-agent", &series_table(&all));
}
