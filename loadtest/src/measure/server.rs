//! A server as a process of its own: started, measured, and ended with the run.
//!
//! Guarantees: it ends when the process that started it does; CPU time is that of its threads, in
//! nanoseconds; a process that cannot be read is an error and not a zero.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Subcommand;
use gateway::config::ServeConfig;
use tokio_util::sync::CancellationToken;

use crate::measure::floor;

/// Which server; also the hidden command line of its process.
#[derive(Clone, Debug, Subcommand)]
pub enum Kind {
    /// Bare services with the same messages.
    Floor,
    /// The gateway.
    Gateway {
        /// Its directory file.
        directory: PathBuf,
        /// Where agents are taken, if not on a free port.
        #[arg(long)]
        agents: Option<SocketAddr>,
        /// `--demand-allow`.
        #[arg(long)]
        demand_allow: Vec<String>,
    },
}

/// A running server.
#[derive(Debug)]
pub struct Server {
    child: Child,
    /// Where KEDA calls.
    pub keda: SocketAddr,
    /// Where agents push.
    pub agents: SocketAddr,
    /// Pages; of the floor the address of nobody.
    pub http: SocketAddr,
}

impl Server {
    /// A gateway with the directory in `file`.
    ///
    /// # Errors
    /// When it does not start.
    pub fn gateway(file: &Path) -> anyhow::Result<Self> {
        Self::start(&Kind::Gateway { directory: file.into(), agents: None, demand_allow: vec![] })
    }

    /// Starts it and waits until it listens.
    ///
    /// # Errors
    /// When it does not start.
    pub fn start(kind: &Kind) -> anyhow::Result<Self> {
        // This very program, also where its file has been replaced meanwhile.
        let mut command = Command::new("/proc/self/exe");
        command.arg("serve");
        match kind {
            Kind::Floor => command.arg("floor"),
            Kind::Gateway { directory, agents, demand_allow } => {
                command.arg("gateway").arg(directory);
                command.args(agents.map(|address| format!("--agents={address}")));
                command.args(demand_allow.iter().map(|origin| format!("--demand-allow={origin}")))
            }
        };
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let output = child.stdout.take().context("its output is piped")?;
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        let addresses: Result<Vec<SocketAddr>, _> =
            line.split_whitespace().map(str::parse).collect();
        let addresses = addresses.with_context(|| format!("the server said {line:?}"))?;
        let [keda, agents, http] = addresses[..] else {
            child.kill().ok();
            bail!("{kind:?} did not start; it said {line:?}");
        };
        Ok(Self { child, keda, agents, http })
    }

    /// CPU time of its threads so far.
    ///
    /// # Errors
    /// When it is gone.
    pub fn cpu(&self) -> anyhow::Result<Duration> {
        cpu(self.child.id())
    }

    /// Resident memory in MiB.
    ///
    /// # Errors
    /// When it is gone.
    pub fn rss(&self) -> anyhow::Result<f64> {
        rss(self.child.id())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// CPU time of a process's threads: the first field of `schedstat`, which is finer than the ticks
/// of `stat` (proc(5)).
///
/// # Errors
/// When there is no such process.
pub fn cpu(pid: u32) -> anyhow::Result<Duration> {
    let mut nanos = 0;
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).context("the server has ended")? {
        // A thread may end meanwhile.
        let Ok(text) = std::fs::read_to_string(task?.path().join("schedstat")) else { continue };
        let ran = text.split_whitespace().next().context("schedstat")?;
        nanos += ran.parse::<u64>().context("schedstat")?;
    }
    Ok(Duration::from_nanos(nanos))
}

/// Resident memory of a process in MiB.
///
/// # Errors
/// When there is no such process.
pub fn rss(pid: u32) -> anyhow::Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("VmRSS")?;
    let kib: f64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kib / 1024.0)
}

/// The other side: serves in this process until standard input ends.
///
/// # Errors
/// When it cannot listen.
pub async fn serve(kind: Kind) -> anyhow::Result<()> {
    let stop = CancellationToken::new();
    let ended = stop.clone();
    std::thread::spawn(move || {
        std::io::stdin().read_to_end(&mut Vec::new()).ok();
        ended.cancel();
    });
    match kind {
        Kind::Floor => {
            let floor = floor::Floor::bind().await?;
            announce([floor.keda, floor.agents, SocketAddr::from(([0, 0, 0, 0], 0))])?;
            floor.run(stop).await
        }
        Kind::Gateway { directory, agents, demand_allow } => {
            let mut config = ServeConfig::local(directory);
            config.demand_allow = demand_allow;
            config.agent_listen = agents.unwrap_or(config.agent_listen);
            let app = gateway::app::App::build(config).await?;
            announce([app.keda_addr(), app.agent_addr(), app.http_addr()])?;
            app.run(stop).await
        }
    }
}

fn announce([keda, agents, http]: [SocketAddr; 3]) -> anyhow::Result<()> {
    println!("{keda} {agents} {http}");
    std::io::stdout().flush()?;
    Ok(())
}
