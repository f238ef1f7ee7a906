//! A trigger that is known from an earlier question is the one that parsing would give.

use std::collections::HashMap;

use gateway::answer::{Question, Refusal};
use shared::time::Timestamp;

use crate::cases::{APod, World, at, push, ready};

const BASE: [(&str, &str); 3] =
    [("scalerAddress", "gateway:6000"), ("metricType", "gpu_utilization"), ("targetValue", "70")];

fn map(pairs: &[(&str, &str)]) -> HashMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect()
}

/// `ml/llm` with a pod at 50 %.
fn world() -> World {
    let mut world = World::new();
    world.workload("llm", 1, &[ready("a")], at(0.0));
    let agent = world.agent("n");
    push(&agent, &[("u", "a", None, 50.0)], at(0.0));
    world
}

impl World {
    fn ask(&self, name: &str, metadata: &[(&str, &str)]) -> Result<f64, Refusal> {
        self.answers.value(Question { namespace: "ml", name, metadata: &map(metadata) })
    }

    fn target(&self, metadata: &[(&str, &str)]) -> f64 {
        let question = Question { namespace: "ml", name: "llm", metadata: &map(metadata) };
        self.answers.spec_of(question).unwrap().target
    }
}

#[test]
fn other_metadata_is_another_trigger_however_alike() {
    let world = world();
    for _ in 0..3 {
        assert_eq!(world.ask("llm", &BASE), Ok(50.0));
        let with = |more| BASE.into_iter().chain([more]).collect::<Vec<_>>();
        let other = with(("targetVaule", "80"));
        assert!(matches!(world.ask("llm", &other), Err(Refusal::InvalidArgument(_))));
        // What only KEDA reads changes nothing, and is no other trigger.
        assert_eq!(world.ask("llm", &with(("enableTLS", "true"))), Ok(50.0));
        let changed = [BASE[0], BASE[1], ("targetValue", "20")];
        assert_eq!(world.ask("llm", &changed), Ok(50.0));
        assert_eq!((world.target(&BASE), world.target(&changed)), (70.0, 20.0));
        assert!(matches!(world.ask("other", &BASE), Err(Refusal::NotFound(_))));
        let snapshot = world.directory.snapshot().unwrap();
        let object = snapshot.object("ml", "llm").unwrap();
        assert_eq!(world.answers.asked(&object.key).len(), 2, "they are remembered once each");
    }
}

#[test]
fn a_name_is_checked_whether_the_trigger_is_known_or_broken() {
    let world = world();
    let named = |metadata: &[(&str, &str)], asked: &str| {
        let metadata = map(metadata);
        let question = Question { namespace: "ml", name: "llm", metadata: &metadata };
        world.answers.value_named(question, |name| {
            (name == asked).then_some(()).ok_or(Refusal::InvalidArgument(format!("it is {name}")))
        })
    };
    let wrong = Err(Refusal::InvalidArgument("it is gpu_utilization".into()));
    for _ in 0..2 {
        assert_eq!(named(&BASE, "sm_activity"), wrong);
        assert_eq!(named(&BASE, "gpu_utilization"), Ok(50.0));
        let broken: Vec<_> = BASE.into_iter().chain([("window", "soon")]).collect();
        assert_eq!(named(&broken, "sm_activity"), wrong);
        let why = named(&broken, "gpu_utilization").unwrap_err().to_string();
        assert!(why.starts_with("window "), "{why}");
    }
}

#[test]
fn a_pod_that_was_found_before_is_found_wherever_it_is_by_now() {
    let mut world = World::new();
    world.workload("llm", 1, &[APod("a", None, Some("n"), Ok(Timestamp::LONG_AGO), None)], at(0.0));
    let unavailable = |world: &World| {
        let asked = world.ask("llm", &BASE);
        assert!(matches!(asked, Err(Refusal::Unavailable(_))), "{asked:?}");
    };
    unavailable(&world);
    let agent = world.agent("n");
    push(&agent, &[("u", "a", None, 50.0)], at(0.0));
    for _ in 0..3 {
        assert_eq!(world.ask("llm", &BASE), Ok(50.0));
    }
    push(&agent, &[("u", "a", None, 60.0)], at(0.0));
    assert_eq!(world.ask("llm", &BASE), Ok(60.0));
    push(&agent, &[("u", "b", None, 60.0)], at(0.0));
    unavailable(&world);
    push(&agent, &[("t", "b", None, 60.0), ("u", "a", None, 70.0)], at(0.0));
    for _ in 0..2 {
        assert_eq!(world.ask("llm", &BASE), Ok(70.0), "its device has another place");
    }
    // The node is forgotten, and comes back.
    drop(agent);
    world.fleet.tidy(|_| None, at(700.0));
    assert!(world.fleet.is_empty());
    unavailable(&world);
    let agent = world.agent("n");
    push(&agent, &[("u", "a", None, 80.0)], at(0.0));
    assert_eq!(world.ask("llm", &BASE), Ok(80.0));
    // It is another pod of that name by now, elsewhere.
    world.workload(
        "llm",
        1,
        &[APod("a", Some("new"), Some("m"), Ok(Timestamp::LONG_AGO), None)],
        at(0.0),
    );
    unavailable(&world);
    push(&world.agent("m"), &[("v", "a", Some("new"), 90.0)], at(0.0));
    assert_eq!(world.ask("llm", &BASE), Ok(90.0));
}
