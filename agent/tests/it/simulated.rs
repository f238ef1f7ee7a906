//! Simulated devices: what a spec means and what is refused.

use std::collections::HashSet;

use agent::device::simulated::{Simulated, Spec};
use agent::device::{DeviceSource as _, Observation, SourceSpec};
use shared::metric::Metric;

use crate::support::at;

fn open(spec: &str, node: &str) -> Simulated {
    let spec: Spec = spec.parse().unwrap();
    Simulated::open(&spec, &node.into()).unwrap()
}

fn loads(observation: &Observation) -> Vec<f64> {
    let load = |device: &agent::device::ObservedDevice| {
        device.readings.value(Metric::GpuUtilization).unwrap()
    };
    observation.devices.iter().map(load).collect()
}

#[test]
fn pods_hold_one_gpu_each_in_order_and_the_rest_is_free() {
    let mut source = open("gpus=3,model=a100,pods=ai/vllm-0+ai/vllm-1", "n");
    let seen = source.observe(at(0));
    let holders: Vec<_> = seen
        .devices
        .iter()
        .map(|device| device.holders.first().map(|holder| holder.pod.to_string()))
        .collect();
    assert_eq!(holders, [Some("ai/vllm-0".into()), Some("ai/vllm-1".into()), None]);
    assert_eq!(seen.devices[2].name.as_ref(), "NVIDIA A100-SXM4-80GB");
    assert_eq!(seen.devices[2].index, 2);
}

#[test]
fn shapes_follow_the_time_since_the_first_observation() {
    for (shape, steps) in [
        ("constant:60", [(0, 60.0), (900, 60.0)]),
        ("ramp:0-100:60s", [(30_000, 50.0), (90_000, 100.0)]),
        ("ramp:80-20:1m", [(30_000, 50.0), (60_000, 20.0)]),
        ("sine:20-90:4m", [(60_000, 90.0), (180_000, 20.0)]),
    ] {
        let mut source = open(&format!("gpus=1,shape={shape}"), "n");
        source.observe(at(5_000));
        for (after, expected) in steps {
            let load = loads(&source.observe(at(5_000 + after)))[0];
            assert!((load - expected).abs() < 1e-9, "{shape} after {after}: {load}");
        }
    }
}

