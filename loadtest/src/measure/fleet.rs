//! `loadtest fleet`: so many nodes' real agents, pushing to a gateway and to a floor at once.
//!
//! Guarantees: every agent is the product's own (source, frame builder, uplink); floor and gateway
//! get the same frames at the same moments, so that what disturbs one disturbs the other; CPU is
//! counted while nothing else happens to the servers.

use std::time::Duration;

use agent::app::App;
use agent::config::RunConfig;
use agent::device::SourceSpec;
use anyhow::Context as _;
use clap::Args;
use serde_json::Value;
use shared::identity::NodeName;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::explain;
use crate::measure::figures::{Report, Rounds};
use crate::measure::server::{self, Kind, Server};
use crate::measure::verdict::{Progress, VerdictArgs};

/// Agents started a second.
const STARTS: usize = 400;
/// Descriptors that are kept for other things than connections.
const SPARE: usize = 500;

/// Its flags.
#[derive(Clone, Debug, Args)]
pub struct FleetArgs {
    /// Nodes.
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    nodes: u32,
    /// GPUs of each.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=64))]
    gpus: u32,
    /// Nodes whose pods belong to a ScaledObject: the gateway keeps their past, too.
    #[arg(long, default_value_t = 0)]
    scaled: u32,
    /// Time between two samples of an agent, milliseconds.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(100..=60_000))]
    interval: u64,
    /// Rounds.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=101))]
    rounds: u32,
    /// Seconds of each.
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Agents that are stopped and started again each second, after the rounds, for as long as
    /// one of them.
    #[arg(long, default_value_t = 0)]
    churn: u32,
    /// At last the gateway is killed and started again: how long until all have spoken.
    #[arg(long)]
    restart: bool,
    /// A gateway that runs already, as http://HOST:PORT of its agents' port; there is no floor then.
    #[arg(long)]
    gateway: Option<String>,
    /// Its process, if it is on this machine: for CPU and memory.
    #[arg(long, requires = "gateway")]
    pid: Option<u32>,
    /// Half a minute, for a gate: fewer nodes and rounds, judged by the best of them, and ratios of
    /// CPU only.
    #[arg(long, conflicts_with_all = ["churn", "restart", "gateway"])]
    short: bool,
    #[command(flatten)]
    verdict: VerdictArgs,
}

/// An agent that runs.
struct Running {
    stop: CancellationToken,
    task: JoinHandle<anyhow::Result<()>>,
}

/// The agents and where they push.
struct Fleet {
    args: FleetArgs,
    urls: Vec<String>,
    agents: Vec<Running>,
}

impl Fleet {
    fn agent(&self, node: u32) -> anyhow::Result<Running> {
        let pods = (0..self.args.gpus).map(|gpu| format!("ml/p{node}-{gpu}")).collect::<Vec<_>>();
        let source = format!(
            "sim:gpus={},shape=sine:10-90:60s,noise=5,pods={}",
            self.args.gpus,
            pods.join("+")
        );
        let source: SourceSpec = source.parse().map_err(|error| anyhow::anyhow!("{error}"))?;
        let name: NodeName = format!("n{node}").as_str().into();
        let mut config = RunConfig::new(self.urls[0].clone(), name, source);
        config.gateways.clone_from(&self.urls);
        config.interval = Duration::from_millis(self.args.interval);
        let stop = CancellationToken::new();
        let task = tokio::spawn(App::build(config)?.run(stop.clone()));
        Ok(Running { stop, task })
    }

    /// Starts all of them, spread so that their ticks are.
    async fn start(&mut self, progress: Progress) -> anyhow::Result<()> {
        for node in 0..self.args.nodes {
            let agent = self.agent(node)?;
            self.agents.push(agent);
            if (node as usize + 1).is_multiple_of(STARTS) {
                progress.step(&format!("{} agents", node + 1));
            }
            sleep(Duration::from_secs(1) / STARTS as u32).await;
        }
        Ok(())
    }

    /// Stops some and starts them again, for so long.
    async fn churn(&mut self, length: Duration) -> anyhow::Result<u64> {
        let (end, mut count) = (Instant::now() + length, 0);
        while Instant::now() < end {
            let node = fastrand::usize(..self.agents.len());
            let new = self.agent(u32::try_from(node)?)?;
            let old = std::mem::replace(&mut self.agents[node], new);
            old.stop.cancel();
            old.task.await??;
            count += 1;
            sleep(Duration::from_secs(1) / self.args.churn).await;
        }
        Ok(count)
    }

