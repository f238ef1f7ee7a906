//! Triggers that were asked about before, known again by their metadata.
//!
//! Guarantees: a trigger is taken from memory only for a question with the very same metadata, key
//! by key, with or without what only KEDA reads, about the same ScaledObject, so that it is the one that parsing would give: what else
//! parsing depends on, profiles and allowed origins, stays while the gateway runs. What is
//! remembered is bounded, and forgotten when nobody asks about it any more.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use shared::identity::{PodKey, ScaledObjectKey};
use shared::time::Timestamp;
use tracing::warn;

use super::roster::Roster;
use super::{Answers, Assessment, Question, Refusal};
use crate::directory::ScaledObject;
use crate::trigger::observed::TargetType;
use crate::trigger::spec::{self, MetricSpec, Trigger};
use crate::trigger::warning;

/// Metadata of more bytes is parsed at every question. No trigger of ours comes near it; what only
/// KEDA reads may be large and is not worth keeping.
const MAX_BYTES: usize = 4_096;
/// Metadata asked about is remembered for this long, to explain it.
const REMEMBER: Duration = Duration::from_secs(600);
/// Distinct metadata remembered per ScaledObject. Where there are more, one that is asked about for
/// the first time takes the place of what nobody asks about any more, or is not remembered.
const MAX_ASKED: usize = 16;
/// What is asked about again after this long is asked about by somebody who goes on asking.
const ASKED_ONCE: Duration = Duration::from_secs(10);
/// Who goes on asking asks at least this often.
const ASKS_AGAIN: Duration = Duration::from_secs(120);

/// What is remembered of one ScaledObject.
#[derive(Default)]
pub(super) struct Known {
    pub(super) asked: Vec<Asked>,
    roster: Option<Arc<Roster>>,
}

/// A trigger that was asked about.
#[derive(Clone, Debug)]
pub struct Asked {
    /// Its metadata, as it came.
    pub metadata: HashMap<String, String>,
    /// When it was first asked about.
    first: Timestamp,
    /// When it was last asked about.
    pub last: Timestamp,
    /// Since when it has been seen active without a break; `None` while it is not.
    pub active_since: Option<Timestamp>,
    /// How often it was seen to become inactive.
    pub endings: u64,
    /// How far it looks back.
    look_back: Duration,
    /// The metadata with what only KEDA reads, unless it is too large to be kept.
    whole: Option<Whole>,
    /// The trigger that it describes.
    trigger: Arc<Trigger>,
    /// The trigger, where it reads engines without having been declared.
    pub(super) undeclared: Option<Arc<Trigger>>,
}

/// Metadata as it came, all of it, in one piece: the lengths of each key and its value, then both.
#[derive(Clone, Debug)]
struct Whole {
    pairs: usize,
    text: Box<[u8]>,
}

/// What a question is about, as far as it can be known.
pub(super) struct Subject {
    pub(super) trigger: Result<Arc<Trigger>, Refusal>,
    pub(super) object: Result<Arc<ScaledObject>, Refusal>,
    pub(super) roster: Option<Arc<Roster>>,
}

impl Asked {
    /// Remembers a trigger that is asked about for the first time, and says what is unsound in it.
    fn new(question: Question<'_>, assessment: &Assessment) -> Self {
        let Assessment { object, trigger, observed, now, .. } = assessment;
        let value_type = observed.target_type == TargetType::Value;
        for warning in warning::warnings(trigger, object.min_replicas, value_type) {
            warn!(scaled_object = %object.key, trigger = %trigger.name, warning, "unsound trigger");
        }
        let undeclared = trigger.reads_engines() && object.trigger_of(question.metadata).is_none();
        Self {
            metadata: spec::ours(question.metadata),
            first: *now,
            last: *now,
            active_since: None,
            endings: 0,
            look_back: trigger.look_back(),
            whole: Whole::new(question.metadata),
            trigger: trigger.clone(),
            undeclared: undeclared.then(|| trigger.clone()),
        }
    }

    /// Whether it came with exactly that metadata, or it is what is shown of it.
    fn is_of(&self, metadata: &HashMap<String, String>) -> bool {
        self.whole.as_ref().is_some_and(|whole| whole.is(metadata)) || self.metadata == *metadata
    }

    /// Whether it leaves its place to another.
    fn gives_way(&self, now: Timestamp) -> bool {
        let is_regular = self.last.since(self.first) >= ASKED_ONCE;
        now.since(self.last) >= if is_regular { ASKS_AGAIN } else { ASKED_ONCE }
    }
}

impl Whole {
    /// `metadata` to be known again; `None` if it is too large for that.
    fn new(metadata: &HashMap<String, String>) -> Option<Self> {
        let bytes: usize = metadata.iter().map(|(key, value)| key.len() + value.len()).sum();
        if bytes > MAX_BYTES {
            return None;
        }
        let mut text = Vec::with_capacity(bytes + 4 * metadata.len());
        for (key, value) in metadata {
            for length in [key.len(), value.len()] {
                text.extend(u16::try_from(length).ok()?.to_ne_bytes());
            }
            text.extend(key.bytes().chain(value.bytes()));
        }
        Some(Self { pairs: metadata.len(), text: text.into() })
    }

    /// Whether `metadata` is this.
    fn is(&self, metadata: &HashMap<String, String>) -> bool {
        self.pairs == metadata.len()
            && metadata.iter().all(|(key, value)| self.has(key.as_bytes(), value.as_bytes()))
    }

    fn has(&self, key: &[u8], value: &[u8]) -> bool {
        let mut rest = &self.text[..];
        while let [a, b, c, d, after @ ..] = rest {
            let lengths = [[*a, *b], [*c, *d]].map(u16::from_ne_bytes).map(usize::from);
            let (own, after) = after.split_at(lengths[0] + lengths[1]);
            rest = after;
            if lengths == [key.len(), value.len()] && own.split_at(key.len()) == (key, value) {
                return true;
            }
        }
        false
    }
}

