//! SECURITY.md says how each rule is kept: by tests that exist.

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// `` `path/of/file.rs::name` `` in `text`.
fn pointers(text: &str) -> Vec<(&str, &str)> {
    let quoted = text.split('`').skip(1).step_by(2);
    quoted.filter_map(|quoted| quoted.split_once(".rs::")).collect()
}

/// Whether `source` has a test of that name.
fn has_test(source: &str, name: &str) -> bool {
    let start = format!("fn {name}(");
    let lines: Vec<&str> = source.lines().map(str::trim).collect();
    let mut tests = lines
        .iter()
        .enumerate()
        .filter(|(_, line)| line.strip_prefix("async ").unwrap_or(line).starts_with(&start));
    tests.any(|(at, _)| {
        let above = lines[..at].iter().rev().take_while(|line| line.starts_with("#["));
        above.clone().any(|line| line.contains("test"))
            && !above.clone().any(|line| line.starts_with("#[ignore"))
    })
}

#[test]
fn every_rule_points_to_tests_that_exist_and_run() {
    let text = fs::read_to_string(root().join("SECURITY.md")).unwrap();
    let mut wrong = Vec::new();
    for (file, name) in pointers(&text) {
        let path = root().join(format!("{file}.rs"));
        match fs::read_to_string(&path) {
            Ok(source) if has_test(&source, name) => {}
            Ok(_) => wrong.push(format!("{file}.rs has no test {name} that runs")),
            Err(error) => wrong.push(format!("{file}.rs: {error}")),
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// A rule is an item of a list, with everything that belongs to it.
#[test]
fn every_rule_points_to_a_test() {
    let text = fs::read_to_string(root().join("SECURITY.md")).unwrap();
    let items = text.split("\n* ").skip(1).map(|item| item.split("\n\n").next().unwrap());
    let items: Vec<&str> = items.collect();
    assert!(items.len() > 20, "{} rules", items.len());
    let without: Vec<_> = items.iter().filter(|item| pointers(item).is_empty()).collect();
    assert!(without.is_empty(), "{without:#?}");
}

#[test]
fn the_check_itself_finds_what_it_looks_for() {
    let source = "#[test]\nfn one() {}\n\nfn two() {}\n#[ignore = \"x\"]\n#[test]\nfn three() {}\n\
                  #[tokio::test]\nasync fn four() {}";
    let found = ["one", "two", "three", "four", "five"].map(|name| has_test(source, name));
    assert_eq!(found, [true, false, false, true, false]);
    assert_eq!(pointers("x `a/b.rs::c` y `d` `e.rs`"), [("a/b", "c")]);
}
