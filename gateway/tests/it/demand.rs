//! Demand from outside: real HTTP servers as routers, from zero to the stream and back.

#![expect(clippy::unwrap_used, reason = "what a test cannot do without may end it")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use gateway::config::ServeConfig;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tonic::Code;

use crate::support::{Node, TestGateway, Trigger, eventually, gpu, refused, soon};

/// `ai/vllm` at zero, scaled by `ai/vllm-so`.
pub(crate) const AT_ZERO: &str = "
workloads:
  - {namespace: ai, kind: Deployment, name: vllm, replicas: 0}
scaledObjects:
  - {namespace: ai, name: vllm-so, target: {kind: Deployment, name: vllm}}
  - {namespace: ai, name: gone-so, target: {kind: Deployment, name: gone}}
";

/// The page of a router, and how often it was read.
#[derive(Clone)]
pub(crate) struct TestRouter {
    pub(crate) address: SocketAddr,
    page: TestPage,
    server: Arc<JoinHandle<()>>,
}

#[derive(Clone)]
struct TestPage {
    status: Arc<Mutex<(StatusCode, String)>>,
    looks: Arc<AtomicUsize>,
}

impl TestRouter {
    pub(crate) async fn start(page: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let status = Arc::new(Mutex::new((StatusCode::OK, page.to_owned())));
        let page = TestPage { status, looks: Arc::default() };
        let app = Router::new().fallback(Self::look).with_state(page.clone());
        let server = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { address, page, server: Arc::new(server) }
    }

