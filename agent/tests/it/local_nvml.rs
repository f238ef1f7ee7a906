//! The agent alone, as a process that reads the fake NVIDIA library through nvml-wrapper.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use shared::process::{COMMIT, VERSION};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use crate::fake_nvml::{FakeNvml, gpu, machine};
use crate::process::{Running, agent, ended, get, golden};

/// How long anything may take before a test fails; nothing is expected to take that long.
const PATIENCE: Duration = Duration::from_secs(30);

const KERNEL: &str =
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n";

/// A shared GPU, a free one, one that was lost, and one that says little.
fn node() -> Value {
    let mut lost = gpu("GPU-0c", 0);
    lost["errors"] = json!({"*": 15});
    let little =
        json!({"uuid": "GPU-0d", "name": "NVIDIA T4", "memory": [16_u64 << 30, 0, 1 << 30]});
    machine(&[gpu("GPU-0a", 93), gpu("GPU-0b", 0), lost, little])
}

const HOLDERS: &str = "\
GPU-0a: [{namespace: ai, pod: a, container: main, share: 0.75}, {namespace: ai, pod: b}]
GPU-0d: [{namespace: ai, pod: d, container: main}]
";

/// A library of its own and a holders file, and the flags that name them.
struct Node {
    fake: FakeNvml,
    folder: TempDir,
}

impl Node {
    fn new(script: &Value) -> Self {
        let node = Self { fake: FakeNvml::new(script), folder: tempfile::tempdir().unwrap() };
        fs::write(node.file("holders.yaml"), HOLDERS).unwrap();
        node
    }

