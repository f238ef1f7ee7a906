//! Real neighbours for the gateway: agents that push, a KEDA that asks, cables that break.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use gateway::app::App;
use gateway::config::ServeConfig;
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Bytes;
use hyper::{Request, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use parking_lot::Mutex;
use proto::convert::{inventory_to_wire, sample_to_wire};
use proto::keda::external_scaler_client::ExternalScalerClient;
use proto::keda::{
    GetMetricSpecResponse, GetMetricsRequest, IsActiveResponse, MetricSpec, MetricValue,
    ScaledObjectRef,
};
use proto::uplink::agent_message::Body;
use proto::uplink::uplink_client::UplinkClient;
use proto::uplink::{AgentMessage, GatewayMessage, Hello, Welcome, gateway_message};
use shared::brief::Brief;
use shared::frame::{
    Device, DeviceSample, Engine, EngineSample, HeldReading, Holder, HolderSource, Inventory, Mig,
    Sample,
};
use shared::health::{Energy, Health, Origin, Throttle};
use shared::identity::PodKey;
use shared::metric::Metric;
use shared::reading::{Reading, Readings};
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status, Streaming};

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

/// A connection to the port KEDA calls.
#[derive(Clone)]
pub(crate) struct Keda {
    pub(crate) client: ExternalScalerClient<Channel>,
    pub(crate) channel: Channel,
}

impl Keda {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        let channel = soon("KEDA connects", endpoint(address).connect()).await;
        let channel = channel.expect("KEDA can connect");
        Self { client: ExternalScalerClient::new(channel.clone()), channel }
    }

    /// One trigger of `object` (`namespace/name`), with `scalerAddress` added as KEDA does.
    pub(crate) fn trigger(&self, object: &str, metadata: &[(&str, &str)]) -> Trigger {
        let (namespace, name) = object.split_once('/').expect("namespace/name");
        let scaler = ("scalerAddress", "gpu-gateway.gpu:6000");
        Trigger {
            client: self.client.clone(),
            reference: ScaledObjectRef {
                name: name.into(),
                namespace: namespace.into(),
                scaler_metadata: metadata
                    .iter()
                    .chain([&scaler])
                    .map(|&(key, value)| (key.into(), value.into()))
                    .collect(),
            },
        }
    }
}

/// One trigger of one ScaledObject, asked about as KEDA asks.
#[derive(Clone)]
pub(crate) struct Trigger {
    pub(crate) client: ExternalScalerClient<Channel>,
    pub(crate) reference: ScaledObjectRef,
}

impl Trigger {
    /// GetMetricSpec, with everything that must hold of every answer checked.
    pub(crate) async fn spec(&self) -> Result<MetricSpec, Status> {
        let call = async { self.client.clone().get_metric_spec(self.reference.clone()).await };
        let answer = soon("GetMetricSpec", call).await?.into_inner();
        Ok(only_spec(answer))
    }

    /// GetMetrics for `name`, with everything that must hold of every answer checked.
    pub(crate) async fn metric(&self, name: &str) -> Result<MetricValue, Status> {
        let request = GetMetricsRequest {
            scaled_object_ref: Some(self.reference.clone()),
            metric_name: name.into(),
        };
        let call = async { self.client.clone().get_metrics(request).await };
        let mut values = soon("GetMetrics", call).await?.into_inner().metric_values;
        assert_eq!(values.len(), 1, "exactly one value: {values:?}");
        let value = values.remove(0);
        let float = value.metric_value_float;
        assert_eq!(value.metric_name, name, "for the name that was asked");
        assert!(float.is_finite() && float >= 0.0, "{value:?}");
        #[expect(clippy::cast_precision_loss, reason = "values in tests are small")]
        let int = value.metric_value as f64;
        assert_eq!(int, float.ceil(), "int = ceil(float): {value:?}");
        Ok(value)
    }

    /// The value for the HPA: GetMetricSpec, then GetMetrics.
    pub(crate) async fn value(&self) -> Result<f64, Status> {
        let spec = self.spec().await?;
        let value = self.metric(&spec.metric_name).await?;
        Ok(value.metric_value_float)
    }

    pub(crate) async fn is_active(&self) -> Result<bool, Status> {
        let call = async { self.client.clone().is_active(self.reference.clone()).await };
        Ok(soon("IsActive", call).await?.into_inner().result)
    }

    pub(crate) async fn stream(&self) -> Result<Streaming<IsActiveResponse>, Status> {
        let call = async { self.client.clone().stream_is_active(self.reference.clone()).await };
        Ok(soon("StreamIsActive", call).await?.into_inner())
    }

