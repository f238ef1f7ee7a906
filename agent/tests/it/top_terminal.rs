//! `top` in a real pseudo-terminal: what is on its screen, keys, sizes, and the terminal afterwards.

use std::fs;
use std::io::{IsTerminal as _, Write as _};

use serde_json::{Value, json};

use crate::process::{agent, ended, golden};
use crate::terminal::Terminal;

const NODE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/golden/node.jsonl");
const ENTER_SCREEN: &[u8] = b"\x1b[?1049h";
const LEAVE_SCREEN: &[u8] = b"\x1b[?1049l";
const SHOW_CURSOR: &[u8] = b"\x1b[?25h";

fn replay() -> String {
    format!("replay:{NODE}")
}

fn top(size: (u16, u16)) -> Terminal {
    let source = replay();
    Terminal::start(&["top", "--node", "n", "--source", &source, "--interval", "100ms"], size)
}

fn has(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// The terminal is as it was, and the agent content.
#[track_caller]
fn is_given_back(terminal: &mut Terminal) {
    let status = terminal.end();
    assert!(status.success(), "{status}\n{}", terminal.text());
    assert!(has(&terminal.bytes, ENTER_SCREEN), "the other screen was used");
    assert!(has(&terminal.bytes, LEAVE_SCREEN) && has(&terminal.bytes, SHOW_CURSOR));
    let screen = terminal.screen();
    assert!(!screen.alternate_screen() && !screen.hide_cursor());
    assert_eq!(terminal.text().trim(), "", "nothing is left behind");
}

#[test]
fn every_way_out_gives_the_terminal_back() {
    for way in ["q", "\x03", "TERM", "INT", "HUP"] {
        let mut terminal = top((24, 80));
        terminal.wait_for("ai/vllm-0");
        match way.len() {
            1 => terminal.press(way),
            _ => terminal.signal(way),
        }
        is_given_back(&mut terminal);
    }
}

#[test]
fn a_terminal_that_hangs_up_ends_the_view_without_a_complaint() {
    let mut terminal = top((24, 80));
    terminal.wait_for("ai/vllm-0");
    let status = terminal.hang_up();
    assert!(status.success(), "{status}");
}

#[test]
#[ignore = "the next test runs it in a terminal of its own"]
fn panic_on_a_screen() {
    if !std::io::stdout().is_terminal() {
        return;
    }
    let mut screen = agent::local::top::terminal::Terminal::enter().unwrap();
    screen.draw(|_| ()).unwrap();
    panic!("broken in the middle of it");
}

#[test]
fn a_panic_gives_the_terminal_back_and_is_read_there() {
    let program = std::env::current_exe().unwrap();
    let args = ["--ignored", "--exact", "top_terminal::panic_on_a_screen", "--nocapture"];
    let mut terminal = Terminal::of(&program, &args, (24, 80), &[("TERM", "xterm")]);
    assert!(!terminal.end().success());
    let screen = terminal.screen();
    assert!(!screen.alternate_screen() && !screen.hide_cursor());
    assert!(has(&terminal.bytes, ENTER_SCREEN));
    let text = terminal.text();
    assert!(text.contains("broken in the middle of it"), "{text}");
}

#[test]
fn the_end_of_a_recording_ends_the_view() {
    let source = replay();
    let args = ["top", "--source", &source, "--interval", "100ms", "--replay-end", "exit"];
    let mut terminal = Terminal::start(&args, (24, 80));
    is_given_back(&mut terminal);
}

#[test]
fn what_cannot_be_read_is_a_sentence_on_the_terminal_as_it_was() {
    let mut terminal = Terminal::start(&["top", "--source", "replay:/none"], (24, 100));
    let status = terminal.end();
    assert_eq!(status.code(), Some(1));
    assert!(!has(&terminal.bytes, b"\x1b"), "no screen was opened");
    assert!(terminal.text().starts_with("gpu-agent: "), "{}", terminal.text());
}

#[test]
fn keys_sort_filter_select_explain_pause_and_help() {
    let mut terminal = top((30, 120));
    let text = terminal.wait_for("GPU 4");
    let order = |text: &str| {
        let places = ["GPU 0", "GPU 1", "GPU 4"].map(|name| text.find(name));
        places.map(|place| place.unwrap_or(usize::MAX))
    };
    let [first, second, last] = order(&text);
    assert!(first < second && second < last, "{text}");

    terminal.press("ur");
    let text = terminal.wait_for("sort: utilisation reversed");
    let [first, second, last] = order(&text);
    assert!(last < second && second < first, "{text}");
    let failed = text.find("GPU 3").unwrap();
    assert!(failed > first, "what is not known is last in either order\n{text}");
    terminal.press("i");
    terminal.wait_for("sort: index ·");

    terminal.press("/vllm");
    terminal.wait_for("filter: vllm_");
    let text = terminal.wait("others are there", |text| !text.contains("GPU 4"));
    assert!(text.contains("GPU 0") && text.contains("ai/vllm-0"), "{text}");
    terminal.press("\r");
    terminal.wait_for("filter: vllm ·");
    terminal.press("j\r");
    let text = terminal.wait_for("engine of ai/vllm-0");
    assert!(text.contains("queue_wait_ms") && text.contains("250 ms"), "{text}");
    assert!(text.contains("written in the recording"), "{text}");
    terminal.press("\x1b");
    terminal.wait("the detail is open", |text| !text.contains("engine of"));
    terminal.press("\x1b");
    terminal.wait_for("GPU 4");

    terminal.press("h");
    terminal.wait_for("the share is a guess");
    terminal.press("h");
    terminal.wait_for("GPU 4");
    terminal.press(" ");
    terminal.wait_for("PAUSED");
    terminal.press(" ");
    terminal.wait("still paused", |text| !text.contains("PAUSED"));
    terminal.press("xyz\x1b[A\x1b[1;5B\u{7f}");
    terminal.press("q");
    is_given_back(&mut terminal);
}

#[test]
fn the_selected_row_is_marked_by_more_than_a_colour() {
    let mut terminal = top((24, 80));
    let text = terminal.wait_for("ai/vllm-0");
    assert!(text.lines().any(|line| line.starts_with("> GPU 0")), "{text}");
    terminal.press("\x1b[B");
    let is_next = |line: &str| line.starts_with("> └ ai/vllm-0");
    terminal.wait("not selected", |text| text.lines().any(is_next));
    terminal.press("\x1b[F");
    let text =
        terminal.wait("not the last", |text| text.lines().any(|line| line.starts_with("> GPU 4")));
    assert_eq!(text.matches("\n>").count(), 1, "{text}");
}

fn device(index: usize, utilization: Value) -> Value {
    json!({
        "uuid": format!("GPU-{index:08}"), "index": index, "name": "NVIDIA H200",
        "memory_total_mib": 1000, "memory_used_mib": 10 * index, "gpu_utilization": utilization,
        "holders": [{"namespace": "ai", "pod": format!("pod-{index}"), "share": 1}],
    })
}

fn recording(lines: &[Value]) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("node.jsonl");
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    fs::write(&path, text).unwrap();
    let source = format!("replay:{}", path.display());
    (folder, source)
}

