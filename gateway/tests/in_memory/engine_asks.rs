//! What agents are asked to read of engines, by triggers declared or only asked about.

use std::sync::Arc;

use gateway::answer::Question;
use gateway::engine::{Ask, Asks};
use gateway::trigger::profile::Profiles;
use gateway::trigger::spec::{Trigger, parse};
use shared::brief::EngineTarget;
use shared::identity::ScaledObjectKey;

use crate::cases::{World, at, ready};
use crate::engines::{WAITING, declaring, map};

fn trigger(metadata: &[(&str, &str)]) -> Trigger {
    parse(&map(metadata), &Profiles::default()).unwrap()
}

fn target(world: &World, asks: &Asks) -> Option<EngineTarget> {
    let snapshot = world.directory.snapshot().unwrap();
    let pod = snapshot.object("ml", "llm").unwrap().workload.as_ref().unwrap().pods[0].clone();
    asks.target(&snapshot, &pod)
}

/// What is asked of the first pod by now.
fn asked_of(world: &World) -> Option<EngineTarget> {
    world.answers.renew_asks();
    target(world, &world.answers.asks().borrow())
}

fn pages(target: &EngineTarget) -> Vec<String> {
    target.pages.iter().map(|page| format!("{}{}", page.port, page.path)).collect()
}

#[test]
fn a_pod_is_read_as_its_declared_triggers_ask_together() {
    let mut world = declaring(&[
        &[("profile", "vllm"), ("engineLabels", "model_name=b")],
        &[("vllmEndpoint", "http://svc:9000/m"), WAITING],
        &[WAITING, ("engineLabels", "model_name=b, engine=0")],
        &[("metricType", "gpu_utilization")],
        &[("metricType", "gpu_utilisation")],
    ]);
    world.workload("llm", 1, &[ready("a")], at(0.0));
    let mut changes = world.answers.asks();
    let read = asked_of(&world).unwrap();
    assert_eq!(pages(&read), ["9000/m"]);
    assert_eq!(read.engine.as_deref(), Some("vllm"));
    assert_eq!(read.labels, ["", "engine=0,model_name=b", "model_name=b"].map(Arc::from));
    assert!(changes.has_changed().unwrap());
    changes.mark_unchanged();
    assert_eq!(asked_of(&world), Some(read));
    assert!(!changes.has_changed().unwrap(), "nothing else is asked");
}

#[test]
fn nothing_is_read_for_triggers_on_gpus() {
    let mut world = declaring(&[&[("profile", "vllm-inference"), ("vllmEndpoint", "http://svc")]]);
    world.workload("llm", 1, &[ready("a")], at(0.0));
    assert_eq!(asked_of(&world), None);
}

#[test]
fn a_trigger_that_is_not_declared_is_read_for_once_it_is_asked_about() {
    let mut world = World::new();
    world.workload("llm", 1, &[ready("a")], at(0.0));
    let mut changes = world.answers.engines_asked();
    assert_eq!(asked_of(&world), None);
    let ask = |metadata: &[(&str, &str)]| {
        let metadata = map(metadata);
        world.answers.value(Question { namespace: "ml", name: "llm", metadata: &metadata }).ok();
    };
    ask(&[("metricType", "gpu_utilization")]);
    assert!(!changes.has_changed().unwrap(), "a GPU trigger changes nothing");
    ask(&[("profile", "sglang")]);
    assert!(changes.has_changed().unwrap());
    changes.mark_unchanged();
    let read = asked_of(&world).unwrap();
    assert_eq!((pages(&read), read.engine), (vec!["30000/metrics".into()], Some("sglang".into())));
    ask(&[("profile", "sglang")]);
    assert!(!changes.has_changed().unwrap(), "known already");
}

#[test]
fn a_flood_of_other_questions_pushes_out_no_trigger_that_is_asked_about() {
    let mut world = World::new();
    world.workload("llm", 1, &[ready("a")], at(0.0));
    let ask = |metadata: &[(&str, &str)]| {
        let metadata = map(metadata);
        world.answers.value(Question { namespace: "ml", name: "llm", metadata: &metadata }).ok();
    };
    ask(&[("profile", "sglang"), ("engineLabels", "model_name=mine")]);
    let read = asked_of(&world);
    assert!(read.is_some());
    for other in 0..40 {
        ask(&[("metricType", "gpu_utilization"), ("targetValue", &format!("{}", 10 + other))]);
    }
    assert_eq!(asked_of(&world), read);
    assert_eq!(world.answers.asked(&ScaledObjectKey::new("ml", "llm")).len(), 16);
}

#[test]
fn triggers_that_name_different_engines_name_none() {
    let both = [trigger(&[("profile", "vllm")]), trigger(&[("profile", "triton")])];
    let one = [trigger(&[("profile", "vllm")]), trigger(&[WAITING])];
    let mut world = World::new();
    world.workload("llm", 1, &[ready("a")], at(0.0));
    let snapshot = world.directory.snapshot().unwrap();
    for (triggers, engine, first) in [(&both, None, 8), (&one, Some("vllm"), 1)] {
        let asked =
            triggers.iter().map(|t| (ScaledObjectKey::new("ml", "llm"), Arc::new(t.clone())));
        let asks = Asks::new(&snapshot, &Profiles::default(), asked, &Asks::default());
        let read = target(&world, &asks).unwrap();
        assert_eq!((read.engine.as_deref(), read.pages.len()), (engine, first));
    }
    assert_eq!(Ask::of(&[trigger(&[])]), None);
}
