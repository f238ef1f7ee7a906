//! What breaks, and what KEDA is told meanwhile: the failure table, with real processes.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use proto::keda::ScaledObjectRef;
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::task::{JoinSet, LocalSet};
use tokio::time::sleep;
use tonic::Code;

use crate::client::{Client, Excused, Watched};
use crate::proxy::{Line, Proxy};
use crate::support::{Gateway, Process, binaries, eventually, free_address, scaled_object};

/// How busy every simulated GPU is.
const LOAD: f64 = 60.0;
/// Readings older than this are missing, where something breaks.
const SOON_STALE: (&str, &str) = ("staleAfter", "2s");
/// How long what breaks nothing is looked at.
const A_WHILE: Duration = Duration::from_secs(3);

/// What happens to an agent, or to its line.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Line(Line),
    Killed,
    Stopped,
}

/// The faults of agents, and whether their pods go missing for sure.
const AGENT_FAULTS: [(&str, Fault, bool); 8] = [
    ("cut", Fault::Line(Line::Cut), true),
    ("silent", Fault::Line(Line::Silent), true),
    ("reset", Fault::Line(Line::Reset), true),
    ("late", Fault::Line(Line::Late(Duration::from_millis(500))), false),
    ("narrow", Fault::Line(Line::Narrow(100)), false),
    ("killed", Fault::Killed, true),
    ("stopped", Fault::Stopped, true),
    ("good", Fault::Line(Line::Good), false),
];

/// A cluster of Deployments in `ml`, each with its pods and their nodes.
pub(crate) fn directory(workloads: &[(&str, &[(&str, &str)])]) -> String {
    let mut text = String::from("workloads:\n");
    for (name, pods) in workloads {
        let entry =
            |(pod, node): &(&str, &str)| format!("{{name: {pod}, node: {node}, ready: true}}, ");
        let entries: String = pods.iter().map(entry).collect();
        let replicas = pods.len();
        text += &format!(
            "  - {{namespace: ml, kind: Deployment, name: {name}, replicas: {replicas}, pods: [{entries}]}}\n"
        );
    }
    text += "scaledObjects:\n";
    for (name, _) in workloads {
        text += &format!("  - {{namespace: ml, name: {name}, target: {{name: {name}}}}}\n");
    }
    text
}

/// `gpu-agent run` for `node`, whose GPUs are held by `pods`.
fn agent(binaries: &Path, gateway: &str, node: &str, pods: &[&str]) -> Command {
    let mut command = Command::new(binaries.join("gpu-agent"));
    let holders: Vec<String> = pods.iter().map(|pod| format!("ml/{pod}")).collect();
    let (gpus, holders) = (pods.len(), holders.join("+"));
    let source = format!("sim:gpus={gpus},shape=constant:{LOAD},pods={holders}");
    command.args(["run", "--interval", "200ms", "--node", node, "--source", &source]);
    command.args(["--gateway", gateway]);
    command
}

pub(crate) fn url(address: std::net::SocketAddr) -> String {
    format!("http://{address}")
}

/// A gateway in front of one Deployment `ml/llm`, whose pods are on nodes of their own names.
struct OneDeployment {
    folder: TempDir,
    gateway: Gateway,
    object: ScaledObjectRef,
}

impl OneDeployment {
    fn start(binaries: &Path, pods: &[(&str, &str)], metadata: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let gateway = Gateway::start(binaries, &folder, &directory(&[("llm", pods)]));
        Self { folder, gateway, object: scaled_object("llm", metadata) }
    }

    fn client(&self) -> Client {
        Client::new(self.gateway.keda, self.object.clone())
    }

    fn agent(&self, binaries: &Path, process: &str, node: &str, pods: &[&str]) -> Process {
        let command = agent(binaries, &url(self.gateway.uplink), node, pods);
        Process::start(process, command, &self.folder)
    }

    async fn becomes(&self, expected: f64) {
        let client = self.client();
        eventually(&format!("the value is {expected}"), async || match client.value().await {
            Ok(value) if value == expected => Ok(()),
            other => Err((other, self.gateway.process.log())),
        })
        .await;
    }
}

