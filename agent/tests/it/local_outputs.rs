//! What is shown of a frame: golden files, and what holds for every frame.

use std::path::Path;
use std::time::Duration;

use agent::device::replay::{Replay, ReplayEnd, line};
use agent::device::{DeviceSource, Observation};
use agent::frame::{Taken, assemble};
use agent::local::record::{Error, Recording};
use agent::local::view::View;
use agent::local::{Format, json, metrics, render, stale_after};

use proptest::prelude::*;
use shared::frame::{Frame, HolderSource};
use shared::metric::{Metric, Scope};
use shared::process::{COMMIT, VERSION};
use shared::reading::{Reading, Readings};

use crate::local_frames::observation;
use crate::owner::device;
use crate::process::golden;
use crate::support::at;

const NODE: &str = include_str!("golden/node.jsonl");
const STALE: Duration = Duration::from_secs(10);

fn taken(observation: Observation) -> Taken {
    let owners = crate::owner::written(&observation);
    Taken { frame: assemble(observation, owners, None), at: at(0), kubelet: None }
}

fn node() -> Taken {
    taken(line::parse(NODE.as_bytes()).unwrap().observation)
}

fn shown(format: Format) -> String {
    let text = render(format, &node(), at(0), STALE);
    let build = format!("version=\"{VERSION}\",commit=\"{COMMIT}\"");
    text.replace(&build, "version=\"VERSION\",commit=\"COMMIT\"")
}

#[test]
fn the_table_is_for_people() {
    golden("table.txt", &shown(Format::Table));
}

#[test]
fn the_json_is_one_line_of_the_replay_format() {
    let text = shown(Format::Json);
    assert_eq!(text.matches('\n').count(), 1);
    golden("line.json", &text);
}

#[test]
fn the_prometheus_text_is_in_base_units_and_has_each_device_once() {
    golden("metrics.prom", &shown(Format::Prometheus));
}

#[test]
fn every_metric_has_one_name_that_ends_with_its_base_unit() {
    for &metric in Metric::ALL {
        let series: Vec<_> = metrics::SERIES.iter().filter(|s| s.metric == metric).collect();
        assert_eq!(series.len(), 1, "{metric}");
        let units = ["_ratio", "_bytes", "_celsius", "_watts", "_hertz", "_per_second", "_seconds"];
        let counts = [Metric::RequestsWaiting, Metric::RequestsRunning];
        let ends = units.iter().any(|unit| series[0].name.ends_with(unit));
        assert!(ends || counts.contains(&metric), "{}", series[0].name);
    }
}

#[test]
fn a_selection_of_an_engines_series_is_shown_beside_the_whole() {
    let engine = |labels: &str, waiting: &str| {
        format!(
            r#"{{"namespace":"ai","pod":"p","labels":"{labels}","metrics":{{"requests_waiting":{waiting}}}}}"#
        )
    };
    let line = format!(
        r#"{{"at_ms":0,"engines":[{},{},{}]}}"#,
        engine("", "10"),
        engine("engine=0", "3"),
        engine("engine=1", "null"),
    );
    let node = taken(line::parse(line.as_bytes()).unwrap().observation);
    let text = |format| render(format, &node, at(0), STALE);
    let prometheus = text(Format::Prometheus);
    for line in [
        r#"gpu_agent_engine_requests_waiting{namespace="ai",pod="p"} 10"#,
        r#"gpu_agent_engine_requests_waiting{namespace="ai",pod="p",engine_labels="engine=0"} 3"#,
        r#"gpu_agent_engine_reading_failed{namespace="ai",pod="p",engine_labels="engine=1",metric="requests_waiting"} 1"#,
    ] {
        assert!(prometheus.lines().any(|shown| shown.starts_with(line)), "{line}\n{prometheus}");
    }
    let table = text(Format::Table);
    assert!(table.contains("ai/p {engine=0}"), "{table}");
    let again = line::parse(text(Format::Json).as_bytes()).unwrap().observation;
    let named: Vec<_> = again.engines.iter().map(|one| &*one.engine.labels).collect();
    assert_eq!(named, ["", "engine=0", "engine=1"]);
}

