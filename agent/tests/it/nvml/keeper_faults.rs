//! Libraries and GPUs that change, or hang, while others are read.

use std::fs::{read_dir, read_to_string};
use std::os::unix::fs::symlink;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use super::*;
use crate::process::{Running, agent};

/// Waits until it `is` so, of what no observation says.
fn wait_until(source: &mut Nvml, is: impl Fn() -> bool) {
    until(source, |_| is());
}

fn hung(uuid: &str) -> Value {
    with(gpu(uuid, 80), "block", json!(["*"]))
}

fn fails(seen: &Observation, uuid: &str) -> bool {
    failure(seen, uuid, Metric::Temperature).contains("not answering")
}

#[test]
fn a_driver_upgrade_is_noticed_where_the_loader_found_the_library() {
    let fake = FakeNvml::new(&machine(&[gpu("GPU-a", 70)]));
    let folder = fake.path().parent().unwrap().to_owned();
    let (old, new) = (folder.join("libnvidia-ml.so.535"), folder.join("libnvidia-ml.so.550"));
    fs::copy(fake.path(), &new).unwrap();
    fs::rename(fake.path(), &old).unwrap();
    symlink(&old, fake.path()).unwrap();
    let mut command = agent(["serve", "--http-listen", "127.0.0.1:0"]);
    command.env("LD_LIBRARY_PATH", &folder);
    command.env("FAKE_NVML_SCRIPT", folder.join("libnvidia-ml.so.1.json"));
    let mut running = Running::start(command);
    running.wait_for("NVIDIA's library is open");
    // What an installer does: the old file goes, the link leads to another.
    fs::remove_file(&old).unwrap();
    fs::remove_file(fake.path()).unwrap();
    symlink(&new, fake.path()).unwrap();
    running.wait_for("NVIDIA's library was replaced");
    running.wait_for("NVIDIA's library is open");
}

#[test]
fn a_relative_path_of_any_name_is_watched() {
    let fake = FakeNvml::new(&machine(&[gpu("GPU-a", 70)]));
    let folder = fake.path().parent().unwrap().to_owned();
    fs::copy(fake.path(), folder.join("nvml.so")).unwrap();
    let library = ["--nvml-library", "./nvml.so"];
    let mut command = agent(["serve", "--http-listen", "127.0.0.1:0"]);
    command.args(library).current_dir(&folder);
    command.env("FAKE_NVML_SCRIPT", folder.join("libnvidia-ml.so.1.json"));
    let mut running = Running::start(command);
    running.wait_for("NVIDIA's library is open");
    fs::rename(fake.path(), folder.join("nvml.so")).unwrap();
    running.wait_for("NVIDIA's library was replaced");
    running.wait_for("NVIDIA's library is open");
}

#[test]
fn a_library_that_stays_away_is_missed() {
    let fake = FakeNvml::new(&machine(&[gpu("GPU-a", 70)]));
    let mut source = open(&fake);
    first(&mut source);
    fs::remove_file(fake.path()).unwrap();
    let is_missed =
        |seen: &Observation| seen.reason.as_deref().unwrap_or_default().contains("is not here");
    until(&mut source, is_missed);
    fake.replace(&[]);
    until(&mut source, |seen| value(seen, "GPU-a", Metric::Temperature) == Some(64.0));
}

#[test]
fn a_hang_that_holds_the_old_library_is_told_and_ends_the_agent_after_a_while() {
    let fake = FakeNvml::new(&machine(&[gpu("GPU-a", 70), gpu("GPU-b", 80)]));
    let mut source = open(&fake);
    first(&mut source);
    fake.script(&machine(&[gpu("GPU-a", 70), hung("GPU-b")]));
    until(&mut source, |seen| fails(seen, "GPU-b"));
    fake.replace(&["nvmlDeviceGetTemperature"]);
    let is_told =
        |seen: &Observation| seen.reason.as_deref().unwrap_or_default().contains("holds the old");
    until(&mut source, is_told);
    let clock = Clock::start();
    while source.finished().is_ok() {
        drop(source.observe(Timestamp::START));
        assert!(clock.now().since(Timestamp::START) < PATIENCE, "it tries for ever");
        std::thread::sleep(Duration::from_millis(5));
    }
    // Once nothing holds it any more, the new one is read.
    fake.script(&machine(&[gpu("GPU-a", 70), gpu("GPU-b", 80)]));
    let is_new = |seen: &Observation| {
        reads(seen, "GPU-b", Metric::Temperature) == Some(Reading::Unsupported)
            && value(seen, "GPU-b", Metric::GpuUtilization) == Some(80.0)
    };
    until(&mut source, is_new);
}

