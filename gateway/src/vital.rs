//! Whether the gateway's own parts are alive.
//!
//! Guarantees: a part that panicked, ended by itself or has not moved for longer than it may is
//! named until it moves again. A panic is counted. Nothing here ends or restarts a part.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use parking_lot::Mutex;
use shared::process::Clock;
use shared::time::Timestamp;
use tokio_util::sync::CancellationToken;

use crate::contain::Counts;

/// How long a part may stay still that moves at least once in a few seconds by itself.
pub const STILL: Duration = Duration::from_secs(30);
/// How often a part is made to move that would wait without end.
const NUDGE_EVERY: Duration = Duration::from_secs(5);

/// The parts that are watched.
#[derive(Clone)]
pub struct Vitals {
    parts: Arc<Mutex<Vec<Part>>>,
    counts: Counts,
    clock: Clock,
}

struct Part {
    name: &'static str,
    moved: Timestamp,
    end: Option<&'static str>,
}

/// How a part shows that it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// It wakes by itself every few seconds; if it does not, what it waits for hangs.
    Own,
    /// It may wait without end, and is looked in on.
    Nudged,
}

impl Vitals {
    /// Nothing is watched yet.
    pub fn new(counts: Counts, clock: Clock) -> Self {
        Self { parts: Arc::default(), counts, clock }
    }

    /// Runs `part` as `name`, watched. It ends when `part` does, panics included.
    pub async fn watch(
        self,
        name: &'static str,
        pace: Pace,
        shutdown: CancellationToken,
        part: impl Future<Output = ()>,
    ) {
        let place = {
            let mut parts = self.parts.lock();
            parts.push(Part { name, moved: self.clock.now(), end: None });
            parts.len() - 1
        };
        let mut part = pin!(part);
        let mut nudge = tokio::time::interval(NUDGE_EVERY);
        let end = std::future::poll_fn(|cx| {
            if pace == Pace::Nudged {
                while nudge.poll_tick(cx).is_ready() {}
            }
            let polled = self.poll(name, part.as_mut(), cx);
            self.parts.lock()[place].moved = self.clock.now();
            polled
        })
        .await;
        if !shutdown.is_cancelled() || end == PANICKED {
            self.parts.lock()[place].end = Some(end);
        }
    }

    fn poll(
        &self,
        name: &'static str,
        part: Pin<&mut impl Future<Output = ()>>,
        cx: &mut Context<'_>,
    ) -> Poll<&'static str> {
        match catch_unwind(AssertUnwindSafe(|| part.poll(cx))) {
            Ok(polled) => polled.map(|()| ENDED),
            Err(panic) => {
                self.counts.panicked(name, &*panic);
                Poll::Ready(PANICKED)
            }
        }
    }

    /// What ails which part, one line each; empty if all are well.
    pub fn ailing(&self) -> String {
        let now = self.clock.now();
        let ails = |part: &Part| {
            let still = now.since(part.moved);
            let why = match part.end {
                Some(end) => end.to_owned(),
                None if still > STILL => format!("has not moved for {} s", still.as_secs()),
                None => return None,
            };
            Some(format!("{} {why}\n", part.name))
        };
        self.parts.lock().iter().filter_map(ails).collect()
    }
}

const PANICKED: &str = "has panicked";
const ENDED: &str = "has ended by itself";

#[cfg(test)]
mod tests {
    use super::*;

    fn vitals() -> Vitals {
        Vitals::new(Counts::default(), Clock::start())
    }

    #[tokio::test(start_paused = true)]
    async fn parts_that_move_or_wait_are_well_and_one_that_hangs_is_named_until_it_moves() {
        let (vitals, shutdown) = (vitals(), CancellationToken::new());
        let (go, gone) = tokio::sync::oneshot::channel::<()>();
        let ticking = async { tokio::time::sleep(Duration::from_secs(3_600)).await };
        tokio::spawn(vitals.clone().watch("asks", Pace::Nudged, shutdown.clone(), ticking));
        let hanging = async {
            gone.await.ok();
            loop {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        };
        tokio::spawn(vitals.clone().watch("directory", Pace::Own, shutdown, hanging));
        tokio::time::sleep(STILL).await;
        assert_eq!(vitals.ailing(), "");
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(vitals.ailing(), "directory has not moved for 35 s\n");
        go.send(()).unwrap();
        tokio::time::sleep(Duration::from_secs(100)).await;
        assert_eq!(vitals.ailing(), "");
    }

    #[tokio::test(start_paused = true)]
    async fn a_part_that_panics_is_counted_and_named_and_the_others_go_on() {
        let (vitals, shutdown) = (vitals(), CancellationToken::new());
        vitals.clone().watch("tidy", Pace::Own, shutdown.clone(), async { panic!("no") }).await;
        assert_eq!(vitals.ailing(), "tidy has panicked\n");
        assert_eq!(vitals.counts.panics("tidy"), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_part_that_ends_is_named_unless_it_was_told_to() {
        let (vitals, shutdown) = (vitals(), CancellationToken::new());
        vitals.clone().watch("demand", Pace::Nudged, shutdown.clone(), async {}).await;
        assert_eq!(vitals.ailing(), "demand has ended by itself\n");
        shutdown.cancel();
        vitals.clone().watch("asks", Pace::Nudged, shutdown, async {}).await;
        assert_eq!(vitals.ailing(), "demand has ended by itself\n");
    }
}
