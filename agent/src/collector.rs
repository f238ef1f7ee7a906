//! The one loop: tick → device → owner → frame → watch channel.
//!
//! Guarantees: the channel holds the newest frame and nothing else; a late tick is skipped, not
//! made up for; the channel closes when the loop ends.

use std::sync::Arc;
use std::time::Duration;

use shared::frame::Inventory;
use shared::process::Clock;
use shared::time::Timestamp;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::device::DeviceSource;
use crate::frame::{Taken, assemble};
use crate::owner::file::HoldersFile;
use crate::owner::{Declared, resolve};

/// The newest frame; none before the first tick.
pub type Newest = Option<Arc<Taken>>;

/// What the loop reads from.
pub struct Collector {
    /// Devices and engines.
    pub source: Box<dyn DeviceSource>,
    /// Holders that win over the source's, where there is such a file.
    pub holders: Option<HoldersFile>,
    /// Time between two ticks.
    pub interval: Duration,
}

impl Collector {
    /// Publishes a frame every interval until the source has finished or `shutdown` is cancelled.
    pub async fn run(
        mut self,
        clock: Clock,
        newest: watch::Sender<Newest>,
        shutdown: CancellationToken,
    ) {
        let mut ticks = tokio::time::interval(self.interval);
        // Readings are of now: frames for ticks that were missed would all be the same, and
        // agents that were stopped together should keep the phases they had.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut inventory = None;
        while shutdown.run_until_cancelled(ticks.tick()).await.is_some() {
            let taken = self.take(clock.now(), inventory.as_ref());
            inventory = Some(taken.frame.inventory.clone());
            newest.send_replace(Some(Arc::new(taken)));
            if self.source.finished() {
                info!("the source has finished");
                return;
            }
        }
    }

    /// One tick.
    pub fn take(&mut self, now: Timestamp, previous: Option<&Arc<Inventory>>) -> Taken {
        let none = Declared::new();
        let observation = self.source.observe(now);
        let declared = self.holders.as_mut().map_or(&none, |file| file.declared(now));
        let owners = resolve(&observation, declared);
        Taken { frame: assemble(observation, owners, previous), at: now }
    }
}
