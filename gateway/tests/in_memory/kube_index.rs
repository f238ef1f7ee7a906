//! The index of the live directory, without any I/O: what objects become, and since when.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use gateway::directory::kube::index::{Action, Index, Item, Key, Scale, Scope, What};
use gateway::directory::kube::intern::Interner;
use gateway::directory::kube::object::{self, Target};
use gateway::directory::kube::pod::LabelledPod;
use gateway::directory::kube::pod::{Moment, PodObject, key, labelled};
use gateway::directory::kube::selector::Selector;
use gateway::directory::{Absent, Phase, Pod, ScaledKind, Snapshot, Workload};
use gateway::trigger::observed::TargetType;
use serde_json::{Value, json};
use shared::identity::PodKey;
use shared::time::Timestamp;

const OBJECTS: usize = 0;
const JOBS: usize = 1;
const PODS: usize = 2;
const SECOND: Duration = Duration::from_secs(1);

/// An hour after `2026-01-01T00:00:00Z`, on both clocks.
fn at(seconds: u32) -> Moment {
    let wall = SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_225_600 + 3_600);
    Moment { now: Timestamp::START + seconds * SECOND, wall: wall + seconds * SECOND }
}

fn index() -> Index {
    let whats = [What::Scaled(ScaledKind::Object), What::Scaled(ScaledKind::Job), What::Pods];
    Index::new(whats.map(|what| Scope { what, namespace: None }).into())
}

fn of(pod: Value, at: Moment) -> LabelledPod {
    let mut texts = Interner::default();
    let pod: PodObject = serde_json::from_value(pod).unwrap();
    labelled(key(&pod, &mut texts).unwrap(), pod, at, &mut texts)
}

fn put(index: &mut Index, pod: Value, at: Moment) {
    index.apply(PODS, Action::Apply(Item::Pod(Box::new(of(pod, at)))));
}

fn declare(index: &mut Index, kind: ScaledKind, name: &str, target: &str) {
    let object = json!({
        "apiVersion": "keda.sh/v1alpha1", "kind": "X",
        "metadata": {"namespace": "ml", "name": name},
        "spec": {"scaleTargetRef": {"name": target}, "cooldownPeriod": 30, "triggers": [
            {"type": "cpu"},
            {"type": "external-push", "name": "gpu", "metricType": "Value", "metadata": {"a": "b"}},
        ]},
    });
    let object = serde_json::from_value(object).unwrap();
    let declared = object::declared(kind, object::key(&object).unwrap(), &object);
    let item = Item::Scaled(Box::new(declared.unwrap().unwrap()), SECOND);
    let watch = if kind == ScaledKind::Job { JOBS } else { OBJECTS };
    index.apply(watch, Action::Apply(item));
}

fn scale(index: &mut Index, selector: &str, replicas: u32) {
    let scale =
        Scale { selector: Selector::parse(selector).unwrap(), replicas, status_replicas: 0 };
    for target in index.targets().into_keys().collect::<Vec<_>>() {
        index.scaled(target, Ok(scale.clone()));
    }
}

/// A pod whose Ready condition has that status since then.
fn pod(name: &str, ready: bool, since: &str) -> Value {
    json!({
        "metadata": {"namespace": "ml", "name": name, "uid": name, "labels": {"app": "llm"},
                     "creationTimestamp": "2026-01-01T00:00:00Z"},
        "status": {"phase": "Running", "conditions": [
            {"type": "Ready", "status": if ready { "True" } else { "False" }, "lastTransitionTime": since},
        ]},
    })
}

fn pods(snapshot: &Snapshot) -> Vec<Arc<Pod>> {
    snapshot.workloads().flat_map(|workload| workload.pods.clone()).collect()
}

