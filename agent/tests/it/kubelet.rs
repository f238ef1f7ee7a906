//! The agent's own question to a kubelet: a real server of the real interface on a Unix socket.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use agent::app::App;
use agent::collector::Collector;
use agent::config::RunConfig;
use agent::device::replay::ReplayEnd;
use agent::device::{ObservedDevice, ObservedProcess, Processes, SourceSpec};
use agent::owner::declared::Resources;
use agent::owner::id::Why;
use agent::owner::kubelet::pace::{Past, wait};
use agent::owner::kubelet::{Fault, Kubelet, Settings};
use prost::Message;
use proto::kubelet::pod_resources_lister_server::{PodResourcesLister, PodResourcesListerServer};
use proto::kubelet::{
    ClaimResource, ContainerDevices, ContainerResources, DynamicResource, ListPodResourcesRequest,
    ListPodResourcesResponse, PodResources,
};
use proto::uplink::agent_message::Body;
use shared::brief::Brief;
use shared::frame::{Holder, HolderSource};
use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use crate::declared::{G, briefed};
use crate::owner::device;
use crate::process::{agent, ended, golden};
use crate::support::{Gateway, at};

/// How long anything may take before a test fails; nothing is expected to take that long.
const PATIENCE: Duration = Duration::from_secs(20);
const NEVER: Duration = Duration::from_secs(86_400);

/// What the kubelet of the tests does when it is asked.
#[derive(Clone)]
pub(crate) enum Mood {
    Says(Vec<PodResources>),
    Hangs,
    Refuses(Status),
}

/// A kubelet of the tests; its socket stays when it is dropped, as a kubelet's does.
pub(crate) struct TestKubelet {
    pub(crate) mood: watch::Sender<Mood>,
    asked: Arc<AtomicU64>,
    server: tokio::task::JoinHandle<Result<(), tonic::transport::Error>>,
}

impl TestKubelet {
    pub(crate) fn start(socket: &Path, pods: Vec<PodResources>) -> Self {
        let (mood, moods) = watch::channel(Mood::Says(pods));
        let asked = Arc::new(AtomicU64::new(0));
        let lister = PodResourcesListerServer::new(Lister { moods, asked: asked.clone() })
            .max_encoding_message_size(64 << 20);
        let listener = UnixListenerStream::new(UnixListener::bind(socket).unwrap());
        let server = tonic::transport::Server::builder().add_service(lister);
        Self { mood, asked, server: tokio::spawn(server.serve_with_incoming(listener)) }
    }

    fn asked(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }
}

impl Drop for TestKubelet {
    fn drop(&mut self) {
        self.server.abort();
    }
}

struct Lister {
    moods: watch::Receiver<Mood>,
    asked: Arc<AtomicU64>,
}

#[tonic::async_trait]
impl PodResourcesLister for Lister {
    async fn list(
        &self,
        _: Request<ListPodResourcesRequest>,
    ) -> Result<Response<ListPodResourcesResponse>, Status> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let mood = self.moods.borrow().clone();
        match mood {
            Mood::Says(pods) => {
                let pods = pods.iter().map(|pod| pod.encode_to_vec().into());
                Ok(Response::new(ListPodResourcesResponse { pod_resources: pods.collect() }))
            }
            Mood::Refuses(status) => Err(status),
            Mood::Hangs => std::future::pending().await,
        }
    }
}

/// A pod of one container that was given devices of a plugin.
pub(crate) fn pod(name: &str, resource: &str, ids: &[&str]) -> PodResources {
    let devices = ContainerDevices {
        resource_name: resource.into(),
        device_ids: ids.iter().map(|id| (*id).to_owned()).collect(),
    };
    with(name, ContainerResources { devices: vec![devices], ..ContainerResources::default() })
}

fn with(name: &str, container: ContainerResources) -> PodResources {
    let container = ContainerResources { name: "main".into(), ..container };
    PodResources { name: name.into(), namespace: "ai".into(), containers: vec![container] }
}

fn gpu(name: &str, id: &str) -> PodResources {
    pod(name, "nvidia.com/gpu", &[id])
}

