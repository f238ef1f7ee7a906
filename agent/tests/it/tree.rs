//! A tree that stands for `/proc`.

use std::fs;
use std::path::Path;

use agent::owner::process::Procfs;
use tempfile::TempDir;

/// A tree that stands for `/proc` of a host.
pub(crate) struct Tree {
    folder: TempDir,
}

impl Tree {
    pub(crate) fn new() -> Self {
        Self::in_namespace("pid:[4026531836]")
    }

    /// One in which the agent sees the processes of this namespace.
    pub(crate) fn in_namespace(namespace: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("self/ns")).unwrap();
        std::os::unix::fs::symlink(namespace, folder.path().join("self/ns/pid")).unwrap();
        Self { folder }
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// A process called `python) 1 (x` with this text as its cgroup.
    pub(crate) fn process(&self, pid: u32, started: u64, cgroup: impl AsRef<[u8]>) {
        self.named(pid, started, cgroup, "python) 1 (x");
    }

    pub(crate) fn named(&self, pid: u32, started: u64, cgroup: impl AsRef<[u8]>, name: &str) {
        let folder = self.path().join(pid.to_string());
        fs::create_dir_all(&folder).unwrap();
        // Every field but the start time holds its own number.
        let before: String = (4..22).map(|field| format!(" {field}")).collect();
        let stat = format!("{pid} ({name}) S{before} {started} 23 24\n");
        fs::write(folder.join("stat"), stat).unwrap();
        fs::write(folder.join("cgroup"), cgroup).unwrap();
        fs::write(folder.join("comm"), format!("{name}\n")).unwrap();
    }

    /// The process ends.
    pub(crate) fn end(&self, pid: u32) {
        fs::remove_dir_all(self.path().join(pid.to_string())).unwrap();
    }

    pub(crate) fn reader(&self) -> Procfs {
        Procfs::new(self.path().into(), None)
    }
}