    async fn stop(self) -> anyhow::Result<()> {
        self.agents.iter().for_each(|agent| agent.stop.cancel());
        for agent in self.agents {
            agent.task.await??;
        }
        Ok(())
    }
}

/// Measures; says whether all is good.
///
/// # Errors
/// When a server or an agent does not start or ends badly.
pub async fn run(mut args: FleetArgs) -> anyhow::Result<bool> {
    if args.short {
        args.nodes = args.nodes.min(200);
        (args.rounds, args.seconds) = (args.rounds.min(3), args.seconds.min(4.0));
    }
    let connections = args.nodes as usize * if args.gateway.is_some() { 1 } else { 2 };
    let limit = open_files()?;
    anyhow::ensure!(
        connections + SPARE <= limit,
        "{} nodes need {connections} connections, and this process may open {limit} files; raise ulimit -n or ask for fewer",
        args.nodes
    );
    let progress = Progress::start();
    let report = match args.gateway.clone() {
        Some(url) => against(&args, url, progress).await?,
        None => beside_floor(&args, progress).await?,
    };
    Ok(args.verdict.tell(&report, args.verdict.judge(args.short)))
}

fn open_files() -> anyhow::Result<usize> {
    let text = std::fs::read_to_string("/proc/self/limits")?;
    let line = text.lines().find_map(|line| line.strip_prefix("Max open files"));
    let soft = line.and_then(|line| line.split_whitespace().next()).context("/proc/self/limits")?;
    soft.parse().context("Max open files")
}

/// The load alone, against somebody else's gateway.
async fn against(args: &FleetArgs, url: String, progress: Progress) -> anyhow::Result<Report> {
    let mut fleet = Fleet { args: args.clone(), urls: vec![url], agents: Vec::new() };
    fleet.start(progress).await?;
    let mut report = Report::default();
    let length = Duration::from_secs_f64(args.seconds);
    let mut cpu = Vec::new();
    for n in 1..=args.rounds {
        progress.step(&format!("round {n}"));
        let before = args.pid.map(server::cpu).transpose()?;
        sleep(length).await;
        let after = args.pid.map(server::cpu).transpose()?;
        if let (Some(before), Some(after)) = (before, after) {
            cpu.push(per_message(args, after.saturating_sub(before), length));
        }
    }
    report.row("server CPU a message", "us", &cpu[..]);
    if let Some(pid) = args.pid {
        report.row("server's memory", "MiB", server::rss(pid)?);
    }
    if args.churn > 0 {
        progress.step("agents come and go");
        let count = fleet.churn(length).await?;
        report.row("agents restarted", "", count as f64);
    }
    fleet.stop().await?;
    Ok(report)
}

async fn beside_floor(args: &FleetArgs, progress: Progress) -> anyhow::Result<Report> {
    let folder = tempfile::tempdir()?;
    let directory = folder.path().join("directory.yaml");
    std::fs::write(&directory, directory_text(args))?;
    let (bare, mut own) = (Server::start(&Kind::Floor)?, Server::gateway(&directory)?);
    let mut report = Report::default();
    sleep(Duration::from_secs(2)).await;
    let idle = own.rss()?;
    report.row("gateway's memory, idle", "MiB", idle);
    if args.scaled == 0 && !args.short {
        report.budget("gateway's memory, idle, MiB", 16.0, idle);
    }
    let urls = [&bare, &own].map(|server| format!("http://{}", server.agents)).to_vec();
    let mut fleet = Fleet { args: args.clone(), urls, agents: Vec::new() };
    fleet.start(progress).await?;
    sleep(Duration::from_secs(3) + 2 * Duration::from_millis(args.interval)).await;
    let length = Duration::from_secs_f64(args.seconds);
    let (mut floor_cpu, mut own_cpu) = (Vec::new(), Vec::new());
    for n in 1..=args.rounds {
        progress.step(&format!("round {n}"));
        let (bare_before, own_before) = (bare.cpu()?, own.cpu()?);
        let start = Instant::now();
        sleep(length).await;
        let (bare_after, own_after, took) = (bare.cpu()?, own.cpu()?, start.elapsed());
        floor_cpu.push(per_message(args, bare_after.saturating_sub(bare_before), took));
        own_cpu.push(per_message(args, own_after.saturating_sub(own_before), took));
    }
    ingest(args, &mut report, &floor_cpu, &own_cpu);
    memory(args, &mut report, bare.rss()?, own.rss()?);
    // Not before: a page about all of them takes memory.
    spoken(&own, args.nodes).await?;
    if args.churn > 0 {
        progress.step("agents come and go");
        let count = fleet.churn(length).await?;
        report.row("agents restarted", "", count as f64);
        spoken(&own, args.nodes).await?;
    }
    if args.restart {
        progress.step("the gateway is killed");
        let agents = Some(own.agents);
        drop(own);
        let start = Instant::now();
        own = Server::start(&Kind::Gateway { directory, agents, demand_allow: Vec::new() })?;
        spoken(&own, args.nodes).await?;
        report.row("all back after a restart of the gateway", "s", start.elapsed().as_secs_f64());
    }
    fleet.stop().await?;
    Ok(report)
}

