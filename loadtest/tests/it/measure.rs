//! The measuring commands end to end, as processes and small: that they measure, find every answer
//! right and say so. Times and ratios are not asserted.

use std::process::Command;

use serde_json::Value;

/// Its exit code and what it printed.
fn loadtest(args: &[&str]) -> (bool, Value) {
    let output = Command::new(env!("CARGO_BIN_EXE_loadtest")).args(args).output().unwrap();
    let (text, told) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let report =
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}{told}"));
    (output.status.success(), report)
}

fn whats(report: &Value, list: &str) -> Vec<String> {
    let rows = report[list].as_array().unwrap();
    rows.iter().map(|row| row["what"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn calls_are_measured_beside_the_floor_and_every_answer_is_right() {
    let args = ["keda", "--parts", "calls,open,many", "--objects", "20", "--rate", "50"];
    let small = ["--rounds", "1", "--seconds", "0.2", "-o", "json"];
    let (is_good, report) = loadtest(&[&args[..], &small].concat());
    assert!(is_good, "without --check budgets do not decide: {report:#}");
    assert_eq!(report["wrong"], serde_json::json!([]), "{report:#}");
    assert_eq!(whats(&report, "budgets").len(), 6, "{report:#}");
    let measured =
        |row: &Value| row["figure"]["median"].as_f64().is_some_and(|median| median > 0.0);
    assert!(report["figures"].as_array().unwrap().iter().all(measured), "{report:#}");
}

#[test]
fn a_budget_that_cannot_be_kept_fails_the_check() {
    let args = ["keda", "--parts", "open", "--rate", "50", "--rounds", "1", "--seconds", "0.2"];
    let (is_good, report) =
        loadtest(&[&args[..], &["--check", "--slack", "0", "-o", "json"]].concat());
    assert!(!is_good, "{report:#}");
    assert_eq!((&report["good"], &report["budgets"][0]["met"]), (&false.into(), &false.into()));
}

#[test]
fn a_fleet_of_real_agents_comes_back_after_churn_and_a_restart() {
    let args = ["fleet", "--nodes", "12", "--gpus", "2", "--interval", "200", "--scaled", "4"];
    let small = ["--rounds", "1", "--seconds", "1", "--churn", "4", "--restart", "-o", "json"];
    let (is_good, report) = loadtest(&[&args[..], &small].concat());
    assert!(is_good, "{report:#}");
    let figures = whats(&report, "figures");
    assert!(figures.iter().any(|what| what.contains("all back after a restart")), "{report:#}");
    assert!(figures.contains(&"agents restarted".to_owned()), "{report:#}");
}
