//! The processes on a device, and how much of it each has.

use agent::device::{ObservedProcess, Processes};

use super::*;

const MIB: u64 = 1 << 20;

/// A GPU with these processes, and what each of them uses.
fn shared(uuid: &str, processes: &Value, used: &Value) -> Value {
    with(with(gpu(uuid, 80), "processes", processes.clone()), "process_utilization", used.clone())
}

fn two() -> Value {
    json!([{"pid": 11, "memory": 30_720 * MIB}, {"pid": 12, "memory": 10_240 * MIB}])
}

/// A GPU with processes 11 and 12, whose use is told by these entries: pid, time stamp, percent.
fn with_entries(entries: &[[u64; 3]]) -> Value {
    let entries: Vec<_> = entries.iter().map(|[pid, stamp, sm]| [*pid, *stamp, *sm, 0]).collect();
    machine(&[with(shared("GPU-a", &two(), &json!(null)), "process_samples", json!(entries))])
}

fn processes<'a>(seen: &'a Observation, uuid: &str) -> &'a Processes {
    &device(seen, uuid).unwrap().processes
}

/// Pid, MiB and percent of each process.
type Rows = Vec<(u32, Option<f64>, Option<f64>)>;

fn rows(seen: &Observation, uuid: &str) -> Rows {
    let row = |it: &ObservedProcess| (it.pid, it.memory_mib, it.utilization);
    match processes(seen, uuid) {
        Processes::Known(list) => list.iter().map(row).collect(),
        Processes::Unasked | Processes::Failed(_) => Vec::new(),
    }
}

fn used(seen: &Observation, pid: u32) -> Option<f64> {
    rows(seen, "GPU-a").into_iter().find(|row| row.0 == pid)?.2
}

/// Why the processes cannot be read; empty if they can.
fn unreadable(seen: &Observation, uuid: &str) -> String {
    match processes(seen, uuid) {
        Processes::Failed(why) => why.to_string(),
        Processes::Unasked | Processes::Known(_) => String::new(),
    }
}

/// What else is read is as ever.
fn reads_on(seen: &Observation, uuid: &str, utilization: f64) {
    assert_eq!(value(seen, uuid, Metric::GpuUtilization), Some(utilization));
    assert_eq!(value(seen, uuid, Metric::MemoryUsedMib), Some(40_960.0));
    assert_eq!(value(seen, uuid, Metric::PowerDraw), Some(512.5));
}

#[test]
fn each_process_is_there_once_whether_it_runs_by_itself_or_through_mps() {
    let a = with(
        shared("GPU-a", &two(), &json!([[11, 50, 9], [13, 30, 9]])),
        "mps",
        json!([{"pid": 12, "memory": 10_240 * MIB}, {"pid": 13}]),
    );
    let nobody = with(shared("GPU-b", &json!([]), &json!([])), "minor", json!(5));
    let fake = FakeNvml::new(&machine(&[a, nobody, gpu("GPU-c", 3)]));
    let seen = first(&mut open(&fake));
    let expected = vec![
        (11, Some(30_720.0), Some(50.0)),
        (12, Some(10_240.0), Some(0.0)),
        (13, None, Some(30.0)),
    ];
    assert_eq!(rows(&seen, "GPU-a"), expected);
    assert_eq!(*processes(&seen, "GPU-b"), Processes::Known(Vec::new()), "it is free");
    assert_eq!(*processes(&seen, "GPU-c"), Processes::Unasked, "it does not tell");
    reads_on(&seen, "GPU-a", 80.0);
    let minors = seen.devices.iter().map(|device| device.seat.minor.unwrap());
    assert_eq!(minors.collect::<Vec<_>>(), [0, 5, 2]);
}

