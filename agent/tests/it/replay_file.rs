//! A recording as a file: when lines take effect, while it grows, shrinks and ends.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::PathBuf;

use agent::device::replay::{Replay, ReplayEnd};
use agent::device::{DeviceSource as _, Observation};
use shared::metric::Metric;
use tempfile::TempDir;

use crate::support::{at, logged};

struct Recording {
    _folder: TempDir,
    path: PathBuf,
}

impl Recording {
    fn new(text: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("recording.jsonl");
        fs::write(&path, text).unwrap();
        Self { _folder: folder, path }
    }

    fn append(&self, text: &str) {
        let mut file = OpenOptions::new().append(true).open(&self.path).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }

    fn replay(&self, end: ReplayEnd) -> Replay {
        Replay::open(&self.path, end).unwrap()
    }
}

fn line(at_ms: i64, utilization: u32) -> String {
    format!(
        "{{\"at_ms\":{at_ms},\"devices\":[{{\"uuid\":\"GPU-a\",\"gpu_utilization\":{utilization}}}]}}\n"
    )
}

fn seen(observation: &Observation) -> Option<f64> {
    let device = observation.devices.first()?;
    device.readings.value(Metric::GpuUtilization)
}

fn observe(replay: &mut Replay, millis: i64) -> Option<f64> {
    seen(&replay.observe(at(millis)))
}

#[test]
fn lines_take_effect_after_the_first_one_by_their_own_clock() {
    let recording = Recording::new(&(line(5_000, 1) + &line(5_500, 2) + &line(6_000, 3)));
    let mut replay = recording.replay(ReplayEnd::Hold);
    for (now, expected) in
        [(70_000, 1.0), (70_499, 1.0), (70_500, 2.0), (71_100, 3.0), (99_000, 3.0)]
    {
        assert_eq!(observe(&mut replay, now), Some(expected), "{now}");
    }
    assert!(!replay.finished().unwrap());
}

#[test]
fn due_lines_apply_at_once_in_the_files_order_even_if_time_goes_backwards() {
    let recording = Recording::new(&(line(0, 1) + &line(0, 2) + &line(900, 3) + &line(-400, 4)));
    let mut replay = recording.replay(ReplayEnd::Hold);
    assert_eq!(observe(&mut replay, 0), Some(2.0));
    assert_eq!(observe(&mut replay, 899), Some(2.0));
    assert_eq!(observe(&mut replay, 900), Some(4.0));
}

#[test]
fn a_growing_file_is_followed_and_a_half_written_line_waits_for_its_rest() {
    let recording = Recording::new("");
    let mut replay = recording.replay(ReplayEnd::Hold);
    let first = replay.observe(at(0));
    assert!(first.reason.unwrap().ends_with("recording.jsonl names the line"));
    recording.append(&line(0, 1));
    assert_eq!(observe(&mut replay, 500), Some(1.0));
    let next = line(700, 2);
    let (head, tail) = next.split_at(20);
    recording.append(head);
    assert_eq!(observe(&mut replay, 1_000), Some(1.0));
    recording.append(tail);
    assert_eq!(observe(&mut replay, 1_500), Some(2.0));
}

#[test]
fn a_whole_last_line_counts_without_its_newline_and_only_once() {
    let recording = Recording::new(line(0, 1).trim_end());
    let mut replay = recording.replay(ReplayEnd::Hold);
    assert_eq!(observe(&mut replay, 0), Some(1.0));
    let (_, log) = logged(|| {
        recording.append(&format!("\n\n{}", line(100, 2)));
        assert_eq!(observe(&mut replay, 200), Some(2.0));
    });
    assert_eq!(log, "");
}

#[test]
fn a_broken_line_is_named_with_its_number_and_changes_nothing() {
    let long = "x".repeat(3 << 20);
    let text = line(0, 1) + "nonsense\n" + "\n" + &long + "\n" + &line(50, 2);
    let recording = Recording::new(&text);
    let mut replay = recording.replay(ReplayEnd::Hold);
    let (value, log) = logged(|| observe(&mut replay, 0));
    assert_eq!(value, Some(1.0));
    assert_eq!(log.lines().count(), 2, "{log}");
    assert!(log.contains("line=2 error=\"not JSON"), "{log}");
    assert!(log.contains("line=4 error=\"more than 1048576 bytes"), "{log}");
    assert_eq!(observe(&mut replay, 50), Some(2.0));
}

