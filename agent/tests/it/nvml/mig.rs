//! GPUs that are cut into instances, also while they are read.

use agent::device::{Processes, Seat};
use shared::frame::Mig;

use super::*;

const MIB: u64 = 1 << 20;

/// A GPU in MIG mode with these instances.
fn cut(uuid: &str, instances: &[Value]) -> Value {
    with(with(gpu(uuid, 90), "mig", json!([1, 1])), "instances", json!(instances))
}

/// A 3g.20gb instance of which so many MiB are used.
fn slice(slot: u32, uuid: &str, used: u64) -> Value {
    json!({
        "slot": slot,
        "uuid": uuid,
        "name": "NVIDIA A100-SXM4-40GB MIG 3g.20gb",
        "gi": slot + 1,
        "ci": 0,
        "memory": [19_968 * MIB, 0, used * MIB],
    })
}

/// An instance of which GPM counts so many percent of everything.
fn counted(slot: u32, uuid: &str, percent: f64) -> Value {
    let gpm = json!({"1": percent, "2": percent / 2.0, "5": percent / 4.0, "10": percent / 8.0});
    with(slice(slot, uuid, percent as u64), "gpm", gpm)
}

/// With GPM of the whole, which nobody may be told of.
fn hopper(instances: &[Value]) -> Value {
    with(cut("GPU-a", instances), "gpm", json!({"1": 99.0, "2": 99.0, "5": 99.0, "10": 99.0}))
}

fn a100(instances: &[Value]) -> Value {
    let gpu = with(cut("GPU-a", instances), "name", json!("NVIDIA A100-SXM4-40GB"));
    with(gpu, "memory", json!([40_536 * MIB, 0, 20_100 * MIB]))
}

/// Case O09: instances of an A100, whose utilisation nothing in NVML tells.
#[test]
fn an_instance_has_its_own_memory_and_nothing_of_its_gpu() {
    let instances = [slice(1, "MIG-m1", 18_000), slice(4, "MIG-m2", 2_000)];
    let fake =
        FakeNvml::new(&machine(&[gpu("GPU-z", 5), with(a100(&instances), "minor", json!(7))]));
    let seen = first(&mut open(&fake));
    let uuids: Vec<_> = seen.devices.iter().map(|device| device.uuid.as_str()).collect();
    assert_eq!(uuids, ["GPU-z", "GPU-a", "MIG-m1", "MIG-m2"]);
    for (uuid, index, gi, used, percent) in
        [("MIG-m1", 201, 2, 18_000.0, 90.144), ("MIG-m2", 204, 5, 2_000.0, 10.016)]
    {
        let it = device(&seen, uuid).unwrap();
        assert_eq!((it.index, &*it.name, &it.reason), (index, "NVIDIA A100-SXM4-40GB", &None));
        assert_eq!(it.mig, Some(Mig { parent: "GPU-a".into(), profile: "3g.20gb".into() }));
        let seat = Seat { minor: Some(7), gpu_instance: Some(gi), compute_instance: Some(0) };
        assert_eq!(it.seat, seat);
        assert_eq!(it.memory_total_mib, Some(19_968.0));
        let read = it.readings.value(Metric::MemoryUsedPercent).unwrap();
        assert_eq!((read * 1e3).round() / 1e3, percent);
        assert_eq!(it.readings.get(Metric::MemoryUsedMib), Reading::Ok(used));
        assert_eq!(it.readings.get(Metric::GpuUtilization), Reading::Unsupported);
        assert_eq!(it.readings.iter().count(), 2, "{:?}", it.readings);
    }
    let whole = device(&seen, "GPU-a").unwrap();
    assert_eq!(whole.readings.get(Metric::GpuUtilization), Reading::Unsupported);
    assert_eq!(whole.readings.get(Metric::MemoryUsedMib), Reading::Ok(20_100.0));
    assert_eq!(whole.readings.get(Metric::PowerDraw), Reading::Ok(512.5));
    assert_eq!(whole.processes, Processes::Unasked, "they are those of its instances");
    assert!(whole.reason.as_ref().unwrap().contains("MIG"), "{whole:#?}");
    assert_eq!(value(&seen, "GPU-z", Metric::GpuUtilization), Some(5.0));
}

