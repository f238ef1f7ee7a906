//! The thread that opens the library, watches it, and opens it again when it has to.
//!
//! Guarantees: at most one session is read from; it has ended, as far as its calls return, before
//! the next begins; while there is none, the reason is known before anything is closed; where only
//! the GPUs or the library are others now, nothing fails, but what was read grows older.

use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use nvml_wrapper::error::NvmlError;
use parking_lot::{Condvar, Mutex};
use shared::process::Clock;
use shared::time::Timestamp;
use tracing::{error, info, warn};

use super::Settings;
use super::crew::{Crew, Threads};
use super::fault::{cannot_open, words};
use super::lane::Lane;
use super::library::{DEFAULT, File, Library};
use super::session::Session;

/// Time until the library is opened again; it doubles up to the second.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// How long the threads of a session may take to end.
const ENDING: Duration = Duration::from_secs(1);
/// Threads that hang in the driver, after which no more are started.
const MOST_STUCK: usize = 64;
/// Why the new library is not read.
const OLD: &str = "NVIDIA's library was replaced, but a call that hangs holds the old one; \
                   only a new process gets the new one";

/// What the keeper tells and is told.
pub(super) struct Board {
    pub(super) clock: Clock,
    pub(super) settings: Settings,
    pub(super) state: Mutex<State>,
    pub(super) threads: Arc<Threads>,
    /// Something for the keeper to do.
    pub(super) ended: Condvar,
}

/// What is true of the library now.
#[derive(Default)]
pub(super) struct State {
    /// The newest session, also when it is over.
    pub(super) session: Option<Arc<Session>>,
    /// Why nothing is read now.
    pub(super) trouble: Option<Arc<str>>,
    /// Since when the library has not answered the keeper.
    asked: Option<Timestamp>,
    /// Since when the library does not fit the driver.
    mismatch: Option<Timestamp>,
    /// Why this process can never read it.
    pub(super) hopeless: Option<Arc<str>>,
    /// Whether the source is being closed.
    pub(super) closing: bool,
}

impl State {
    /// Whether the keeper has waited for the driver for `silence`.
    pub(super) fn is_silent(&self, clock: Clock, silence: Duration) -> bool {
        self.asked.is_some_and(|since| clock.now().since(since) >= silence)
    }
}

/// Why the library was not opened, or was closed again.
enum Closed {
    /// It is worth another try.
    Why(Arc<str>),
    /// The library does not fit the driver.
    Mismatch(Arc<str>),
    /// There is nothing to read.
    NoDevices,
    /// Nothing is wrong, but there is something else to open.
    Changed(Arc<str>),
}

impl Closed {
    fn by(why: Arc<str>) -> Self {
        if *why == *words(&NvmlError::LibRmVersionMismatch) {
            Self::Mismatch(why)
        } else {
            Self::Why(why)
        }
    }
}

/// Keeps the library open until the source is closed.
pub(super) fn keep(board: &Arc<Board>) {
    let mut retry = RETRY.0;
    while !board.state.lock().closing {
        board.wait_for_room();
        let opened = board.clock.now();
        let closed = keep_once(board);
        if board.clock.now().since(opened) > RETRY.1 {
            retry = RETRY.0;
        }
        if matches!(closed, Closed::Changed(_)) {
            // The last readings grow older until the next session has read anew.
            retry = RETRY.0;
            continue;
        }
        if board.sleep(retry.min(board.settings.retry)) {
            return;
        }
        retry = (retry * 2).min(RETRY.1);
    }
}

/// One session, from opening the library to closing it.
fn keep_once(board: &Arc<Board>) -> Closed {
    // In a thread of its own: what a library keeps for a thread would hold the library.
    let (closed, library) = thread::scope(|scope| {
        let thread = thread::Builder::new().name("nvml-opening".into());
        let running = thread.spawn_scoped(scope, || open_and_serve(board));
        let running = running.map_err(|error| format!("no thread for the NVIDIA driver: {error}"));
        let ended = running
            .and_then(|thread| thread.join().map_err(|_| "the NVIDIA thread has panicked".into()));
        ended.unwrap_or_else(|why| (Closed::Why(why.into()), None))
    });
    // Before closing, which may hang.
    board.tell(&closed);
    if let Some(library) = library {
        close(board, library);
    }
    closed
}

