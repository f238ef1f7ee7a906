//! `gpu-gateway check`: what it says about files, word for word.
//!
//! Each `golden/check/NAME.yaml` is checked by the real binary; its output and exit code are
//! `NAME.txt`. A first line `# flags: …` adds flags. `UPDATE_GOLDEN=1` rewrites what differs.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use gateway::check::RULES;
use serde_json::Value;

fn goldens() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/golden/check")
}

/// `gpu-gateway check …` in the folder of the golden files, with `input` on standard input.
fn check(arguments: &[&str], input: &str) -> (Option<i32>, String, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_gpu-gateway"))
        .arg("check")
        .args(arguments)
        .env_clear()
        .current_dir(goldens())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    // It may end without reading.
    child.stdin.take().expect("piped").write_all(input.as_bytes()).ok();
    let Output { status, stdout, stderr } = child.wait_with_output().expect("it ends");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (status.code(), text(stdout), text(stderr))
}

/// Whether `file` says `text`; writes it there if asked to.
fn is_golden(file: &Path, text: &str) -> bool {
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(file, text).expect("the golden file can be written");
    }
    fs::read_to_string(file).is_ok_and(|golden| golden == text)
}

#[test]
fn every_golden_file_is_said_word_for_word_and_every_rule_is_in_one() {
    let files = fs::read_dir(goldens()).unwrap().map(|entry| entry.unwrap().path());
    let is_yaml = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "yaml");
    let yamls: BTreeSet<_> = files.filter(is_yaml).collect();
    assert!(yamls.len() > 25, "{yamls:?}");
    let (mut differing, mut rules) = (Vec::new(), BTreeSet::new());
    for yaml in yamls {
        let text = fs::read_to_string(&yaml).unwrap();
        let flags = text.lines().next().and_then(|line| line.strip_prefix("# flags: "));
        let name = yaml.file_name().unwrap().to_str().unwrap();
        let mut arguments: Vec<&str> = flags.unwrap_or_default().split_whitespace().collect();
        arguments.push(name);
        let (code, out, error) = check(&arguments, "");
        assert_eq!(error, "", "{name}");
        let findings = out.lines().filter(|line| line.starts_with("  "));
        rules.extend(findings.filter_map(|line| line.split_whitespace().nth(1).map(str::to_owned)));
        let said = format!("{out}exit {}\n", code.expect("an exit code"));
        if !is_golden(&yaml.with_extension("txt"), &said) {
            differing.push(format!("{name}:\n{said}"));
        }
    }
    assert!(differing.is_empty(), "{}", differing.join("\n"));
    assert!(rules.iter().eq(RULES.iter().map(|(rule, _)| rule)), "{rules:?}");
}

#[test]
fn json_is_for_programs() {
    let (code, out, error) = check(&["-o", "json", "quick-start.yaml", "unknown-key.yaml"], "");
    assert_eq!((code, &*error), (Some(1), ""));
    assert!(is_golden(&goldens().join("two-files.json"), &out), "{out}");
    let report: Value = serde_json::from_str(&out).unwrap();
    let findings = report["findings"].as_array().unwrap();
    let counted = ["errors", "warnings", "notes"].map(|key| report[key].as_u64().unwrap());
    assert_eq!(counted.iter().sum::<u64>(), findings.len() as u64);
    for finding in findings {
        let rule = finding["rule"].as_str().unwrap();
        assert!(RULES.iter().any(|(known, _)| *known == rule), "{finding}");
        assert!(finding["file"].is_string(), "{finding}");
        assert!(!finding["message"].as_str().unwrap().is_empty(), "{finding}");
    }
    let second = findings.iter().find(|finding| finding["trigger"]["name"] == "second").unwrap();
    assert_eq!(second["trigger"]["index"], 1);
    let (_, out, _) = check(&["-o", "json", "yaml.yaml"], "");
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&report["objects"], &report["findings"][0]["object"]), (&2.into(), &Value::Null));
}

#[test]
fn what_it_proposes_instead_of_a_query_is_a_good_trigger() {
    let (_, out, _) = check(&["-o", "json", "prometheus.yaml"], "");
    let report: Value = serde_json::from_str(&out).unwrap();
    let messages =
        report["findings"].as_array().unwrap().iter().filter_map(|f| f["message"].as_str());
    let proposed = messages.filter_map(|message| message.find('{').map(|at| &message[at..]));
    let triggers: String = proposed.map(|trigger| format!("\n    - {trigger}")).collect();
    assert_eq!(triggers.matches("external-push").count(), 6, "{triggers}");
    let (code, out, _) = check(
        &["-"],
        &format!(
            "apiVersion: keda.sh/v1alpha1\nkind: ScaledObject\nmetadata: {{name: a}}\nspec:\n  \
             scaleTargetRef: {{name: a}}\n  minReplicaCount: 1\n  triggers:{triggers}\n"
        ),
    );
    assert_eq!(code, Some(0), "{out}");
    assert!(out.ends_with("1 object, 0 errors, 0 warnings, 1 note\n"), "{out}");
}

#[test]
fn the_quick_start_is_accepted_with_its_warnings() {
    let (code, out, _) = check(&["quick-start.yaml"], "");
    assert_eq!(code, Some(0), "{out}");
    for rule in ["per-node", "vram-zero", "no-wake", "push", "fallback"] {
        assert!(out.contains(rule), "{rule} in {out}");
    }
    assert_eq!(check(&["--strict", "quick-start.yaml"], "").0, Some(1));
    // Notes are not faults, however strict.
    assert_eq!(check(&["--strict", "push.yaml"], "").0, Some(0));
}

