//! The agent's binary as a child of the tests, and the files that say what it should print.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// How long anything may take before the test fails; nothing is expected to take that long.
const PATIENCE: Duration = Duration::from_secs(30);

/// The binary with no environment of its own.
pub(crate) fn agent(args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
    let mut agent = Command::new(env!("CARGO_BIN_EXE_gpu-agent"));
    agent.env_clear().env("GPU_AGENT_KUBELET_SOCKET", "none").args(args).stdin(Stdio::null());
    agent
}

/// Runs the binary to its end, and expects `code`; returns what it printed and what it logged.
pub(crate) fn ended(code: i32, command: &mut Command) -> (String, String) {
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let (printed, logged) = (text(output.stdout), text(output.stderr));
    assert_eq!(output.status.code(), Some(code), "{command:?}\n{printed}{logged}");
    (printed, logged)
}

/// The text of a golden file; `UPDATE_GOLDEN=1` writes it instead.
pub(crate) fn golden(name: &str, text: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/it/golden").join(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&path, text).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(text, expected, "{} (UPDATE_GOLDEN=1 writes it)", path.display());
}

/// A running agent; it does not outlive the test.
pub(crate) struct Running {
    child: Child,
    log: mpsc::Receiver<String>,
    logged: Vec<String>,
}

impl Running {
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let (say, log) = mpsc::channel();
        std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| say.send(line)));
        Self { child, log, logged: Vec::new() }
    }

    /// Waits for a log line that has `words` in it.
    pub(crate) fn wait_for(&mut self, words: &str) -> String {
        loop {
            let Ok(line) = self.log.recv_timeout(PATIENCE) else {
                panic!("nothing logged has {words:?} in it: {:#?}", self.logged);
            };
            self.logged.push(line.clone());
            if line.contains(words) {
                return line;
            }
        }
    }

    /// The address of its local pages, once they are served.
    pub(crate) fn http(&mut self) -> String {
        let line = self.wait_for("serving http=");
        line.split("http=").nth(1).unwrap().trim().to_owned()
    }

    /// What it prints.
    pub(crate) fn printed(&mut self) -> BufReader<ChildStdout> {
        BufReader::new(self.child.stdout.take().unwrap())
    }

    pub(crate) fn signal(&self, name: &str) {
        let signal = format!("kill -{name} {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &signal]).status().unwrap().success());
    }

    /// Waits for its end, which the log's end tells.
    pub(crate) fn end(&mut self) -> (ExitStatus, String) {
        loop {
            match self.log.recv_timeout(PATIENCE) {
                Ok(line) => self.logged.push(line),
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
                Err(mpsc::RecvTimeoutError::Timeout) => panic!("no end: {:#?}", self.logged),
            }
        }
        (self.child.wait().unwrap(), self.logged.join("\n"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        for ended in [self.child.kill(), self.child.wait().map(drop)] {
            ended.unwrap_or_else(|error| eprintln!("agent: {error}"));
        }
    }
}

/// Status line and headers, and the body, of one GET.
pub(crate) fn get(address: &str, path: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}
