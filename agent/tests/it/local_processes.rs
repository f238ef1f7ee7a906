//! The agent alone, as a process: every subcommand with no gateway, kubelet or GPU.

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead as _, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use shared::process::{COMMIT, VERSION};

use crate::process::{Running, agent, ended, get, golden};

const NODE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/golden/node.jsonl");
const SIMULATED: &str = "sim:gpus=2,pods=ai/p,noise=5";

fn replay() -> String {
    format!("replay:{NODE}")
}

fn snapshot(form: &str) -> Command {
    agent(["snapshot", "--source", &replay(), "-o", form])
}

/// The uplink says what `doctor` says of what is no gateway.
#[test]
fn a_port_that_is_no_gateways_is_said_with_the_one_that_would_be() {
    let args = ["serve", "--source", "sim", "--http-listen", "127.0.0.1:0"];
    let mut other = Running::start(agent(args));
    let gateway = format!("http://{}", other.http());
    let mut pushing = Running::start(agent(["run", "--source", "sim", "--gateway", &gateway]));
    let said = pushing.wait_for("no stream to the gateway");
    assert!(
        said.contains("may speak no gRPC; name the port of the gateway's --agent-listen"),
        "{said}"
    );
}

#[test]
fn a_snapshot_is_printed_in_three_forms() {
    let (table, _) = ended(0, &mut snapshot("table"));
    golden("table.txt", &table);
    let (json, _) = ended(0, &mut snapshot("json"));
    golden("line.json", &json);
    let (prometheus, _) = ended(0, &mut snapshot("prometheus"));
    let build = format!("version=\"{VERSION}\",commit=\"{COMMIT}\"");
    golden("metrics.prom", &prometheus.replace(&build, "version=\"VERSION\",commit=\"COMMIT\""));
    lint(&prometheus);
    let (plain, _) = ended(0, &mut agent(["snapshot", "--source", &replay()]));
    assert_eq!(plain, table, "the table is what people get unasked");
}

/// Whether promtool, where it is installed, has nothing to say.
fn lint(text: &str) {
    let mut promtool = Command::new("promtool");
    promtool.args(["check", "metrics"]).stdin(Stdio::piped()).stderr(Stdio::piped());
    let Ok(mut promtool) = promtool.stdout(Stdio::piped()).spawn() else {
        eprintln!("promtool is not installed, the text goes unchecked");
        return;
    };
    promtool.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = promtool.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].map(|said| String::from_utf8(said).unwrap());
    assert!(output.status.success() && said == ["", ""], "{said:?}");
}

#[test]
fn a_snapshot_of_a_snapshot_is_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("copy.jsonl");
    let (first, _) = ended(0, &mut snapshot("json"));
    fs::write(&copy, &first).unwrap();
    let source = format!("replay:{}", copy.display());
    let (second, log) = ended(0, &mut agent(["snapshot", "-o", "json", "--source", &source]));
    assert_eq!(second, first);
    assert_eq!(log, "", "the reader knows every key");
}

#[test]
fn holders_of_a_file_are_shown_by_every_subcommand() {
    let folder = tempfile::tempdir().unwrap();
    let holders = folder.path().join("holders.yaml");
    let (line, _) =
        ended(0, &mut agent(["snapshot", "-o", "json", "--source", SIMULATED, "--node", "n"]));
    let uuid = line.split('"').find(|word| word.starts_with("GPU-")).unwrap();
    fs::write(&holders, format!("{uuid}: [{{namespace: ml, pod: declared}}]\n")).unwrap();
    let holders = holders.display().to_string();
    let read = ["--source", SIMULATED, "--node", "n", "--holders", &holders];
    for (command, held) in [
        (&["snapshot"][..], "ml/declared 100 %"),
        (&["top", "--once"], "ml/declared         100% file"),
    ] {
        let (table, _) = ended(0, &mut agent(command.iter().chain(&read)));
        assert!(table.contains(held), "{table}");
    }
}

