//! Lines of log that anybody can cause, said now and then.
//!
//! Guarantees: a subject has one line in `SAY_EVERY` at most, with how many there were since the
//! last; so many subjects at most have one in that time.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Two lines about one subject are at least this far apart.
pub const SAY_EVERY: Duration = Duration::from_secs(10);
/// Subjects with a line in that time.
const SUBJECTS: usize = 1_024;

/// When each subject was last spoken of; clones know the same.
pub struct Seldom<K>(Arc<Mutex<HashMap<K, Said>>>);

struct Said {
    at: Instant,
    unsaid: u64,
}

impl<K> Default for Seldom<K> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<K> Clone for Seldom<K> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K: Eq + Hash> Seldom<K> {
    /// How many were not said since the last line about `subject`, if it is time for another.
    pub fn unsaid(&self, subject: K, now: Instant) -> Option<u64> {
        let mut said = self.0.lock();
        if let Some(said) = said.get_mut(&subject) {
            if now - said.at < SAY_EVERY {
                said.unsaid += 1;
                return None;
            }
            said.at = now;
            return Some(std::mem::take(&mut said.unsaid));
        }
        if said.len() >= SUBJECTS {
            said.retain(|_, said| now - said.at < SAY_EVERY);
        }
        if said.len() >= SUBJECTS {
            return None;
        }
        said.insert(subject, Said { at: now, unsaid: 0 });
        Some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_has_one_line_in_ten_seconds_and_subjects_have_an_end() {
        let (seldom, start) = (Seldom::default(), Instant::now());
        assert_eq!(seldom.unsaid(0, start), Some(0));
        for millis in 1..1_000 {
            assert_eq!(seldom.unsaid(0, start + Duration::from_millis(millis)), None);
        }
        assert_eq!(seldom.unsaid(0, start + SAY_EVERY), Some(999));
        let later = start + SAY_EVERY;
        let said = (1..3_000).filter(|subject| seldom.unsaid(*subject, later).is_some()).count();
        assert_eq!(said, SUBJECTS - 1);
        assert_eq!(seldom.unsaid(5_000, later + SAY_EVERY), Some(0), "the others are forgotten");
    }
}
