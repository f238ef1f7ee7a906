//! The order of `lib.rs` is the order of the code, and the decision is pure.

use std::fs;
use std::path::{Path, PathBuf};

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files
}

fn modules_in_order(lib: &str) -> Vec<String> {
    let modules = lib.lines().filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';'));
    modules.map(Into::into).collect()
}

/// `crate::x` in the code of module `own` for an `x` that `lib.rs` lists after it.
fn upward_uses(order: &[String], own: &str, code: &str) -> Vec<String> {
    let place = |module: &str| order.iter().position(|known| known == module);
    let own = place(own).unwrap();
    code.match_indices("crate::")
        .map(|(at, found)| {
            let rest = &code[at + found.len()..];
            rest.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect::<String>()
        })
        .filter(|module| place(module).is_some_and(|used| used > own))
        .collect()
}

#[test]
fn a_module_uses_only_modules_listed_above_it() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let order = modules_in_order(&fs::read_to_string(src.join("lib.rs")).unwrap());
    assert!(order.len() > 8, "{order:?}");
    for file in sources(&src) {
        let inside = file.strip_prefix(&src).unwrap();
        let first = inside.components().next().unwrap().as_os_str().to_str().unwrap();
        let own = first.trim_end_matches(".rs");
        if ["lib", "main"].contains(&own) {
            continue;
        }
        let found = upward_uses(&order, own, &fs::read_to_string(&file).unwrap());
        assert!(found.is_empty(), "{} uses {found:?}, listed below {own}", inside.display());
    }
}

#[test]
fn the_decision_knows_no_runtime_no_transport_and_no_clock() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = sources(&src.join("trigger"));
    files.push(src.join("trigger.rs"));
    assert!(files.len() > 10);
    for file in files {
        let code = fs::read_to_string(&file).unwrap();
        let barred = [
            "tokio",
            "tonic",
            "hyper",
            "axum",
            "Instant",
            "SystemTime",
            "Clock",
            "Mutex",
            "std::fs",
        ];
        for word in barred {
            let used = code
                .lines()
                .any(|line| !line.trim_start().starts_with("//") && line.contains(word));
            assert!(!used, "{} names {word}", file.display());
        }
    }
}

#[test]
fn what_is_counted_depends_on_no_clock_and_no_runtime() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = sources(&src.join("ledger"));
    files.push(src.join("ledger.rs"));
    // The one that does it for the rest.
    files.retain(|file| !file.ends_with("books.rs"));
    assert!(files.len() > 6);
    for file in files {
        let code = fs::read_to_string(&file).unwrap();
        let mut lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
        let barred = ["tokio", "axum", "Instant", "SystemTime", "Clock", "Mutex", "std::fs"];
        let found = lines.find(|line| barred.iter().any(|word| line.contains(word)));
        assert_eq!(found, None, "{}", file.display());
    }
}

#[test]
fn the_check_itself_finds_what_it_looks_for() {
    let order = ["below".to_owned(), "above".to_owned()];
    assert_eq!(upward_uses(&order, "below", "use crate::above::X;"), ["above"]);
    assert!(upward_uses(&order, "above", "use crate::below::X;").is_empty());
}
