//! Flags and environment; the crate's only reader of either.
//!
//! Guarantees: past this file nothing is text that still has to be understood.

/// Every command and flag, as the reference lists them.
#[cfg(test)]
mod reference;

use std::io::IsTerminal as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, CommandFactory as _, Parser, Subcommand, ValueEnum};
use shared::identity::NodeName;
use shared::process::{BUILD, LogFormat};

use crate::device::SourceSpec;
use crate::device::replay::ReplayEnd;
use crate::engine;
use crate::uplink::address::Gateway;
use crate::uplink::credentials::Files;

/// Flags of the subcommands that show the node here.
pub mod alone;
/// Flags about who holds what.
pub mod owners;

use alone::{DoctorArgs, RecordArgs, ServeArgs, SnapshotArgs, TopArgs};
use owners::{OwnerArgs, OwnerConfig};

/// Time between two samples where nothing else is said.
pub const DEFAULT_INTERVAL: Duration = Duration::from_millis(500);
const SHORTEST_INTERVAL: Duration = Duration::from_millis(100);
const SHORTEST_ENGINE_INTERVAL: Duration = Duration::from_millis(500);
const LONGEST_INTERVAL: Duration = Duration::from_secs(60);

/// What `run` needs to know.
#[derive(Clone, Debug, PartialEq)]
pub struct RunConfig {
    /// Gateways, each `http://HOST:PORT` or `https://HOST:PORT`.
    pub gateways: Vec<String>,
    /// The node the agent speaks for.
    pub node: NodeName,
    /// What it shows the gateways.
    pub credentials: Files,
    /// Where readings come from.
    pub source: SourceSpec,
    /// Time between two samples.
    pub interval: Duration,
    /// Time between two scrapes of an engine.
    pub engine_interval: Duration,
    /// The holders file.
    pub holders: Option<PathBuf>,
    /// What else tells who holds what.
    pub owners: OwnerConfig,
    /// What happens after the last line of a recording.
    pub replay_end: ReplayEnd,
    /// Where the local pages are served, beside the uplink.
    pub http_listen: Option<SocketAddr>,
}

impl RunConfig {
    /// An agent for `node` with every default.
    pub fn new(gateway: impl Into<String>, node: NodeName, source: SourceSpec) -> Self {
        Self {
            gateways: vec![gateway.into()],
            node,
            credentials: Files::default(),
            owners: OwnerConfig::of(&source),
            source,
            interval: DEFAULT_INTERVAL,
            engine_interval: engine::DEFAULT_INTERVAL,
            holders: None,
            replay_end: ReplayEnd::default(),
            http_listen: None,
        }
    }
}

/// The command line.
#[derive(Debug, Parser)]
#[command(
    name = "gpu-agent",
    version = BUILD,
    about = "Samples the GPUs of one node and pushes who holds them, and how busy they are, to the gateways"
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// What to log, for example `warn,agent=debug` [default: info; error where the answer is
    /// printed].
    #[arg(long, env = "GPU_AGENT_LOG_FILTER", global = true)]
    log_filter: Option<String>,
    /// Form of the log on standard error.
    #[arg(long, env = "GPU_AGENT_LOG_FORMAT", default_value = "text", global = true)]
    log_format: Format,
}

/// Commands of the gateway that somebody may look for here.
const OF_THE_GATEWAY: [&str; 3] = ["explain", "check", "ledger"];

impl Cli {
    /// The command line of this process; where it is wrong, says so and ends the process.
    pub fn read() -> Self {
        let refused = |error: clap::Error| {
            let name = match error.get(ContextKind::InvalidSubcommand) {
                Some(ContextValue::String(name)) if OF_THE_GATEWAY.contains(&&**name) => name,
                _ => error.exit(),
            };
            let why = format!("{name} is a command of gpu-gateway");
            Self::command().error(ErrorKind::InvalidSubcommand, why).exit()
        };
        Self::try_parse().unwrap_or_else(refused)
    }

