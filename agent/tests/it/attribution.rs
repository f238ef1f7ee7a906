//! Who holds which device: what was declared and whose processes run, put together.

use std::sync::Arc;

use agent::device::{Observation, ObservedDevice, ObservedProcess, Processes, Seat};
use agent::owner::declared::{Declaration, DeclaredHolder};
use agent::owner::process::{ProcessOwners, Procfs};
use agent::owner::{Known, Owners, resolve};
use shared::brief::Brief;
use shared::frame::HolderSource::{Equal, Kubelet, Memory, Process};
use shared::frame::{Holder, HolderSource, Mig};
use shared::identity::PodKey;
use shared::metric::Metric;
use shared::reading::{Reading, Readings};

use crate::cgroups::{A, B, P1, P2, P3};
use crate::owner::{device, holder, knowing};
use crate::processes::{Tree, brief, briefed, cgroup, process};
use crate::support::at;

pub(crate) fn given(pod: &str, uid: Option<&str>, container: &str) -> DeclaredHolder {
    DeclaredHolder {
        pod: PodKey::new("ai", pod),
        uid: uid.map(Into::into),
        container: container.into(),
        source: HolderSource::Kubelet,
    }
}

pub(crate) fn declaration(holders: &[(&str, Vec<DeclaredHolder>)]) -> Declaration {
    let holders = holders.iter().map(|(uuid, holders)| ((*uuid).into(), holders.clone()));
    Declaration { holders: holders.collect(), is_known: true, ..Declaration::default() }
}

fn load(utilization: f64) -> Readings {
    [
        (Metric::GpuUtilization, Reading::Ok(utilization)),
        (Metric::MemoryUsedMib, Reading::Ok(900.0)),
        (Metric::PowerDraw, Reading::Ok(300.0)),
    ]
    .into_iter()
    .collect()
}

pub(crate) fn card(utilization: f64, processes: Vec<ObservedProcess>) -> ObservedDevice {
    let mut device = device("GPU-a", Vec::new());
    device.readings = load(utilization);
    device.processes = Processes::Known(processes);
    device
}

/// A node whose three pods are llm, chat and batch, with a process each: 100, 101 and 102.
pub(crate) struct Node {
    pub(crate) tree: Tree,
    brief: Arc<Brief>,
    processes: Procfs,
}

impl Node {
    pub(crate) fn new() -> Self {
        let tree = Tree::new();
        for (pid, uid) in [(100, P1), (101, P2), (102, P3)] {
            tree.process(pid, 1, cgroup(uid, A));
        }
        let pods = [("llm", P1), ("chat", P2), ("batch", P3)];
        let pods = pods.map(|(name, uid)| briefed(name, uid, &[("main", A), ("side", B)]));
        let processes = tree.reader();
        Self { tree, brief: brief(pods.into()), processes }
    }

    pub(crate) fn owners(
        &mut self,
        devices: Vec<ObservedDevice>,
        declaration: &Declaration,
    ) -> Vec<Owners> {
        let observation = Observation { devices, ..Observation::default() };
        let processes = self.processes.look(&observation, Some(&self.brief), at(0));
        resolve(&observation, knowing(declaration, processes))
    }

    pub(crate) fn of(&mut self, device: ObservedDevice, declaration: &Declaration) -> Owners {
        self.owners(vec![device], declaration).remove(0)
    }
}

/// Pod, container, share, source, and whether it is a guess and undeclared.
type Told<'a> = (&'a str, &'a str, Option<f64>, HolderSource, bool, bool);

fn of_holder(holder: &Holder) -> Told<'_> {
    let Holder { pod, container, share, source, estimated, undeclared, .. } = holder;
    (&pod.name, container, *share, *source, *estimated, *undeclared)
}

fn told(owners: &Owners) -> Vec<Told<'_>> {
    owners.holders.iter().map(of_holder).collect()
}

fn held(owners: &Owners, metric: Metric) -> Vec<Option<f64>> {
    let of = |place| {
        let own = owners.held.iter().find(|own| own.holder == place && own.metric == metric);
        own.map(|own| own.value)
    };
    (0..owners.holders.len()).map(of).collect()
}

pub(crate) fn both() -> Declaration {
    let (llm, chat) = (given("llm", Some(P1), "main"), given("chat", Some(P2), "main"));
    declaration(&[("GPU-a", vec![llm, chat])])
}