#[test]
fn nothing_to_show_is_one_sentence_and_exit_code_1_and_bad_flags_are_2() {
    let folder = tempfile::tempdir().unwrap();
    let empty = folder.path().join("empty.jsonl");
    fs::write(&empty, "").unwrap();
    let source = format!("replay:{}", empty.display());
    let recording = folder.path().join("recording.jsonl");
    let file = recording.display().to_string();
    let serve = ["serve", "--http-listen", "127.0.0.1:0"];
    for command in [&["snapshot"][..], &["top"], &["top", "--once"], &serve, &["record", &file]] {
        let (printed, log) = ended(1, agent(command).args(["--source", &source]));
        let expected = format!(
            "gpu-agent: {0}: no valid line yet; gpu-agent doctor --source replay:{0} names the line\n",
            empty.display()
        );
        assert_eq!((printed.as_str(), log.as_str()), ("", expected.as_str()), "{command:?}");
    }
    assert!(!recording.exists(), "no file is left where nothing was recorded");
    for command in [
        &["snapshot", "-o", "yaml"][..],
        &["record"],
        &["record", "f", "--for", "0s"],
        &["serve", "--http-listen", "9400"],
        &["top", "--interval", "1ms"],
    ] {
        ended(2, &mut agent(command));
    }
}

#[test]
fn flags_have_environment_variables() {
    let mut command = agent(["snapshot"]);
    command.env("GPU_AGENT_SOURCE", replay()).env("GPU_AGENT_SNAPSHOT_OUTPUT", "json");
    golden("line.json", &ended(0, &mut command).0);
}

fn serving(args: &[&str]) -> (Running, String) {
    let mut running = Running::start(agent(args));
    let address = running.http();
    (running, address)
}

#[test]
fn the_local_pages_are_served_with_no_gateway() {
    let source = replay();
    let (mut agent, address) =
        serving(&["serve", "--source", &source, "--http-listen", "127.0.0.1:0"]);
    let (head, line) = get(&address, "/api/v1/devices");
    assert!(head.starts_with("HTTP/1.1 200") && head.contains("application/json"), "{head}");
    golden("line.json", &line);
    let (head, metrics) = get(&address, "/metrics");
    assert!(head.contains("text/plain; version=0.0.4"), "{head}");
    assert!(metrics.contains("gpu_agent_utilization_ratio{gpu_uuid=\"GPU-5a1c"), "{metrics}");
    lint(&metrics);
    let (head, health) = get(&address, "/healthz");
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    let lost = "GPU-77000000-0000-0000-0000-000000000003: GPU is lost\n";
    assert_eq!(health, format!("ok\n{lost}"));
    assert!(get(&address, "/none").0.starts_with("HTTP/1.1 404"));
    assert!(get(&address, "/").1.contains("/api/v1/devices"));

    // A client that says nothing does not keep it from ending.
    let _idle = TcpStream::connect(&address).unwrap();
    agent.signal("TERM");
    let (status, log) = agent.end();
    assert!(status.success(), "{status}\n{log}");
}

#[test]
fn the_local_pages_end_with_a_recording_that_is_not_to_be_held() {
    let source = replay();
    let serve = ["serve", "--source", &source, "--replay-end", "exit", "--interval", "100ms"];
    let (_, log) = ended(0, agent(serve).args(["--http-listen", "127.0.0.1:0"]));
    assert!(log.contains("the source has finished"), "{log}");
}

#[test]
fn an_agent_that_pushes_serves_its_pages_too_when_told() {
    let gateway = ["run", "--gateway", "http://127.0.0.1:1", "--source", SIMULATED];
    let (mut agent, address) = serving(&[&gateway[..], &["--http-listen", "127.0.0.1:0"]].concat());
    let (head, _) = get(&address, "/healthz");
    assert!(head.starts_with("HTTP/1.1 200") || head.starts_with("HTTP/1.1 503"), "{head}");
    agent.wait_for("no stream to the gateway");
    // Its pages are there before its first frame is.
    while get(&address, "/healthz").0.starts_with("HTTP/1.1 503") {
        std::thread::yield_now();
    }
    assert!(get(&address, "/api/v1/devices").1.contains("\"uuid\":\"GPU-"));
    agent.signal("INT");
    let (status, log) = agent.end();
    assert!(status.success(), "{status}\n{log}");
}

