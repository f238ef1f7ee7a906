//! The doctor past the driver: a kubelet, processes and gateways that are real neighbours of the
//! process, with a golden file of every broken link.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;

use proto::kubelet::PodResources;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::block_in_place;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Server;

use crate::cgroups::{A, P1, P2, P3};
use crate::fake_nvml::{FakeNvml, gpu, machine};
use crate::kubelet_server::{Mood, TestKubelet, gpu as given, lister, place};
use crate::process::{agent, ended, golden};
use crate::processes::{Tree, cgroup};
use crate::site::{Site, page, response};
use crate::support::Gateway;

const MIB: u64 = 1 << 20;
const KERNEL: &str = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 2024\n";

/// A node with a kubelet, processes and the logs of pods.
struct Node {
    fake: FakeNvml,
    kubelet: TestKubelet,
    tree: Tree,
    folder: TempDir,
}

impl Node {
    fn new(script: &Value, pods: Vec<PodResources>) -> Self {
        let (folder, settings) = place();
        let node = Self {
            fake: FakeNvml::new(script),
            kubelet: TestKubelet::start(&settings.socket, pods),
            tree: Tree::new(),
            folder,
        };
        fs::create_dir_all(node.tree.path().join("driver/nvidia")).unwrap();
        fs::write(node.tree.path().join("driver/nvidia/version"), KERNEL).unwrap();
        for (pid, uid, name) in [(100, P1, "llm"), (101, P2, "chat"), (102, P3, "batch")] {
            node.tree.process(pid, 1, cgroup(uid, A));
            fs::create_dir_all(node.logs().join(format!("ai_{name}_{uid}"))).unwrap();
        }
        node.tree.process(103, 1, "0::/system.slice/display.service");
        node.tree.process(104, 1, "0::/kubepods.slice");
        node
    }

    fn logs(&self) -> PathBuf {
        self.folder.path().join("logs")
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = agent(["doctor"]);
        command
            .arg("--nvml-library")
            .arg(self.fake.path())
            .arg("--proc-root")
            .arg(self.tree.path())
            .arg("--kubelet-socket")
            .arg(self.folder.path().join("kubelet.sock"))
            .args(args);
        command
    }

    /// What the doctor says, with what differs from run to run left out.
    fn says(&self, code: i32, args: &[&str]) -> String {
        let logs = self.logs().display().to_string();
        let args: Vec<_> = args.iter().map(|arg| arg.replace("LOGS", &logs)).collect();
        let args: Vec<_> = args.iter().map(String::as_str).collect();
        let (text, log) = block_in_place(|| ended(code, &mut self.command(&args)));
        assert_eq!(log, "");
        let library = self.fake.path().parent().unwrap().display().to_string();
        let text = text.replace(&library, "LIB");
        let text = text.replace(&self.tree.path().display().to_string(), "PROC");
        text.replace(&self.folder.path().display().to_string(), "FOLDER")
    }

    /// The report without the links that come before.
    fn of_holders(&self, name: &str, code: i32, args: &[&str]) -> String {
        let text = self.says(code, args);
        let from = text.find("\nholders").expect(&text);
        format!("# {name}: exit code {code}\n{}\n", text[from..].trim_start())
    }
}

/// A GPU with these processes: pid, MiB and percent.
fn used(uuid: &str, processes: &[(u32, u64, u32)]) -> Value {
    let mut gpu = gpu(uuid, 80);
    let listed = processes.iter().map(|(pid, mib, _)| json!({"pid": pid, "memory": mib * MIB}));
    gpu["processes"] = listed.collect();
    gpu["process_utilization"] = processes.iter().map(|(pid, _, sm)| json!([pid, sm, 0])).collect();
    gpu
}

/// A GPU of which half is cut off as an instance.
fn cut() -> Value {
    let mut gpu = gpu("GPU-0c000000-0000-0000-0000-000000000000", 0);
    gpu["mig"] = json!([1, 1]);
    gpu["instances"] = json!([{
        "slot": 0, "uuid": "MIG-0c000000-0000-0000-0000-000000000000", "name": "NVIDIA H100 80GB HBM3 MIG 3g.40gb",
        "gi": 1, "ci": 0, "memory": [40_448 * MIB, 0, 1_024 * MIB],
    }]);
    gpu
}