    fn file(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    fn agent(&self, args: &[&str]) -> Command {
        let mut agent = agent(args);
        agent
            .arg("--nvml-library")
            .arg(self.fake.path())
            .args(["--holders", &self.file("holders.yaml")]);
        agent
    }
}

#[test]
fn a_snapshot_of_the_hardware_has_three_forms() {
    let node = Node::new(&node());
    for (form, file) in
        [("table", "nvml-table.txt"), ("json", "nvml-line.json"), ("prometheus", "nvml.prom")]
    {
        let (text, log) = ended(0, &mut node.agent(&["snapshot", "-o", form]));
        assert_eq!(log, "");
        // How long ago a device was read is all that changes from run to run.
        let is_age = |line: &&str| line.starts_with("gpu_agent_device_age_seconds{");
        let ages = text.lines().filter(is_age).count();
        assert_eq!(ages, if form == "prometheus" { 3 } else { 0 }, "{text}");
        let same: Vec<_> = text.lines().filter(|line| !is_age(line)).collect();
        let same = same.join("\n") + "\n";
        let commit = format!("commit=\"{COMMIT}\"");
        let same = same.replace(VERSION, "VERSION").replace(&commit, "commit=\"COMMIT\"");
        golden(file, &same);
    }
}

#[test]
fn no_hardware_is_one_sentence_and_exit_code_1() {
    let empty = Node::new(&machine(&[]));
    let (printed, log) = ended(1, &mut empty.agent(&["snapshot"]));
    assert_eq!(printed, "");
    assert_eq!(log, "gpu-agent: the NVIDIA driver sees no GPU on this node\n");
    for command in [&["snapshot"][..], &["top", "--once"]] {
        let (printed, log) = ended(1, agent(command).args(["--nvml-library", "/none/lib.so"]));
        assert_eq!(printed, "");
        let expected = "gpu-agent: NVIDIA's library /none/lib.so is not here; ";
        assert!(log.starts_with(expected) && log.lines().count() == 1, "{log}");
    }
}

#[tokio::test]
async fn a_driver_that_starts_slowly_is_waited_for() {
    let slow = json!({"block": ["nvmlInit_v2"], "gpus": [gpu("GPU-0a", 93)]});
    let node = Node::new(&slow);
    let file = node.file("recording.jsonl");
    let once = [
        &["snapshot"][..],
        &["top", "--once"],
        &["record", &file, "--interval", "100ms", "--for", "1ms"],
    ];
    let once = once.map(|command| Running::start(node.agent(command)));
    let serve = ["serve", "--http-listen", "127.0.0.1:0", "--interval", "100ms"];
    let mut serve = Running::start(node.agent(&serve));
    // It serves without, as an agent that pushes would.
    let address = serve.http();
    assert!(get(&address, "/healthz").0.starts_with("HTTP/1.1 "));

    node.fake.script(&machine(&[gpu("GPU-0a", 93)]));
    for mut running in once {
        let (status, log) = running.end();
        assert!(status.success(), "{status}\n{log}");
    }
    let start = Instant::now();
    while !get(&address, "/api/v1/devices").1.contains("\"gpu_utilization\":93") {
        assert!(start.elapsed() < PATIENCE, "{}", get(&address, "/healthz").1);
        sleep(Duration::from_millis(50)).await;
    }
    serve.signal("TERM");
    let (status, log) = serve.end();
    assert!(status.success(), "{status}\n{log}");
}

#[test]
fn a_driver_that_does_not_answer_at_all_is_named_by_every_command() {
    let node = Node::new(&json!({"block": ["nvmlInit_v2"]}));
    let file = node.file("recording.jsonl");
    let commands = [&["snapshot"][..], &["top", "--once"], &["record", &file]];
    let running = commands.map(|command| Running::start(node.agent(command)));
    for mut running in running {
        let (status, log) = running.end();
        assert_eq!(status.code(), Some(1), "{log}");
        assert!(log.contains("gpu-agent: the NVIDIA driver is not answering for "), "{log}");
    }
    assert!(!Path::new(&file).exists());
}

#[tokio::test]
async fn the_local_pages_follow_the_hardware_and_name_what_was_lost() {
    let node = Node::new(&machine(&[gpu("GPU-0a", 93), gpu("GPU-0b", 40)]));
    let serve = ["serve", "--http-listen", "127.0.0.1:0", "--interval", "100ms"];
    let mut running = Running::start(node.agent(&serve));
    let address = running.http();
    let line: Value = serde_json::from_str(&get(&address, "/api/v1/devices").1).unwrap();
    assert_eq!(line["devices"][0]["gpu_utilization"], 93);
    assert_eq!(line["devices"][0]["holders"][1]["share"], 0.25);
    assert_eq!(get(&address, "/healthz").1, "ok\n");

    let mut lost = gpu("GPU-0b", 40);
    lost["errors"] = json!({"*": 15});
    node.fake.script(&machine(&[gpu("GPU-0a", 50), lost]));
    let start = Instant::now();
    while !get(&address, "/healthz").1.contains("GPU-0b: the GPU has fallen off the bus") {
        assert!(start.elapsed() < PATIENCE, "{}", get(&address, "/healthz").1);
        sleep(Duration::from_millis(50)).await;
    }
    let (_, metrics) = get(&address, "/metrics");
    let series = |name: &str, uuid: &str| {
        let start = format!("gpu_agent_{name}{{gpu_uuid=\"{uuid}\"");
        metrics.lines().any(|line| line.starts_with(&start))
    };
    assert!(series("utilization_ratio", "GPU-0a") && !series("utilization_ratio", "GPU-0b"));
    assert!(series("reading_failed", "GPU-0b") && !series("reading_failed", "GPU-0a"));
    running.signal("TERM");
    let (status, log) = running.end();
    assert!(status.success(), "{status}\n{log}");
}

#[test]
fn a_recording_of_the_hardware_replays_to_what_it_showed() {
    let node = Node::new(&node());
    let file = node.file("recording.jsonl");
    ended(0, &mut node.agent(&["record", &file, "--interval", "100ms", "--for", "250ms"]));
    let source = format!("replay:{file}");
    let (replayed, log) = ended(0, &mut agent(["snapshot", "-o", "json", "--source", &source]));
    assert_eq!(log, "");
    let text = fs::read_to_string(&file).unwrap();
    let first: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    let replayed: Value = serde_json::from_str(&replayed).unwrap();
    for (device, recorded) in
        replayed["devices"].as_array().unwrap().iter().zip(first["devices"].as_array().unwrap())
    {
        for key in ["uuid", "gpu_utilization", "memory_used_mib", "power_draw", "reason"] {
            assert_eq!(device[key], recorded[key], "{key}");
        }
        assert_eq!(
            device["holders"].as_array().map(Vec::len),
            recorded["holders"].as_array().map(Vec::len)
        );
    }
    let (report, _) = ended(1, &mut agent(["doctor", "--source", &source]));
    assert!(report.contains("GPU 2: the GPU has fallen off the bus; 3 others"), "{report}");
}

/// What the doctor says, with what differs from run to run left out.
fn doctor(code: i32, library: &Path, proc_root: &Path) -> String {
    let command = || {
        let mut command = agent(["doctor", "--nvml-library"]);
        command.arg(library).arg("--proc-root").arg(proc_root);
        command
    };
    let (text, log) = ended(code, &mut command());
    assert_eq!(log, "");
    let folder = library.parent().unwrap().display().to_string();
    text.replace(&folder, "LIB").replace(&proc_root.display().to_string(), "PROC")
}

fn proc_root(kernel: Option<&str>) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    if let Some(kernel) = kernel {
        fs::create_dir_all(root.path().join("driver/nvidia")).unwrap();
        fs::write(root.path().join("driver/nvidia/version"), kernel).unwrap();
    }
    root
}

