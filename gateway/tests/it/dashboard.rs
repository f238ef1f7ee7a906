//! The dashboard's files, the live stream and the decision timeline, over real HTTP.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use http_body_util::{BodyExt as _, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::{HeaderMap, Request, Response, StatusCode};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};
use shared::metric::Metric;
use shared::reading::Reading;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use crate::support::{Node, TestAgent, TestGateway, eventually, gpu, soon};
use gateway::http::events::MAX_CLIENTS;
use gateway::timeline::MAX_TRIGGERS;

/// `ai/vllm` with one ready pod, scaled by the one trigger of `ai/vllm-so`.
const DECLARED: &str = "
workloads:
  - {namespace: ai, kind: Deployment, name: vllm, replicas: 1, pods: [{name: vllm-0, ready: true}]}
scaledObjects:
  - namespace: ai
    name: vllm-so
    target: {kind: Deployment, name: vllm}
    triggers: [{type: external-push, metadata: {activationWindow: '0s'}}]
";

async fn ask(address: SocketAddr, path: &str, headers: &[(&str, &str)]) -> Response<Incoming> {
    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    let mut request = Request::get(format!("http://{address}{path}"));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Empty::new()).expect("a request");
    soon(path, client.request(request)).await.expect("the HTTP port answers")
}

async fn text(answer: Response<Incoming>) -> String {
    let bytes =
        soon("the body", answer.into_body().collect()).await.expect("a whole body").to_bytes();
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

/// One client of the live stream.
struct Stream {
    body: Incoming,
    rest: String,
}

impl Stream {
    async fn open(gateway: &TestGateway) -> Self {
        let answer = ask(gateway.http, "/api/v1/events", &[]).await;
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.headers()["content-type"], "text/event-stream; charset=utf-8");
        assert_eq!(answer.headers()["cache-control"], "no-store");
        Self { body: answer.into_body(), rest: String::new() }
    }

    /// The next event: its name and data; `None` at the end.
    async fn next(&mut self) -> Option<(String, Value)> {
        loop {
            if let Some((event, rest)) = self.rest.split_once("\n\n") {
                let (name, data) = event.split_once('\n').expect("a name and data");
                let name = name.strip_prefix("event: ").expect("a name").to_owned();
                let data = data.strip_prefix("data: ").expect("data");
                let event = (name, serde_json::from_str(data).expect("JSON"));
                self.rest = rest.to_owned();
                return Some(event);
            }
            let frame = soon("an event", self.body.frame()).await?.expect("it is not broken off");
            let data = frame.into_data().expect("data");
            self.rest.push_str(std::str::from_utf8(&data).expect("whole characters"));
        }
    }

    /// The next event of that name.
    async fn event(&mut self, name: &str) -> Value {
        loop {
            let (known, data) = self.next().await.expect("the stream goes on");
            if known == name {
                return data;
            }
        }
    }
}

async fn one_pod() -> (TestGateway, TestAgent) {
    let gateway = TestGateway::start(DECLARED).await;
    // Said to speak seldom, so that nothing is stale on a machine with much else to do.
    let mut node = Node::new("n1")
        .with(gpu("u0", "ai/vllm-0", 40.0))
        .with(gpu("u1", "ai/x", 1.0).index(1).free())
        .engine("ai/vllm-0", Metric::RequestsWaiting, 3.0);
    node.interval = Duration::from_secs(10);
    let agent = gateway.agent(node).await;
    gateway.is_ready().await;
    (gateway, agent)
}

// === Files ===

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_browser_gets_the_page_and_anything_else_the_routes() {
    let gateway = TestGateway::start(DECLARED).await;
    let browser = [("accept", "text/html,application/xhtml+xml,*/*;q=0.8")];
    let page = ask(gateway.http, "/", &browser).await;
    assert_eq!(page.headers()["content-type"], "text/html; charset=utf-8");
    assert!(text(page).await.contains("<title>GPU gateway</title>"));
    for (path, headers) in [("/", &[][..]), ("/", &[("accept", "*/*")]), ("/api", &browser)] {
        let routes = ask(gateway.http, path, headers).await;
        assert_eq!(routes.headers()["content-type"], "text/plain; charset=utf-8");
        let is_api = path == "/api";
        assert_eq!(routes.headers().contains_key("cache-control"), is_api, "{path}");
        assert!(text(routes).await.contains("/api/v1/scaledobjects/NAMESPACE/NAME/timeline"));
    }
}