    /// What to log.
    pub fn log_filter(&self) -> &str {
        let unasked = match &self.command {
            // Lines of a log would be written across the screen.
            Command::Top(args) if args.is_live() && std::io::stderr().is_terminal() => return "off",
            Command::Run(_) | Command::Serve(_) | Command::Record(_) => "info",
            // Its answer says what is wrong.
            Command::Snapshot(_) | Command::Top(_) | Command::Doctor(_) => "error",
        };
        self.log_filter.as_deref().unwrap_or(unasked)
    }

    /// Form of the log.
    pub fn log_format(&self) -> LogFormat {
        match self.log_format {
            Format::Text => LogFormat::Text,
            Format::Json => LogFormat::Json,
        }
    }
}

/// What the agent can be asked to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Push to the gateways until told to stop.
    Run(RunArgs),
    /// Print what the node shows now, once, with no gateway.
    Snapshot(SnapshotArgs),
    /// Serve /metrics, /healthz and /api/v1/devices here, with no gateway.
    Serve(ServeArgs),
    /// Write what the node shows to a file, one line a sample, for `--source replay:FILE`.
    Record(RecordArgs),
    /// Show which pod is on which GPU, in the terminal; plain text where there is none.
    Top(TopArgs),
    /// Look where the way from the driver to the readings is broken, and say what to do next.
    Doctor(DoctorArgs),
}

/// Flags of `run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Gateway as http://HOST:PORT or https://HOST:PORT; every address of HOST gets its own
    /// stream. Repeatable.
    #[arg(
        long = "gateway",
        value_name = "URL",
        env = "GPU_AGENT_GATEWAY",
        required = true,
        value_delimiter = ',',
        value_parser = gateway
    )]
    gateways: Vec<String>,
    /// What it shows them.
    #[command(flatten)]
    credentials: CredentialArgs,
    /// Whom it speaks for.
    #[command(flatten)]
    node: NodeArgs,
    /// What the node is read through.
    #[command(flatten)]
    source: SourceArgs,
    /// Who holds what.
    #[command(flatten)]
    owners: OwnerArgs,
    /// Time between two samples, 100ms to 60s.
    #[arg(long, env = "GPU_AGENT_INTERVAL", default_value = "500ms", value_parser = interval)]
    interval: Duration,
    /// Time between two scrapes of an inference engine, 500ms to 60s.
    #[arg(long, env = "GPU_AGENT_ENGINE_INTERVAL", default_value = "1s", value_parser = engine_interval)]
    engine_interval: Duration,
    /// Serve /metrics, /healthz and /api/v1/devices here too [default: off].
    #[arg(long, value_name = "ADDR", env = "GPU_AGENT_HTTP_LISTEN", value_parser = listen)]
    http_listen: Option<SocketAddr>,
}

impl RunArgs {
    /// The resolved form of the flags.
    ///
    /// # Errors
    /// When no name for the node is to be had.
    pub fn resolve(self) -> anyhow::Result<RunConfig> {
        Ok(RunConfig {
            gateways: self.gateways,
            node: self.node.name()?,
            credentials: self.credentials.files(),
            owners: self.owners.resolve(&self.source),
            source: self.source.spec(),
            interval: self.interval,
            engine_interval: self.engine_interval,
            holders: self.source.holders,
            replay_end: self.source.replay_end,
            http_listen: self.http_listen,
        })
    }
}

/// Flags about TLS and identity.
#[derive(Clone, Debug, Args)]
pub struct CredentialArgs {
    /// CAs of the gateways' certificates, PEM; needed for https://. The files of these flags are
    /// read again for every connection.
    #[arg(long, value_name = "FILE", env = "GPU_AGENT_GATEWAY_CA")]
    gateway_ca: Option<PathBuf>,
    /// Client certificate with the node's name, PEM.
    #[arg(long, value_name = "FILE", env = "GPU_AGENT_TLS_CERT", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Private key of --tls-cert, PEM.
    #[arg(long, value_name = "FILE", env = "GPU_AGENT_TLS_KEY", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Projected service-account token, sent with every stream.
    #[arg(long, value_name = "FILE", env = "GPU_AGENT_TOKEN_FILE")]
    token_file: Option<PathBuf>,
}

