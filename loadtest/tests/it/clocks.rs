//! Clocks that jump by an hour while everything runs: row "clocks wrong" of the failure table.
//!
//! The jump is libfaketime's (Debian package `faketime`), preloaded into one process at a time.
//! Where it is not installed nothing is shown, and a line says so; `workspace.rs` holds anywhere
//! that no decision can read the wall clock.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use tempfile::TempDir;
use tokio::time::sleep;

use crate::client::{Client, Excused, Watched};
use crate::faults::{directory, url};
use crate::support::{Gateway, Process, binaries, eventually, free_address, scaled_object};

const LOAD: f64 = 60.0;
const LIBRARY: &str = "libfaketimeMT.so.1";
const PLACES: [&str; 5] = [
    "/usr/lib/x86_64-linux-gnu/faketime",
    "/usr/lib/aarch64-linux-gnu/faketime",
    "/usr/lib64/faketime",
    "/usr/lib/faketime",
    "/usr/local/lib/faketime",
];

fn library() -> Option<PathBuf> {
    PLACES.iter().map(|place| Path::new(place).join(LIBRARY)).find(|path| path.exists())
}

/// The wall clock of one process.
struct WallClock(PathBuf);

impl WallClock {
    /// That of `command`, which is right at first.
    fn of(command: &mut Command, library: &Path, folder: &TempDir, name: &str) -> Self {
        let clock = Self(folder.path().join(format!("{name}.clock")));
        clock.is_off_by(0);
        command
            .env("LD_PRELOAD", library)
            .env("FAKETIME_TIMESTAMP_FILE", &clock.0)
            .env("FAKETIME_NO_CACHE", "1")
            // What a real clock that is set does not touch: monotonic time and times of files.
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
            .env("DONT_FAKE_MONOTONIC", "1")
            .env("NO_FAKE_STAT", "1");
        clock
    }

    fn is_off_by(&self, seconds: i32) {
        let next = self.0.with_extension("next");
        fs::write(&next, format!("{seconds:+}\n")).unwrap();
        fs::rename(next, &self.0).unwrap();
    }
}

/// Hours by which the last line of a log is off.
fn hours_off(log: &str) -> i64 {
    let last = log.lines().rfind(|line| line.contains("shutting down")).unwrap();
    let stamp = last.split_whitespace().next().unwrap();
    let at = humantime::parse_rfc3339(stamp).unwrap();
    #[expect(clippy::disallowed_methods, reason = "what the log is compared with")]
    let now = SystemTime::now();
    let seconds = match at.duration_since(now) {
        Ok(ahead) => i64::try_from(ahead.as_secs()).unwrap(),
        Err(behind) => -i64::try_from(behind.duration().as_secs()).unwrap(),
    };
    (seconds + 1_800).div_euclid(3_600)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_jumps_by_an_hour_on_either_side_changes_no_answer() {
    let Some(library) = library() else {
        println!("SKIPPED: {LIBRARY} is in none of {PLACES:?} (apt-get install faketime)");
        return;
    };
    let (binaries, folder) = (binaries(), tempfile::tempdir().unwrap());
    let pods = [("p0", "n0"), ("p1", "n1")];
    fs::write(folder.path().join("directory.yaml"), directory(&[("llm", &pods)])).unwrap();
    let mut command = Command::new(binaries.join("gpu-gateway"));
    command.arg("serve");
    let of_gateway = WallClock::of(&mut command, &library, &folder, "gateway");
    let addresses = [free_address(), free_address(), free_address()];
    let mut gateway = Gateway::start_at(addresses, "gpu-gateway", command, &folder);
    let agent = |node: &str, pod: &str| {
        let mut command = Command::new(binaries.join("gpu-agent"));
        let source = format!("sim:gpus=1,shape=constant:{LOAD},pods=ml/{pod}");
        command.args(["run", "--interval", "200ms", "--node", node, "--source", &source]);
        command.args(["--gateway", &url(gateway.uplink)]);
        let clock = WallClock::of(&mut command, &library, &folder, node);
        (Process::start(node, command, &folder), clock)
    };
    let (first, of_first) = agent("n0", "p0");
    let (mut second, of_second) = agent("n1", "p1");
    let client = Client::new(gateway.keda, scaled_object("llm", &[("staleAfter", "2s")]));
    eventually("both are known", async || match client.value().await {
        Ok(value) if value == 2.0 * LOAD => Ok(()),
        other => Err((other, gateway.process.log())),
    })
    .await;
    // A machine that stands still for 2 s makes a pod stale, clocks or not.
    let allowed = [2.0 * LOAD, 100.0];
    let mut watched = Watched::start("jumps", client.clone(), &allowed, Excused::Unavailable);
    for (gateway, agent) in
        [(3_600, 0), (0, 0), (-3_600, 0), (0, 0), (0, 3_600), (0, 0), (0, -3_600), (3_600, -3_600)]
    {
        of_gateway.is_off_by(gateway);
        of_second.is_off_by(agent);
        // Long enough for whoever went by that clock to find everything stale.
        sleep(Duration::from_millis(700)).await;
        watched.is_known().await;
        eventually("both count", async || match client.value().await {
            Ok(value) if value == 2.0 * LOAD => Ok(()),
            other => Err(other),
        })
        .await;
    }
    watched.was_never_wrong().await;

    // One that stops is missing as soon as any other, though its clock went an hour ahead.
    of_first.is_off_by(3_600);
    first.signal("STOP");
    eventually("it is missing, and held", async || match client.value().await {
        Ok(100.0) => Ok(()),
        other => Err(other),
    })
    .await;
    // The jumps were real: the processes date their last line by them.
    assert!(second.terminate().await.success() && gateway.process.terminate().await.success());
    assert_eq!((hours_off(&second.log()), hours_off(&gateway.process.log())), (-1, 1));
}