#[test]
fn an_entry_counts_once_and_stands_until_the_next_and_none_is_idle() {
    let fake = FakeNvml::new(&with_entries(&[[11, 9_000_000, 60], [12, 1_000_000, 90]]));
    let mut source = open(&fake);
    let seen = first(&mut source);
    assert_eq!((used(&seen, 11), used(&seen, 12)), (Some(60.0), Some(0.0)), "8 s are too old");
    for _ in 0..50 {
        drop(source.begin());
        std::thread::sleep(Duration::from_millis(5));
        assert_eq!(used(&source.observe(Timestamp::START), 11), Some(60.0), "between two looks");
    }
    let more = [[11, 9_000_000, 60], [12, 9_400_000, 10], [11, 9_500_000, 20], [12, 9_000_000, 70]];
    fake.script(&with_entries(&more));
    let seen = until(&mut source, |seen| used(seen, 11) != Some(60.0));
    assert_eq!((used(&seen, 11), used(&seen, 12)), (Some(20.0), Some(10.0)));
    let is_idle = |seen: &Observation| (used(seen, 11), used(seen, 12)) == (Some(0.0), Some(0.0));
    until(&mut source, is_idle);
    fake.script(&with_entries(&[[12, 9_900_000, 30]]));
    let seen = until(&mut source, |seen| !is_idle(seen));
    assert_eq!((used(&seen, 11), used(&seen, 12)), (Some(0.0), Some(30.0)));
}

#[test]
fn more_than_all_of_the_time_is_no_use_and_the_newest_entry_of_a_process_counts() {
    let entries = [
        [11, 9_000_000, 60],
        [11, 9_500_000, 25],
        [11, 9_600_000, 4_000],
        [11, 9_200_000, 90],
        [12, 9_500_000, 101],
    ];
    let fake = FakeNvml::new(&with_entries(&entries));
    let seen = first(&mut open(&fake));
    assert_eq!(used(&seen, 11), Some(25.0));
    let expected = vec![(11, Some(30_720.0), Some(25.0)), (12, Some(10_240.0), None)];
    assert_eq!(rows(&seen, "GPU-a"), expected, "what 12 used is not known, and not zero");
}

#[test]
fn a_driver_clock_that_is_set_back_does_not_make_processes_idle() {
    let fake = FakeNvml::new(&with_entries(&[[11, 9_000_000_000, 60]]));
    let mut source = open(&fake);
    assert_eq!(used(&first(&mut source), 11), Some(60.0));
    fake.script(&with_entries(&[[11, 5_000_000, 40]]));
    until(&mut source, |seen| used(seen, 11) == Some(40.0));
}

#[test]
fn a_list_that_is_longer_than_expected_is_read_whole_or_not_at_all() {
    let many: Vec<_> = (1..=100).map(|pid| json!({"pid": pid, "memory": MIB})).collect();
    let used: Vec<_> = (1..=100).map(|pid| [pid, 1, 0]).collect();
    let a = with(shared("GPU-a", &json!(many), &json!(used)), "mps", json!([]));
    let fake = FakeNvml::new(&machine(std::slice::from_ref(&a)));
    let mut source = open(&fake);
    let listed = rows(&first(&mut source), "GPU-a");
    let expected: Rows = (1..=100).map(|pid| (pid, Some(1.0), Some(1.0))).collect();
    assert_eq!(listed, expected);

    for function in ["ComputeRunningProcesses_v3", "MPSComputeRunningProcesses_v3"] {
        let errors = json!({format!("nvmlDeviceGet{function}"): 7});
        fake.script(&machine(&[with(a.clone(), "errors", errors)]));
        let seen = until(&mut source, |seen| !unreadable(seen, "GPU-a").is_empty());
        reads_on(&seen, "GPU-a", 80.0);
        fake.script(&machine(std::slice::from_ref(&a)));
        until(&mut source, |seen| rows(seen, "GPU-a") == expected);
    }
}

