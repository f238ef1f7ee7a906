use super::*;

const ONE: &str = "workloads: [{namespace: ai, kind: D, name: w, replicas: 1}]";

#[test]
fn a_file_caught_half_written_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("directory.yaml");
    let write = |text: &str| std::fs::write(&path, text).unwrap();
    write(ONE);
    let directory = Arc::new(Directory::default());
    let profiles = Arc::new(Profiles::default());
    let mut file =
        FileDirectory::open(path.clone(), directory.clone(), profiles, Clock::start()).unwrap();
    let workloads = || directory.snapshot().unwrap().workloads().count();
    // Another content at every look is somebody writing.
    for half in ["", "workloads:", "", ONE, "workloads: []"] {
        write(half);
        file.look();
        assert_eq!(workloads(), 1, "{half:?}");
    }
    // The same twice is meant.
    file.look();
    assert_eq!(workloads(), 0);
    write(ONE);
    file.look();
    file.look();
    assert_eq!(workloads(), 1);
}
