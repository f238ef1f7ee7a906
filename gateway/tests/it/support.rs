//! Real neighbours for the gateway: agents that push, a KEDA that asks, cables that break.

mod agent;
mod cable;
mod keda;
mod node;

use std::fmt::Debug;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use gateway::app::App;
use gateway::config::ServeConfig;
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Bytes;
use hyper::{Request, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tonic::transport::Endpoint;

pub(crate) use agent::{TestAgent, Uplink};
pub(crate) use cable::Cable;
pub(crate) use keda::{Keda, Steady, Trigger, only_spec, refused};
pub(crate) use node::{Gpu, Node, gpu, pod};

/// How long anything that must happen may take; nothing that must happen quickly is timed by it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
/// An agent of these tests pushes this often.
const INTERVAL: Duration = Duration::from_millis(100);

/// `ai/vllm` with one ready pod, scaled by `ai/vllm-so`.
pub(crate) const ONE_POD: &str = "
workloads:
  - {namespace: ai, kind: Deployment, name: vllm, replicas: 1, pods: [{name: vllm-0, ready: true}]}
scaledObjects:
  - {namespace: ai, name: vllm-so, target: {kind: Deployment, name: vllm}}
";

/// Asks `check` until it says yes, and returns what it says.
///
/// # Panics
/// When it has not done so within [`PATIENCE`]; the message has the last no.
pub(crate) async fn eventually<T, E: Debug>(
    what: &str,
    mut check: impl AsyncFnMut() -> Result<T, E>,
) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match check().await {
            Ok(yes) => return yes,
            Err(no) if Instant::now() >= deadline => panic!("not so in time: {what}: {no:?}"),
            Err(_) => sleep(Duration::from_millis(20)).await,
        }
    }
}

/// What `future` gives, which must come within [`PATIENCE`].
pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match timeout(PATIENCE, future).await {
        Ok(output) => output,
        Err(_) => panic!("not in time: {what}"),
    }
}

/// A gateway in this process, on free ports, with its directory in a file.
pub(crate) struct TestGateway {
    folder: TempDir,
    pub(crate) keda: SocketAddr,
    pub(crate) agents: SocketAddr,
    pub(crate) http: SocketAddr,
    shutdown: CancellationToken,
    run: Option<JoinHandle<anyhow::Result<()>>>,
}

impl TestGateway {
    /// A gateway that has just started, with `directory` as its directory.
    pub(crate) async fn start(directory: &str) -> Self {
        Self::try_start(directory).await.expect("the gateway starts")
    }

    pub(crate) async fn try_start(directory: &str) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("directory.yaml");
        std::fs::write(&file, directory)?;
        Self::try_start_with(folder, ServeConfig::local(file)).await
    }

    /// A gateway with these settings; `folder` is kept as long as it is.
    pub(crate) async fn try_start_with(
        folder: TempDir,
        config: ServeConfig,
    ) -> anyhow::Result<Self> {
        let app = App::build(config).await?;
        let (keda, agents, http) = (app.keda_addr(), app.agent_addr(), app.http_addr());
        let shutdown = CancellationToken::new();
        let run = tokio::spawn(app.run(shutdown.clone()));
        Ok(Self { folder, keda, agents, http, shutdown, run: Some(run) })
    }

    /// Where its directory is.
    pub(crate) fn file(&self) -> PathBuf {
        self.folder.path().join("directory.yaml")
    }

    /// Replaces the directory in one step, as an editor or a ConfigMap does.
    pub(crate) fn rewrite(&self, directory: &str) {
        let new = self.folder.path().join("new.yaml");
        std::fs::write(&new, directory).expect("the file can be written");
        std::fs::rename(&new, self.file()).expect("the file can be replaced");
    }

    /// Waits until it says that it is ready.
    pub(crate) async fn is_ready(&self) {
        eventually("the gateway is ready", async || {
            let (status, body) = self.get("/readyz").await;
            if status == 200 { Ok(()) } else { Err(body) }
        })
        .await;
    }

    /// A new connection, as KEDA makes it.
    pub(crate) async fn connect(&self) -> Keda {
        Keda::connect(self.keda).await
    }

    /// One trigger of `object` (`namespace/name`), over a new connection.
    pub(crate) async fn trigger(&self, object: &str, metadata: &[(&str, &str)]) -> Trigger {
        self.connect().await.trigger(object, metadata)
    }

    /// An agent that is connected and whose first sample has been sent.
    pub(crate) async fn agent(&self, node: Node) -> TestAgent {
        TestAgent::start(self.agents, node).await
    }

    /// GET over HTTP: status and body.
    pub(crate) async fn get(&self, path: &str) -> (u16, String) {
        get(self.http, path).await
    }

    /// GET, 200, as JSON.
    pub(crate) async fn json(&self, path: &str) -> serde_json::Value {
        let (status, body) = self.get(path).await;
        assert_eq!(status, 200, "{path}: {body}");
        serde_json::from_str(&body).expect("an API answers with JSON")
    }

    /// The explanation of `object`'s only trigger.
    pub(crate) async fn explain(&self, object: &str) -> serde_json::Value {
        let explanation = self.json(&format!("/api/v1/scaledobjects/{object}/explain")).await;
        let triggers = explanation["triggers"].as_array().expect("triggers");
        assert_eq!(triggers.len(), 1, "{explanation}");
        triggers[0].clone()
    }

    /// The sum of all series of `metric` whose labels contain `labels`; 0 where there is none.
    pub(crate) async fn metric(&self, metric: &str, labels: &str) -> f64 {
        let (status, text) = self.get("/metrics").await;
        assert_eq!(status, 200, "{text}");
        let series = text.lines().filter_map(|line| {
            let (series, value) = line.rsplit_once(' ')?;
            let (name, rest) = series.split_once('{').unwrap_or((series, ""));
            (name == metric && rest.contains(labels)).then_some(value)
        });
        series.map(|value| value.parse::<f64>().expect("a number")).sum()
    }

    /// Streams and elements refused so far.
    pub(crate) async fn refused(&self) -> f64 {
        self.metric("gpu_gateway_uplink_refused_total", "").await
    }

    /// Tells it to stop, without waiting.
    pub(crate) fn begin_shutdown(&self) {
        self.shutdown.cancel();
    }

    /// Waits until it has stopped by itself.
    pub(crate) async fn has_stopped(mut self) -> anyhow::Result<()> {
        let run = self.run.take().expect("it is awaited once");
        soon("App::run returns", run).await.expect("it does not panic")
    }
}

impl Drop for TestGateway {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

/// GET over HTTP: status and body.
pub(crate) async fn get(address: SocketAddr, path: &str) -> (u16, String) {
    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    let uri: Uri = format!("http://{address}{path}").parse().expect("a URI");
    let request = Request::get(uri).body(Empty::new()).expect("a request without a body");
    let answer = soon(path, client.request(request)).await;
    let answer = answer.expect("the HTTP port answers");
    let status = answer.status().as_u16();
    let body = answer.into_body().collect().await.expect("a whole body");
    let text = String::from_utf8(body.to_bytes().to_vec()).expect("UTF-8");
    (status, text)
}

fn endpoint(address: SocketAddr) -> Endpoint {
    Endpoint::from_shared(format!("http://{address}")).expect("an address makes a URI")
}
