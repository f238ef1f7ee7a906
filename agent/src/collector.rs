//! The one loop: tick → device → owner → frame → watch channel.
//!
//! Guarantees: the channel holds the newest frame and nothing else; a late tick is skipped, not
//! made up for; the channel closes when the loop ends.

use std::sync::Arc;
use std::time::Duration;

use shared::brief::Brief;
use shared::frame::Inventory;
use shared::process::Clock;
use shared::time::Timestamp;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use crate::device::meter::Meters;
use crate::device::{DeviceSource, Error};
use crate::engine::Engines;
use crate::frame::{Taken, assemble};
use crate::owner::declared::Declaration;
use crate::owner::file::HoldersFile;
use crate::owner::handover::Handovers;
use crate::owner::kubelet::Kubelet;
use crate::owner::process::{ProcessOwners, Procfs};
use crate::owner::{Declared, Known, Note, Owners, resolve};

/// The newest frame; none before the first tick.
pub type Newest = Option<Arc<Taken>>;

/// How long the hardware may take to say something at all, and how often that is looked at.
const FIRST_PATIENCE: Duration = Duration::from_secs(5);
const FIRST_STEP: Duration = Duration::from_millis(25);
/// How long the kubelet's first answer is waited for.
const KUBELET_PATIENCE: Duration = Duration::from_secs(2);
/// How long a gateway's first brief is waited for.
const BRIEF_PATIENCE: Duration = Duration::from_secs(3);

/// What the loop reads from.
pub struct Collector {
    /// Devices and engines.
    pub source: Box<dyn DeviceSource>,
    /// Holders that win over the source's, where there is such a file.
    pub holders: Option<HoldersFile>,
    /// Engines that are read over the network, beside those of the source.
    pub engines: Engines,
    /// The node's kubelet, where it is to be asked.
    pub kubelet: Option<Kubelet>,
    /// The node's processes, where they are to be looked at.
    pub processes: Option<Procfs>,
    /// What the gateways say of this node.
    pub briefs: watch::Receiver<Option<Arc<Brief>>>,
    /// What devices without an energy counter use.
    pub meters: Meters,
    /// Devices that changed hands.
    pub handovers: Handovers,
    /// What the last tick had to say about the holders of each device.
    pub notes: Vec<Note>,
    /// Time between two ticks.
    pub interval: Duration,
}

impl Collector {
    /// Publishes a frame every interval until the source has finished or `shutdown` is cancelled.
    ///
    /// # Errors
    /// When the source can be read by another process only.
    pub async fn run(
        mut self,
        clock: Clock,
        newest: watch::Sender<Newest>,
        shutdown: CancellationToken,
    ) -> Result<(), Error> {
        let ended = shutdown.run_until_cancelled(self.publish(clock, &newest)).await;
        // The library is closed before the channel is, and so before the streams end.
        self.close().await;
        ended.unwrap_or(Ok(()))
    }

    async fn publish(&mut self, clock: Clock, newest: &watch::Sender<Newest>) -> Result<(), Error> {
        // Where another agent spoke for this node until now, an empty first frame would take from
        // the gateways what they know.
        self.get_ready().await;
        let mut ticks = tokio::time::interval(self.interval);
        // Readings are of now: frames for ticks that were missed would all be the same, and
        // agents that were stopped together should keep the phases they had.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut inventory = None;
        loop {
            ticks.tick().await;
            self.read(self.interval / 4).await;
            let taken = self.take(clock.now(), inventory.as_ref());
            inventory = Some(taken.frame.inventory.clone());
            newest.send_replace(Some(Arc::new(taken)));
            if self.source.finished()? {
                info!("the source has finished");
                return Ok(());
            }
        }
    }

    /// Lets the source read its hardware, if it has such, for at most `patience`; says whether
    /// that was enough. What is not there by then is taken as it was.
    pub async fn read(&mut self, patience: Duration) -> bool {
        match self.source.begin() {
            Some(done) => tokio::time::timeout(patience, done).await.is_ok(),
            None => true,
        }
    }

    /// The first frame that says more than that nothing was read yet.
    pub async fn first(&mut self, clock: Clock) -> Taken {
        self.get_ready().await;
        self.take(clock.now(), None)
    }

    /// Waits until there is something to say, but not for ever.
    async fn get_ready(&mut self) {
        let kubelet = async {
            if let Some(kubelet) = &mut self.kubelet {
                kubelet.start(KUBELET_PATIENCE).await;
            }
        };
        // Until pods have names, what shares a card is not told apart. Streams are up before the
        // first frame is, and the brief is the first thing that comes down; with no gateway there
        // is none, and nothing to wait for.
        let brief = async {
            if self.processes.is_some() {
                let heard = self.briefs.wait_for(Option::is_some);
                drop(tokio::time::timeout(BRIEF_PATIENCE, heard).await);
            }
        };
        tokio::join!(kubelet, brief);
        let ready = async {
            loop {
                self.read(FIRST_STEP).await;
                if self.source.is_ready() {
                    return;
                }
                tokio::time::sleep(FIRST_STEP).await;
            }
        };
        if tokio::time::timeout(FIRST_PATIENCE, ready).await.is_err() {
            info!("the hardware takes its time, starting without all of it");
        }
    }

    /// One tick.
    pub fn take(&mut self, now: Timestamp, previous: Option<&Arc<Inventory>>) -> Taken {
        let (none, nobody) = (Declared::new(), Declaration::default());
        let mut observation = self.source.observe(now);
        self.meters.fill(&mut observation, now);
        self.engines.add(&mut observation, now);
        let brief = self.briefs.borrow().clone();
        let unread = ProcessOwners::unread();
        let processes = self.processes.as_mut();
        let processes = processes.map_or(&unread, |p| p.look(&observation, brief.as_ref(), now));
        let kubelet = self.kubelet.as_mut();
        let known = Known {
            file: self.holders.as_mut().map_or(&none, |file| file.declared(now)),
            declaration: kubelet.map_or(&nobody, |kubelet| {
                kubelet.declaration(brief.as_ref(), &observation.devices)
            }),
            processes,
        };
        let mut owners = resolve(&observation, known);
        self.handovers.mark(&observation, &mut owners, now);
        self.notes.clear();
        self.notes.extend(owners.iter().map(Owners::note));
        let kubelet = self.kubelet.as_ref().map(Kubelet::counts);
        Taken { frame: assemble(observation, owners, previous), at: now, kubelet }
    }

    /// Closes the source, which may have to wait for its hardware.
    pub async fn close(self) {
        if let Err(error) = tokio::task::spawn_blocking(move || drop(self.source)).await {
            error!(%error, "the source could not be closed");
        }
    }
}
