//! Does anything grow? 200 agents, pods and ScaledObjects that come and go, KEDA asking about each.
//!
//! `cargo run --release -p loadtest --example soak [SECONDS]`, ten minutes if left out.
//!
//! The gateway is a process of its own, so that its memory is its own; the agents, each the real
//! one over simulated GPUs, and KEDA's side are this process. Exit code 1 if the memory of either
//! at the end is more than a tenth above what it was after warm-up, or if streams, series or files
//! are left over.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use agent::app::App as Agent;
use agent::config::RunConfig;
use agent::device::SourceSpec;
use agent::device::replay::ReplayEnd;
use anyhow::Context as _;
use gateway::app::App;
use gateway::config::ServeConfig;
use loadtest::caller::Caller;
use proto::keda::ScaledObjectRef;
use serde_json::json;
use shared::identity::NodeName;
use shared::process::{LogFormat, start_logging};
use shared::time::Timestamp;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;
use tonic::Code;

const NODES: usize = 200;
const GPUS: usize = 4;
/// ScaledObjects at any time, with as many Deployments.
const OBJECTS: usize = 60;
const PODS: usize = 8;
/// Of every trigger.
const METADATA: [(&str, &str); 2] = [("targetGpuUtilization", "60"), ("staleAfter", "5s")];
const SAMPLES: Duration = Duration::from_secs(1);
/// KEDA's `pollingInterval`.
const POLLS: Duration = Duration::from_secs(5);
/// Pods replaced each second; every other second a ScaledObject is, and every fifth an agent.
const PODS_REPLACED: usize = 10;
const SEED: u64 = 6;
const ROW_EVERY: u64 = 10;
const ALLOWED_GROWTH: f64 = 1.1;
/// How long what is left over may take to be seen as gone.
const SETTLE: Duration = Duration::from_secs(15);

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let mut args = std::env::args().skip(1);
    match args.next().as_deref() {
        Some("gateway") => {
            let directory = args.next().context("gateway DIRECTORY")?;
            serve(directory.into()).await?;
            Ok(ExitCode::SUCCESS)
        }
        seconds => {
            let seconds = seconds.map_or(Ok(600), str::parse).context("SECONDS is a number")?;
            let problems = soak(seconds).await?;
            for problem in &problems {
                println!("WRONG: {problem}");
            }
            Ok(if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
    }
}

// === The gateway's process ===

async fn serve(directory: PathBuf) -> anyhow::Result<()> {
    start_logging("warn", LogFormat::Text)?;
    let app = App::build(ServeConfig::local(directory)).await?;
    println!("{} {} {}", app.keda_addr(), app.agent_addr(), app.http_addr());
    std::io::stdout().flush()?;
    app.run(CancellationToken::new()).await
}

struct Gateway {
    child: Child,
    keda: SocketAddr,
    agents: SocketAddr,
    http: SocketAddr,
}

impl Gateway {
    fn start(directory: &Path) -> anyhow::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        let mut child = command.arg("gateway").arg(directory).stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        let output = child.stdout.take().context("its output is piped")?;
        BufReader::new(output).read_line(&mut line)?;
        let addresses: Result<Vec<SocketAddr>, _> =
            line.split_whitespace().map(str::parse).collect();
        let addresses = addresses.with_context(|| format!("the gateway said {line:?}"))?;
        let [keda, agents, http] = addresses[..] else { anyhow::bail!("it said {line:?}") };
        Ok(Self { child, keda, agents, http })
    }

    /// Series by name, of which the sum is kept, and how many there are.
    async fn metrics(&self) -> anyhow::Result<(BTreeMap<String, f64>, usize)> {
        let mut socket = TcpStream::connect(self.http).await?;
        let request = "GET /metrics HTTP/1.1\r\nHost: gateway\r\nConnection: close\r\n\r\n";
        socket.write_all(request.as_bytes()).await?;
        let mut page = String::new();
        socket.read_to_string(&mut page).await?;
        let (mut sums, mut series) = (BTreeMap::new(), 0);
        let (_, body) = page.split_once("\r\n\r\n").context("a body")?;
        for line in body.lines().filter(|line| !line.starts_with('#')) {
            let Some((name, value)) = line.rsplit_once(' ') else { continue };
            let name = name.split('{').next().unwrap_or(name).to_owned();
            *sums.entry(name).or_insert(0.0) += value.parse::<f64>().unwrap_or(0.0);
            series += 1;
        }
        Ok((sums, series))
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

// === The cluster ===

struct Pod {
    name: String,
    of: usize,
}

/// Pods on GPUs, and the Deployments they belong to; no name is used twice.
struct Cluster {
    folder: PathBuf,
    random: fastrand::Rng,
    /// UUIDs by node.
    uuids: Vec<Vec<String>>,
    /// Node after node.
    slots: Vec<Option<Pod>>,
    objects: Vec<usize>,
    named: usize,
    changed: Vec<bool>,
}

impl Cluster {
    fn new(folder: PathBuf) -> anyhow::Result<Self> {
        let uuids = (0..NODES).map(|node| {
            let mut source = source()?.open(&node_name(node), ReplayEnd::Hold)?;
            let devices = source.observe(Timestamp::START).devices;
            Ok(devices.iter().map(|device| device.uuid.to_string()).collect())
        });
        let mut cluster = Self {
            folder,
            random: fastrand::Rng::with_seed(SEED),
            uuids: uuids.collect::<anyhow::Result<_>>()?,
            slots: (0..NODES * GPUS).map(|_| None).collect(),
            objects: Vec::new(),
            named: 0,
            changed: vec![true; NODES],
        };
        for _ in 0..OBJECTS {
            cluster.add_object();
        }
        cluster.write()?;
        Ok(cluster)
    }

    fn name(&mut self) -> usize {
        self.named += 1;
        self.named
    }

    fn add_pod(&mut self, of: usize) {
        let free: Vec<usize> =
            (0..self.slots.len()).filter(|at| self.slots[*at].is_none()).collect();
        let at = free[self.random.usize(..free.len())];
        self.slots[at] = Some(Pod { name: format!("pod-{}", self.name()), of });
        self.changed[at / GPUS] = true;
    }

    fn remove_pod(&mut self, at: usize) {
        self.slots[at] = None;
        self.changed[at / GPUS] = true;
    }

    fn add_object(&mut self) -> usize {
        let object = self.name();
        self.objects.push(object);
        for _ in 0..PODS {
            self.add_pod(object);
        }
        object
    }

    fn remove_object(&mut self) -> usize {
        let at = self.random.usize(..self.objects.len());
        let object = self.objects.swap_remove(at);
        for at in 0..self.slots.len() {
            if self.slots[at].as_ref().is_some_and(|pod| pod.of == object) {
                self.remove_pod(at);
            }
        }
        object
    }

    fn replace_pod(&mut self) {
        let held: Vec<usize> =
            (0..self.slots.len()).filter(|at| self.slots[*at].is_some()).collect();
        let at = held[self.random.usize(..held.len())];
        let of = self.slots[at].as_ref().map_or(0, |pod| pod.of);
        self.remove_pod(at);
        self.add_pod(of);
    }

    /// Writes the directory, and the holders of every node where they changed.
    fn write(&mut self) -> anyhow::Result<()> {
        let mut pods: BTreeMap<usize, String> = BTreeMap::new();
        for (at, pod) in self.slots.iter().enumerate() {
            let Some(Pod { name, of }) = pod else { continue };
            let node = node_name(at / GPUS);
            let entry = format!("{{name: {name}, node: {node}, ready: true}}, ");
            pods.entry(*of).or_default().push_str(&entry);
        }
        let mut text = String::from("workloads:\n");
        for (object, pods) in &pods {
            text += &format!(
                "  - {{namespace: ml, kind: Deployment, name: d{object}, replicas: {PODS}, pods: [{pods}]}}\n"
            );
        }
        text += "scaledObjects:\n";
        for object in pods.keys() {
            text += &format!(
                "  - {{namespace: ml, name: so{object}, target: {{name: d{object}}}, minReplicas: 1, \
                 triggers: [{{type: external-push, metadata: {}}}]}}\n",
                json!(BTreeMap::from(METADATA)),
            );
        }
        replace(&self.directory(), &text)?;
        for node in 0..NODES {
            if std::mem::take(&mut self.changed[node]) {
                replace(&self.holders(node), &self.holders_text(node))?;
            }
        }
        Ok(())
    }

    fn directory(&self) -> PathBuf {
        self.folder.join("directory.yaml")
    }

    fn holders(&self, node: usize) -> PathBuf {
        self.folder.join(format!("{}.json", node_name(node)))
    }

    fn holders_text(&self, node: usize) -> String {
        let devices = (0..GPUS).map(|gpu| {
            let pod = self.slots[node * GPUS + gpu].iter();
            let holder =
                |pod: &Pod| json!({"namespace": "ml", "pod": pod.name, "container": "main"});
            (self.uuids[node][gpu].clone(), pod.map(holder).collect())
        });
        serde_json::Value::Object(devices.collect()).to_string()
    }
}

fn replace(path: &Path, text: &str) -> anyhow::Result<()> {
    let next = path.with_extension("next");
    std::fs::write(&next, text)?;
    std::fs::rename(&next, path).context("replacing a file")
}

fn node_name(node: usize) -> NodeName {
    format!("n{node:03}").as_str().into()
}

fn source() -> anyhow::Result<SourceSpec> {
    let spec = format!("sim:gpus={GPUS},shape=sine:10-90:60s,noise=5");
    spec.parse().map_err(|error| anyhow::anyhow!("{spec}: {error}"))
}

// === Who talks to the gateway ===

struct Running {
    stop: CancellationToken,
    task: JoinHandle<anyhow::Result<()>>,
}

impl Running {
    fn start(gateway: &Gateway, cluster: &Cluster, node: usize) -> anyhow::Result<Self> {
        let url = format!("http://{}", gateway.agents);
        let mut config = RunConfig::new(url, node_name(node), source()?);
        config.interval = SAMPLES;
        config.holders = Some(cluster.holders(node));
        let app = Agent::build(config)?;
        let stop = CancellationToken::new();
        Ok(Self { task: tokio::spawn(app.run(stop.clone())), stop })
    }

    async fn stop(self) -> anyhow::Result<()> {
        self.stop.cancel();
        self.task.await?
    }
}

#[derive(Default)]
struct Calls {
    answered: AtomicU64,
    unavailable: AtomicU64,
    /// The directory may not have been read yet.
    not_found: AtomicU64,
    other: AtomicU64,
}

/// KEDA's side of one ScaledObject: a stream, and polls.
fn ask(gateway: &Gateway, object: usize, calls: Arc<Calls>) -> anyhow::Result<JoinSet<()>> {
    let reference = ScaledObjectRef {
        namespace: "ml".into(),
        name: format!("so{object}"),
        scaler_metadata: METADATA.map(|(key, value)| (key.into(), value.into())).into(),
    };
    let caller = Caller::new(gateway.keda, reference)?;
    let mut tasks = JoinSet::new();
    let (activations, mut heard) = mpsc::channel(16);
    let listener = caller.clone();
    tasks.spawn(async move { listener.listen(activations).await });
    tasks.spawn(async move { while heard.recv().await.is_some() {} });
    tasks.spawn(async move {
        loop {
            sleep(POLLS).await;
            let counted = match caller.fetch().await.map_err(|status| status.code()) {
                Ok(_) => &calls.answered,
                Err(Code::Unavailable) => &calls.unavailable,
                Err(Code::NotFound) => &calls.not_found,
                Err(_) => &calls.other,
            };
            counted.fetch_add(1, Ordering::Relaxed);
        }
    });
    Ok(tasks)
}

// === The run ===

/// What is read every ten seconds.
struct Row {
    second: u64,
    gateway: f64,
    load: f64,
    sessions: f64,
    streams: f64,
    series: usize,
    files: usize,
}

impl Row {
    async fn read(second: u64, gateway: &Gateway) -> anyhow::Result<Self> {
        let (sums, series) = gateway.metrics().await?;
        let pid = gateway.child.id().to_string();
        let sum = |name: &str| sums.get(name).copied().unwrap_or(0.0);
        Ok(Self {
            second,
            gateway: rss(&pid)?,
            load: rss("self")?,
            sessions: sum("gpu_gateway_agent_sessions"),
            streams: sum("gpu_gateway_rpc_streams"),
            series,
            files: std::fs::read_dir(format!("/proc/{pid}/fd"))?.count(),
        })
    }

    fn print(&self, calls: &Calls) {
        let count = |calls: &AtomicU64| calls.load(Ordering::Relaxed);
        let Self { second, gateway, load, sessions, streams, series, files } = self;
        println!(
            "{second:>6} {gateway:>12.1} {load:>9.1} {sessions:>8} {streams:>7} {series:>7} {files:>6} {:>8} {:>11} {:>9} {:>6}",
            count(&calls.answered),
            count(&calls.unavailable),
            count(&calls.not_found),
            count(&calls.other),
        );
    }
}

/// Resident memory in MiB (proc(5)).
fn rss(pid: &str) -> anyhow::Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("VmRSS")?;
    let kib: f64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kib / 1024.0)
}