#[test]
fn the_example_of_deploy_is_sound() {
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/examples/scaledobject.yaml");
    let (code, out, error) = check(&["--strict", example], "");
    assert_eq!((code, &*error), (Some(0), ""), "{out}");
    assert!(out.contains("ScaledObject ai/vllm  ok"), "{out}");
}

#[test]
fn a_dash_is_standard_input() {
    let yaml = fs::read_to_string(goldens().join("percent-target.yaml")).unwrap();
    let (code, out, _) = check(&["-"], &yaml);
    assert_eq!(code, Some(0));
    assert!(out.starts_with("-  ScaledObject ai/needs-99\n"), "{out}");
    let (code, out, _) = check(&["-"], "");
    assert_eq!(code, Some(0));
    assert!(out.contains("no ScaledObject") && out.ends_with("1 warning, 0 notes\n"), "{out}");
    assert_eq!(check(&["--strict", "-"], "").0, Some(1), "nothing was checked");
    // A folder's other files are no fault beside one that has something.
    let (code, out, _) = check(&["--strict", "other-kinds.yaml", "sound.yaml"], "");
    assert_eq!(code, Some(0), "{out}");
    assert!(!out.contains("not-checked"), "{out}");
}

#[test]
fn profiles_of_ones_own_are_known_as_serve_knows_them() {
    let folder = tempfile::tempdir().unwrap();
    let profiles = folder.path().join("profiles.yaml");
    fs::write(&profiles, "mine: {metricType: requests_waiting, targetValue: 3}\n").unwrap();
    let yaml = "
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata: {name: a}
spec:
  scaleTargetRef: {name: a}
  minReplicaCount: 1
  triggers: [{type: external-push, metadata: {scalerAddress: 'gw:6000', profile: mine}}]
";
    let (code, out, _) = check(&["-"], yaml);
    assert_eq!(code, Some(1));
    assert!(out.contains(r#"no profile "mine""#), "{out}");
    let path = profiles.to_str().unwrap();
    assert_eq!(check(&["--profiles", path, "-"], yaml).0, Some(0));
    fs::write(&profiles, "mine: {targetvalue: 3}\n").unwrap();
    let (code, out, error) = check(&["--profiles", path, "-"], yaml);
    assert_eq!((code, &*out), (Some(2), ""));
    assert!(error.contains("--profiles: ") && error.contains("profiles.yaml"), "{error}");
    assert!(error.contains("targetvalue"), "{error}");
}

#[test]
fn usage_and_unreadable_files_exit_with_2() {
    let folder = tempfile::tempdir().unwrap();
    let binary = folder.path().join("binary.yaml");
    fs::write(&binary, [0xff, 0xfe, 0x00]).unwrap();
    let binary = binary.to_str().unwrap();
    for (arguments, word) in [
        (&[][..], "FILE"),
        (&["no-such-file.yaml"], "no-such-file.yaml"),
        (&["quick-start.yaml", "no-such-file.yaml"], "no-such-file.yaml"),
        (&[binary], "binary.yaml"),
        (&[folder.path().to_str().unwrap()], "directory"),
        (&["-o", "xml", "quick-start.yaml"], "xml"),
        (&["--load-time", "soon", "quick-start.yaml"], "soon"),
        (&["--load-time", "0s", "quick-start.yaml"], "0s"),
        (&["--profiles", "no-such-file.yaml", "quick-start.yaml"], "--profiles: no-such-file.yaml"),
    ] {
        let (code, out, error) = check(arguments, "");
        assert_eq!((code, &*out), (Some(2), ""), "{arguments:?}: {error}");
        assert!(error.contains(word), "{arguments:?}: {error}");
    }
}

#[test]
fn odd_and_large_texts_are_survived() {
    let deep = format!("a: {}", "[".repeat(100_000));
    let bomb = "a: &a [x, x, x, x, x, x, x, x, x]\n".to_owned()
        + &(1..30).map(|n| format!("b{n}: &b{n} [*a, *a, *a]\n")).collect::<String>();
    let large = format!("kind: ConfigMap\ndata: {{a: '{}'}}\n", "x".repeat(5 << 20));
    let many = "apiVersion: keda.sh/v1alpha1\nkind: ScaledObject\n---\n".repeat(2_000);
    for text in [deep, bomb, large, many, "\0".into(), "---\n---\n...\n".into(), "- *a\n".into()] {
        let (code, out, error) = check(&["-"], &text);
        assert!(matches!(code, Some(0 | 1)), "{code:?} {error} for {:.60}", text);
        assert!(out.ends_with("notes\n"), "{:.60}", text);
    }
}

#[test]
fn words_of_a_file_do_not_reach_the_terminal_raw() {
    let yaml = "apiVersion: keda.sh/v1alpha1\nkind: ScaledObject\n\
        metadata: {name: \"a\\e[31m\\nb\"}\nspec: {\"x\\e[2J\": 1}\n";
    let (code, out, _) = check(&["-"], yaml);
    assert_eq!(code, Some(1));
    assert!(!out.contains('\u{1b}') && out.contains(r"a\u{1b}[31m\nb"), "{out}");
    assert!(out.contains(r"spec.x\u{1b}[2J: unknown field"), "{out}");
}

#[test]
fn help_lists_every_rule() {
    let (code, out, _) = check(&["--help"], "");
    assert_eq!(code, Some(0));
    for (rule, meaning) in RULES {
        assert!(out.contains(&format!("  {rule:<16}  {meaning}\n")), "{rule} in {out}");
    }
}
