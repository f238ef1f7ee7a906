//! Tokens over TLS: real agents, a real gateway, and an API server that reviews what they bring.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::{Duration, sleep};

use crate::api_server::{self, ApiServer, pod};
use crate::client::Client;
use crate::pki::Authority;
use crate::support::{Gateway, Process, binaries, eventually, free_address, scaled_object};

/// What the good agent reads, and what the others would have counted.
const GOOD: f64 = 10.0;
const FALSE: f64 = 100.0;

/// What the API server says of a token of the agents' account, for the audience and the node.
fn review(audience: &str, node: &str) -> Value {
    json!({
        "authenticated": true, "audiences": [audience],
        "user": {
            "username": "system:serviceaccount:gpu:gpu-agent",
            "extra": {"authentication.kubernetes.io/node-name": [node]},
        },
    })
}

struct World {
    binaries: PathBuf,
    folder: TempDir,
    api: ApiServer,
    gateway: Gateway,
}

impl World {
    /// A cluster with `ml/llm`, whose one pod is on n1, and a gateway that wants tokens over TLS.
    async fn start(authority: &Authority) -> Self {
        let (binaries, folder) = (binaries(), tempfile::tempdir().unwrap());
        let api = ApiServer::start().await;
        api.scale("apps/v1/deployments", "ml", "llm", (1, "app=llm"));
        api.apply("pods", pod("ml", "llm-0", json!({"app": "llm"})));
        let metadata = json!({"targetGpuUtilization": "50"});
        let object = api_server::scaled_object("ml", "llm-so", json!({"name": "llm"}), metadata);
        api.apply("scaledobjects", object);
        for (token, status) in [
            ("token-of-n1", review("gpu-gateway", "n1")),
            ("token-of-n2", review("gpu-gateway", "n2")),
            ("token-for-api", review("https://kubernetes.default.svc", "n1")),
            ("token-of-n1-renewed", review("gpu-gateway", "n1")),
        ] {
            api.knows_token(token, status);
        }
        authority.write(folder.path(), "ca.crt");
        let (certificate, key) = authority.issue(&["127.0.0.1"]).write(folder.path(), "gateway");
        let kubeconfig = folder.path().join("kubeconfig");
        api.kubeconfig(&kubeconfig);
        let mut command = Command::new(binaries.join("gpu-gateway"));
        command.args(["serve", "--directory", "kube", "--agent-auth", "token"]);
        command.args(["--agent-service-account", "gpu/gpu-agent"]);
        for (flag, path) in [
            ("--kubeconfig", &kubeconfig),
            ("--agent-tls-cert", &certificate),
            ("--agent-tls-key", &key),
        ] {
            command.arg(flag).arg(path);
        }
        let addresses = [free_address(), free_address(), free_address()];
        let gateway = Gateway::listening_at(addresses, "gpu-gateway", command, &folder);
        Self { binaries, folder, api, gateway }
    }

    fn path(&self, file: &str) -> PathBuf {
        self.folder.path().join(file)
    }

    /// `gpu-agent run` for n1 that reads `utilization`, with a token and a CA that it trusts.
    fn agent(&self, name: &str, utilization: f64, token: Option<&str>, ca: &Path) -> Process {
        let device = json!({
            "uuid": "u1", "index": 0, "gpu_utilization": utilization,
            "holders": [{"namespace": "ml", "pod": "llm-0", "container": "main"}],
        });
        let replay = self.path(&format!("{name}.jsonl"));
        fs::write(&replay, format!("{}\n", json!({"at_ms": 0, "devices": [device]}))).unwrap();
        let mut command = Command::new(self.binaries.join("gpu-agent"));
        command
            .args(["run", "--node", "n1", "--interval", "100ms"])
            .args(["--source", &format!("replay:{}", replay.display())])
            .args(["--gateway", &format!("https://{}", self.gateway.uplink)])
            .arg("--gateway-ca")
            .arg(ca);
        if let Some(token) = token {
            let file = self.path(&format!("{name}.token"));
            fs::write(&file, token).unwrap();
            command.arg("--token-file").arg(file);
        }
        Process::start(name, command, &self.folder)
    }

    fn client(&self) -> Client {
        Client::new(self.gateway.keda, scaled_object("llm-so", &[]))
    }

    async fn becomes(&self, expected: f64, agent: &Process) {
        let client = self.client();
        eventually("the value", async || match client.value().await {
            Ok(value) if value == expected => Ok(()),
            other => Err((other, self.gateway.process.log(), agent.log())),
        })
        .await;
    }

    /// Waits until an agent was turned away for `reason`; only the good one counts meanwhile.
    async fn is_refused(&self, reason: &str, agent: &Process) {
        let series = format!("reason=\"{reason}\"");
        let client = self.client();
        eventually(reason, async || {
            assert_eq!(client.value().await.unwrap(), GOOD, "{reason}: {}", agent.log());
            let page = self.gateway.page("/metrics").await.unwrap();
            let is_counted = |line: &str| {
                line.starts_with("gpu_gateway_peers_refused_total")
                    && line.contains(&series)
                    && !line.ends_with(" 0")
            };
            if page.lines().any(is_counted) { Ok(()) } else { Err(agent.log()) }
        })
        .await;
    }

    fn reviews(&self) -> u64 {
        let call = ("authentication.k8s.io".into(), "tokenreviews".into(), "create".into());
        self.api.calls().get(&call).copied().unwrap_or_default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_counts_for_its_own_node_over_tls_and_for_nothing_else() {
    let authority = Authority::new("cluster");
    let mut world = World::start(&authority).await;
    let ca = world.path("ca.crt");
    let good = world.agent("good", GOOD, Some("token-of-n1"), &ca);
    world.becomes(GOOD, &good).await;

    for (name, token, reason) in [
        ("none", None, "no_token"),
        ("made-up", Some("token-made-up"), "bad_token"),
        ("for-api", Some("token-for-api"), "other_audience"),
        ("of-n2", Some("token-of-n2"), "other_node"),
    ] {
        let agent = world.agent(name, FALSE, token, &ca);
        world.is_refused(reason, &agent).await;
    }
    // Who does not know the gateway's CA tells it nothing: no review is asked for.
    let (before, other) = (world.reviews(), Authority::new("other"));
    let other = other.write(world.folder.path(), "other-ca.crt");
    let agent = world.agent("deceived", FALSE, Some("token-of-n1-renewed"), &other);
    eventually("it says why", async || match agent.log() {
        log if log.contains("no stream to the gateway") => Ok(()),
        log => Err(log),
    })
    .await;
    assert_eq!(world.reviews(), before, "its token did not leave it");
    drop(agent);

    // A token that was renewed is used by the next stream; the one that is open stays.
    fs::write(world.path("good.token"), "token-of-n1-renewed").unwrap();
    sleep(Duration::from_millis(200)).await;
    assert_eq!(world.client().value().await.unwrap(), GOOD);
    world.gateway.process.restart().await;
    world.becomes(GOOD, &good).await;
    assert!(world.reviews() > before, "the renewed one was reviewed");

    let told = world.gateway.process.log() + &world.gateway.page("/metrics").await.unwrap();
    assert!(!told.contains("token-of") && !told.contains("token-made-up"), "{told}");
    assert!(!good.log().contains("token-of"), "{}", good.log());
}