#[test]
fn a_gpu_that_comes_or_goes_never_fails_the_others_though_one_hangs() {
    let fake = FakeNvml::new(&machine(&[gpu("GPU-a", 70), gpu("GPU-b", 80)]));
    let mut settings = settings(fake.path());
    // One back-off would be more than the patience of the test.
    settings.retry = Duration::from_secs(60);
    let mut source = Nvml::open(settings).unwrap();
    first(&mut source);
    fake.script(&machine(&[gpu("GPU-a", 70), hung("GPU-b")]));
    until(&mut source, |seen| fails(seen, "GPU-b"));
    for turn in 0..6 {
        let comes = turn % 2 == 0;
        let third = comes.then(|| gpu("GPU-c", 90));
        let gpus: Vec<_> = [gpu("GPU-a", 70), hung("GPU-b")].into_iter().chain(third).collect();
        fake.script(&machine(&gpus));
        let seen = until(&mut source, |seen| {
            assert_eq!(value(seen, "GPU-a", Metric::GpuUtilization), Some(70.0), "{seen:#?}");
            assert_eq!(seen.reason, None);
            let third = value(seen, "GPU-c", Metric::GpuUtilization);
            seen.devices.len() == gpus.len() && third.is_some() == comes
        });
        assert!(fails(&seen, "GPU-b"), "{seen:#?}");
    }
    fake.script(&machine(&[gpu("GPU-a", 70), gpu("GPU-b", 80)]));
    until(&mut source, |seen| value(seen, "GPU-b", Metric::GpuUtilization) == Some(80.0));
}

/// Threads of the GPU at 23, which only one test has.
fn threads_of_23() -> usize {
    let tasks = read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| ["nvml-23", "nvml-slow-23"].contains(&name.trim())).count()
}

#[test]
fn threads_do_not_pile_up_while_a_gpu_hangs() {
    let gpus = |last: Value, others: u32| {
        let first = (0..23).map(|index| gpu(&format!("GPU-{index}"), 1));
        let others = (0..others).map(|index| gpu(&format!("GPU-other-{index}"), 2));
        machine(&first.chain([last]).chain(others).collect::<Vec<_>>())
    };
    let fake = FakeNvml::new(&gpus(gpu("GPU-h", 80), 0));
    let mut source = open(&fake);
    first(&mut source);
    fake.script(&gpus(hung("GPU-h"), 0));
    until(&mut source, |seen| fails(seen, "GPU-h"));
    for others in [1, 0, 2, 1, 2] {
        fake.script(&gpus(hung("GPU-h"), others));
        until(&mut source, |seen| seen.devices.len() == 24 + others as usize);
        wait_until(&mut source, || threads_of_23() == 2);
    }
    fake.script(&gpus(gpu("GPU-h", 80), 2));
    until(&mut source, |seen| value(seen, "GPU-h", Metric::GpuUtilization) == Some(80.0));
}

#[test]
fn a_library_that_does_not_close_is_left_and_the_reason_is_told() {
    let gpus = [gpu("GPU-a", 70)];
    let fake = FakeNvml::new(&machine(&gpus));
    let mut source = open(&fake);
    first(&mut source);
    let failing = machine(&gpus.clone().map(|gpu| with(gpu, "errors", json!({"*": 1}))));
    fake.script(&with(failing, "block", json!(["nvmlShutdown"])));
    let is_told = |seen: &Observation| {
        seen.reason.as_deref().unwrap_or_default().contains("the NVIDIA driver was unloaded")
    };
    until(&mut source, is_told);
    fake.script(&with(machine(&gpus), "block", json!(["nvmlShutdown"])));
    until(&mut source, |seen| value(seen, "GPU-a", Metric::GpuUtilization) == Some(70.0));
    fake.script(&machine(&gpus));
}

