//! Readings that are wrong, old, or another GPU's.

use super::*;

/// Watts of `energy_rate` and of `power`, far apart.
const COUNTED: f64 = 400.0;
const MOMENTARY: f64 = 512.5;

fn counted(uuid: &str) -> Value {
    with(gpu(uuid, 10), "energy_rate", json!(COUNTED * 1e3))
}

fn power(seen: &Observation, uuid: &str) -> f64 {
    value(seen, uuid, Metric::PowerDraw).unwrap_or(f64::NAN)
}

#[test]
fn power_of_the_first_second_is_not_that_of_a_counter_that_steps() {
    let fake = FakeNvml::new(&machine(&[counted("GPU-a")]));
    let mut source = open(&fake);
    first(&mut source);
    let mut seen = Vec::new();
    until(&mut source, |observed| power(observed, "GPU-a") != MOMENTARY);
    while seen.len() < 50 {
        drop(source.begin());
        std::thread::sleep(Duration::from_millis(5));
        seen.push(power(&source.observe(Timestamp::START), "GPU-a"));
    }
    // A step more or less in a second is a tenth; over 5 ms it would be all or 20 times as much.
    let is_near = |watts: &f64| (watts - COUNTED).abs() <= COUNTED * 0.15;
    assert!(seen.iter().all(is_near), "{seen:?}");
}

#[test]
fn another_gpu_at_the_index_inherits_nothing_though_the_uuid_was_unreadable_in_between() {
    let script = |gpu: Value, events: bool| {
        let event = if events { json!([{"gpu": 0, "kind": 8, "data": 79}]) } else { json!([]) };
        with(machine(&[gpu, super::gpu("GPU-z", 2)]), "events", event)
    };
    let fake = FakeNvml::new(&script(counted("GPU-a"), false));
    let mut source = open(&fake);
    first(&mut source);
    fake.script(&script(counted("GPU-a"), true));
    let is_counted = |seen: &Observation| {
        device(seen, "GPU-a").unwrap().reason.is_some() && power(seen, "GPU-a") != MOMENTARY
    };
    until(&mut source, is_counted);

    let lost = |uuid| with(counted(uuid), "errors", json!({"*": 15}));
    fake.script(&script(lost("GPU-a"), true));
    until(&mut source, |seen| failure(seen, "GPU-a", Metric::Temperature).contains("fallen off"));
    let nameless = with(counted("GPU-a"), "errors", json!({"nvmlDeviceGetUUID": 999}));
    fake.script(&script(nameless, true));
    let seen =
        until(&mut source, |seen| failure(seen, "GPU-a", Metric::Temperature).contains("(999)"));
    assert_eq!(seen.devices.len(), 2, "it is not forgotten");

    let other = with(counted("GPU-b"), "energy_rate", json!(9e6));
    fake.script(&script(with(other, "memory", json!(null)), true));
    let seen = until(&mut source, |seen| value(seen, "GPU-b", Metric::Temperature).is_some());
    assert!(device(&seen, "GPU-a").is_none());
    assert_eq!(power(&seen, "GPU-b"), MOMENTARY, "of no counter yet");
    assert_eq!(device(&seen, "GPU-b").unwrap().reason, None, "the XID was another's");
}

#[test]
fn a_lost_gpu_whose_handle_still_opens_stays_listed() {
    let fake = FakeNvml::new(&machine(&[gpu("GPU-a", 10), gpu("GPU-b", 20)]));
    let mut source = open(&fake);
    first(&mut source);
    let functions = ["UUID", "Name", "Samples", "UtilizationRates", "MemoryInfo_v2", "Temperature"];
    let errors: serde_json::Map<_, _> = functions
        .map(|function| (format!("nvmlDeviceGet{function}"), json!(15)))
        .into_iter()
        .collect();
    fake.script(&machine(&[gpu("GPU-a", 10), with(gpu("GPU-b", 20), "errors", errors.into())]));
    let is_lost = |seen: &Observation| {
        failure(seen, "GPU-b", Metric::GpuUtilization) == "the GPU has fallen off the bus"
    };
    until(&mut source, is_lost);
    // Past the attempt that takes a new handle.
    let age = |seen: &Observation| device(seen, "GPU-b").unwrap().age;
    let seen = until(&mut source, |seen| age(seen) > Duration::from_millis(1_200));
    assert!(is_lost(&seen) && seen.reason.is_none(), "{seen:#?}");
    fake.script(&machine(&[gpu("GPU-a", 10), gpu("GPU-b", 20)]));
    until(&mut source, |seen| value(seen, "GPU-b", Metric::GpuUtilization) == Some(20.0));
}