#[test]
fn an_old_reading_is_a_failure_in_every_form_and_its_device_is_named() {
    let mut node = node();
    node.frame.sample.devices[0].as_mut().unwrap().age = Duration::from_secs(9);
    let text = |now| {
        [Format::Table, Format::Json, Format::Prometheus]
            .map(|format| render(format, &node, at(now), STALE))
    };
    for text in text(900) {
        assert!(!text.contains("not read for"), "{text}");
    }
    let [table, json, metrics] = text(1_100);
    assert!(table.contains("failed") && table.contains("not read for 10 s"), "{table}");
    assert!(json.contains(r#""gpu_utilization":null"#), "{json}");
    assert!(json.contains(r#""reason":"not read for 10 s""#), "{json}");
    let utilization = |line: &&str| line.starts_with("gpu_agent_utilization_ratio{");
    let first = metrics.lines().find(utilization).unwrap();
    assert!(first.contains("000000000002"), "the first device has none: {first}");
    assert!(metrics.contains(r#"metric="gpu_utilization"} 1.0"#), "{metrics}");
}

#[test]
fn readings_stay_longer_where_they_are_taken_more_rarely() {
    assert_eq!(stale_after(Duration::from_secs(1)), Duration::from_secs(10));
    assert_eq!(stale_after(Duration::from_secs(60)), Duration::from_secs(180));
}

#[test]
fn a_device_whose_metrics_failed_for_different_reasons_names_them_all() {
    let mut observed = device("GPU-a", Vec::new());
    observed.reason = Some("kubelet is slow".into());
    observed.readings = [
        (Metric::GpuUtilization, Reading::Failed("timed out".into())),
        (Metric::Temperature, Reading::Failed("code 999".into())),
        (Metric::PowerDraw, Reading::Failed("timed out".into())),
    ]
    .into_iter()
    .collect();
    let taken = taken(Observation { devices: vec![observed], ..Observation::default() });
    let view = View::of(&taken, at(0), STALE);
    let expected = "kubelet is slow; gpu_utilization, power_draw: timed out; temperature: code 999";
    assert_eq!(view.devices[0].reason().unwrap(), expected);
}

#[test]
fn uuids_are_cut_only_as_far_as_they_differ() {
    let devices: Vec<_> = ["GPU-5a1c0000-1111", "GPU-5a1c0000-2222", "GPU-77"]
        .map(|uuid| device(uuid, Vec::new()))
        .into();
    let taken = taken(Observation { devices, ..Observation::default() });
    let table = render(Format::Table, &taken, at(0), STALE);
    assert!(table.contains("GPU-5a1c0000-1 "), "{table}");
    assert!(table.contains("GPU-5a1c0000-2 "), "{table}");
}

#[test]
fn a_value_that_no_reader_would_take_does_not_spoil_the_line() {
    let mut observed = device("GPU-a", Vec::new());
    observed.name = "n".repeat(1_000).into();
    observed.reason = Some("ä".repeat(1_000).into());
    observed.readings = [(Metric::MemoryUsedMib, Reading::Ok(1_001.0))].into_iter().collect();
    let taken = taken(Observation { devices: vec![observed], ..Observation::default() });
    let text = json::line(&View::of(&taken, at(0), STALE), 0);
    let line = line::parse(text.as_bytes()).unwrap();
    let used = line.observation.devices[0].readings.get(Metric::MemoryUsedMib);
    assert!(matches!(used, Reading::Failed(_)), "more than the device has: {used:?}");
}

#[test]
fn why_there_is_nothing_is_shown_and_replayed() {
    let nothing = Observation { reason: Some("no driver".into()), ..Observation::default() };
    let taken = taken(nothing.clone());
    let text = json::line(&View::of(&taken, at(0), STALE), 7);
    assert_eq!(text, r#"{"at_ms":7,"reason":"no driver","devices":[]}"#);
    assert_eq!(line::parse(text.as_bytes()).unwrap().observation, nothing);
}

/// What a replay makes of a frame that was written to a file.
fn replayed(path: &Path) -> Taken {
    let mut replay = Replay::open(path, ReplayEnd::Hold).unwrap();
    taken(replay.observe(at(0)))
}

fn written(taken: &Taken) -> String {
    json::line(&View::of(taken, taken.at, STALE), 0)
}

/// A frame as far as a line can carry it: not why a metric failed, how old it is or how its holder
/// was known.
fn as_replayed(taken: &Taken) -> Frame {
    let view = View::of(taken, taken.at, STALE);
    let mut frame = taken.frame.clone();
    let mut inventory = (*frame.inventory).clone();
    for (device, view) in inventory.devices.iter_mut().zip(&view.devices) {
        device.reason = view.reason().map(Into::into);
        device.holders.iter_mut().for_each(|holder| holder.source = HolderSource::Replay);
    }
    for sample in frame.sample.devices.iter_mut().flatten() {
        sample.age = Duration::ZERO;
        sample.readings = without_reasons(&sample.readings, "null in the recording");
    }
    for sample in frame.sample.engines.iter_mut().flatten() {
        sample.age = Duration::ZERO;
        let scopes = Metric::ALL.iter().filter(|metric| metric.scope() == Scope::Engine);
        let all = sample.readings.failures().count() == scopes.count();
        let why = if all { "scrape failed" } else { "null in the recording" };
        sample.readings = without_reasons(&sample.readings, why);
    }
    frame.inventory = inventory.into();
    frame
}

fn without_reasons(readings: &Readings, why: &str) -> Readings {
    let replayed = |reading| match reading {
        Reading::Failed(_) => Reading::Failed(why.into()),
        other => other,
    };
    readings.iter().map(|(metric, reading)| (metric, replayed(reading))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_one_node_shows_another_replays(observation in observation()) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("line.json");
        let first = taken(observation);
        std::fs::write(&path, written(&first) + "\n").unwrap();
        let second = replayed(&path);
        prop_assert_eq!(&second.frame, &as_replayed(&first));
        std::fs::write(&path, written(&second) + "\n").unwrap();
        prop_assert_eq!(&replayed(&path).frame, &second.frame, "and once more changes nothing");
    }
}

#[test]
fn a_recording_replays_to_the_same_frames_at_the_same_times() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("recording.jsonl");
    let spec: agent::device::SourceSpec = "sim:gpus=2,pods=ai/p,noise=5".parse().unwrap();
    let mut source = spec.open(&"node".into(), ReplayEnd::Hold).unwrap();
    let mut recording = Recording::create(&path, false).unwrap();
    let mut frames = Vec::new();
    for millis in [0, 500, 1_001, 1_500] {
        let taken = taken(source.observe(at(5_000 + millis)));
        let text = json::line(&View::of(&taken, at(0), STALE), millis.try_into().unwrap());
        recording.append(&text).unwrap();
        frames.push((millis, as_replayed(&taken)));
    }
    let mut replay = Replay::open(&path, ReplayEnd::Hold).unwrap();
    for (millis, frame) in frames {
        assert_eq!(taken(replay.observe(at(80 + millis))).frame, frame, "{millis} ms");
    }
}

#[test]
fn a_recording_is_not_overwritten_unasked() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("recording.jsonl");
    std::fs::write(&path, "").unwrap();
    Recording::create(&path, false).unwrap().append("{}").unwrap();
    let refused = Recording::create(&path, false).unwrap_err();
    assert!(matches!(refused, Error::There { bytes: 3, .. }), "{refused}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "{}\n");
    Recording::create(&path, true).unwrap().append("{\"at_ms\":0}").unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "{\"at_ms\":0}\n");
}
