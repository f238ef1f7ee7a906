//! `deploy/e2e/run` and `deploy/check/browser` where they cannot run: they say so.

use std::path::{Path, PathBuf};
use std::process::Command;

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/e2e/run")
}

/// What the script prints where only these variables are set, `kubectl` is not to be found, and
/// nothing else either: it asks for nothing before it knows that it can run.
fn skipped(variables: &[(&str, &str)]) -> String {
    let nothing = tempfile::tempdir().expect("a folder");
    let mut command = Command::new("/bin/bash");
    command.arg(script()).env_clear().env("PATH", nothing.path());
    let output = command.envs(variables.iter().copied()).output().expect("bash starts");
    let complaints = String::from_utf8(output.stderr).expect("text");
    assert_eq!((output.status.code(), complaints.as_str()), (Some(0), ""));
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn it_is_skipped_by_name_with_what_is_missing() {
    let neither = skipped(&[]);
    assert_eq!(neither, "SKIPPED deploy/e2e: missing kubectl, KUBECONFIG (or LAB and LAB_BIN)\n");
    assert_eq!(skipped(&[("KUBECONFIG", "some")]), "SKIPPED deploy/e2e: missing kubectl\n");
    let half = skipped(&[("LAB", "lab"), ("LAB_BIN", "bin")]);
    assert!(half.contains(" lab/up, ") && half.contains(" bin/keda-operator, "), "{half}");
    assert_eq!(half.lines().count(), 1, "{half}");
}

#[test]
fn the_browser_check_is_skipped_by_name_unless_it_is_required() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/check/browser");
    let nothing = tempfile::tempdir().expect("a folder");
    for (ci, code) in [("true", 0), ("required", 1)] {
        let mut command = Command::new("/bin/bash");
        command.arg(&script).env_clear().env("PATH", nothing.path()).env("CI", ci);
        let output = command.output().expect("bash starts");
        let said = String::from_utf8(output.stdout).expect("text");
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.starts_with("SKIPPED deploy/check/browser: missing chromium, node"), "{said}");
    }
}