#[test]
fn one_owner_has_all_of_its_device_with_or_without_the_hosts_pids() {
    let mut node = Node::new();
    let alone = declaration(&[("GPU-a", vec![given("llm", Some(P1), "main")])]);
    let expected = [("llm", "main", Some(1.0), Kubelet, false, false)];
    for processes in [vec![], vec![process(100, Some(50.0), Some(300.0))]] {
        let owners = node.of(card(80.0, processes), &alone);
        assert_eq!(told(&owners), expected);
        assert!(owners.held.is_empty() && owners.reason.is_none());
    }
    // Nobody looks at processes, or the driver does not tell of them.
    let mut device = card(80.0, vec![process(100, Some(50.0), None)]);
    for processes in [device.processes.clone(), Processes::Unasked, Processes::Failed("no".into())]
    {
        device.processes = processes;
        let observation = Observation { devices: vec![device.clone()], ..Observation::default() };
        let unread = ProcessOwners::unread();
        let owners = resolve(&observation, knowing(&alone, &unread)).remove(0);
        assert_eq!(told(&owners), expected);
        assert_eq!(owners.reason, None);
    }
    // Two of its containers were given the device, and a third uses it all the same.
    let two = [given("llm", Some(P1), "main"), given("llm", Some(P1), "other")];
    let owners = node.of(
        card(80.0, vec![process(100, Some(5.0), None)]),
        &declaration(&[("GPU-a", two.into())]),
    );
    let half = |container| ("llm", container, Some(0.5), Equal, true, false);
    assert_eq!(told(&owners), [half("main"), half("other")]);
}

#[test]
fn several_owners_are_told_apart_by_what_their_processes_do() {
    let mut node = Node::new();
    node.tree.process(110, 1, cgroup(P1, A));
    let used = |pid, used| process(pid, Some(used), Some(100.0));
    let owners =
        node.of(card(80.0, vec![used(100, 30.0), used(101, 30.0), used(110, 20.0)]), &both());
    let of = |pod| (pod, "main", None, Process, false, false);
    assert_eq!(told(&owners), [of("chat"), of("llm")]);
    assert_eq!(held(&owners, Metric::GpuUtilization), [Some(30.0), Some(50.0)]);
    assert_eq!(held(&owners, Metric::MemoryUsedMib), [Some(100.0), Some(200.0)]);
    assert_eq!(held(&owners, Metric::MemoryUsedPercent), [Some(10.0), Some(20.0)]);
    assert_eq!(held(&owners, Metric::PowerDraw), [Some(112.5), Some(187.5)]);
    assert_eq!(owners.reason, None);

    // Who has no process does nothing, where processes can be read and the load is known.
    let owners = node.of(card(30.0, vec![used(101, 30.0)]), &both());
    assert_eq!(held(&owners, Metric::GpuUtilization), [Some(30.0), Some(0.0)]);
    assert_eq!(held(&owners, Metric::MemoryUsedMib), [Some(100.0), Some(0.0)]);
    let owners = node.of(card(0.0, vec![]), &both());
    assert_eq!(held(&owners, Metric::GpuUtilization), [Some(0.0), Some(0.0)]);
    assert_eq!(owners.reason, None);

    let gib = |pid, gib: f64| process(pid, None, Some(gib * 1_024.0));
    let owners = node.of(card(80.0, vec![gib(100, 30.0), gib(101, 10.0)]), &both());
    let of = |pod| (pod, "main", None, Memory, true, false);
    assert_eq!(told(&owners), [of("chat"), of("llm")]);
    assert_eq!(held(&owners, Metric::GpuUtilization), [Some(20.0), Some(60.0)]);
}

#[test]
fn without_processes_owners_of_a_shared_device_have_equal_shares_and_the_reason_says_why() {
    let mut node = Node::new();
    let half = |pod| (pod, "main", Some(0.5), Equal, true, false);
    let mut lost = card(80.0, vec![]);
    lost.processes = Processes::Failed("no permission".into());
    let mut unasked = lost.clone();
    unasked.processes = Processes::Unasked;
    for (device, why) in [
        (card(80.0, vec![process(100, None, None)]), None),
        (lost, Some("its processes cannot be read: no permission")),
        (unasked, None),
    ] {
        let owners = node.of(device, &both());
        assert_eq!(told(&owners), [half("chat"), half("llm")]);
        assert_eq!(held(&owners, Metric::GpuUtilization), [None, None]);
        assert_eq!(owners.reason.as_deref(), why);
    }
    let trouble = Some("the host's processes are not seen from here; set hostPID: true".into());
    let blind = ProcessOwners { trouble, ..ProcessOwners::unread() };
    for processes in [vec![], vec![process(7, Some(80.0), Some(1.0))]] {
        let devices = vec![card(80.0, processes)];
        let observation = Observation { devices, ..Observation::default() };
        let owners = resolve(&observation, knowing(&both(), &blind)).remove(0);
        assert_eq!(told(&owners), [half("chat"), half("llm")]);
        let why = "its processes cannot be matched with pods: \
                   the host's processes are not seen from here; set hostPID: true";
        assert_eq!(owners.reason.as_deref(), Some(why));
    }
    // A device that nobody was given and nobody uses is free, and there is nothing to say of it.
    let observation = Observation { devices: vec![card(0.0, vec![])], ..Observation::default() };
    let nobody = Declaration { is_known: true, ..Declaration::default() };
    let owners = resolve(&observation, knowing(&nobody, &blind)).remove(0);
    assert_eq!(owners, Owners::default());
}

