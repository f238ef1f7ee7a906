//! The fuzz targets on their seeds: what was found once is not found again, and the targets keep
//! up with what they test, without a fuzzer.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

#[expect(unreachable_pub, reason = "a crate of its own elsewhere")]
#[path = "../../fuzz/src/lib.rs"]
mod targets;

use targets::TARGETS;

fn fuzz() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz")
}

fn names(folder: &str) -> BTreeSet<String> {
    let entries = std::fs::read_dir(fuzz().join(folder)).unwrap();
    let stem = |entry: std::io::Result<std::fs::DirEntry>| {
        entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned()
    };
    entries.map(stem).collect()
}

#[test]
fn every_target_has_a_file_and_seeds() {
    let targets: BTreeSet<_> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(names("fuzz_targets"), targets);
    assert_eq!(names("seeds"), targets);
}

#[test]
fn every_dictionary_is_of_a_target_and_has_a_quoted_word_a_line() {
    let targets: BTreeSet<_> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    for name in names("dictionaries") {
        assert!(targets.contains(&name), "{name}");
        let text = std::fs::read_to_string(fuzz().join("dictionaries").join(&name)).unwrap();
        let words = text.lines().filter(|line| !line.starts_with('#'));
        let is_quoted = |word: &str| {
            let inside = word.strip_prefix('"').and_then(|word| word.strip_suffix('"'));
            inside.is_some_and(|inside| !inside.is_empty())
        };
        for word in words {
            assert!(is_quoted(word), "{name}: {word}");
        }
    }
}

#[test]
fn every_seed_is_read_as_its_target_promises() {
    for (name, read) in TARGETS {
        let mut seeds = 0;
        for seed in std::fs::read_dir(fuzz().join("seeds").join(name)).unwrap() {
            let seed = seed.unwrap().path();
            println!("{}", seed.display());
            read(&std::fs::read(&seed).unwrap());
            seeds += 1;
        }
        assert!(seeds > 0, "{name} has no seeds");
    }
}
