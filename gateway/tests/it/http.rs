//! The HTTP port and the commands that people type.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Read as _};
use std::net::SocketAddr;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::sleep;
use tonic::Code;

use crate::support::{Keda, Node, ONE_POD, TestGateway, eventually, get, gpu, refused, soon};

const DECLARED: &str = "
workloads:
  - {namespace: ai, kind: Deployment, name: vllm, replicas: 3, pods: [{name: vllm-0, ready: true, node: n1, uid: uid-0}, {name: vllm-1, ready: false}]}
  - {namespace: ai, kind: StatefulSet, name: idle, replicas: 0}
scaledObjects:
  - namespace: ai
    name: vllm-so
    target: {kind: Deployment, name: vllm}
    minReplicas: 1
    maxReplicas: 8
    triggers: [{type: external-push, metadata: {scalerAddress: 'gpu-gateway.gpu:6000', targetValue: '50'}}]
  - {namespace: ai, name: idle, target: {kind: StatefulSet, name: idle}}
  - {namespace: ai, name: homeless, target: {name: nowhere}, triggers: [{metadata: {}}]}
  - {namespace: ai, name: broken, target: {name: vllm}, triggers: [{metadata: {agregation: max}}]}
";

/// A gateway that knows [`DECLARED`], with an agent for its one ready pod.
async fn declared() -> (TestGateway, crate::support::TestAgent) {
    let gateway = TestGateway::start(DECLARED).await;
    let node = Node::new("n1")
        .with(gpu("u0", "ai/vllm-0", 40.0).uid("uid-0"))
        .with(gpu("u1", "ai/stranger", 90.0).index(1));
    let agent = gateway.agent(node).await;
    gateway.is_ready().await;
    (gateway, agent)
}

fn keys(value: &Value) -> BTreeSet<&str> {
    let object = value.as_object().expect("an object");
    object.keys().map(String::as_str).collect()
}

fn names(text: &str) -> BTreeSet<&str> {
    text.split_whitespace().collect()
}

