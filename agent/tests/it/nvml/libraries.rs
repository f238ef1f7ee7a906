//! Libraries that are missing, old, replaced or of another version.

use super::*;

/// What nobody can do without.
const NEEDED: [(&str, &str); 4] = [
    ("nvmlInit_v2", "is not NVIDIA's management library: it has no nvmlInit_v2"),
    ("nvmlDeviceGetCount_v2", "nvmlDeviceGetCount_v2"),
    ("nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByIndex_v2"),
    ("nvmlDeviceGetUUID", "nvmlDeviceGetUUID"),
];

/// Old drivers lack some of these; what is then not to be had.
const OPTIONAL: [(&str, &[Metric]); 18] = [
    ("nvmlShutdown", &[]),
    ("nvmlSystemGetDriverVersion", &[]),
    ("nvmlDeviceGetName", &[]),
    ("nvmlDeviceGetSamples", &[]),
    ("nvmlDeviceGetUtilizationRates", &[]),
    ("nvmlDeviceGetMemoryInfo_v2", &[]),
    ("nvmlDeviceGetMemoryInfo", &[]),
    ("nvmlDeviceGetTemperature", &[Metric::Temperature]),
    ("nvmlDeviceGetPowerUsage", &[Metric::PowerDraw]),
    ("nvmlDeviceGetTotalEnergyConsumption", &[]),
    ("nvmlDeviceGetClockInfo", &[Metric::SmClockMhz]),
    ("nvmlDeviceGetCurrentClocksThrottleReasons", &[]),
    ("nvmlDeviceGetCurrentClocksEventReasons", &[]),
    ("nvmlDeviceGetPcieThroughput", &[Metric::PcieTxKbps, Metric::PcieRxKbps]),
    ("nvmlEventSetCreate", &[]),
    ("nvmlDeviceRegisterEvents", &[]),
    ("nvmlEventSetWait_v2", &[]),
    ("nvmlEventSetFree", &[]),
];

#[test]
fn each_missing_symbol_costs_what_only_it_can_say() {
    for (symbol, missing) in OPTIONAL {
        let fake = FakeNvml::without(&[symbol], &machine(&[gpu("GPU-a", 70)]));
        let seen = first(&mut open(&fake));
        assert_eq!((seen.devices.len(), &seen.reason), (1, &None), "{symbol}: {seen:?}");
        let readings = &seen.devices[0].readings;
        assert_eq!(readings.failures().count(), 0, "{symbol}: {readings:?}");
        assert_eq!(readings.iter().count(), 10 - missing.len(), "{symbol}: {readings:?}");
        for metric in missing {
            assert_eq!(readings.get(*metric), Reading::Unsupported, "{symbol}");
        }
        assert_eq!(readings.value(Metric::GpuUtilization), Some(70.0), "{symbol}");
        // Old drivers count what is reserved as used.
        let used = if symbol == "nvmlDeviceGetMemoryInfo_v2" { 41_984.0 } else { 40_960.0 };
        assert_eq!(readings.value(Metric::MemoryUsedMib), Some(used), "{symbol}");
    }
    for (symbol, expected) in NEEDED {
        let fake = FakeNvml::without(&[symbol], &machine(&[gpu("GPU-a", 70)]));
        let seen = first(&mut open(&fake));
        let reason = seen.reason.unwrap();
        assert!(seen.devices.is_empty() && reason.contains(expected), "{symbol}: {reason}");
    }
}

#[test]
fn a_driver_that_lacks_several_symbols_leaves_the_rest() {
    let symbols = ["nvmlDeviceGetSamples", "nvmlDeviceGetUtilizationRates", "nvmlEventSetFree"];
    let fake = FakeNvml::without(&symbols, &machine(&[gpu("GPU-a", 70)]));
    let seen = first(&mut open(&fake));
    assert_eq!(reads(&seen, "GPU-a", Metric::GpuUtilization), Some(Reading::Unsupported));
    assert_eq!(value(&seen, "GPU-a", Metric::Temperature), Some(64.0));
    let symbols = ["nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2"];
    let fake = FakeNvml::without(&symbols, &machine(&[gpu("GPU-a", 70)]));
    let seen = first(&mut open(&fake));
    assert_eq!(reads(&seen, "GPU-a", Metric::MemoryUsedMib), Some(Reading::Unsupported));
    assert_eq!(seen.devices[0].memory_total_mib, None);
}

#[test]
fn a_library_that_cannot_be_used_is_named_in_one_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("text.so");
    fs::write(&text, "not a library").unwrap();
    for (path, expected) in [
        (folder.path().join("none.so"), "is not here; install the NVIDIA driver"),
        (text, "cannot be loaded: "),
    ] {
        let mut source = Nvml::open(settings(path.clone())).unwrap();
        let seen = first(&mut source);
        let reason = seen.reason.unwrap();
        assert!(reason.contains(expected) && reason.contains(path.to_str().unwrap()), "{reason}");
        assert!(seen.devices.is_empty());
        assert!(!source.finished().unwrap(), "it may come");
    }
}