fn is_locked(headers: &HeaderMap) {
    let policy = headers["content-security-policy"].to_str().expect("text");
    for rule in
        ["default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'"]
    {
        assert!(policy.contains(rule), "{rule} in {policy}");
    }
    assert!(policy.contains("frame-ancestors 'none'") && !policy.contains("unsafe"), "{policy}");
    assert_eq!(headers["x-content-type-options"], "nosniff");
    assert_eq!(headers["referrer-policy"], "no-referrer");
    assert_eq!(headers["x-frame-options"], "DENY");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_asset_is_served_under_the_policy_and_asks_for_nothing_elsewhere() {
    let gateway = TestGateway::start(DECLARED).await;
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets");
    let mut served = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let content = std::fs::read_to_string(&path).unwrap();
        let foreign =
            content.replace("http://www.w3.org/2000/svg", "").replace("http://THIS-HOST", "");
        assert!(!foreign.contains("http://") && !foreign.contains("https://"), "{name}");
        for raw in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("] {
            assert!(!content.contains(raw), "{name} has {raw}");
        }
        if name == "index.html" {
            assert!(!content.contains("style=") && !content.contains("<script>"), "nothing inline");
            continue;
        }
        let answer = ask(gateway.http, &format!("/assets/{name}"), &[]).await;
        assert_eq!(answer.status(), 200, "{name}");
        is_locked(answer.headers());
        let tag = answer.headers()["etag"].to_str().unwrap().to_owned();
        let again = async |known: &str| {
            let known = [("if-none-match", known)];
            ask(gateway.http, &format!("/assets/{name}"), &known).await.status()
        };
        for known in [&tag, &format!("W/{tag}"), &format!("\"other\", W/{tag}"), "*"] {
            assert_eq!(again(known).await, StatusCode::NOT_MODIFIED, "{name}: {known}");
        }
        assert_eq!(again("W/\"other\"").await, 200, "{name}");
        assert_eq!(text(answer).await, content, "{name}");
        served += 1;
    }
    assert!(served > 10, "{served}");
    let page = ask(gateway.http, "/", &[("accept", "text/html")]).await;
    is_locked(page.headers());
    for path in ["/assets/", "/assets/nothing.js", "/assets/..%2fCargo.toml", "/assets/index.html"]
    {
        assert_eq!(gateway.get(path).await.0, 404, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_cache_keeps_what_the_api_says() {
    let gateway = TestGateway::start(DECLARED).await;
    for path in ["nodes", "pods", "workloads", "ledger", "events", "scaledobjects/ai/no/explain"] {
        let answer = ask(gateway.http, &format!("/api/v1/{path}"), &[]).await;
        assert_eq!(answer.headers()["cache-control"], "no-store", "{path}");
        assert_eq!(answer.headers()["x-content-type-options"], "nosniff", "{path}");
    }
}

// === Live ===

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_stream_begins_with_the_shape_and_follows_with_readings_and_decisions() {
    let (gateway, agent) = one_pod().await;
    let mut stream = Stream::open(&gateway).await;
    let (first, shape) = stream.next().await.unwrap();
    assert_eq!(first, "shape");
    let device = &shape["nodes"][0]["gpus"][0];
    assert_eq!(device["uuid"], "u0");
    assert_eq!(device["holders"][0]["by"], json!(["vllm-so"]));
    let tick = stream.event("tick").await;
    assert_eq!(tick["states"], "oo");
    assert_eq!(tick["readings"]["gpu_utilization"], json!([40.0, 1.0]));
    assert_eq!(
        tick["readings"]["power_draw"],
        Value::Null,
        "a metric that nobody has is not there"
    );
    agent.reads("u0", 77.0);
    eventually("the reading arrives", async || {
        let reading = stream.event("tick").await["readings"]["gpu_utilization"][0].clone();
        if reading == 77.0 { Ok(()) } else { Err(reading) }
    })
    .await;
    eventually("the decision arrives", async || {
        let trigger = stream.event("tick").await["triggers"][0].clone();
        if trigger["value"] == 77.0 { Ok(trigger) } else { Err(trigger) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shape_is_sent_again_when_it_changes_and_a_failed_reading_is_null_with_its_reason() {
    let (gateway, agent) = one_pod().await;
    let mut stream = Stream::open(&gateway).await;
    stream.event("shape").await;
    agent.change(|node| {
        let gone = Reading::Failed("GPU is lost".into());
        *node.gpu("u0") = node.gpu("u0").clone().free().reading(Metric::GpuUtilization, gone);
    });
    let shape = stream.event("shape").await;
    assert_eq!(shape["nodes"][0]["gpus"][0]["holders"], json!([]));
    let tick = eventually("the device is marked", async || {
        let tick = stream.event("tick").await;
        if tick["states"] == "fo" { Ok(tick) } else { Err(tick) }
    })
    .await;
    assert_eq!(tick["why"]["0"], "gpu_utilization: GPU is lost");
    assert_eq!(tick["readings"]["gpu_utilization"], json!([null, 1.0]));
    assert_eq!(tick["failed"], json!([1]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_are_bounded_a_place_becomes_free_and_slow_ones_delay_nobody() {
    let (gateway, agent) = one_pod().await;
    let mut slow = Vec::new();
    for _ in 0..MAX_CLIENTS - 1 {
        // Opened, and never read from.
        let mut socket = TcpStream::connect(gateway.http).await.unwrap();
        socket.write_all(b"GET /api/v1/events HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        slow.push(socket);
    }
    let mut last = Stream::open(&gateway).await;
    let one_more = async || ask(gateway.http, "/api/v1/events", &[]).await;
    let refused = eventually("all places are taken", async || {
        let answer = one_more().await;
        if answer.status() == 503 { Ok(answer) } else { Err(answer.status()) }
    })
    .await;
    assert_eq!(refused.headers()["retry-after"], "10");
    assert!(text(refused).await.contains("64 streams"));
    agent.reads("u0", 66.0);
    eventually("the last one is served", async || {
        let tick = last.event("tick").await;
        if tick["readings"]["gpu_utilization"][0] == 66.0 { Ok(()) } else { Err(()) }
    })
    .await;
    slow.clear();
    eventually("there is room again", async || {
        let status = one_more().await.status();
        if status == 200 { Ok(()) } else { Err(status) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_end_at_shutdown() {
    let (gateway, _agent) = one_pod().await;
    let mut stream = Stream::open(&gateway).await;
    stream.event("tick").await;
    gateway.begin_shutdown();
    soon("the stream ends", async { while stream.next().await.is_some() {} }).await;
    gateway.has_stopped().await.unwrap();
}

// === Timeline ===

fn entries(timeline: &Value) -> &Vec<Value> {
    timeline["triggers"][0]["entries"].as_array().expect("entries")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_timeline_tells_what_changed_why_and_with_which_inputs() {
    let (gateway, agent) = one_pod().await;
    let path = "/api/v1/scaledobjects/ai/vllm-so/timeline";
    let newest = async |what: &str, is: &dyn Fn(&Value) -> bool| {
        eventually(what, async || {
            let (status, body) = gateway.get(path).await;
            let timeline: Value =
                serde_json::from_str(&body).map_err(|e| format!("{status} {e}"))?;
            let found = timeline["triggers"][0]["entries"].as_array();
            let found = found.and_then(|entries| entries.last()).is_some_and(is);
            if found { Ok(timeline) } else { Err(body) }
        })
        .await
    };
    newest("a value", &|entry| entry["status"] == "OK").await;
    agent.reads("u0", 95.0);
    let timeline = newest("the HPA wants two", &|entry| entry["desired"] == 2).await;
    let entry = entries(&timeline).last().unwrap();
    for (key, value) in [
        ("changed", json!(["desired", "direction"])),
        ("enginePodsUnread", json!(0)),
        ("value", json!(95.0)),
        ("target", json!(80.0)),
        ("unit", json!("%")),
        ("active", json!(true)),
        ("replicas", json!(1)),
        ("ready", json!(1)),
        ("unscheduled", json!(0)),
        ("hold", json!(80.0)),
        ("requestsWaiting", json!(3.0)),
        ("requestsRunning", json!(null)),
        ("tokensPerSecond", json!(null)),
        ("gpusFree", json!(1)),
    ] {
        assert_eq!(entry[key], value, "{key} of {entry}");
    }
    assert!(entry["reason"].as_str().unwrap().contains("1 of 1 replica reports"), "{entry}");
    assert!(entry["at"].as_str().unwrap().ends_with('Z'));
    agent.reads("u0", 0.0);
    agent.change(|node| node.engine_reads("ai/vllm-0", Metric::RequestsWaiting, Reading::Ok(0.0)));
    let trigger = &timeline["triggers"][0];
    assert_eq!(trigger["history"]["everySeconds"], 5);
    let columns = trigger["history"]["columns"].as_object().unwrap();
    let lengths: Vec<_> = columns.values().map(|c| c.as_array().unwrap().len()).collect();
    assert!(lengths.iter().all(|length| *length == lengths[0] && *length > 0), "{lengths:?}");
    newest("it is idle", &|entry| entry["active"] == false && entry["desired"] == 1).await;
    let labels = "scaledobject=\"vllm-so\"";
    let activations =
        async || gateway.metric("gpu_gateway_trigger_activations_total", labels).await;
    assert_eq!(activations().await, 0.0, "it was active from the start: no edge");
    agent.reads("u0", 50.0);
    newest("it is active again", &|entry| entry["active"] == true).await;
    assert_eq!(activations().await, 1.0);
    let changes = gateway.metric("gpu_gateway_trigger_changes_total", labels).await;
    assert!(changes >= 4.0, "{changes}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scaled_object_that_is_gone_leaves_no_timeline_and_no_series() {
    let (gateway, _agent) = one_pod().await;
    let path = "/api/v1/scaledobjects/ai/vllm-so/timeline";
    let until = async |status: u16| {
        eventually("the timeline comes and goes", async || {
            let (now, body) = gateway.get(path).await;
            if now == status { Ok(()) } else { Err(body) }
        })
        .await;
    };
    until(200).await;
    gateway.rewrite("workloads: []\nscaledObjects: []\n");
    until(404).await;
    let (_, metrics) = gateway.get("/metrics").await;
    assert!(!metrics.contains("gpu_gateway_trigger_changes_total{"), "{metrics}");
    assert_eq!(gateway.get("/api/v1/scaledobjects/ai/unknown/timeline").await.0, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn triggers_that_there_is_no_room_for_are_counted_wherever_they_are_missed() {
    let mut directory = String::from("scaledObjects:\n");
    for at in 0..=MAX_TRIGGERS {
        let name = format!("so-{at:04}");
        directory += &format!("  - {{namespace: ai, name: {name}, target: {{name: {name}}}, ");
        directory += "triggers: [{metadata: {}}]}\n";
    }
    let gateway = TestGateway::start(&directory).await;
    let mut stream = Stream::open(&gateway).await;
    let tick = eventually("all are looked at", async || {
        let tick = stream.event("tick").await;
        if tick["triggersLeftOut"] == 1 { Ok(tick) } else { Err(tick["triggersLeftOut"].clone()) }
    })
    .await;
    assert_eq!(tick["triggers"].as_array().unwrap().len(), MAX_TRIGGERS);
    let (status, body) = gateway.get("/api/v1/scaledobjects/ai/so-2000/timeline").await;
    assert_eq!(status, 404);
    assert!(
        body.contains("one of the 1 that there is no room for beside 2000 timelines"),
        "{body}"
    );
    assert_eq!(gateway.metric("gpu_gateway_timelines", "").await, 2_000.0);
    assert_eq!(gateway.metric("gpu_gateway_timelines_left_out", "").await, 1.0);
}