    pub(crate) async fn spec_stream(&self) -> Result<Streaming<GetMetricSpecResponse>, Status> {
        let call = async { self.client.clone().stream_metric_spec(self.reference.clone()).await };
        Ok(soon("StreamMetricSpec", call).await?.into_inner())
    }

    /// Waits until the value is `expected`.
    pub(crate) async fn becomes(&self, expected: f64) {
        eventually(&format!("the value is {expected}"), async || match self.value().await {
            Ok(value) if value == expected => Ok(()),
            other => Err(other),
        })
        .await;
    }

    /// Waits until GetMetrics fails with `code`, and returns the message.
    pub(crate) async fn fails(&self, code: Code) -> String {
        eventually(&format!("the value is {code:?}"), async || match self.value().await {
            Err(status) if status.code() == code => Ok(status.message().to_owned()),
            other => Err(other),
        })
        .await
    }

    /// Checks that GetMetrics, IsActive and StreamIsActive all refuse with INVALID_ARGUMENT and
    /// all of `words`.
    pub(crate) async fn is_refused(&self, words: &[&str]) {
        let spec = self.spec().await;
        let name = spec.map_or_else(|_| "gpu_utilization".into(), |spec| spec.metric_name);
        refused(self.metric(&name).await, Code::InvalidArgument, words);
        refused(self.is_active().await, Code::InvalidArgument, words);
        self.stream_is_refused(words).await;
    }

    async fn stream_is_refused(&self, words: &[&str]) {
        let end = match self.stream().await {
            Err(status) => Err(status),
            Ok(mut stream) => soon("the stream ends", stream.message()).await,
        };
        refused(end, Code::InvalidArgument, words);
    }
}

/// The one spec of an answer.
pub(crate) fn only_spec(mut answer: GetMetricSpecResponse) -> MetricSpec {
    assert_eq!(answer.metric_specs.len(), 1, "exactly one spec: {answer:?}");
    let spec = answer.metric_specs.remove(0);
    let name = &spec.metric_name;
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_.".contains(c);
    assert!(!name.is_empty() && name.len() <= 63, "{spec:?}");
    assert!(name.chars().all(fits), "{spec:?}");
    let float = spec.target_size_float;
    assert!(float.is_finite() && float >= 0.001, "{spec:?}");
    #[expect(clippy::cast_precision_loss, reason = "targets in tests are small")]
    let int = spec.target_size as f64;
    assert_eq!(int, float.round().max(1.0), "{spec:?}");
    spec
}

/// Checks that `result` is an error of that code whose message has all of `words`.
pub(crate) fn refused<T: Debug>(result: Result<T, Status>, code: Code, words: &[&str]) {
    let status = result.expect_err("it is refused");
    assert_eq!(status.code(), code, "{status:?}");
    for word in words {
        assert!(status.message().contains(word), "{word:?} in {status:?}");
    }
}

fn endpoint(address: SocketAddr) -> Endpoint {
    Endpoint::from_shared(format!("http://{address}")).expect("an address makes a URI")
}

/// Asks about one trigger over and over, to find the one wrong answer in between.
pub(crate) struct Steady {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Steady {
    /// From now on the value is `expected` at every call.
    pub(crate) fn watch(trigger: Trigger, expected: f64) -> Self {
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let task = tokio::spawn(async move {
            let mut asked = 0;
            while !stopped.is_cancelled() || asked < 5 {
                match trigger.value().await {
                    Ok(value) => assert_eq!(value, expected, "after {asked} right answers"),
                    Err(status) => panic!("after {asked} right answers: {status:?}"),
                }
                asked += 1;
                sleep(Duration::from_millis(5)).await;
            }
        });
        Self { stop, task }
    }

    /// The value is `expected` at every call for that long.
    pub(crate) async fn watch_for(trigger: Trigger, expected: f64, time: Duration) {
        let steady = Self::watch(trigger, expected);
        sleep(time).await;
        steady.held().await;
    }

    /// It was so all the time.
    pub(crate) async fn held(self) {
        self.stop.cancel();
        self.task.await.expect("the value did not change");
    }
}

/// What an agent of these tests has on its node.
#[derive(Clone)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) interval: Duration,
    gpus: Vec<Gpu>,
    engines: BTreeMap<PodKey, BTreeMap<Metric, Reading>>,
    /// A frozen agent keeps its stream open and says nothing.
    pub(crate) frozen: bool,
}

/// A GPU of such a node.
#[derive(Clone)]
pub(crate) struct Gpu {
    device: Device,
    readings: BTreeMap<Metric, Reading>,
    held: Vec<HeldReading>,
    energy: Option<Energy>,
    throttled: Box<[(Throttle, f64)]>,
}

