//! What the directory keeps of a pod. A process of its own: its memory is what is measured.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use gateway::directory::ScaledKind;
use gateway::directory::kube::index::{Action, Index, Item, Scale, Scope, What};
use gateway::directory::kube::intern::Interner;
use gateway::directory::kube::object;
use gateway::directory::kube::pod::{Moment, PodObject, key, labelled};
use gateway::directory::kube::selector::Selector;
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

/// A pod as a Deployment makes it, some 3 KiB of JSON.
fn pod(n: usize) -> PodObject {
    let app = format!("app-{}", n % WORKLOADS);
    let name = format!("{app}-7c9d8f6b5d-{n:05x}");
    let env: Vec<_> =
        (0..20).map(|n| json!({"name": format!("KEY_{n}"), "value": "v".repeat(40)})).collect();
    let object = json!({
        "metadata": {
            "namespace": format!("team-{}", n % 20), "name": name,
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
                {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:01:00Z"},
            ],
            "containerStatuses": [{"name": "main", "image": "registry.example/vllm:1", "ready": true, "containerID": format!("containerd://{n:064x}")}],
        },
    });
    serde_json::from_value(object).expect("a pod")
}

#[test]
fn fifty_thousand_pods_fit() {
    let scopes = [What::Scaled(ScaledKind::Object), What::Pods];
    let mut index = Index::new(scopes.map(|what| Scope { what, namespace: None }).into());
    let at = Moment {
        now: Timestamp::START,
        wall: SystemTime::UNIX_EPOCH + Duration::from_secs(2_000_000_000),
    };
    let mut texts = Interner::default();
    let before = resident();
    for n in 0..PODS {
        let pod = pod(n);
        let pod = labelled(key(&pod, &mut texts).unwrap(), pod, at, &mut texts);
        index.apply(1, Action::Apply(Item::Pod(Box::new(pod))));
    }
    let kept = (resident() - before) / PODS;
    for n in 0..WORKLOADS {
        let object = json!({
            "apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject",
            "metadata": {"namespace": format!("team-{}", n % 20), "name": format!("so-{n}")},
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
    let snapshot = index.snapshot(Timestamp::START);
    let pods: BTreeMap<_, _> =
        snapshot.workloads().map(|workload| (&workload.key, workload.pods.len())).collect();
    assert_eq!(pods.values().sum::<usize>(), PODS);
    let all = (resident() - before) / PODS;
    println!("{kept} bytes a pod in the index, {all} with the snapshot, of {PODS} pods");
    assert!(kept <= KEPT, "{kept} bytes a pod");
    assert!(all <= BUDGET, "{all} bytes a pod with the snapshot");
}
