//! Case O20: who may push, with the real binaries, certificates and handshakes.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use http_body_util::{BodyExt as _, Empty};
use hyper::Request;
use hyper::body::Bytes;
use hyper::header::HOST;
use hyper_util::rt::TokioIo;
use serde_json::json;
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::time::{Duration, Instant, sleep};

use crate::pki::{Authority, Pair};
use crate::support::{Gateway, PATIENCE, Process, binaries, scaled_object};

const DIRECTORY: &str = "\
workloads:
  - {namespace: ml, kind: Deployment, name: llm, replicas: 1, pods: [
      {name: llm-0, node: n1, ready: true}]}
scaledObjects:
  - {namespace: ml, name: llm-so, target: {kind: Deployment, name: llm}, minReplicas: 1, maxReplicas: 8}
";

struct World {
    binaries: PathBuf,
    folder: TempDir,
    gateway: Gateway,
}

impl World {
    /// `gpu-agent run` for n1, where `llm-0` holds u1.
    fn agent(
        &self,
        name: &'static str,
        scheme: &str,
        utilization: f64,
        own: Option<&Pair>,
    ) -> Process {
        let device = json!({
            "uuid": "u1", "index": 0, "name": "NVIDIA H100 80GB HBM3",
            "gpu_utilization": utilization,
            "holders": [{"namespace": "ml", "pod": "llm-0", "container": "main"}],
        });
        let replay = self.folder.path().join(format!("{name}.jsonl"));
        fs::write(&replay, format!("{}\n", json!({"at_ms": 0, "devices": [device]}))).unwrap();
        let mut command = Command::new(self.binaries.join("gpu-agent"));
        command
            .args(["run", "--node", "n1", "--interval", "100ms"])
            .args(["--source", &format!("replay:{}", replay.display())])
            .args(["--gateway", &format!("{scheme}://{}", self.gateway.uplink)])
            .arg("--gateway-ca")
            .arg(self.folder.path().join("ca.crt"));
        if let Some(own) = own {
            let (certificate, key) = own.write(self.folder.path(), name);
            command.arg("--tls-cert").arg(certificate).arg("--tls-key").arg(key);
        }
        Process::start(name, command, &self.folder)
    }

    async fn value(&self) -> f64 {
        self.gateway.ask(&scaled_object("llm-so", &[])).await.unwrap().metric_value_float
    }

    /// Waits until `port`'s refusals for `reason` are counted; the value stays what it is.
    async fn is_refused(&self, reason: &str, agent: &Process) {
        let start = Instant::now();
        let series =
            format!("gpu_gateway_peers_refused_total{{port=\"agents\",reason=\"{reason}\"}}");
        loop {
            assert_eq!(self.value().await, 10.0, "{}", agent.log());
            let metrics = get(self.gateway.http, "/metrics").await;
            if metrics.lines().any(|line| line.starts_with(&series) && !line.ends_with(" 0")) {
                return;
            }
            let logs = || format!("{}{}{metrics}", self.gateway.process.log(), agent.log());
            assert!(start.elapsed() < PATIENCE, "{reason} is not counted: {}", logs());
            sleep(Duration::from_millis(50)).await;
        }
    }
}

async fn get(server: SocketAddr, path: &str) -> String {
    let socket = TcpStream::connect(server).await.unwrap();
    let handshake = hyper::client::conn::http1::handshake(TokioIo::new(socket));
    let (mut sender, connection) = handshake.await.unwrap();
    let connection = tokio::spawn(connection);
    let request = Request::get(path).header(HOST, server.to_string());
    let response = sender.send_request(request.body(Empty::<Bytes>::new()).unwrap()).await.unwrap();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    connection.abort();
    String::from_utf8(body.to_vec()).unwrap()
}

fn world(folder: TempDir, authority: &Authority) -> World {
    let binaries = binaries();
    let path = |file: &str| -> PathBuf { folder.path().join(file) };
    authority.write(folder.path(), "ca.crt");
    authority.issue(&["127.0.0.1"]).write(folder.path(), "gateway");
    let option = |flag: &str, path: &Path| [flag.to_owned(), path.display().to_string()];
    let options = [
        ["--agent-auth".to_owned(), "mtls".to_owned()],
        option("--agent-tls-cert", &path("gateway.crt")),
        option("--agent-tls-key", &path("gateway.key")),
        option("--agent-client-ca", &path("ca.crt")),
    ];
    let gateway = Gateway::start_with(&binaries, &folder, DIRECTORY, &options.concat());
    World { binaries, folder, gateway }
}

