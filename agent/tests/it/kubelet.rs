//! The agent's question to a kubelet: when it is asked, and what holds when it does not answer.

use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use agent::device::{ObservedDevice, ObservedProcess, Processes, Seat};
use agent::owner::declared::Resources;
use agent::owner::id::Why;
use agent::owner::kubelet::pace::{Past, wait};
use agent::owner::kubelet::{Fault, Kubelet, Settings};
use prost::Message;
use proto::kubelet::{ContainerResources, PodResources};
use shared::brief::{Brief, PublishedDevice};
use shared::frame::{HolderSource, Mig};
use tokio::sync::watch;
use tonic::Status;

use crate::declared::{G, briefed};
use crate::kubelet_server::{Mood, TestKubelet, claiming, gpu, place, pod, with};
use crate::owner::device;

/// How long anything may take before a test fails; nothing is expected to take that long.
const PATIENCE: Duration = Duration::from_secs(20);

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
    assert_eq!(
        (counts.lists, counts.failures, counts.unresolved),
        (1, [0; Fault::ALL.len()], [0; 7])
    );
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
    // The ones that asked before notice it too.
    std::thread::spawn(move || {
        for stream in nonsense.incoming() {
            stream.unwrap().write_all(&b"HTTP/1.1 400 no\r\n\r\n".repeat(20)).unwrap();
        }
    });
    let mut asked = Asked::start(settings).await;
    assert_eq!(asked.failures(Fault::Other), 1, "{:?}", asked.trouble());
    assert!(asked.holders().is_err());
}

#[tokio::test]
async fn an_answer_that_is_not_of_pods_is_none() {
    let (_folder, settings) = place();
    let kubelet = TestKubelet::start(&settings.socket, Vec::new());
    kubelet.mood.send_replace(Mood::Babbles);
    let mut asked = Asked::start(settings).await;
    assert!(asked.holders().is_err_and(|why| why.starts_with("the kubelet's list is broken: ")));
    assert_eq!(asked.failures(Fault::Other), 1);
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
async fn a_kubelet_is_not_asked_sooner_than_it_may_be_nor_because_of_a_brief_while_it_fails() {
    let (_folder, settings) = place();
    let kubelet = TestKubelet::start(&settings.socket, Vec::new());
    let limited = Settings { soonest: Duration::from_secs(3_600), ..settings.clone() };
    let limited = Asked::start(limited).await;
    kubelet.mood.send_replace(Mood::Refuses(Status::internal("no")));
    let failing = Asked::start(settings.clone()).await;
    kubelet.mood.send_replace(Mood::Says(Vec::new()));
    let mut quick = Asked::start(settings).await;
    for round in 2..10 {
        for asked in [&limited, &failing, &quick] {
            asked.brief(&[("p", &format!("u{round}"), false)]);
            asked.kubelet.changed();
        }
        quick.until(|quick| quick.kubelet.counts().lists >= round).await;
    }
    assert_eq!(limited.kubelet.counts().lists, 1);
    assert_eq!(failing.kubelet.counts().lists, 1);
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

fn instance(uuid: &str) -> ObservedDevice {
    let mig = Some(Mig { parent: G.into(), profile: "3g.40gb".into() });
    let seat = Seat { minor: Some(1), gpu_instance: Some(2), compute_instance: Some(0) };
    ObservedDevice { mig, seat, ..device(uuid, Vec::new()) }
}

#[tokio::test]
async fn instances_are_found_by_their_place_and_not_taken_for_the_ones_cut_after_them() {
    let (_folder, settings) = place();
    let legacy = format!("MIG-{G}/2/0::1");
    let mig = "MIG-42f0f413-f7b0-58cc-aced-c1d1fb54db26";
    let given = [
        gpu("gke", "nvidia1/gi2/vgpu0"),
        gpu("legacy", &legacy),
        pod("mixed", "nvidia.com/mig-3g.40gb", &[mig]),
    ];
    let kubelet = TestKubelet::start(&settings.socket, given.to_vec());
    let mut asked = Asked::start(settings).await;
    asked.devices = vec![device(G, Vec::new()), instance(mig)];
    let pods = |asked: &mut Asked, uuid: &str| -> Vec<String> {
        let declaration = asked.kubelet.declaration(None, &asked.devices);
        let holders = declaration.holders.get(uuid).into_iter().flatten();
        holders.map(|holder| holder.pod.name.to_string()).collect()
    };
    assert_eq!(pods(&mut asked, mig), ["gke", "legacy", "mixed"]);
    assert_eq!(pods(&mut asked, G), [""; 0], "it is cut, and nobody has all of it");

    let other = "MIG-99990000-f7b0-58cc-aced-c1d1fb54db26";
    asked.devices[1] = instance(other);
    assert_eq!(pods(&mut asked, other), ["gke", "legacy"], "whoever has that place");
    assert_eq!(asked.kubelet.counts().unresolved.iter().sum::<u64>(), 1);
    asked.until(|_| kubelet.asked() == 2).await;
}

#[tokio::test]
async fn a_claimed_device_is_found_by_what_its_driver_publishes() {
    let (_folder, settings) = place();
    let _kubelet = TestKubelet::start(&settings.socket, vec![claiming("p", "gpu-7")]);
    let mut asked = Asked::start(settings).await;
    assert_eq!(asked.holders(), Ok(Vec::new()), "there is no GPU of that number");
    let published = PublishedDevice {
        driver: "gpu.nvidia.com".into(),
        pool: "node1".into(),
        name: "gpu-7".into(),
        uuid: Some(G.into()),
        parent: None,
        profile: None,
    };
    let brief = Arc::new(Brief { pods: vec![briefed("p", "u")], devices: vec![published] });
    let declaration = asked.kubelet.declaration(Some(&brief), &asked.devices);
    let holder = &declaration.holders[G][0];
    assert_eq!(holder.source, HolderSource::Dra);
    assert_eq!(holder.uid.as_ref().map(ToString::to_string).as_deref(), Some("u"));
    assert!(declaration.unresolved.is_empty());
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
    pods.push(claiming("claims", "gpu-9"));
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
