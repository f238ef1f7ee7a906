//! The task that asks the kubelet, for as long as the agent runs.
//!
//! Guarantees: an answer that says what the last one said is the same listing; a failure takes
//! nothing from what is known.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;
use std::time::Duration;

use shared::brief::Brief;
use shared::process::Clock;
use shared::time::Timestamp;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, MissedTickBehavior};
use tracing::{info, warn};

use super::Settings;
use super::ask::{self, Failure, Fault};
use super::pace::{self, Past};
use crate::owner::declared::Listing;

/// The newest word of the kubelet.
#[derive(Clone, Debug, Default)]
pub(super) struct Heard {
    pub(super) word: Option<Word>,
    /// Why the newest call failed, if it did.
    pub(super) trouble: Option<Arc<str>>,
    pub(super) fault: Option<Fault>,
    /// Calls that are over, and those that failed, in the order of `Fault::ALL`.
    pub(super) lists: u64,
    pub(super) failures: [u64; Fault::ALL.len()],
}

#[derive(Clone, Debug)]
pub(super) struct Word {
    pub(super) listing: Arc<Listing>,
    pub(super) confirmed: Timestamp,
}

/// What tells a socket from one that takes its place: inode numbers are used again.
type Identity = (u64, u64, i64, i64);

/// The task's state.
pub(super) struct Asking {
    settings: Settings,
    briefs: watch::Receiver<Option<Arc<Brief>>>,
    /// Whether there will be any more briefs.
    has_briefs: bool,
    poke: Arc<Notify>,
    say: watch::Sender<Heard>,
    clock: Clock,
    /// When the kubelet or a gateway last said something new.
    changed: Timestamp,
    past: Past,
}

impl Asking {
    /// The task, what it will have heard, and what makes it ask soon.
    pub(super) fn new(
        settings: Settings,
        briefs: watch::Receiver<Option<Arc<Brief>>>,
        clock: Clock,
    ) -> (Self, watch::Receiver<Heard>, Arc<Notify>) {
        let (say, heard) = watch::channel(Heard::default());
        let poke = Arc::new(Notify::new());
        let asking = Self {
            settings,
            briefs,
            has_briefs: true,
            poke: poke.clone(),
            say,
            clock,
            changed: clock.now(),
            past: Past::default(),
        };
        (asking, heard, poke)
    }

    pub(super) async fn run(mut self) {
        loop {
            let asked = Instant::now();
            let socket = self.socket().await;
            let brief = self.briefs.borrow_and_update().clone();
            match ask::list(&self.settings, brief.as_deref()).await {
                Ok(listing) => self.heard(listing),
                Err(failure) => self.failed(failure),
            }
            self.past.unchanged = self.clock.now().since(self.changed);
            let wait = pace::wait(&self.settings, self.past, fastrand::f64());
            self.pause(asked + self.settings.soonest, wait, socket).await;
        }
    }

    async fn socket(&self) -> Option<Identity> {
        let identity = |file: Metadata| (file.dev(), file.ino(), file.ctime(), file.ctime_nsec());
        tokio::fs::metadata(&self.settings.socket).await.ok().map(identity)
    }

    fn heard(&mut self, listing: Listing) {
        if self.past.failures > 0 {
            info!("the kubelet answers again");
        }
        self.past = Past::default();
        let now = self.clock.now();
        self.say.send_modify(|heard| {
            heard.lists += 1;
            (heard.trouble, heard.fault) = (None, None);
            let known = heard.word.take().map(|word| word.listing);
            let listing = known.filter(|known| **known == listing).unwrap_or_else(|| {
                self.changed = now;
                Arc::new(listing)
            });
            heard.word = Some(Word { listing, confirmed: now });
        });
    }

    fn failed(&mut self, Failure { fault, said }: Failure) {
        if self.past.fault != Some(fault) {
            warn!(why = %said, "the kubelet does not say who holds what");
        }
        self.past.failures = self.past.failures.saturating_add(1);
        self.past.fault = Some(fault);
        self.say.send_modify(|heard| {
            heard.lists += 1;
            let counts = heard.failures.iter_mut().zip(Fault::ALL);
            counts.filter(|(_, of)| *of == fault).for_each(|(count, _)| *count += 1);
            (heard.trouble, heard.fault) = (Some(said), Some(fault));
        });
    }

    /// Waits for `wait`, or until `soonest` where something changes meanwhile. A kubelet that
    /// fails is asked sooner only if there is another socket than `socket`.
    async fn pause(&mut self, soonest: Instant, wait: Duration, socket: Option<Identity>) {
        let works = self.past.failures == 0;
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
