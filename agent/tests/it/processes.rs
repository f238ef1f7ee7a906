//! Pids and the pods they run in, read from a tree that stands for `/proc`.

use std::fs;
use std::sync::Arc;

use agent::device::{Observation, ObservedProcess, Processes};
use agent::owner::process::{Occupant, PodProcess, Procfs};
use shared::brief::{Brief, BriefedContainer, BriefedPod};
use shared::identity::PodKey;

use crate::cgroups::{A, B, P1, P2, P3};
use crate::owner::device;
use crate::support::{at, logged};
pub(crate) use crate::tree::Tree;

pub(crate) fn process(
    pid: u32,
    utilization: Option<f64>,
    memory_mib: Option<f64>,
) -> ObservedProcess {
    ObservedProcess { pid, memory_mib, utilization }
}

fn listed(pids: &[u32]) -> Observation {
    let mut device = device("GPU-a", Vec::new());
    device.processes = Processes::Known(pids.iter().map(|&pid| process(pid, None, None)).collect());
    Observation { devices: vec![device], ..Observation::default() }
}

pub(crate) fn cgroup(uid: &str, id: &str) -> String {
    format!("0::/kubepods/burstable/pod{uid}/{id}\n")
}

pub(crate) fn briefed(name: &str, uid: &str, containers: &[(&str, &str)]) -> BriefedPod {
    let container =
        |&(name, id): &(&str, &str)| BriefedContainer { name: name.into(), id: Some(id.into()) };
    BriefedPod {
        key: PodKey::new("ai", name),
        uid: uid.into(),
        cgroup_uid: None,
        containers: containers.iter().map(container).collect(),
        finished: false,
        ip: None,
        engine: None,
    }
}

pub(crate) fn brief(pods: Vec<BriefedPod>) -> Arc<Brief> {
    Arc::new(Brief { pods, devices: Vec::new() })
}

fn unnamed(uid: &str) -> Occupant {
    Occupant::Pod(PodProcess { uid: uid.into(), pod: None, container: None })
}

fn named(name: &str, uid: &str, container: Option<&str>) -> Occupant {
    let pod = Some(PodKey::new("ai", name));
    Occupant::Pod(PodProcess { uid: uid.into(), pod, container: container.map(Into::into) })
}

#[test]
fn a_process_belongs_to_the_pod_of_its_cgroup_and_its_name_is_in_the_brief() {
    let tree = Tree::new();
    tree.process(100, 5, cgroup(P1, A));
    tree.process(101, 6, format!("0::/system.slice/docker-{B}.scope"));
    tree.process(102, 7, "0::/system.slice/kubelet.service");
    tree.process(103, 8, cgroup("b1946ac92492d2347c6235b4d2611184", A));
    tree.named(104, 9, "0::/system.slice/mps.service", "nvidia-cuda-mps-server");
    tree.process(105, 9, cgroup(P3, B));
    let mut processes = tree.reader();
    let observed = listed(&[100, 101, 102, 103, 104, 105, 999]);

    let owners = processes.look(&observed, None, at(0)).clone();
    assert!(owners.changed);
    assert_eq!(owners.trouble, None);
    assert_eq!(owners.occupants[&100], unnamed(P1));
    assert_eq!(owners.occupants[&101], Occupant::Stranger);
    assert_eq!(owners.occupants[&102], Occupant::Stranger);
    assert_eq!(owners.occupants[&103], unnamed("b1946ac92492d2347c6235b4d2611184"));
    assert_eq!(owners.occupants[&104], Occupant::Mps);
    assert!(!owners.occupants.contains_key(&999), "it has ended, which is no error");

    let mut hashed = briefed("etcd", P2, &[("etcd", A)]);
    hashed.cgroup_uid = Some("b1946ac92492d2347c6235b4d2611184".into());
    let mut finished = briefed("done", P3, &[("main", B)]);
    finished.finished = true;
    let known = brief(vec![briefed("llm", P1, &[("side", "77"), ("main", A)]), hashed, finished]);
    let owners = processes.look(&observed, Some(&known), at(1_000)).clone();
    assert!(!owners.changed, "only what is known of them changed");
    assert_eq!(owners.occupants[&100], named("llm", P1, Some("main")));
    assert_eq!(owners.occupants[&103], named("etcd", P2, Some("etcd")));
    assert_eq!(owners.occupants[&105], Occupant::Stranger, "finished pods own nothing");

    let docker = brief(vec![briefed("plain", P1, &[("main", B)])]);
    let owners = processes.look(&observed, Some(&docker), at(2_000));
    assert_eq!(owners.occupants[&101], named("plain", P1, Some("main")), "by its container's id");
    assert_eq!(owners.occupants[&100], named("plain", P1, None), "an id that is not known yet");
}

