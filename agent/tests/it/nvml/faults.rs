//! GPUs that are lost, hang, or are not what they should be.

use super::*;

/// Eight GPUs; the one at 1 with one more key.
fn eight(utilization: u32, key: &str, extra: Value) -> Value {
    let gpu = |index| match index {
        1 => with(gpu("GPU-1", utilization), key, extra.clone()),
        other => gpu(&format!("GPU-{other}"), utilization),
    };
    machine(&(0..8).map(gpu).collect::<Vec<_>>())
}

fn all_but_one(seen: &Observation, utilization: f64) -> bool {
    let others = (0..8).filter(|index| *index != 1).map(|index| format!("GPU-{index}"));
    let mut others = others.map(|uuid| value(seen, &uuid, Metric::GpuUtilization));
    others.all(|value| value == Some(utilization))
}

#[test]
fn a_gpu_that_hangs_grows_old_then_fails_then_is_fine_again_while_seven_go_on() {
    let fake = FakeNvml::new(&eight(10, "block", json!([])));
    let mut source = open(&fake);
    let seen = first(&mut source);
    assert!(all_but_one(&seen, 10.0), "{seen:#?}");
    assert_eq!(value(&seen, "GPU-1", Metric::GpuUtilization), Some(10.0));

    // The ring holds a second of the old value, but the memory changes at once.
    let hung = |utilization| eight(utilization, "block", json!(["*"]));
    fake.script(&hung(20));
    let is_old = |seen: &Observation| {
        let gpu = device(seen, "GPU-1").unwrap();
        gpu.age > Duration::from_millis(100) && gpu.readings.value(Metric::Temperature).is_some()
    };
    until(&mut source, is_old);
    let is_silent = |seen: &Observation| {
        failure(seen, "GPU-1", Metric::GpuUtilization).contains("not answering for")
    };
    let seen = until(&mut source, is_silent);
    assert_eq!(device(&seen, "GPU-1").unwrap().readings.known().iter().count(), 0);
    until(&mut source, |seen| all_but_one(seen, 20.0) && is_silent(seen));

    fake.script(&eight(30, "block", json!([])));
    let is_well = |seen: &Observation| {
        all_but_one(seen, 30.0) && value(seen, "GPU-1", Metric::GpuUtilization) == Some(30.0)
    };
    until(&mut source, is_well);
}

#[test]
fn a_gpu_that_hangs_from_the_start_is_named_and_the_others_are_there() {
    let fake = FakeNvml::new(&eight(10, "block", json!(["*"])));
    let mut source = open(&fake);
    let names_it = |seen: &Observation| {
        let reason = seen.reason.as_deref().unwrap_or_default();
        all_but_one(seen, 10.0) && reason.starts_with("GPU 1: ") && reason.contains("not answering")
    };
    let seen = until(&mut source, names_it);
    assert_eq!(seen.devices.len(), 7);
    assert!(source.is_ready());
    fake.script(&eight(10, "block", json!([])));
    until(&mut source, |seen| seen.devices.len() == 8 && seen.reason.is_none());
}

#[tokio::test]
async fn a_gpu_that_hangs_delays_one_round_and_no_more() {
    let fake = FakeNvml::new(&eight(10, "block", json!([])));
    let mut source = open(&fake);
    first(&mut source);
    fake.script(&eight(10, "block", json!(["nvmlDeviceGetTemperature"])));
    let asks_for_it = |seen: &Observation| {
        failure(seen, "GPU-1", Metric::Temperature).contains("asked for its temperature")
    };
    until(&mut source, asks_for_it);
    // Were the hung one waited for, this would never be over.
    for _ in 0..3 {
        let done = source.begin().unwrap();
        tokio::time::timeout(PATIENCE, done).await.unwrap().unwrap_err();
    }
    fake.script(&eight(10, "block", json!([])));
}

#[test]
fn a_pcie_counter_that_hangs_fails_alone() {
    let fake = FakeNvml::new(&eight(10, "block", json!(["nvmlDeviceGetPcieThroughput"])));
    let mut source = open(&fake);
    let goes_on = |seen: &Observation| {
        value(seen, "GPU-1", Metric::Temperature) == Some(64.0)
            && value(seen, "GPU-0", Metric::PcieTxKbps) == Some(1_000.0)
    };
    let seen = until(&mut source, goes_on);
    assert_eq!(failure(&seen, "GPU-1", Metric::PcieTxKbps), "not read yet");
    fake.script(&eight(10, "block", json!([])));
    until(&mut source, |seen| value(seen, "GPU-1", Metric::PcieTxKbps) == Some(1_000.0));
    fake.script(&eight(10, "block", json!(["nvmlDeviceGetPcieThroughput"])));
    let is_old =
        |seen: &Observation| failure(seen, "GPU-1", Metric::PcieRxKbps).starts_with("not read for");
    until(&mut source, |seen| is_old(seen) && goes_on(seen));
    fake.script(&eight(10, "block", json!([])));
}

