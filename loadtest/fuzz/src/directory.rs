//! Directory files.
//!
//! Guarantees: what is loaded is whole: workloads and scaled objects are found by their keys, ages
//! are not ahead of the clock, every declared trigger is found by its own metadata.

use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

use gateway::directory::file::FileDirectory;
use gateway::directory::{Directory, Snapshot};
use gateway::trigger::profile::Profiles;
use shared::process::Clock;

static PROFILES: LazyLock<Arc<Profiles>> = LazyLock::new(Arc::default);

/// Reads `data` as a directory file.
pub fn read(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let file = file();
    std::fs::write(&file, text).unwrap();
    let clock = Clock::start();
    let directory = Arc::new(Directory::with_clock(clock));
    let opened = FileDirectory::open(file.clone(), directory.clone(), PROFILES.clone(), clock);
    std::fs::remove_file(file).unwrap();
    match (opened, directory.snapshot()) {
        (Ok(_), Some(snapshot)) => is_whole(&snapshot),
        (Ok(_), None) => panic!("loaded, and nothing is there"),
        (Err(error), snapshot) => assert!(snapshot.is_none() && !error.to_string().is_empty()),
    }
}

/// One for each process and thread: fuzzers run side by side, and so do tests.
fn file() -> PathBuf {
    let memory = PathBuf::from("/dev/shm");
    let folder = if memory.is_dir() { memory } else { std::env::temp_dir() };
    let thread = std::thread::current().id();
    folder.join(format!("fuzz-directory-{}-{thread:?}.yaml", std::process::id()))
}

fn is_whole(snapshot: &Snapshot) {
    for workload in snapshot.workloads() {
        let found = snapshot.workload(&workload.key);
        assert!(found.is_some_and(|found| Arc::ptr_eq(found, workload)), "{}", workload.key);
        for pod in &workload.pods {
            assert_eq!(pod.key.namespace, workload.key.namespace);
            assert!(!pod.key.name.is_empty());
            assert!(pod.since <= snapshot.as_of(), "{}", pod.key);
        }
    }
    for object in snapshot.objects() {
        let found = snapshot.object(&object.key.namespace, &object.key.name);
        assert_eq!(found.map(|found| &found.key), Some(&object.key));
        for trigger in object.triggers.iter() {
            assert!(object.trigger_of(&trigger.metadata).is_some());
        }
        for pod in object.workload.iter().flat_map(|workload| &workload.pods) {
            let scaled = snapshot.scaled(&pod.key).unwrap();
            assert!(scaled.by.contains(&object.key));
            assert!(scaled.look_back >= object.look_back(&PROFILES));
        }
    }
}
