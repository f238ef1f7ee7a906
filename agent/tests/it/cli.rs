//! Flags, and the sentences of an agent that cannot start.

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use agent::config::{Cli, Command as Asked, RunConfig};
use agent::device::SourceSpec;
use clap::Parser as _;

fn run(args: &[&str]) -> Output {
    let mut agent = Command::new(env!("CARGO_BIN_EXE_gpu-agent"));
    agent.env_clear().args(args).output().unwrap()
}

fn parsed(args: &[&str]) -> Result<RunConfig, String> {
    let args = ["gpu-agent", "run"].iter().chain(args);
    let cli = Cli::try_parse_from(args).map_err(|error| error.to_string())?;
    let Asked::Run(args) = cli.command else { panic!("run was asked for") };
    args.resolve().map_err(|error| error.to_string())
}

#[test]
fn flags_become_a_config_with_the_defaults_of_the_design() {
    let config = parsed(&["--gateway", "http://gw:6001", "--node", "n"]).unwrap();
    assert_eq!(
        config,
        RunConfig::new("http://gw:6001", "n".into(), SourceSpec::Nvml { library: None })
    );
    assert_eq!(config.interval, Duration::from_millis(500));
    let config =
        parsed(&["--gateway", "http://a:1,http://b:2", "--gateway", "http://[::1]:3"]).unwrap();
    assert_eq!(config.gateways, ["http://a:1", "http://b:2", "http://[::1]:3"]);
    assert!(!config.node.as_str().is_empty(), "the host name");
}

#[test]
fn the_kubelet_is_asked_where_the_nodes_own_gpus_are_read_or_where_told() {
    let owners = |args: &[&str]| {
        let gateway = ["--gateway", "http://gw:6001"];
        parsed(&[&gateway, args].concat()).unwrap().owners
    };
    let socket = |args: &[&str]| owners(args).kubelet_socket;
    let usual = Some("/var/lib/kubelet/pod-resources/kubelet.sock".into());
    assert_eq!(socket(&[]), usual);
    assert_eq!(socket(&["--source", "sim"]), None);
    assert_eq!(socket(&["--source", "replay:f"]), None);
    assert_eq!(socket(&["--kubelet-socket", "none"]), None);
    assert_eq!(socket(&["--holders", "f"]), None, "the file stands for it");
    assert_eq!(socket(&["--holders", "f", "--kubelet-socket", "/k"]), Some("/k".into()));
    assert_eq!(socket(&["--source", "sim", "--kubelet-socket", "/k"]), Some("/k".into()));
    let given = owners(&[
        "--gpu-resource",
        "a.com/gpu,b.com/gpu",
        "--gpu-resource",
        "c.com/gpu",
        "--proc-root",
        "/host/proc",
        "--pod-logs",
        "/var/log/pods",
    ]);
    assert_eq!(given.gpu_resources, ["a.com/gpu", "b.com/gpu", "c.com/gpu"]);
    assert_eq!(given.proc_root, Path::new("/host/proc"));
    assert_eq!(given.pod_logs.as_deref(), Some(Path::new("/var/log/pods")));
    assert_eq!(owners(&[]).proc_root, Path::new("/proc"));
}

#[test]
fn bad_flags_are_refused_with_what_would_be_right() {
    for (flag, value, expected) in [
        ("--interval", "50ms", "write a time from 100ms to 60s"),
        ("--interval", "61s", "write a time from 100ms to 60s"),
        ("--gateway", "ftp://gw:6001", "write http://HOST:PORT or https://HOST:PORT"),
        ("--gateway", "http://gw", "it has no port"),
        ("--gateway", "http://gw:1/x", "it has a path"),
        ("--gateway", "gw:6001", "it does not begin with http://"),
        ("--source", "sim:gpu=1", "did you mean \"gpus\"?"),
        ("--http-listen", "localhost:9400", "write IP:PORT, for example 127.0.0.1:9400"),
        ("--replay-end", "stop", "[possible values: hold, loop, exit]"),
    ] {
        let error = parsed(&["--gateway", "http://gw:6001", flag, value]).unwrap_err();
        assert!(error.contains(expected), "{flag} {value}\n  said {error}");
    }
}

#[test]
fn usage_is_exit_code_2_and_what_is_wrong_at_the_start_is_1() {
    let gateway = ["run", "--gateway", "http://127.0.0.1:1"];
    let with = |args: &[&str]| run(&[&gateway, args].concat());
    for (output, code, expected) in [
        (run(&["run"]), 2, "--gateway <URL>"),
        (with(&["--colour"]), 2, "unexpected argument"),
        (run(&["explain", "ai/vllm"]), 2, "explain is a command of gpu-gateway"),
        (run(&["shew"]), 2, "unrecognized subcommand"),
        (run(&["doctor", "--source", "sim:gpus=1", "-o", "table"]), 0, ""),
        (
            run(&["top", "--from", "http://localhost:9400"]),
            2,
            "it does not name an IP address and a port; write http://IP:PORT, for example \
             http://127.0.0.1:9400",
        ),
        (with(&["--source", "replay:/none"]), 1, "gpu-agent: source /none: No such file"),
        (
            with(&["--source", "sim", "--holders", "/none"]),
            1,
            "gpu-agent: holders file /none: No such file",
        ),
    ] {
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.contains(expected), "{said}");
    }
}

#[test]
fn the_environment_stands_in_for_flags() {
    let output = Command::new(env!("CARGO_BIN_EXE_gpu-agent"))
        .arg("run")
        .env_clear()
        .env("GPU_AGENT_GATEWAY", "http://127.0.0.1:1")
        .env("GPU_AGENT_SOURCE", "replay:/none")
        .env("NODE_NAME", "n")
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("source /none"), "{said}");
}

#[test]
fn version_prints_the_version_of_the_build() {
    let output = run(&["--version"]);
    let expected = format!("gpu-agent {}\n", shared::process::BUILD);
    assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
}
