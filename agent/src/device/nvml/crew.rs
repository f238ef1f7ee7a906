//! The threads that call the driver, and may never come back.
//!
//! Guarantees: there is one thread for one job, however often the library is opened; a job whose
//! former thread hangs is given to a new one once that has ended.

use std::collections::HashSet;
use std::sync::Arc;
use std::thread;

use parking_lot::Mutex;

use super::library::Library;
use super::session::Session;
use super::{Settings, events, reader};

/// The threads of a source that have not ended, by name.
#[derive(Default)]
pub(super) struct Threads(Mutex<Vec<Arc<str>>>);

impl Threads {
    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.0.lock().len()
    }

    /// Starts a thread, also if there is one of that name.
    pub(super) fn start(
        self: &Arc<Self>,
        name: &Arc<str>,
        run: impl FnOnce() + Send + 'static,
    ) -> Result<(), Arc<str>> {
        self.0.lock().push(name.clone());
        let running = Running { threads: self.clone(), name: name.clone() };
        let run = move || {
            // Dropped last, and whatever becomes of `run`.
            let _running = running;
            run();
        };
        let started = thread::Builder::new().name(name.to_string()).spawn(run);
        started
            .map(drop)
            .map_err(|error| format!("no thread for the NVIDIA driver: {error}").into())
    }

    fn has(&self, name: &str) -> bool {
        self.0.lock().iter().any(|running| **running == *name)
    }
}

struct Running {
    threads: Arc<Threads>,
    name: Arc<str>,
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut threads = self.threads.0.lock();
        if let Some(place) = threads.iter().position(|name| *name == self.name) {
            threads.swap_remove(place);
        }
    }
}

/// The threads of one session.
pub(super) struct Crew {
    threads: Arc<Threads>,
    library: Arc<Library>,
    session: Arc<Session>,
    /// Names of those that were started.
    started: HashSet<Arc<str>>,
}

impl Crew {
    /// Nobody yet.
    pub(super) fn new(
        threads: &Arc<Threads>,
        library: &Arc<Library>,
        session: &Arc<Session>,
    ) -> Self {
        let (threads, library, session) = (threads.clone(), library.clone(), session.clone());
        Self { threads, library, session, started: HashSet::new() }
    }

    /// Starts every thread that is missing and that no former one stands in for.
    pub(super) fn complete(&mut self, settings: &Settings) -> Result<(), Arc<str>> {
        let Settings { look, slow, .. } = *settings;
        for index in 0..self.session.lanes.len() {
            self.begin(reader_of(index), move |library, session| {
                reader::read(library, session, index, look);
            })?;
            self.begin(format!("nvml-slow-{index}"), move |library, session| {
                reader::read_slowly(library, session, index, slow);
            })?;
        }
        self.begin("nvml-events".into(), events::wait)
    }

    /// Whether the device at `index` is read by this session.
    pub(super) fn reads(&self, index: usize) -> bool {
        self.started.contains(&*reader_of(index))
    }

    fn begin(
        &mut self,
        name: String,
        run: impl FnOnce(&Library, &Session) + Send + 'static,
    ) -> Result<(), Arc<str>> {
        if self.started.contains(&*name) || self.threads.has(&name) {
            return Ok(());
        }
        let name: Arc<str> = name.into();
        let (library, session) = (self.library.clone(), self.session.clone());
        self.threads.start(&name, move || {
            run(&library, &session);
            // Perhaps it is the last one, and closing hangs as well.
            drop(library);
        })?;
        self.started.insert(name);
        Ok(())
    }
}

fn reader_of(index: usize) -> String {
    format!("nvml-{index}")
}