// === Probes and metrics ===

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn probes_answer_and_unknown_paths_and_methods_do_not() {
    let (gateway, _agent) = declared().await;
    assert_eq!(gateway.get("/healthz").await, (200, "ok\n".into()));
    assert_eq!(gateway.get("/readyz").await.0, 200);
    assert_eq!(gateway.get("/").await.0, 200);
    for path in [
        "/api/v1/nothing",
        "/nothing",
        "/api/v1/scaledobjects/ai/unknown/explain",
        "/api/v1/scaledobjects/unknown/vllm-so/explain",
        "/api/v1/scaledobjects/ai/explain",
        "/api/v1/scaledobjects/ai/%2e%2e/explain",
    ] {
        let (status, error) = gateway.get(path).await;
        assert_eq!(status, 404, "{path}");
        let error: Value = serde_json::from_str(&error).unwrap();
        let error = error["error"].as_str().unwrap();
        let is_name = path.ends_with("/explain") && path.matches('/').count() == 6;
        assert!(is_name || error.contains("/api lists"), "{path}: {error}");
    }
    let listed = gateway.json("/api/v1/scaledobjects").await;
    let entry = json!({
        "namespace": "ai", "name": "vllm-so", "target": {"kind": "Deployment", "name": "vllm"}
    });
    assert!(listed.as_array().unwrap().contains(&entry), "{listed}");
    let (_, error) = gateway.get("/api/v1/scaledobjects/ai/unknown/explain").await;
    let error: Value = serde_json::from_str(&error).unwrap();
    assert!(error["error"].as_str().unwrap().contains("ai/unknown"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_are_what_prometheus_reads() {
    let (gateway, _agent) = declared().await;
    let trigger = gateway.trigger("ai/vllm-so", &[]).await;
    refused(trigger.metric("unasked").await, Code::InvalidArgument, &[]);
    trigger.value().await.unwrap();
    let (status, text) = gateway.get("/metrics").await;
    assert_eq!(status, 200);
    check_exposition(&text);
    for series in [
        "gpu_gateway_ready 1",
        "gpu_gateway_agent_sessions 1",
        "gpu_gateway_uplink_messages_total",
        "gpu_gateway_node_devices{node=\"n1\"} 2",
        "gpu_gateway_gpus_free{model=\"NVIDIA H100 80GB HBM3\"} 0",
        "gpu_gateway_trigger_value{namespace=\"ai\",scaledobject=\"vllm-so\",trigger=\"0\",metric=\"gpu_utilization\"} 140",
        "gpu_gateway_trigger_target{namespace=\"ai\",scaledobject=\"vllm-so\",trigger=\"0\",metric=\"gpu_utilization\"} 50",
        "method=\"GetMetrics\",code=\"INVALID_ARGUMENT\"",
    ] {
        assert!(text.contains(series), "{series} in {text}");
    }
    let series = text.lines().filter(|line| !line.starts_with('#')).count();
    for own in [
        format!("\ngpu_gateway_metrics_series {series}\n"),
        "\ngpu_gateway_metrics_series_left_out 0\n".into(),
        "\ngpu_gateway_nodes 1.0\n".into(),
    ] {
        assert!(text.contains(&own), "{own} in {text}");
    }
}

/// Checks the Prometheus text format: every series announced once with HELP and TYPE, together,
/// with a number, and none twice.
pub(crate) fn check_exposition(text: &str) {
    assert!(text.ends_with('\n'), "the last line ends");
    let (mut families, mut seen) = (BTreeSet::new(), BTreeSet::new());
    let mut family = "";
    for line in text.lines() {
        if let Some(announced) = line.strip_prefix("# TYPE ") {
            family = announced.split_once(' ').expect("name and type").0;
            assert!(families.insert(family), "{family} is announced twice");
            continue;
        }
        if line.starts_with("# HELP ") {
            continue;
        }
        assert!(!line.starts_with('#'), "0.0.4 knows no other comments: {line}");
        let (series, value) = line.rsplit_once(' ').expect("a series and its value");
        value.parse::<f64>().expect("a number");
        assert!(seen.insert(series), "{series} is there twice");
        let name = series.split('{').next().expect("a name");
        assert!(name.starts_with(family), "{name} under {family}");
        if let Some((_, labels)) = series.split_once('{') {
            check_labels(labels);
        }
    }
    assert!(!seen.is_empty(), "there are series");
}

/// `name="value",…}`, quotes, backslashes and line ends escaped.
fn check_labels(labels: &str) {
    let mut rest = labels.strip_suffix('}').expect("closed");
    while !rest.is_empty() {
        let (name, value) = rest.split_once("=\"").expect("name and value");
        assert!(name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'), "{labels}");
        let mut escaped = false;
        let end = value.find(|c| {
            let ends = c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            ends
        });
        rest = &value[end.expect("a closing quote") + 1..];
        rest = rest.strip_prefix(',').unwrap_or(rest);
    }
}

// === The API ===

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_pods_and_workloads_are_listed() {
    let (gateway, _agent) = declared().await;
    let nodes = gateway.json("/api/v1/nodes").await;
    let node = &nodes[0];
    assert_eq!(node["node"], "n1");
    assert!(node["ageMs"].as_u64().unwrap() < 10_000, "{node}");
    assert_eq!(node["devices"].as_array().unwrap().len(), 2);
    let device = &node["devices"][0];
    let wanted = names("uuid name state reason holders");
    assert!(keys(device).is_superset(&wanted), "{device}");
    assert_eq!(device["uuid"], "u0");
    assert_eq!(device["state"], "ok");
    assert_eq!(device["reason"], Value::Null);
    let holder = &device["holders"][0];
    let said = ["namespace", "pod", "uid", "container", "share"].map(|key| holder[key].clone());
    assert_eq!(json!(said), json!(["ai", "vllm-0", "uid-0", "main", 1.0]));
    let pods = gateway.json("/api/v1/pods").await;
    let named: Vec<_> = pods.as_array().unwrap().iter().map(|pod| &pod["name"]).collect();
    assert_eq!(json!(named), json!(["stranger", "vllm-0"]));
    let workloads = gateway.json("/api/v1/workloads").await;
    assert_eq!(
        workloads,
        json!([
            {"namespace": "ai", "kind": "Deployment", "name": "vllm", "replicas": 3, "reporting": 1},
            {"namespace": "ai", "kind": "StatefulSet", "name": "idle", "replicas": 0, "reporting": 0},
        ])
    );
}

const TRIGGER_KEYS: &str = "metric metricName metricType target value active activeSince status \
    reason warnings replicas statusReplicas coverage s up down hold hpa pods";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_explanation_has_every_figure_of_the_decision() {
    let (gateway, _agent) = declared().await;
    let path = "/api/v1/scaledobjects/ai/vllm-so/explain";
    let whole = gateway.json(path).await;
    assert_eq!(
        keys(&whole),
        names("sentences namespace name target directoryAgeSeconds startup gpusFree triggers")
    );
    assert_eq!(whole["namespace"], "ai");
    assert_eq!(whole["name"], "vllm-so");
    assert_eq!(whole["target"], json!({"kind": "Deployment", "name": "vllm"}));
    assert!(whole["directoryAgeSeconds"].is_number());
    let trigger = gateway.explain("ai/vllm-so").await;
    assert_eq!(keys(&trigger), names(TRIGGER_KEYS));
    for (key, value) in [
        ("metric", json!("gpu_utilization")),
        ("metricName", json!("gpu_utilization")),
        ("metricType", json!("AverageValue")),
        ("target", json!(50.0)),
        // 40 + 2 pods at the target of 50 each, of 150.
        ("value", json!(140.0)),
        ("active", json!(true)),
        ("status", json!("OK")),
        ("warnings", json!([])),
        ("replicas", json!(3)),
        ("statusReplicas", json!(2)),
        ("coverage", json!({"reporting": 1, "starting": 2, "missing": 0, "stuck": 0})),
        ("s", json!(40.0)),
        ("up", json!(40.0)),
        ("down", json!(140.0)),
        ("hold", json!(150.0)),
        // 140 / (50 x 2) = 1.4, ceil(140 / 50) = 3.
        ("hpa", json!({"ratio": 1.4, "desired": 3, "clampedBy": null})),
    ] {
        assert_eq!(trigger[key], value, "{key}");
    }
    assert!(trigger["reason"].as_str().unwrap().contains("1 of 3"), "{trigger}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_explanation_shows_every_pod_with_its_devices() {
    let (gateway, _agent) = declared().await;
    let trigger = gateway.explain("ai/vllm-so").await;
    let pods = trigger["pods"].as_array().unwrap();
    assert_eq!(pods.len(), 2);
    for pod in pods {
        assert_eq!(keys(pod), names("name uid node state counted why reading ageMs devices"));
    }
    let (reporting, starting) = (&pods[0], &pods[1]);
    let shown = ["name", "uid", "node", "state", "counted", "why", "reading"];
    let said = shown.map(|key| reporting[key].clone());
    assert_eq!(json!(said), json!(["vllm-0", "uid-0", "n1", "reporting", true, null, 40.0]));
    assert!(reporting["ageMs"].as_u64().unwrap() < 10_000);
    let device = &reporting["devices"][0];
    assert_eq!(keys(device), names("uuid reading ageMs state source estimated undeclared"));
    assert_eq!(device["uuid"], "u0");
    assert_eq!(device["reading"], 40.0);
    assert_eq!(device["state"], "ok");
    let footing = ["source", "estimated", "undeclared"].map(|key| device[key].clone());
    assert_eq!(json!(footing), json!(["replay", false, false]));
    let said = shown.map(|key| starting[key].clone());
    let why = said[5].as_str().unwrap();
    assert!(why.contains("not ready"), "{why}");
    assert_eq!(
        json!([said[0], said[1], said[2], said[3], said[4], said[6]]),
        json!(["vllm-1", null, null, "starting", false, null])
    );
    assert_eq!(starting["devices"], json!([]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_explanation_of_an_error_has_its_code_and_null_where_nothing_is_known() {
    let (gateway, _agent) = declared().await;
    for (object, status, word) in
        [("ai/homeless", "NOT_FOUND", "nowhere"), ("ai/broken", "INVALID_ARGUMENT", "agregation")]
    {
        let trigger = gateway.explain(object).await;
        assert_eq!(keys(&trigger), names(TRIGGER_KEYS));
        assert_eq!(trigger["status"], status);
        assert!(trigger["reason"].as_str().unwrap().contains(word), "{trigger}");
        for unknown in ["value", "active", "activeSince", "s", "up", "down", "hpa", "coverage"] {
            assert_eq!(trigger[unknown], Value::Null, "{unknown}");
        }
        assert_eq!(trigger["metricName"], "gpu_utilization");
        assert_eq!(trigger["target"], 80.0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn triggers_nobody_declared_are_those_that_were_asked_about() {
    let (gateway, _agent) = declared().await;
    let path = "/api/v1/scaledobjects/ai/idle/explain";
    assert_eq!(gateway.json(path).await["triggers"], json!([]));
    let keda = gateway.connect().await;
    for target in ["70", "70", "60"] {
        let trigger = keda.trigger("ai/idle", &[("targetValue", target)]);
        assert_eq!(trigger.value().await.unwrap(), 0.0);
        assert!(!trigger.is_active().await.unwrap());
    }
    let triggers = gateway.json(path).await["triggers"].clone();
    let targets: Vec<_> = triggers.as_array().unwrap().iter().map(|t| &t["target"]).collect();
    assert_eq!(json!(targets), json!([70.0, 60.0]));
    for trigger in triggers.as_array().unwrap() {
        assert_eq!(trigger["value"], 0.0);
        assert_eq!(trigger["active"], false);
    }
}

/// With a cluster whose ScaledObjects come and go, memory would grow for as long as they are
/// remembered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_asked_about_a_scaled_object_that_is_gone_is_forgotten_with_it() {
    let gateway = TestGateway::start(ONE_POD).await;
    let trigger = gateway.trigger("ai/vllm-so", &[]).await;
    trigger.value().await.unwrap_err();
    let path = "/api/v1/scaledobjects/ai/vllm-so/explain";
    let known = async |status: u16| match gateway.get(path).await.0 {
        now if now == status => Ok(()),
        now => Err(now),
    };
    assert_eq!(gateway.json(path).await["triggers"].as_array().unwrap().len(), 1);
    eventually("it is forgotten", async || {
        gateway.rewrite("workloads: []\nscaledObjects: []\n");
        eventually("it is gone", async || known(404).await).await;
        // What is not needed is thrown away once a second.
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        gateway.rewrite(ONE_POD);
        eventually("it is back", async || known(200).await).await;
        match gateway.json(path).await["triggers"].clone() {
            triggers if triggers == json!([]) => Ok(()),
            triggers => Err(triggers),
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_explanation_says_since_when_a_workload_is_active_and_what_is_unsound() {
    let (gateway, _agent) = declared().await;
    let metadata = [("scalerAddress", "gpu-gateway.gpu:6000"), ("targetValue", "50")];
    let trigger = gateway.trigger("ai/vllm-so", &metadata).await;
    assert!(trigger.is_active().await.unwrap());
    let since = gateway.explain("ai/vllm-so").await["activeSince"].clone();
    let since = since.as_str().expect("a time");
    assert!(since.starts_with("20") && since.ends_with('Z'), "{since}");
    sleep(Duration::from_millis(50)).await;
    assert!(trigger.is_active().await.unwrap());
    assert_eq!(gateway.explain("ai/vllm-so").await["activeSince"], since);
    gateway.rewrite(
        "
workloads: [{namespace: ai, kind: Deployment, name: vllm, replicas: 0}]
scaledObjects:
  - {namespace: ai, name: vllm-so, target: {name: vllm}, minReplicas: 0, triggers: [{metadata: {targetValue: '95'}}]}
",
    );
    eventually("it is warned about", async || {
        let warnings = gateway.explain("ai/vllm-so").await["warnings"].to_string();
        let all = ["never scale out", "wake"];
        if all.iter().all(|word| warnings.contains(word)) { Ok(()) } else { Err(warnings) }
    })
    .await;
}

// === Commands ===

fn gpu_gateway(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpu-gateway"));
    command.args(arguments).env_clear();
    command
}

pub(crate) async fn run(arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut command = gpu_gateway(arguments);
    let run = tokio::task::spawn_blocking(move || command.output());
    let output: Output = soon("the command ends", run)
        .await
        .expect("the task does not panic")
        .expect("the command runs");
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("UTF-8");
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn explain_prints_a_table_or_json() {
    let (gateway, _agent) = declared().await;
    let server = format!("http://{}", gateway.http);
    let (code, table, _) = run(&["explain", "ai/vllm-so", "--server", &server]).await;
    assert_eq!(code, Some(0));
    for word in ["ai/vllm-so", "Deployment vllm", "gpu_utilization", "vllm-0", "reporting", "u0 40"]
    {
        assert!(table.contains(word), "{word} in {table}");
    }
    for word in ["vllm-1", "starting", "sum 40", "hold 150", "140", "would order 3"] {
        assert!(table.contains(word), "{word} in {table}");
    }
    let slash = format!("{server}/");
    let (code, text, _) = run(&["explain", "ai/vllm-so", "-o", "json", "--server", &slash]).await;
    assert_eq!(code, Some(0));
    let explanation: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(explanation["triggers"][0]["value"], 140.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn explain_says_what_is_wrong_and_exits_with_1_or_2() {
    let (gateway, _agent) = declared().await;
    let server = format!("http://{}", gateway.http);
    let (code, _, error) = run(&["explain", "ai/unknown", "--server", &server]).await;
    assert_eq!(code, Some(1));
    assert!(
        error.contains("404") && error.contains("ai/unknown; known in ai: broken, "),
        "{error}"
    );
    let (_, _, error) = run(&["explain", "other/vllm", "--server", &server]).await;
    assert!(error.contains("other/vllm; known: ai/broken, "), "{error}");
    let (code, all, _) = run(&["explain", "--server", &server]).await;
    assert_eq!(code, Some(0));
    assert!(all.lines().any(|line| line == "ai/vllm-so   Deployment vllm"), "{all}");
    let (_, all, _) = run(&["explain", "-o", "json", "--server", &server]).await;
    assert!(serde_json::from_str::<Value>(&all).unwrap().is_array(), "{all}");
    for grpc in [gateway.keda, gateway.agents] {
        let server = format!("http://{grpc}");
        let (code, _, error) = run(&["explain", "ai/vllm-so", "--server", &server]).await;
        assert_eq!(code, Some(1));
        let is_told = error.contains("answers, but not HTTP; name the port of --http-listen");
        // The port may have hung up before it said anything.
        assert!(is_told || error.contains(&format!("{server} cannot be reached")), "{error}");
    }
    let nobody = ["explain", "ai/vllm-so", "--server", "http://127.0.0.1:1"];
    let (code, _, error) = run(&nobody).await;
    assert_eq!(code, Some(1));
    assert!(error.contains("http://127.0.0.1:1 cannot be reached"), "{error}");
    assert!(error.contains("refused") && error.contains("is it running?"), "{error}");
    for usage in [
        &["explain", "vllm-so"][..],
        &["explain", "ai/vllm-so", "--server", "http://127.0.0.1:8080/prefix"],
        &["ledger", "--by", "node"],
        &["ledger", "--by", "node", "-o", "json"],
        &["explain", "ai/vllm-so/more"],
        &["explain", "ai/vllm-so", "-o", "yaml"],
        &["explain", "ai/vllm-so", "--server", "not a URL"],
    ] {
        let (code, out, error) = run(usage).await;
        assert_eq!(code, Some(2), "{usage:?}: {error}");
        assert!(out.is_empty() && !error.is_empty(), "{usage:?}");
    }
}

/// As in `gpu-gateway … | head`: who reads may have seen enough.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_goes_away_is_no_fault() {
    let (gateway, _agent) = declared().await;
    let server = format!("http://{}", gateway.http);
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/examples/scaledobject.yaml");
    let asked = ["--server", &server];
    for (arguments, asked) in [
        (&["check", file][..], &[][..]),
        (&["check", "-o", "json", file], &[]),
        (&["explain"], &asked),
        (&["explain", "ai/vllm-so"], &asked),
        (&["explain", "ai/vllm-so", "-o", "json"], &asked),
        (&["ledger"], &asked),
        (&["ledger", "-o", "csv"], &asked),
        (&["ledger", "-o", "json"], &asked),
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = gpu_gateway(&[arguments, asked].concat());
        command.stdout(writer);
        let run = tokio::task::spawn_blocking(move || command.output());
        let Output { status, stderr, .. } = soon("it ends", run).await.unwrap().unwrap();
        assert_eq!((status.code(), stderr), (Some(0), Vec::new()), "{arguments:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_flags_exit_with_2() {
    let local = ["serve", "--agent-listen", "127.0.0.1:0", "--directory", "file:x.yaml"];
    for (flags, word) in [
        (&["--keda-listen", "nonsense"][..], "nonsense"),
        (&["--http-listen", "127.0.0.1:70000"], "70000"),
        (&["--http-listen", "localhost:8080"], "write IP:PORT, for example 127.0.0.1:6001"),
        (&["--gpu-price", "H100=2,50"], "write 2.50, not 2,50"),
        (&["--namespaces", "ai"], "--namespaces is for --directory kube"),
        (&["--directory", "dir.yaml"], "such as file:dir.yaml"),
        (&["--directory", "etcd"], "etcd"),
        (&["--directory", "file:"], "empty"),
        (&["--agent-auth", "password"], "password"),
        (&["--no-such-flag"], "--no-such-flag"),
    ] {
        let arguments: Vec<&str> = match flags[0] {
            "--directory" => [&local[..3], flags].concat(),
            _ => [&local[..], flags].concat(),
        };
        let (code, out, error) = run(&arguments).await;
        assert_eq!(code, Some(2), "{arguments:?}: {error}");
        assert!(out.is_empty() && error.contains(word), "{arguments:?}: {error}");
    }
    for usage in [&[][..], &["no-such-command"], &["serve"]] {
        assert_eq!(run(usage).await.0, Some(2), "{usage:?}");
    }
    assert!(run(&["serve"]).await.2.contains("Usage: gpu-gateway serve"));
    let (code, _, error) = run(&["doctor", "--node", "a"]).await;
    assert_eq!(code, Some(2));
    assert!(error.contains("doctor is a command of gpu-agent"), "{error}");
    for (written, is_named) in [(&[][..], true), (&["--http-listen=nonsense"], false)] {
        let mut command = gpu_gateway(&[&local[..], written].concat());
        let Output { stderr, .. } = command.env("GPU_GATEWAY_HTTP_LISTEN", "any").output().unwrap();
        let error = String::from_utf8(stderr).unwrap();
        assert_eq!(
            error.contains("from the variable GPU_GATEWAY_HTTP_LISTEN"),
            is_named,
            "{error}"
        );
    }
    let (code, out, _) = run(&["--version"]).await;
    assert_eq!((code, out), (Some(0), format!("gpu-gateway {}\n", shared::process::BUILD)));
    assert_eq!(run(&["--help"]).await.0, Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_agent_port_needs_to_be_asked_for() {
    for listen in [&["--agent-listen", "0.0.0.0:0"][..], &["--agent-listen", "[::]:0"], &[]] {
        let arguments = [&["serve", "--directory", "file:x.yaml"], listen].concat();
        let (code, _, error) = run(&arguments).await;
        assert_eq!(code, Some(2), "{listen:?}: {error}");
        assert!(error.contains("--agent-auth is required"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_serve_cannot_start_with_is_said_in_one_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let good = folder.path().join("good.yaml");
    std::fs::write(&good, ONE_POD).unwrap();
    let good = format!("file:{}", good.display());
    let missing = format!("file:{}/missing.yaml", folder.path().display());
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let listen = |keda| {
        [
            "serve",
            "--agent-listen",
            "127.0.0.1:0",
            "--http-listen",
            "127.0.0.1:0",
            "--keda-listen",
            keda,
        ]
    };
    for (keda, directory, words) in [
        ("127.0.0.1:0", &missing, ["missing.yaml", "No such file"]),
        (&*taken, &good, ["--keda-listen", "in use"]),
    ] {
        let arguments = [&listen(keda)[..], &["--directory", directory]].concat();
        let (code, _, error) = run(&arguments).await;
        assert_eq!(code, Some(1), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    }
}

/// A gateway of its own process; killed if a test fails.
struct Served(Child);

impl Drop for Served {
    fn drop(&mut self) {
        // It may have ended already.
        self.0.kill().ok();
    }
}

/// The address that the line `serving` logs under `name`.
fn address(line: &str, name: &str) -> SocketAddr {
    let line: Value = serde_json::from_str(line).expect("the log is JSON");
    let fields = &line["fields"];
    assert_eq!(fields["message"], "serving", "{line}");
    fields[name].as_str().expect("an address").parse().expect("an address")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_ends_the_process_with_0_while_streams_are_open() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("directory.yaml");
    std::fs::write(&file, ONE_POD).unwrap();
    let any = "127.0.0.1:0";
    let directory = format!("file:{}", file.display());
    let mut command = gpu_gateway(&["serve", "--keda-listen", any, "--agent-listen", any]);
    command.args(["--http-listen", any, "--directory", &directory, "--log-format", "json"]);
    let mut served = Served(command.stderr(Stdio::piped()).spawn().unwrap());
    let mut log = BufReader::new(served.0.stderr.take().unwrap());
    let mut line = String::new();
    log.read_line(&mut line).unwrap();
    let keda = Keda::connect(address(&line, "keda")).await;
    assert_eq!(get(address(&line, "http"), "/healthz").await.0, 200);
    let trigger = keda.trigger("ai/vllm-so", &[]);
    refused(trigger.value().await, Code::Unavailable, &[]);
    let mut streams = Vec::new();
    for _ in 0..50 {
        streams.push(trigger.stream().await.unwrap());
    }
    let kill = Command::new("kill").args(["-TERM", &served.0.id().to_string()]).status();
    assert!(kill.unwrap().success());
    for mut stream in streams {
        let end = soon("the stream ends", stream.message()).await;
        assert_eq!(end.expect("with OK"), None);
    }
    let ended = tokio::task::spawn_blocking(move || {
        let mut rest = String::new();
        log.read_to_string(&mut rest).unwrap();
        (served.0.wait().unwrap(), rest)
    });
    let (status, rest) = soon("the process ends", ended).await.unwrap();
    assert_eq!(status.code(), Some(0), "{rest}");
}