#[tokio::test]
async fn o20_only_who_may_push_is_counted() {
    let authority = Authority::new("cluster");
    let world = world(tempfile::tempdir().unwrap(), &authority);
    let good = world.agent("good", "https", 10.0, Some(&authority.issue(&["n1"])));
    let llm = scaled_object("llm-so", &[]);
    let first = world.gateway.first_answer(&llm, std::slice::from_ref(&good)).await;
    assert_eq!(first.metric_value_float, 10.0);

    let other_ca = Authority::new("cluster").issue(&["n1"]);
    let expired = authority.issue_until(&["n1"], 2020);
    let other_node = authority.issue(&["n2"]);
    let mut secrets = vec![other_node.key.lines().nth(1).unwrap().to_owned()];
    for (name, scheme, own, reason) in [
        ("plaintext", "http", None, "not_tls"),
        ("other-ca", "https", Some(&other_ca), "unknown_issuer"),
        ("expired", "https", Some(&expired), "expired_certificate"),
        ("no-certificate", "https", None, "no_certificate"),
        ("other-node", "https", Some(&other_node), "other_node"),
    ] {
        let agent = world.agent(name, scheme, 100.0, own);
        world.is_refused(reason, &agent).await;
        secrets.extend(own.map(|own| own.key.lines().nth(2).unwrap().to_owned()));
        if name == "other-node" {
            // It says what the gateway said.
            let start = Instant::now();
            while !agent.log().contains("cannot speak for node") {
                assert!(start.elapsed() < PATIENCE, "{}", agent.log());
                sleep(Duration::from_millis(50)).await;
            }
        }
    }
    let log = good.log();
    assert_eq!(log.matches("pushing to the gateway").count(), 1, "not disturbed: {log}");
    // Before that the gateway may not have listened yet.
    let since = log.split("pushing to the gateway").nth(1).unwrap_or_default();
    assert!(!since.contains("no stream to the gateway"), "not disturbed: {log}");

    let right = world.agent("right", "https", 100.0, Some(&authority.issue(&["n1"])));
    let start = Instant::now();
    while world.value().await != 100.0 {
        assert!(start.elapsed() < PATIENCE, "the right one does not count: {}", right.log());
        sleep(Duration::from_millis(50)).await;
    }
    let told = world.gateway.process.log() + &get(world.gateway.http, "/metrics").await;
    for secret in &secrets {
        assert!(!told.contains(secret.as_str()), "a key is told");
    }
    for mut process in [good, right, world.gateway.process] {
        let status = process.terminate().await;
        assert!(status.success(), "{} ended with {status}:\n{}", process.name, process.log());
    }
}

/// A certificate and CA that are renewed while agents push: nobody is cut off, and the next
/// connection uses what is new.
#[tokio::test]
async fn renewed_agent_certificates_are_used_by_the_next_connection() {
    let authority = Authority::new("first");
    let mut world = world(tempfile::tempdir().unwrap(), &authority);
    let old = world.agent("old", "https", 10.0, Some(&authority.issue(&["n1"])));
    let llm = scaled_object("llm-so", &[]);
    world.gateway.first_answer(&llm, std::slice::from_ref(&old)).await;

    let second = Authority::new("second");
    second.write(world.folder.path(), "ca.crt");
    second.issue(&["127.0.0.1"]).write(world.folder.path(), "gateway");
    second.issue(&["n1"]).write(world.folder.path(), "old");
    let start = Instant::now();
    while !get(world.gateway.http, "/metrics").await.contains("what=\"agents\",result=\"taken\"") {
        assert!(start.elapsed() < PATIENCE, "{}", world.gateway.process.log());
        sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(world.value().await, 10.0);
    assert_eq!(old.log().matches("pushing to the gateway").count(), 1, "its stream stayed");

    // Its gateway goes and comes back with the new CA only.
    world.gateway.process.restart().await;
    let again = world.gateway.first_answer(&llm, std::slice::from_ref(&old)).await;
    assert_eq!(again.metric_value_float, 10.0);
    assert_eq!(old.log().matches("pushing to the gateway").count(), 2, "{}", old.log());
}