#[test]
fn who_uses_a_device_without_having_been_given_it_is_marked() {
    let mut node = Node::new();
    let alone = declaration(&[("GPU-a", vec![given("llm", Some(P1), "main")])]);
    let used = |pid, used| process(pid, Some(used), Some(100.0));
    let owners = node.of(card(80.0, vec![used(100, 50.0), used(102, 20.0)]), &alone);
    let expected = [
        ("llm", "main", None, Process, false, false),
        ("batch", "main", None, Process, false, true),
    ];
    assert_eq!(told(&owners), expected);
    assert_eq!(held(&owners, Metric::GpuUtilization), [Some(50.0), Some(20.0)]);

    let owners = node.of(card(80.0, vec![used(102, 20.0)]), &declaration(&[]));
    assert_eq!(told(&owners), [("batch", "main", None, Process, false, true)]);
    // With nothing to go by, only those who were given the device have a share.
    let owners = node.of(card(80.0, vec![process(102, None, None)]), &alone);
    let expected = [
        ("llm", "main", Some(1.0), Equal, true, false),
        ("batch", "main", None, Equal, true, true),
    ];
    assert_eq!(told(&owners), expected);
    // Nobody can tell who was given it.
    let unknown = Declaration { trouble: Some("no kubelet".into()), ..Declaration::default() };
    let owners = node.of(card(80.0, vec![used(102, 20.0)]), &unknown);
    assert_eq!(told(&owners), [("batch", "main", None, Process, false, false)]);
    assert_eq!(owners.reason.as_deref(), Some("no kubelet"));
}

#[test]
fn processes_of_no_pod_take_their_part_and_are_nobodys() {
    let mut node = Node::new();
    node.tree.process(200, 1, "0::/system.slice/slurm.service");
    let stranger = "5e1f0000-0000-4000-8000-000000000000";
    node.tree.process(201, 1, cgroup(stranger, B));
    node.tree.process(202, 1, "nonsense");
    let alone = declaration(&[("GPU-a", vec![given("llm", Some(P1), "main")])]);
    let used = |pid, used| process(pid, Some(used), Some(100.0));
    for (pid, why) in [
        (200, "used by processes outside any pod".to_owned()),
        (201, format!("used by a pod that has no known name, UID {stranger}")),
        (
            202,
            "used by a process of no known pod: its cgroup names neither a pod nor the host".into(),
        ),
    ] {
        let owners = node.of(card(80.0, vec![used(100, 30.0), used(pid, 50.0)]), &alone);
        assert_eq!(told(&owners), [("llm", "main", None, Process, false, false)]);
        assert_eq!(held(&owners, Metric::GpuUtilization), [Some(30.0)]);
        assert_eq!(owners.reason, Some(why.into()));
    }
    // One that has ended is nobody's, and no reason to say anything.
    let owners = node.of(card(80.0, vec![used(100, 30.0), used(999, 50.0)]), &both());
    assert_eq!(held(&owners, Metric::GpuUtilization), [Some(0.0), Some(30.0)]);
    assert_eq!(owners.reason, None);
}

#[test]
fn the_mps_server_is_nobodys_and_no_reason_to_split() {
    let mut node = Node::new();
    node.tree.named(300, 1, cgroup(P3, B), "nvidia-cuda-mps-server");
    let alone = declaration(&[("GPU-a", vec![given("llm", Some(P1), "main")])]);
    for idle in [None, Some(0.0)] {
        let processes = vec![process(100, Some(30.0), Some(1.0)), process(300, idle, Some(30.0))];
        let owners = node.of(card(30.0, processes), &alone);
        assert_eq!(told(&owners), [("llm", "main", Some(1.0), Kubelet, false, false)]);
    }
    // Its memory is not weighed either.
    let memory = |pid, mib| process(pid, None, Some(mib));
    let processes = vec![memory(100, 300.0), memory(101, 100.0), memory(300, 400.0)];
    let owners = node.of(card(80.0, processes), &both());
    assert_eq!(held(&owners, Metric::GpuUtilization), [Some(20.0), Some(60.0)]);
    let busy = vec![process(100, Some(30.0), Some(1.0)), process(300, Some(40.0), Some(30.0))];
    let owners = node.of(card(80.0, busy), &alone);
    assert_eq!(held(&owners, Metric::GpuUtilization), [Some(30.0)]);
}