#[test]
fn the_doctor_stops_at_the_first_broken_link() {
    let (loaded, none) = (proc_root(Some(KERNEL)), proc_root(None));
    let folder = tempfile::tempdir().unwrap();
    let (missing, text) = (folder.path().join("none.so"), folder.path().join("text.so"));
    fs::write(&text, "no library").unwrap();
    let init = |code: u32| FakeNvml::new(&json!({"errors": {"nvmlInit_v2": code}}));
    let [not_loaded, mismatch, forbidden, unknown] = [9, 18, 4, 999].map(init);
    let foreign = FakeNvml::without(&["nvmlInit_v2"], &machine(&[]));
    let empty = FakeNvml::new(&machine(&[]));
    let lost = FakeNvml::new(&node());
    let well = FakeNvml::new(&machine(&[gpu("GPU-0a", 93), gpu("GPU-0b", 0)]));
    let mut report = String::new();
    for (name, code, library, root) in [
        ("all is well", 0, well.path(), &loaded),
        ("all is well, though the kernel does not say", 0, well.path(), &none),
        ("no driver and no library", 1, missing.clone(), &none),
        ("no library", 1, missing, &loaded),
        ("a library that is none", 1, text, &loaded),
        ("another library", 1, foreign.path(), &loaded),
        ("the driver is not loaded", 1, not_loaded.path(), &none),
        ("library and driver of different versions", 1, mismatch.path(), &loaded),
        ("no permission", 1, forbidden.path(), &loaded),
        ("the driver fails", 1, unknown.path(), &loaded),
        ("no GPU", 1, empty.path(), &loaded),
        ("a GPU that was lost", 1, lost.path(), &loaded),
    ] {
        report += &format!("# {name}: exit code {code}\n{}\n", doctor(code, &library, root.path()));
    }
    golden("doctor-nvml.txt", &report);
}

#[test]
fn the_doctors_report_is_an_object_for_scripts() {
    let root = proc_root(Some(KERNEL));
    let fake = FakeNvml::new(&node());
    let mut text = String::new();
    for (code, library) in [(1, fake.path()), (1, "/none/lib.so".into())] {
        let mut command = agent(["doctor", "-o", "json", "--nvml-library"]);
        command.arg(&library).arg("--proc-root").arg(root.path());
        let (json, _) = ended(code, &mut command);
        let folder = library.parent().unwrap().display().to_string();
        text += &json.replace(&folder, "LIB");
    }
    golden("doctor-nvml.jsonl", &text);
}

#[test]
fn the_doctor_does_not_wait_for_a_gpu_that_hangs() {
    let mut hanging = gpu("GPU-0b", 0);
    hanging["block"] = json!(["*"]);
    let fake = FakeNvml::new(&machine(&[gpu("GPU-0a", 93), hanging]));
    let root = proc_root(Some(KERNEL));
    // How long it was silent, to the second, depends on the machine.
    let report = doctor(1, &fake.path(), root.path());
    let (before, after) = report.split_once("is not answering for ").expect(&report);
    let after = after.trim_start_matches(|c: char| c.is_ascii_digit());
    golden("doctor-hanging-gpu.txt", &format!("{before}is not answering for N{after}"));
}

#[test]
fn the_doctor_does_not_wait_for_a_driver_that_hangs() {
    let fake = FakeNvml::new(&json!({"block": ["nvmlInit_v2"]}));
    let root = proc_root(Some(KERNEL));
    golden("doctor-hanging-driver.txt", &doctor(1, &fake.path(), root.path()));
}

#[test]
fn a_gpu_that_hangs_costs_a_snapshot_only_itself() {
    let mut hanging = gpu("GPU-0b", 0);
    hanging["block"] = json!(["*"]);
    let node = Node::new(&machine(&[gpu("GPU-0a", 93), hanging]));
    let (line, _) = ended(0, &mut node.agent(&["snapshot", "-o", "json"]));
    let line: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(line["devices"][0]["gpu_utilization"], 93);
    assert_eq!(line["devices"].as_array().unwrap().len(), 1);
    assert!(line["reason"].as_str().unwrap().contains("GPU 1: "), "{line}");
}
