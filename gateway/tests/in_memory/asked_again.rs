//! A trigger that is known from an earlier question is the one that parsing would give.

use std::collections::HashMap;

use gateway::answer::{Question, Refusal};

use crate::cases::{World, at, push, ready};

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