fn open_and_serve(board: &Arc<Board>) -> (Closed, Option<Arc<Library>>) {
    let path = board.settings.library.as_deref();
    match board.ask(|| Library::open(path)) {
        Ok(library) => {
            let library = Arc::new(library);
            (serve(board, &library), Some(library))
        }
        Err(error) => {
            let why = cannot_open(path.unwrap_or(Path::new(DEFAULT)), &error).into();
            let closed = match error {
                NvmlError::LibRmVersionMismatch => Closed::Mismatch(why),
                _ => Closed::Why(why),
            };
            (closed, None)
        }
    }
}

/// Reads from `library` until there is a reason not to.
fn serve(board: &Arc<Board>, library: &Arc<Library>) -> Closed {
    if library.file() != File::Same {
        return Closed::Mismatch(OLD.into());
    }
    let count = match board.ask(|| library.device_count()) {
        Ok(0) => return Closed::NoDevices,
        Ok(count) => count as usize,
        Err(error) => return Closed::by(words(&error).into()),
    };
    let (before, is_well) = {
        let state = board.state.lock();
        (state.session.clone(), state.trouble.is_none())
    };
    let before = before.as_deref();
    let session = Arc::new(Session::new(board.clock, lanes(count, before, is_well)));
    let mut crew = Crew::new(&board.threads, library, &session);
    let closed = match crew.complete(&board.settings) {
        Ok(()) => {
            mark_hanging(&session, &crew);
            if before.is_some() && is_well {
                session.wait_for_readings(|| board.state.lock().closing);
            }
            board.publish(&session);
            watch(board, library, &session, &mut crew)
        }
        Err(why) => Closed::Why(why),
    };
    let (Closed::Why(why) | Closed::Mismatch(why) | Closed::Changed(why)) = &closed else {
        return closed;
    };
    session.end(why);
    closed
}

/// Lanes that know what was known before; readings only grow older where nothing was wrong.
fn lanes(count: usize, before: Option<&Session>, is_well: bool) -> Vec<Lane> {
    let unread = (!is_well).then(|| "not read again yet".into());
    let lane = |index: usize| {
        let Some(before) = before.and_then(|session| session.lanes.get(index)) else {
            return Lane::default();
        };
        let before = before.lock();
        let failure = before.failure.clone().or_else(|| unread.clone());
        let mut lane = Lane::after(&before, failure);
        lane.slow = before.slow.clone();
        lane
    };
    (0..count).map(lane).collect()
}

/// Devices that nobody can ask, as the thread that asked them before hangs.
fn mark_hanging(session: &Session, crew: &Crew) {
    for (index, lane) in session.lanes.iter().enumerate() {
        if !crew.reads(index) {
            lane.lock().failure = Some("the NVIDIA driver is not answering".into());
        }
    }
}

/// Returns why the session is over.
fn watch(board: &Board, library: &Arc<Library>, session: &Session, crew: &mut Crew) -> Closed {
    let mut all_failed_since = None;
    let mut is_gone = false;
    loop {
        if board.sleep_while(session) {
            return Closed::Why("the agent ends".into());
        }
        if let Some(why) = session.over() {
            return Closed::by(why);
        }
        let count = session.lanes.len();
        match board.ask(|| library.device_count()) {
            Ok(now) if now as usize == count => {}
            Ok(now) => {
                return Closed::Changed(format!("the driver has {now} GPUs, not {count}").into());
            }
            Err(error) => return Closed::by(words(&error).into()),
        }
        let was_gone = is_gone;
        let file = library.file();
        is_gone = file == File::Gone;
        if file == File::Replaced || is_gone && was_gone {
            return Closed::Changed("NVIDIA's library was replaced".into());
        }
        if let Err(why) = crew.complete(&board.settings) {
            return Closed::Why(why);
        }
        let now = board.clock.now();
        let mut lanes = session.lanes.iter().enumerate();
        let all_failed =
            lanes.all(|(index, lane)| crew.reads(index) && lane.lock().failure.is_some());
        all_failed_since = all_failed.then(|| all_failed_since.unwrap_or(now));
        if all_failed_since.is_some_and(|since| now.since(since) > board.settings.all_failed) {
            return Closed::Why("no GPU can be read".into());
        }
    }
}

