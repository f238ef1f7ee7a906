//! Who holds what, and with which share.

use std::sync::LazyLock;
use std::time::Duration;

use agent::device::{Condition, Observation, ObservedDevice, ObservedHolder, Processes, Seat};
use agent::owner::declared::Declaration;
use agent::owner::file::{HoldersFile, parse};
use agent::owner::process::ProcessOwners;
use agent::owner::{Declared, Known, Owners, resolve};
use proptest::prelude::*;
use shared::frame::{HeldReading, HolderSource};
use shared::identity::PodKey;
use shared::metric::Metric;
use shared::reading::Readings;

use crate::support::{at, logged};

pub(crate) fn holder(pod: &str, share: Option<f64>) -> ObservedHolder {
    ObservedHolder {
        pod: PodKey::new("ai", pod),
        uid: None,
        container: "main".into(),
        share,
        estimated: false,
        source: HolderSource::Replay,
        undeclared: false,
        own: Vec::new(),
    }
}

pub(crate) fn device(uuid: &str, holders: Vec<ObservedHolder>) -> ObservedDevice {
    ObservedDevice {
        uuid: uuid.into(),
        index: 0,
        name: "test".into(),
        memory_total_mib: Some(1_000.0),
        mig: None,
        holders,
        reason: None,
        age: Duration::ZERO,
        readings: Readings::default(),
        seat: Seat::default(),
        processes: Processes::default(),
        condition: Condition::default(),
    }
}

static NOBODY: LazyLock<Declaration> = LazyLock::new(Declaration::default);
static UNREAD: LazyLock<ProcessOwners> = LazyLock::new(ProcessOwners::unread);
static NO_FILE: LazyLock<Declared> = LazyLock::new(Declared::new);

/// Nothing but a holders file.
pub(crate) fn known(file: &Declared) -> Known<'_> {
    Known { file, declaration: &NOBODY, processes: &UNREAD }
}

/// No holders file.
pub(crate) fn knowing<'a>(declaration: &'a Declaration, processes: &'a ProcessOwners) -> Known<'a> {
    Known { file: &NO_FILE, declaration, processes }
}

/// The owners where only the source names any.
pub(crate) fn written(observation: &Observation) -> Vec<Owners> {
    resolve(observation, known(&NO_FILE))
}

fn owners(holders: Vec<ObservedHolder>) -> Owners {
    let observation =
        Observation { devices: vec![device("GPU-a", holders)], ..Observation::default() };
    written(&observation).remove(0)
}

fn shares(shares: &[Option<f64>]) -> Vec<(f64, bool)> {
    let pods = shares.iter().enumerate();
    let holders = pods.map(|(pod, share)| holder(&pod.to_string(), *share));
    let holders = owners(holders.collect()).holders;
    holders.iter().map(|holder| (holder.share.unwrap(), holder.estimated)).collect()
}

#[test]
fn shares_are_kept_split_or_whole() {
    for (given, expected) in [
        (vec![], vec![]),
        (vec![None], vec![(1.0, false)]),
        (vec![Some(0.3)], vec![(0.3, false)]),
        (vec![None, None], vec![(0.5, true), (0.5, true)]),
        (vec![Some(0.5), None, None], vec![(0.5, false), (0.25, true), (0.25, true)]),
        (vec![Some(0.25), None], vec![(0.25, false), (0.75, true)]),
        (vec![Some(1.0), None], vec![(1.0, false), (0.0, true)]),
    ] {
        assert_eq!(shares(&given), expected, "{given:?}");
    }
}

#[test]
fn a_share_that_was_recorded_as_a_guess_stays_one() {
    let mut guessed = holder("p", Some(0.5));
    guessed.estimated = true;
    assert!(owners(vec![guessed]).holders[0].estimated);
}

#[test]
fn a_holders_own_values_are_held_readings_with_the_percent_of_its_memory() {
    let mut own = holder("q", None);
    own.own = vec![(Metric::GpuUtilization, 30.0), (Metric::MemoryUsedMib, 250.0)];
    let held = owners(vec![holder("p", None), own]).held;
    let reading = |metric, value| HeldReading { holder: 1, metric, value };
    let expected = [
        reading(Metric::GpuUtilization, 30.0),
        reading(Metric::MemoryUsedMib, 250.0),
        reading(Metric::MemoryUsedPercent, 25.0),
    ];
    assert_eq!(held, expected);
}

proptest! {
    #[test]
    fn shares_never_add_up_to_more_than_the_device(
        given in prop::collection::vec(prop::option::of(0.0..=1.0_f64), 1..12),
    ) {
        let sum: f64 = given.iter().flatten().sum();
        // What is given adds up to 1 at most: the sources see to that.
        let given: Vec<_> = given.iter().map(|share| share.map(|share| share / sum.max(1.0))).collect();
        let resolved = shares(&given);
        let total: f64 = resolved.iter().map(|(share, _)| share).sum();
        prop_assert!(total <= 1.0 + 1e-9, "{total}");
        prop_assert!(resolved.iter().all(|(share, _)| (0.0..=1.0).contains(share)));
        if given.contains(&None) {
            prop_assert!((total - 1.0).abs() < 1e-9, "nothing is left over: {total}");
        }
    }
}

