//! Declared triggers whose demand is looked at before anybody asks.
//!
//! Guarantees: asking reads memory only; what is wrong with a trigger is left to whoever asks.

use super::{Answers, Question};

impl Answers {
    /// Asks for every declared trigger with a demand source, so that its page is read from the
    /// start while no pod is ready, and no longer once one is. To be repeated when the directory
    /// changes, and at least every hour.
    pub fn seek_demand(&self) {
        let Some(snapshot) = self.directory.snapshot() else { return };
        let now = self.clock.now();
        for object in snapshot.objects() {
            let (namespace, name) = (&*object.key.namespace, &*object.key.name);
            for declared in object.triggers.iter() {
                let metadata = &declared.metadata;
                // A profile may have the endpoint.
                if !["demandEndpoint", "profile"].iter().any(|key| metadata.contains_key(*key)) {
                    continue;
                }
                let trigger = self.trigger_of(Question { namespace, name, metadata });
                if let Ok(trigger) = trigger
                    && trigger.demand.is_some()
                {
                    // The question is what counts: from now on the page is read.
                    let (object, trigger) = (object.clone(), trigger.into());
                    self.decide(object, trigger, declared.target_type, None, now).ok();
                }
            }
        }
    }
}
