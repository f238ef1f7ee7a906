//! The DaemonSet asks for no more than the agent needs, and sets no variable it does not know.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

fn daemon_set() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/manifests/agent.yaml");
    serde_saphyr::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn it_has_no_privilege_but_the_hosts_process_ids() {
    let spec = &daemon_set()["spec"]["template"]["spec"];
    assert_eq!(spec["runtimeClassName"], "nvidia");
    assert_eq!(spec["hostPID"], true);
    assert_eq!(spec["automountServiceAccountToken"], false);
    assert_eq!((&spec["hostNetwork"], &spec["hostIPC"]), (&Value::Null, &Value::Null));
    let context = &spec["containers"][0]["securityContext"];
    let expected = json!({
        "runAsUser": 0,
        "privileged": false,
        "allowPrivilegeEscalation": false,
        "readOnlyRootFilesystem": true,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    });
    assert_eq!(context, &expected);
    // The kubelet's folder and nothing of /proc, /sys or /dev; no Secret, which the whole node could read.
    let volumes = spec["volumes"].as_array().unwrap();
    let of_the_node = volumes.iter().filter_map(|volume| volume["hostPath"]["path"].as_str());
    assert_eq!(of_the_node.collect::<Vec<_>>(), ["/var/lib/kubelet/pod-resources"]);
    assert!(volumes.iter().all(|volume| volume["secret"].is_null()), "{volumes:?}");
    let mounts = spec["containers"][0]["volumeMounts"].as_array().unwrap();
    assert!(mounts.iter().all(|mount| mount["readOnly"] == true), "{mounts:?}");
}

#[test]
fn the_agent_knows_every_flag_and_variable_that_it_sets() {
    let container = &daemon_set()["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(container["args"], json!(["run"]));
    let help = Command::new(env!("CARGO_BIN_EXE_gpu-agent")).args(["run", "--help"]).output();
    let help = String::from_utf8(help.unwrap().stdout).unwrap();
    for variable in container["env"].as_array().unwrap() {
        let name = variable["name"].as_str().unwrap();
        // NVIDIA's are the runtime's.
        assert!(name.starts_with("NVIDIA_") || help.contains(name), "{name}");
    }
}