/// Row "agent dies, node lost, partition": each fault has a node, a line
/// and a Deployment of its own, and the last of them has none and must notice nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_breaks_an_agent_its_pod_goes_missing_is_never_zero_and_comes_back() {
    let binaries = binaries();
    let folder = Arc::new(tempfile::tempdir().unwrap());
    let pods = AGENT_FAULTS.map(|(name, ..)| [(name, name)]);
    let workloads: Vec<(&str, &[(&str, &str)])> =
        pods.iter().map(|pods| (pods[0].0, &pods[..])).collect();
    let gateway = Gateway::start(&binaries, &folder, &directory(&workloads));
    let (local, mut cases) = (LocalSet::new(), JoinSet::new());
    for (name, fault, goes_missing) in AGENT_FAULTS {
        let proxy = Proxy::to(gateway.uplink).await;
        let command = agent(&binaries, &url(proxy.address), name, &[name]);
        let process = Process::start(name, command, &folder);
        let metadata: &[_] = if goes_missing { &[SOON_STALE] } else { &[] };
        let client = Client::new(gateway.keda, scaled_object(name, metadata));
        let again = agent(&binaries, &url(proxy.address), name, &[name]);
        let case = Case { name, proxy, process, again, client, folder: folder.clone() };
        cases.spawn_local_on(case.run(fault, goes_missing), &local);
    }
    local.run_until(all_end_well(cases)).await;
    // Each agent has left with its case.
    let sessions = async || match gateway.metric("gpu_gateway_agent_sessions").await {
        Ok(0.0) => Ok(()),
        other => Err(other),
    };
    eventually("no session is left over", sessions).await;
}

async fn all_end_well(mut cases: JoinSet<()>) {
    while let Some(case) = cases.join_next().await {
        case.unwrap();
    }
}

/// One agent behind a line, and who asks about its pod.
struct Case {
    name: &'static str,
    proxy: Proxy,
    process: Process,
    /// What starts the agent again.
    again: Command,
    client: Client,
    folder: Arc<TempDir>,
}

impl Case {
    async fn run(mut self, fault: Fault, goes_missing: bool) {
        eventually(self.name, async || self.client.value().await).await;
        let excused = if goes_missing { Excused::Unavailable } else { Excused::No };
        let mut watched = Watched::start(self.name, self.client, &[LOAD], excused);
        watched.is_known().await;
        match fault {
            Fault::Line(line) => self.proxy.is(line),
            Fault::Killed => self.process.signal("KILL"),
            Fault::Stopped => self.process.signal("STOP"),
        }
        if goes_missing {
            watched.is_missing().await;
            sleep(Duration::from_secs(1)).await;
            assert_eq!(watched.newest(), Some(Err(Code::Unavailable)), "{}", self.name);
        } else {
            sleep(A_WHILE).await;
        }
        match fault {
            Fault::Line(_) => self.proxy.is(Line::Good),
            Fault::Killed => {
                self.process = Process::start(self.name, self.again, &self.folder);
            }
            Fault::Stopped => self.process.signal("CONT"),
        }
        watched.is_known().await;
        watched.was_never_wrong().await;
    }
}

/// What breaks between KEDA and the gateway is an error there or nothing, never another value; and
/// costs neither the others their answers nor the gateway a stream.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_breaks_a_client_it_hears_no_wrong_value_and_the_others_hear_theirs() {
    let binaries = binaries();
    let one = OneDeployment::start(&binaries, &[("p0", "n0")], &[]);
    let _agent = one.agent(&binaries, "n0", "n0", &["p0"]);
    one.becomes(LOAD).await;
    let undisturbed = Watched::start("undisturbed", one.client(), &[LOAD], Excused::No);
    let (local, mut cases) = (LocalSet::new(), JoinSet::new());
    for (name, line, breaks) in [
        ("cut", Line::Cut, true),
        ("silent", Line::Silent, true),
        ("reset", Line::Reset, true),
        ("late", Line::Late(Duration::from_millis(300)), false),
        ("narrow", Line::Narrow(2_000), false),
    ] {
        let proxy = Proxy::to(one.gateway.keda).await;
        let client = Client::new(proxy.address, one.object.clone());
        let case = async move {
            let mut watched = Watched::start(name, client, &[LOAD], Excused::Any);
            watched.is_known().await;
            proxy.is(line);
            if breaks {
                watched.is_missing().await;
            }
            sleep(A_WHILE).await;
            proxy.is(Line::Good);
            watched.is_known().await;
            watched.was_never_wrong().await;
        };
        cases.spawn_local_on(case, &local);
    }
    // Its line falls silent and stays so: the gateway finds out by itself.
    let proxy = Proxy::to(one.gateway.keda).await;
    let client = Client::new(proxy.address, one.object.clone());
    let mut lost = Watched::start("lost", client, &[LOAD], Excused::Any);
    lost.is_known().await;
    proxy.is(Line::Silent);
    local.run_until(all_end_well(cases)).await;
    let streams = async || match one.gateway.metric("gpu_gateway_rpc_streams").await {
        Ok(1.0) => Ok(()),
        other => Err(other),
    };
    eventually("only the undisturbed one's stream is left", streams).await;
    lost.was_never_wrong().await;
    undisturbed.was_never_wrong().await;
}