/// A folder for a socket, and settings that ask there again only for a reason.
fn place() -> (TempDir, Settings) {
    let folder = tempfile::tempdir().unwrap();
    let mut settings = Settings::new(folder.path().join("kubelet.sock"), Resources::default());
    settings.soonest = Duration::ZERO;
    settings.look = Duration::from_millis(10);
    for never in
        [&mut settings.every, &mut settings.quiet, &mut settings.retry, &mut settings.longest]
    {
        *never = NEVER;
    }
    (folder, settings)
}

/// The agent's side, and the briefs it hears.
struct Asked {
    kubelet: Kubelet,
    briefs: watch::Sender<Option<Arc<Brief>>>,
    devices: Vec<ObservedDevice>,
}

impl Asked {
    async fn start(settings: Settings) -> Self {
        let briefs = watch::Sender::new(None);
        let mut kubelet = Kubelet::new(settings, briefs.subscribe());
        kubelet.start(PATIENCE).await;
        Self { kubelet, briefs, devices: vec![device(G, Vec::new())] }
    }

    /// Pods and UIDs that hold the GPU, or why that is not known.
    fn holders(&mut self) -> Result<Vec<String>, String> {
        let brief = self.briefs.borrow().clone();
        let declaration = self.kubelet.declaration(brief.as_ref(), &self.devices);
        if !declaration.is_known {
            assert!(declaration.holders.is_empty());
            return Err(declaration.trouble.as_deref().unwrap().to_owned());
        }
        let holders = declaration.holders.get(G).into_iter().flatten();
        Ok(holders
            .map(|holder| match &holder.uid {
                Some(uid) => format!("{} {uid}", holder.pod.name),
                None => holder.pod.name.to_string(),
            })
            .collect())
    }

    fn trouble(&mut self) -> Option<String> {
        let brief = self.briefs.borrow().clone();
        let declaration = self.kubelet.declaration(brief.as_ref(), &self.devices);
        declaration.trouble.as_deref().map(str::to_owned)
    }

    fn failures(&self, fault: Fault) -> u64 {
        let place = Fault::ALL.iter().position(|known| *known == fault).unwrap();
        self.kubelet.counts().failures[place]
    }

    fn brief(&self, pods: &[(&str, &str, bool)]) {
        let pods = pods.iter().map(|(name, uid, finished)| {
            let mut pod = briefed(name, uid);
            pod.finished = *finished;
            pod
        });
        let brief = Brief { pods: pods.collect(), devices: Vec::new() };
        self.briefs.send_replace(Some(Arc::new(brief)));
    }

    /// Ticks until `wanted` is so.
    async fn until(&mut self, mut wanted: impl FnMut(&mut Self) -> bool) {
        let ticks = async {
            while !wanted(self) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, ticks).await.expect("it never came to that");
    }

    async fn until_held_by(&mut self, pods: &[&str]) {
        self.until(|asked| asked.holders().is_ok_and(|holders| holders == pods)).await;
    }
}

#[tokio::test]
async fn the_kubelets_word_is_who_holds_the_gpu() {
    let (_folder, settings) = place();
    let web = with("web", ContainerResources::default());
    let kubelet =
        TestKubelet::start(&settings.socket, vec![web, gpu("p", G), pod("cpu", "cpu", &["0"])]);
    let mut asked = Asked::start(settings).await;
    assert_eq!(asked.holders(), Ok(vec!["p".to_owned()]));
    assert_eq!(asked.trouble(), None);
    let counts = asked.kubelet.counts();
    assert_eq!((counts.lists, counts.failures, counts.unresolved), (1, [0; 7], [0; 7]));
    assert!(counts.age.is_some());
    assert_eq!(kubelet.asked(), 1);
}

