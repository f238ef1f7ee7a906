//! Triggers that were asked about before, known again by their metadata.
//!
//! Guarantees: a trigger is taken from memory only for a question with the very same metadata, key
//! by key, about the same ScaledObject, so that it is the one that parsing would give: what else
//! parsing depends on, profiles and allowed origins, stays while the gateway runs.

use std::collections::HashMap;
use std::sync::Arc;

use super::{Answers, Question, Refusal};
use crate::directory::ScaledObject;
use crate::trigger::spec::{MetricSpec, Trigger};

/// Metadata of more bytes is parsed at every question. No trigger of ours comes near it; what only
/// KEDA reads may be large and is not worth keeping.
const MAX_BYTES: usize = 4_096;

/// Metadata as it came, all of it, ordered by key.
#[derive(Clone, Debug)]
pub(super) struct Whole(Box<[(Box<str>, Box<str>)]>);

/// What a question is about, as far as it can be known.
pub(super) struct Subject {
    pub(super) trigger: Result<Arc<Trigger>, Refusal>,
    pub(super) object: Result<Arc<ScaledObject>, Refusal>,
}

impl Whole {
    /// `metadata` to be known again; `None` if it is too large for that.
    pub(super) fn new(metadata: &HashMap<String, String>) -> Option<Self> {
        let bytes: usize = metadata.iter().map(|(key, value)| key.len() + value.len()).sum();
        if bytes > MAX_BYTES {
            return None;
        }
        let mut pairs: Box<[(Box<str>, Box<str>)]> =
            metadata.iter().map(|(key, value)| (&**key, &**value)).map(boxed).collect();
        pairs.sort_unstable();
        Some(Self(pairs))
    }

    /// Whether `metadata` is this.
    pub(super) fn is(&self, metadata: &HashMap<String, String>) -> bool {
        let value = |key: &str| {
            let at = self.0.binary_search_by(|(known, _)| (**known).cmp(key)).ok()?;
            Some(&*self.0[at].1)
        };
        self.0.len() == metadata.len()
            && metadata.iter().all(|(key, of_it)| value(key) == Some(of_it))
    }
}

fn boxed((key, value): (&str, &str)) -> (Box<str>, Box<str>) {
    (key.into(), value.into())
}

impl Answers {
    /// Name and target of the trigger that `question` is about; as [`Answers::metric_spec`].
    ///
    /// # Errors
    /// When name or target cannot be derived.
    pub fn spec_of(&self, question: Question<'_>) -> Result<MetricSpec, Refusal> {
        let object = self.object(question).ok();
        match object.and_then(|object| self.known(&object, question)) {
            Some(known) => Ok(MetricSpec { name: known.name.clone(), target: known.target }),
            None => self.metric_spec(question.metadata),
        }
    }

    /// What `question` is about, parsed if need be.
    pub(super) fn subject(&self, question: Question<'_>) -> Subject {
        let object = self.object(question);
        let known = object.as_ref().ok().and_then(|object| self.known(object, question));
        let trigger = match known {
            Some(known) => Ok(known),
            None => self.trigger_of(question).map(Arc::new),
        };
        Subject { trigger, object }
    }

    fn known(&self, object: &ScaledObject, question: Question<'_>) -> Option<Arc<Trigger>> {
        let asked = self.asked.get(&object.key)?;
        let same = asked.iter().find(|asked| asked.is_whole(question.metadata))?;
        Some(same.trigger.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> HashMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect()
    }

    #[test]
    fn metadata_is_known_again_only_if_every_key_is_the_same() {
        let asked = [("metricType", "sm_activity"), ("targetValue", "70"), ("scalerAddress", "a")];
        let whole = Whole::new(&map(&asked)).unwrap();
        assert!(whole.is(&map(&asked)));
        for other in [
            &[("metricType", "sm_activity"), ("targetValue", "71"), ("scalerAddress", "a")][..],
            &[("metricType", "sm_activity"), ("targetvalue", "70"), ("scalerAddress", "a")],
            &[("metricType", "sm_activity"), ("targetValue", "70")],
            &[
                ("metricType", "sm_activity"),
                ("targetValue", "70"),
                ("scalerAddress", "a"),
                ("x", ""),
            ],
            &[],
        ] {
            assert!(!whole.is(&map(other)), "{other:?}");
        }
    }

    #[test]
    fn large_metadata_is_not_kept() {
        let large = "x".repeat(MAX_BYTES);
        assert!(Whole::new(&map(&[("caCert", &large)])).is_none());
        assert!(Whole::new(&map(&[("caCert", &large[6..])])).is_some());
    }
}
