//! The agent's binary behind a real pseudo-terminal, with an emulator that reads its screen.

use std::io::{Read, Write as _};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::process::{Child, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

use pty_process::Size;
use pty_process::blocking::{Command, Pty};
use tokio::time::Instant;

/// How long anything may take before the test fails; nothing is expected to take that long.
const PATIENCE: Duration = Duration::from_secs(30);

/// A terminal in which the agent runs; the agent does not outlive the test.
pub(crate) struct Terminal {
    child: Child,
    /// None once it hung up.
    pty: Option<Pty>,
    is_closing: Arc<AtomicBool>,
    said: Receiver<Vec<u8>>,
    /// Everything that was written to it.
    pub(crate) bytes: Vec<u8>,
    screen: vt100::Parser,
}

impl Terminal {
    /// `gpu-agent` with `args`, in a terminal of `rows` × `columns`.
    pub(crate) fn start(args: &[&str], (rows, columns): (u16, u16)) -> Self {
        Self::with(args, (rows, columns), &[("TERM", "xterm-256color")])
    }

    /// The same in an environment of its own.
    pub(crate) fn with(
        args: &[&str],
        (rows, columns): (u16, u16),
        environment: &[(&str, &str)],
    ) -> Self {
        let program = Path::new(env!("CARGO_BIN_EXE_gpu-agent"));
        Self::of(program, args, (rows, columns), environment)
    }

    /// Another program in such a terminal.
    pub(crate) fn of(
        program: &Path,
        args: &[&str],
        (rows, columns): (u16, u16),
        environment: &[(&str, &str)],
    ) -> Self {
        let (pty, other) = pty_process::blocking::open().unwrap();
        pty.resize(Size::new(rows, columns)).unwrap();
        let command =
            Command::new(program).env_clear().env("GPU_AGENT_KUBELET_SOCKET", "none").args(args);
        let child = command.envs(environment.iter().copied()).spawn(other).unwrap();
        let mut reader = std::fs::File::from(pty.as_fd().try_clone_to_owned().unwrap());
        let (say, said) = mpsc::channel();
        let is_closing = Arc::new(AtomicBool::new(false));
        let closing = is_closing.clone();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            // At the end of the last process the terminal answers with an error.
            while let Ok(count @ 1..) = reader.read(&mut buffer) {
                let unheard = say.send(buffer[..count].to_vec()).is_err();
                if unheard || closing.load(Ordering::Relaxed) {
                    return;
                }
            }
        });
        let screen = vt100::Parser::new(rows, columns, 0);
        Self { child, pty: Some(pty), is_closing, said, bytes: Vec::new(), screen }
    }

    /// What is on the screen.
    pub(crate) fn text(&self) -> String {
        self.screen.screen().contents()
    }

    pub(crate) fn screen(&self) -> &vt100::Screen {
        self.screen.screen()
    }

    /// Waits until the screen is as `is_right` wants it.
    #[track_caller]
    pub(crate) fn wait(&mut self, what: &str, is_right: impl Fn(&str) -> bool) -> String {
        let until = Instant::now() + PATIENCE;
        loop {
            let text = self.text();
            if self.is_whole() && is_right(&text) {
                return text;
            }
            match self.said.recv_timeout(until.duration_since(Instant::now())) {
                Ok(bytes) => self.take(&bytes),
                Err(error) => panic!("{what}: {error}, the screen is\n{text}"),
            }
        }
    }

    /// Whether no frame is half drawn: each ends with hiding the cursor.
    fn is_whole(&self) -> bool {
        !self.bytes.contains(&0x1b) || self.bytes.ends_with(b"\x1b[?25l")
    }

    /// Waits until `words` are on the screen.
    #[track_caller]
    pub(crate) fn wait_for(&mut self, words: &str) -> String {
        self.wait(&format!("no {words:?}"), |text| text.contains(words))
    }

    fn take(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        self.screen.process(bytes);
    }

    pub(crate) fn press(&mut self, keys: &str) {
        self.pty.as_mut().unwrap().write_all(keys.as_bytes()).unwrap();
    }

    pub(crate) fn resize(&mut self, (rows, columns): (u16, u16)) {
        self.screen.screen_mut().set_size(rows, columns);
        self.pty.as_ref().unwrap().resize(Size::new(rows, columns)).unwrap();
    }

    pub(crate) fn signal(&self, name: &str) {
        let signal = format!("kill -{name} {}", self.child.id());
        assert!(std::process::Command::new("sh").args(["-c", &signal]).status().unwrap().success());
    }

    /// Closes the terminal's window, as an SSH connection that breaks does; waits for the end.
    pub(crate) fn hang_up(&mut self) -> ExitStatus {
        self.is_closing.store(true, Ordering::Relaxed);
        // The reader lets go of its end with the next frame.
        while self.said.recv_timeout(PATIENCE).is_ok() {}
        self.pty = None;
        self.child.wait().unwrap()
    }

    /// Waits for the end of the agent.
    #[track_caller]
    pub(crate) fn end(&mut self) -> ExitStatus {
        let until = Instant::now() + PATIENCE;
        loop {
            match self.said.recv_timeout(until.duration_since(Instant::now())) {
                Ok(bytes) => self.take(&bytes),
                Err(RecvTimeoutError::Disconnected) => return self.child.wait().unwrap(),
                Err(RecvTimeoutError::Timeout) => panic!("no end, the screen is\n{}", self.text()),
            }
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        for ended in [self.child.kill(), self.child.wait().map(drop)] {
            ended.unwrap_or_else(|error| eprintln!("agent: {error}"));
        }
    }
}
