//! From zero and back to scraped pages: demand at a router wakes a workload, and what its pods'
//! engines say carries on.

use loadtest::router::{Router, SERIES};
use serde_json::json;
use tonic::Code;

use crate::scene::{Scene, ip, sites};
use crate::site::{page, response};

/// The Deployment `ml/llm` with these replicas and pods.
fn directory(replicas: u32, pods: &str, declared: &serde_json::Value) -> String {
    format!(
        "workloads:
  - {{namespace: ml, kind: Deployment, name: llm, replicas: {replicas}, pods: [{pods}]}}
scaledObjects:
  - {{namespace: ml, name: llm, target: {{kind: Deployment, name: llm}}, minReplicas: 0, triggers: [
      {{type: external-push, metadata: {declared}}}]}}
"
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o08_a_router_wakes_a_workload_and_its_engine_takes_over() {
    let router = Router::start().await.unwrap();
    let (pages, port) = sites(vec![response("503 Service Unavailable", "text/plain", "")]).await;
    let metadata = [
        ("metricType", "requests_waiting".to_owned()),
        ("targetValue", "5".to_owned()),
        ("activationWindow", "1s".to_owned()),
        ("vllmEndpoint", format!("http://vllm:{port}/metrics")),
        ("demandEndpoint", format!("{}/metrics", router.origin())),
        ("demandMetric", SERIES.to_owned()),
    ];
    let metadata = metadata.each_ref().map(|(key, value)| (*key, value.as_str()));
    let declared = json!(std::collections::BTreeMap::from(metadata));
    let cluster = |replicas, pods: &str| directory(replicas, pods, &declared);
    let scene = Scene::with_demand(&["n1"], &cluster(0, ""), vec![router.origin()]).await;

    let trigger = scene.trigger("llm", &metadata);
    trigger.turns(false).await;
    trigger.becomes(0.0).await;
    let mut stream = trigger.stream().await;
    router.holds(3);
    let first = stream.message().await.unwrap().unwrap();
    assert!(first.result, "only activity is pushed");
    trigger.turns(true).await;
    trigger.becomes(3.0).await;

    // A pod loads: it holds the value at its target, and is not taken for idle.
    let pod = format!("name: llm-0, uid: uid-llm-0, node: n1, ip: {}", ip(1));
    scene.becomes(&cluster(1, &format!("{{{pod}, ready: false, ageSeconds: 1}}")));
    trigger.becomes(5.0).await;
    router.holds(0);
    assert!(trigger.is_active().await.unwrap());

    // It serves: its page counts from now on.
    pages[0].says(page("vllm:num_requests_waiting 12.0\nvllm:num_requests_running 30.0\n"));
    scene.becomes(&cluster(1, &format!("{{{pod}, ready: true}}")));
    trigger.becomes(12.0).await;
    scene.explained("llm", |seen| seen["hpa"]["desired"] == 3).await;
    pages[0].says(page("vllm:num_requests_waiting 0.0\nvllm:num_requests_running 0.0\n"));
    trigger.becomes(0.0).await;
    trigger.turns(false).await;
    // Not known is not idle.
    pages[0].says(response("500 Internal Server Error", "text/plain", ""));
    trigger.fails(Code::Unavailable, &["HTTP 500"]).await;

    scene.becomes(&cluster(0, ""));
    trigger.turns(false).await;
    router.holds(1);
    while !stream.message().await.unwrap().unwrap().result {}
    trigger.turns(true).await;
}
