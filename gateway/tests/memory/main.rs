//! What the directory keeps of a pod, and what one changed pod costs it. A process of its own: its
//! memory is what is measured. Times are printed and not judged: `cargo test --release`.
#![expect(clippy::unwrap_used, reason = "what a test cannot do without may end it")]

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use gateway::directory::kube::index::{Action, Index, Item, Scale, Scope, What};
use gateway::directory::kube::intern::Interner;
use gateway::directory::kube::object;
use gateway::directory::kube::pod::{Moment, PodObject, key, labelled};
use gateway::directory::kube::selector::Selector;
use gateway::directory::{Directory, ScaledKind};
use serde_json::json;
use shared::time::Timestamp;

const PODS: usize = 50_000;
const WORKLOADS: usize = 500;
/// Bytes the index may keep of a pod.
const KEPT: usize = 1_024;
/// Bytes a pod may cost with what a snapshot adds.
const BUDGET: usize = 1_152;

fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages = text.split(' ').nth(1).expect("resident pages");
    pages.parse::<usize>().expect("a number") * 4_096
}

/// A pod as a Deployment makes it, some 3 KiB of JSON, in one of so many namespaces.
fn pod(n: usize, namespaces: usize, ready: &str) -> PodObject {
    let app = format!("app-{}", n % WORKLOADS);
    let name = format!("{app}-7c9d8f6b5d-{n:05x}");
    let env: Vec<_> =
        (0..20).map(|n| json!({"name": format!("KEY_{n}"), "value": "v".repeat(40)})).collect();
    let object = json!({
        "metadata": {
            "namespace": format!("team-{}", n % namespaces), "name": name,
            "uid": format!("0a1b2c3d-0000-4000-8000-{n:012}"),
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {
                "app": app, "app.kubernetes.io/name": app, "app.kubernetes.io/instance": app,
                "pod-template-hash": "7c9d8f6b5d", "team": format!("team-{}", n % 20),
            },
            "annotations": {"prometheus.io/port": "8000", "prometheus.io/scrape": "true", "note": "x".repeat(300)},
        },
        "spec": {
            "nodeName": format!("node-{:04}", n % 2_000),
            "containers": [{"name": "main", "env": env, "ports": [{"name": "http", "containerPort": 8000}]}],
        },
        "status": {
            "phase": "Running", "podIP": format!("10.{}.{}.{}", n >> 16, (n >> 8) & 255, n & 255),
            "conditions": [
                {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"},
                {"type": "Ready", "status": ready, "lastTransitionTime": "2026-01-01T00:01:00Z"},
            ],
            "containerStatuses": [{"name": "main", "image": "registry.example/vllm:1", "ready": true, "containerID": format!("containerd://{n:064x}")}],
        },
    });
    serde_json::from_value(object).expect("a pod")
}

const AT: Moment = Moment { now: Timestamp::START, wall: SystemTime::UNIX_EPOCH };

/// An index of all pods and workloads in so many namespaces; how many bytes a pod took is told.
fn index_of(namespaces: usize, texts: &mut Interner, mut told: impl FnMut()) -> Index {
    let scopes = [What::Scaled(ScaledKind::Object), What::Pods];
    let mut index = Index::new(scopes.map(|what| Scope { what, namespace: None }).into());
    (0..PODS).for_each(|n| applied(&mut index, pod(n, namespaces, "True"), texts));
    told();
    for n in 0..WORKLOADS {
        let object = json!({
            "apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject",
            "metadata": {"namespace": format!("team-{}", n % namespaces), "name": format!("so-{n}")},
            "spec": {"scaleTargetRef": {"name": format!("app-{n}")}, "triggers": [{"type": "external"}]},
        });
        let object = serde_json::from_value(object).unwrap();
        let declared = object::declared(ScaledKind::Object, object::key(&object).unwrap(), &object);
        let declared = Box::new(declared.unwrap().unwrap());
        index.apply(0, Action::Apply(Item::Scaled(declared, Duration::ZERO)));
    }
    for target in index.targets().into_keys().collect::<Vec<_>>() {
        let selector = Selector::parse(&format!("app={}", target.key.name)).unwrap();
        index.scaled(target, Ok(Scale { selector, replicas: 100, status_replicas: 100 }));
    }
    (0..2).for_each(|watch| index.apply(watch, Action::Complete));
    assert_eq!(index.waits_for(), None);
    index
}

fn applied(index: &mut Index, pod: PodObject, texts: &mut Interner) {
    let pod = labelled(key(&pod, texts).unwrap(), pod, AT, texts);
    index.apply(1, Action::Apply(Item::Pod(Box::new(pod))));
}

#[test]
fn fifty_thousand_pods_fit() {
    let before = resident();
    let mut kept = 0;
    let told = || kept = (resident() - before) / PODS;
    let mut texts = Interner::default();
    let mut index = index_of(20, &mut texts, told);
    let snapshot = index.snapshot(Timestamp::START);
    let pods: BTreeMap<_, _> =
        snapshot.workloads().map(|workload| (&workload.key, workload.pods.len())).collect();
    assert_eq!(pods.values().sum::<usize>(), PODS);
    let pod = snapshot.workloads().next().unwrap().pods[0].key.clone();
    assert_eq!(snapshot.scaled(&pod).unwrap().by.len(), 1);
    let all = (resident() - before) / PODS;
    println!("{kept} bytes a pod in the index, {all} with the snapshot, of {PODS} pods");
    assert!(kept <= KEPT, "{kept} bytes a pod");
    assert!(all <= BUDGET, "{all} bytes a pod with the snapshot");
    if cfg!(debug_assertions) {
        println!("what one changed pod costs is worth knowing of a release build only");
        return;
    }
    for namespaces in [20, 1] {
        let mut index = index_of(namespaces, &mut texts, || {});
        let (median, longest) = time_of_a_change(&mut index, namespaces, &mut texts);
        println!(
            "one pod of {PODS} in {namespaces} namespaces changes: shown after {median:?}, at most {longest:?}"
        );
    }
}

/// From one pod's change to the snapshot that shows it: the median, and the longest of all.
#[expect(clippy::disallowed_methods, reason = "it measures")]
fn time_of_a_change(
    index: &mut Index,
    namespaces: usize,
    texts: &mut Interner,
) -> (Duration, Duration) {
    let directory = Directory::default();
    directory.replace(index.snapshot(Timestamp::START));
    let mut times: Vec<Duration> = (0..21)
        .map(|round| {
            let n = round * 997;
            let object = pod(n, namespaces, "False");
            let begun = std::time::Instant::now();
            applied(index, object, texts);
            directory.replace(index.snapshot(Timestamp::START));
            begun.elapsed()
        })
        .collect();
    times.sort();
    (times[times.len() / 2], times[times.len() - 1])
}