/// Row "gateway restarts".
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_gateway_comes_back_empty_and_says_nothing_before_it_knows_every_pod() {
    let binaries = binaries();
    let pods = [("p0", "n0"), ("p1", "n1"), ("p2", "n2")];
    let mut one = OneDeployment::start(&binaries, &pods, &[]);
    let agents = pods.map(|(pod, node)| one.agent(&binaries, node, node, &[pod]));
    let all = 3.0 * LOAD;
    one.becomes(all).await;
    let mut watched = Watched::start("restart", one.client(), &[all], Excused::Any);
    watched.is_known().await;
    let [_, slow, _] = &agents;
    slow.signal("STOP");
    one.gateway.process.signal("KILL");
    one.gateway.process.ended().await;
    watched.is_missing().await;
    let mut command = Command::new(binaries.join("gpu-gateway"));
    command.arg("serve");
    one.gateway =
        Gateway::start_at(one.gateway.addresses(), "gpu-gateway again", command, &one.folder);
    let two_are_back = async || match one.gateway.metric("gpu_gateway_agent_sessions").await {
        Ok(open) if open >= 2.0 => Ok(()),
        other => Err(format!("{other:?}")),
    };
    eventually("two agents are back", two_are_back).await;
    slow.signal("CONT");
    let ready = async || match one.gateway.is_ready().await {
        Ok(true) => Ok(()),
        other => Err(format!("{other:?}")),
    };
    eventually("it is ready", ready).await;
    watched.is_known().await;
    watched.was_never_wrong().await;
}

/// Row "two agents on one node", case O17.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_agents_on_one_node_are_counted_once_while_one_follows_the_other() {
    let binaries = binaries();
    let pods = [("a", "n1"), ("b", "n1")];
    let one = OneDeployment::start(&binaries, &pods, &[]);
    let mut agent = one.agent(&binaries, "first", "n1", &["a", "b"]);
    one.becomes(2.0 * LOAD).await;
    let mut watched = Watched::start("O17", one.client(), &[2.0 * LOAD], Excused::No);
    for (name, signal) in [("second", "TERM"), ("third", "KILL")] {
        let newer = one.agent(&binaries, name, "n1", &["a", "b"]);
        let sessions = async |wanted| match one.gateway.metric("gpu_gateway_agent_sessions").await {
            Ok(open) if open == wanted => Ok(()),
            other => Err(format!("{other:?}")),
        };
        eventually("both speak", async || sessions(2.0).await).await;
        watched.is_known().await;
        agent.signal(signal);
        agent.ended().await;
        eventually("the newer one speaks alone", async || sessions(1.0).await).await;
        watched.is_known().await;
        agent = newer;
    }
    sleep(Duration::from_secs(1)).await;
    watched.was_never_wrong().await;
}

/// Without descriptors for new connections the old ones go on; with them again, so do new ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_out_of_file_descriptors_serves_whom_it_knows_and_recovers() {
    let binaries = binaries();
    let folder = tempfile::tempdir().unwrap();
    let pods: &[_] = &[("p0", "n0")];
    fs::write(folder.path().join("directory.yaml"), directory(&[("llm", pods)])).unwrap();
    let mut shell = Command::new("sh");
    let gateway = binaries.join("gpu-gateway");
    shell.args(["-c", "ulimit -n 64 && exec \"$0\" \"$@\""]).arg(gateway).arg("serve");
    let addresses = [free_address(), free_address(), free_address()];
    let gateway = Gateway::start_at(addresses, "few descriptors", shell, &folder);
    let object = scaled_object("llm", &[]);
    let one = OneDeployment { folder, gateway, object };
    let _agent = one.agent(&binaries, "n0", "n0", &["p0"]);
    one.becomes(LOAD).await;
    let mut watched = Watched::start("known before", one.client(), &[LOAD], Excused::No);
    watched.is_known().await;
    let mut held = Vec::new();
    for _ in 0..50 {
        for address in [one.gateway.keda, one.gateway.uplink] {
            held.push(TcpStream::connect(address).await.unwrap());
        }
    }
    let late = one.client();
    let mut lasted = 0;
    while lasted < 2 {
        assert!(late.value().await.is_err(), "there is no room for another connection");
        watched.is_known().await;
        lasted += 1;
    }
    drop(held);
    eventually("new connections are served again", async || late.value().await).await;
    watched.was_never_wrong().await;
}

/// Row "clocks wrong": no moment of one machine ever reaches another, only ages and lengths do.
#[test]
fn an_agent_tells_ages_and_never_the_time() {
    let proto = concat!(env!("CARGO_MANIFEST_DIR"), "/../proto/proto/uplink/v1/uplink.proto");
    let text = fs::read_to_string(proto).unwrap();
    let fields = text.lines().map(|line| line.split("//").next().unwrap().trim());
    let fields = fields.filter_map(|line| line.split_once(" = ")?.0.split(' ').next_back());
    let timed = ["time", "stamp", "clock", "date", "epoch", "_at", "_ms", "second", "nano"];
    let timed: BTreeSet<&str> =
        fields.filter(|name| timed.iter().any(|word| name.contains(word))).collect();
    assert_eq!(timed, BTreeSet::from(["age_ms", "engine_interval_ms", "interval_ms"]));
}