#[test]
fn a_driver_that_does_not_start_is_named_and_tried_again() {
    let well = machine(&[gpu("GPU-a", 70)]);
    for (script, expected) in [
        (with(well.clone(), "errors", json!({"nvmlInit_v2": 9})), "driver is not loaded"),
        (with(well.clone(), "errors", json!({"nvmlInit_v2": 18})), "of different versions"),
        (with(well.clone(), "errors", json!({"nvmlInit_v2": 4})), "no permission"),
        (with(well.clone(), "errors", json!({"nvmlInit_v2": 999})), "unknown error (999)"),
        (with(well.clone(), "errors", json!({"nvmlDeviceGetCount_v2": 999})), "(999)"),
        (with(well.clone(), "block", json!(["nvmlInit_v2"])), "is not answering for"),
        (machine(&[]), "the NVIDIA driver sees no GPU on this node"),
    ] {
        let fake = FakeNvml::new(&script);
        let mut source = open(&fake);
        let seen = first(&mut source);
        let reason = seen.reason.unwrap();
        assert!(seen.devices.is_empty() && reason.contains(expected), "{script}: {reason}");
        fake.script(&well);
        until(&mut source, |seen| value(seen, "GPU-a", Metric::GpuUtilization) == Some(70.0));
    }
}

#[test]
fn a_driver_that_is_unloaded_fails_its_gpus_until_it_is_back() {
    let gpus = [gpu("GPU-a", 70), gpu("GPU-b", 80)];
    let fake = FakeNvml::new(&machine(&gpus));
    let mut source = open(&fake);
    first(&mut source);
    for (code, expected) in [(1, "unloaded"), (9, "is not loaded"), (18, "of different versions")] {
        let failing = gpus.clone().map(|gpu| with(gpu, "errors", json!({"*": code})));
        let errors = json!({"nvmlInit_v2": code});
        fake.script(&with(machine(&failing), "errors", errors));
        let fails = |seen: &Observation| {
            let failure = |uuid| failure(seen, uuid, Metric::Temperature);
            let reason = seen.reason.as_deref().unwrap_or_default();
            [failure("GPU-a"), failure("GPU-b"), reason.into()]
                .iter()
                .all(|why| why.contains(expected))
        };
        let seen = until(&mut source, fails);
        assert_eq!(seen.devices.len(), 2, "they are not forgotten");
        fake.script(&machine(&gpus));
        until(&mut source, |seen| value(seen, "GPU-b", Metric::GpuUtilization) == Some(80.0));
    }
}

#[test]
fn a_driver_that_fails_every_gpu_is_opened_anew() {
    let gpus = [gpu("GPU-a", 70), gpu("GPU-b", 80)];
    let fake = FakeNvml::new(&machine(&gpus));
    let mut source = open(&fake);
    first(&mut source);
    // As in a container that has lost its right to the devices.
    let failing = gpus.clone().map(|gpu| with(gpu, "errors", json!({"*": 999})));
    fake.script(&machine(&failing));
    let is_opened_anew = |seen: &Observation| {
        seen.devices.len() == 2 && seen.reason.as_deref() == Some("no GPU can be read")
    };
    until(&mut source, is_opened_anew);
    until(&mut source, |seen| failure(seen, "GPU-b", Metric::PowerDraw).contains("(999)"));
    fake.script(&machine(&gpus));
    until(&mut source, |seen| value(seen, "GPU-b", Metric::GpuUtilization) == Some(80.0));
}

#[test]
fn a_library_of_another_version_ends_the_agent_after_a_while() {
    let well = machine(&[gpu("GPU-a", 70)]);
    let fake = FakeNvml::new(&with(well, "errors", json!({"nvmlInit_v2": 18})));
    let mut source = open(&fake);
    assert!(!source.finished().unwrap());
    let clock = Clock::start();
    let error = loop {
        if let Err(error) = source.finished() {
            break error.to_string();
        }
        first(&mut source);
        assert!(clock.now().since(Timestamp::START) < PATIENCE, "it tries for ever");
        std::thread::sleep(Duration::from_millis(5));
    };
    assert!(error.contains("only a new container gets the new library"), "{error}");
}

#[test]
fn a_library_that_is_replaced_is_opened_anew() {
    let fake = FakeNvml::new(&machine(&[gpu("GPU-a", 70)]));
    let mut source = open(&fake);
    let seen = first(&mut source);
    assert_eq!(value(&seen, "GPU-a", Metric::Temperature), Some(64.0));
    fake.replace(&["nvmlDeviceGetTemperature"]);
    let is_new = |seen: &Observation| {
        reads(seen, "GPU-a", Metric::Temperature) == Some(Reading::Unsupported)
            && value(seen, "GPU-a", Metric::GpuUtilization) == Some(70.0)
    };
    until(&mut source, is_new);
}

#[test]
fn the_library_is_closed_with_its_source() {
    let fake = FakeNvml::new(&machine(&[gpu("GPU-a", 70)]));
    let is_mapped = || {
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        maps.contains(fake.path().to_str().unwrap())
    };
    let mut source = open(&fake);
    first(&mut source);
    assert!(is_mapped());
    drop(source);
    assert!(!is_mapped());
}
