//! What a device used up and what is the matter with it: in recordings, pages and the doctor.

use std::fs;
use std::path::Path;

use agent::device::replay::line::parse;
use shared::health::{Energy, Health, Origin, RecoveryAction, Throttle, XidCount};

use crate::process::{agent, ended};

const ILL: &str = r#"{"at_ms":0,"devices":[
    {"uuid":"GPU-ill","name":"NVIDIA H100","gpu_utilization":99,"energy_joules":5000.25,
     "throttled_by":{"power":80,"heat":2.5},"xid":{"94":2,"63":1},"ecc_uncorrected":7,
     "row_remap_pending":true,"row_remap_failed":false,"recovery_action":"drain_and_reset",
     "lost":false},
    {"uuid":"GPU-well","name":"NVIDIA H100","index":1,"gpu_utilization":50,"xid":{}},
    {"uuid":"GPU-plain","name":"NVIDIA T4","index":2,"gpu_utilization":50}]}"#;

fn line() -> String {
    ILL.replace('\n', "")
}

#[test]
fn a_recording_says_what_was_used_up_and_what_is_the_matter() {
    let read = parse(line().as_bytes()).unwrap();
    assert_eq!(read.unknown, Vec::<String>::new());
    let [ill, well, plain] = &read.observation.devices[..] else { panic!() };
    let condition = &ill.condition;
    assert_eq!(condition.energy, Some(Energy { joules: 5_000.25, origin: Origin::Counter }));
    let by: std::collections::BTreeMap<_, _> = condition.throttled.iter().copied().collect();
    assert_eq!(by, [(Throttle::Power, 80.0), (Throttle::Heat, 2.5)].into());
    assert_eq!(
        condition.health.as_deref(),
        Some(&Health {
            xids: Some(vec![XidCount { xid: 63, count: 1 }, XidCount { xid: 94, count: 2 }]),
            ecc_uncorrected: Some(7),
            remap_pending: Some(true),
            remap_failed: Some(false),
            recovery: Some(RecoveryAction::DrainAndReset),
            lost: false,
        })
    );
    let none = Some(Vec::new());
    assert_eq!(well.condition.health.as_deref(), Some(&Health { xids: none, ..Health::default() }));
    assert_eq!(plain.condition.health, None, "nothing is known of it");
}

#[test]
fn what_is_written_wrongly_is_refused_with_what_would_be_right() {
    for (keys, words) in [
        (r#""energy_joules":-1"#, ["energy_joules -1 is out of range", ""]),
        (r#""energy_joules":1e300"#, ["energy_joules 1e300", "out of range"]),
        (r#""throttled_by":{"powr":1}"#, ["throttled by \"powr\"", "write \"power\""]),
        (r#""throttled_by":{"power":101}"#, ["throttled_by power is 101", "write 0 to 100"]),
        (r#""throttled_by":80"#, ["throttled_by is no object", "{\"power\":80}"]),
        (r#""xid":[79]"#, ["xid is no object", "{\"79\":1}"]),
        (r#""xid":{"x":1}"#, ["xid \"x\" is 1", ""]),
        (r#""xid":{"79":-1}"#, ["xid \"79\" is -1", ""]),
        (r#""ecc_uncorrected":0.5"#, ["ecc_uncorrected is 0.5", "whole number"]),
        (r#""recovery_action":"reset""#, ["recovery_action is \"reset\"", "gpu_reset"]),
        (r#""lost":"yes""#, ["lost is \"yes\"", "true or false"]),
    ] {
        let line = format!(r#"{{"at_ms":0,"devices":[{{"uuid":"GPU-a",{keys}}}]}}"#);
        let why = parse(line.as_bytes()).unwrap_err();
        assert!(words.iter().all(|word| why.contains(word)), "{keys}: {why}");
    }
}

fn source(folder: &Path) -> String {
    let path = folder.join("ill.jsonl");
    fs::write(&path, line() + "\n").unwrap();
    format!("replay:{}", path.display())
}

#[test]
fn the_page_has_what_is_known_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = agent(["snapshot", "-o", "prometheus", "--source", &source(folder.path())]);
    let (page, _) = ended(0, &mut command);
    let has = |name: &str, labels: &[&str], value: &str| {
        page.lines().any(|line| {
            line.starts_with(&format!("gpu_agent_{name}{{"))
                && labels.iter().all(|label| line.contains(label))
                && line.ends_with(&format!(" {value}"))
        })
    };
    let ill = "gpu_uuid=\"GPU-ill\"";
    for (name, label, value) in [
        ("energy_joules_total", "estimated=\"false\"", "5000.25"),
        ("throttled_by_ratio", "reason=\"power\"", "0.8"),
        ("throttled_by_ratio", "reason=\"heat\"", "0.025"),
        ("xid_errors_total", "xid=\"63\"", "1"),
        ("xid_errors_total", "xid=\"94\"", "2"),
        ("ecc_uncorrected_errors_total", "", "7"),
        ("recovery_action", "action=\"drain_and_reset\"", "1"),
        ("row_remap_pending", "", "1"),
        ("row_remap_failed", "", "0"),
        ("lost", "", "0"),
    ] {
        assert!(
            has(name, &[ill, label], value) || has(name, &[ill, label], &format!("{value}.0")),
            "{name} {label} {value}: {page}"
        );
    }
    assert!(!page.lines().any(|line| {
        line.contains("GPU-plain") && ["lost", "xid", "ecc"].iter().any(|it| line.contains(it))
    }));
    // The line for scripts is read back as it was.
    let mut command = agent(["snapshot", "-o", "json", "--source", &source(folder.path())]);
    let again = parse(ended(0, &mut command).0.trim().as_bytes()).unwrap();
    let before = parse(line().as_bytes()).unwrap();
    for (again, before) in again.observation.devices.iter().zip(&before.observation.devices) {
        assert_eq!(again.condition.energy, before.condition.energy);
        assert_eq!(again.condition.health, before.condition.health);
    }
}

#[test]
fn the_doctor_names_what_is_the_matter_with_a_device_that_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = agent(["doctor", "--source", &source(folder.path())]);
    let output = command.output().unwrap();
    let report = String::from_utf8(output.stdout).unwrap();
    for words in [
        "GPU 0 (GPU-ill): the driver asks for a recovery action: drain and reset",
        "rows of its memory are replaced at the next reset",
        "its memory had 7 uncorrected errors",
        "the driver reported XID 63, XID 94 (2 times)",
        "its clock is held down by power 80 % of the time",
    ] {
        assert!(report.contains(words), "no {words:?} in\n{report}");
    }
    let devices = report.lines().find(|line| line.starts_with("devices ")).unwrap();
    assert!(!devices.contains("GPU-well"), "{report}");
}
