//! The node's own GPUs, through NVIDIA's management library.
//!
//! Guarantees: `Nvml::observe` never waits for the driver; every call that may hang is made by a
//! thread that only its own device waits for; a GPU that is lost, hangs or fails is told as failed
//! with the reason while the others go on; a MIG instance is a device of its own, with nothing of
//! its GPU's readings and nothing of another instance's; whatever happened, it is tried again; the library is
//! closed when the source is dropped, unless the driver does not let go.
//!
//! ```text
//!  keeper ── opens, counts, reopens ──▶ session ── a round per begin() ──▶ reader per device
//!                                          │                               (quick, slow)
//!  observe() ◀── lanes, one per device ◀───┴───── events: XID ─────────────────┘
//! ```

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::Condvar;
use shared::process::Clock;
use shared::time::Timestamp;
use tokio::sync::oneshot;
use tracing::{info, warn};

use super::{DeviceSource, Error, Observation};

/// Which calls readings are made of, for the reference.
#[cfg(test)]
mod calls;
mod crew;
mod events;
mod fault;
mod gauge;
mod gpm;
mod keeper;
mod lane;
mod library;
mod memory;
mod mig;
mod past;
/// One look at the library, for `doctor`.
pub mod probe;
mod processes;
mod raw;
mod read;
mod reader;
mod session;
mod wear;

use keeper::{Board, State};
use lane::View;
use session::Session;

/// How long closing waits for the library to be closed.
const CLOSING: Duration = Duration::from_millis(1_500);

/// How the library is used; the defaults are what a node wants.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The library, where it is not the one that the system finds.
    pub library: Option<PathBuf>,
    /// How long a call may take before its device counts as failed.
    pub silence: Duration,
    /// Time between two looks at the number of GPUs, and at what they are cut into.
    pub look: Duration,
    /// Time between two readings of what is slow to read.
    pub slow: Duration,
    /// The longest time between two attempts to open the library.
    pub retry: Duration,
    /// How long every GPU may fail before the library is opened anew.
    pub all_failed: Duration,
    /// How long a library of another version than the driver is tried again.
    pub mismatch: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            library: None,
            silence: Duration::from_secs(10),
            look: Duration::from_secs(5),
            slow: Duration::from_secs(5),
            retry: Duration::from_secs(30),
            all_failed: Duration::from_secs(30),
            mismatch: Duration::from_secs(300),
        }
    }
}

/// The GPUs that NVIDIA's driver has.
pub struct Nvml {
    board: Arc<Board>,
    keeper: Option<JoinHandle<()>>,
    /// What was logged as not answering: GPUs, and none for the driver itself.
    silent: HashSet<Option<usize>>,
}

impl Nvml {
    /// Starts to open the library; whether that works is said by what is observed.
    ///
    /// # Errors
    /// When no thread is to be had.
    pub fn open(settings: Settings) -> Result<Self, Error> {
        let board = Arc::new(Board {
            clock: Clock::start(),
            settings,
            state: State::default().into(),
            threads: Arc::default(),
            ended: Condvar::new(),
        });
        let theirs = board.clone();
        let keeper =
            thread::Builder::new().name("nvml".into()).spawn(move || keeper::keep(&theirs));
        let keeper = keeper.map_err(|error| Error::Hardware(error.to_string().into()))?;
        Ok(Self { board, keeper: Some(keeper), silent: HashSet::new() })
    }

    fn session(&self) -> Option<Arc<Session>> {
        self.board.state.lock().session.clone()
    }