#[tokio::test(flavor = "multi_thread")]
async fn every_device_is_told_of_who_holds_it_or_why_nobody_does() {
    let shared =
        used("GPU-0b000000-0000-0000-0000-000000000000", &[(100, 30_720, 50), (101, 10_240, 20)]);
    let script = machine(&[
        gpu("GPU-0a000000-0000-0000-0000-000000000000", 0),
        shared,
        cut(),
        gpu("GPU-0d000000-0000-0000-0000-000000000000", 0),
    ]);
    let pods = vec![
        given("sole", "GPU-0a000000-0000-0000-0000-000000000000"),
        given("llm", "GPU-0b000000-0000-0000-0000-000000000000::0"),
        given("chat", "GPU-0b000000-0000-0000-0000-000000000000::1"),
        given("slice", "MIG-0c000000-0000-0000-0000-000000000000"),
    ];
    let node = Node::new(&script, pods);
    golden("doctor-holders.txt", &node.says(0, &["--pod-logs", "LOGS"]));
    golden("doctor-holders.json", &node.says(0, &["--pod-logs", "LOGS", "-o", "json"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_known_of_holders_or_contradicts_itself_is_broken() {
    let node = Node::new(&machine(&[]), Vec::new());
    let both = || {
        vec![
            given("llm", "GPU-0a000000-0000-0000-0000-000000000000::0"),
            given("chat", "GPU-0a000000-0000-0000-0000-000000000000::1"),
        ]
    };
    let says = |mood| node.kubelet.mood.send_replace(Mood::Says(mood));
    let logs = ["--pod-logs", "LOGS"];
    let mut report = String::new();

    node.fake.script(&machine(&[used(
        "GPU-0a000000-0000-0000-0000-000000000000",
        &[(100, 1_024, 60), (101, 1_024, 20)],
    )]));
    says(both());
    report += &node.of_holders("names that nobody tells", 1, &[]);
    let gateway = ["--gateway", "http://127.0.0.1:1"];
    report += &node.of_holders("names that the gateway would tell", 1, &gateway);
    report += &node.of_holders("names in the folder of logs", 0, &logs);

    node.fake
        .script(&machine(&[used("GPU-0a000000-0000-0000-0000-000000000000", &[(102, 1_024, 60)])]));
    says(vec![given("llm", "GPU-0a000000-0000-0000-0000-000000000000")]);
    report += &node.of_holders("a pod that was not given it", 1, &logs);
    says(Vec::new());
    report += &node.of_holders("nobody was given it and it is used", 1, &logs);
    report += &node.of_holders("by a pod without a name", 1, &[]);

    node.fake
        .script(&machine(&[used("GPU-0a000000-0000-0000-0000-000000000000", &[(103, 1_024, 60)])]));
    report += &node.of_holders("a process outside any pod", 0, &[]);
    node.fake
        .script(&machine(&[used("GPU-0a000000-0000-0000-0000-000000000000", &[(104, 1_024, 60)])]));
    report += &node.of_holders("a process of no known pod", 1, &[]);

    let mut unread = used("GPU-0a000000-0000-0000-0000-000000000000", &[]);
    unread["errors"] = json!({"nvmlDeviceGetComputeRunningProcesses_v3": 999});
    node.fake.script(&machine(&[unread]));
    says(both());
    report += &node.of_holders("processes that the driver keeps to itself", 1, &logs);

    node.fake.script(&machine(&[used(
        "GPU-0a000000-0000-0000-0000-000000000000",
        &[(100, 1_024, 60), (101, 1_024, 20)],
    )]));
    let namespace = node.tree.path().join("self/ns/pid");
    fs::remove_file(&namespace).unwrap();
    symlink("pid:[4026532000]", &namespace).unwrap();
    report += &node.of_holders("without the host's pids", 1, &logs);
    says(vec![given("llm", "GPU-0a000000-0000-0000-0000-000000000000")]);
    report += &node.of_holders("without the host's pids, one holder", 0, &logs);
    golden("doctor-doubts.txt", &report);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_without_kubernetes_is_told_the_flag_for_it() {
    let node =
        Node::new(&machine(&[gpu("GPU-0a000000-0000-0000-0000-000000000000", 0)]), Vec::new());
    let mut report = String::new();
    for (name, code, socket) in
        [("nothing of Kubernetes", 1, "/none/pod-resources/kubelet.sock"), ("not asked", 0, "none")]
    {
        let mut command = agent(["doctor", "--nvml-library"]);
        command.arg(node.fake.path()).arg("--proc-root").arg(node.tree.path());
        let (text, _) = ended(code, command.args(["--kubelet-socket", socket]));
        let from = text.find("\ndevices").expect(&text);
        report += &format!("# {name}: exit code {code}\n{}\n", text[from..].trim_start());
    }
    golden("doctor-no-kubernetes.txt", &report);
}

/// The doctor of a simulation, and what it says of `url`.
fn of_gateway(name: &str, code: i32, url: &str, more: &[&str]) -> String {
    let mut command = agent(["doctor", "--source", "sim:gpus=1,pods=ai/p", "--gateway", url]);
    let (text, _) = block_in_place(|| ended(code, command.args(more)));
    let from = text.find("\ngateway").or(text.find("\nengine pages")).expect(&text);
    format!("# {name}: exit code {code}\n{}\n", text[from..].trim_start())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_is_asked_for_a_stream_and_not_told_of_a_node() {
    let mut gateway = Gateway::start().await;
    let (address, url) = (gateway.address.to_string(), gateway.url());
    let said = of_gateway("all is well", 0, &url, &[]);
    let mut report = said.replace(&address, "ADDRESS");
    assert_eq!(gateway.next().await, (0, None), "the stream ended before its hello");

    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let web = Site::start(response("400 Bad Request", "text/plain", "HTTP/1 only")).await;
    // A gRPC server of another kind, such as the port that KEDA asks.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let other = listener.local_addr().unwrap().to_string();
    tokio::spawn(
        Server::builder()
            .add_service(lister())
            .serve_with_incoming(TcpListenerStream::new(listener)),
    );
    for (name, address, cut) in [
        ("nobody listens", &*closed.to_string(), "(os error"),
        ("no gRPC", &web.address.to_string(), "--agent-listen: "),
        ("another port", &other, "\n"),
        ("no such name", "gateway.invalid:6001", "cannot be resolved: "),
    ] {
        let said = of_gateway(name, 1, &format!("http://{address}"), &[]);
        // How the system says why is its own.
        let (broken, next) = said.split_once("\n\nnext").expect(&said);
        let (_, line) = broken.split_once('\n').expect(&said);
        let line = line.split_inclusive(cut).next().unwrap_or(line);
        let said = format!("# {name}: exit code 1\n{line}\n\nnext{next}");
        report += &said.replace(address, "ADDRESS");
    }
    golden("doctor-gateway.txt", &report);
}

#[tokio::test(flavor = "multi_thread")]
async fn engine_pages_come_before_the_gateway() {
    let gateway = Gateway::start().await;
    let (address, url) = (gateway.address.to_string(), gateway.url());
    let site = Site::start(page("vllm:num_requests_waiting{model_name=\"m\"} 3\n")).await;
    let engine = format!("http://{}/metrics", site.address);
    let pages = ["--engine-page", &engine];
    let clean = |said: String| {
        said.replace(&address, "ADDRESS").replace(&site.address.to_string(), "ENGINE")
    };
    let mut report = clean(of_gateway("all is well", 0, &url, &pages));
    site.says(response("404 Not Found", "text/plain", ""));
    report += &clean(of_gateway("no page", 1, &url, &pages));
    golden("doctor-engine-pages.txt", &report);
}
