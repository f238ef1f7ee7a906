//! The ledger and the health of devices, as people and Prometheus see them.

use gateway::config::ServeConfig;
use serde_json::{Value, json};
use shared::health::{Health, RecoveryAction, Throttle, XidCount};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::http::run;
use crate::support::{Node, TestAgent, TestGateway, eventually, gpu};

const DIRECTORY: &str = "
workloads:
  - {namespace: ai, kind: Deployment, name: vllm, replicas: 1, pods: [{name: vllm-0, ready: true, node: n1}]}
scaledObjects:
  - {namespace: ai, name: vllm-so, target: {name: vllm}, minReplicas: 0, triggers: [{metadata: {targetValue: '70'}}]}
";

async fn priced() -> TestGateway {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("directory.yaml");
    std::fs::write(&file, DIRECTORY).expect("a file");
    let mut config = ServeConfig::local(file);
    config.tariff.prices = vec!["H100=2".parse().expect("a price")];
    config.tariff.carbon_intensity = Some(300.0);
    TestGateway::try_start_with(folder, config).await.expect("it starts")
}

/// The row of that name once it has joules.
async fn counted(gateway: &TestGateway, rows: &str, key: &str, name: &str) -> Value {
    eventually(name, async || {
        let ledger = gateway.json("/api/v1/ledger").await;
        let mut found = ledger[rows].as_array().expect("rows").iter();
        let row = found.find(|row| row[key] == name && row["joules"].as_f64() > Some(0.0));
        row.cloned().ok_or(ledger)
    })
    .await
}

/// What a pod may be called where an agent is not to be trusted.
const HOSTILE: &str = "=cmd|' /C calc'!A1,\"x";

