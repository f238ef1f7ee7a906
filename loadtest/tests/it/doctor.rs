//! The doctor of a node asks a real gateway for a stream, and the gateway takes no note of it.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;

use crate::support::{Gateway, PATIENCE, binaries, run_agent, scaled_object};

const DIRECTORY: &str = "\
workloads:
  - {namespace: ml, kind: Deployment, name: a, replicas: 1, pods: [{name: a, ready: true}]}
scaledObjects:
  - {namespace: ml, name: a, target: {name: a}, minReplicas: 1}
";

fn get(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: gateway\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.split_once("\r\n\r\n").unwrap().1.to_owned()
}

#[tokio::test]
async fn a_gateway_that_a_doctor_has_asked_knows_the_nodes_it_knew() {
    let binaries = binaries();
    let folder = tempfile::tempdir().unwrap();
    let gateway = Gateway::start(&binaries, &folder, DIRECTORY);
    let mut agent = run_agent(&binaries, &gateway, "n1");
    agent.args(["--source", "sim:gpus=1,pods=ml/a"]);
    let agents = [crate::support::Process::start("gpu-agent", agent, &folder)];
    gateway.first_answer(&scaled_object("a", &[]), &agents).await;

    for node in ["n1", "n2"] {
        let url = format!("http://{}", gateway.uplink);
        let mut doctor = Command::new(binaries.join("gpu-agent"));
        doctor.args(["doctor", "--source", "sim", "--node", node, "--gateway", &url]);
        let output = doctor.output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && said.contains("\ngateway  ok "), "{said}");
    }
    let nodes: serde_json::Value =
        serde_json::from_str(&get(gateway.http, "/api/v1/nodes")).unwrap();
    let nodes: Vec<_> = nodes.as_array().unwrap().iter().map(|node| &node["node"]).collect();
    assert_eq!(nodes, ["n1"]);
    let metrics = get(gateway.http, "/metrics");
    assert!(
        !metrics.lines().any(|line| line.starts_with("gpu_gateway_uplink_refused")),
        "{metrics}"
    );
    let log = gateway.process.log();
    // Where the tests run, fewer files may be open than a gateway asks for by default.
    let mut warnings = log.lines().filter(|line| line.contains("WARN"));
    assert!(warnings.all(|line| line.contains("limit of open files")), "{log}");
}