#[test]
fn where_there_is_gpm_it_tells_the_utilisation_of_each_instance() {
    let gpus = [hopper(&[counted(0, "MIG-a", 80.0), counted(2, "MIG-b", 0.0)])];
    let fake = FakeNvml::new(&machine(&gpus));
    let is_counted = |seen: &Observation| {
        ["MIG-a", "MIG-b"].iter().all(|uuid| value(seen, uuid, Metric::SmActivity).is_some())
    };
    let seen = until(&mut open(&fake), is_counted);
    for (uuid, percent) in [("MIG-a", 80.0), ("MIG-b", 0.0)] {
        let it = device(&seen, uuid).unwrap();
        for (metric, expected) in [
            (Metric::GpuUtilization, percent),
            (Metric::SmActivity, percent / 2.0),
            (Metric::TensorActivity, percent / 4.0),
            (Metric::MemoryUtilization, percent / 8.0),
        ] {
            assert_eq!(it.readings.get(metric), Reading::Ok(expected), "{metric} of {uuid}");
        }
        assert_eq!(it.readings.iter().count(), 6, "{:?}", it.readings);
    }
    for metric in [Metric::GpuUtilization, Metric::MemoryUtilization, Metric::SmActivity] {
        assert_eq!(reads(&seen, "GPU-a", metric), Some(Reading::Unsupported), "{metric}");
    }
}

#[test]
fn instances_that_are_cut_anew_inherit_nothing_though_slot_and_ids_are_the_same() {
    let before = [counted(0, "MIG-old", 80.0), counted(3, "MIG-stays", 30.0)];
    let fake = FakeNvml::new(&machine(&[hopper(&before)]));
    let mut source = open(&fake);
    first(&mut source);
    // Its handle, its slot and its GPU instance id are those of the old one.
    let after =
        [counted(0, "MIG-new", 20.0), counted(3, "MIG-stays", 30.0), counted(5, "MIG-more", 10.0)];
    fake.script(&machine(&[hopper(&after)]));
    let of = |seen: &Observation, uuid, metric| value(seen, uuid, metric);
    let seen = until(&mut source, |seen| {
        for (uuid, percent) in [("MIG-old", 80.0), ("MIG-new", 20.0), ("MIG-stays", 30.0)] {
            let counted = of(seen, uuid, Metric::GpuUtilization);
            assert!(counted.is_none_or(|counted| counted == percent), "{uuid}: {counted:?}");
            let used = of(seen, uuid, Metric::MemoryUsedMib);
            assert!(used.is_none_or(|used| used == percent), "{uuid}: {used:?}");
        }
        let is_told = |uuid| of(seen, uuid, Metric::GpuUtilization).is_some();
        is_told("MIG-new") && is_told("MIG-more")
    });
    assert!(device(&seen, "MIG-old").is_none(), "{seen:#?}");
    assert_eq!(seen.devices.len(), 4);

    fake.script(&machine(&[hopper(&[])]));
    let seen = until(&mut source, |seen| seen.devices.len() == 1);
    assert!(seen.devices[0].reason.is_some(), "MIG is on still, so nobody can be given it whole");
}

#[test]
fn a_gpu_that_is_cut_or_whole_again_has_the_readings_that_it_then_has() {
    let whole = with(gpu("GPU-a", 60), "processes", json!([{"pid": 7, "memory": MIB}]));
    let fake = FakeNvml::new(&machine(std::slice::from_ref(&whole)));
    let mut source = open(&fake);
    first(&mut source);
    for _ in 0..2 {
        fake.script(&machine(&[a100(&[slice(0, "MIG-m1", 18_000)])]));
        let seen = until(&mut source, |seen| device(seen, "MIG-m1").is_some());
        assert_eq!(reads(&seen, "GPU-a", Metric::GpuUtilization), Some(Reading::Unsupported));
        fake.script(&machine(std::slice::from_ref(&whole)));
        let seen = until(&mut source, |seen| {
            value(seen, "GPU-a", Metric::GpuUtilization) == Some(60.0) && seen.devices.len() == 1
        });
        assert_eq!(seen.devices[0].reason, None);
        assert_eq!(seen.devices[0].processes.clone(), {
            let seen = until(&mut source, |seen| seen.devices[0].processes != Processes::Unasked);
            seen.devices[0].processes.clone()
        });
    }
}

#[test]
fn an_instance_tells_its_own_processes_but_not_their_time() {
    let with_process =
        with(slice(2, "MIG-m1", 18_000), "processes", json!([{"pid": 7, "memory": MIB}]));
    let fake = FakeNvml::new(&machine(&[a100(&[with_process, slice(3, "MIG-m2", 1)])]));
    let seen = first(&mut open(&fake));
    let Processes::Known(list) = &device(&seen, "MIG-m1").unwrap().processes else {
        panic!("{seen:#?}")
    };
    assert_eq!(
        (list.len(), list[0].pid, list[0].memory_mib, list[0].utilization),
        (1, 7, Some(1.0), None)
    );
    assert_eq!(device(&seen, "MIG-m2").unwrap().processes, Processes::Unasked);
}

