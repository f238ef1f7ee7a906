//! The real nvml-wrapper path, driven through the fake library.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use agent::device::nvml::{Nvml, Settings};
use agent::device::{DeviceSource as _, Observation, ObservedDevice};
use serde_json::{Value, json};
use shared::metric::Metric;
use shared::process::Clock;
use shared::reading::Reading;
use shared::time::Timestamp;

use crate::fake_nvml::{FakeNvml, gpu, machine};

/// GPUs that are lost, hang, or are not what they should be.
mod faults;
/// What Hopper and newer count between two samples.
mod gpm;
/// What a GPU used up, and what is the matter with it.
mod health;
/// Libraries and GPUs that change, or hang, while others are read.
mod keeper_faults;
/// Libraries that are missing, old, replaced or of another version.
mod libraries;
/// GPUs that are cut into instances, also while they are read.
mod mig;
/// The processes on a device, and how much of it each has.
mod processes;
/// Readings that are wrong, old, or another GPU's.
mod reading_faults;

/// How long anything may take before a test fails; nothing is expected to take that long.
const PATIENCE: Duration = Duration::from_secs(30);

/// Short times, so that what takes minutes on a node is seen here.
fn settings(library: PathBuf) -> Settings {
    Settings {
        library: Some(library),
        silence: Duration::from_millis(300),
        look: Duration::from_millis(50),
        slow: Duration::from_millis(100),
        retry: Duration::from_millis(50),
        all_failed: Duration::from_millis(300),
        mismatch: Duration::from_millis(300),
    }
}

fn open(fake: &FakeNvml) -> Nvml {
    Nvml::open(settings(fake.path())).unwrap()
}

/// Reads and observes until what is seen `is` so.
fn until(source: &mut Nvml, is: impl Fn(&Observation) -> bool) -> Observation {
    let clock = Clock::start();
    loop {
        drop(source.begin());
        std::thread::sleep(Duration::from_millis(5));
        let seen = source.observe(Timestamp::START);
        if is(&seen) {
            return seen;
        }
        assert!(clock.now().since(Timestamp::START) < PATIENCE, "still {seen:#?}");
    }
}

/// Reads until every device was read.
fn first(source: &mut Nvml) -> Observation {
    let clock = Clock::start();
    while !source.is_ready() {
        drop(source.begin());
        std::thread::sleep(Duration::from_millis(5));
        assert!(clock.now().since(Timestamp::START) < PATIENCE, "it is never ready");
    }
    source.observe(Timestamp::START)
}

fn device<'a>(seen: &'a Observation, uuid: &str) -> Option<&'a ObservedDevice> {
    seen.devices.iter().find(|device| device.uuid.as_str() == uuid)
}

fn reads(seen: &Observation, uuid: &str, metric: Metric) -> Option<Reading> {
    device(seen, uuid).map(|device| device.readings.get(metric))
}

fn value(seen: &Observation, uuid: &str, metric: Metric) -> Option<f64> {
    device(seen, uuid)?.readings.value(metric)
}

/// Why a metric failed; empty if it did not.
fn failure(seen: &Observation, uuid: &str, metric: Metric) -> String {
    match reads(seen, uuid, metric) {
        Some(Reading::Failed(reason)) => reason.to_string(),
        _ => String::new(),
    }
}

/// `gpu` with one more key.
fn with(mut gpu: Value, key: &str, value: Value) -> Value {
    gpu[key] = value;
    gpu
}

#[test]
fn every_reading_is_the_drivers_in_the_units_of_the_interfaces() {
    let fake =
        FakeNvml::new(&machine(&[gpu("GPU-a", 70), with(gpu("GPU-b", 0), "throttle", json!(0x4))]));
    let seen = first(&mut open(&fake));
    assert_eq!(seen.reason, None);
    let [a, b] = &seen.devices[..] else { panic!("{seen:#?}") };
    assert_eq!((a.index, b.index), (0, 1));
    assert_eq!(&*a.name, "NVIDIA H100 80GB HBM3");
    assert_eq!(a.memory_total_mib, Some(81_920.0));
    assert_eq!(a.reason, None);
    for (metric, expected) in [
        (Metric::GpuUtilization, 70.0),
        (Metric::MemoryUtilization, 30.0),
        (Metric::MemoryUsedPercent, 50.0),
        (Metric::MemoryUsedMib, 40_960.0),
        (Metric::Temperature, 64.0),
        (Metric::PowerDraw, 512.5),
        (Metric::PcieTxKbps, 1_000.0),
        (Metric::PcieRxKbps, 2_000.0),
        (Metric::SmClockMhz, 1_980.0),
        (Metric::ThrottledPercent, 0.0),
    ] {
        assert_eq!(a.readings.get(metric), Reading::Ok(expected), "{metric}");
    }
    assert_eq!(a.readings.iter().count(), 10, "{:?}", a.readings);
    assert_eq!(b.readings.get(Metric::GpuUtilization), Reading::Ok(0.0), "idle is a reading");
    assert_eq!(b.readings.get(Metric::ThrottledPercent), Reading::Ok(100.0));
}

