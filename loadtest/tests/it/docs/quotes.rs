//! What the documentation quotes of the binaries is what they print, but for times and ports.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use super::{pages, root};
use crate::support::{Gateway, Process, binaries, eventually, run_agent};

/// Workloads with one trouble each, and ScaledObjects that show it.
const TROUBLES: &str = r#"
workloads:
  - namespace: ai
    kind: StatefulSet
    name: sim
    replicas: 2
    pods:
      - {name: sim-0, ready: true, readyForSeconds: 600, node: node-a}
      - {name: sim-1, ready: true, readyForSeconds: 600, node: node-b}
  - namespace: ai
    kind: Deployment
    name: llm
    replicas: 3
    pods:
      - {name: llm-0, ready: true, readyForSeconds: 600, node: node-a}
      - {name: llm-1, ready: false, node: node-b, unreadyForSeconds: 40}
      - name: llm-2
        ready: false
        unreadyForSeconds: 90
        unscheduled: "0/5 nodes are available: 5 Insufficient nvidia.com/gpu"
  - {namespace: ai, kind: Deployment, name: asleep, replicas: 0}
  - namespace: ai
    kind: Deployment
    name: nopage
    replicas: 1
    pods: [{name: nopage-0, ready: true, readyForSeconds: 600, node: node-a}]
scaledObjects:
  - namespace: ai
    name: sim
    target: {kind: StatefulSet, name: sim}
    minReplicas: 1
    triggers: [{type: external-push, metadata: {targetValue: "70", staleAfter: 2s}}]
  - namespace: ai
    name: llm
    target: {name: llm}
    minReplicas: 1
    triggers: [{type: external-push, metadata: {targetValue: "50"}}]
  - namespace: ai
    name: asleep
    target: {name: asleep}
    minReplicas: 0
    triggers:
      - type: external-push
        metadata:
          profile: vllm
          demandEndpoint: http://router:9000/metrics
          demandMetric: router_queue_length
  - namespace: ai
    name: deaf
    target: {name: asleep}
    minReplicas: 0
    triggers: [{type: external-push, metadata: {profile: vllm}}]
  - namespace: ai
    name: nopage
    target: {name: nopage}
    minReplicas: 1
    triggers: [{type: external-push, metadata: {profile: vllm}}]
  - namespace: ai
    name: vram
    target: {name: llm}
    minReplicas: 0
    triggers: [{type: external-push, metadata: {profile: vllm-inference}}]
  - namespace: ai
    name: typo
    target: {name: llm}
    minReplicas: 1
    triggers: [{type: external-push, metadata: {targetvalue: "50"}}]
  - namespace: ai
    name: nogone
    target: {name: gone}
    minReplicas: 1
    triggers: [{type: external-push, metadata: {targetValue: "50"}}]
"#;

/// A MIG instance, and an engine of two whose page fails.
const RECORDED: &str = r#"
workloads:
  - {namespace: ai, kind: Deployment, name: small, replicas: 1, pods: [{name: small-0, ready: true}]}
  - namespace: ai
    kind: Deployment
    name: chat
    replicas: 2
    pods: [{name: chat-0, ready: true}, {name: chat-1, ready: true}]
scaledObjects:
  - namespace: ai
    name: small
    target: {name: small}
    triggers: [{type: external-push, metadata: {targetValue: "70"}}]
  - namespace: ai
    name: chat
    target: {name: chat}
    maxReplicas: 8
    triggers: [{type: external-push, metadata: {profile: vllm}}]
"#;

const RECORDING: &str = concat!(
    r#"{"at_ms":0,"devices":[{"uuid":"MIG-1","index":100,"name":"MIG 3g.40gb","memory_total_mib":40448,"memory_used_mib":12000,"mig":{"parent":"GPU-1","profile":"3g.40gb"},"holders":[{"namespace":"ai","pod":"small-0","share":1.0}]}],"#,
    r#""engines":[{"namespace":"ai","pod":"chat-0","metrics":{"requests_waiting":12,"requests_running":30,"kv_cache_usage":71.5}},{"namespace":"ai","pod":"chat-1","metrics":null}]}"#,
    "\n",
);

/// What cannot be had again here: it takes minutes, a network that fails in its own words, or a
/// port without a listener.
const NOT_AGAIN: &[&str] = &[
    "startup ordered to scheduled",
    "ai/asleep: KEDA is told UNAVAILABLE",
    "engine pages broken",
    "WARN agent::uplink: no stream to the gateway",
];

/// The text in words, with figures of time and ports as N.
fn plain(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    let is_unit = |word: &&str| matches!(word.trim_end_matches(['.', ',', ')', ':']), "ms" | "s");
    let number = |word: &str| word.trim_start_matches('(').parse::<f64>().is_ok();
    let told = words.iter().enumerate().map(|(at, word)| {
        if number(word) && words.get(at + 1).is_some_and(is_unit) {
            return "N".to_owned();
        }
        match word.split_once("127.0.0.1:") {
            Some((before, rest)) => {
                format!(
                    "{before}127.0.0.1:N{}",
                    rest.trim_start_matches(|c: char| c.is_ascii_digit())
                )
            }
            None => (*word).to_owned(),
        }
    });
    told.collect::<Vec<_>>().join(" ")
}

fn run(command: &mut Command) -> String {
    let output = command.env_clear().output().unwrap();
    let (out, error) = (output.stdout, output.stderr);
    String::from_utf8(out).unwrap() + "\n" + &String::from_utf8(error).unwrap()
}