#[test]
fn a_pod_is_pruned_to_what_is_read() {
    let full = json!({
        "metadata": {"namespace": "ml", "name": "llm-0", "uid": "u", "labels": {"app": "llm"},
            "annotations": {"prometheus.io/port": "8000", "other": "x", "prometheus.io/long": "y".repeat(300)},
            "deletionTimestamp": "2026-01-01T00:10:00Z", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"nodeName": "n1", "containers": [
            {"name": "a", "image": "i", "ports": [{"containerPort": 1}, {"name": "http", "containerPort": 8000}]},
            {"name": "b"}]},
        "status": {"phase": "Pending", "podIP": "10.0.0.1", "conditions": [
            {"type": "PodScheduled", "status": "False", "message": "é".repeat(400)}]},
    });
    let LabelledPod { pod, .. } = of(full, at(0));
    assert_eq!((pod.port("http"), pod.ports.len()), (Some(8000), 1));
    assert_eq!((pod.annotation("prometheus.io/port"), pod.annotations.len()), (Some("8000"), 1));
    assert_eq!(pod.node.as_ref().unwrap().as_str(), "n1");
    assert!(pod.terminating && !pod.exists() && !pod.ready);
    assert_eq!(pod.phase, Phase::Pending);
    assert_eq!(pod.unscheduled.as_ref().unwrap().chars().count(), 128, "256 bytes");
    assert_eq!(pod.since, at(0).now - 3_600 * SECOND, "not ready since it was made");
    let bare = of(json!({"metadata": {"namespace": "ml", "name": "x"}}), at(5)).pod;
    assert_eq!((bare.since, bare.phase), (at(5).now, Phase::Pending));
    let odd = json!({
        "metadata": {"namespace": "ml", "name": "x", "labels": null, "annotations": null},
        "spec": {"containers": [{"ports": null}, {"ports": [{"name": "a", "containerPort": 70_000}, {}]}]},
        "status": {"phase": "New", "conditions": [{}, {"type": "Ready"}]},
    });
    assert!(of(odd, at(5)).pod.ports.is_empty());
    let nulls = json!({"metadata": {"namespace": "ml", "name": "x"}, "spec": null, "status": null});
    assert!(!of(nulls, at(5)).pod.ready);
}

#[test]
fn a_change_is_dated_between_the_last_confirmation_and_now_whatever_the_clocks_say() {
    let mut index = index();
    declare(&mut index, ScaledKind::Object, "so", "llm");
    put(&mut index, pod("llm-0", true, "2026-01-01T00:30:00Z"), at(0));
    scale(&mut index, "app=llm", 1);
    (0..3).for_each(|watch| index.apply(watch, Action::Complete));
    assert_eq!(index.waits_for(), None);
    let snapshot = index.snapshot(at(0).now);
    assert_eq!(pods(&snapshot)[0].since, at(0).now - 1_800 * SECOND, "as its condition says");
    index.confirm(at(10).now);
    // The same again is no news.
    put(&mut index, pod("llm-0", true, "2026-01-01T00:30:00Z"), at(11));
    assert!(!index.is_dirty());
    // Its node's clock is an hour slow, then an hour fast.
    put(&mut index, pod("llm-0", false, "2026-01-01T00:00:12Z"), at(12));
    assert_eq!(pods(&index.snapshot(at(12).now))[0].since, at(10).now);
    put(&mut index, pod("llm-0", true, "2026-01-01T02:00:13Z"), at(13));
    assert_eq!(pods(&index.snapshot(at(13).now))[0].since, at(13).now);
    // A change that was missed twice (ready, not ready, ready) still has its time.
    index.confirm(at(20).now);
    put(&mut index, pod("llm-0", true, "2026-01-01T01:00:25Z"), at(30));
    assert_eq!(pods(&index.snapshot(at(30).now))[0].since, at(25).now);
}

#[test]
fn triggers_keep_their_place_name_and_type() {
    let mut index = index();
    declare(&mut index, ScaledKind::Object, "so", "llm");
    let snapshot = index.snapshot(at(0).now);
    let object = snapshot.object("ml", "so").unwrap();
    assert_eq!(object.triggers.len(), 1, "cpu is not ours");
    let trigger = &object.triggers[0];
    assert_eq!((trigger.index, trigger.pushes, trigger.name.as_deref()), (1, true, Some("gpu")));
    assert_eq!((object.min_replicas, object.max_replicas), (Some(0), Some(100)));
    assert_eq!(object.cooldown, Some(30 * SECOND));
    assert!(matches!(object.absent, Some(Absent::Unread(_))), "{:?}", object.absent);
}

