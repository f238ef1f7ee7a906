//! The agent with a kubelet: frames, every subcommand, the doctor, and the gateway's briefs.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agent::app::App;
use agent::collector::Collector;
use agent::config::RunConfig;
use agent::device::SourceSpec;
use agent::device::meter::Meters;
use agent::device::replay::ReplayEnd;
use agent::engine::Engines;
use agent::owner::handover::Handovers;
use agent::owner::kubelet::Kubelet;
use proto::kubelet::PodResources;
use proto::uplink::agent_message::Body;
use serde_json::json;
use shared::brief::Brief;
use shared::frame::{Holder, HolderSource};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use crate::cgroups::{A, P1, P2};
use crate::declared::{G, briefed};
use crate::fake_nvml::{self, FakeNvml};
use crate::kubelet_server::{Mood, TestKubelet, gpu, place, pod};
use crate::process::{agent, ended, golden};
use crate::processes::{Tree, cgroup};
use crate::support::{Gateway, at};

/// A recording of one GPU that nobody is said to hold.
fn unheld(folder: &Path) -> PathBuf {
    let file = folder.join("node.jsonl");
    let line = format!(r#"{{"at_ms":0,"devices":[{{"uuid":"{G}","gpu_utilization":80}}]}}"#);
    std::fs::write(&file, line + "\n").unwrap();
    file
}

async fn collected(pods: Vec<PodResources>) -> Vec<Holder> {
    let (folder, settings) = place();
    let _kubelet = TestKubelet::start(&settings.socket, pods);
    let briefs = watch::Sender::new(None);
    let source = SourceSpec::Replay(unheld(folder.path()));
    let mut collector = Collector {
        engines: Engines::default(),
        processes: None,
        meters: Meters::default(),
        handovers: Handovers::default(),
        notes: Vec::new(),
        source: source.open(&"n".into(), ReplayEnd::Hold).unwrap(),
        holders: None,
        kubelet: Some(Kubelet::new(settings, briefs.subscribe())),
        briefs: briefs.subscribe(),
        interval: Duration::from_secs(1),
    };
    let first = collector.first(shared::process::Clock::start()).await;
    let again = collector.take(at(1_000), Some(&first.frame.inventory));
    assert!(Arc::ptr_eq(&first.frame.inventory, &again.frame.inventory), "nothing has changed");
    assert_eq!(again.kubelet.unwrap().lists, 1);
    let device = &first.frame.inventory.devices[0];
    assert_eq!(device.reason, None);
    device.holders.clone()
}

#[tokio::test]
async fn a_sole_owner_has_all_of_its_gpu() {
    let holders = collected(vec![gpu("p", G)]).await;
    assert_eq!(holders.len(), 1);
    assert_eq!((holders[0].share, holders[0].estimated), (Some(1.0), false));
    assert_eq!((holders[0].source, &*holders[0].container), (HolderSource::Kubelet, "main"));
}

#[tokio::test]
async fn replicas_of_a_time_sliced_gpu_have_all_of_their_holders() {
    let replica = |pod, number| gpu(pod, &format!("{G}::{number}"));
    let holders = collected(vec![replica("c", 2), replica("a", 0), replica("b", 1)]).await;
    let pods: Vec<_> = holders.iter().map(|holder| holder.pod.to_string()).collect();
    assert_eq!(pods, ["ai/a", "ai/b", "ai/c"]);
    assert!(holders.iter().all(|holder| holder.estimated && holder.share.is_some()));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_subcommand_that_reads_a_node_asks_its_kubelet() {
    let (folder, settings) = place();
    let _kubelet = TestKubelet::start(&settings.socket, vec![gpu("p", G)]);
    let source = format!("replay:{}", unheld(folder.path()).display());
    let socket = settings.socket.display().to_string();
    let read = ["--source", &source, "--kubelet-socket", &socket];
    let printed = |args: &[&str]| {
        let mut command = agent([args, &read].concat());
        tokio::task::block_in_place(|| ended(0, &mut command).0)
    };
    let line: serde_json::Value =
        serde_json::from_str(&printed(&["snapshot", "-o", "json"])).unwrap();
    let holders = &line["devices"][0]["holders"];
    assert_eq!(holders[0]["source"], "kubelet");
    assert_eq!((&holders[0]["pod"], holders[0]["share"].as_f64()), (&"p".into(), Some(1.0)));
    let screen = printed(&["top", "--once"]);
    let holder = screen.lines().find(|line| line.contains("ai/p (main)")).unwrap();
    assert!(holder.contains("100% kubelet"), "{screen}");
    let text = printed(&["snapshot", "-o", "prometheus"]);
    for line in [
        "# TYPE gpu_agent_kubelet_lists_total counter",
        "gpu_agent_kubelet_lists_total 1",
        "gpu_agent_kubelet_list_failures_total{reason=\"missing\"} 0",
        "gpu_agent_unresolved_devices{reason=\"hami\"} 0.0",
    ] {
        assert!(text.lines().any(|known| known == line), "{line}\n{text}");
    }
    assert!(text.contains("\ngpu_agent_kubelet_list_age_seconds "), "{text}");
    let file = folder.path().join("recording.jsonl").display().to_string();
    printed(&["record", &file, "--for", "1ms"]);
    assert!(std::fs::read_to_string(&file).unwrap().contains("\"source\":\"kubelet\""));
    // What is recorded is replayed without a kubelet.
    let (again, _) = tokio::task::block_in_place(|| {
        ended(0, &mut agent(["snapshot", "--source", &format!("replay:{file}")]))
    });
    assert!(again.contains("ai/p (main) 100 %"), "{again}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_without_the_kubelets_word_says_why() {
    let (folder, settings) = place();
    let source = format!("replay:{}", unheld(folder.path()).display());
    let socket = settings.socket.display().to_string();
    let mut command = agent(["snapshot", "-o", "json", "--source", &source]);
    command.args(["--kubelet-socket", &socket]);
    let why = format!("\"reason\":\"the kubelet's socket {socket} is missing\"");
    let (line, _) = tokio::task::block_in_place(|| ended(0, &mut command));
    assert!(line.contains(&why), "{line}");
    let kubelet = TestKubelet::start(&settings.socket, Vec::new());
    kubelet.mood.send_replace(Mood::Hangs);
    let (line, _) = tokio::task::block_in_place(|| ended(0, &mut command));
    assert!(line.contains("\"reason\":\"the kubelet was not heard yet\""), "{line}");
}

/// The pod and its UID in the newest inventory, once it is `wanted`.
async fn inventory_with(gateway: &mut Gateway, wanted: &[(&str, &str)]) {
    loop {
        let (_, Some(Body::Inventory(inventory))) = gateway.next().await else { continue };
        let holders = inventory.devices[0].holders.iter();
        let holders: Vec<_> =
            holders.map(|holder| (holder.pod.as_str(), holder.uid.as_str())).collect();
        if holders == wanted {
            return;
        }
    }
}

#[tokio::test]
async fn the_gateways_brief_tells_the_kubelets_pods_apart() {
    let (folder, settings) = place();
    let kubelet = TestKubelet::start(&settings.socket, vec![gpu("a", G), gpu("b", G)]);
    let mut gateway = Gateway::start().await;
    let source = SourceSpec::Replay(unheld(folder.path()));
    let mut config = RunConfig::new(gateway.url(), "n".into(), source);
    config.interval = Duration::from_millis(100);
    config.owners.kubelet_socket = Some(settings.socket);
    let shutdown = CancellationToken::new();
    let app = tokio::spawn(App::build(config).unwrap().run(shutdown.clone()));
    inventory_with(&mut gateway, &[("a", ""), ("b", "")]).await;
    let brief = |version, pods: &[(&str, &str, bool)]| {
        let pods = pods.iter().map(|(name, uid, finished)| {
            let mut pod = briefed(name, uid);
            pod.finished = *finished;
            pod
        });
        let brief = Brief { pods: pods.collect(), devices: Vec::new() };
        Some(proto::brief::to_wire(version, &brief))
    };
    gateway.brief.send_replace(brief(1, &[("a", "u1", false), ("b", "u2", true)]));
    inventory_with(&mut gateway, &[("a", "u1")]).await;
    // Another pod a, on a node whose kubelet lists active pods only.
    kubelet.mood.send_replace(Mood::Says(vec![gpu("a", G)]));
    gateway.brief.send_replace(brief(2, &[("a", "u3", false)]));
    inventory_with(&mut gateway, &[("a", "u3")]).await;
    shutdown.cancel();
    app.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_shared_card_is_split_by_process_where_the_gateway_names_the_pods() {
    let (_folder, settings) = place();
    let replica = |pod, number| gpu(pod, &format!("{G}::{number}"));
    let _kubelet = TestKubelet::start(&settings.socket, vec![replica("a", 0), replica("b", 1)]);
    let tree = Tree::new();
    tree.process(100, 1, cgroup(P1, A));
    tree.process(101, 1, cgroup(P2, A));
    let mut card = fake_nvml::gpu(G, 80);
    card["processes"] = json!([{"pid": 100, "memory": 1}, {"pid": 101, "memory": 1}]);
    card["process_utilization"] = json!([[100, 60, 0], [101, 20, 0]]);
    let fake = FakeNvml::new(&fake_nvml::machine(&[card]));
    let mut gateway = Gateway::start().await;
    let pods = vec![briefed("a", P1), briefed("b", P2)];
    let brief = proto::brief::to_wire(1, &Brief { pods, devices: Vec::new() });
    gateway.brief.send_replace(Some(brief));
    let source = SourceSpec::Nvml { library: Some(fake.path()) };
    let mut config = RunConfig::new(gateway.url(), "n".into(), source);
    config.owners.kubelet_socket = Some(settings.socket);
    config.owners.proc_root = tree.path().into();
    let shutdown = CancellationToken::new();
    let app = tokio::spawn(App::build(config).unwrap().run(shutdown.clone()));
    inventory_with(&mut gateway, &[("a", P1), ("b", P2)]).await;
    let (_, Some(Body::Sample(sample))) = gateway.next().await else { panic!("a sample is next") };
    assert!(!sample.devices[0].held.is_empty(), "told apart by process: {sample:?}");
    shutdown.cancel();
    app.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_says_where_the_way_from_the_kubelet_is_broken() {
    let (folder, settings) = place();
    let source = format!("replay:{}", unheld(folder.path()).display());
    let socket = settings.socket.display().to_string();
    let doctor = |name: &str, code| {
        let mut command = agent(["doctor", "--source", &source, "--kubelet-socket", &socket]);
        let (text, _) = tokio::task::block_in_place(|| ended(code, &mut command));
        let text = text.replace(&folder.path().display().to_string(), "FOLDER");
        format!("# {name}: exit code {code}\n{text}\n")
    };
    let mut report = doctor("no socket", 1);
    std::fs::create_dir(&settings.socket).unwrap();
    report += &doctor("a folder", 1);
    std::fs::remove_dir(&settings.socket).unwrap();
    std::fs::write(&settings.socket, "").unwrap();
    report += &doctor("a file", 1);
    std::fs::remove_file(&settings.socket).unwrap();
    let kubelet = TestKubelet::start(&settings.socket, vec![gpu("p", G), gpu("q", G)]);
    report += &doctor("all is well", 0);
    for (name, code, mood) in [
        ("nothing given", 0, Mood::Says(vec![pod("p", "cpu", &[G])])),
        ("an id of HAMi", 1, Mood::Says(vec![gpu("p", &format!("{G}-3")), gpu("q", "nvidia7")])),
        ("too many calls", 1, Mood::Refuses(Status::resource_exhausted("rate limit exceeded"))),
    ] {
        kubelet.mood.send_replace(mood);
        report += &doctor(name, code);
    }
    drop(kubelet);
    while std::os::unix::net::UnixStream::connect(&settings.socket).is_ok() {
        tokio::task::yield_now().await;
    }
    report += &doctor("nobody listens", 1);
    golden("doctor-kubelet.txt", &report);
}
