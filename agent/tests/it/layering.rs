//! A module uses only modules above it in `lib.rs`; what is pure stays pure.

use std::fs;
use std::path::{Path, PathBuf};

/// Know all the others.
const LAST: [&str; 2] = ["config", "app"];
const PURE: [&str; 48] = [
    "owner.rs",
    "owner/cgroup.rs",
    "owner/id.rs",
    "owner/declared.rs",
    "owner/given.rs",
    "owner/handover.rs",
    "owner/merge.rs",
    "owner/split.rs",
    "owner/kubelet/pace.rs",
    "frame.rs",
    "engine/dialect.rs",
    "engine/page.rs",
    "engine/rate.rs",
    "engine/reader.rs",
    "uplink/backoff.rs",
    "device/replay/line.rs",
    "device/replay/condition.rs",
    "device/meter.rs",
    "device/fields.rs",
    "device/holder.rs",
    "device/nvml/past.rs",
    "device/nvml/past/usage.rs",
    "device/nvml/read.rs",
    "device/simulated/spec.rs",
    "engine/address.rs",
    "uplink/briefs.rs",
    "local/metrics.rs",
    "local/metrics/condition.rs",
    "local/condition.rs",
    "local/doctor.rs",
    "local/view.rs",
    "local/json.rs",
    "local/table.rs",
    "local/doctor/devices.rs",
    "local/doctor/hardware.rs",
    "local/doctor/holders.rs",
    "local/doctor/kubelet.rs",
    "local/top/arrange.rs",
    "local/top/cell.rs",
    "local/top/column.rs",
    "local/top/detail.rs",
    "local/top/help.rs",
    "local/top/history.rs",
    "local/top/page.rs",
    "local/top/row.rs",
    "local/top/screen.rs",
    "local/top/state.rs",
    "local/top/text.rs",
];
const IMPURE: [&str; 5] = ["tokio", "tonic", "Clock", "Instant", "SystemTime"];

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, found);
        } else {
            found.push(path);
        }
    }
}

/// The modules that `text` names as `crate::…`.
fn named(text: &str) -> Vec<&str> {
    text.split("crate::")
        .skip(1)
        .map(|rest| {
            assert!(!rest.starts_with('{'), "write one `use crate::` per module");
            let end = rest.find(|c: char| !c.is_ascii_lowercase() && c != '_');
            &rest[..end.unwrap_or(rest.len())]
        })
        .collect()
}

#[test]
fn no_module_uses_one_that_is_listed_below_it() {
    let lib = fs::read_to_string(source().join("lib.rs")).unwrap();
    let order: Vec<_> =
        lib.lines().filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';')).collect();
    assert!(order.ends_with(&LAST), "{order:?}");
    let place = |module: &str| order.iter().position(|known| *known == module);
    let mut all = Vec::new();
    files(&source(), &mut all);
    let mut checked = 0;
    for file in all {
        let inside = file.strip_prefix(source()).unwrap();
        let first = inside.iter().next().unwrap().to_str().unwrap();
        let module = first.trim_end_matches(".rs");
        let Some(own) = place(module) else {
            assert!(["lib", "main"].contains(&module), "{module} is not in lib.rs");
            continue;
        };
        let text = fs::read_to_string(&file).unwrap();
        for used in named(&text) {
            let used_place = place(used).unwrap_or_else(|| panic!("{file:?} uses crate::{used}"));
            assert!(used_place <= own, "{file:?} uses crate::{used}, which is below it");
            checked += 1;
        }
    }
    assert!(checked > 10, "only {checked} uses were seen");
}

#[test]
fn pure_modules_name_no_runtime_transport_or_clock() {
    for file in PURE {
        let text = fs::read_to_string(source().join(file)).unwrap();
        // Whole words: a metric is called SmClockMhz.
        let mut words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let impure = words.find(|word| IMPURE.contains(word));
        assert_eq!(impure, None, "{file} mentions it");
    }
}