#[test]
fn uids_decide_and_names_only_where_there_is_no_uid() {
    let mut node = Node::new();
    let used = |pid, used| process(pid, Some(used), None);
    // A namesake that was deleted before: its process still runs.
    let new = declaration(&[("GPU-a", vec![given("llm", Some("new"), "main")])]);
    let owners = node.of(card(80.0, vec![used(100, 30.0)]), &new);
    let expected =
        [("llm", "main", None, Process, false, false), ("llm", "main", None, Process, false, true)];
    assert_eq!(told(&owners), expected);
    assert_eq!(owners.holders[1].uid, Some(P1.into()));
    assert_eq!(held(&owners, Metric::GpuUtilization), [Some(0.0), Some(30.0)]);

    let named =
        declaration(&[("GPU-a", vec![given("llm", None, "main"), given("chat", None, "main")])]);
    let owners = node.of(card(80.0, vec![used(100, 30.0)]), &named);
    assert_eq!(held(&owners, Metric::GpuUtilization), [Some(0.0), Some(30.0)]);

    // Names on one side and UIDs on the other: they may be the same, and so nothing is matched.
    node.brief = brief(Vec::new());
    let owners = node.of(card(80.0, vec![used(100, 30.0)]), &named);
    let half = |pod| (pod, "main", Some(0.5), Equal, true, false);
    assert_eq!(told(&owners), [half("chat"), half("llm")]);
    assert!(owners.reason.unwrap().contains("nor --pod-logs says"));
    let alone = declaration(&[("GPU-a", vec![given("llm", None, "main")])]);
    let owners = node.of(card(80.0, vec![used(100, 30.0)]), &alone);
    assert_eq!(told(&owners), [("llm", "main", Some(1.0), Kubelet, false, false)]);
}

#[test]
fn what_was_written_down_wins_over_the_kubelet_and_processes() {
    let mut node = Node::new();
    let used = vec![process(100, Some(30.0), None)];
    let mut replayed = card(80.0, used.clone());
    replayed.holders = vec![holder("recorded", None)];
    let owners = node.of(replayed, &both());
    assert_eq!(
        told(&owners),
        [("recorded", "main", Some(1.0), HolderSource::Replay, false, false)]
    );
    let observation = Observation { devices: vec![card(80.0, used)], ..Observation::default() };
    let file = agent::owner::file::parse("GPU-a: [{namespace: ai, pod: told}]").unwrap();
    let unread = ProcessOwners::unread();
    let owners =
        resolve(&observation, Known { file: &file, ..knowing(&both(), &unread) }).remove(0);
    assert_eq!(told(&owners), [("told", "", Some(1.0), HolderSource::File, false, false)]);
}

#[test]
fn compute_instances_of_one_gpu_instance_are_split_as_one() {
    let mut node = Node::new();
    let instance = |uuid: &str, compute, processes| {
        let mut device = card(80.0, processes);
        device.uuid = uuid.into();
        device.mig = Some(Mig { parent: "GPU-a".into(), profile: "1c.3g.40gb".into() });
        device.seat =
            Seat { minor: Some(0), gpu_instance: Some(2), compute_instance: Some(compute) };
        device
    };
    let declared = declaration(&[
        ("MIG-0", vec![given("llm", Some(P1), "main")]),
        ("MIG-1", vec![given("chat", Some(P2), "main")]),
    ]);
    let memory = |pid, mib| vec![process(pid, None, Some(mib))];
    let devices =
        vec![instance("MIG-0", 0, memory(100, 300.0)), instance("MIG-1", 1, memory(101, 100.0))];
    let owners = node.owners(devices, &declared);
    assert_eq!(told(&owners[0]), [("llm", "main", None, Memory, true, false)]);
    assert_eq!(held(&owners[0], Metric::GpuUtilization), [Some(60.0)]);
    assert_eq!(held(&owners[1], Metric::GpuUtilization), [Some(20.0)]);
    assert_eq!(held(&owners[1], Metric::MemoryUsedMib), [Some(100.0)]);
    let unknown = |pid| vec![process(pid, None, None)];
    let devices = vec![instance("MIG-0", 0, unknown(100)), instance("MIG-1", 1, unknown(101))];
    let owners = node.owners(devices, &declared);
    assert_eq!(told(&owners[1]), [("chat", "main", Some(0.5), Equal, true, false)]);
}

#[test]
fn a_device_has_no_more_holders_than_a_gateway_takes() {
    let many = (0..300).map(|pod| given(&format!("p{pod:03}"), Some(&pod.to_string()), "main"));
    let declared = declaration(&[("GPU-a", many.collect())]);
    let owners = Node::new().of(card(80.0, vec![]), &declared);
    assert_eq!(owners.holders.len(), 256);
    assert_eq!(owners.reason.as_deref(), Some("44 more holders than 256 are left out"));
}