/// A GPU that `pod` (`namespace/name`) has for itself, with this utilisation.
pub(crate) fn gpu(uuid: &str, pod: &str, utilization: f64) -> Gpu {
    let free = Gpu {
        device: Device {
            uuid: uuid.into(),
            index: 0,
            name: "NVIDIA H100 80GB HBM3".into(),
            memory_total_mib: Some(81_559.0),
            mig: None,
            holders: Vec::new(),
            reason: None,
            health: None,
        },
        readings: BTreeMap::new(),
        held: Vec::new(),
        energy: None,
        throttled: Box::default(),
    };
    free.held_by(pod, 1.0).reads(Metric::GpuUtilization, utilization)
}

/// The pod `namespace/name`.
pub(crate) fn pod(text: &str) -> PodKey {
    let (namespace, name) = text.split_once('/').expect("namespace/name");
    PodKey::new(namespace, name)
}

impl Gpu {
    /// Another holder, with its share.
    pub(crate) fn held_by(mut self, holder: &str, share: f64) -> Self {
        self.device.holders.push(Holder {
            pod: pod(holder),
            uid: None,
            container: "main".into(),
            share: Some(share),
            estimated: false,
            source: HolderSource::Replay,
            undeclared: false,
        });
        self
    }

    /// Another holder, of which only what it does is known: this much utilisation.
    pub(crate) fn used_by(mut self, holder: &str, source: HolderSource, utilization: f64) -> Self {
        self = self.held_by(holder, 0.0);
        let place = self.device.holders.len() - 1;
        let last = &mut self.device.holders[place];
        (last.share, last.source) = (None, source);
        last.estimated = matches!(source, HolderSource::Memory | HolderSource::Equal);
        let metric = Metric::GpuUtilization;
        self.held.push(HeldReading { holder: place, metric, value: utilization });
        self
    }

    /// Its last holder was not given it.
    pub(crate) fn undeclared(mut self) -> Self {
        self.device.holders.last_mut().expect("a holder").undeclared = true;
        self
    }

    /// What share its first holder has.
    pub(crate) fn shared(mut self, share: Option<f64>) -> Self {
        self.device.holders[0].share = share;
        self
    }

    /// The UID of its first holder.
    pub(crate) fn uid(mut self, uid: &str) -> Self {
        self.device.holders[0].uid = Some(uid.into());
        self
    }

    /// Nobody holds it.
    pub(crate) fn free(mut self) -> Self {
        self.device.holders.clear();
        self.held.clear();
        self
    }

    /// A MIG instance cut from `parent`.
    pub(crate) fn cut_from(mut self, parent: &str, profile: &str) -> Self {
        self.device.mig = Some(Mig { parent: parent.into(), profile: profile.into() });
        self
    }

    /// The same, with a counter that stands at so many joules.
    pub(crate) fn used(mut self, joules: f64) -> Self {
        self.energy = Some(Energy { joules, origin: Origin::Counter });
        self
    }

    /// The same, held down for so many percent of the time.
    pub(crate) fn throttled(mut self, by: Throttle, percent: f64) -> Self {
        self.throttled = [(by, percent)].into();
        self.reads(Metric::ThrottledPercent, percent)
    }

    /// The same, with that the matter with it.
    pub(crate) fn ill(mut self, health: Health) -> Self {
        self.device.health = Some(Box::new(health));
        self
    }

    pub(crate) fn index(mut self, index: u32) -> Self {
        self.device.index = index;
        self
    }

    pub(crate) fn reads(self, metric: Metric, value: f64) -> Self {
        self.reading(metric, Reading::Ok(value))
    }

    pub(crate) fn reading(mut self, metric: Metric, reading: Reading) -> Self {
        self.readings.insert(metric, reading);
        self
    }
}