#[test]
fn what_changes_is_shown_unless_paused() {
    let (folder, source) = recording(&[json!({"at_ms": 0, "devices": [device(0, json!(11))]})]);
    let args = ["top", "--source", &source, "--interval", "100ms"];
    let mut terminal = Terminal::start(&args, (24, 100));
    terminal.wait_for(" 11 ");
    let append = |line: Value| {
        let path = folder.path().join("node.jsonl");
        let mut file = fs::OpenOptions::new().append(true).open(path).unwrap();
        writeln!(file, "{line}").unwrap();
    };
    append(json!({"at_ms": 1, "devices": [device(0, json!(77)), device(1, json!(5))]}));
    terminal.wait_for(" 77 ");
    terminal.wait_for("GPU 1");
    terminal.press(" ");
    terminal.wait_for("PAUSED");
    append(json!({"at_ms": 2, "devices": [device(0, Value::Null)]}));
    // The help page comes with a later frame; behind it the old one stands still.
    terminal.press("h");
    terminal.wait_for("KEYS");
    terminal.press("h");
    let text = terminal.wait_for("GPU 1");
    assert!(text.contains(" 77 "), "{text}");
    terminal.press(" ");
    let text = terminal.wait("GPU 1 is there", |text| !text.contains("GPU 1"));
    assert!(text.contains(" ! "), "{text}");
}

#[test]
fn every_size_is_drawn_and_a_new_one_is_taken_at_once() {
    let mut terminal = top((24, 80));
    terminal.wait_for("ai/vllm-0");
    terminal.resize((40, 160));
    let text = terminal.wait_for("TTFT ms");
    assert!(text.contains("q quit"), "{text}");
    for size in [(1, 1), (2, 3), (1, 200), (60, 1), (5, 40), (3, 20), (24, 300)] {
        terminal.resize(size);
        terminal.press("jhd[]dh");
    }
    terminal.resize((12, 40));
    // What was under way for the size before may still arrive.
    terminal.wait("too wide", |text| {
        text.contains("UTIL%") && text.lines().all(|line| line.chars().count() <= 40)
    });
    terminal.press("q");
    is_given_back(&mut terminal);
}

#[test]
fn a_terminal_of_one_cell_can_be_quit() {
    let mut terminal = top((1, 1));
    terminal.wait("nothing drawn", |text| !text.trim().is_empty());
    terminal.press("q");
    let status = terminal.end();
    assert!(status.success(), "{status}");
}