#[test]
fn a_holders_file_is_yaml_or_json_and_decides_for_the_devices_it_names() {
    for text in [
        "GPU-a:\n  - {namespace: ai, pod: new, container: c, share: 0.5}\n",
        r#"{"GPU-a": [{"namespace": "ai", "pod": "new", "container": "c", "share": 0.5}]}"#,
    ] {
        let declared = parse(text).unwrap();
        let observation = Observation {
            devices: ["GPU-a", "GPU-b"].map(|uuid| device(uuid, vec![holder("old", None)])).into(),
            ..Observation::default()
        };
        let owners = resolve(&observation, known(&declared));
        assert_eq!(owners[0].holders[0].pod, PodKey::new("ai", "new"));
        assert_eq!(owners[0].holders[0].share, Some(0.5));
        assert_eq!(owners[0].holders[0].source, HolderSource::File);
        assert_eq!(owners[1].holders[0].pod, PodKey::new("ai", "old"));
    }
    for nothing in ["{}", "# nobody yet\n"] {
        assert!(parse(nothing).unwrap().is_empty());
    }
    assert!(parse("GPU-a: []").unwrap()["GPU-a"].is_empty());
}

#[test]
fn a_broken_holders_file_is_refused_with_what_is_wrong() {
    for (text, expected) in [
        ("- a", "it is not a map; write UUID: [{namespace: …, pod: …}]"),
        ("GPU-a: {namespace: ai, pod: p}", "device GPU-a has no list of holders"),
        ("GPU-a: [{namespace: ai}]", "device GPU-a: holder 0 has no pod"),
        (
            "GPU-a: [{namespace: ai, pod: p, shar: 1}]",
            r#"device GPU-a: unknown key "shar" of a holder; did you mean "share"?"#,
        ),
        (
            "GPU-a: [{namespace: ai, pod: p, share: 1}, {namespace: ai, pod: q, share: 1}]",
            "the shares of its pods add up to 2",
        ),
        ("GPU-a: [", "write UUID:"),
        ("", "it is empty; write UUID: [{namespace: …, pod: …}], or {} for no holders at all"),
        (" \n", "it is empty"),
        ("GPU-a: []\nGPU-a: []\n", "duplicate mapping key: GPU-a"),
    ] {
        let error = parse(text).unwrap_err();
        assert!(!error.contains("DuplicateKeyPolicy"), "{error}");
        assert!(error.contains(expected), "{text}\n  said {error}\n  not  {expected}");
    }
}

#[test]
fn a_holders_file_that_is_too_large_or_no_text_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("holders.yaml");
    let refused = || HoldersFile::open(&path).err().unwrap().to_string();
    std::fs::write(&path, "ä".repeat((16 << 20) / 2 + 1)).unwrap();
    assert!(refused().ends_with("holders.yaml: more than 16777216 bytes"), "{}", refused());
    std::fs::write(&path, [0xff, 0xfe]).unwrap();
    assert!(refused().ends_with("holders.yaml: is not UTF-8"), "{}", refused());
}

#[test]
fn a_holders_file_is_read_again_and_a_broken_one_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("holders.yaml");
    assert!(HoldersFile::open(&path).is_err());
    let pod = |file: &mut HoldersFile, now| file.declared(at(now))["GPU-a"][0].pod.clone();

    std::fs::write(&path, "GPU-a: [{namespace: ai, pod: one}]").unwrap();
    let mut file = HoldersFile::open(&path).unwrap();
    assert_eq!(pod(&mut file, 0).name.as_ref(), "one");

    std::fs::write(&path, "GPU-a: [{namespace: ai, pod: second}]").unwrap();
    assert_eq!(pod(&mut file, 999).name.as_ref(), "one", "looked at once a second");
    assert_eq!(pod(&mut file, 1_000).name.as_ref(), "one", "it may not be all there yet");
    assert_eq!(pod(&mut file, 1_250).name.as_ref(), "second");

    std::fs::write(&path, "nonsense").unwrap();
    let (_, log) = logged(|| {
        for now in [2_250, 2_500, 3_500, 3_750, 4_750] {
            assert_eq!(pod(&mut file, now).name.as_ref(), "second");
        }
    });
    assert_eq!(log.lines().count(), 1, "{log}");
    assert!(log.contains("holders file is broken, keeping what it said before"), "{log}");

    std::fs::write(&path, "GPU-a: [{namespace: ai, pod: fourth}]").unwrap();
    pod(&mut file, 6_000);
    assert_eq!(pod(&mut file, 6_250).name.as_ref(), "fourth");
}

#[test]
fn a_holders_file_that_is_being_saved_in_place_drops_no_holder() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("holders.yaml");
    let write = |text: &str| std::fs::write(&path, text).unwrap();
    let both = "GPU-a: [{namespace: ai, pod: one}]\nGPU-b: [{namespace: ai, pod: two}]\n";
    write(both);
    let mut file = HoldersFile::open(&path).unwrap();
    let mut pods = |now| {
        let declared = file.declared(at(now));
        ["GPU-a", "GPU-b"].map(|uuid| declared.get(uuid).map(|holders| holders[0].pod.name.clone()))
    };
    let all = pods(0);
    assert!(all.iter().all(Option::is_some));
    let (_, log) = logged(|| {
        // Truncated, half there, all there: each look sees another one.
        for (now, text) in [(1_000, ""), (1_250, &both[..35]), (1_500, both)] {
            write(text);
            assert_eq!(pods(now), all, "{text:?}");
        }
        pods(1_750);
    });
    assert!(!log.contains("broken"), "{log}");
    // One that stays empty is broken, and one that is gone is too.
    let (_, log) = logged(|| {
        write("");
        for now in [3_000, 3_250, 4_250] {
            assert_eq!(pods(now), all);
        }
        std::fs::remove_file(&path).unwrap();
        for now in [5_500, 5_750, 6_750, 7_000] {
            assert_eq!(pods(now), all);
        }
    });
    assert_eq!(log.matches("keeping what it said before").count(), 2, "{log}");
    assert!(log.contains("it is empty; write"), "{log}");
    write("{}");
    pods(8_000);
    assert_eq!(pods(8_250), [None, None], "so much for it");
}