#[test]
fn a_shape_from_a_file_takes_one_line_a_second_and_holds_the_last() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shape");
    std::fs::write(&path, "10\n20.5\n\n30\n").unwrap();
    let mut source = open(&format!("gpus=1,shape=file:{}", path.display()), "n");
    for (now, expected) in [(0, 10.0), (999, 10.0), (1_000, 20.5), (2_000, 30.0), (9_000, 30.0)] {
        assert_eq!(loads(&source.observe(at(now))), [expected], "{now}");
    }
    for (text, expected) in [("10\nx\n", "line 2: level \"x\" is not a number"), ("", "no line")] {
        std::fs::write(&path, text).unwrap();
        let spec: Spec = format!("shape=file:{}", path.display()).parse().unwrap();
        let error = Simulated::open(&spec, &"n".into()).err().unwrap().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn noise_is_bounded_and_the_same_for_the_same_seed_and_time() {
    let spec = "gpus=4,shape=constant:99,noise=3,seed=7";
    let (mut one, mut two) = (open(spec, "n"), open(spec, "n"));
    let mut other = open("gpus=4,shape=constant:99,noise=3,seed=8", "n");
    let mut all = Vec::new();
    for tick in 0..50 {
        let now = at(tick * 500);
        let seen = one.observe(now);
        assert_eq!(seen, two.observe(now));
        assert_ne!(loads(&seen), loads(&other.observe(now)));
        all.extend(loads(&seen));
    }
    assert!(all.iter().all(|load| (96.0..=100.0).contains(load)));
    assert!(all.iter().any(|load| *load < 97.0) && all.contains(&100.0));
}

#[test]
fn uuids_are_stable_and_differ_between_nodes_and_seeds() {
    let uuids = |spec: &str, node: &str| -> Vec<_> {
        let seen = open(spec, node).observe(at(0));
        seen.devices.into_iter().map(|device| device.uuid).collect()
    };
    assert_eq!(uuids("gpus=8", "a"), uuids("gpus=8,shape=constant:1", "a"));
    let mut all = HashSet::new();
    for node in 0..500 {
        all.extend(uuids("gpus=8", &format!("node-{node}")));
    }
    all.extend(uuids("gpus=8,seed=1", "node-0"));
    assert_eq!(all.len(), 501 * 8);
    let uuid = all.iter().next().unwrap().as_str();
    assert_eq!(uuid.len(), "GPU-12345678-1234-1234-1234-123456789abc".len());
}

#[test]
fn derived_readings_can_all_be_true() {
    for load in [0, 50, 100] {
        let seen = open(&format!("gpus=1,shape=constant:{load}"), "n").observe(at(0));
        let device = &seen.devices[0];
        assert_eq!(device.readings.failures().count(), 0);
        assert!(device.readings.iter().count() >= 7);
        let used = device.readings.value(Metric::MemoryUsedMib).unwrap();
        assert!(used < device.memory_total_mib.unwrap());
    }
}

fn refused(specs: &[(&str, &str)]) {
    for (spec, expected) in specs {
        let error = spec.parse::<SourceSpec>().unwrap_err().to_string();
        assert!(error.contains(expected), "{spec}\n  said {error}\n  not  {expected}");
    }
}

#[test]
fn a_broken_spec_is_refused_with_the_key_the_word_and_the_nearest_good_one() {
    refused(&[
        ("sim:gpuz=8", r#"source sim: unknown key "gpuz"; did you mean "gpus"?"#),
        ("sim:colour=red", r#"unknown key "colour"; write one of gpus, model, pods"#),
        ("sim:gpus", r#""gpus" is not of the form key=value"#),
        ("sim:gpus=0", "gpus=0: write a number from 1 to 1024"),
        ("sim:gpus=8,gpus=9", "gpus is there twice"),
        ("sim:gpus=1,pods=a/b+a/c", "2 pods need a GPU each, but gpus=1; write gpus=2"),
        ("sim:pods=vllm-0", r#""vllm-0" is not of the form NAMESPACE/POD"#),
        ("sim:model=H1000", r#"unknown model "H1000"; write one of H100, H200, B200"#),
        ("sim:noise=-1", "noise=-1: write percent points from 0 to 100"),
        ("sim:seed=x", "seed=x: write a whole number from 0"),
    ]);
}

#[test]
fn a_broken_shape_is_refused_with_one_that_would_do() {
    refused(&[
        ("sim:shape=const:5", r#"unknown shape "const"; did you mean "constant"?"#),
        ("sim:shape=constant:500", r#"level "500" is not a number from 0 to 100"#),
        ("sim:shape=ramp:0-100", r#""0-100" is not of the form ramp:0-100:60s"#),
        ("sim:shape=sine", "shape sine does not say how; write for example sine:20-90:5m"),
        ("sim:shape=constant:", "shape constant does not say how; write for example constant:60"),
        ("sim:shape=sine:20-90:0s", "the time is zero"),
        ("sim:shape=file", "shape file does not say how; write for example file:PATH"),
    ]);
}

#[test]
fn a_source_is_nvml_a_recording_or_a_simulation() {
    for good in
        ["nvml", "replay:a:b", "sim", "sim:", "sim:gpus=2,seed=7,noise=3,shape=sine:20-90:5m"]
    {
        good.parse::<SourceSpec>().unwrap();
    }
    refused(&[
        (
            "rplay:x",
            r#"source "rplay" is none of: nvml, replay:FILE, sim:SPEC (did you mean replay?)"#,
        ),
        ("replay:", "source replay needs a file; write replay:FILE"),
        ("nvml:0", "is none of: nvml"),
        ("", "is none of: nvml"),
    ]);
}