#[test]
fn without_permission_processes_are_not_readable_and_everything_else_is() {
    let forbidden = |uuid, function: &str| {
        let errors = json!({format!("nvmlDeviceGet{function}"): 4});
        with(shared(uuid, &two(), &json!([[11, 50, 0]])), "errors", errors)
    };
    let lists = forbidden("GPU-a", "ComputeRunningProcesses_v3");
    let use_of_time = forbidden("GPU-b", "ProcessUtilization");
    let fake = FakeNvml::new(&machine(&[lists, use_of_time]));
    let seen = first(&mut open(&fake));
    assert_eq!(unreadable(&seen, "GPU-a"), "no permission to ask the NVIDIA driver");
    let expected = vec![(11, Some(30_720.0), None), (12, Some(10_240.0), None)];
    assert_eq!(rows(&seen, "GPU-b"), expected);
    reads_on(&seen, "GPU-a", 80.0);
    reads_on(&seen, "GPU-b", 80.0);
}

#[test]
fn an_old_driver_tells_less_and_is_read_all_the_same() {
    let script = machine(&[shared("GPU-a", &two(), &json!([[11, 50, 0]]))]);
    let fake = FakeNvml::without(&["nvmlDeviceGetProcessUtilization"], &script);
    let expected = vec![(11, Some(30_720.0), None), (12, Some(10_240.0), None)];
    assert_eq!(rows(&first(&mut open(&fake)), "GPU-a"), expected);
    let symbols = [
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetMPSComputeRunningProcesses_v3",
        "nvmlDeviceGetProcessUtilization",
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetMaxMigDeviceCount",
        "nvmlDeviceGetMinorNumber",
        "nvmlGpmQueryDeviceSupport",
        "nvmlGpmSampleFree",
    ];
    let fake = FakeNvml::without(&symbols, &script);
    let seen = first(&mut open(&fake));
    assert_eq!(*processes(&seen, "GPU-a"), Processes::Unasked);
    assert_eq!(reads(&seen, "GPU-a", Metric::SmActivity), Some(Reading::Unsupported));
    assert_eq!((seen.devices.len(), seen.devices[0].seat.minor), (1, None));
    reads_on(&seen, "GPU-a", 80.0);
}

#[test]
fn processes_of_a_device_that_was_lost_and_is_back_are_those_of_now() {
    let before = shared("GPU-a", &two(), &json!([[11, 50, 0]]));
    let fake = FakeNvml::new(&machine(&[before.clone(), gpu("GPU-b", 20)]));
    let mut source = open(&fake);
    first(&mut source);
    fake.script(&machine(&[with(before, "errors", json!({"*": 15})), gpu("GPU-b", 20)]));
    let seen = until(&mut source, |seen| !unreadable(seen, "GPU-a").is_empty());
    assert_eq!(unreadable(&seen, "GPU-a"), "the GPU has fallen off the bus");
    let after = shared("GPU-a", &json!([{"pid": 21, "memory": MIB}]), &json!([[21, 70, 0]]));
    fake.script(&machine(&[after, gpu("GPU-b", 20)]));
    let is_back = |seen: &Observation| unreadable(seen, "GPU-a").is_empty();
    until(&mut source, is_back);
    let expected = vec![(21, Some(1.0), Some(70.0))];
    until(&mut source, |seen| rows(seen, "GPU-a") == expected);
}

#[test]
fn a_list_that_hangs_costs_its_own_device_only() {
    for function in ["nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetProcessUtilization"] {
        let a = |load| shared("GPU-a", &two(), &json!([[11, load, 0]]));
        let b = shared("GPU-b", &two(), &json!([[12, 70, 0]]));
        let fake = FakeNvml::new(&machine(&[a(40), b.clone()]));
        let mut source = open(&fake);
        first(&mut source);
        fake.script(&machine(&[with(a(40), "block", json!([function])), b.clone()]));
        let has_failed =
            |seen: &Observation| !failure(seen, "GPU-a", Metric::GpuUtilization).is_empty();
        let seen = until(&mut source, has_failed);
        assert!(unreadable(&seen, "GPU-a").contains("process"), "{seen:#?}");
        assert_eq!(rows(&seen, "GPU-b")[1], (12, Some(10_240.0), Some(70.0)));
        reads_on(&seen, "GPU-b", 80.0);
        fake.script(&machine(&[a(30), b]));
        until(&mut source, |seen| used(seen, 11) == Some(30.0));
    }
}
