//! What a GPU used up, and what is the matter with it.

use serde_json::json;
use shared::health::{Energy, Health, Origin, RecoveryAction, Throttle, XidCount};
use shared::metric::Metric;

use super::*;
use crate::fake_nvml::{FakeNvml, gpu, machine};

fn health<'a>(seen: &'a Observation, uuid: &str) -> Option<&'a Health> {
    device(seen, uuid)?.condition.health.as_deref()
}

fn joules(seen: &Observation, uuid: &str) -> Option<f64> {
    let energy = device(seen, uuid)?.condition.energy?;
    assert_eq!(energy.origin, Origin::Counter);
    Some(energy.joules)
}

#[test]
fn the_counter_is_told_as_it_stands_whatever_it_does() {
    let counts = |millijoules: u64| with(gpu("GPU-a", 70), "energy", json!(millijoules));
    let fake = FakeNvml::new(&machine(&[counts(5_000_250), gpu("GPU-b", 10)]));
    let mut source = open(&fake);
    let seen = first(&mut source);
    assert_eq!(joules(&seen, "GPU-a"), Some(5_000.25));
    assert_eq!(device(&seen, "GPU-b").unwrap().condition.energy, None, "it has no counter");
    for stands in [9_000_000_000_000_000_u64, 0, 12_000] {
        fake.script(&machine(&[counts(stands), gpu("GPU-b", 10)]));
        #[expect(clippy::cast_precision_loss, reason = "it is exact up to 2^53")]
        let right = stands as f64 / 1_000.0;
        until(&mut source, |seen| joules(seen, "GPU-a") == Some(right));
    }
    // More than can be is no reading.
    fake.script(&machine(&[counts(u64::MAX), gpu("GPU-b", 10)]));
    until(&mut source, |seen| device(seen, "GPU-a").unwrap().condition.energy.is_none());
    assert!(Energy::checked(f64::NAN, Origin::Counter).is_none());
}

#[test]
fn errors_rows_and_the_recovery_action_are_told_and_what_is_not_there_is_not_known() {
    let mut ill = gpu("GPU-ill", 70);
    ill["ecc"] = json!([1, 7]);
    ill["remapped_rows"] = json!([3, 1, 1, 0]);
    ill["recovery_action"] = json!(2);
    let young = with(gpu("GPU-young", 70), "ecc", json!([4, null]));
    let plain = with(gpu("GPU-plain", 70), "event_types", json!(0));
    let fake = FakeNvml::new(&machine(&[ill, young, plain]));
    let mut source = open(&fake);
    first(&mut source);
    let knows = |seen: &Observation| {
        let tells = |uuid| health(seen, uuid).is_some_and(|health| health.xids.is_some());
        tells("GPU-ill") && tells("GPU-young")
    };
    let seen = until(&mut source, knows);
    assert_eq!(
        health(&seen, "GPU-ill"),
        Some(&Health {
            xids: Some(Vec::new()),
            ecc_uncorrected: Some(7),
            remap_pending: Some(true),
            remap_failed: Some(false),
            recovery: Some(RecoveryAction::NodeReboot),
            lost: false,
        })
    );
    let young = health(&seen, "GPU-young").unwrap();
    assert_eq!((young.ecc_uncorrected, young.recovery), (Some(4), None), "volatile ones instead");
    assert_eq!(health(&seen, "GPU-plain"), None, "nothing is known of it");
}

#[test]
fn an_old_library_knows_nothing_of_health_and_reads_all_the_same() {
    let mut ill = gpu("GPU-ill", 70);
    ill["ecc"] = json!([1, 7]);
    ill["remapped_rows"] = json!([3, 1, 1, 0]);
    ill["recovery_action"] = json!(2);
    let lacks =
        ["nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetRemappedRows", "nvmlDeviceGetFieldValues"];
    let fake = FakeNvml::without(&lacks, &machine(&[ill]));
    let mut source = open(&fake);
    first(&mut source);
    let seen = until(&mut source, |seen| health(seen, "GPU-ill").is_some());
    let xids = Some(Vec::new());
    assert_eq!(health(&seen, "GPU-ill"), Some(&Health { xids, ..Health::default() }));
    assert_eq!(value(&seen, "GPU-ill", Metric::GpuUtilization), Some(70.0));
}

#[test]
fn xids_are_counted_by_kind_and_a_lost_gpu_keeps_them() {
    let one = || gpu("GPU-a", 70);
    let mut script = machine(&[one(), gpu("GPU-b", 10)]);
    let fake = FakeNvml::new(&script);
    let mut source = open(&fake);
    first(&mut source);
    until(&mut source, |seen| health(seen, "GPU-a").is_some_and(|health| health.xids.is_some()));
    let event = |xid: u64| json!({"gpu": 0, "kind": 8, "data": xid});
    script["events"] = json!([event(94), event(63), event(94)]);
    fake.script(&script);
    let right = vec![XidCount { xid: 63, count: 1 }, XidCount { xid: 94, count: 2 }];
    let has = |seen: &Observation, uuid: &str, xids: &[XidCount]| {
        health(seen, uuid).is_some_and(|health| health.xids.as_deref() == Some(xids))
    };
    until(&mut source, |seen| has(seen, "GPU-a", &right) && has(seen, "GPU-b", &[]));

    script["gpus"][0] = with(one(), "errors", json!({"*": 15}));
    fake.script(&script);
    let seen = until(&mut source, |seen| health(seen, "GPU-a").is_some_and(|health| health.lost));
    assert!(has(&seen, "GPU-a", &right), "{seen:#?}");
    assert!(!health(&seen, "GPU-b").unwrap().lost);
    script["gpus"][0] = one();
    fake.script(&script);
    until(&mut source, |seen| health(seen, "GPU-a").is_some_and(|health| !health.lost));
}

#[test]
fn a_clock_that_is_held_down_names_by_what() {
    // Power cap, and a hardware slowdown that is a thermal one.
    let fake = FakeNvml::new(&machine(&[with(gpu("GPU-a", 99), "throttle", json!(0x4 | 0x48))]));
    let seen = first(&mut open(&fake));
    let device = device(&seen, "GPU-a").unwrap();
    assert_eq!(device.readings.value(Metric::ThrottledPercent), Some(100.0));
    let by = [(Throttle::Power, 100.0), (Throttle::Heat, 100.0), (Throttle::Hardware, 100.0)];
    assert_eq!(*device.condition.throttled, by);
}