fn ingest(args: &FleetArgs, report: &mut Report, floor: &[f64], own: &[f64]) {
    let (nodes, gpus) = (args.nodes, args.gpus);
    let size = format!("{nodes} nodes x {gpus} GPUs every {} ms", args.interval);
    report.row(format!("server CPU a message, floor, {size}"), "us", floor);
    report.beside(format!("server CPU a message, gateway, {size}"), "us", own, floor);
    let ratio = Rounds::ratios(own, floor);
    report.budget("ingest: CPU a message by the floor's", 1.3, ratio);
    // One message a node and interval, at what it costs here.
    let at = |nodes: f64| move |micros: &f64| nodes * micros / (args.interval as f64 * 1e3) * 100.0;
    report.row(
        format!("the same for {nodes} nodes"),
        "% of a core",
        own.iter().map(at(f64::from(nodes))).collect::<Rounds>(),
    );
    let large: Rounds = own.iter().map(at(10_000.0)).collect();
    report.row("by calculation for 10,000 nodes", "% of a core", large.clone());
    if args.interval >= 1_000 && !args.short {
        report.budget("ingest: 10,000 nodes by calculation, % of a core", 100.0, large);
    }
}

fn memory(args: &FleetArgs, report: &mut Report, bare: f64, own: f64) {
    report.row("floor's memory with all connections", "MiB", bare);
    report.row("gateway's memory with all connections", "MiB", own);
    let devices = f64::from(args.nodes * args.gpus);
    let extra = (own - bare) * 1024.0 / devices;
    report.row("gateway's memory above the floor's, a device", "KiB", extra);
    if args.scaled == 0 && args.nodes >= 100 && !args.short {
        let limit = 1.2 * bare + devices / 1024.0;
        report.budget("ingest: memory, MiB (1.2 x the floor's and 1 KiB a device)", limit, own);
    }
}

/// CPU in microseconds of one of the messages that came in `took`.
fn per_message(args: &FleetArgs, cpu: Duration, took: Duration) -> f64 {
    let messages = f64::from(args.nodes) * took.as_secs_f64() * 1e3 / args.interval as f64;
    cpu.as_secs_f64() * 1e6 / messages
}

/// The directory file: a Deployment of each of the first `scaled` nodes.
fn directory_text(args: &FleetArgs) -> String {
    let (mut workloads, mut objects) = (String::new(), String::new());
    for node in 0..args.scaled.min(args.nodes) {
        let pod = |gpu| format!("{{name: p{node}-{gpu}, node: n{node}, ready: true}}");
        let pods = (0..args.gpus).map(pod).collect::<Vec<_>>().join(", ");
        workloads += &format!(
            "  - {{namespace: ml, kind: Deployment, name: d{node}, replicas: {}, pods: [{pods}]}}\n",
            args.gpus
        );
        objects += &format!("  - {{namespace: ml, name: so{node}, target: {{name: d{node}}}}}\n");
    }
    if objects.is_empty() {
        return "workloads: []\nscaledObjects: []\n".to_owned();
    }
    format!("workloads:\n{workloads}scaledObjects:\n{objects}")
}

/// Waits until the gateway has a fresh word of every node.
async fn spoken(gateway: &Server, nodes: u32) -> anyhow::Result<()> {
    let end = Instant::now() + Duration::from_secs(120);
    loop {
        let page = explain::get(gateway.http, "/api/v1/nodes").await;
        let heard = page.as_ref().map_or(0, heard);
        if heard >= u64::from(nodes) {
            return Ok(());
        }
        anyhow::ensure!(Instant::now() < end, "only {heard} of {nodes} nodes have spoken");
        sleep(Duration::from_millis(250)).await;
    }
}

/// Nodes on the page that have a session.
fn heard(page: &Value) -> u64 {
    let nodes = page.pointer("/nodes").or(Some(page)).and_then(Value::as_array);
    let has_session =
        |node: &&Value| node["sessions"].as_u64().is_some_and(|sessions| sessions > 0);
    nodes.map_or(0, |nodes| nodes.iter().filter(has_session).count() as u64)
}