    async fn look(State(page): State<TestPage>) -> Response {
        let look = page.looks.fetch_add(1, Ordering::SeqCst);
        let (status, text) = page.status.lock().clone();
        if status.is_redirection() {
            return (status, [(header::LOCATION, text)]).into_response();
        }
        let text = text.replace("LOOK", &look.to_string());
        (status, [(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response()
    }

    /// Something else that listens at `address`.
    pub(crate) fn at(&self, address: SocketAddr) -> Self {
        Self { address, ..self.clone() }
    }

    pub(crate) fn origin(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn says(&self, page: &str) {
        self.answers(StatusCode::OK, page);
    }

    pub(crate) fn answers(&self, status: StatusCode, page: &str) {
        *self.page.status.lock() = (status, page.to_owned());
    }

    pub(crate) fn looks(&self) -> usize {
        self.page.looks.load(Ordering::SeqCst)
    }

    /// Waits until it was read so many times more.
    pub(crate) async fn is_read(&self, times: usize) {
        let before = self.looks();
        eventually("the page is read", async || match self.looks() {
            looks if looks >= before + times => Ok(()),
            looks => Err(looks),
        })
        .await;
    }

    fn stop(&self) {
        self.server.abort();
    }
}

pub(crate) async fn gateway(directory: &str, allow: &[&TestRouter]) -> TestGateway {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("directory.yaml");
    std::fs::write(&file, directory).unwrap();
    let mut config = ServeConfig::local(file);
    config.demand_allow = allow.iter().map(|router| router.origin()).collect();
    TestGateway::try_start_with(folder, config).await.unwrap()
}

/// [`AT_ZERO`] with a trigger that has the series `q` of `router` as its demand.
fn declared(router: &TestRouter) -> String {
    AT_ZERO.replace(
        "name: vllm}}\n",
        &format!(
            "name: vllm}}, triggers: [{{metadata: {{staleAfter: 1s, demandMetric: q, demandEndpoint: \
             \"{}/metrics\"}}}}]}}\n",
            router.origin()
        ),
    )
}

/// A trigger of `object` whose demand is the series `q` of `router`, and `more`.
pub(crate) async fn trigger(
    gateway: &TestGateway,
    router: &TestRouter,
    object: &str,
    more: &[(&str, &str)],
) -> Trigger {
    let endpoint = format!("{}/metrics", router.origin());
    let own = [("demandEndpoint", endpoint.as_str()), ("demandMetric", "q")];
    let own = own.into_iter().filter(|(key, _)| more.iter().all(|(other, _)| other != key));
    let metadata: Vec<_> = own.chain(more.iter().copied()).collect();
    gateway.trigger(object, &metadata).await
}

async fn is(trigger: &Trigger, active: bool) {
    eventually(&format!("active is {active}"), async || match trigger.is_active().await {
        Ok(now) if now == active => Ok(()),
        other => Err(other),
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o08_a_router_s_series_wakes_a_workload_at_zero() {
    let router = TestRouter::start("q{model=\"m\"} 0\n").await;
    let gateway = gateway(AT_ZERO, &[&router]).await;
    let cannot_wake = [("metricType", "memory_used_percent"), ("activationThreshold", "5")];
    let before = gateway.trigger("ai/vllm-so", &cannot_wake).await;
    assert_eq!(before.value().await.unwrap(), 0.0);
    assert!(!before.is_active().await.unwrap());

    let after = trigger(&gateway, &router, "ai/vllm-so", &cannot_wake).await;
    after.becomes(0.0).await;
    assert!(!after.is_active().await.unwrap());
    let mut stream = after.stream().await.unwrap();
    router.is_read(4).await;
    let silence = timeout(Duration::from_millis(100), stream.message()).await;
    assert!(silence.is_err(), "nothing is wanted");
    router.says("q{model=\"m\"} 3\n");
    let message = soon("a message", stream.message()).await.unwrap().unwrap();
    assert!(message.result);
    assert!(after.is_active().await.unwrap(), "whoever polls sees what the stream said");
    assert_eq!(after.value().await.unwrap(), 3.0);

    let gone = trigger(&gateway, &router, "ai/gone-so", &cannot_wake).await;
    refused(gone.value().await, Code::NotFound, &["gone"]);
    refused(gone.is_active().await, Code::NotFound, &["gone"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn demand_is_the_sum_of_what_is_selected_and_activity_is_strictly_above_the_threshold() {
    let page = "# TYPE q gauge\nq{m=\"a\",z=\"1\"} 1.5\nq{m=\"a\",z=\"2\"} 1.5\nq{m=\"b\"} 40\n";
    let router = TestRouter::start(page).await;
    let gateway = gateway(AT_ZERO, &[&router]).await;
    let keys = [("demandLabels", "m=a"), ("demandThreshold", "3")];
    let trigger = trigger(&gateway, &router, "ai/vllm-so", &keys).await;
    trigger.becomes(3.0).await;
    assert!(!trigger.is_active().await.unwrap(), "3 is not above 3");
    router.says("q{m=\"a\"} 3.001\n");
    trigger.becomes(3.001).await;
    assert!(trigger.is_active().await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_absent_series_is_an_error_or_zero_as_the_trigger_says() {
    let router = TestRouter::start("other 1\n").await;
    let gateway = gateway(AT_ZERO, &[&router]).await;
    let error = trigger(&gateway, &router, "ai/vllm-so", &[]).await;
    eventually("the page is read", async || match error.value().await {
        Err(status) if status.message().contains("no series q among its 1 series") => Ok(()),
        other => Err(other),
    })
    .await;
    refused(error.is_active().await, Code::Unavailable, &["no series q", "demandAbsent"]);
    let zero = trigger(&gateway, &router, "ai/vllm-so", &[("demandAbsent", "zero")]).await;
    zero.becomes(0.0).await;
    assert!(!zero.is_active().await.unwrap());
    router.says("q NaN\n");
    assert!(zero.fails(Code::Unavailable).await.contains("q is NaN on line 1"));
    router.says("q 2\n");
    zero.becomes(2.0).await;
    error.becomes(2.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_reasons_in_a_row_the_newest_is_said() {
    let router = TestRouter::start("q{r=\"a\"} 5\nq{r=\"b\"} -5\n").await;
    let gateway = gateway(AT_ZERO, &[&router]).await;
    let trigger = trigger(&gateway, &router, "ai/vllm-so", &[("staleAfter", "10m")]).await;
    let says = async |what: &str| {
        let status = eventually(what, async || match trigger.value().await {
            Err(status) if status.message().contains(what) => Ok(status),
            other => Err(other),
        });
        assert_eq!(status.await.code(), Code::Unavailable);
    };
    says("q is -5 on line 2").await;
    router.answers(StatusCode::INTERNAL_SERVER_ERROR, "");
    says("it answers 500").await;
    router.says("other 1\n");
    says("no series q among its 1 series").await;
    router.answers(StatusCode::SERVICE_UNAVAILABLE, "");
    says("it answers 503").await;
    router.says("q 2\n");
    trigger.becomes(2.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_counter_is_its_rate() {
    let router = TestRouter::start("# TYPE q counter\nq_total 7\n").await;
    let gateway = gateway(AT_ZERO, &[&router]).await;
    let keys = [("demandMetric", "q_total")];
    let trigger = trigger(&gateway, &router, "ai/vllm-so", &keys).await;
    trigger.becomes(0.0).await;
    assert!(!trigger.is_active().await.unwrap(), "7 once, long ago");
    let mut stream = trigger.stream().await.unwrap();
    router.says("# TYPE q counter\nq_total 1LOOK\n");
    assert!(soon("a message", stream.message()).await.unwrap().unwrap().result);
    is(&trigger, true).await;
    router.says("# TYPE q counter\nq_total 0\n");
    trigger.becomes(0.0).await;
    assert!(!trigger.is_active().await.unwrap(), "begun anew, and still");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_is_read_only_while_no_pod_is_ready() {
    let router = TestRouter::start("q 3\n").await;
    let gateway = gateway(AT_ZERO, &[&router]).await;
    let trigger = trigger(&gateway, &router, "ai/vllm-so", &[]).await;
    trigger.becomes(3.0).await;
    assert_eq!(gateway.metric("gpu_gateway_demand_sources", "").await, 1.0);

    let one = AT_ZERO
        .replace("replicas: 0}", "replicas: 1, pods: [{name: vllm-0, ready: true, node: n1}]}");
    gateway.rewrite(&one);
    let _agent = gateway.agent(Node::new("n1").with(gpu("u1", "ai/vllm-0", 50.0))).await;
    trigger.becomes(50.0).await;
    eventually("it is read no more", async || {
        trigger.value().await.unwrap();
        match gateway.metric("gpu_gateway_demand_sources", "").await {
            0.0 => Ok(()),
            sources => Err(sources),
        }
    })
    .await;
    let looks = router.looks();
    sleep(Duration::from_millis(1_200)).await;
    assert_eq!(router.looks(), looks);

    gateway.rewrite(AT_ZERO);
    trigger.becomes(3.0).await;
    gateway.rewrite("{}");
    eventually("nor for a ScaledObject that is gone", async || {
        match gateway.metric("gpu_gateway_demand_sources", "").await {
            0.0 => Ok(()),
            sources => Err(sources),
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_of_a_declared_trigger_is_read_before_anybody_asks() {
    let router = TestRouter::start("q 3\n").await;
    let at_zero = declared(&router).replace("staleAfter: 1s", "staleAfter: 10m");
    let gateway = gateway(&at_zero, &[&router]).await;
    // The second look begins when the first was taken.
    router.is_read(2).await;
    assert_eq!(gateway.metric("gpu_gateway_trigger_asleep_and_deaf", "vllm-so").await, 0.0);
    let trigger = trigger(&gateway, &router, "ai/vllm-so", &[("staleAfter", "10m")]).await;
    assert_eq!(trigger.value().await.unwrap(), 3.0);

    let one = "replicas: 1, pods: [{name: vllm-0, ready: true, node: n1}]}";
    gateway.rewrite(&at_zero.replace("replicas: 0}", one));
    eventually("it is read no more", async || {
        let before = router.looks();
        sleep(Duration::from_millis(1_200)).await;
        if router.looks() == before { Ok(()) } else { Err(before) }
    })
    .await;
    gateway.rewrite(&at_zero);
    router.is_read(2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_that_are_only_stuck_leave_it_to_the_demand() {
    let router = TestRouter::start("q 4\n").await;
    let stuck = AT_ZERO.replace(
        "replicas: 0}",
        "replicas: 1, pods: [{name: vllm-0, ready: false, unreadyForSeconds: 7200, ageSeconds: 7200}]}",
    );
    let gateway = gateway(&stuck, &[&router]).await;
    let trigger = trigger(&gateway, &router, "ai/vllm-so", &[]).await;
    trigger.becomes(4.0).await;
    assert!(trigger.is_active().await.unwrap());
    router.says("q 0\n");
    trigger.becomes(0.0).await;
    assert!(!trigger.is_active().await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scaled_job_s_value_is_its_demand_always() {
    let router = TestRouter::start("q 0\n").await;
    let job = "
scaledObjects:
  - {namespace: ai, name: batch, kind: ScaledJob, target: {kind: Job, name: batch}}
";
    let gateway = gateway(job, &[&router]).await;
    let none = gateway.trigger("ai/batch", &[]).await;
    refused(none.value().await, Code::FailedPrecondition, &["demandEndpoint"]);
    let trigger = trigger(&gateway, &router, "ai/batch", &[]).await;
    trigger.becomes(0.0).await;
    assert!(!trigger.is_active().await.unwrap());
    for jobs in [12.0, 5.0] {
        router.says(&format!("q {jobs}\n"));
        trigger.becomes(jobs).await;
        assert!(trigger.is_active().await.unwrap());
    }
    router.answers(StatusCode::INTERNAL_SERVER_ERROR, "");
    let brief = [("staleAfter", "1s")];
    let brief = self::trigger(&gateway, &router, "ai/batch", &brief).await;
    assert!(brief.fails(Code::Unavailable).await.contains("it answers 500"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_router_that_goes_away_leaves_the_workload_asleep_and_deaf_and_says_so() {
    let router = TestRouter::start("q 0\n").await;
    let deaf = "gpu_gateway_trigger_asleep_and_deaf";
    let gateway = gateway(&declared(&router), &[&router]).await;
    let trigger = trigger(&gateway, &router, "ai/vllm-so", &[("staleAfter", "1s")]).await;
    trigger.becomes(0.0).await;
    assert_eq!(gateway.metric(deaf, "vllm-so").await, 0.0);
    assert_eq!(gateway.explain("ai/vllm-so").await["warnings"].to_string(), "[]");

    router.stop();
    let why = trigger.fails(Code::Unavailable).await;
    assert!(why.contains("demand source is not known") && why.contains(&router.origin()), "{why}");
    refused(trigger.is_active().await, Code::Unavailable, &["demand source"]);
    assert_eq!(gateway.metric(deaf, "vllm-so").await, 1.0);
    let warnings = gateway.explain("ai/vllm-so").await["warnings"].to_string();
    assert!(warnings.contains("asleep and deaf"), "{warnings}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trigger_without_demand_at_zero_is_deaf_too() {
    let directory = AT_ZERO.replace("name: vllm}}\n", "name: vllm}, triggers: [{metadata: {}}]}\n");
    let gateway = gateway(&directory, &[]).await;
    let deaf = "gpu_gateway_trigger_asleep_and_deaf";
    assert_eq!(gateway.metric(deaf, "vllm-so").await, 1.0);
    let explained = gateway.explain("ai/vllm-so").await;
    assert_eq!((&explained["status"], &explained["value"]), (&"OK".into(), &0.0.into()));
    assert!(explained["warnings"].to_string().contains("asleep and deaf: without demandEndpoint"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_allowed_origins_are_outside_the_namespace() {
    let (allowed, other) = (TestRouter::start("q 1\n").await, TestRouter::start("q 1\n").await);
    let gateway = gateway(AT_ZERO, &[&allowed]).await;
    trigger(&gateway, &allowed, "ai/vllm-so", &[]).await.becomes(1.0).await;
    let literal = trigger(&gateway, &other, "ai/vllm-so", &[]).await;
    literal.is_refused(&["demandEndpoint", "of a Service, not an address"]).await;
    let keys = [("demandEndpoint", "http://router.infra:9090/metrics")];
    let elsewhere = trigger(&gateway, &other, "ai/vllm-so", &keys).await;
    elsewhere.is_refused(&["namespace infra", "--demand-allow http://router.infra:9090"]).await;
    assert_eq!(other.looks(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_page_is_read_once_for_all_and_one_object_has_sixteen_at_most() {
    let router = TestRouter::start("q 1\nr 2\n").await;
    let gateway = gateway(AT_ZERO, &[&router]).await;
    for at in 0..50 {
        let name = format!("n{at}");
        let keys =
            [("metricName", name.as_str()), ("demandMetric", if at < 25 { "q" } else { "r" })];
        let trigger = trigger(&gateway, &router, "ai/vllm-so", &keys).await;
        trigger.becomes(if at < 25 { 1.0 } else { 2.0 }).await;
    }
    assert_eq!(gateway.metric("gpu_gateway_demand_sources", "").await, 1.0);
    let mut refused = 0;
    for at in 0..20 {
        let endpoint = format!("{}/{at}", router.origin());
        let keys = [("demandEndpoint", endpoint.as_str())];
        let trigger = trigger(&gateway, &router, "ai/vllm-so", &keys).await;
        let why = trigger.value().await.unwrap_err();
        refused += usize::from(why.message().contains("16 pages"));
    }
    assert_eq!(refused, 5, "15 more are read");
    assert_eq!(gateway.metric("gpu_gateway_demand_sources", "").await, 16.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tens_of_thousands_of_series_are_summed_exactly() {
    let series: String = (0..40_000).map(|at| format!("q{{s=\"{at}\"}} 1\n")).collect();
    let router = TestRouter::start(&series).await;
    let gateway = gateway(AT_ZERO, &[&router]).await;
    trigger(&gateway, &router, "ai/vllm-so", &[]).await.becomes(40_000.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_streams_of_one_connection_are_woken_once_and_calls_go_on() {
    let router = TestRouter::start("q 0\n").await;
    let gateway = gateway(AT_ZERO, &[&router]).await;
    let trigger = trigger(&gateway, &router, "ai/vllm-so", &[]).await;
    trigger.becomes(0.0).await;
    let mut streams = Vec::new();
    for _ in 0..1_000 {
        streams.push(trigger.stream().await.unwrap());
    }
    assert_eq!(gateway.metric("gpu_gateway_rpc_streams", "StreamIsActive").await, 1_000.0);
    for _ in 0..100 {
        assert_eq!(trigger.value().await.unwrap(), 0.0, "beside 1,000 streams");
        assert!(!trigger.is_active().await.unwrap());
    }
    router.says("q 3\n");
    for stream in &mut streams {
        assert!(soon("a message", stream.message()).await.unwrap().unwrap().result);
    }
    for _ in 0..100 {
        assert_eq!(trigger.value().await.unwrap(), 3.0);
        assert!(trigger.is_active().await.unwrap());
    }
    gateway.begin_shutdown();
    for mut stream in streams {
        let end = async {
            while stream.message().await?.is_some() {}
            Ok::<_, tonic::Status>(())
        };
        soon("the stream ends", end).await.expect("with OK");
    }
    gateway.has_stopped().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_activation_that_was_dropped_is_repeated_only_while_the_target_is_at_zero() {
    let router = TestRouter::start("q 3\n").await;
    let gateway = gateway(AT_ZERO, &[&router]).await;
    let trigger = trigger(&gateway, &router, "ai/vllm-so", &[]).await;
    let mut stream = trigger.stream().await.unwrap();
    for message in ["on opening", "repeated", "and again"] {
        assert!(soon(message, stream.message()).await.unwrap().unwrap().result);
    }
    let woken =
        AT_ZERO.replace("replicas: 0}", "replicas: 1, pods: [{name: vllm-0, ready: false}]}");
    gateway.rewrite(&woken);
    eventually("a pod starts", async || {
        let reason = gateway.explain("ai/vllm-so").await["reason"].to_string();
        if reason.contains("1 pod starting") { Ok(()) } else { Err(reason) }
    })
    .await;
    // The third repeat would be due 14 s after the edge.
    let silence = timeout(Duration::from_secs(10), stream.message()).await;
    assert!(silence.is_err(), "at one replica every message would put off the cooldown");
    assert!(trigger.is_active().await.unwrap(), "while it starts");
}
