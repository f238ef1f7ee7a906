//! What is scraped of triggers: the answer that KEDA would get at this moment, and what of it.
//!
//! Guarantees: made from the very assessment that KEDA's calls get; what has no answer is absent.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use super::Number;
use crate::answer::{Answers, Question};
use crate::explain::{CoverageExplanation, metadata_of};
use crate::trigger::observed::DemandReading;

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfTrigger {
    namespace: String,
    scaledobject: String,
    /// Its place among the ScaledObject's triggers.
    trigger: u32,
    metric: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PodsOfTrigger {
    #[prometheus(flatten)]
    of: OfTrigger,
    state: &'static str,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Scales {
    namespace: String,
    scaledobject: String,
    kind: String,
    workload: String,
}

/// What is shown per trigger.
#[derive(Default)]
pub(super) struct OfTriggers {
    scales: Family<Scales, Number>,
    value: Family<OfTrigger, Number>,
    target: Family<OfTrigger, Number>,
    active: Family<OfTrigger, Number>,
    up: Family<OfTrigger, Number>,
    deaf: Family<OfTrigger, Number>,
    demand: Family<OfTrigger, Number>,
    replicas: Family<OfTrigger, Number>,
    pods: Family<PodsOfTrigger, Number>,
}

fn yes(condition: bool) -> f64 {
    f64::from(u8::from(condition))
}

impl OfTriggers {
    /// Every trigger as it is now.
    pub(super) fn of(answers: &Answers) -> Self {
        let shown = Self::default();
        let Some(snapshot) = answers.directory().snapshot() else { return shown };
        for object in snapshot.objects() {
            let (namespace, name) = (&*object.key.namespace, &*object.key.name);
            let scales = Scales {
                namespace: namespace.into(),
                scaledobject: name.into(),
                kind: object.target.kind.to_string(),
                workload: object.target.name.to_string(),
            };
            shown.scales.get_or_create(&scales).set(1.0);
            for (trigger, metadata) in (0..).zip(metadata_of(answers, object)) {
                shown.add(answers, Question { namespace, name, metadata: &metadata }, trigger);
            }
        }
        shown
    }

    fn add(&self, answers: &Answers, question: Question<'_>, trigger: u32) {
        let Ok(spec) = answers.spec_of(question) else { return };
        let label = OfTrigger {
            namespace: question.namespace.into(),
            scaledobject: question.name.into(),
            trigger,
            metric: spec.name.to_string(),
        };
        self.target.get_or_create(&label).set(spec.target);
        let answered = answers.assess(question, answers.clock().now());
        let value = answered.as_ref().ok().and_then(|assessment| assessment.value().ok());
        self.up.get_or_create(&label).set(yes(value.is_some()));
        let Ok(assessment) = answered else { return };
        if let Some(value) = value {
            self.value.get_or_create(&label).set(value);
            self.active.get_or_create(&label).set(yes(answers.activity(&assessment)));
        }
        self.deaf.get_or_create(&label).set(yes(assessment.is_deaf()));
        if let DemandReading::Value(demand) = assessment.observed.demand {
            self.demand.get_or_create(&label).set(demand);
        }
        self.replicas.get_or_create(&label).set(f64::from(assessment.observed.replicas));
        let coverage = CoverageExplanation::from(assessment.verdict.coverage);
        for (state, count) in [
            ("reporting", coverage.reporting),
            ("starting", coverage.starting),
            ("missing", coverage.missing),
            ("stuck", coverage.stuck),
        ] {
            let label = PodsOfTrigger { of: label.clone(), state };
            self.pods.get_or_create(&label).set(f64::from(count));
        }
    }

    /// Registers what is shown.
    pub(super) fn register(self, registry: &mut Registry) {
        let help = "What a ScaledObject scales; to join its triggers with its workload";
        registry.register("scaledobject_info", help, self.scales);
        registry.register("trigger_value", "Value that GetMetrics returns", self.value);
        registry.register("trigger_target", "Target per replica", self.target);
        registry.register("trigger_active", "Whether IsActive returns true", self.active);
        registry.register("trigger_up", "Whether there is a value, not an error", self.up);
        let help = "Whether the target is at zero and the trigger sees no demand";
        registry.register("trigger_asleep_and_deaf", help, self.deaf);
        let help = "What the trigger's demand source says, while no pod is ready";
        registry.register("trigger_demand", help, self.demand);
        registry.register("trigger_replicas", "Replicas ordered", self.replicas);
        registry.register("trigger_pods", "Pods of the workload by state", self.pods);
    }
}

#[cfg(test)]
impl reference::Specimens for OfTriggers {
    fn specimens(&self) {
        self.scales.specimens();
        self.value.specimens();
        self.target.specimens();
        self.active.specimens();
        self.up.specimens();
        self.deaf.specimens();
        self.demand.specimens();
        self.replicas.specimens();
        self.pods.specimens();
    }
}