#[test]
fn a_port_that_is_taken_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let (_, log) = ended(1, &mut agent(["serve", "--source", "sim", "--http-listen", &address]));
    assert!(log.contains(&format!("gpu-agent: --http-listen {address}: Address already in use")));
}

fn record(file: &Path, args: &[&str]) -> Command {
    let mut command =
        agent(["record", "--source", SIMULATED, "--node", "n", "--interval", "100ms"]);
    command.args(args).arg(file);
    command
}

fn lines(file: &Path) -> Vec<serde_json::Value> {
    let text = fs::read_to_string(file).unwrap();
    assert!(text.ends_with('\n'), "every line is whole");
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_recording_has_a_line_per_tick_and_ends_when_it_is_long_enough() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("recording.jsonl");
    ended(0, &mut record(&file, &["--for", "450ms"]));
    let lines = lines(&file);
    assert!((1..=5).contains(&lines.len()), "{}", lines.len());
    let times: Vec<_> = lines.iter().map(|line| line["at_ms"].as_u64().unwrap()).collect();
    assert!(times[0] == 0 && times.is_sorted() && times.iter().all(|at| *at < 450), "{times:?}");

    let (_, log) = ended(1, &mut record(&file, &[]));
    assert!(log.contains("there is a file of") && log.contains("--force"), "{log}");
    ended(0, &mut record(&file, &["--for", "1ms", "--force"]));
    assert_eq!(self::lines(&file).len(), 1);
    let source = format!("replay:{}", file.display());
    ended(0, &mut agent(["doctor", "--source", &source]));
}

#[test]
fn a_recording_ends_on_time_between_two_frames() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("recording.jsonl");
    let mut command = agent(["record", "--source", SIMULATED, "--interval", "60s"]);
    command.args(["--for", "100ms"]).arg(&file);
    // The next frame would be later than the test's patience.
    let (status, log) = Running::start(command).end();
    assert!(status.success(), "{status}\n{log}");
    assert_eq!(lines(&file).len(), 1);
}

#[test]
fn a_recording_does_not_overwrite_what_it_reads() {
    let folder = tempfile::tempdir().unwrap();
    let [file, link] = ["recording.jsonl", "link.jsonl"].map(|name| folder.path().join(name));
    let holders = folder.path().join("holders.yaml");
    let text = fs::read_to_string(NODE).unwrap();
    fs::write(&file, &text).unwrap();
    fs::write(&holders, "{}").unwrap();
    std::os::unix::fs::symlink(&file, &link).unwrap();
    let source = format!("replay:{}", file.display());
    for written in [&file, &link, &holders] {
        let mut command = agent(["record", "--force", "--source", &source, "--holders"]);
        let (_, log) = ended(1, command.arg(&holders).arg(written).args(["--for", "1ms"]));
        let written = written.display();
        let expected = format!(
            "gpu-agent: recording {written}: it is read from; name another file to write\n"
        );
        assert_eq!(log, expected);
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), text, "nothing of it is lost");
}

fn pipe(folder: &Path) -> PathBuf {
    let pipe = folder.join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    pipe
}

/// Ended by the test's patience, should it not end by itself.
fn said(code: i32, command: Command) -> String {
    let (status, log) = Running::start(command).end();
    assert_eq!(status.code(), Some(code), "{log}");
    log
}

