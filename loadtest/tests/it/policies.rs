//! `loadtest replay` as a user runs it: the same trace gives the same figures, what is wrong is said,
//! and what must be true of the policies on any trace is true of a small one.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

use crate::support::binaries;

/// Ten minutes of four requests a second, then none: more than one replica serves.
fn trace(folder: &TempDir) -> PathBuf {
    let mut text = String::from("TIMESTAMP,ContextTokens,GeneratedTokens\n");
    let mut random = fastrand::Rng::with_seed(3);
    for tenth in 0..6_000_u32 {
        if random.f64() < 0.4 {
            let (minute, second) = (tenth / 600, tenth % 600);
            let (input, output) = (random.u32(50..2_500), random.u32(20..500));
            let (whole, part) = (second / 10, second % 10);
            writeln!(text, "2023-11-16 18:{minute:02}:{whole:02}.{part},{input},{output}").unwrap();
        }
    }
    let path = folder.path().join("trace.csv");
    std::fs::write(&path, text).unwrap();
    path
}

fn replay(trace: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(binaries().join("loadtest"));
    command.args(["replay", "--trace"]).arg(trace).args(arguments);
    command.output().unwrap()
}

fn figures(output: &Output) -> Vec<Value> {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn row<'a>(rows: &'a [Value], policy: &str) -> &'a Value {
    rows.iter().find(|row| row["policy"].as_str().unwrap().starts_with(policy)).unwrap()
}

#[test]
fn the_same_trace_and_seed_give_the_same_figures_and_the_policies_differ_as_they_must() {
    let folder = tempfile::tempdir().unwrap();
    let trace = trace(&folder);
    let json = ["--load", "2", "--gpus", "6", "-o", "json"];
    let charts = folder.path().join("charts");
    let output = replay(&trace, &[&json[..], &["--charts", charts.to_str().unwrap()]].concat());
    let rows = figures(&output);
    assert_eq!(rows, figures(&replay(&trace, &json)), "to the last digit");
    assert_ne!(rows, figures(&replay(&trace, &[&json[..], &["--seed", "2"]].concat())));

    let all = row(&rows, "fixed")["answered"].as_u64().unwrap();
    assert!(all > 4_000, "{rows:?}");
    for row in &rows {
        let of = |key: &str| row[key].as_u64().unwrap();
        assert_eq!(of("answered") + of("unanswered"), all, "no request is lost: {row}");
        assert!(of("peakReplicas") <= 6, "{row}");
    }
    // What answers for one node under AverageValue never asks for more than two replicas.
    let one_node = row(&rows, "one node");
    let begun_with = row(&rows, "fixed")["peakReplicas"].as_u64().unwrap();
    assert!(one_node["peakReplicas"].as_u64().unwrap() <= begun_with.max(2), "{one_node}");
    let over = |policy: &str| row(&rows, policy)["overSlo"].as_u64().unwrap();
    assert!(over("one node") > over("ours, composite, tuned"), "{rows:?}");
    // Only what can see demand without a pod may sleep.
    for (policy, sleeps) in [("ours, queue", true), ("engine + Prometheus, queue", false)] {
        let at_zero = row(&rows, policy)["secondsAtZero"].as_f64().unwrap();
        assert_eq!(at_zero > 0.0, sleeps, "{policy}: {at_zero} s at zero");
    }
    let charts = std::fs::read_dir(charts).unwrap().count();
    assert_eq!(charts, rows.len(), "one chart each");
}

#[test]
fn a_workload_at_zero_is_woken_by_the_first_request_and_answers_all() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = ["--begin", "0", "--gpus", "6", "-o", "json", "--only", "--trigger"];
    let trigger = ["metricType=requests_waiting;targetValue=5"];
    let rows = figures(&replay(&trace(&folder), &[&arguments[..], &trigger].concat()));
    let ours = row(&rows, "ours, metricType=requests_waiting");
    assert_eq!(ours["unanswered"], 0, "{ours}");
    assert!(ours["secondsAtZero"].as_f64().unwrap() > 0.0, "it slept before and after: {ours}");
    assert!(ours["peakReplicas"].as_u64().unwrap() > 1, "{ours}");
}

#[test]
fn what_is_wrong_with_a_trace_or_a_trigger_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let broken = folder.path().join("broken.csv");
    std::fs::write(&broken, "TIMESTAMP,ContextTokens\n2023-11-16 18:15:50,1\n").unwrap();
    let good = trace(&folder);
    let cases: [(&Path, &[&str], i32, &str); 5] = [
        (&broken, &[], 1, "missing field `GeneratedTokens`"),
        (&folder.path().join("none.csv"), &[], 1, "No such file"),
        (&good, &["--trigger", "metricType"], 2, "key=value"),
        (&good, &["--only", "--trigger", "metricType=gpu_utilisation"], 1, "gpu_utilization"),
        (&good, &["--load", "0"], 2, "0.01 to 100"),
    ];
    for (trace, arguments, code, word) in cases {
        let output = replay(trace, arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.contains(word), "{arguments:?}: {said}");
    }
}