#[test]
fn a_list_replaces_what_its_own_watch_knew_and_nothing_else() {
    let mut index = index();
    declare(&mut index, ScaledKind::Object, "so", "llm");
    declare(&mut index, ScaledKind::Job, "job", "");
    for name in ["llm-0", "llm-1"] {
        put(&mut index, pod(name, true, "2026-01-01T00:30:00Z"), at(0));
    }
    scale(&mut index, "app=llm", 2);
    index.apply(PODS, Action::Begin);
    put(&mut index, pod("llm-1", true, "2026-01-01T00:30:00Z"), at(1));
    assert_eq!(pods(&index.snapshot(at(1).now)).len(), 2, "a list under way removes nothing");
    index.apply(PODS, Action::Complete);
    let snapshot = index.snapshot(at(1).now);
    assert_eq!(pods(&snapshot)[0].key.name.as_ref(), "llm-1");
    assert_eq!(pods(&snapshot).len(), 1);
    index.apply(OBJECTS, Action::Begin);
    index.apply(OBJECTS, Action::Complete);
    let snapshot = index.snapshot(at(2).now);
    assert!(snapshot.object("ml", "so").is_none() && snapshot.workloads().next().is_none());
    assert!(snapshot.object("ml", "job").is_some());
}

#[test]
fn what_cannot_be_read_now_is_what_it_was_and_what_is_gone_is_gone() {
    let mut index = index();
    declare(&mut index, ScaledKind::Object, "so", "llm");
    scale(&mut index, "app=llm", 3);
    let target = index.targets().into_keys().next().unwrap();
    index.scaled(target.clone(), Err(Absent::Unread("a timeout".into())));
    assert_eq!(index.snapshot(at(0).now).workloads().next().unwrap().replicas, 3);
    index.scaled(target, Err(Absent::Missing("there is none".into())));
    let snapshot = index.snapshot(at(0).now);
    assert!(snapshot.workloads().next().is_none());
    let object = snapshot.object("ml", "so").unwrap();
    assert_eq!(object.absent, Some(Absent::Missing("there is none".into())));
}

#[test]
fn overlapping_selectors_and_one_name_for_two_kinds() {
    let mut index = index();
    declare(&mut index, ScaledKind::Object, "one", "llm");
    declare(&mut index, ScaledKind::Object, "two", "llm-too");
    declare(&mut index, ScaledKind::Job, "one", "");
    put(&mut index, pod("llm-0", true, "2026-01-01T00:30:00Z"), at(0));
    scale(&mut index, "app", 1);
    let snapshot = index.snapshot(at(0).now);
    assert_eq!(pods(&snapshot).len(), 2, "the pod is in both");
    assert_eq!(snapshot.scaled(&pods(&snapshot)[0].key).unwrap().by.len(), 2);
    assert_eq!(snapshot.object("ml", "one").unwrap().kind, ScaledKind::Object);
    let key = snapshot.object("ml", "one").unwrap().key.clone();
    index.apply(OBJECTS, Action::Delete(Key::Scaled(ScaledKind::Object, key)));
    assert_eq!(index.snapshot(at(1).now).object("ml", "one").unwrap().kind, ScaledKind::Job);
}

#[test]
fn a_formula_decides_how_the_hpa_uses_its_triggers() {
    let type_with = |advanced: Value| {
        let object = json!({
            "apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject",
            "metadata": {"namespace": "ml", "name": "so"},
            "spec": {"scaleTargetRef": {"name": "llm"}, "advanced": advanced,
                "triggers": [{"type": "external", "name": "gpu", "metricType": "Value"}]},
        });
        let object = serde_json::from_value(object).unwrap();
        let declared = object::declared(ScaledKind::Object, object::key(&object).unwrap(), &object);
        declared.unwrap().unwrap().object.triggers[0].target_type
    };
    let modifiers = |modifiers: Value| type_with(json!({"scalingModifiers": modifiers}));
    assert_eq!(type_with(json!(null)), TargetType::Value);
    assert_eq!(type_with(json!({"horizontalPodAutoscalerConfig": {}})), TargetType::Value);
    assert_eq!(modifiers(json!({})), TargetType::Value);
    assert_eq!(modifiers(json!({"formula": "gpu"})), TargetType::AverageValue);
    let value = json!({"formula": "gpu", "metricType": "Value"});
    assert_eq!(modifiers(value), TargetType::Value);
}

