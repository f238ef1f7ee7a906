//! What the kubelet gave to whom, asked again and again.
//!
//! Guarantees: nothing here makes a tick wait; the kubelet is asked at most once a second, and far
//! more rarely where nothing changes or it fails; its last word holds for a bounded time after it
//! was last confirmed, and then nothing is known any more rather than something false.
//!
//! ```text
//!  kubelet ◀── List ── task ── newest word ──▶ declaration(brief, devices), at every tick
//!     brief, processes, socket changed ──▲
//! ```

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use shared::brief::Brief;
use shared::identity::DeviceUuid;
use shared::process::Clock;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tracing::{info, warn};

use super::declared::{Declaration, Listing, Resources, declare};
use super::id::Why;
use crate::device::{ObservedDevice, Processes, Seat};

/// One question.
mod ask;
/// When to ask.
pub mod pace;
/// Asking again and again.
mod task;

pub use ask::Fault;
use task::{Asking, Heard};

/// Where the kubelet's socket usually is.
pub const SOCKET: &str = "/var/lib/kubelet/pod-resources/kubelet.sock";

/// How the kubelet is asked; the defaults are what a node wants.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Its socket, which may be replaced at any time.
    pub socket: PathBuf,
    /// What counts as a GPU.
    pub resources: Resources,
    /// Time between two calls.
    pub every: Duration,
    /// The same where nothing changes.
    pub quiet: Duration,
    /// How long nothing must have changed for that.
    pub quiet_after: Duration,
    /// The least time between two calls, whatever happens.
    pub soonest: Duration,
    /// How long an answer may take.
    pub deadline: Duration,
    /// Time until the first call after a failure; doubled at each further one.
    pub retry: Duration,
    /// The longest time between two calls that fail.
    pub longest: Duration,
    /// How long the last word holds after it was confirmed.
    pub keep: Duration,
    /// Time between two looks at whether the socket was replaced.
    pub look: Duration,
}

impl Settings {
    /// The defaults, for the kubelet at `socket`.
    pub fn new(socket: PathBuf, resources: Resources) -> Self {
        Self {
            socket,
            resources,
            every: Duration::from_secs(5),
            quiet: Duration::from_secs(30),
            quiet_after: Duration::from_secs(60),
            soonest: Duration::from_secs(1),
            deadline: Duration::from_secs(5),
            retry: Duration::from_secs(1),
            longest: Duration::from_secs(30),
            keep: Duration::from_secs(60),
            look: Duration::from_secs(1),
        }
    }
}

/// How asking the kubelet went, in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Calls that are over.
    pub lists: u64,
    /// Those of them that failed, in the order of `Fault::ALL`.
    pub failures: [u64; Fault::ALL.len()],
    /// What names no device here now, in the order of `Why::ALL`.
    pub unresolved: [u64; Why::ALL.len()],
    /// Time since its word was last confirmed, while it holds.
    pub age: Option<Duration>,
}

/// The kubelet of this node.
pub struct Kubelet {
    keep: Duration,
    clock: Clock,
    heard: watch::Receiver<Heard>,
    poke: Arc<Notify>,
    /// What asks, until it is started.
    asking: Option<Asking>,
    task: Option<JoinHandle<()>>,
    last: Last,
}

/// What the last tick saw, and what came out of it.
#[derive(Default)]
struct Last {
    listing: Option<Arc<Listing>>,
    brief: Option<Arc<Brief>>,
    /// What of the devices decides which ids name them.
    devices: Vec<(DeviceUuid, Seat)>,
    processes: Option<u64>,
    declaration: Declaration,
}

impl Last {
    /// Whether ids may name other devices than before.
    fn has_moved(&self, devices: &[ObservedDevice]) -> bool {
        let known = self.devices.iter().map(|(uuid, seat)| (uuid, *seat));
        !known.eq(devices.iter().map(|device| (&device.uuid, device.seat)))
    }

    fn declare(
        &mut self,
        listing: Option<Arc<Listing>>,
        brief: Option<Arc<Brief>>,
        devices: &[ObservedDevice],
    ) {
        let declaration = match &listing {
            Some(listing) => declare(listing, brief.as_deref(), devices),
            None => Declaration::default(),
        };
        if declaration.unresolved != self.declaration.unresolved
            && let Some(first) = declaration.unresolved.first()
        {
            let count = declaration.unresolved.len();
            warn!(count, %first, "what the kubelet gave names no device here");
        }
        let seats = devices.iter().map(|device| (device.uuid.clone(), device.seat));
        self.devices = seats.collect();
        (self.listing, self.brief, self.declaration) = (listing, brief, declaration);
    }
}