#[tokio::test]
async fn an_answer_of_five_megabytes_with_our_pod_last_is_read() {
    let (_folder, settings) = place();
    let filler = |number: usize| {
        pod(&format!("{number}-{}", "x".repeat(200)), "example.com/nic", &[&"n".repeat(300)])
    };
    let mut pods: Vec<_> = (0..10_000).map(filler).collect();
    pods.push(gpu("last", G));
    let size = length(&pods);
    assert!(size > 5_000_000 && size < 16 << 20, "{size}");
    let kubelet = TestKubelet::start(&settings.socket, pods.clone());
    let mut asked = Asked::start(settings.clone()).await;
    assert_eq!(asked.holders(), Ok(vec!["last".to_owned()]));

    while length(&pods) <= 16 << 20 {
        pods.extend_from_within(..10_000);
    }
    kubelet.mood.send_replace(Mood::Says(pods));
    let mut asked = Asked::start(settings).await;
    assert_eq!(asked.failures(Fault::TooLarge), 1, "{:?}", asked.trouble());
}

fn length(pods: &[PodResources]) -> usize {
    pods.iter().map(Message::encoded_len).sum()
}

#[tokio::test]
async fn a_socket_that_is_missing_is_used_as_soon_as_it_is_there() {
    let (_folder, settings) = place();
    let socket = settings.socket.clone();
    let mut asked = Asked::start(settings).await;
    let why = format!("the kubelet's socket {} is missing", socket.display());
    assert_eq!(asked.holders(), Err(why));
    assert_eq!(asked.failures(Fault::Missing), 1);
    let _kubelet = TestKubelet::start(&socket, vec![gpu("p", G)]);
    asked.until_held_by(&["p"]).await;
}

#[tokio::test]
async fn a_kubelet_that_hangs_is_given_up() {
    let (_folder, mut settings) = place();
    settings.deadline = Duration::from_millis(50);
    settings.retry = Duration::from_millis(10);
    let kubelet = TestKubelet::start(&settings.socket, Vec::new());
    kubelet.mood.send_replace(Mood::Hangs);
    let mut asked = Asked::start(settings).await;
    assert_eq!(asked.holders(), Err("the kubelet does not answer within 50ms".into()));
    assert_eq!(asked.kubelet.counts().age, None);
    kubelet.mood.send_replace(Mood::Says(vec![gpu("p", G)]));
    asked.until_held_by(&["p"]).await;
    assert_eq!(asked.trouble(), None);
}

#[tokio::test]
async fn a_socket_that_accepts_nothing_or_speaks_nonsense_is_given_up() {
    let (_folder, mut settings) = place();
    settings.deadline = Duration::from_millis(50);
    let silent = std::os::unix::net::UnixListener::bind(&settings.socket).unwrap();
    let mut asked = Asked::start(settings.clone()).await;
    assert_eq!(asked.failures(Fault::Timeout), 1, "{:?}", asked.trouble());
    drop(silent);
    let asked = Asked::start(settings.clone()).await;
    assert_eq!(asked.failures(Fault::Refused), 1, "nobody listens");

    std::fs::remove_file(&settings.socket).unwrap();
    settings.deadline = PATIENCE;
    let nonsense = std::os::unix::net::UnixListener::bind(&settings.socket).unwrap();
    std::thread::spawn(move || {
        use std::io::Write as _;
        nonsense.accept().unwrap().0.write_all(&b"HTTP/1.1 400 no\r\n\r\n".repeat(20)).unwrap();
    });
    let mut asked = Asked::start(settings).await;
    assert_eq!(asked.failures(Fault::Other), 1, "{:?}", asked.trouble());
    assert!(asked.holders().is_err());
}

#[tokio::test]
async fn another_kubelet_on_the_same_path_is_noticed() {
    let (folder, settings) = place();
    let socket = settings.socket.clone();
    let first = TestKubelet::start(&socket, vec![gpu("one", G)]);
    let mut asked = Asked::start(settings).await;
    asked.until_held_by(&["one"]).await;
    let new = folder.path().join("new.sock");
    let second = TestKubelet::start(&new, vec![gpu("two", G)]);
    // The first one still listens, but nobody can find it any more.
    std::fs::rename(new, socket).unwrap();
    asked.until_held_by(&["two"]).await;
    assert_eq!((first.asked(), second.asked()), (1, 1));
}

