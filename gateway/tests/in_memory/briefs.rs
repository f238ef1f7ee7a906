//! The brief of a node, from what the directory's watches said: no sockets, no clocks.

use std::sync::Arc;
use std::time::SystemTime;

use gateway::brief::brief;
use gateway::directory::Snapshot;
use gateway::directory::kube::index::{Action, Index, Item, Key, Scope, What};
use gateway::directory::kube::intern::Interner;
use gateway::directory::kube::pod::{Moment, key, labelled};
use gateway::directory::kube::slice::{Change, Published, slice};
use proto::brief::{MAX_PODS, from_wire, to_wire};
use serde_json::{Value, json};
use shared::brief::{Brief, BriefedContainer, PublishedDevice};
use shared::identity::PodKey;
use shared::time::Timestamp;

const AT: Moment = Moment { now: Timestamp::START, wall: SystemTime::UNIX_EPOCH };

struct Cluster {
    index: Index,
    published: Published,
}

impl Cluster {
    fn new() -> Self {
        let index = Index::new(vec![Scope { what: What::Pods, namespace: None }]);
        Self { index, published: Published::default() }
    }

    fn pod(&mut self, name: &str, node: Option<&str>, change: impl FnOnce(&mut Value)) {
        let mut pod = json!({
            "metadata": {"namespace": "ml", "name": name, "uid": format!("uid-{name}")},
            "spec": {"nodeName": node},
            "status": {"phase": "Running", "podIP": "10.0.0.7"},
        });
        change(&mut pod);
        let mut texts = Interner::default();
        let pod = serde_json::from_value(pod).unwrap();
        let pod = labelled(key(&pod, &mut texts).unwrap(), pod, AT, &mut texts);
        self.index.apply(0, Action::Apply(Item::Pod(Box::new(pod))));
    }

    fn delete(&mut self, name: &str) {
        self.index.apply(0, Action::Delete(Key::Pod(PodKey::new("ml", name))));
    }

    /// True if it changed something.
    fn slice(&mut self, name: &str, spec: Value) -> bool {
        let object = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice",
            "metadata": {"name": name}, "spec": spec,
        });
        let object = serde_json::from_value(object).unwrap();
        let slice = slice(&object, &mut Interner::default()).map(Box::new);
        self.published.apply(Change::Apply(name.into(), slice), self.index.nodes_mut())
    }

    fn change(&mut self, change: Change) -> bool {
        self.published.apply(change, self.index.nodes_mut())
    }

    fn snapshot(&mut self) -> Snapshot {
        self.index.snapshot(Timestamp::START)
    }

    fn brief(&mut self, node: &str) -> Brief {
        let brief = brief(&self.snapshot(), &node.into(), |_| None);
        let (taken, refusals) = from_wire(to_wire(1, &brief));
        assert_eq!((&taken, refusals), (&brief, Vec::new()), "an agent takes all of it");
        brief
    }
}

fn names(brief: &Brief) -> Vec<&str> {
    brief.pods.iter().map(|pod| &*pod.key.name).collect()
}

fn devices(brief: &Brief) -> Vec<&str> {
    brief.devices.iter().map(|device| &*device.name).collect()
}

/// A spec of `n1` whose pool has that generation, with these devices.
fn spec(generation: i64, devices: &[&str]) -> Value {
    let device = |name: &&str| json!({"name": name, "attributes": {"uuid": {"string": format!("GPU-{name}")}}});
    let devices: Vec<Value> = devices.iter().map(device).collect();
    json!({
        "driver": "gpu.nvidia.com", "nodeName": "n1", "devices": devices,
        "pool": {"name": "n1", "generation": generation, "resourceSliceCount": 1},
    })
}

#[test]
fn containers_of_every_kind_come_with_their_names_and_ids() {
    let mut cluster = Cluster::new();
    let id = |digit: char| digit.to_string().repeat(64);
    let (a, b, c) = (id('a'), id('b'), id('c'));
    cluster.pod("p", Some("n1"), |pod| {
        let status = &mut pod["status"];
        status["initContainerStatuses"] =
            json!([{"name": "load", "containerID": format!("containerd://{a}")}]);
        status["containerStatuses"] = json!([
            {"name": "main", "containerID": format!("cri-o://{b}")},
            {"name": "waits"},
            {"name": "odd", "containerID": "rkt://not-64-digits"},
            {"name": "bare", "containerID": c},
            {"containerID": format!("docker://{c}")},
        ]);
        status["ephemeralContainerStatuses"] =
            json!([{"name": "debug", "containerID": format!("docker://{c}")}]);
    });
    let brief = cluster.brief("n1");
    let container = |name: &str, id: Option<&str>| BriefedContainer {
        name: name.into(),
        id: id.map(Into::into),
    };
    let expected = [
        container("load", Some(&a)),
        container("main", Some(&b)),
        container("waits", None),
        container("odd", None),
        container("bare", None),
        container("debug", Some(&c)),
    ];
    let pod = &brief.pods[0];
    assert_eq!(pod.containers, expected);
    assert_eq!((pod.uid.as_str(), pod.ip.as_deref()), ("uid-p", Some("10.0.0.7")));
    assert_eq!((pod.finished, &pod.cgroup_uid, &pod.engine), (false, &None, &None));
}

