//! One copy of each text, for names that thousands of pods share.

use std::collections::HashSet;
use std::sync::Arc;

/// Texts that nobody uses any more are dropped when there are this many, or twice as many as
/// were in use the last time.
const TIDY_AT: usize = 4_096;

/// Texts, each kept once.
#[derive(Debug)]
pub struct Interner {
    texts: HashSet<Arc<str>>,
    tidy_at: usize,
}

impl Default for Interner {
    fn default() -> Self {
        Self { texts: HashSet::new(), tidy_at: TIDY_AT }
    }
}

impl Interner {
    /// The one copy of `text`.
    pub fn one(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.texts.get(text) {
            return known.clone();
        }
        if self.texts.len() >= self.tidy_at {
            self.texts.retain(|text| Arc::strong_count(text) > 1);
            self.tidy_at = TIDY_AT.max(2 * self.texts.len());
        }
        let new: Arc<str> = text.into();
        self.texts.insert(new.clone());
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
        assert!(interner.texts.len() <= TIDY_AT + 1, "{}", interner.texts.len());
        assert!(Arc::ptr_eq(&one, &interner.one("one")));
    }
}