#[tokio::test]
async fn what_the_kubelet_refuses_is_said_and_its_last_word_holds_for_a_while() {
    let (_folder, mut settings) = place();
    settings.every = Duration::from_millis(10);
    settings.retry = Duration::from_millis(10);
    settings.longest = Duration::from_millis(10);
    let kubelet = TestKubelet::start(&settings.socket, vec![gpu("p", G)]);
    let mut asked = Asked::start(settings.clone()).await;
    settings.keep = Duration::from_millis(100);
    let mut forgetful = Asked::start(settings).await;
    forgetful.until_held_by(&["p"]).await;
    for (status, fault, said) in [
        (
            Status::resource_exhausted("rate limit"),
            Fault::Exhausted,
            "the kubelet says: rate limit",
        ),
        (Status::internal("x".repeat(9_000)), Fault::Other, "the kubelet says: xxx"),
        (Status::unimplemented(""), Fault::Other, "the kubelet says: Operation is not implemented"),
    ] {
        kubelet.mood.send_replace(Mood::Refuses(status));
        asked.until(|asked| asked.trouble().is_some_and(|why| why.starts_with(said))).await;
        assert!(asked.trouble().unwrap().len() < 300);
        assert!(asked.failures(fault) > 0);
        assert_eq!(asked.holders(), Ok(vec!["p".to_owned()]), "its word holds for a minute");
    }
    forgetful.until(|asked| asked.holders().is_err_and(|why| why.contains("says"))).await;
    assert_eq!(forgetful.kubelet.counts().age, None);
    kubelet.mood.send_replace(Mood::Says(vec![gpu("q", G)]));
    asked.until_held_by(&["q"]).await;
    forgetful.until_held_by(&["q"]).await;
}

#[tokio::test]
async fn a_change_of_the_brief_asks_at_once_and_decides_who_it_is() {
    let (_folder, settings) = place();
    let kubelet = TestKubelet::start(&settings.socket, vec![gpu("a", G), gpu("b", G)]);
    let mut asked = Asked::start(settings).await;
    assert_eq!(asked.holders(), Ok(vec!["a".to_owned(), "b".to_owned()]));
    asked.brief(&[("a", "u1", false), ("b", "u2", true)]);
    assert_eq!(asked.holders(), Ok(vec!["a u1".to_owned()]), "b has finished");
    asked.until(|_| kubelet.asked() == 2).await;

    // Another pod of that name: what was listed before it came was not given to it.
    asked.until(|asked| asked.kubelet.counts().lists == 2).await;
    kubelet.mood.send_replace(Mood::Hangs);
    asked.brief(&[("a", "u3", false)]);
    assert!(!asked.holders().unwrap().contains(&"a u3".to_owned()));
    asked.until(|_| kubelet.asked() == 3).await;
    drop(asked);

    kubelet.mood.send_replace(Mood::Says(vec![gpu("a", G)]));
    let (_folder, other) = place();
    let kubelet = TestKubelet::start(&other.socket, vec![gpu("a", G)]);
    let mut asked = Asked::start(other).await;
    asked.brief(&[("a", "u1", false)]);
    asked.until_held_by(&["a u1"]).await;
    asked.until(|asked| asked.kubelet.counts().lists == 2).await;
    asked.brief(&[("a", "u3", false)]);
    asked.until_held_by(&["a u3"]).await;
    assert_eq!(kubelet.asked(), 3);
}

#[tokio::test]
async fn other_processes_or_devices_ask_at_once_and_the_same_ones_do_not() {
    let (_folder, settings) = place();
    let kubelet = TestKubelet::start(&settings.socket, Vec::new());
    let mut asked = Asked::start(settings).await;
    let of = |pids: &[u32]| {
        let process = |&pid| ObservedProcess { pid, memory_mib: None, utilization: None };
        Processes::Known(pids.iter().map(process).collect())
    };
    asked.devices[0].processes = of(&[7, 9]);
    asked.holders().unwrap();
    asked.devices[0].processes = of(&[9, 7]);
    asked.holders().unwrap();
    assert_eq!(kubelet.asked(), 1);
    asked.devices[0].processes = of(&[9, 8]);
    asked.holders().unwrap();
    asked.until(|asked| asked.kubelet.counts().lists == 2).await;
    asked.devices.push(device("GPU-new", Vec::new()));
    asked.holders().unwrap();
    asked.until(|asked| asked.kubelet.counts().lists == 3).await;
    asked.kubelet.changed();
    asked.until(|asked| asked.kubelet.counts().lists == 4).await;
    assert_eq!(kubelet.asked(), 4);
}