#[test]
fn a_gpu_that_hangs_does_not_silence_the_xids_of_the_others() {
    let lost = with(gpu("GPU-c", 3), "errors", json!({"*": 15}));
    let fake = FakeNvml::new(&machine(&[gpu("GPU-a", 1), gpu("GPU-b", 2), lost]));
    let mut source = open(&fake);
    until(&mut source, |seen| value(seen, "GPU-b", Metric::GpuUtilization) == Some(2.0));
    // The third one comes back, so that all are registered anew, while the second hangs.
    let gpus = [gpu("GPU-a", 1), hung("GPU-b"), gpu("GPU-c", 3)];
    fake.script(&machine(&gpus));
    until(&mut source, |seen| {
        fails(seen, "GPU-b") && value(seen, "GPU-c", Metric::GpuUtilization) == Some(3.0)
    });
    let events = json!([{"gpu": 0, "kind": 8, "data": 79}, {"gpu": 2, "kind": 8, "data": 48}]);
    fake.script(&with(machine(&gpus), "events", events));
    let is_told = |seen: &Observation| {
        let xid = |uuid| device(seen, uuid)?.reason.clone();
        let xids = (xid("GPU-a"), xid("GPU-c"));
        xids == (
            Some("the driver reported XID 79".into()),
            Some("the driver reported XID 48".into()),
        )
    };
    until(&mut source, is_told);
    fake.script(&machine(&[]));
}

#[derive(Clone, Default)]
pub(super) struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// The log of the whole process.
    pub(super) fn of_all() -> &'static Self {
        static LOG: OnceLock<Log> = OnceLock::new();
        LOG.get_or_init(|| {
            let log = Self::default();
            let writer = log.clone();
            let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone());
            subscriber.with_ansi(false).init();
            log
        })
    }

    pub(super) fn count(&self, words: &str, uuid: &str) -> usize {
        let text = String::from_utf8(self.0.lock().clone()).unwrap();
        text.lines().filter(|line| line.contains(words) && line.contains(uuid)).count()
    }
}

#[test]
fn a_hang_is_logged_once_and_so_is_its_end_and_its_reason_stays_the_same() {
    let log = Log::of_all();
    let uuid = "GPU-that-is-logged";
    let fake = FakeNvml::new(&machine(&[gpu("GPU-a", 70), gpu(uuid, 80)]));
    let mut source = open(&fake);
    first(&mut source);
    // The library as a whole hangs with it.
    let hangs = machine(&[gpu("GPU-a", 70), hung(uuid)]);
    fake.script(&with(hangs, "block", json!(["nvmlDeviceGetCount_v2"])));
    wait_until(&mut source, || log.count("is not answering for this GPU", uuid) > 0);
    fake.script(&machine(&[gpu("GPU-a", 70), gpu(uuid, 80)]));
    wait_until(&mut source, || log.count("answers again for this GPU", uuid) > 0);
    until(&mut source, |seen| value(seen, uuid, Metric::GpuUtilization) == Some(80.0));
    assert_eq!(log.count("is not answering for this GPU", uuid), 1);
    assert_eq!(log.count("answers again for this GPU", uuid), 1);
}

#[test]
fn the_reason_of_a_node_whose_driver_hangs_does_not_count_seconds() {
    let gpus = machine(&[gpu("GPU-a", 70), hung("GPU-b")]);
    for script in [gpus.clone(), with(gpus, "block", json!(["nvmlInit_v2"]))] {
        let fake = FakeNvml::new(&script);
        let mut source = open(&fake);
        let is_told = |seen: &Observation| {
            seen.reason.as_deref().unwrap_or_default().contains("not answering for")
        };
        let told = until(&mut source, is_told).reason;
        let clock = Clock::start();
        // The text is of whole seconds, so it would have changed by then.
        until(&mut source, |seen| {
            assert_eq!(seen.reason, told);
            clock.now().since(Timestamp::START) > Duration::from_millis(1_100)
        });
        fake.script(&machine(&[gpu("GPU-a", 70)]));
    }
}