#[test]
fn a_process_is_read_once_and_another_one_under_its_pid_is_read_anew() {
    let tree = Tree::new();
    tree.process(100, 5, cgroup(P1, A));
    let mut processes = tree.reader();
    let observed = listed(&[100]);
    assert!(processes.look(&observed, None, at(0)).changed);

    // What is not read again cannot change.
    fs::write(tree.path().join("100/cgroup"), cgroup(P2, A)).unwrap();
    let owners = processes.look(&observed, None, at(1_000));
    assert_eq!((&owners.occupants[&100], owners.changed), (&unnamed(P1), false));

    tree.process(100, 6, cgroup(P2, A));
    let owners = processes.look(&observed, None, at(2_000));
    assert_eq!((&owners.occupants[&100], owners.changed), (&unnamed(P2), true));

    tree.end(100);
    let owners = processes.look(&observed, None, at(3_000));
    assert_eq!(owners.occupants[&100], unnamed(P2), "its last figures are its pod's");
    assert!(!owners.changed);

    let owners = processes.look(&listed(&[]), None, at(4_000));
    assert!(owners.changed && owners.occupants.is_empty());
    assert!(!processes.look(&listed(&[]), None, at(5_000)).changed);
}

#[test]
fn broken_files_of_one_process_leave_the_others_alone() {
    let tree = Tree::new();
    tree.process(1_000, 1, cgroup(P1, A));
    tree.process(1_001, 2, [0, 159, 146, 150, 255, b':', b'\n', 0]);
    tree.process(1_002, 3, vec![b'x'; 1 << 20]);
    tree.process(1_003, 4, "");
    tree.process(1_004, 5, cgroup(P2, A));
    fs::write(tree.path().join("1004/stat"), "1004 (no parenthesis").unwrap();
    tree.process(1_005, 6, cgroup(P2, A));
    fs::remove_file(tree.path().join("1005/cgroup")).unwrap();
    fs::create_dir(tree.path().join("1005/cgroup")).unwrap();
    // More than is read, but with the pod early enough.
    tree.process(1_006, 7, cgroup(P3, A) + &"9:x:/y\n".repeat(100_000));
    let mut processes = tree.reader();
    let observed = listed(&[1_000, 1_001, 1_002, 1_003, 1_004, 1_005, 1_006]);
    let owners = processes.look(&observed, None, at(0)).clone();
    assert_eq!(owners.occupants[&1_000], unnamed(P1));
    assert_eq!(owners.occupants[&1_006], unnamed(P3));
    let why = |pid: u32| match &owners.occupants[&pid] {
        Occupant::Unknown(why) => why.to_string(),
        other => panic!("{pid}: {other:?}"),
    };
    for pid in [1_001, 1_002, 1_003] {
        assert_eq!(why(pid), "its cgroup names neither a pod nor the host");
    }
    assert!(why(1_004).ends_with("1004/stat: it has no start time"), "{}", why(1_004));
    assert!(why(1_005).contains("1005/cgroup: "), "{}", why(1_005));
    assert!(!processes.look(&observed, None, at(1_000)).changed, "nothing is tried all the time");
    tree.process(1_004, 8, cgroup(P2, A));
    assert_eq!(processes.look(&observed, None, at(2_000)).occupants[&1_004], unnamed(P2));
}

#[test]
fn without_the_hosts_pids_nothing_is_read_because_they_are_other_processes_here() {
    let tree = Tree::in_namespace("pid:[4026532281]");
    tree.process(100, 5, cgroup(P1, A));
    let mut processes = tree.reader();
    let owners = processes.look(&listed(&[100]), None, at(0)).clone();
    let why = owners.trouble.unwrap();
    assert_eq!(&*why, "the host's processes are not seen from here; set hostPID: true");
    assert!(owners.occupants.is_empty() && !owners.changed);

    let tree = Tree::new();
    let owners = tree.reader().look(&listed(&[100]), None, at(0)).clone();
    let why = format!("none of them is in {}", tree.path().display());
    assert_eq!(owners.trouble.as_deref(), Some(why.as_str()));

    let nothing = tempfile::tempdir().unwrap();
    let mut processes = Procfs::new(nothing.path().into(), None);
    let why = processes.look(&listed(&[100]), None, at(0)).trouble.clone().unwrap();
    assert!(why.starts_with("whether the host's processes are seen is not known: "), "{why}");
}

#[test]
fn without_a_brief_the_folder_of_logs_knows_the_names() {
    let tree = Tree::new();
    tree.process(100, 5, cgroup(P1, A));
    tree.process(101, 5, cgroup(P2, A));
    let logs = tempfile::tempdir().unwrap();
    for name in [&format!("ai_llm_{P1}"), "nonsense", "a_b", "a_b_c_d", "__", "x__y"] {
        fs::create_dir(logs.path().join(name)).unwrap();
    }
    let mut processes = Procfs::new(tree.path().into(), Some(logs.path().into()));
    let observed = listed(&[100, 101]);
    let owners = processes.look(&observed, None, at(0));
    assert_eq!(owners.occupants[&100], named("llm", P1, None));
    assert_eq!(owners.occupants[&101], unnamed(P2));

    fs::create_dir(logs.path().join(format!("ai_late_{P2}"))).unwrap();
    let owners = processes.look(&observed, None, at(4_999));
    assert_eq!(owners.occupants[&101], unnamed(P2), "looked into every five seconds");
    let owners = processes.look(&observed, None, at(5_000));
    assert_eq!(owners.occupants[&101], named("late", P2, None));

    let nowhere = Some(logs.path().join("nowhere"));
    let mut processes = Procfs::new(tree.path().into(), nowhere);
    let (_, log) = logged(|| {
        for now in [0, 1_000, 2_000] {
            let owners = processes.look(&observed, None, at(now));
            assert_eq!(owners.occupants[&100], unnamed(P1));
        }
    });
    assert_eq!(log.matches("no names of pods").count(), 1, "{log}");
}
