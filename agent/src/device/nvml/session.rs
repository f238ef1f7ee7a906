//! One opening of the library: its devices, and the rounds in which they are read.
//!
//! Guarantees: a round is over once every thread that was free when it began has answered, so that
//! a device that hangs delays one round and no more.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use shared::process::Clock;
use shared::time::Timestamp;
use tokio::sync::oneshot;

use super::lane::{Asking, Lane};

/// How long the first readings of a session that follows another may take.
const READING: Duration = Duration::from_secs(1);

/// What the threads of one opening share; the library itself is theirs.
pub(super) struct Session {
    pub(super) clock: Clock,
    pub(super) lanes: Box<[Mutex<Lane>]>,
    rounds: Mutex<Rounds>,
    next: Condvar,
    ended: Condvar,
}

#[derive(Default)]
struct Rounds {
    begun: u64,
    /// Why the session is over, once it is.
    over: Option<Arc<str>>,
    /// Per device.
    threads: Box<[Turn]>,
    done: Option<oneshot::Sender<()>>,
}

/// How a device's thread and the round stand to each other.
#[derive(Clone, Copy, Default)]
struct Turn {
    /// Whether the thread waits for a round.
    is_free: bool,
    /// Whether the round waits for the thread.
    is_awaited: bool,
    /// Since when the thread asks its device.
    busy: Option<Timestamp>,
}

impl Rounds {
    fn end_if_all_answered(&mut self) {
        if !self.threads.iter().any(|turn| turn.is_awaited) {
            // Nobody may wait for it any more; dropping it says the same as sending.
            self.done = None;
        }
    }
}

impl Session {
    /// A session of the devices of `lanes`.
    pub(super) fn new(clock: Clock, lanes: impl IntoIterator<Item = Lane>) -> Self {
        let lanes: Box<[_]> = lanes.into_iter().map(Mutex::new).collect();
        let threads = lanes.iter().map(|_| Turn::default()).collect();
        Self {
            clock,
            lanes,
            rounds: Mutex::new(Rounds { threads, ..Rounds::default() }),
            next: Condvar::new(),
            ended: Condvar::new(),
        }
    }

    /// Begins a round; what is returned resolves, with an error or not, when it is done.
    pub(super) fn begin(&self) -> oneshot::Receiver<()> {
        let (done, is_done) = oneshot::channel();
        let mut rounds = self.rounds.lock();
        rounds.begun += 1;
        for turn in &mut rounds.threads {
            turn.is_awaited = turn.is_free;
        }
        rounds.done = Some(done);
        rounds.end_if_all_answered();
        drop(rounds);
        self.next.notify_all();
        is_done
    }

    /// Waits until every device that can be read has been, so that nothing is missing meanwhile.
    pub(super) fn wait_for_readings(&self, is_closing: impl Fn() -> bool) {
        let begun = self.clock.now();
        drop(self.begin());
        while !self.lanes.iter().all(|lane| lane.lock().was_read_since(begun))
            && self.over().is_none()
            && !is_closing()
            && self.clock.now().since(begun) < READING
        {
            thread::sleep(Duration::from_millis(2));
            // Some readings are made of two.
            if self.lanes.iter().any(|lane| lane.lock().is_waiting()) {
                drop(self.begin());
            }
        }
    }

    /// Ends the round for the thread of `device`, and waits for one after `seen`; none is the end.
    pub(super) fn wait(&self, device: usize, seen: u64) -> Option<u64> {
        let mut rounds = self.rounds.lock();
        rounds.threads[device] = Turn { is_free: true, ..Turn::default() };
        rounds.end_if_all_answered();
        while rounds.begun == seen && rounds.over.is_none() {
            self.next.wait(&mut rounds);
        }
        rounds.threads[device] = Turn { busy: Some(self.clock.now()), ..Turn::default() };
        rounds.over.is_none().then_some(rounds.begun)
    }

    /// How long the device at `index` has been asked something, if it is.
    pub(super) fn busy_for(&self, index: usize) -> Option<Duration> {
        let busy = self.rounds.lock().threads.get(index)?.busy?;
        Some(self.clock.now().since(busy))
    }

    /// Whether the device at `index` has answered all that it was asked.
    pub(super) fn is_free(&self, index: usize) -> bool {
        self.rounds.lock().threads.get(index).is_some_and(|turn| turn.is_free)
    }

    /// Waits for `time`, or the end if that comes first; says whether there is more to do.
    pub(super) fn sleep(&self, time: Duration) -> bool {
        let mut rounds = self.rounds.lock();
        let until = self.clock.now() + time;
        while rounds.over.is_none() {
            let left = until.since(self.clock.now());
            if left.is_zero() {
                return true;
            }
            self.ended.wait_for(&mut rounds, left);
        }
        false
    }

    /// Tells every thread to end; the first reason stands.
    pub(super) fn end(&self, why: &Arc<str>) {
        let mut rounds = self.rounds.lock();
        rounds.over.get_or_insert_with(|| why.clone());
        rounds.done = None;
        drop(rounds);
        self.next.notify_all();
        self.ended.notify_all();
    }

    /// Why it is over, if it is.
    pub(super) fn over(&self) -> Option<Arc<str>> {
        self.rounds.lock().over.clone()
    }

    /// What notes down what the device at `index` is asked.
    pub(super) fn asking(&self, index: usize) -> Asking<'_> {
        Asking { lane: &self.lanes[index], clock: self.clock }
    }
}
