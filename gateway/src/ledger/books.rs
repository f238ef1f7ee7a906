//! The ledger of this process: kept by one task, looked into by many.
//!
//! Guarantees: a look takes the fleet as it is at that moment; whoever reads waits for one look at
//! most.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use shared::process::Clock;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::Ledger;
use super::report::Report;
use super::tariff::Tariff;
use crate::directory::{Directory, Snapshot};
use crate::fleet::Fleet;

/// Time between two looks. Totals lose nothing in between; who has a device and how busy it is may
/// change.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The ledger, and what it is kept from.
pub struct Books {
    ledger: Mutex<Ledger>,
    /// What was known at the last look.
    looked_at: Mutex<Option<Arc<Snapshot>>>,
    fleet: Arc<Fleet>,
    directory: Arc<Directory>,
    clock: Clock,
}

impl Books {
    /// Books about `fleet`, with nothing in them yet.
    pub fn new(tariff: Tariff, fleet: Arc<Fleet>, directory: Arc<Directory>, clock: Clock) -> Self {
        let ledger = Ledger::new(tariff).into();
        Self { ledger, looked_at: Mutex::default(), fleet, directory, clock }
    }

    /// Takes a look every second until `shutdown`.
    pub async fn keep(self: Arc<Self>, shutdown: CancellationToken) {
        let mut tick = tokio::time::interval(LOOK_EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while shutdown.run_until_cancelled(tick.tick()).await.is_some() {
            self.look();
        }
    }

    /// Takes a look, if it is known by now what is whose.
    pub fn look(&self) {
        let Some(directory) = self.directory.snapshot() else { return };
        let before = self.looked_at.lock().replace(directory.clone());
        let views = self.fleet.views();
        let views = views.iter().map(|(name, view)| (name, &**view));
        let (mut ledger, now) = (self.ledger.lock(), self.clock.now());
        if before.is_some_and(|before| Arc::ptr_eq(&before, &directory)) {
            ledger.look_again(views, &directory, now);
        } else {
            ledger.look(views, &directory, now);
        }
    }

    /// Everything as it is now.
    pub fn report(&self) -> Report {
        self.read(|ledger| ledger.report(self.directory.snapshot().as_deref(), self.clock.now()))
    }

    /// Looks something up.
    pub fn read<T>(&self, look: impl FnOnce(&Ledger) -> T) -> T {
        look(&self.ledger.lock())
    }
}