impl Answers {
    /// Name and target of the trigger that `question` is about; as [`Answers::metric_spec`].
    ///
    /// # Errors
    /// When name or target cannot be derived.
    pub fn spec_of(&self, question: Question<'_>) -> Result<MetricSpec, Refusal> {
        let object = self.object(question, self.clock.now()).ok();
        match object.and_then(|object| self.known(&object, question).0) {
            Some(known) => Ok(MetricSpec { name: known.name.clone(), target: known.target }),
            None => self.metric_spec(question.metadata),
        }
    }

    /// What `question` is about, parsed if need be.
    pub(super) fn subject(&self, question: Question<'_>, now: Timestamp) -> Subject {
        let object = self.object(question, now);
        let (known, roster) = match &object {
            Ok(object) => self.known(object, question),
            Err(_) => (None, None),
        };
        let trigger = match known {
            Some(known) => Ok(known),
            None => self.trigger_of(question).map(Arc::new),
        };
        Subject { trigger, object, roster }
    }

    fn known(
        &self,
        object: &ScaledObject,
        question: Question<'_>,
    ) -> (Option<Arc<Trigger>>, Option<Arc<Roster>>) {
        let Some(known) = self.known.get(&object.key) else { return (None, None) };
        let same = known.asked.iter().find(|asked| asked.is_of(question.metadata));
        (same.map(|same| same.trigger.clone()), known.roster.clone())
    }

    pub(super) fn remember(
        &self,
        question: Question<'_>,
        assessment: &Assessment,
        active: Option<bool>,
    ) {
        let now = assessment.now;
        let key = &assessment.object.key;
        let known = self.known.get_mut(key);
        let mut known = known.unwrap_or_else(|| self.known.entry(key.clone()).or_default());
        let Known { asked, roster } = &mut *known;
        let is_new = |new: &Arc<Roster>| roster.as_ref().is_none_or(|old| !Arc::ptr_eq(old, new));
        if let Some(new) = assessment.roster.as_ref().filter(|new| is_new(new)) {
            *roster = Some(new.clone());
        }
        let Some(at) = self.place_of(asked, question, assessment) else { return };
        let entry = &mut asked[at];
        entry.last = now;
        match active {
            Some(true) => entry.active_since = entry.active_since.or(Some(now)),
            Some(false) => entry.endings += u64::from(entry.active_since.take().is_some()),
            // Not known is no change.
            None => {}
        }
    }

    /// The place of the trigger in `asked`, made for it if there is room.
    fn place_of(
        &self,
        asked: &mut Vec<Asked>,
        question: Question<'_>,
        assessment: &Assessment,
    ) -> Option<usize> {
        let from_memory = |asked: &Asked| Arc::ptr_eq(&asked.trigger, &assessment.trigger);
        if let Some(at) = asked.iter().position(from_memory) {
            return Some(at);
        }
        let is_same = |asked: &Asked| spec::is_same(&asked.metadata, question.metadata);
        if let Some(at) = asked.iter().position(is_same) {
            // What only KEDA reads has changed.
            asked[at].whole = Whole::new(question.metadata);
            asked[at].trigger = assessment.trigger.clone();
            return Some(at);
        }
        if asked.len() == MAX_ASKED {
            let gives_way = (0..asked.len()).filter(|at| asked[*at].gives_way(assessment.now));
            let longest_ago = gives_way.min_by_key(|at| asked[*at].last)?;
            let forgotten = asked.swap_remove(longest_ago);
            self.note_engines(&[forgotten]);
        }
        asked.push(Asked::new(question, assessment));
        self.note_engines(&asked[asked.len() - 1..]);
        Some(asked.len() - 1)
    }

    /// How often the trigger was seen to become inactive, by whoever asked.
    pub fn endings(&self, question: Question<'_>) -> u64 {
        let key = ScaledObjectKey::new(question.namespace, question.name);
        let known = self.known.get(&key);
        let asked = known.as_ref().and_then(|known| {
            known.asked.iter().find(|asked| spec::is_same(&asked.metadata, question.metadata))
        });
        asked.map_or(0, |asked| asked.endings)
    }

    /// The triggers asked about in the last ten minutes.
    pub fn asked(&self, object: &ScaledObjectKey) -> Vec<Asked> {
        let now = self.clock.now();
        let asked = self.known.get(object).map_or_else(Vec::new, |known| known.asked.clone());
        asked.into_iter().filter(|asked| now.since(asked.last) < REMEMBER).collect()
    }

    /// How long the past of a pod is needed, by triggers declared or asked about.
    pub fn look_backs(&self) -> impl Fn(&PodKey) -> Option<Duration> {
        let snapshot = self.directory.snapshot();
        move |pod| {
            let scaled = snapshot.as_ref()?.scaled(pod)?;
            let of =
                |object| self.known.get(object)?.asked.iter().map(|asked| asked.look_back).max();
            scaled.by.iter().filter_map(of).chain([scaled.look_back]).max()
        }
    }

    /// Forgets triggers that nobody asks about any more, and all of a ScaledObject that `is_gone`.
    pub(super) fn forget(&self, is_gone: impl Fn(&ScaledObjectKey) -> bool, now: Timestamp) {
        self.known.retain(|key, known| {
            let is_gone = is_gone(key);
            let is_late = |asked: &mut Asked| is_gone || now.since(asked.last) >= REMEMBER;
            self.note_engines(&known.asked.extract_if(.., is_late).collect::<Vec<_>>());
            !known.asked.is_empty()
        });
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