impl Node {
    pub(crate) fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            interval: INTERVAL,
            gpus: Vec::new(),
            engines: BTreeMap::new(),
            frozen: false,
        }
    }

    pub(crate) fn with(mut self, gpu: Gpu) -> Self {
        self.gpus.push(gpu);
        self
    }

    /// The engine in `of` says this.
    pub(crate) fn engine(mut self, of: &str, metric: Metric, value: f64) -> Self {
        let readings = self.engines.entry(pod(of)).or_default();
        readings.insert(metric, Reading::Ok(value));
        self
    }

    /// The engine in `of` says this from now on.
    pub(crate) fn engine_reads(&mut self, of: &str, metric: Metric, reading: Reading) {
        let readings = self.engines.entry(pod(of)).or_default();
        readings.insert(metric, reading);
    }

    /// The GPU of that UUID.
    pub(crate) fn gpu(&mut self, uuid: &str) -> &mut Gpu {
        self.gpus
            .iter_mut()
            .find(|gpu| gpu.device.uuid.as_str() == uuid)
            .expect("the node has that GPU")
    }

    pub(crate) fn inventory(&self) -> Inventory {
        let engines = self.engines.keys().cloned();
        Inventory {
            devices: self.gpus.iter().map(|gpu| gpu.device.clone()).collect(),
            engines: engines.map(|pod| Engine { pod, uid: None, labels: "".into() }).collect(),
            reason: None,
        }
    }

    pub(crate) fn sample(&self) -> Sample {
        let readings = |readings: &BTreeMap<Metric, Reading>| -> Readings {
            readings.iter().map(|(m, r)| (*m, r.clone())).collect()
        };
        let devices = self.gpus.iter().map(|gpu| {
            Some(DeviceSample {
                age: Duration::ZERO,
                readings: readings(&gpu.readings),
                held: gpu.held.clone(),
                energy: gpu.energy,
                throttled: gpu.throttled.clone(),
            })
        });
        let engines = self
            .engines
            .values()
            .map(|engine| Some(EngineSample { age: Duration::ZERO, readings: readings(engine) }));
        Sample { devices: devices.collect(), engines: engines.collect() }
    }

    pub(crate) fn hello(&self) -> Body {
        Body::Hello(Hello {
            node: self.name.clone(),
            version: "test".into(),
            interval_ms: u32::try_from(self.interval.as_millis()).expect("a short interval"),
            engine_interval_ms: 0,
        })
    }

    pub(crate) fn inventory_message(&self, generation: u64) -> Body {
        Body::Inventory(inventory_to_wire(generation, &self.inventory()))
    }

    pub(crate) fn sample_message(&self, generation: u64) -> Body {
        Body::Sample(sample_to_wire(generation, &self.sample(), Duration::ZERO))
    }
}

/// An agent that pushes what its node has every 100 ms, over its own connection.
pub(crate) struct TestAgent {
    node: Arc<Mutex<Node>>,
    changed: Arc<Notify>,
    leave: CancellationToken,
    task: JoinHandle<Result<(), Status>>,
}

impl TestAgent {
    pub(crate) async fn start(address: SocketAddr, node: Node) -> Self {
        let mut uplink = Uplink::open(address).await;
        uplink.say(node.hello()).await;
        uplink.welcome().await.expect("the agent is welcome");
        uplink.say(node.inventory_message(1)).await;
        uplink.say(node.sample_message(1)).await;
        let node = Arc::new(Mutex::new(node));
        let changed = Arc::new(Notify::new());
        let leave = CancellationToken::new();
        let task = tokio::spawn(push(uplink, node.clone(), changed.clone(), leave.clone()));
        Self { node, changed, leave, task }
    }

    /// Changes what the node has or reads; it is pushed at once.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Node)) {
        change(&mut self.node.lock());
        self.changed.notify_one();
    }

    /// Changes one GPU's utilisation.
    pub(crate) fn reads(&self, uuid: &str, utilization: f64) {
        self.change(|node| {
            let readings = &mut node.gpu(uuid).readings;
            readings.insert(Metric::GpuUtilization, Reading::Ok(utilization));
        });
    }

    /// Leaves as on SIGTERM: ends its stream, and tells how the gateway ended its own.
    pub(crate) async fn leave(self) -> Result<(), Status> {
        self.leave.cancel();
        self.ended().await
    }

    /// Waits until the gateway ends the stream, and tells how.
    pub(crate) async fn ended(self) -> Result<(), Status> {
        soon("the agent's stream ends", self.task).await.expect("the agent does not panic")
    }

    /// Dies: its connection is gone without a word.
    pub(crate) async fn die(self) {
        self.task.abort();
        self.task.await.expect_err("it was aborted");
    }
}

async fn push(
    mut uplink: Uplink,
    node: Arc<Mutex<Node>>,
    changed: Arc<Notify>,
    leave: CancellationToken,
) -> Result<(), Status> {
    let (mut generation, mut known) = (1, node.lock().inventory());
    loop {
        tokio::select! {
            () = leave.cancelled() => return uplink.end().await,
            reply = uplink.replies.message() => match reply? {
                // What it is told of its node does not concern it.
                Some(_) => continue,
                None => return Ok(()),
            },
            () = changed.notified() => {}
            () = sleep(INTERVAL) => {}
        }
        let now = node.lock().clone();
        if now.frozen {
            continue;
        }
        let inventory = now.inventory();
        if inventory != known {
            (generation, known) = (generation + 1, inventory);
            uplink.say(now.inventory_message(generation)).await;
        }
        uplink.say(now.sample_message(generation)).await;
    }
}

