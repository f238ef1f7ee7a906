//! What is scraped of devices, workloads and demand.

use std::time::Duration;

use proto::convert::{inventory_to_wire, sample_to_wire};
use proto::uplink::agent_message::Body;
use shared::metric::Metric;
use shared::reading::Reading;

use crate::demand::{self, TestRouter};
use crate::support::{Node, TestGateway, Uplink, eventually, gpu};

const LLM: &str = "{namespace=\"ml\",kind=\"Deployment\",workload=\"llm\"}";

/// Waits until the page has every line of `wanted`, and returns it.
async fn page_with(gateway: &TestGateway, wanted: &[String]) -> String {
    eventually("the series are there", async || {
        let (_, page) = gateway.get("/metrics").await;
        match wanted.iter().find(|line| !page.lines().any(|shown| shown == **line)) {
            None => Ok(page),
            Some(missing) => Err(format!("{missing} in {page}")),
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_engines_say_is_added_up_without_the_pods_that_are_not_read() {
    let gateway = TestGateway::start(
        "
workloads:
  - namespace: ml
    kind: Deployment
    name: llm
    replicas: 5
    pods:
      - {name: a, ready: true}
      - {name: b, ready: true}
      - {name: broken, ready: true}
      - {name: silent, ready: true}
      - {name: waits, ready: false, unscheduled: no GPU}
  - {namespace: ml, kind: Deployment, name: plain, replicas: 1, pods: [{name: p, ready: true}]}
scaledObjects:
  - {namespace: ml, name: llm, target: {name: llm}, triggers: [{metadata: {metricType: 'requests_waiting:5'}}]}
  - {namespace: ml, name: plain, target: {name: plain}, triggers: [{metadata: {targetValue: '70'}}]}
",
    )
    .await;
    let mut node = Node::new("n1").with(gpu("u1", "ml/p", 50.0));
    for (pod, waiting, first_token, cache) in
        [("ml/a", 6.0, 100.0, 20.0), ("ml/b", 8.0, 300.0, 60.0)]
    {
        node.engine_reads(pod, Metric::RequestsWaiting, Reading::Ok(waiting));
        node.engine_reads(pod, Metric::TimeToFirstTokenMs, Reading::Ok(first_token));
        node.engine_reads(pod, Metric::KvCacheUsage, Reading::Ok(cache));
    }
    node.engine_reads("ml/broken", Metric::RequestsWaiting, Reading::Failed("HTTP 503".into()));
    let _agent = gateway.agent(node).await;
    let wanted = [
        ("workload_requests_waiting", 14.0),
        ("workload_time_to_first_token_seconds", 0.2),
        ("workload_kv_cache_usage_ratio", 0.4),
        ("workload_engine_pods_unread", 2.0),
        ("workload_pods_ready", 4.0),
        ("workload_pods_unscheduled", 1.0),
    ];
    let mut wanted: Vec<_> =
        wanted.iter().map(|(name, value)| format!("gpu_gateway_{name}{LLM} {value:?}")).collect();
    let scales = "namespace=\"ml\",scaledobject=\"llm\",kind=\"Deployment\",workload=\"llm\"";
    wanted.push(format!("gpu_gateway_scaledobject_info{{{scales}}} 1.0"));
    let page = page_with(&gateway, &wanted).await;
    for unknown in ["workload_requests_running{", "workload_tokens_per_second{"] {
        assert!(!page.contains(unknown), "{unknown} in {page}");
    }
    let plain = LLM.replace("llm", "plain");
    for (series, is_there) in [("pods_ready", true), ("engine_pods_unread", false)] {
        let series = format!("workload_{series}{plain}");
        assert_eq!(page.contains(&series), is_there, "{series} in {page}");
    }
    crate::http::check_exposition(&page);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reading_that_is_not_fresh_is_absent_while_its_age_goes_on() {
    let gateway = TestGateway::start("workloads: []\n").await;
    let read = |uuid| {
        let gpu = gpu(uuid, "ml/a", 50.0).reads(Metric::Temperature, 61.0);
        gpu.reads(Metric::PowerDraw, 512.5).reads(Metric::ThrottledPercent, 25.0)
    };
    let mut node = Node::new("n1").with(read("fresh")).with(read("old"));
    // Three of these may pass before a reading is not fresh any more.
    node.interval = Duration::from_secs(60);
    let mut sample = node.sample();
    let old = sample.devices[1].as_mut().unwrap();
    old.age = Duration::from_secs(3_600);
    let mut agent = Uplink::open(gateway.agents).await;
    agent.say(node.hello()).await;
    agent.welcome().await.unwrap();
    agent.say(Body::Inventory(inventory_to_wire(1, &node.inventory()))).await;
    agent.say(Body::Sample(sample_to_wire(1, &sample, Duration::ZERO))).await;
    let of = |uuid: &str, name: &str, value: f64| {
        format!("gpu_gateway_device_{name}{{node=\"n1\",gpu_uuid=\"{uuid}\"}} {value:?}")
    };
    let readings = [
        ("utilization_ratio", 0.5),
        ("temperature_celsius", 61.0),
        ("power_watts", 512.5),
        ("throttled_ratio", 0.25),
    ];
    let wanted = readings.map(|(name, value)| of("fresh", name, value));
    let page = page_with(&gateway, &wanted).await;
    for (name, _) in readings {
        let series = of("old", name, 0.0);
        let series = series.split(' ').next().unwrap();
        assert!(!page.contains(series), "{series} in {page}");
    }
    let age = page.lines().find(|line| line.contains("device_age_seconds") && line.contains("old"));
    let age: f64 = age.unwrap().rsplit_once(' ').unwrap().1.parse().unwrap();
    assert!(age >= 3_600.0, "{age}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn demand_is_shown_while_it_is_known() {
    let router = TestRouter::start("q 3\n").await;
    let directory = format!(
        "
workloads: [{{namespace: ml, kind: Deployment, name: llm, replicas: 0}}]
scaledObjects:
  - namespace: ml
    name: llm
    target: {{name: llm}}
    triggers: [{{metadata: {{demandMetric: q, demandEndpoint: '{}/metrics'}}}}, {{metadata: {{}}}}]
",
        router.origin()
    );
    let gateway = demand::gateway(&directory, &[&router]).await;
    let of = |place: u32| {
        format!(
            "{{namespace=\"ml\",scaledobject=\"llm\",trigger=\"{place}\",metric=\"gpu_utilization\"}}"
        )
    };
    let wanted = [
        format!("gpu_gateway_trigger_demand{} 3.0", of(0)),
        format!("gpu_gateway_trigger_asleep_and_deaf{} 0.0", of(0)),
        format!("gpu_gateway_trigger_asleep_and_deaf{} 1.0", of(1)),
    ];
    let page = page_with(&gateway, &wanted).await;
    assert!(!page.contains(&format!("gpu_gateway_trigger_demand{}", of(1))), "{page}");
}