#[test]
fn an_unknown_key_is_named_once() {
    let strange = |at_ms| format!("{{\"at_ms\":{at_ms},\"colour\":1}}\n");
    let recording = Recording::new(&(strange(0) + &strange(1) + &strange(2)));
    let mut replay = recording.replay(ReplayEnd::Hold);
    let (_, log) = logged(|| replay.observe(at(0)));
    let (_, more) = logged(|| replay.observe(at(2)));
    assert!(log.contains("unknown key \"colour\" of a line; it is ignored"), "{log}");
    assert!(log.contains("line=1"), "{log}");
    assert_eq!(log.lines().count() + more.lines().count(), 1, "{more}");
}

#[test]
fn a_file_that_shrank_or_was_replaced_is_read_from_its_beginning() {
    let recording = Recording::new(&(line(0, 1) + &line(1, 2)));
    let mut replay = recording.replay(ReplayEnd::Hold);
    assert_eq!(observe(&mut replay, 1), Some(1.0));
    assert_eq!(observe(&mut replay, 2), Some(2.0));

    File::create(&recording.path).unwrap();
    let (value, log) = logged(|| observe(&mut replay, 1_000));
    assert_eq!(value, Some(2.0), "the state is kept until a line applies");
    assert!(log.contains("reading it from its beginning"), "{log}");
    recording.append(&line(77, 3));
    assert_eq!(observe(&mut replay, 2_000), Some(3.0));

    let other = recording.path.with_extension("new");
    fs::write(&other, line(9_000, 4) + &line(9_010, 5)).unwrap();
    fs::rename(&other, &recording.path).unwrap();
    assert_eq!(observe(&mut replay, 3_000), Some(4.0));
    assert_eq!(observe(&mut replay, 3_010), Some(5.0));
}

#[test]
fn a_rewrite_of_the_same_length_or_longer_is_noticed() {
    let recording = Recording::new(&line(0, 10));
    let mut replay = recording.replay(ReplayEnd::Hold);
    assert_eq!(observe(&mut replay, 0), Some(10.0));
    fs::write(&recording.path, line(0, 20)).unwrap();
    assert_eq!(observe(&mut replay, 500), Some(20.0));
    fs::write(&recording.path, line(0, 30) + &line(100, 40)).unwrap();
    assert_eq!(observe(&mut replay, 1_000), Some(30.0));
    assert_eq!(observe(&mut replay, 1_100), Some(40.0));
}

#[test]
fn a_file_that_goes_away_leaves_the_last_state_and_one_line_in_the_log() {
    let recording = Recording::new(&line(0, 1));
    let mut replay = recording.replay(ReplayEnd::Hold);
    assert_eq!(observe(&mut replay, 0), Some(1.0));
    fs::remove_file(&recording.path).unwrap();
    let (_, log) = logged(|| {
        assert_eq!(observe(&mut replay, 500), Some(1.0));
        assert_eq!(observe(&mut replay, 1_000), Some(1.0));
    });
    assert_eq!(log.lines().count(), 1, "{log}");
    fs::write(&recording.path, line(0, 2)).unwrap();
    assert_eq!(observe(&mut replay, 1_500), Some(2.0));
}

#[test]
fn a_loop_lets_the_last_line_stand_as_long_as_the_step_before_it() {
    let recording = Recording::new(&(line(0, 1) + "broken\n" + &line(1_000, 2)));
    let mut replay = recording.replay(ReplayEnd::Loop);
    let (_, log) = logged(|| {
        for (now, expected) in [
            (0, 1.0),
            (500, 1.0),
            (1_000, 2.0),
            (1_500, 2.0),
            (2_000, 1.0),
            (2_500, 1.0),
            (3_000, 2.0),
            (3_500, 2.0),
            (4_000, 1.0),
        ] {
            assert_eq!(observe(&mut replay, now), Some(expected), "{now}");
        }
    });
    assert_eq!(log.lines().count(), 1, "broken lines are named in the first pass: {log}");
    assert!(!replay.finished().unwrap());
}

#[test]
fn exit_ends_once_the_last_line_stood_for_one_observation() {
    let recording = Recording::new(&(line(0, 1) + &line(300, 2) + "{\"at_ms\":"));
    let mut replay = recording.replay(ReplayEnd::Exit);
    assert_eq!(observe(&mut replay, 0), Some(1.0));
    assert_eq!(observe(&mut replay, 300), Some(2.0));
    assert!(!replay.finished().unwrap());
    let (value, log) = logged(|| observe(&mut replay, 600));
    assert_eq!(value, Some(2.0));
    assert!(replay.finished().unwrap());
    assert!(log.contains("line=3 error=\"the file ends within the line\""), "{log}");
}

#[test]
fn what_is_not_a_regular_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    assert!(Replay::open(folder.path(), ReplayEnd::Hold).is_err());
    assert!(Replay::open(&folder.path().join("none"), ReplayEnd::Hold).is_err());
}