/// Closes the library, unless something still hangs in it or closing it hangs.
fn close(board: &Board, library: Arc<Library>) {
    // Only when nobody else uses it does closing it close it.
    let until = board.clock.now() + ENDING;
    while Arc::strong_count(&library) > 1 && board.clock.now() < until {
        thread::sleep(Duration::from_millis(2));
    }
    let (closing, is_closed) = mpsc::channel::<()>();
    let started = board.threads.start(&"nvml-close".into(), move || {
        drop(library);
        drop(closing);
    });
    if let Err(reason) = started {
        warn!(%reason, "NVIDIA's library was closed by its keeper");
        return;
    }
    if is_closed.recv_timeout(ENDING) == Err(mpsc::RecvTimeoutError::Timeout) {
        warn!("the NVIDIA driver does not return from closing its library");
    }
}

impl Board {
    /// Makes a call of the library that may never return.
    fn ask<T>(&self, call: impl FnOnce() -> T) -> T {
        self.state.lock().asked = Some(self.clock.now());
        let answer = call();
        self.state.lock().asked = None;
        answer
    }

    fn publish(&self, session: &Arc<Session>) {
        info!(gpus = session.lanes.len(), "NVIDIA's library is open");
        let mut state = self.state.lock();
        state.session = Some(session.clone());
        state.trouble = None;
        if state.closing {
            session.end(&"the agent ends".into());
        }
    }

    fn tell(&self, closed: &Closed) {
        let mut state = self.state.lock();
        let why: Arc<str> = match closed {
            Closed::Why(why) | Closed::Mismatch(why) => why.clone(),
            Closed::NoDevices => {
                state.session = None;
                "the NVIDIA driver sees no GPU on this node".into()
            }
            Closed::Changed(why) => {
                info!(reason = %why, "opening NVIDIA's library anew");
                state.mismatch = None;
                return;
            }
        };
        if state.trouble.as_ref() != Some(&why) && !state.closing {
            warn!(reason = %why, "GPUs cannot be read, trying again");
        }
        let now = self.clock.now();
        let is_mismatch = matches!(closed, Closed::Mismatch(_));
        state.mismatch = is_mismatch.then(|| state.mismatch.unwrap_or(now));
        let lasted = state.mismatch.map(|since| now.since(since));
        if let Some(lasted) = lasted.filter(|lasted| *lasted >= self.settings.mismatch) {
            error!(reason = %why, minutes = lasted.as_secs() / 60, "giving up");
            state.hopeless = Some(why.clone());
        }
        state.trouble = Some(why);
    }

    /// Waits while so many threads hang that another session would only add to them.
    fn wait_for_room(&self) {
        while self.threads.count() > MOST_STUCK {
            let stuck = self.threads.count();
            let why = "too many calls hang in the NVIDIA driver";
            let before = self.state.lock().trouble.replace(why.into());
            if before.as_deref() != Some(why) {
                warn!(stuck, "{why}, waiting for them");
            }
            if self.sleep(self.settings.retry) {
                return;
            }
        }
    }

    /// Sleeps unless the source is closed, and says whether it is.
    fn sleep(&self, time: Duration) -> bool {
        let mut state = self.state.lock();
        if !state.closing {
            self.ended.wait_for(&mut state, time);
        }
        state.closing
    }

    /// Sleeps until the next look at `session`, which is at once when it is over.
    fn sleep_while(&self, session: &Session) -> bool {
        session.sleep(self.settings.look);
        self.state.lock().closing
    }
}
