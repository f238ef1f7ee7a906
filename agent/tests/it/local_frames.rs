//! Every observation a source can make, for the properties of what is shown.

use std::time::Duration;

use agent::device::{
    Condition, Observation, ObservedDevice, ObservedEngine, ObservedHolder, Processes, Seat,
};
use proptest::prelude::*;
use shared::frame::{Engine, HolderSource, Mig};
use shared::health::{Energy, Health, Origin, RecoveryAction, Throttle, XidCount};
use shared::identity::PodKey;
use shared::metric::{Metric, Scope};
use shared::reading::{Reading, Readings};

/// An observation that keeps what sources promise.
pub(crate) fn observation() -> impl Strategy<Value = Observation> {
    let devices = prop::collection::vec(device(), 0..4);
    let engines = prop::collection::vec(engine(), 0..3);
    (devices, engines).prop_map(|(mut devices, mut engines)| {
        for (place, device) in devices.iter_mut().enumerate() {
            device.uuid = format!("{}-{place}", device.uuid).into();
        }
        for (place, engine) in engines.iter_mut().enumerate() {
            engine.engine.pod = PodKey::new("ai", format!("engine-{place}"));
        }
        Observation { devices, engines, reason: None }
    })
}

fn text() -> impl Strategy<Value = String> {
    "[ -~äß\u{1b}\"\\\\]{1,20}"
}

fn reading(metric: Metric) -> impl Strategy<Value = Reading> {
    let value = 0.0..=metric.unit().max();
    let whole = 0..=100_u32;
    prop_oneof![
        2 => Just(Reading::Unsupported),
        1 => text().prop_map(|why| Reading::Failed(why.into())),
        3 => value.prop_map(Reading::Ok),
        1 => whole.prop_map(|value| Reading::Ok(value.into())),
    ]
}

fn readings(scope: Scope) -> impl Strategy<Value = Vec<(Metric, Reading)>> {
    let of = |metric: &Metric| {
        let metric = *metric;
        reading(metric).prop_map(move |reading| (metric, reading))
    };
    Metric::ALL.iter().filter(|metric| metric.scope() == scope).map(of).collect::<Vec<_>>()
}

fn condition() -> impl Strategy<Value = Condition> {
    let flag = || prop::option::of(any::<bool>());
    let joules = prop::option::of(0.0..=Energy::MAX_JOULES);
    let xids = prop::option::of(prop::collection::btree_map(any::<u32>(), 1..1_000_u64, 0..5));
    let throttled = prop::collection::vec(prop::option::of(0.0..=100.0), Throttle::ALL.len());
    let action = prop::option::of((0..5_u32).prop_map(RecoveryAction::from_number));
    let health = (xids, prop::option::of(0..1_000_u64), flag(), flag(), action, any::<bool>());
    (joules, throttled, prop::option::of(health)).prop_map(|(joules, throttled, health)| {
        let mut by: Vec<_> = Throttle::ALL.into_iter().zip(throttled).collect();
        // In the order of their names, as they are written.
        by.sort_by_key(|(throttle, _)| throttle.name());
        let known = by.into_iter().filter_map(|(throttle, percent)| Some((throttle, percent?)));
        let health =
            health.map(|(xids, ecc_uncorrected, remap_pending, remap_failed, recovery, lost)| {
                let count = |(xid, count)| XidCount { xid, count };
                let xids = xids.map(|xids| xids.into_iter().map(count).collect());
                Health { xids, ecc_uncorrected, remap_pending, remap_failed, recovery, lost }
            });
        Condition {
            energy: joules.map(|joules| Energy { joules, origin: Origin::Counter }),
            throttled: known.collect(),
            health: health.map(Box::new),
        }
    })
}

