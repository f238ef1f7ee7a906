//! Copies of the fake NVIDIA library, each with a script of its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use serde_json::{Value, json};
use tempfile::TempDir;

/// A library of its own; gone at the end of the test.
pub(crate) struct FakeNvml {
    folder: TempDir,
}

impl FakeNvml {
    pub(crate) fn new(script: &Value) -> Self {
        Self::without(&[], script)
    }

    /// A library that lacks some symbols, as that of an old driver does.
    pub(crate) fn without(symbols: &[&str], script: &Value) -> Self {
        let fake = Self { folder: tempfile::tempdir().unwrap() };
        fake.script(script);
        fake.replace(symbols);
        fake
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("libnvidia-ml.so.1")
    }

    /// Puts another library in the place of this one.
    pub(crate) fn replace(&self, without: &[&str]) {
        let mut library = fs::read(built()).unwrap();
        for symbol in without {
            rename(&mut library, symbol);
        }
        self.put("libnvidia-ml.so.1", &library);
    }

    /// Changes the script under whoever follows it.
    pub(crate) fn script(&self, script: &Value) {
        self.put("libnvidia-ml.so.1.json", script.to_string().as_bytes());
    }

    fn put(&self, name: &str, bytes: &[u8]) {
        let new = self.folder.path().join("new");
        fs::write(&new, bytes).unwrap();
        fs::rename(new, self.folder.path().join(name)).unwrap();
    }
}

/// A GPU that has everything.
pub(crate) fn gpu(uuid: &str, utilization: u32) -> Value {
    json!({
        "uuid": uuid,
        "name": "NVIDIA H100 80GB HBM3",
        "utilization": [utilization, 30],
        "memory": [80_u64 << 30, 1_u64 << 30, 40_u64 << 30],
        "temperature": 64,
        "power": 512_500,
        "clock": 1980,
        "throttle": 0,
        "pcie": [1_000, 2_000],
        "mig": [0, 0],
    })
}

/// A machine with these GPUs.
pub(crate) fn machine(gpus: &[Value]) -> Value {
    json!({"driver": "550.54.15", "gpus": gpus})
}

/// Cargo as a person would call it: with what it tells tests about their package, build scripts of
/// dependencies would run again, and again at the next call without.
pub(crate) fn cargo() -> Command {
    let mut cargo = Command::new(env!("CARGO"));
    for (name, _) in std::env::vars_os() {
        let of_tests = ["CARGO_PKG_", "CARGO_MANIFEST_"];
        if of_tests.iter().any(|start| name.to_string_lossy().starts_with(start)) {
            cargo.env_remove(name);
        }
    }
    cargo
}

/// The library as it was built; which does nothing if it is there.
fn built() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let test = std::env::current_exe().unwrap();
        let profile = test.ancestors().nth(2).unwrap();
        let mut cargo = cargo();
        cargo.args(["build", "--quiet", "--package", "fake-nvml", "--target-dir"]);
        cargo.arg(profile.parent().unwrap());
        if profile.ends_with("release") {
            cargo.arg("--release");
        }
        assert!(cargo.status().unwrap().success(), "the fake library does not build");
        profile.join("libfake_nvml.so")
    })
}

/// Renames a symbol in the string table, so that nobody finds it.
fn rename(library: &mut [u8], symbol: &str) {
    let name = format!("\0{symbol}\0").into_bytes();
    let found = (0..library.len() - name.len()).filter(|at| library[*at..].starts_with(&name));
    let found: Vec<usize> = found.collect();
    assert!(!found.is_empty(), "the fake library has no {symbol}");
    for at in found {
        library[at + 1] = b'x';
    }
}
