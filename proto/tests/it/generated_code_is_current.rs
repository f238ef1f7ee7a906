use std::path::Path;

const PROTOS: [&str; 3] =
    ["uplink/v1/uplink.proto", "keda/externalscaler.proto", "kubelet/podresources.proto"];

#[test]
fn generated_code_is_what_the_protos_say() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let committed = root.join("src/generated");
    let fresh = tempfile::tempdir().unwrap();
    let descriptors = protox::compile(PROTOS, [root.join("proto")]).unwrap();
    tonic_prost_build::configure()
        .bytes(".v1")
        .out_dir(fresh.path())
        .compile_fds(descriptors)
        .unwrap();

    for file in std::fs::read_dir(fresh.path()).unwrap() {
        let file = file.unwrap();
        let kept = committed.join(file.file_name());
        let text = std::fs::read_to_string(file.path()).unwrap();
        if std::env::var_os("UPDATE_GENERATED").is_some() {
            std::fs::write(&kept, &text).unwrap();
        }
        assert!(
            std::fs::read_to_string(&kept).unwrap_or_default() == text,
            "{} is stale: run UPDATE_GENERATED=1 cargo test -p proto",
            kept.display()
        );
    }
}