#[test]
fn a_gpu_that_answers_at_another_index_is_not_kept_as_failed_at_its_old_one() {
    let fake = FakeNvml::new(&machine(&[gpu("GPU-a", 10), gpu("GPU-b", 20)]));
    let mut source = open(&fake);
    first(&mut source);
    let lost = |uuid, code| with(gpu(uuid, 1), "errors", json!({"*": code}));
    fake.script(&machine(&[lost("GPU-a", 15), lost("GPU-b", 15)]));
    until(&mut source, |seen| !failure(seen, "GPU-b", Metric::Temperature).is_empty());
    fake.script(&machine(&[lost("GPU-b", 15), gpu("GPU-a", 30)]));
    let seen =
        until(&mut source, |seen| value(seen, "GPU-a", Metric::GpuUtilization) == Some(30.0));
    assert_eq!(seen.devices.len(), 1, "who is at 0 is not known: {seen:#?}");
    assert!(seen.reason.unwrap().starts_with("GPU 0: "));
}

#[test]
fn a_gpu_that_comes_in_front_and_hangs_does_not_hide_the_one_behind_it() {
    let fake = FakeNvml::new(&machine(&[gpu("GPU-b", 20)]));
    let mut source = open(&fake);
    first(&mut source);
    let hung = with(gpu("GPU-a", 10), "block", json!(["*"]));
    let moved = with(gpu("GPU-b", 20), "temperature", json!(71));
    fake.script(&machine(&[hung, moved]));
    // The old handle knows it too, until the library is opened anew.
    let is_live = |seen: &Observation| {
        let behind = device(seen, "GPU-b").filter(|gpu| gpu.index == 1);
        behind.and_then(|gpu| gpu.readings.value(Metric::Temperature)) == Some(71.0)
    };
    let seen = until(&mut source, is_live);
    assert_eq!(seen.devices.len(), 1, "{seen:#?}");
    fake.script(&machine(&[gpu("GPU-a", 10), gpu("GPU-b", 20)]));
    until(&mut source, |seen| seen.devices.len() == 2 && seen.reason.is_none());
}

#[test]
fn the_age_of_a_gpu_grows_while_it_hangs_and_after_it_failed() {
    let hung =
        |uuid, key: &str, extra| machine(&[gpu("GPU-a", 10), with(gpu(uuid, 20), key, extra)]);
    for (key, extra) in [("block", json!(["*"])), ("errors", json!({"*": 15}))] {
        let fake = FakeNvml::new(&machine(&[gpu("GPU-a", 10), gpu("GPU-b", 20)]));
        let mut source = open(&fake);
        first(&mut source);
        fake.script(&hung("GPU-b", key, extra));
        let age = |seen: &Observation, uuid| device(seen, uuid).unwrap().age;
        let has_failed =
            |seen: &Observation| !failure(seen, "GPU-b", Metric::Temperature).is_empty();
        let mut before = Duration::ZERO;
        let failed = until(&mut source, has_failed);
        for _ in 0..20 {
            drop(source.begin());
            std::thread::sleep(Duration::from_millis(5));
            let now = age(&source.observe(Timestamp::START), "GPU-b");
            assert!(now > before, "{now:?} after {before:?}");
            before = now;
        }
        assert!(before > age(&failed, "GPU-b"), "its failure made it no younger");
        let younger = |seen: &Observation| age(seen, "GPU-a") < age(seen, "GPU-b");
        until(&mut source, younger);
        fake.script(&machine(&[gpu("GPU-a", 10), gpu("GPU-b", 20)]));
        until(&mut source, |seen| value(seen, "GPU-b", Metric::GpuUtilization) == Some(20.0));
    }
}

#[test]
fn more_memory_in_use_than_there_is_has_failed_in_every_form() {
    let memory = json!([1_u64 << 30, 0, 2_u64 << 30]);
    let fake = FakeNvml::new(&machine(&[with(gpu("GPU-a", 10), "memory", memory)]));
    let seen = first(&mut open(&fake));
    for metric in [Metric::MemoryUsedMib, Metric::MemoryUsedPercent] {
        let why = failure(&seen, "GPU-a", metric);
        assert_eq!(why, "the NVIDIA driver says that more memory is used than there is");
    }
    assert_eq!(device(&seen, "GPU-a").unwrap().memory_total_mib, None);
    assert_eq!(value(&seen, "GPU-a", Metric::Temperature), Some(64.0), "nothing else has");
}

#[test]
fn only_boards_that_are_known_for_it_share_the_hosts_memory() {
    for (name, shares) in [
        ("NVIDIA GB10", true),
        ("Orin (nvgpu)", true),
        ("NVIDIA Thor", true),
        ("NVIDIA H100 80GB HBM3", false),
        ("NVIDIA GH200 480GB", false),
        ("NVIDIA GB100", false),
        ("GRID A100-10C", false),
    ] {
        let mut board = with(gpu("GPU-a", 5), "name", json!(name));
        board.as_object_mut().unwrap().remove("memory");
        let seen = first(&mut open(&FakeNvml::new(&machine(&[board]))));
        let gpu = device(&seen, "GPU-a").unwrap();
        assert_eq!(gpu.memory_total_mib.is_some(), shares, "{name}");
        assert_eq!(gpu.reason.is_some(), shares, "{name}");
        for metric in [Metric::MemoryUsedMib, Metric::MemoryUsedPercent] {
            let is_unsupported = gpu.readings.get(metric) == Reading::Unsupported;
            assert_eq!(is_unsupported, !shares, "{name}");
        }
    }
}
