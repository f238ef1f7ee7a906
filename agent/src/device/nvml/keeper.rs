//! The thread that opens the library, watches it, and opens it again when it has to.
//!
//! Guarantees: at most one session is read from; it has ended, as far as its calls return, before
//! the next begins; while there is none, the reason is known.

use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use nvml_wrapper::error::NvmlError;
use parking_lot::{Condvar, Mutex};
use shared::process::Clock;
use shared::time::Timestamp;
use tracing::{error, info, warn};

use super::Settings;
use super::fault::{cannot_open, words};
use super::lane::Lane;
use super::library::{DEFAULT, Library};
use super::session::Session;
use super::{events, reader};

/// Time until the library is opened again; it doubles up to the second.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// How long the threads of a session may take to end.
const ENDING: Duration = Duration::from_secs(1);
/// Threads that hang in the driver, after which no more are started.
const MOST_STUCK: usize = 64;

/// What the keeper tells and is told.
pub(super) struct Board {
    pub(super) clock: Clock,
    pub(super) settings: Settings,
    pub(super) state: Mutex<State>,
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
    pub(super) asked: Option<Timestamp>,
    /// Why this process can never read it.
    pub(super) hopeless: Option<Arc<str>>,
    /// Whether the source is being closed.
    pub(super) closing: bool,
}

/// Why the library was not opened, or was closed again.
enum Closed {
    /// It is worth another try.
    Why(Arc<str>),
    /// The library does not fit the driver.
    Mismatch(Arc<str>),
    /// There is nothing to read.
    NoDevices,
}

/// Keeps the library open until the source is closed.
pub(super) fn keep(board: &Arc<Board>) {
    let mut retry = RETRY.0;
    let mut mismatch: Option<Timestamp> = None;
    while !board.state.lock().closing {
        let opened = board.clock.now();
        let closed = keep_once(board);
        let now = board.clock.now();
        if now.since(opened) > RETRY.1 {
            retry = RETRY.0;
        }
        mismatch = match closed {
            Closed::Mismatch(_) => Some(mismatch.unwrap_or(now)),
            _ => None,
        };
        board.tell(closed, mismatch.filter(|since| now.since(*since) >= board.settings.mismatch));
        if board.sleep(retry.min(board.settings.retry)) {
            return;
        }
        retry = (retry * 2).min(RETRY.1);
    }
}

/// One session, from opening the library to closing it.
fn keep_once(board: &Arc<Board>) -> Closed {
    let path = board.settings.library.as_deref();
    let library = match board.ask(|| Library::open(path)) {
        Ok(library) => Arc::new(library),
        Err(error) => {
            let why = cannot_open(path.unwrap_or(Path::new(DEFAULT)), &error).into();
            return match error {
                NvmlError::LibRmVersionMismatch => Closed::Mismatch(why),
                _ => Closed::Why(why),
            };
        }
    };
    let count = match board.ask(|| library.device_count()) {
        Ok(0) => return Closed::NoDevices,
        Ok(count) => count as usize,
        Err(error) => return Closed::Why(words(&error).into()),
    };
    let session = match start(board, &library, count) {
        Ok(session) => session,
        Err(why) => return Closed::Why(why),
    };
    let why = watch(board, &library, &session, count);
    session.end(&why);
    wait_for_threads(board, &library);
    if *why == *words(&NvmlError::LibRmVersionMismatch) {
        Closed::Mismatch(why)
    } else {
        Closed::Why(why)
    }
}

/// Starts the threads of a session and publishes it.
fn start(
    board: &Arc<Board>,
    library: &Arc<Library>,
    count: usize,
) -> Result<Arc<Session>, Arc<str>> {
    let before = board.state.lock().session.clone();
    let lanes = (0..count).map(|index| {
        let before = before.as_ref().and_then(|session| session.lanes.get(index));
        before.map_or_else(Lane::default, |lane| {
            Lane::after(&lane.lock(), Some("not read again yet".into()))
        })
    });
    let session = Arc::new(Session::new(board.clock, lanes));
    for index in 0..count {
        spawn(format!("nvml-{index}"), library, &session, move |library, session| {
            reader::read(library, session, index);
        })?;
        let period = board.settings.slow;
        spawn(format!("nvml-slow-{index}"), library, &session, move |library, session| {
            reader::read_slowly(library, session, index, period);
        })?;
    }
    spawn("nvml-events".into(), library, &session, events::wait)?;
    info!(gpus = count, "NVIDIA's library is open");
    let mut state = board.state.lock();
    state.session = Some(session.clone());
    state.trouble = None;
    Ok(session)
}

fn spawn(
    name: String,
    library: &Arc<Library>,
    session: &Arc<Session>,
    run: impl FnOnce(&Library, &Session) + Send + 'static,
) -> Result<(), Arc<str>> {
    let (library, theirs) = (library.clone(), session.clone());
    let spawned = thread::Builder::new().name(name).spawn(move || run(&library, &theirs));
    spawned.map(drop).map_err(|error| {
        let why: Arc<str> = format!("no thread for the NVIDIA driver: {error}").into();
        session.end(&why);
        why
    })
}

/// Returns why the session is over.
fn watch(board: &Board, library: &Arc<Library>, session: &Session, count: usize) -> Arc<str> {
    let mut all_failed_since = None;
    loop {
        if board.sleep_while(session) {
            return "the agent ends".into();
        }
        if let Some(why) = session.over() {
            return why;
        }
        match board.ask(|| library.device_count()) {
            Ok(now) if now as usize == count => {}
            Ok(now) => return format!("the driver has {now} GPUs now, not {count}").into(),
            Err(error) => return words(&error).into(),
        }
        if library.was_replaced() {
            return "NVIDIA's library was replaced".into();
        }
        let now = board.clock.now();
        let all_failed = session.lanes.iter().all(|lane| lane.lock().failure.is_some());
        all_failed_since = all_failed.then(|| all_failed_since.unwrap_or(now));
        if all_failed_since.is_some_and(|since| now.since(since) > board.settings.all_failed) {
            return "no GPU can be read".into();
        }
    }
}

/// Waits until only the keeper uses the library, so that closing it closes it.
fn wait_for_threads(board: &Board, library: &Arc<Library>) {
    let until = board.clock.now() + ENDING;
    while Arc::strong_count(library) > 1 && board.clock.now() < until {
        thread::sleep(Duration::from_millis(2));
    }
    let mut stuck = Arc::strong_count(library) - 1;
    while stuck > MOST_STUCK && !board.state.lock().closing {
        // Another session would only add to them.
        warn!(stuck, "too many threads hang in the NVIDIA driver, waiting for them");
        board.sleep(RETRY.1);
        stuck = Arc::strong_count(library) - 1;
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

    fn tell(&self, closed: Closed, hopeless_since: Option<Timestamp>) {
        let mut state = self.state.lock();
        let why = match closed {
            Closed::Why(why) | Closed::Mismatch(why) => why,
            Closed::NoDevices => {
                state.session = None;
                "the NVIDIA driver sees no GPU on this node".into()
            }
        };
        if state.trouble.as_ref() != Some(&why) && !state.closing {
            warn!(reason = %why, "GPUs cannot be read, trying again");
        }
        if let Some(since) = hopeless_since {
            let minutes = self.clock.now().since(since).as_secs() / 60;
            error!(reason = %why, minutes, "giving up");
            state.hopeless = Some(why.clone());
        }
        state.trouble = Some(why);
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