#[test]
fn a_static_pod_has_its_hash_and_nobody_can_claim_anothers_uid_as_one() {
    let mut cluster = Cluster::new();
    let with = |hash: &'static str| {
        move |pod: &mut Value| {
            pod["metadata"]["annotations"] = json!({"kubernetes.io/config.hash": hash});
        }
    };
    cluster.pod("static", Some("n1"), with("0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f"));
    cluster.pod("thief", Some("n1"), with("3f2c8f0e-5d1b-4c55-9e0d-0a9b7c6d5e4f"));
    let brief = cluster.brief("n1");
    let hashes: Vec<_> =
        brief.pods.iter().map(|pod| pod.cgroup_uid.as_ref().map(|uid| uid.as_str())).collect();
    assert_eq!(hashes, [Some("0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f"), None]);
}

#[test]
fn a_brief_has_its_own_nodes_pods_sorted_and_says_which_are_finished() {
    let mut cluster = Cluster::new();
    for (name, node) in [("c", Some("n1")), ("a", Some("n1")), ("b", Some("n2")), ("d", None)] {
        cluster.pod(name, node, |_| {});
    }
    cluster.pod("done", Some("n1"), |pod| pod["status"]["phase"] = json!("Succeeded"));
    cluster.pod("going", Some("n1"), |pod| {
        pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    });
    cluster.pod("nameless", Some("n1"), |pod| pod["metadata"]["uid"] = Value::Null);
    let brief = cluster.brief("n1");
    assert_eq!(names(&brief), ["a", "c", "done", "going"]);
    let finished: Vec<bool> = brief.pods.iter().map(|pod| pod.finished).collect();
    assert_eq!(finished, [false, false, true, false], "what is being deleted still holds");
    assert_eq!(names(&cluster.brief("n2")), ["b"]);
    assert_eq!(cluster.brief("n3"), Brief::default());
    // It comes back elsewhere under its name, and goes.
    cluster.pod("a", Some("n2"), |pod| pod["metadata"]["uid"] = json!("other"));
    assert_eq!(names(&cluster.brief("n1")), ["c", "done", "going"]);
    assert_eq!(names(&cluster.brief("n2")), ["a", "b"]);
    cluster.delete("a");
    cluster.delete("b");
    assert_eq!(cluster.brief("n2"), Brief::default());
}

#[test]
fn a_crowded_node_is_briefed_about_those_that_may_hold_something() {
    let mut cluster = Cluster::new();
    for n in 0..MAX_PODS {
        cluster.pod(&format!("a-{n:04}"), Some("n1"), |pod| {
            pod["status"]["phase"] = json!("Failed");
        });
    }
    cluster.pod("z", Some("n1"), |pod| {
        let status =
            json!({"name": "c", "containerID": format!("containerd://{}", "a".repeat(64))});
        pod["status"]["containerStatuses"] = json!(vec![status; 300]);
    });
    let brief = cluster.brief("n1");
    assert_eq!(brief.pods.len(), MAX_PODS);
    let last = brief.pods.last().unwrap();
    assert_eq!((&*last.key.name, last.containers.len()), ("z", 256));
}

#[test]
fn a_change_touches_its_own_node_alone() {
    let mut cluster = Cluster::new();
    cluster.pod("a", Some("n1"), |_| {});
    cluster.pod("b", Some("n2"), |_| {});
    let before = cluster.snapshot();
    cluster.pod("b", Some("n2"), |_| {});
    cluster.pod("c", Some("n2"), |_| {});
    let after = cluster.snapshot();
    let same = |node: &str| before.node(&node.into()).is_same_as(&after.node(&node.into()));
    assert_eq!((same("n1"), same("n2"), same("n3")), (true, false, true));
    assert_eq!(before.node(&"n2".into()).pods().len(), 1, "a snapshot does not change");
    cluster.slice("s", spec(1, &["gpu-0"]));
    let published = cluster.snapshot();
    let same = |node: &str| after.node(&node.into()).is_same_as(&published.node(&node.into()));
    assert_eq!((same("n1"), same("n2")), (false, true));
}

