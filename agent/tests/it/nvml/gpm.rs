//! What Hopper and newer count between two samples.

use super::keeper_faults::Log;
use super::*;

/// MiB/s and percent, by GPM's ids.
fn hopper(uuid: &str, sm: f64) -> Value {
    let gpm = json!({
        "1": 7.0, "2": sm, "5": 40.0, "10": 20.0,
        "20": 10.0, "21": 20.0, "60": 3_000.0, "61": 2_000.0,
    });
    with(gpu(uuid, 95), "gpm", gpm)
}

/// Reads until every GPU was read, and of this one what takes two readings is there.
fn counted(source: &mut Nvml, uuid: &str) -> Observation {
    first(source);
    until(source, |seen| value(seen, uuid, Metric::SmActivity).is_some())
}

fn near(seen: &Observation, uuid: &str, metric: Metric, expected: f64) {
    let value = value(seen, uuid, metric).unwrap_or(f64::NAN);
    assert!((value - expected).abs() < 1e-6, "{metric} {value}, not {expected}");
}

#[test]
fn what_is_counted_is_told_in_the_units_of_the_interfaces() {
    let fake = FakeNvml::new(&machine(&[hopper("GPU-a", 80.0), gpu("GPU-b", 60)]));
    let mut source = open(&fake);
    let seen = counted(&mut source, "GPU-a");
    for (metric, expected) in [
        (Metric::GpuUtilization, 95.0),
        (Metric::MemoryUtilization, 30.0),
        (Metric::SmActivity, 80.0),
        (Metric::TensorActivity, 40.0),
        (Metric::NvlinkTxMbps, 2_097.152),
        (Metric::NvlinkRxMbps, 3_145.728),
        (Metric::PcieTxKbps, 10_485.76),
        (Metric::PcieRxKbps, 20_971.52),
    ] {
        near(&seen, "GPU-a", metric, expected);
    }
    for metric in [Metric::SmActivity, Metric::TensorActivity, Metric::NvlinkTxMbps] {
        assert_eq!(reads(&seen, "GPU-b", metric), Some(Reading::Unsupported), "it has no GPM");
    }
    near(&seen, "GPU-b", Metric::PcieTxKbps, 1_000.0);

    fake.script(&machine(&[hopper("GPU-a", 20.0), gpu("GPU-b", 60)]));
    until(&mut source, |seen| value(seen, "GPU-a", Metric::SmActivity) == Some(20.0));
}

#[test]
fn what_takes_two_readings_has_failed_until_then_and_is_never_a_zero() {
    let fake = FakeNvml::new(&machine(&[hopper("GPU-a", 80.0)]));
    let mut source = open(&fake);
    let seen = until(&mut source, |seen| {
        let reading = reads(seen, "GPU-a", Metric::SmActivity);
        assert!(!matches!(reading, Some(Reading::Unsupported)), "{reading:?}");
        let value = reading.and_then(|reading| reading.value());
        assert!(value.is_none_or(|value| value == 80.0), "{value:?}");
        value.is_some()
    });
    assert!(source.is_ready(), "{seen:#?}");
}

#[test]
fn a_metric_that_is_not_counted_costs_no_other() {
    let some = with(gpu("GPU-a", 95), "gpm", json!({"2": 80.0, "5": 100.4, "60": -1.0}));
    let fake = FakeNvml::new(&machine(&[some]));
    let seen = counted(&mut open(&fake), "GPU-a");
    near(&seen, "GPU-a", Metric::SmActivity, 80.0);
    near(&seen, "GPU-a", Metric::TensorActivity, 100.0);
    near(&seen, "GPU-a", Metric::PcieRxKbps, 2_000.0);
    assert_eq!(reads(&seen, "GPU-a", Metric::NvlinkTxMbps), Some(Reading::Unsupported));
    assert!(failure(&seen, "GPU-a", Metric::NvlinkRxMbps).contains("-1"));
}

#[test]
fn a_driver_that_restricts_gpm_has_none_and_that_is_logged_once() {
    let log = Log::of_all();
    let said = || log.count("restricts GPM", "");
    let before = said();
    let forbidden = |uuid, function: &str| with(hopper(uuid, 80.0), "errors", json!({function: 4}));
    let gpus = [
        forbidden("GPU-a", "nvmlGpmQueryDeviceSupport"),
        forbidden("GPU-b", "nvmlGpmSampleGet"),
        hopper("GPU-c", 50.0),
    ];
    let fake = FakeNvml::new(&machine(&gpus));
    let mut source = open(&fake);
    let seen = counted(&mut source, "GPU-c");
    for uuid in ["GPU-a", "GPU-b"] {
        assert_eq!(reads(&seen, uuid, Metric::SmActivity), Some(Reading::Unsupported));
        assert_eq!(value(&seen, uuid, Metric::GpuUtilization), Some(95.0));
        near(&seen, uuid, Metric::PcieTxKbps, 1_000.0);
    }
    near(&seen, "GPU-c", Metric::SmActivity, 50.0);
    until(&mut source, |_| said() > 0);
    assert!(before <= 1 && said() == 1, "{before} and then {}", said());
}

#[test]
fn a_library_that_cannot_free_samples_takes_none() {
    let fake = FakeNvml::without(&["nvmlGpmSampleFree"], &machine(&[hopper("GPU-a", 80.0)]));
    let seen = first(&mut open(&fake));
    assert_eq!(reads(&seen, "GPU-a", Metric::SmActivity), Some(Reading::Unsupported));
}

#[test]
fn a_gpu_that_was_lost_is_measured_anew_when_it_is_back() {
    let fake = FakeNvml::new(&machine(&[hopper("GPU-a", 80.0), gpu("GPU-b", 1)]));
    let mut source = open(&fake);
    first(&mut source);
    let lost = with(hopper("GPU-a", 80.0), "errors", json!({"*": 15}));
    fake.script(&machine(&[lost, gpu("GPU-b", 1)]));
    until(&mut source, |seen| !failure(seen, "GPU-a", Metric::SmActivity).is_empty());
    // Another GPU in its place: nothing counted of the one before is told of it.
    fake.script(&machine(&[hopper("GPU-c", 30.0), gpu("GPU-b", 1)]));
    until(&mut source, |seen| {
        let value = value(seen, "GPU-c", Metric::SmActivity);
        assert!(value.is_none_or(|value| value == 30.0), "{value:?}");
        value.is_some()
    });
}