async fn soak(seconds: u64) -> anyhow::Result<Vec<String>> {
    let folder = tempfile::tempdir()?;
    let mut cluster = Cluster::new(folder.path().to_owned())?;
    let gateway = Gateway::start(&cluster.directory())?;
    let mut agents = Vec::new();
    for node in 0..NODES {
        agents.push(Running::start(&gateway, &cluster, node)?);
    }
    let calls = Arc::new(Calls::default());
    let mut asking = BTreeMap::new();
    for &object in &cluster.objects {
        asking.insert(object, ask(&gateway, object, calls.clone())?);
    }
    println!(
        "{NODES} agents of {GPUS} GPUs, {OBJECTS} ScaledObjects of {PODS} pods, {seconds} s, seed {SEED}"
    );
    println!(
        "second  gateway MiB  load MiB sessions streams  series  files answered unavailable not found  other"
    );
    let (start, mut rows) = (Instant::now(), Vec::new());
    let mut tick = interval(Duration::from_secs(1));
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for turn in 1.. {
        tick.tick().await;
        for _ in 0..PODS_REPLACED {
            cluster.replace_pod();
        }
        if turn % 2 == 0 {
            // Gone: KEDA lets go of its stream.
            asking.remove(&cluster.remove_object());
            let object = cluster.add_object();
            asking.insert(object, ask(&gateway, object, calls.clone())?);
        }
        cluster.write()?;
        if turn % 5 == 0 {
            let node = fastrand::usize(..NODES);
            let new = Running::start(&gateway, &cluster, node)?;
            std::mem::replace(&mut agents[node], new).stop().await?;
        }
        let second = start.elapsed().as_secs();
        if rows.last().map_or(0, |row: &Row| row.second) + ROW_EVERY <= second {
            let row = Row::read(second, &gateway).await?;
            row.print(&calls);
            rows.push(row);
        }
        if second >= seconds {
            break;
        }
    }
    let last = settled(&gateway, seconds).await?;
    last.print(&calls);
    for agent in agents {
        agent.stop().await?;
    }
    Ok(problems(&rows, &last, &calls))
}