#[test]
fn one_pod_of_thousands_of_nodes_changes_one_brief() {
    let mut cluster = Cluster::new();
    let node = |n: u32| format!("node-{}", n % 2_000);
    for n in 0..6_000 {
        cluster.pod(&format!("pod-{n}"), Some(&node(n)), |_| {});
    }
    let before = cluster.snapshot();
    cluster.pod("pod-4321", Some(&node(4321)), |pod| pod["status"]["podIP"] = json!("10.0.0.8"));
    let after = cluster.snapshot();
    let changed = (0..2_000).map(node).filter(|name| {
        let name = name.as_str().into();
        !before.node(&name).is_same_as(&after.node(&name))
    });
    assert_eq!(changed.collect::<Vec<_>>(), ["node-321"]);
}

#[test]
fn the_highest_generation_of_a_pool_is_published_whatever_the_order() {
    let mut cluster = Cluster::new();
    assert!(cluster.slice("new", spec(7, &["gpu-1", "gpu-0"])));
    assert!(cluster.slice("old", spec(6, &["gpu-2"])));
    assert_eq!(devices(&cluster.brief("n1")), ["gpu-0", "gpu-1"]);
    // One pool may be in several slices, and its last generation may come last.
    assert!(cluster.slice("more", spec(7, &["gpu-3"])));
    assert_eq!(devices(&cluster.brief("n1")), ["gpu-0", "gpu-1", "gpu-3"]);
    assert!(cluster.slice("newest", spec(10, &["gpu-9"])));
    assert_eq!(devices(&cluster.brief("n1")), ["gpu-9"]);
    assert!(!cluster.slice("newest", spec(10, &["gpu-9"])), "nothing new");
    assert!(cluster.change(Change::Delete("newest".into())));
    assert_eq!(devices(&cluster.brief("n1")), ["gpu-0", "gpu-1", "gpu-3"]);
    // A list replaces what was known.
    cluster.change(Change::Begin);
    cluster.slice("old", spec(6, &["gpu-2"]));
    assert!(cluster.change(Change::Complete));
    assert_eq!(devices(&cluster.brief("n1")), ["gpu-2"]);
    assert!(cluster.change(Change::Absent));
    assert_eq!(cluster.brief("n1"), Brief::default());
}

#[test]
fn both_forms_of_a_slice_are_read_and_what_is_none_of_ours_is_not() {
    let mut cluster = Cluster::new();
    let mig = json!({
        "uuid": {"string": "MIG-1"}, "gpu.nvidia.com/parentUUID": {"string": "GPU-0"},
        "profile": {"string": "3g.40gb"}, "index": {"int": 3}, "cuda": {"version": "9.0.0"},
    });
    let pool = json!({"name": "n1", "generation": 1});
    cluster.slice(
        "mixed",
        json!({
            "driver": "gpu.nvidia.com", "nodeName": "n1", "pool": pool, "devices": [
                {"name": "gpu-0", "basic": {"attributes": {"uuid": {"string": "GPU-0"}}}},
                {"name": "gpu-0-mig-3g40gb-9-0", "attributes": mig},
                {"name": "gpu-0-mig-1g10gb-19-0", "attributes": {"parentUUID": {"string": "GPU-0"}}},
                {"name": "gpu-7", "attributes": {"uuid": {"int": 7}}},
                {"name": "empty"}, {"nameless": true}, 17, null,
            ],
        }),
    );
    let device =
        |name: &str, (uuid, parent, profile): (Option<&str>, Option<&str>, Option<&str>)| {
            let text = |text: Option<&str>| text.map(Arc::<str>::from);
            PublishedDevice {
                driver: "gpu.nvidia.com".into(),
                pool: "n1".into(),
                name: name.into(),
                uuid: text(uuid).map(Into::into),
                parent: text(parent).map(Into::into),
                profile: text(profile),
            }
        };
    let expected = [
        device("gpu-0", (Some("GPU-0"), None, None)),
        device("gpu-0-mig-1g10gb-19-0", (None, Some("GPU-0"), None)),
        device("gpu-0-mig-3g40gb-9-0", (Some("MIG-1"), Some("GPU-0"), Some("3g.40gb"))),
    ];
    assert_eq!(cluster.brief("n1").devices, expected);
    for odd in [
        json!(null),
        json!({"driver": "gpu.amd.com", "nodeName": "n1", "pool": {"name": "n1"}, "devices": []}),
        json!({"driver": "gpu.nvidia.com", "allNodes": true, "pool": {"name": "n1"}}),
        json!({"driver": "gpu.nvidia.com", "nodeName": "n1"}),
        json!({"driver": 3}),
    ] {
        assert!(!cluster.slice("odd", odd));
    }
    assert_eq!(cluster.brief("n1").devices.len(), 3);
}