impl Kubelet {
    /// A kubelet that is asked once it is started, and whenever `briefs` change.
    pub fn new(settings: Settings, briefs: watch::Receiver<Option<Arc<Brief>>>) -> Self {
        let clock = Clock::start();
        let keep = settings.keep;
        let (asking, heard, poke) = Asking::new(settings, briefs, clock);
        let (asking, task, last) = (Some(asking), None, Last::default());
        Self { keep, clock, heard, poke, asking, task, last }
    }

    /// Begins to ask, if it was not begun before, and waits for the first answer until `patience`
    /// is over.
    pub async fn start(&mut self, patience: Duration) {
        let Some(asking) = self.asking.take() else { return };
        self.task = Some(tokio::spawn(asking.run()));
        let answered = self.heard.wait_for(|heard| heard.lists > 0);
        if tokio::time::timeout(patience, answered).await.is_err() {
            info!("the kubelet takes its time, starting without it");
        }
    }

    /// Something happened that may come from the kubelet: it is asked soon.
    pub fn changed(&self) {
        self.poke.notify_one();
    }

    /// Who holds which of `devices`, as far as the kubelet says now.
    pub fn declaration(
        &mut self,
        brief: Option<&Arc<Brief>>,
        devices: &[ObservedDevice],
    ) -> &Declaration {
        let (listing, trouble) = self.word();
        let last = &mut self.last;
        let is_first = last.devices.is_empty();
        let processes = processes(devices);
        let others = std::mem::replace(&mut last.processes, processes) != processes;
        let moved = last.has_moved(devices);
        let same =
            is_same(listing.as_ref(), last.listing.as_ref()) && is_same(brief, last.brief.as_ref());
        if moved || !same {
            last.declare(listing, brief.cloned(), devices);
        }
        last.declaration.trouble = trouble;
        if (others || moved) && !is_first {
            self.changed();
        }
        &self.last.declaration
    }

    /// What the last tick was told.
    pub fn declared(&self) -> &Declaration {
        &self.last.declaration
    }

    /// What kind of failure the newest answer was, if it was one.
    pub fn fault(&self) -> Option<Fault> {
        self.heard.borrow().fault
    }

    /// How asking went so far.
    pub fn counts(&self) -> Counts {
        let heard = self.heard.borrow();
        let mut unresolved = [0; Why::ALL.len()];
        for (count, why) in unresolved.iter_mut().zip(Why::ALL) {
            let all = self.last.declaration.unresolved.iter();
            *count = all.filter(|unresolved| unresolved.why == why).count() as u64;
        }
        let age = heard.word.as_ref().map(|word| self.clock.now().since(word.confirmed));
        Counts {
            lists: heard.lists,
            failures: heard.failures,
            unresolved,
            age: age.filter(|age| *age <= self.keep),
        }
    }

    /// The kubelet's word while it holds, and what is wrong.
    fn word(&self) -> (Option<Arc<Listing>>, Option<Arc<str>>) {
        let heard = self.heard.borrow();
        let now = self.clock.now();
        let word = heard.word.as_ref().filter(|word| now.since(word.confirmed) <= self.keep);
        let trouble = match (word, &heard.trouble) {
            (_, Some(trouble)) => Some(trouble.clone()),
            (None, None) => Some("the kubelet was not heard yet".into()),
            (Some(_), None) => None,
        };
        (word.map(|word| word.listing.clone()), trouble)
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

fn is_same<T>(one: Option<&Arc<T>>, other: Option<&Arc<T>>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => Arc::ptr_eq(one, other),
        (None, None) => true,
        _ => false,
    }
}

/// A number for the set of processes on the devices, whatever their order.
fn processes(devices: &[ObservedDevice]) -> Option<u64> {
    let mut sum = None;
    for (place, device) in (0_u64..).zip(devices) {
        let Processes::Known(processes) = &device.processes else { continue };
        let mixed = processes.iter().map(|process| {
            let both = place << 32 | u64::from(process.pid);
            let mixed = (both ^ both >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
        });
        sum = Some(mixed.fold(sum.unwrap_or(0), u64::wrapping_add));
    }
    sum
}