#[test]
fn what_may_never_end_is_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let (pipe, link) = (pipe(folder.path()), folder.path().join("link"));
    std::os::unix::fs::symlink("/dev/zero", &link).unwrap();
    for file in [&*pipe, &link, Path::new("/dev/zero"), folder.path()] {
        let file = file.display();
        let replay = format!("replay:{file}");
        let shape = format!("sim:shape=file:{file}");
        for source in [&replay, &shape] {
            let log = said(1, agent(["snapshot", "--source", source]));
            assert!(log.contains(&format!("{file}: is no regular file")), "{log}");
        }
        let held = ["snapshot", "--source", SIMULATED, "--holders", &file.to_string()];
        let log = said(1, agent(held));
        assert!(log.contains(&format!("holders file {file}: is no regular file")), "{log}");
        let (report, _) = ended(1, &mut agent(["doctor", "--source", &replay]));
        let expected = format!("{file}: is no regular file\n\nnext: ls -l {file}\n");
        assert!(report.ends_with(&expected), "{report}");
    }
}

#[test]
fn a_recording_waits_for_no_reader() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = pipe(folder.path());
    let log = said(1, record(&pipe, &["--for", "1ms"]));
    assert!(log.contains("is no regular file, but a pipe that nobody reads"), "{log}");
    let log = said(1, record(folder.path(), &["--for", "1ms"]));
    assert!(log.contains("is no regular file"), "{log}");
    let mut reader = Command::new("cat").arg(&pipe).stdout(Stdio::piped()).spawn().unwrap();
    // The reader is there once a second writer is.
    let writer = fs::OpenOptions::new().write(true).open(&pipe).unwrap();
    ended(0, &mut record(&pipe, &["--for", "1ms"]));
    drop(writer);
    let mut read = String::new();
    reader.stdout.take().unwrap().read_to_string(&mut read).unwrap();
    reader.wait().unwrap();
    assert!(read.starts_with("{\"at_ms\":0") && read.lines().count() == 1, "{read}");
    let (printed, _) = ended(0, &mut record(Path::new("/dev/stdout"), &["--for", "1ms"]));
    assert_eq!(printed.lines().count(), 1, "{printed}");
    ended(0, &mut record(Path::new("/dev/null"), &["--for", "1ms"]));
}

#[test]
fn a_recording_ends_cleanly_when_told() {
    for signal in ["INT", "TERM"] {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("recording.jsonl");
        let mut agent = Running::start(record(&file, &[]));
        while fs::read_to_string(&file).unwrap_or_default().lines().count() < 3 {
            std::thread::yield_now();
        }
        agent.signal(signal);
        let (status, log) = agent.end();
        assert!(status.success(), "{status}\n{log}");
        assert!(log.contains("recorded"), "{log}");
        assert!(lines(&file).len() >= 3);
    }
}

#[test]
fn a_full_disk_ends_a_recording_with_a_sentence() {
    let (_, log) = ended(1, &mut record(Path::new("/dev/full"), &[]));
    let expected = "gpu-agent: recording /dev/full: No space left on device (os error 28); \
                    the 0 lines before are whole\n";
    assert_eq!(log, expected);
    let (_, log) = ended(1, &mut record(Path::new("/none/recording.jsonl"), &[]));
    assert!(log.contains("gpu-agent: recording /none/recording.jsonl: No such file"), "{log}");
}

#[test]
fn a_file_that_may_grow_no_more_keeps_whole_lines() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("recording.jsonl");
    // 4 KiB is room for two or three lines; what is more raises EFBIG.
    let limited = "trap '' XFSZ; ulimit -f 8; exec \"$0\" \"$@\"";
    let mut command = Command::new("sh");
    let agent = record(&file, &[]);
    command.args(["-c", limited]).arg(agent.get_program()).args(agent.get_args()).env_clear();
    let (_, log) = ended(1, &mut command);
    assert!(log.contains("File too large") && log.contains("lines before are whole"), "{log}");
    let said = lines(&file).len();
    assert!(said > 0 && log.contains(&format!("the {said} lines before")), "{said} {log}");
}