    fn view<'a>(&self, trouble: Option<&'a Arc<str>>) -> View<'a> {
        let Settings { silence, slow, .. } = self.board.settings;
        View { now: self.board.clock.now(), silence, slow: slow * 3, trouble }
    }

    /// Logs once that something hangs, and once that it does not any more.
    fn log_silence(&mut self, session: Option<&Session>) {
        let Settings { silence, .. } = self.board.settings;
        let driver = self.board.state.lock().is_silent(self.board.clock, silence);
        if driver && self.silent.insert(None) {
            warn!("the NVIDIA driver is not answering");
        } else if !driver && self.silent.remove(&None) {
            info!("the NVIDIA driver answers again");
        }
        let Some(session) = session else { return };
        for (index, lane) in session.lanes.iter().enumerate() {
            let hangs = session.busy_for(index).is_some_and(|busy| busy >= silence);
            let uuid = || lane.lock().identity.as_ref().map(|identity| identity.uuid.to_string());
            if hangs && self.silent.insert(Some(index)) {
                warn!(index, uuid = uuid(), "the NVIDIA driver is not answering for this GPU");
            } else if session.is_free(index) && self.silent.remove(&Some(index)) {
                info!(index, uuid = uuid(), "the NVIDIA driver answers again for this GPU");
            }
        }
    }

    /// Why nothing is read, where nothing is.
    fn trouble(&self) -> Option<Arc<str>> {
        let state = self.board.state.lock();
        match state.is_silent(self.board.clock, self.board.settings.silence) {
            // A session goes on without its keeper.
            true if state.session.is_none() || state.trouble.is_some() => {
                Some(format!("the NVIDIA driver {}", self.not_answering()).into())
            }
            _ => state.trouble.clone(),
        }
    }

    fn not_answering(&self) -> String {
        let silence = self.board.settings.silence.as_secs();
        format!("is not answering for {silence} s or more")
    }

    /// `why` without the seconds that pass: a node whose reason changes is sent anew.
    fn uncounted(&self, why: &str) -> String {
        let counted = why.split_once(" is not answering for ");
        match counted.and_then(|(asked, time)| Some((asked, time.split_once(" s")?.1))) {
            Some((asked, rest)) => format!("{asked} {}{rest}", self.not_answering()),
            None => why.to_owned(),
        }
    }
}

impl DeviceSource for Nvml {
    fn begin(&mut self) -> Option<oneshot::Receiver<()>> {
        self.session().map(|session| session.begin())
    }

    fn observe(&mut self, _: Timestamp) -> Observation {
        let trouble = self.trouble();
        let session = self.session();
        self.log_silence(session.as_deref());
        let view = self.view(trouble.as_ref());
        let mut observation = Observation::default();
        let mut complaints: Vec<String> = trouble.iter().map(ToString::to_string).collect();
        let mut uuids = HashSet::new();
        for (index, lane) in session.iter().flat_map(|session| &session.lanes).enumerate() {
            match lane.lock().observed(view) {
                Ok(devices) => {
                    for device in devices {
                        if uuids.insert(device.uuid.clone()) {
                            observation.devices.push(device);
                        } else {
                            let uuid = device.uuid;
                            complaints.push(format!("GPU {index} has the UUID of another: {uuid}"));
                        }
                    }
                }
                Err(_) if trouble.is_some() => {}
                Err(why) => complaints.push(format!("GPU {index}: {}", self.uncounted(&why))),
            }
        }
        if session.is_none() && complaints.is_empty() {
            complaints.push("NVIDIA's library is being opened".into());
        }
        observation.reason = (!complaints.is_empty()).then(|| complaints.join("; ").into());
        observation
    }

    fn is_ready(&self) -> bool {
        let trouble = self.trouble();
        let view = self.view(trouble.as_ref());
        let session = self.session();
        let settled =
            |session: Arc<Session>| session.lanes.iter().all(|lane| lane.lock().has_settled(view));
        trouble.is_some() || session.is_some_and(settled)
    }

    fn finished(&self) -> Result<bool, Error> {
        match &self.board.state.lock().hopeless {
            Some(why) => Err(Error::Hardware(why.clone())),
            None => Ok(false),
        }
    }
}

impl Drop for Nvml {
    fn drop(&mut self) {
        let mut state = self.board.state.lock();
        state.closing = true;
        if let Some(session) = &state.session {
            session.end(&"the agent ends".into());
        }
        drop(state);
        self.board.ended.notify_all();
        let until = self.board.clock.now() + CLOSING;
        let Some(keeper) = self.keeper.take() else { return };
        while !keeper.is_finished() {
            if self.board.clock.now() >= until {
                warn!("the NVIDIA driver does not let go of its library");
                return;
            }
            thread::sleep(Duration::from_millis(2));
        }
        if keeper.join().is_err() {
            warn!("the thread of the NVIDIA library has panicked");
        }
    }
}
