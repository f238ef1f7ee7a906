//! What is asked of the pods' inference engines, by triggers that are declared and by those that
//! are only asked about.
//!
//! Guarantees: a trigger on engine metrics is among the asks from the first question about it, for
//! as long as it is remembered; the published asks change only when what is asked does.

use std::sync::Arc;

use tokio::sync::watch;

use super::Answers;
use super::known::Asked;
use crate::engine::Asks;

impl Answers {
    /// What is asked of engines, as of the last [`Self::renew_asks`].
    pub fn asks(&self) -> watch::Receiver<Arc<Asks>> {
        self.asks.subscribe()
    }

    /// Looks what is asked of engines by now, and publishes it if that is something else. It can
    /// change with [`crate::directory::Directory::changes`] and with [`Self::engines_asked`].
    pub fn renew_asks(&self) {
        let Some(snapshot) = self.directory.snapshot() else { return };
        let undeclared: Vec<_> = self
            .known
            .iter()
            .flat_map(|known| {
                let asked = known.asked.iter();
                let triggers = asked.filter_map(|asked| asked.undeclared.as_ref());
                triggers.map(|t| (known.key().clone(), t.clone())).collect::<Vec<_>>()
            })
            .collect();
        let before = self.asks.borrow().clone();
        let asks = Asks::new(&snapshot, &self.profiles, undeclared, &before);
        let changed = before.version() != asks.version();
        self.asks.send_if_modified(|known| {
            // Also where nothing new is asked: it knows what need not be read again.
            *known = Arc::new(asks);
            changed
        });
    }

    /// Changes when triggers on engine metrics that are not declared are first asked about, or
    /// forgotten.
    pub fn engines_asked(&self) -> watch::Receiver<u64> {
        self.engines_asked.subscribe()
    }

    /// Notes that these came or went.
    pub(super) fn note_engines(&self, changed: &[Asked]) {
        if changed.iter().any(|asked| asked.undeclared.is_some()) {
            self.engines_asked.send_modify(|version| *version += 1);
        }
    }
}