/// Names of the pods of each workload.
fn members(snapshot: &Snapshot) -> BTreeMap<String, (u32, Vec<String>)> {
    let of = |workload: &Arc<Workload>| {
        let pods = workload.pods.iter().map(|pod| format!("{} {}", pod.key, pod.ready));
        (workload.key.to_string(), (workload.replicas, pods.collect()))
    };
    snapshot.workloads().map(of).collect()
}

fn scale_of(index: &mut Index, target: &Target, replicas: u32) {
    let selector = Selector::parse(&format!("app={}", target.key.name)).unwrap();
    index.scaled(target.clone(), Ok(Scale { selector, replicas, status_replicas: 0 }));
}

fn four_objects(index: &mut Index) {
    for app in 0..4 {
        declare(index, ScaledKind::Object, &format!("so-{app}"), &format!("app-{app}"));
    }
}

/// What a snapshot leaves as it was, a look at everything finds as it was.
#[test]
fn a_snapshot_of_what_changed_equals_one_of_everything() {
    for seed in 0..20 {
        let mut random = fastrand::Rng::with_seed(seed);
        let (mut index, mut alive) = (index(), BTreeMap::new());
        four_objects(&mut index);
        let targets: Vec<Target> = index.targets().into_keys().collect();
        let mut replicas = vec![1; targets.len()];
        targets.iter().for_each(|target| scale_of(&mut index, target, 1));
        for step in 0..200 {
            let name = format!("pod-{}", random.u32(0..12));
            match random.u32(0..8) {
                0 => {
                    let at = random.usize(0..targets.len());
                    replicas[at] = random.u32(0..9);
                    scale_of(&mut index, &targets[at], replicas[at]);
                }
                1 => {
                    alive.remove(&name);
                    index.apply(PODS, Action::Delete(Key::Pod(PodKey::new("ml", name.as_str()))));
                }
                _ => {
                    let mut pod = pod(&name, random.bool(), "2026-01-01T00:30:00Z");
                    pod["metadata"]["uid"] = json!(random.u32(0..2).to_string());
                    pod["metadata"]["labels"] = json!({"app": format!("app-{}", random.u32(0..5))});
                    if random.u32(0..6) == 0 {
                        let key = "leaderworkerset.sigs.k8s.io/group-key";
                        pod["metadata"]["labels"][key] = json!("g");
                    }
                    put(&mut index, pod.clone(), at(step));
                    alive.insert(name, pod);
                }
            }
            if random.bool() {
                index.snapshot(at(step).now);
            }
        }
        let mut fresh = self::index();
        four_objects(&mut fresh);
        targets.iter().zip(&replicas).for_each(|(target, n)| scale_of(&mut fresh, target, *n));
        alive.into_values().for_each(|pod| put(&mut fresh, pod, at(0)));
        let (kept, all) = (index.snapshot(at(300).now), fresh.snapshot(at(300).now));
        assert_eq!(members(&kept), members(&all), "seed {seed}");
    }
}

#[test]
fn a_change_leaves_the_other_workloads_of_its_namespace_alone() {
    let mut index = index();
    for app in ["left", "right"] {
        declare(&mut index, ScaledKind::Object, app, app);
    }
    for target in index.targets().into_keys().collect::<Vec<_>>() {
        scale_of(&mut index, &target, 1);
    }
    let of = |ready| {
        let mut pod = pod("pod-0", ready, "2026-01-01T00:30:00Z");
        pod["metadata"]["labels"] = json!({"app": "left"});
        pod
    };
    put(&mut index, of(true), at(0));
    let before = index.snapshot(at(0).now);
    put(&mut index, of(false), at(1));
    let after = index.snapshot(at(1).now);
    let is_kept: Vec<bool> =
        before.workloads().zip(after.workloads()).map(|(a, b)| Arc::ptr_eq(a, b)).collect();
    assert_eq!(is_kept, [false, true]);
}