#[tokio::test]
async fn ids_that_name_nothing_are_counted_by_reason_and_hold_nothing() {
    let (_folder, settings) = place();
    let ids = [
        "",
        "::",
        "::x",
        "nvidia",
        "nvidia0/gi",
        "GPU-",
        "0",
        "0000:c1:00.0",
        "card0-1",
        "GPU-5a5a7118-e550-79a1-597e-7631e126c57a-4",
        "nvidia0",
        "MIG-GPU-/1/0",
        "🂡",
        "MIG-42f0f413-f7b0-58cc-aced-c1d1fb54db26::0",
    ];
    let long = "g".repeat(300);
    let mut pods = vec![pod("broken", "nvidia.com/gpu", &ids), gpu("long", &long)];
    pods.push(pod(&"p".repeat(1_000), "nvidia.com/gpu", &[&format!("{G}::x")]));
    let claim = ClaimResource {
        driver_name: "gpu.nvidia.com".into(),
        pool_name: "node1".into(),
        device_name: "gpu-9".into(),
        share_id: Some("s".into()),
    };
    let claims = DynamicResource { claim_resources: vec![claim], ..DynamicResource::default() };
    let container =
        ContainerResources { dynamic_resources: vec![claims], ..ContainerResources::default() };
    pods.push(with("claims", container));
    let _kubelet = TestKubelet::start(&settings.socket, pods);
    let mut asked = Asked::start(settings).await;
    assert_eq!(asked.holders(), Ok(Vec::new()));
    let counts = asked.kubelet.counts().unresolved;
    let expected = [
        (Why::UnknownForm, 10),
        (Why::Hami, 1),
        (Why::Amd, 1),
        (Why::Intel, 1),
        (Why::Index, 1),
        (Why::NoDevice, 3),
        (Why::Ambiguous, 0),
    ];
    assert_eq!(Why::ALL.into_iter().zip(counts).collect::<Vec<_>>(), expected);
    let declaration = asked.kubelet.declaration(None, &asked.devices);
    assert!(
        declaration
            .unresolved
            .iter()
            .all(|unresolved| { unresolved.id.len() <= 253 && unresolved.pod.name.len() <= 253 })
    );
}

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
    assert!(printed(&["top", "--once"]).contains("ai/p (main) 100 %"));
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

#[test]
fn calls_are_few_where_nothing_changes_and_fewer_where_they_fail() {
    let settings = Settings::new("".into(), Resources::default());
    let secs = Duration::from_secs;
    let past = |failures, fault, unchanged| Past { failures, fault, unchanged: secs(unchanged) };
    let missing = Some(Fault::Missing);
    let full = Some(Fault::Exhausted);
    for (past, expected) in [
        (past(0, None, 0), 5),
        (past(0, None, 59), 5),
        (past(0, None, 60), 30),
        (past(1, missing, 0), 1),
        (past(2, missing, 0), 2),
        (past(5, missing, 600), 16),
        (past(6, missing, 0), 30),
        (past(u32::MAX, missing, 0), 30),
        (past(1, full, 0), 10),
        (past(4, full, 0), 16),
        (past(5, full, 0), 30),
    ] {
        assert_eq!(wait(&settings, past, 0.5), secs(expected), "{past:?}");
        assert_eq!(wait(&settings, past, 0.0), secs(expected).mul_f64(0.8));
        assert_eq!(wait(&settings, past, 1.0), secs(expected).mul_f64(1.2));
    }
}
