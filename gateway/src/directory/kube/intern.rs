//! One copy of each text and of each set of labels, for what thousands of pods share.

use std::collections::HashSet;
use std::hash::Hash;
use std::sync::Arc;

use super::selector::Labels;

/// Texts that nobody uses any more are dropped when there are this many, or twice as many as
/// were in use the last time.
const TIDY_AT: usize = 4_096;

/// Texts and sets of labels, each kept once.
#[derive(Debug, Default)]
pub struct Interner {
    texts: Copies<str>,
    labels: Copies<[(Arc<str>, Arc<str>)]>,
}

/// Things of one type, each kept once.
#[derive(Debug)]
struct Copies<T: ?Sized> {
    kept: HashSet<Arc<T>>,
    tidy_at: usize,
}

impl Interner {
    /// The one copy of `text`.
    pub fn one(&mut self, text: &str) -> Arc<str> {
        self.texts.one(text)
    }

    /// The one copy of `labels`: the pods of one template have the same.
    pub fn labels(&mut self, labels: &[(Arc<str>, Arc<str>)]) -> Labels {
        self.labels.one(labels)
    }
}

impl<T: ?Sized> Default for Copies<T> {
    fn default() -> Self {
        Self { kept: HashSet::new(), tidy_at: TIDY_AT }
    }
}

impl<T: ?Sized + Eq + Hash> Copies<T> {
    fn one<'a>(&mut self, wanted: &'a T) -> Arc<T>
    where
        Arc<T>: From<&'a T>,
    {
        if let Some(known) = self.kept.get(wanted) {
            return known.clone();
        }
        if self.kept.len() >= self.tidy_at {
            self.kept.retain(|known| Arc::strong_count(known) > 1);
            self.tidy_at = TIDY_AT.max(2 * self.kept.len());
        }
        let new: Arc<T> = wanted.into();
        self.kept.insert(new.clone());
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_kept_once_and_not_for_ever() {
        let mut interner = Interner::default();
        let one = interner.one("one");
        assert!(Arc::ptr_eq(&one, &interner.one("one")));
        (0..10 * TIDY_AT).for_each(|n| drop(interner.one(&n.to_string())));
        assert!(interner.texts.kept.len() <= TIDY_AT + 1, "{}", interner.texts.kept.len());
        assert!(Arc::ptr_eq(&one, &interner.one("one")));
    }
}
