//! What is written in the script, and noticing that it changed.

use std::collections::HashMap;
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

use nvml_wrapper_sys::bindings::nvmlReturn_t;
use parking_lot::Mutex;
use serde::Deserialize;

/// A whole machine. Everything that is left out answers NOT_SUPPORTED.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Script {
    /// Version of the driver.
    pub(crate) driver: Option<String>,
    /// In the order of their NVML index.
    pub(crate) gpus: Vec<Gpu>,
    /// Function → error code; `*` for all that have no GPU.
    pub(crate) errors: HashMap<String, nvmlReturn_t>,
    /// Functions that do not return; `*` for all that have no GPU.
    pub(crate) block: Vec<String>,
    /// Each is delivered once to whoever waits; later ones are written behind.
    pub(crate) events: Vec<Event>,
}

/// One GPU.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Gpu {
    pub(crate) uuid: Text,
    pub(crate) name: Text,
    /// GPU and memory utilisation, as a single look and in generated samples.
    pub(crate) utilization: Option<[u32; 2]>,
    /// The driver's ring: time stamp in µs, GPU, memory; instead of a generated one.
    pub(crate) samples: Option<Vec<[u64; 3]>>,
    /// Type of the values of the ring; unsigned int where nothing is said.
    pub(crate) sample_type: Option<u32>,
    /// Total, reserved and used bytes.
    pub(crate) memory: Option<[u64; 3]>,
    pub(crate) temperature: Option<u32>,
    /// Milliwatts.
    pub(crate) power: Option<u32>,
    /// Milliwatts that the energy counter grows by.
    pub(crate) energy_rate: Option<f64>,
    /// Millijoules that the energy counter stands at, instead of one that grows.
    pub(crate) energy: Option<u64>,
    /// Memory errors that could not be corrected: since the driver was loaded, and ever.
    pub(crate) ecc: Option<[Option<u64>; 2]>,
    /// Rows replaced for errors that could be corrected and could not, waiting, failed.
    pub(crate) remapped_rows: Option<[u32; 4]>,
    /// NVML's number for what the driver wants done.
    pub(crate) recovery_action: Option<u32>,
    /// Megahertz, of every clock.
    pub(crate) clock: Option<u32>,
    /// Clock event reasons, a bit each.
    pub(crate) throttle: Option<u64>,
    /// Transmitted and received KB/s.
    pub(crate) pcie: Option<[u32; 2]>,
    /// Current and pending mode.
    pub(crate) mig: Option<[u32; 2]>,
    /// What it is cut into.
    pub(crate) instances: Vec<Instance>,
    /// The N of `/dev/nvidiaN`; its index where nothing is said.
    pub(crate) minor: Option<u32>,
    /// Processes with a compute context.
    pub(crate) processes: Option<Vec<Process>>,
    /// Clients of its MPS server.
    pub(crate) mps: Option<Vec<Process>>,
    /// Process, SM and memory utilisation: samples that are generated as time goes on.
    pub(crate) process_utilization: Option<Vec<[u32; 3]>>,
    /// Process, time stamp in µs, SM and memory utilisation; instead of generated ones.
    pub(crate) process_samples: Option<Vec<[u64; 4]>>,
    /// GPM metric → value; without it there is no GPM.
    pub(crate) gpm: Option<HashMap<u32, f64>>,
    /// Kinds of events it can report; XID and ECC where nothing is said.
    pub(crate) event_types: Option<u64>,
    /// Function → error code; `*` for all.
    pub(crate) errors: HashMap<String, nvmlReturn_t>,
    /// Functions that do not return; `*` for all.
    pub(crate) block: Vec<String>,
}

impl Gpu {
    /// Whether it is in MIG mode.
    pub(crate) fn is_cut(&self) -> bool {
        self.mig.is_some_and(|[now, _]| now == 1)
    }
}

/// One MIG instance. What it does not have is not supported.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Instance {
    /// Its place among the at most seven of its GPU.
    pub(crate) slot: u32,
    pub(crate) uuid: Text,
    pub(crate) name: Text,
    pub(crate) gi: u32,
    pub(crate) ci: u32,
    /// Total, reserved and used bytes.
    pub(crate) memory: Option<[u64; 3]>,
    /// Slices of the GPU instance and of the compute instance, MiB.
    pub(crate) attributes: Option<[u32; 3]>,
    pub(crate) processes: Option<Vec<Process>>,
    pub(crate) mps: Option<Vec<Process>>,
    /// GPM metric → value of its GPU instance.
    pub(crate) gpm: Option<HashMap<u32, f64>>,
    /// Function → error code; `*` for all.
    pub(crate) errors: HashMap<String, nvmlReturn_t>,
    /// Functions that do not return; `*` for all.
    pub(crate) block: Vec<String>,
}

/// One process on a device.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    /// Bytes; not available where nothing is said.
    #[serde(default)]
    pub(crate) memory: Option<u64>,
}

/// Text, or bytes that are none.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Text {
    Utf8(String),
    Bytes(Vec<u8>),
}

impl Default for Text {
    fn default() -> Self {
        Self::Utf8(String::new())
    }
}

impl Text {
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Utf8(text) => text.as_bytes(),
            Self::Bytes(bytes) => bytes,
        }
    }
}

/// Something that happened to a GPU.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Event {
    pub(crate) gpu: usize,
    /// One bit.
    pub(crate) kind: u64,
    /// XID, where it is one.
    #[serde(default)]
    pub(crate) data: u64,
}

/// The script as it stands now.
pub(crate) fn current() -> Arc<Script> {
    static FILE: LazyLock<Mutex<File>> = LazyLock::new(|| Mutex::new(File::new()));
    FILE.lock().look()
}

struct File {
    path: PathBuf,
    seen: Option<(u64, i64, i64, u64)>,
    script: Arc<Script>,
}

impl File {
    #[expect(clippy::disallowed_methods, reason = "there is no other way to tell it its script")]
    fn new() -> Self {
        let path = match std::env::var("FAKE_NVML_SCRIPT") {
            Ok(path) => path.into(),
            Err(_) => beside_the_library(),
        };
        Self { path, seen: None, script: Arc::default() }
    }

    fn look(&mut self) -> Arc<Script> {
        let print = |file: Metadata| (file.ino(), file.mtime(), file.mtime_nsec(), file.len());
        let found = fs::metadata(&self.path).ok().map(print);
        // A script that is gone leaves everything as it was.
        if found.is_some() && found != self.seen {
            let text = fs::read_to_string(&self.path).unwrap_or_default();
            match serde_json::from_str(&text) {
                Ok(script) => {
                    self.script = Arc::new(script);
                    self.seen = found;
                }
                // Perhaps only half written yet.
                Err(error) => eprintln!("fake NVML: {}: {error}", self.path.display()),
            }
        }
        self.script.clone()
    }
}

/// The path this library was loaded from, with `.json` behind it.
fn beside_the_library() -> PathBuf {
    let own = beside_the_library as fn() -> PathBuf as usize;
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let mapped = maps.lines().find_map(|line| {
        let (range, rest) = line.split_once(' ')?;
        let (from, to) = range.split_once('-')?;
        let from = usize::from_str_radix(from, 16).ok()?;
        let to = usize::from_str_radix(to, 16).ok()?;
        let path = rest.find('/').map(|start| &rest[start..])?;
        (from..to).contains(&own).then(|| path.trim_end_matches(" (deleted)").to_owned())
    });
    PathBuf::from(mapped.unwrap_or_default() + ".json")
}