#[test]
fn utilisation_is_the_mean_of_the_samples_since_the_last_time_stamp() {
    let ring = |samples: Value| machine(&[with(gpu("GPU-a", 99), "samples", samples)]);
    let old = json!([[1_000_000, 90, 9], [9_000_000, 10, 20], [9_500_000, 20, 40]]);
    let fake = FakeNvml::new(&ring(old));
    let mut source = open(&fake);
    let seen = first(&mut source);
    assert_eq!(value(&seen, "GPU-a", Metric::GpuUtilization), Some(15.0), "the last second's");
    assert_eq!(value(&seen, "GPU-a", Metric::MemoryUtilization), Some(30.0));

    let new = [[9_500_000, 20, 40], [9_600_000, 50, 50], [9_800_000, 70, 60]];
    fake.script(&ring(json!(new)));
    let is_new = |seen: &Observation| value(seen, "GPU-a", Metric::GpuUtilization) != Some(15.0);
    let seen = until(&mut source, is_new);
    assert_eq!(value(&seen, "GPU-a", Metric::GpuUtilization), Some(60.0), "each sample once");
    until(&mut source, |seen| value(seen, "GPU-a", Metric::MemoryUtilization) == Some(55.0));
}

#[test]
fn a_ring_that_stands_still_gives_way_to_the_single_look() {
    let fake =
        FakeNvml::new(&machine(&[with(gpu("GPU-a", 99), "samples", json!([[1_000, 10, 10]]))]));
    let mut source = open(&fake);
    let seen = first(&mut source);
    assert_eq!(value(&seen, "GPU-a", Metric::GpuUtilization), Some(10.0));
    until(&mut source, |seen| value(seen, "GPU-a", Metric::GpuUtilization) == Some(99.0));
}

#[test]
fn power_is_that_of_the_energy_counter_where_there_is_one() {
    let fake = FakeNvml::new(&machine(&[with(gpu("GPU-a", 1), "energy_rate", json!(2e7))]));
    // 20 kW, which no momentary power says.
    let is_counted = |seen: &Observation| {
        value(seen, "GPU-a", Metric::PowerDraw).is_some_and(|watts| watts > 5_000.0)
    };
    until(&mut open(&fake), is_counted);
}

#[test]
fn a_gpu_that_shares_the_hosts_memory_shows_the_hosts_and_says_so() {
    let mut shared = with(gpu("GPU-a", 5), "name", json!("NVIDIA GB10"));
    shared.as_object_mut().unwrap().remove("memory");
    let fake = FakeNvml::new(&machine(&[shared]));
    let seen = first(&mut open(&fake));
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap();
    let total = meminfo.split_ascii_whitespace().nth(1).unwrap().parse::<f64>().unwrap();
    assert_eq!(seen.devices[0].memory_total_mib, Some(total / 1_024.0));
    assert!(value(&seen, "GPU-a", Metric::MemoryUsedMib).unwrap() > 0.0);
    assert!(seen.devices[0].reason.as_ref().unwrap().contains("shared"), "{seen:?}");
}

#[test]
fn an_xid_is_remembered_with_the_gpu_it_is_about() {
    let gpus = [gpu("GPU-a", 1), gpu("GPU-b", 2)];
    let fake = FakeNvml::new(&machine(&gpus));
    let mut source = open(&fake);
    first(&mut source);
    let event = json!([{"gpu": 1, "kind": 8, "data": 79}]);
    fake.script(&with(machine(&gpus), "events", event.clone()));
    let seen = until(&mut source, |seen| device(seen, "GPU-b").unwrap().reason.is_some());
    assert_eq!(seen.devices[1].reason.as_deref(), Some("the driver reported XID 79"));
    assert_eq!(seen.devices[0].reason, None);
    assert_eq!(value(&seen, "GPU-b", Metric::GpuUtilization), Some(2.0), "it still answers");

    let lost = [gpu("GPU-a", 1), with(gpu("GPU-b", 2), "errors", json!({"*": 15}))];
    fake.script(&with(machine(&lost), "events", event));
    let is_lost = |seen: &Observation| !failure(seen, "GPU-b", Metric::Temperature).is_empty();
    let seen = until(&mut source, is_lost);
    let why = failure(&seen, "GPU-b", Metric::Temperature);
    assert_eq!(why, "the GPU has fallen off the bus (its last XID is 79)");
}
