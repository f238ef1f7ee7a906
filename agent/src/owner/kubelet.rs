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

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use shared::brief::Brief;
use shared::identity::DeviceUuid;
use shared::process::Clock;
use shared::time::Timestamp;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior};
use tracing::{info, warn};

use super::declared::{Declaration, Listing, Resources, declare};
use super::id::Why;
use crate::device::{ObservedDevice, Processes, Seat};

/// One question.
mod ask;
/// When to ask.
pub mod pace;

pub use ask::Fault;
use pace::Past;

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

/// The newest word of the kubelet.
#[derive(Clone, Debug, Default)]
struct Heard {
    word: Option<Word>,
    /// Why the newest call failed.
    trouble: Option<Arc<str>>,
    fault: Option<Fault>,
    lists: u64,
    failures: [u64; Fault::ALL.len()],
}

#[derive(Clone, Debug)]
struct Word {
    listing: Arc<Listing>,
    confirmed: Timestamp,
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

impl Kubelet {
    /// A kubelet that is asked once it is started, and whenever `briefs` change.
    pub fn new(settings: Settings, briefs: watch::Receiver<Option<Arc<Brief>>>) -> Self {
        let clock = Clock::start();
        let (say, heard) = watch::channel(Heard::default());
        let poke = Arc::new(Notify::new());
        let keep = settings.keep;
        let asking = Asking {
            settings,
            briefs,
            has_briefs: true,
            poke: poke.clone(),
            say,
            clock,
            changed: clock.now(),
        };
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
        let processes = processes(devices);
        let first = last.devices.is_empty();
        let others = last.processes != processes;
        last.processes = processes;
        let same =
            is_same(listing.as_ref(), last.listing.as_ref()) && is_same(brief, last.brief.as_ref());
        let known = last.devices.iter().map(|(uuid, seat)| (uuid, *seat));
        let moved = !known.eq(devices.iter().map(|device| (&device.uuid, device.seat)));
        if !same || moved {
            let declaration = match &listing {
                Some(listing) => declare(listing, brief.map(|brief| &**brief), devices),
                None => Declaration::default(),
            };
            if declaration.unresolved != last.declaration.unresolved
                && let Some(first) = declaration.unresolved.first()
            {
                let count = declaration.unresolved.len();
                warn!(count, %first, "what the kubelet gave names no device here");
            }
            last.declaration = declaration;
            let seats = devices.iter().map(|device| (device.uuid.clone(), device.seat));
            last.devices = seats.collect();
            last.brief = brief.cloned();
            last.listing = listing;
        }
        last.declaration.trouble = trouble;
        if (others || moved) && !first {
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

/// The task that asks.
struct Asking {
    settings: Settings,
    briefs: watch::Receiver<Option<Arc<Brief>>>,
    /// Whether there will be any more briefs.
    has_briefs: bool,
    poke: Arc<Notify>,
    say: watch::Sender<Heard>,
    clock: Clock,
    /// When the kubelet or a gateway last said something new.
    changed: Timestamp,
}

impl Asking {
    async fn run(mut self) {
        let mut past = Past { failures: 0, fault: None, unchanged: Duration::ZERO };
        loop {
            let asked = Instant::now();
            let socket = self.socket().await;
            let brief = self.briefs.borrow_and_update().clone();
            let answer = ask::list(&self.settings, brief.as_deref()).await;
            self.note(answer, &mut past);
            past.unchanged = self.clock.now().since(self.changed);
            let wait = pace::wait(&self.settings, past, fastrand::f64());
            self.pause(asked, wait, socket, past.failures == 0).await;
        }
    }

    /// What tells the socket from one that takes its place.
    async fn socket(&self) -> Option<(u64, u64, i64, i64)> {
        let identity = |file: Metadata| (file.dev(), file.ino(), file.ctime(), file.ctime_nsec());
        tokio::fs::metadata(&self.settings.socket).await.ok().map(identity)
    }

    fn note(&mut self, answer: Result<Listing, ask::Failure>, past: &mut Past) {
        let now = self.clock.now();
        match answer {
            Ok(listing) => {
                if past.failures > 0 {
                    info!("the kubelet answers again");
                }
                *past = Past { failures: 0, fault: None, ..*past };
                let mut is_new = false;
                self.say.send_modify(|heard| {
                    heard.lists += 1;
                    heard.trouble = None;
                    heard.fault = None;
                    let known = heard.word.take().map(|word| word.listing);
                    // The same word stays the same, so that nothing is worked out again.
                    let known = known.filter(|known| **known == listing);
                    is_new = known.is_none();
                    let listing = known.unwrap_or_else(|| Arc::new(listing));
                    heard.word = Some(Word { listing, confirmed: now });
                });
                if is_new {
                    self.changed = now;
                }
            }
            Err(ask::Failure { fault, said }) => {
                if past.fault != Some(fault) {
                    warn!(why = %said, "the kubelet does not say who holds what");
                }
                *past =
                    Past { failures: past.failures.saturating_add(1), fault: Some(fault), ..*past };
                self.say.send_modify(|heard| {
                    heard.lists += 1;
                    let counts = heard.failures.iter_mut().zip(Fault::ALL);
                    counts.filter(|(_, of)| *of == fault).for_each(|(count, _)| *count += 1);
                    heard.trouble = Some(said);
                    heard.fault = Some(fault);
                });
            }
        }
    }

    /// Waits until it is time to ask again: `wait` from now, or as soon as may be after something
    /// changed. A kubelet that fails is asked sooner only if there is another socket.
    async fn pause(
        &mut self,
        asked: Instant,
        wait: Duration,
        socket: Option<(u64, u64, i64, i64)>,
        works: bool,
    ) {
        let soonest = asked + self.settings.soonest;
        let due = tokio::time::sleep(wait);
        tokio::pin!(due);
        let mut looks = tokio::time::interval(self.settings.look);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let sooner = tokio::select! {
                () = &mut due => return,
                changed = self.briefs.changed(), if self.has_briefs => {
                    self.has_briefs = changed.is_ok();
                    if self.has_briefs {
                        self.changed = self.clock.now();
                    }
                    works && self.has_briefs
                }
                () = self.poke.notified() => works,
                _ = looks.tick() => {
                    let now = self.socket().await;
                    now.is_some() && now != socket
                }
            };
            if sooner && soonest < due.deadline() {
                due.as_mut().reset(soonest);
            }
        }
    }
}