/// A gateway that has counted energy of `ai/vllm-0` and of a pod with a name that is none.
async fn counting() -> (TestGateway, TestAgent) {
    let gateway = priced().await;
    let hostile = HOSTILE;
    let node = Node::new("n1")
        .with(gpu("u0", "ai/vllm-0", 40.0).used(1_000.0))
        .with(gpu("u1", &format!("ai/{hostile}"), 90.0).index(1).used(2_000.0));
    let agent = gateway.agent(node).await;
    gateway.is_ready().await;
    // Counters run on for as long as it takes until they are seen to.
    let mut joules = 0.0;
    eventually("energy of both", async || {
        joules += 5.0;
        agent.change(|node| {
            *node.gpu("u0") = gpu("u0", "ai/vllm-0", 40.0).used(1_000.0 + joules);
            let second = gpu("u1", &format!("ai/{hostile}"), 90.0).index(1);
            *node.gpu("u1") = second.used(2_000.0 + 2.0 * joules);
        });
        let ledger = gateway.json("/api/v1/ledger").await;
        let rows = ledger["workloads"].as_array().expect("rows");
        let known = rows.iter().filter(|row| row["joules"].as_f64() > Some(0.0)).count();
        if known == 2 { Ok(()) } else { Err(ledger) }
    })
    .await;
    (gateway, agent)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_ledger_has_its_shape_and_its_series() {
    let (gateway, _agent) = counting().await;
    let row = counted(&gateway, "workloads", "name", "vllm").await;
    assert_eq!((&row["namespace"], &row["kind"]), (&json!("ai"), &json!("Deployment")));
    for key in ["gpuSecondsHeld", "gpuSecondsBusy", "joulesDynamic", "cost", "gramsCo2e"] {
        assert!(row[key].as_f64() > Some(0.0), "{key} of {row}");
    }
    assert_eq!(row["gpuSecondsNotHeld"], Value::Null);
    let cost = row["gpuSecondsHeld"].as_f64().expect("held") / 3_600.0 * 2.0;
    assert!((row["cost"].as_f64().expect("a cost") - cost).abs() < 1e-5, "{row}");
    let pod = counted(&gateway, "workloads", "name", HOSTILE).await;
    assert_eq!(pod["kind"], "Pod", "no known workload has it");
    let namespace = counted(&gateway, "namespaces", "namespace", "ai").await;
    let all = ["gpuSecondsHeld", "joules", "joulesIdle", "cost", "gramsCo2e"];
    assert!(all.iter().all(|key| namespace.get(key).is_some()));
    let node = counted(&gateway, "nodes", "node", "n1").await;
    for key in ["joulesAttributed", "joulesUnattributed", "gpuSecondsHeld", "gpuSecondsFree"] {
        assert!(node[key].is_number(), "{key} of {node}");
    }
    for (series, labels) in [
        ("workload_gpu_held_seconds_total", "workload=\"vllm\""),
        ("workload_gpu_busy_seconds_total", "kind=\"Deployment\""),
        ("workload_energy_joules_total", "namespace=\"ai\",kind=\"Deployment\",workload=\"vllm\""),
        ("node_energy_joules_total", "node=\"n1\""),
    ] {
        assert!(gateway.metric(&format!("gpu_gateway_{series}"), labels).await > 0.0, "{series}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_writes_tables_json_and_csv_of_which_no_cell_is_a_formula() {
    let (gateway, _agent) = counting().await;
    let server = format!("http://{}", gateway.http);
    let (code, csv, log) = run(&["ledger", "--server", &server, "-o", "csv"]).await;
    assert_eq!(code, Some(0), "{log}");
    let head = "namespace,kind,workload,gpu_seconds_held,gpu_seconds_busy,gpu_seconds_not_held,\
                joules,joules_dynamic,joules_idle,cost,grams_co2e";
    assert_eq!(csv.lines().next(), Some(head));
    assert!(csv.contains("\nai,Deployment,vllm,"), "{csv}");
    assert!(csv.contains("\nai,Pod,\"'=cmd|' /C calc'!A1,\"\"x\","), "{csv}");
    for by in ["namespace", "node", "idle"] {
        let (code, csv, log) = run(&["ledger", "--server", &server, "-o", "csv", "--by", by]).await;
        assert_eq!(code, Some(0), "{log}");
        assert!(csv.lines().next().is_some_and(|head| head.contains(',')), "{csv}");
    }
    let (_, table, _) = run(&["ledger", "--server", &server]).await;
    let words = ["GPU-HOURS", "vllm", "n1", " Wh", "nothing that is held is idle"];
    assert!(words.iter().all(|word| table.contains(word)), "{table}");
    let (_, text, _) = run(&["ledger", "--server", &server, "-o", "json"]).await;
    let json: Value = serde_json::from_str(&text).expect("JSON");
    assert!(json["sinceSeconds"].as_f64() > Some(0.0));
    let (code, _, log) = run(&["ledger", "--server", "http://127.0.0.1:1"]).await;
    assert_eq!(code, Some(1), "{log}");
}

/// A server that answers every request with this, and then holds the connection or ends it.
async fn foreign(answer: Vec<u8>, then_holds: bool) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let server = format!("http://{}", listener.local_addr().expect("an address"));
    tokio::spawn(async move {
        let mut held = Vec::new();
        while let Ok((mut socket, _)) = listener.accept().await {
            let mut request = [0; 4096];
            // A client that has seen enough closes.
            let Ok(1..) = socket.read(&mut request).await else { continue };
            socket.write_all(&answer).await.ok();
            if then_holds {
                held.push(socket);
            }
        }
    });
    server
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_begins_an_answer_and_stalls_is_waited_for_no_longer_than_one_that_is_mute() {
    let server = foreign(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{".into(), true).await;
    let explain = ["explain", "ai/vllm-so", "--server", &server];
    let ledger = ["ledger", "--server", &server];
    let (explained, counted) = tokio::join!(run(&explain), run(&ledger));
    for (code, said, log) in [explained, counted] {
        assert_eq!((code, said.as_str()), (Some(1), ""));
        assert!(log.contains(&format!("{server} did not end its answer within 10 s")), "{log}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_ledger_is_said_to_be_none_and_never_printed() {
    let html = "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n<html>hello</html>";
    let server = foreign(html.into(), false).await;
    for arguments in [
        &["ledger", "-o", "json"][..],
        &["ledger", "-o", "csv"],
        &["ledger"],
        &["explain", "ai/vllm-so", "-o", "json"],
        &["explain", "ai/vllm-so"],
    ] {
        let (code, said, log) = run(&[arguments, &["--server", &server]].concat()).await;
        assert_eq!((code, said.as_str()), (Some(1), ""), "{arguments:?}");
        assert!(log.contains(&format!("{server} answers, but not this API: ")), "{log}");
    }
    let long = format!("\x1b]0;owned\x07 {}", "word ".repeat(1_000));
    let spaces = " ".repeat(65 << 20);
    for (head, body, words) in [
        ("404 Not Found", "", "404 Not Found: it has no /api/v1/ledger; is it a gateway"),
        ("500 Oh", long.as_str(), "500 Internal Server Error: ]0;owned word word"),
        ("500 Oh", "{\"error\": \"\\u001b[31mred\"}", "500 Internal Server Error: [31mred"),
        ("200 OK", &spaces, "the answer is longer than 64 MiB"),
    ] {
        let answer = format!("HTTP/1.1 {head}\r\nconnection: close\r\n\r\n{body}");
        let server = foreign(answer.into(), false).await;
        let (code, _, log) = run(&["ledger", "--server", &server]).await;
        assert_eq!(code, Some(1), "{log}");
        assert!(log.contains(words) && log.contains(&server), "{log}");
        assert!(log.len() < 500 && !log.trim().contains(char::is_control), "{log:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_the_matter_with_a_device_is_named_wherever_people_look() {
    let gateway = TestGateway::start(DIRECTORY).await;
    let well = Health {
        xids: Some(Vec::new()),
        ecc_uncorrected: Some(0),
        recovery: Some(RecoveryAction::None),
        ..Health::default()
    };
    let ill = Health {
        xids: Some(vec![XidCount { xid: 79, count: 2 }]),
        ecc_uncorrected: Some(3),
        remap_pending: Some(true),
        recovery: Some(RecoveryAction::GpuReset),
        lost: true,
        ..Health::default()
    };
    let node = Node::new("n1")
        .with(gpu("u0", "ai/vllm-0", 99.0).ill(well).throttled(Throttle::Power, 80.0))
        .with(gpu("u1", "ai/stranger", 50.0).index(1).ill(ill))
        .with(gpu("u2", "ai/other", 50.0).index(2));
    let _agent = gateway.agent(node).await;
    gateway.is_ready().await;

    let nodes = gateway.json("/api/v1/nodes").await;
    let [u0, u1, u2] = [0, 1, 2].map(|at| &nodes[0]["devices"][at]);
    assert_eq!((&u0["state"], &u0["reason"]), (&json!("ok"), &Value::Null));
    assert_eq!(u0["throttledBy"], json!({"power": 80.0}));
    assert_eq!(u0["health"]["recoveryAction"], "none");
    assert_eq!(u1["state"], "lost");
    let reason = u1["reason"].as_str().expect("a reason");
    for words in ["fallen off the bus", "gpu reset", "3 uncorrected errors", "XID 79 (2 times)"] {
        assert!(reason.contains(words), "{reason}");
    }
    let health = json!({
        "xids": {"79": 2}, "eccUncorrected": 3, "rowRemapPending": true, "rowRemapFailed": null,
        "recoveryAction": "gpu_reset", "lost": true,
    });
    assert_eq!(u1["health"], health);
    assert_eq!((&u2["state"], &u2["health"]), (&json!("ok"), &Value::Null));

    for (series, labels, value) in [
        ("device_xid_errors_total", "node=\"n1\",gpu_uuid=\"u1\",xid=\"79\"", 2.0),
        ("device_ecc_uncorrected_errors_total", "gpu_uuid=\"u1\"", 3.0),
        ("device_recovery_action", "gpu_uuid=\"u1\",action=\"gpu_reset\"", 1.0),
        ("device_lost", "gpu_uuid=\"u1\"", 1.0),
        ("device_lost", "gpu_uuid=\"u0\"", 0.0),
    ] {
        assert_eq!(gateway.metric(&format!("gpu_gateway_{series}"), labels).await, value);
    }
    let (_, text) = gateway.get("/metrics").await;
    let is_there = |name: &str, uuid: &str| {
        text.lines().any(|line| line.starts_with(name) && line.contains(uuid))
    };
    assert!(is_there("gpu_gateway_device_lost{", "u0"));
    assert!(!is_there("gpu_gateway_device_lost{", "u2"), "what is not known is not there");
    assert!(!is_there("gpu_gateway_device_recovery_action{", "u0"));

    let warnings = gateway.explain("ai/vllm-so").await["warnings"].to_string();
    let words =
        "u0 is throttled by power 80 % of the time: its utilisation looks higher than its work";
    assert!(warnings.contains(words), "{warnings}");
}