#[test]
fn compute_instances_that_share_a_gpu_instance_are_not_told_its_counters() {
    let sharing = with(with(counted(1, "MIG-b", 40.0), "gi", json!(1)), "ci", json!(1));
    let gpus = [hopper(&[counted(0, "MIG-a", 80.0), sharing, counted(3, "MIG-c", 10.0)])];
    let fake = FakeNvml::new(&machine(&gpus));
    let mut source = open(&fake);
    // It takes two readings.
    let seen =
        until(&mut source, |seen| value(seen, "MIG-c", Metric::GpuUtilization) == Some(10.0));
    for uuid in ["MIG-a", "MIG-b", "MIG-c"] {
        let expected = (uuid == "MIG-c").then_some(10.0);
        assert_eq!(value(&seen, uuid, Metric::GpuUtilization), expected, "{uuid}");
        assert!(value(&seen, uuid, Metric::MemoryUsedPercent).is_some());
    }
}

#[test]
fn an_instance_that_is_lost_or_refused_costs_itself_only() {
    let good = || slice(0, "MIG-a", 18_000);
    for (errors, why) in [
        (json!({"*": 15}), "fallen off the bus"),
        (json!({"nvmlDeviceGetUUID": 999}), "unknown error"),
        (json!({"nvmlDeviceGetMemoryInfo_v2": 2}), "NVML"),
        (json!({"nvmlDeviceGetMemoryInfo_v2": 15}), "fallen off the bus"),
    ] {
        let fake = FakeNvml::new(&machine(&[a100(&[good(), slice(2, "MIG-b", 2_000)])]));
        let mut source = open(&fake);
        first(&mut source);
        let bad = with(slice(2, "MIG-b", 2_000), "errors", errors);
        fake.script(&machine(&[a100(&[good(), bad])]));
        let is_failed =
            |seen: &Observation| failure(seen, "MIG-b", Metric::MemoryUsedMib).contains(why);
        until(&mut source, is_failed);
        // For as long as that lasts, also over the next looks.
        for _ in 0..30 {
            drop(source.begin());
            std::thread::sleep(Duration::from_millis(5));
            let seen = source.observe(Timestamp::START);
            assert!(is_failed(&seen), "{seen:#?}");
            assert_eq!(value(&seen, "MIG-a", Metric::MemoryUsedMib), Some(18_000.0));
            assert_eq!(reads(&seen, "MIG-b", Metric::GpuUtilization), Some(Reading::Unsupported));
            assert_eq!(value(&seen, "GPU-a", Metric::MemoryUsedMib), Some(20_100.0));
        }
        fake.script(&machine(&[a100(&[good(), slice(2, "MIG-b", 3_000)])]));
        until(&mut source, |seen| value(seen, "MIG-b", Metric::MemoryUsedMib) == Some(3_000.0));
    }
}

#[test]
fn a_gpu_that_is_lost_or_hangs_is_so_with_its_instances_and_no_other() {
    for (key, extra) in [("errors", json!({"*": 15})), ("block", json!(["*"]))] {
        let gpus = |a: Value| machine(&[a, gpu("GPU-z", 70)]);
        let good = a100(&[slice(2, "MIG-a", 18_000)]);
        let fake = FakeNvml::new(&gpus(good.clone()));
        let mut source = open(&fake);
        first(&mut source);
        fake.script(&gpus(with(good.clone(), key, extra)));
        let seen =
            until(&mut source, |seen| !failure(seen, "MIG-a", Metric::MemoryUsedMib).is_empty());
        assert!(!failure(&seen, "GPU-a", Metric::Temperature).is_empty());
        assert_eq!(value(&seen, "GPU-z", Metric::GpuUtilization), Some(70.0));
        assert_eq!(seen.devices.len(), 3);
        fake.script(&gpus(good));
        until(&mut source, |seen| value(seen, "MIG-a", Metric::MemoryUsedMib) == Some(18_000.0));
    }
}

#[test]
fn a_profile_is_the_names_end_or_else_the_size() {
    let sized = |slot, uuid, size: Value| {
        let slice = with(slice(slot, uuid, 1), "name", json!("NVIDIA H100 80GB HBM3"));
        with(slice, "attributes", size)
    };
    let instances = [
        with(slice(0, "MIG-a", 1), "name", json!("NVIDIA H100 80GB HBM3 MIG 1g.20gb")),
        sized(1, "MIG-b", json!([3, 3, 40_448])),
        sized(2, "MIG-c", json!([2, 1, 19_968])),
        sized(3, "MIG-d", json!(null)),
    ];
    let fake = FakeNvml::new(&machine(&[cut("GPU-a", &instances)]));
    let seen = first(&mut open(&fake));
    let profiles: Vec<_> =
        seen.devices.iter().filter_map(|device| Some(&*device.mig.as_ref()?.profile)).collect();
    assert_eq!(profiles, ["1g.20gb", "3g.40gb", "1c.2g.20gb", "unknown"]);
}