impl CredentialArgs {
    /// The files.
    pub fn files(self) -> Files {
        let certificate = self.tls_cert.zip(self.tls_key);
        Files { gateway_ca: self.gateway_ca, certificate, token: self.token_file }
    }
}

/// Flags that name the node.
#[derive(Clone, Debug, Args)]
pub struct NodeArgs {
    /// Node to speak for [default: $NODE_NAME, then the host name].
    #[arg(long, value_name = "NAME", env = "GPU_AGENT_NODE")]
    node: Option<String>,
    /// Stands for the environment variable that a pod's `fieldRef` usually fills.
    #[arg(long, env = "NODE_NAME", hide = true)]
    node_name: Option<String>,
}

impl NodeArgs {
    fn name(self) -> anyhow::Result<NodeName> {
        let given = [self.node, self.node_name].into_iter().flatten();
        match given.map(|name| name.trim().to_owned()).find(|name| !name.is_empty()) {
            Some(node) => Ok(node.into()),
            None => Ok(host_name()?.into()),
        }
    }
}

/// Flags of every subcommand that reads the node.
#[derive(Clone, Debug, Args)]
pub struct SourceArgs {
    /// Where readings come from: nvml, replay:FILE or sim:SPEC.
    #[arg(long, env = "GPU_AGENT_SOURCE", default_value = "nvml")]
    source: SourceSpec,
    /// NVIDIA's management library [default: libnvidia-ml.so.1, as the system finds it].
    #[arg(long, value_name = "PATH", env = "GPU_AGENT_NVML_LIBRARY")]
    nvml_library: Option<PathBuf>,
    /// YAML or JSON file: device UUID → holders, instead of what the source says.
    #[arg(long, value_name = "FILE", env = "GPU_AGENT_HOLDERS")]
    pub holders: Option<PathBuf>,
    /// What happens after the last line of a recording.
    #[arg(long, env = "GPU_AGENT_REPLAY_END", default_value = "hold")]
    pub replay_end: ReplayEnd,
}

impl SourceArgs {
    /// The source, with everything that was said about it.
    pub fn spec(&self) -> SourceSpec {
        match &self.source {
            SourceSpec::Nvml { .. } => SourceSpec::Nvml { library: self.nvml_library.clone() },
            other => other.clone(),
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    Text,
    Json,
}

fn gateway(text: &str) -> Result<String, crate::uplink::address::Error> {
    text.parse().map(|gateway: Gateway| gateway.to_string())
}

fn listen(text: &str) -> Result<SocketAddr, &'static str> {
    text.parse().map_err(|_| "write IP:PORT, for example 127.0.0.1:9400")
}

fn interval(text: &str) -> Result<Duration, String> {
    duration(text, SHORTEST_INTERVAL)
}

fn engine_interval(text: &str) -> Result<Duration, String> {
    duration(text, SHORTEST_ENGINE_INTERVAL)
}

fn duration(text: &str, shortest: Duration) -> Result<Duration, String> {
    let interval = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if (shortest..=LONGEST_INTERVAL).contains(&interval) {
        Ok(interval)
    } else {
        Err(format!("write a time from {shortest:?} to 60s"))
    }
}

fn host_name() -> anyhow::Result<String> {
    const KERNEL: &str = "/proc/sys/kernel/hostname";
    let name = std::fs::read_to_string(KERNEL)
        .with_context(|| format!("{KERNEL} cannot be read; name the node with --node"))?;
    Ok(name.trim().to_owned())
}
