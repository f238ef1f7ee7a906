//! Triggers on engine metrics, from what agents say of scraped pages to KEDA's calls.

use std::sync::Arc;
use std::time::Duration;

use proto::convert::{inventory_to_wire, sample_to_wire};
use proto::uplink::agent_message::Body;
use shared::frame::{Engine, EngineSample, Inventory, Sample};
use shared::metric::Metric;
use shared::reading::Reading;
use tonic::Code;

use crate::support::{Node, TestGateway, Uplink, gpu, pod, refused};

const FOUR_PODS: &str = "
workloads:
  - namespace: ml
    kind: Deployment
    name: llm
    replicas: 4
    pods: [{name: a, ready: true}, {name: b, ready: true}, {name: c, ready: true}, {name: d, ready: true}]
scaledObjects:
  - {namespace: ml, name: llm, target: {kind: Deployment, name: llm}}
";

const ONE_POD: &str = "
workloads:
  - {namespace: ml, kind: Deployment, name: llm, replicas: 1, pods: [{name: a, ready: true}]}
scaledObjects:
  - {namespace: ml, name: llm, target: {kind: Deployment, name: llm}}
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_pods_engine_answers_503_o03() {
    let gateway = TestGateway::start(FOUR_PODS).await;
    let waiting = Metric::RequestsWaiting;
    let both = Node::new("n1").engine("ml/a", waiting, 8.0).engine("ml/b", waiting, 8.0);
    let mut other = Node::new("n2").engine("ml/c", waiting, 8.0);
    other.engine_reads("ml/d", waiting, Reading::Failed(":8000/metrics: HTTP 503".into()));
    let agents = [gateway.agent(both).await, gateway.agent(other).await];
    let metadata = [("metricType", "vllm:num_requests_waiting:5")];
    let trigger = gateway.trigger("ml/llm", &metadata).await;
    assert_eq!(trigger.spec().await.unwrap().target_size_float, 5.0);
    trigger.becomes(24.0).await;
    let explained = gateway.explain("ml/llm").await;
    assert_eq!(explained["coverage"]["reporting"], 3, "{explained}");
    assert_eq!(explained["coverage"]["missing"], 1, "{explained}");
    assert_eq!(explained["hpa"]["desired"], 5, "{explained}");
    assert_eq!(explained["pods"][3]["why"], ":8000/metrics: HTTP 503", "{explained}");
    for (agent, pods) in agents.iter().zip([&["ml/a", "ml/b"][..], &["ml/c"]]) {
        agent.change(|node| {
            pods.iter().for_each(|pod| node.engine_reads(pod, waiting, Reading::Ok(1.0)));
        });
    }
    trigger.becomes(8.0).await;
    assert_eq!(gateway.explain("ml/llm").await["hpa"]["desired"], 2);
    assert!(trigger.is_active().await.unwrap());
}

/// What an agent says of pod `ml/a`'s engine: per selection the queue.
fn selections(rows: &[(&str, Reading)]) -> [Body; 2] {
    let engine = |labels: &str| Engine { pod: pod("ml/a"), uid: None, labels: labels.into() };
    let engines = rows.iter().map(|(labels, _)| engine(labels)).collect();
    let samples = rows.iter().map(|(_, waiting)| {
        let readings = [(Metric::RequestsWaiting, waiting.clone())].into_iter().collect();
        Some(EngineSample { age: Duration::ZERO, readings })
    });
    let sample = Sample { engines: samples.collect(), ..Sample::default() };
    let inventory = Inventory { engines, ..Inventory::default() };
    [
        Body::Inventory(inventory_to_wire(1, &inventory)),
        Body::Sample(sample_to_wire(1, &sample, Duration::ZERO)),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_models_of_one_server_are_read_apart() {
    let gateway = TestGateway::start(ONE_POD).await;
    let none: Arc<str> = "no series of vLLM has model_name=z; model_name is one of: a, b".into();
    let mut agent = Uplink::open(gateway.agents).await;
    agent.say(Node::new("n1").hello()).await;
    agent.welcome().await.unwrap();
    for body in selections(&[
        ("model_name=a", Reading::Ok(9.0)),
        ("model_name=b", Reading::Ok(3.0)),
        ("model_name=z", Reading::Failed(none.clone())),
        ("", Reading::Ok(12.0)),
    ]) {
        agent.say(body).await;
    }
    let keda = gateway.connect().await;
    let with = |labels: Option<&'static str>| {
        let base = [("metricType", "requests_waiting:5"), ("staleAfter", "10m")];
        let labels = labels.map(|labels| ("engineLabels", labels));
        keda.trigger("ml/llm", &base.into_iter().chain(labels).collect::<Vec<_>>())
    };
    with(Some("model_name=a")).becomes(9.0).await;
    with(Some("model_name=b")).becomes(3.0).await;
    with(None).becomes(12.0).await;
    refused(with(Some("model_name=z")).value().await, Code::Unavailable, &[&none]);
    gateway.is_ready().await;
    refused(with(Some("model_name=y")).value().await, Code::Unavailable, &["model_name=y"]);
    refused(with(Some("model_name=z")).is_active().await, Code::Unavailable, &[&none]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_is_not_read_is_unknown_with_the_reason() {
    let gateway = TestGateway::start(
        "
workloads:
  - namespace: ml
    kind: Deployment
    name: llm
    replicas: 1
    pods: [{name: a, ready: true, ip: 10.0.0.1}]
  - namespace: ml
    kind: Deployment
    name: shy
    replicas: 1
    pods: [{name: b, ready: true, ip: 10.0.0.2, annotations: {prometheus.io/scrape: 'false'}}]
scaledObjects:
  - {namespace: ml, name: llm, target: {kind: Deployment, name: llm}}
  - {namespace: ml, name: shy, target: {kind: Deployment, name: shy}}
",
    )
    .await;
    let node = Node::new("n1").with(gpu("u1", "ml/a", 50.0)).with(gpu("u2", "ml/b", 50.0));
    let _agent = gateway.agent(node).await;
    gateway.is_ready().await;
    let keda = gateway.connect().await;
    for (object, why) in [
        ("ml/llm", "pod (a): its engine has not been read yet"),
        ("ml/shy", "pod (b): its annotation prometheus.io/scrape says false"),
    ] {
        let trigger = keda.trigger(object, &[("profile", "vllm")]);
        refused(trigger.value().await, Code::Unavailable, &[why]);
        refused(trigger.is_active().await, Code::Unavailable, &[why]);
        keda.trigger(object, &[]).becomes(50.0).await;
    }
    let named = [("profile", "vllm"), ("vllmEndpoint", "http://svc:8000/metrics")];
    let why = "pod (b): its engine has not been read yet";
    refused(keda.trigger("ml/shy", &named).value().await, Code::Unavailable, &[why]);
}