#[test]
fn many_instances_are_scrolled_through() {
    let mut devices: Vec<_> = (0..8).map(|index| device(index, Value::Null)).collect();
    for gpu in 0..8 {
        for slot in 0..14 {
            devices.push(json!({
                "uuid": format!("MIG-{gpu}-{slot}"), "index": 100 * (gpu + 1) + slot,
                "name": "NVIDIA H200", "gpu_utilization": slot,
                "mig": {"parent": format!("GPU-{gpu:08}"), "profile": "1g.18gb"},
                "holders": [{"namespace": "ai", "pod": format!("mig-{gpu}-{slot}"), "share": 1}],
            }));
        }
    }
    let (_folder, source) = recording(&[json!({"at_ms": 0, "devices": devices})]);
    let mut terminal = Terminal::start(&["top", "--source", &source], (24, 100));
    let text = terminal.wait_for("8 GPUs · 112 MIG");
    assert!(text.contains("GPU 0") && text.contains("MIG 100 1g.18gb"), "{text}");
    terminal.press("\x1b[F");
    let text = terminal.wait_for("ai/mig-7-13");
    assert!(text.contains(" 0 below"), "{text}");
    terminal.press("\x1b[5~\x1b[5~");
    terminal.wait("still the end", |text| !text.contains("ai/mig-7-13"));
    terminal.press("\x1b[H");
    terminal.wait_for("> GPU 0");
    terminal.press("/mig-3-5\r");
    let text = terminal.wait("the others are there", |text| !text.contains("GPU 0"));
    assert!(
        text.contains("GPU 3") && text.contains("MIG 405") && text.contains("ai/mig-3-5"),
        "{text}"
    );
}

#[test]
fn hostile_names_stay_in_their_cells() {
    let evil = "\u{1b}[2J\u{1b}]0;owned\u{7}\r\n\u{202e}drawkcab\u{200b}語語\u{301}\u{9b}31m";
    let long = "語".repeat(80);
    let mut device = device(0, json!(42));
    device["name"] = json!(evil);
    device["reason"] = json!(evil);
    device["holders"] = json!([
        {"namespace": evil, "pod": evil, "container": evil, "share": 0.5},
        {"namespace": "ai", "pod": long, "share": 0.25},
    ]);
    let engines = json!([{"namespace": evil, "pod": evil, "metrics": {"requests_waiting": 7}}]);
    let (_folder, source) =
        recording(&[json!({"at_ms": 0, "devices": [device], "engines": engines})]);
    for width in [40, 80, 120] {
        let args = ["top", "--source", &source, "--node", evil, "--interval", "100ms"];
        let mut terminal = Terminal::start(&args, (30, width));
        terminal.wait_for("GPU 0");
        terminal.press("d");
        let text = terminal.wait_for("selected");
        assert!(text.contains("語"), "{text}");
        // The emulator leaves out what stands for the rest.
        assert!(String::from_utf8_lossy(&terminal.bytes).contains('\u{fffd}'));
        assert!(!has(&terminal.bytes, b"\x1b]") && !has(&terminal.bytes, b"owned\x07"));
        for line in text.lines() {
            let cells: usize = line.chars().map(|c| if c == '語' { 2 } else { 1 }).sum();
            assert!(cells <= width.into(), "{width}: {line:?}");
        }
        terminal.press("q");
        is_given_back(&mut terminal);
    }
    let (text, _) = ended(0, &mut agent(["top", "--once", "--source", &source, "--node", evil]));
    assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text:?}");
}

#[test]
fn no_colour_where_it_is_not_wanted_and_no_escape_where_it_is_not_understood() {
    let source = replay();
    let args = ["top", "--source", &source, "--interval", "100ms"];
    let coloured = |environment: &[(&str, &str)]| {
        let mut terminal = Terminal::with(&args, (24, 80), environment);
        terminal.wait_for("GPU is lost");
        terminal.press("q");
        terminal.end();
        let text = String::from_utf8_lossy(&terminal.bytes).into_owned();
        text.contains("\x1b[38;5;1")
    };
    assert!(coloured(&[("TERM", "xterm-256color")]));
    assert!(!coloured(&[("TERM", "xterm-256color"), ("NO_COLOR", "1")]));
    for (args, environment) in [
        (&args[..], ("TERM", "dumb")),
        (&["top", "--once", "--source", &source][..], ("TERM", "xterm")),
    ] {
        let mut terminal = Terminal::with(args, (40, 80), &[environment]);
        terminal.wait_for("GPU is lost");
        terminal.signal("TERM");
        terminal.end();
        assert!(!has(&terminal.bytes, b"\x1b"), "{:?}", String::from_utf8_lossy(&terminal.bytes));
    }
}

#[test]
fn a_frame_is_as_wide_as_its_terminal_and_120_columns_elsewhere() {
    let source = replay();
    let once = ["top", "--once", "--node", "n", "--source", &source];
    let (text, _) = ended(0, &mut agent(once));
    golden("top-120.txt", &text);
    for width in [40, 80, 200] {
        let mut terminal = Terminal::start(&once, (50, width));
        assert!(terminal.end().success());
        let text = terminal.text();
        golden(&format!("top-{width}.txt"), &(text.trim_end().to_owned() + "\n"));
    }
}
