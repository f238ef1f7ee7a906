//! A GPU that is cut into MIG instances, from the driver to what KEDA is told.

use proto::keda::ScaledObjectRef;
use proto::keda::external_scaler_client::ExternalScalerClient;
use serde_json::{Value, json};
use tonic::{Code, Status};

use crate::fake_nvml::{FakeNvml, machine};
use crate::nvml::holders;
use crate::support::{Gateway, Process, binaries, run_agent, scaled_object};

const MIB: u64 = 1 << 20;

const TWO: &str = "\
workloads:
  - {namespace: ml, kind: Deployment, name: a, replicas: 1, pods: [{name: a-0, node: n1, ready: true}]}
  - {namespace: ml, kind: Deployment, name: b, replicas: 1, pods: [{name: b-0, node: n1, ready: true}]}
scaledObjects:
  - {namespace: ml, name: a-so, target: {kind: Deployment, name: a}, maxReplicas: 8}
  - {namespace: ml, name: b-so, target: {kind: Deployment, name: b}, maxReplicas: 8}
";

fn slice(slot: u32, uuid: &str, used: u64) -> Value {
    json!({
        "slot": slot, "uuid": uuid, "name": "NVIDIA A100-SXM4-40GB MIG 3g.20gb",
        "gi": slot + 1, "ci": 0, "memory": [19_968 * MIB, 0, used * MIB],
    })
}

/// The same trigger, on memory.
fn of_memory(name: &str) -> ScaledObjectRef {
    let mut scaled = scaled_object(name, &[]);
    let target = scaled.scaler_metadata.remove("targetGpuUtilization").unwrap();
    scaled.scaler_metadata.insert("targetMemoryUtilization".into(), target);
    scaled
}

/// Case O09. That the refusal names MIG is the gateway's to test.
#[tokio::test]
async fn instances_of_an_a100_have_memory_of_their_own_and_no_utilisation() {
    let binaries = binaries();
    let folder = tempfile::tempdir().unwrap();
    let gateway = Gateway::start(&binaries, &folder, TWO);
    let gpu = json!({
        "uuid": "GPU-u1", "name": "NVIDIA A100-SXM4-40GB", "mig": [1, 1], "utilization": [93, 40],
        "memory": [40_536 * MIB, 0, 20_100 * MIB], "temperature": 50, "power": 250_000,
        "instances": [slice(0, "MIG-m1", 18_000), slice(3, "MIG-m2", 2_000)],
    });
    let fake = FakeNvml::new(&machine(&[gpu]));
    let pods = [("MIG-m1".to_owned(), "a-0"), ("MIG-m2".to_owned(), "b-0")];
    let mut run = run_agent(&binaries, &gateway, "n1");
    run.args(["--holders", &holders(&folder, "n1", &pods)]);
    run.arg("--nvml-library").arg(fake.path());
    let mut agents = [Process::start("n1", run, &folder)];

    for (name, percent) in [("a-so", 90.144), ("b-so", 10.016)] {
        let value = gateway.first_answer(&of_memory(name), &agents).await.metric_value_float;
        assert_eq!((value * 1e3).round() / 1e3, percent, "{name}");
    }
    let on_utilization = scaled_object("a-so", &[]);
    let refusal = gateway.ask(&on_utilization).await.unwrap_err();
    let refusal = refusal.downcast_ref::<Status>().unwrap();
    assert_eq!(refusal.code(), Code::FailedPrecondition, "{refusal:?}");
    assert!(refusal.message().contains("memory_used_percent"), "{refusal:?}");
    let mut client =
        ExternalScalerClient::connect(format!("http://{}", gateway.keda)).await.unwrap();
    let refusal = client.is_active(on_utilization).await.unwrap_err();
    assert_eq!(refusal.code(), Code::FailedPrecondition, "never false: {refusal:?}");
    let status = agents[0].terminate().await;
    assert!(status.success(), "{status}");
}