fn device() -> impl Strategy<Value = ObservedDevice> {
    let total = prop::option::of(1.0..200_000.0_f64);
    let mig = prop::option::of((text(), text()));
    let reason = prop::option::of(text());
    let holders = prop::collection::vec(holder(), 0..4);
    let age_and_condition = (0..9_000_u64, condition());
    let parts = (text(), any::<u32>(), text(), total, mig, reason, holders, age_and_condition);
    (parts, readings(Scope::Device)).prop_map(|(parts, readings)| {
        let (uuid, index, name, total, mig, reason, mut holders, (age, condition)) = parts;
        fit(&mut holders, total);
        ObservedDevice {
            uuid: uuid.into(),
            index,
            name: name.into(),
            memory_total_mib: total,
            mig: mig
                .map(|(parent, profile)| Mig { parent: parent.into(), profile: profile.into() }),
            holders,
            reason: reason.map(Into::into),
            age: Duration::from_millis(age),
            readings: consistent(readings, total),
            seat: Seat::default(),
            processes: Processes::default(),
            condition,
        }
    })
}

fn holder() -> impl Strategy<Value = ObservedHolder> {
    let source = prop_oneof![
        Just(HolderSource::Replay),
        Just(HolderSource::File),
        Just(HolderSource::Simulated)
    ];
    let own = (prop::option::of(0.0..=100.0_f64), prop::option::of(0.0..200_000.0_f64));
    let share = prop::option::of(0.0..=1.0_f64);
    let uid = prop::option::of(text());
    (text(), text(), uid, "[a-z]{0,5}", share, any::<bool>(), source, own).prop_map(
        |(namespace, pod, uid, container, share, estimated, source, (utilization, memory))| {
            let own = [(Metric::GpuUtilization, utilization), (Metric::MemoryUsedMib, memory)];
            ObservedHolder {
                pod: PodKey::new(namespace, pod),
                uid: uid.map(Into::into),
                container: container.into(),
                share,
                estimated: estimated && share.is_some(),
                source,
                undeclared: false,
                own: own.into_iter().filter_map(|(of, value)| Some((of, value?))).collect(),
            }
        },
    )
}

/// Holders together have at most the device.
fn fit(holders: &mut [ObservedHolder], total: Option<f64>) {
    let given: f64 = holders.iter().filter_map(|holder| holder.share).sum();
    for holder in holders {
        holder.share = holder.share.map(|share| share / given.max(1.0));
        let fits = |(metric, value): &(Metric, f64)| {
            *metric != Metric::MemoryUsedMib || total.is_none_or(|total| *value <= total)
        };
        holder.own.retain(fits);
    }
}

/// Used memory and its percentage say the same.
fn consistent(mut readings: Vec<(Metric, Reading)>, total: Option<f64>) -> Readings {
    let place = |of| readings.iter().position(|(metric, _)| *metric == of).unwrap();
    let (used, percent) = (place(Metric::MemoryUsedMib), place(Metric::MemoryUsedPercent));
    if let Some(total) = total {
        match readings[used].1.clone() {
            Reading::Ok(mib) => {
                let mib = mib.min(total);
                readings[used].1 = Reading::Ok(mib);
                readings[percent].1 = Reading::Ok(mib / total * 100.0);
            }
            Reading::Failed(why) if readings[percent].1 == Reading::Unsupported => {
                readings[percent].1 = Reading::Failed(why);
            }
            Reading::Failed(_) | Reading::Unsupported => {}
        }
    }
    readings.into_iter().collect()
}

fn engine() -> impl Strategy<Value = ObservedEngine> {
    let some = readings(Scope::Engine).prop_map(|readings| readings.into_iter().collect());
    let none = text().prop_map(|why| {
        let engine = Metric::ALL.iter().filter(|metric| metric.scope() == Scope::Engine);
        engine.map(|metric| (*metric, Reading::Failed(why.as_str().into()))).collect()
    });
    let readings = prop_oneof![3 => some, 1 => none];
    let labels = prop_oneof!["", "[a-c]=[!#-+.-~]{0,8}", "a=[a-z]{3},b=x y"];
    (prop::option::of(text()), labels, 0..9_000_u64, readings).prop_map(
        |(uid, labels, age, readings)| ObservedEngine {
            engine: Engine {
                pod: PodKey::new("", ""),
                uid: uid.map(Into::into),
                labels: labels.into(),
            },
            age: Duration::from_millis(age),
            readings,
        },
    )
}