fn explain(binaries: &Path, gateway: &Gateway, name: &str) -> String {
    let server = format!("http://{}", gateway.http);
    let mut command = Command::new(binaries.join("gpu-gateway"));
    run(command.args(["explain", &format!("ai/{name}"), "--server", &server]))
}

fn agent(
    binaries: &Path,
    gateway: &Gateway,
    node: &str,
    source: &str,
    folder: &TempDir,
) -> Process {
    let mut command = run_agent(binaries, gateway, node);
    command.args(["--source", source]);
    Process::start(&format!("agent-{node}"), command, folder)
}

/// What is printed where nothing need be waited for.
fn at_once(binaries: &Path) -> String {
    let gateway = || Command::new(binaries.join("gpu-gateway"));
    let examples = root().join("deploy/examples");
    let mut said = String::new();
    for file in ["keda-gpu-scaler-before.yaml", "prometheus-before.yaml"] {
        said += &run(gateway().arg("check").arg(examples.join("migration").join(file)));
    }
    let short = std::fs::read_to_string(examples.join("vllm-to-zero.yaml")).unwrap();
    let short = short.replace("cooldownPeriod: 900", "cooldownPeriod: 300");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("short.yaml");
    std::fs::write(&file, short.replace("coldStartTimeout: 20m", "coldStartTimeout: 5m")).unwrap();
    said += &run(gateway().args(["check", "--load-time", "10m"]).arg(&file));
    said += &run(gateway().args(["serve", "--directory", "file:none"]));
    let token =
        ["serve", "--agent-auth", "token", "--agent-service-account", "gpu-scaler/gpu-agent"];
    said += &run(gateway().args(token));
    let mut snapshot = Command::new(binaries.join("gpu-agent"));
    said + &run(snapshot.args([
        "snapshot",
        "--node",
        "vm",
        "--source",
        "sim:gpus=2,pods=ai/vllm-0",
    ]))
}

/// Everything that the quoted commands print here.
async fn printed(binaries: &Path) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let mut all = vec![plain(&at_once(binaries))];

    let directory = std::fs::read_to_string(root().join("deploy/examples/directory.yaml")).unwrap();
    let gateway = Gateway::start(binaries, &folder, &directory);
    let source = "sim:gpus=2,pods=ai/vllm-0,shape=constant:60";
    let quick = agent(binaries, &gateway, "node-a", source, &folder);
    all.push(told(binaries, &gateway, "vllm", "is told 130").await);
    all.push(plain(&explain(binaries, &gateway, "none")));
    let mut doctor = Command::new(binaries.join("gpu-agent"));
    let url = format!("http://{}", gateway.uplink);
    doctor.args(["doctor", "--source", "sim:gpus=2,pods=ai/vllm-0", "--gateway", &url]);
    all.push(plain(&run(&mut doctor)));
    drop((quick, gateway));

    let recording = folder.path().join("mig.jsonl");
    std::fs::write(&recording, RECORDING).unwrap();
    let gateway = Gateway::start(binaries, &folder, RECORDED);
    let source = format!("replay:{}", recording.display());
    let replay = agent(binaries, &gateway, "node-a", &source, &folder);
    all.push(told(binaries, &gateway, "small", "FAILED_PRECONDITION").await);
    all.push(told(binaries, &gateway, "chat", "is told 240").await);
    drop((replay, gateway));

    let gateway = Gateway::start(binaries, &folder, TROUBLES);
    let on = |node: &str, last: &str, load: &str| {
        let pods = format!("ai/sim-0+ai/sim-1+ai/llm-0+ai/llm-1+ai/{last}");
        let source = format!("sim:gpus=8,pods={pods},shape=constant:{load}");
        agent(binaries, &gateway, node, &source, &folder)
    };
    let (a, b) = (on("node-a", "nopage-0", "60"), on("node-b", "other-0", "80"));
    for (name, words) in [
        ("llm", "is told 150 & free GPUs 6 & starting 80 N ms"),
        ("deaf", "asleep and deaf"),
        ("nopage", "no fresh reading of 1 ready pod"),
        ("vram", "free GPUs 6"),
        ("typo", "INVALID_ARGUMENT"),
        ("nogone", "NOT_FOUND"),
    ] {
        all.push(told(binaries, &gateway, name, words).await);
    }
    drop(b);
    all.push(told(binaries, &gateway, "sim", "stale the newest").await);
    drop(a);
    all.push(told(binaries, &gateway, "sim", "is told UNAVAILABLE").await);
    all
}

/// What `explain` says of a ScaledObject once it says `words`, all of them between `&`.
async fn told(binaries: &Path, gateway: &Gateway, name: &str, words: &str) -> String {
    eventually(name, async || {
        let said = plain(&explain(binaries, gateway, name));
        let is_so = words.split(" & ").all(|words| said.contains(words));
        if is_so { Ok(said) } else { Err(said) }
    })
    .await
}

#[tokio::test]
async fn what_is_quoted_is_what_is_printed() {
    let printed = printed(&binaries()).await;
    let mut quotes = BTreeMap::new();
    for (path, page) in pages() {
        if path.starts_with("docs") {
            // Drawings and other texts have a word after the fence, or are no page of ours.
            let blocks = page.blocks.iter().filter(|(word, _)| word.is_empty());
            quotes.extend(blocks.map(|(_, block)| (plain(block), path.clone())));
        }
    }
    quotes.retain(|quote, _| !NOT_AGAIN.iter().any(|start| quote.starts_with(start)));
    assert!(quotes.len() > 20, "{quotes:#?}");
    quotes.retain(|quote, _| !printed.iter().any(|said| said.contains(quote)));
    assert!(quotes.is_empty(), "{quotes:#?}\n{printed:#?}");
}