#[test]
fn a_gpu_is_lost_by_itself_and_comes_back() {
    let fake = FakeNvml::new(&eight(10, "errors", json!({})));
    let mut source = open(&fake);
    first(&mut source);
    for (code, expected) in [
        (15, "the GPU has fallen off the bus"),
        (16, "the GPU must be reset before it can be used again"),
        (28, "the GPU is no longer there"),
    ] {
        fake.script(&eight(10, "errors", json!({"*": code})));
        let fails = |seen: &Observation| failure(seen, "GPU-1", Metric::Temperature) == expected;
        let seen = until(&mut source, fails);
        let lost = device(&seen, "GPU-1").unwrap();
        assert_eq!(lost.readings.failures().count(), 10, "all of it: {lost:?}");
        assert!(all_but_one(&seen, 10.0), "{seen:#?}");
        fake.script(&eight(10, "errors", json!({})));
        until(&mut source, |seen| value(seen, "GPU-1", Metric::Temperature) == Some(64.0));
    }
}

#[test]
fn an_error_of_one_reading_costs_that_reading_only() {
    let absent = "";
    for (code, expected) in [
        (3, absent),
        (13, absent),
        (4, "no permission to ask the NVIDIA driver"),
        (999, "the NVIDIA driver failed with an unknown error (999)"),
        (26, "the NVIDIA driver answered with the unknown code 26"),
        (17, "NVML: device control has been blocked by the operating system/cgroups"),
    ] {
        let errors = json!({"nvmlDeviceGetTemperature": code, "nvmlDeviceGetPowerUsage": code});
        let fake = FakeNvml::new(&machine(&[with(gpu("GPU-a", 10), "errors", errors)]));
        let seen = first(&mut open(&fake));
        let expected = match expected {
            "" => Reading::Unsupported,
            reason => Reading::Failed(reason.into()),
        };
        for metric in [Metric::Temperature, Metric::PowerDraw] {
            assert_eq!(reads(&seen, "GPU-a", metric), Some(expected.clone()), "{metric} {code}");
        }
        assert_eq!(value(&seen, "GPU-a", Metric::GpuUtilization), Some(10.0), "{code}");
        assert_eq!(value(&seen, "GPU-a", Metric::MemoryUsedPercent), Some(50.0), "{code}");
    }
}

#[test]
fn samples_of_a_type_nobody_knows_fail_and_nothing_else_does() {
    let fake = FakeNvml::new(&machine(&[with(gpu("GPU-a", 10), "sample_type", json!(9))]));
    let seen = first(&mut open(&fake));
    let why = failure(&seen, "GPU-a", Metric::GpuUtilization);
    assert_eq!(why, "the NVIDIA driver answered with the unknown code 9");
    assert_eq!(value(&seen, "GPU-a", Metric::Temperature), Some(64.0));
}

#[test]
fn garbage_for_names_and_uuids_is_told_and_never_passed_on() {
    let fake = FakeNvml::new(&machine(&[
        gpu("GPU-good", 1),
        with(gpu("", 2), "uuid", json!([0xff, 0xfe, 0x41])),
        gpu("", 3),
        gpu("GPU-good", 4),
        gpu("GPU with\nspace", 5),
        with(gpu("GPU-nameless", 6), "name", json!("  ")),
        with(gpu("GPU-unreadable", 7), "name", json!([0xc3, 0x28])),
        with(gpu("GPU-bell", 8), "name", json!("H\u{7}100")),
    ]));
    let seen = first(&mut open(&fake));
    let names: Vec<_> = seen.devices.iter().map(|gpu| (gpu.uuid.as_str(), &*gpu.name)).collect();
    assert_eq!(
        names,
        [
            ("GPU-good", "NVIDIA H100 80GB HBM3"),
            ("GPU-nameless", "GPU 5 without a name"),
            ("GPU-unreadable", "GPU 6 (name: it is no text)"),
            ("GPU-bell", "H\u{fffd}100"),
        ]
    );
    assert_eq!(value(&seen, "GPU-good", Metric::GpuUtilization), Some(1.0), "the first one's");
    let reason = seen.reason.unwrap();
    assert_eq!(
        &*reason,
        "GPU 1: its UUID is no text; GPU 2: its UUID \"\" is none; GPU 3 has the UUID of another: \
         GPU-good; GPU 4: its UUID \"GPU with\\nspace\" is none"
    );
}

#[test]
fn a_number_of_gpus_that_changes_is_noticed_both_ways() {
    let gpus: Vec<_> = (0..4).map(|index| gpu(&format!("GPU-{index}"), 10 + index)).collect();
    let fake = FakeNvml::new(&machine(&gpus[..2]));
    let mut source = open(&fake);
    assert_eq!(first(&mut source).devices.len(), 2);
    let shows = |expected: &'static [f64]| {
        move |seen: &Observation| {
            let shown = seen.devices.iter().map(|gpu| gpu.readings.value(Metric::GpuUtilization));
            shown.eq(expected.iter().copied().map(Some)) && seen.reason.is_none()
        }
    };
    fake.script(&machine(&gpus));
    until(&mut source, shows(&[10.0, 11.0, 12.0, 13.0]));
    // The first one is gone: the others have other indices and the same UUIDs.
    fake.script(&machine(&gpus[1..]));
    let seen = until(&mut source, shows(&[11.0, 12.0, 13.0]));
    assert_eq!(seen.devices[0].uuid.as_str(), "GPU-1");
    fake.script(&machine(&[]));
    let seen = until(&mut source, |seen| seen.devices.is_empty());
    assert!(seen.reason.is_some());
    fake.script(&machine(&gpus[..1]));
    until(&mut source, shows(&[10.0]));
}