/// What of a row must not grow.
type Figure = fn(&Row) -> f64;

/// The last row, once what left has been seen to be gone.
async fn settled(gateway: &Gateway, second: u64) -> anyhow::Result<Row> {
    let deadline = Instant::now() + SETTLE;
    loop {
        let row = Row::read(second, gateway).await?;
        let is_settled = row.sessions == NODES as f64 && row.streams == OBJECTS as f64;
        if is_settled || Instant::now() >= deadline {
            return Ok(row);
        }
        sleep(Duration::from_millis(200)).await;
    }
}

fn problems(rows: &[Row], last: &Row, calls: &Calls) -> Vec<String> {
    // A fifth of the run, but two minutes at most, is warm-up; means are of as long.
    let span = (rows.len() / 5).clamp(1, 12);
    if rows.len() < 3 * span {
        return vec![format!("{} rows are too few; let it run longer", rows.len())];
    }
    let (early, late) = (&rows[span..2 * span], &rows[rows.len() - span..]);
    let mut problems = Vec::new();
    let figures: [(&str, Figure); 4] = [
        ("the gateway's memory, MiB", |row| row.gateway),
        ("the load's memory, MiB", |row| row.load),
        ("series", |row| row.series as f64),
        ("the gateway's open files", |row| row.files as f64),
    ];
    for (name, figure) in figures {
        let mean = |rows: &[Row]| rows.iter().map(figure).sum::<f64>() / rows.len() as f64;
        let (before, after) = (mean(early), mean(late));
        let change = (after / before - 1.0) * 100.0;
        println!("{name}: {before:.1} after warm-up, {after:.1} at the end ({change:+.1} %)");
        if after > before * ALLOWED_GROWTH {
            problems.push(format!("{name} grew from {before:.1} to {after:.1}"));
        }
    }
    if last.sessions != NODES as f64 {
        problems.push(format!("{} sessions for {NODES} agents", last.sessions));
    }
    if last.streams != OBJECTS as f64 {
        problems.push(format!("{} streams for {OBJECTS} ScaledObjects", last.streams));
    }
    let other = calls.other.load(Ordering::Relaxed);
    if other > 0 {
        problems.push(format!("{other} calls failed in a way that is not documented"));
    }
    problems
}