/// The bare stream, for agents that do not keep the rules.
pub(crate) struct Uplink {
    pub(crate) messages: Option<mpsc::Sender<AgentMessage>>,
    pub(crate) replies: Streaming<GatewayMessage>,
}

impl Uplink {
    pub(crate) async fn open(address: SocketAddr) -> Self {
        let channel = soon("the agent connects", endpoint(address).connect()).await;
        Self::on(channel.expect("the agent can connect")).await
    }

    pub(crate) async fn on(channel: Channel) -> Self {
        let (messages, stream) = mpsc::channel(16);
        let mut client = UplinkClient::new(channel);
        let call = client.push(ReceiverStream::new(stream));
        let replies = soon("Push is answered", call).await;
        Self { messages: Some(messages), replies: replies.expect("Push opens").into_inner() }
    }

    /// Says something; whether anyone still listens is seen in how the stream ends.
    pub(crate) async fn say(&mut self, body: Body) {
        self.say_raw(AgentMessage { body: Some(body) }).await;
    }

    pub(crate) async fn say_raw(&mut self, message: AgentMessage) {
        if let Some(messages) = &self.messages {
            messages.send(message).await.ok();
        }
    }

    /// Waits for the gateway's answer to Hello.
    pub(crate) async fn welcome(&mut self) -> Result<Welcome, Status> {
        let reply = soon("Welcome", self.replies.message()).await?;
        match reply.and_then(|reply| reply.body) {
            Some(gateway_message::Body::Welcome(welcome)) => Ok(welcome),
            other => panic!("instead of a Welcome: {other:?}"),
        }
    }

    /// Waits for the next brief: its version and what it says.
    pub(crate) async fn brief(&mut self) -> Result<(u64, Brief), Status> {
        let reply = soon("a brief", self.replies.message()).await?;
        match reply.and_then(|reply| reply.body) {
            Some(gateway_message::Body::Brief(message)) => {
                let version = message.version;
                let (brief, refusals) = proto::brief::from_wire(message);
                assert_eq!(refusals, Vec::<String>::new(), "an agent takes all of it");
                Ok((version, brief))
            }
            other => panic!("instead of a Brief: {other:?}"),
        }
    }

    /// Waits until the gateway ends the stream, and tells how.
    pub(crate) async fn ended(&mut self) -> Result<(), Status> {
        let end = async {
            while self.replies.message().await?.is_some() {}
            Ok(())
        };
        soon("the gateway ends the stream", end).await
    }

    /// Ends its own half, and tells how the gateway ends the other.
    pub(crate) async fn end(&mut self) -> Result<(), Status> {
        self.messages = None;
        self.ended().await
    }
}

/// A line to the gateway that can be cut or held up, which a closed socket cannot show.
pub(crate) struct Cable {
    pub(crate) address: SocketAddr,
    /// While it is set nothing comes through, in either direction.
    held: Arc<std::sync::atomic::AtomicBool>,
    task: JoinHandle<()>,
}

impl Cable {
    /// A line to `to`, for any number of connections.
    pub(crate) async fn to(to: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("its address");
        let held = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let hold = held.clone();
        let task = tokio::spawn(async move {
            let mut lines = tokio::task::JoinSet::new();
            while let Ok((near, _)) = listener.accept().await {
                let far = TcpStream::connect(to).await.expect("the gateway accepts");
                let (near_in, near_out) = near.into_split();
                let (far_in, far_out) = far.into_split();
                lines.spawn(carry(near_in, far_out, hold.clone()));
                lines.spawn(carry(far_in, near_out, hold.clone()));
            }
        });
        Self { address, held, task }
    }

    /// Nothing comes through any more, and nobody is told.
    pub(crate) fn hold(&self) {
        self.held.store(true, std::sync::atomic::Ordering::SeqCst);
    }

    /// Both ends find their connection broken.
    pub(crate) fn cut(&self) {
        self.task.abort();
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        self.cut();
    }
}

async fn carry(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    held: Arc<std::sync::atomic::AtomicBool>,
) {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut buffer = vec![0; 64 << 10];
    loop {
        let Ok(length @ 1..) = from.read(&mut buffer).await else {
            return;
        };
        while held.load(std::sync::atomic::Ordering::SeqCst) {
            sleep(Duration::from_millis(20)).await;
        }
        if to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}