#[test]
fn a_frame_is_printed_every_interval_until_interrupted() {
    let source = replay();
    let args = ["top", "--source", &source, "--node", "n", "--interval", "100ms"];
    let mut top = Running::start(agent(args));
    let mut printed = top.printed();
    let mut text = String::new();
    while text.matches("ai/vllm-0").count() < 3 {
        assert!(printed.read_line(&mut text).unwrap() > 0, "{text}");
    }
    top.signal("INT");
    printed.read_to_string(&mut text).unwrap();
    let (status, log) = top.end();
    assert!(status.success(), "{status}\n{log}");
    let (once, _) = ended(0, &mut agent(args.iter().chain(&["--once"])));
    assert!(text.starts_with(&format!("{once}\n{once}\n")), "{text}");
}

#[test]
fn who_has_seen_enough_of_the_table_ends_it_without_a_complaint() {
    let mut top = Running::start(agent(["top", "--source", SIMULATED, "--interval", "100ms"]));
    drop(top.printed());
    let (status, log) = top.end();
    assert!(status.success(), "{status}\n{log}");
}

/// The doctor's report on `source`, with the folder of the test left out.
fn doctor(code: i32, source: &str, folder: &Path) -> String {
    let (printed, _) = ended(code, &mut agent(["doctor", "--source", source]));
    let (json, _) = ended(code, &mut agent(["doctor", "-o", "json", "--source", source]));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let steps = json["steps"].as_array().unwrap();
    assert_eq!(steps.last().unwrap()["good"], code == 0, "{json}");
    assert_eq!(json["next"].is_null(), code == 0, "{json}");
    printed.replace(&folder.display().to_string(), "FOLDER")
}

#[test]
fn the_doctor_checks_a_recording_and_names_its_first_broken_line() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        format!("replay:{}", path.display())
    };
    let good = r#"{"at_ms":0,"devices":[{"uuid":"GPU-a","gpu_utilization":5}]}"#;
    let lost = r#"{"at_ms":0,"devices":[{"uuid":"GPU-a","gpu_utilization":null,"reason":"GPU is lost"},{"uuid":"GPU-b","gpu_utilization":5}]}"#;
    let broken = r#"{"at_ms":5,"devices":[{"uuid":"GPU-a","gpu_utilization":500}]}"#;
    let long = " ".repeat(3 << 20);
    let mut text = String::new();
    for (name, code, source) in [
        ("all is well", 0, file("good.jsonl", &format!("{good}\n\n{good}\n"))),
        ("a broken line", 1, file("it's broken.jsonl", &format!("{good}\n{broken}\n{{\n{good}\n"))),
        ("a typo", 1, file("typo.jsonl", &good.replace("utilization", "utilisation"))),
        ("a line without end", 1, file("long.jsonl", &format!("{good}\n[{long}]\n{good}\n"))),
        ("a lost device", 1, file("lost.jsonl", lost)),
        ("a remark", 0, file("remark.jsonl", &good.replace("5}", r#"5,"reason":"XID 13"}"#))),
        ("no line", 1, file("empty.jsonl", "\n")),
        ("no file", 1, format!("replay:{}/none.jsonl", folder.path().display())),
        ("a simulation", 0, "sim:gpus=2,pods=ai/p".into()),
    ] {
        text += &format!("# {name}: exit code {code}\n{}\n", doctor(code, &source, folder.path()));
    }
    golden("doctor-files.txt", &text);
}

#[test]
fn a_broken_holders_file_is_a_sentence_everywhere() {
    let holders: PathBuf = "/none/holders.yaml".into();
    for command in ["snapshot", "doctor", "serve", "top"] {
        let args: [OsString; 5] = [
            command.into(),
            "--source".into(),
            "sim".into(),
            "--holders".into(),
            holders.clone().into(),
        ];
        let (_, log) = ended(1, &mut agent(args));
        assert!(log.starts_with("gpu-agent: holders file /none/holders.yaml:"), "{log}");
    }
}
