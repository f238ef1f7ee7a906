//! Flags of the subcommands that show the node here, with no gateway.

use std::io::{self, IsTerminal as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use shared::identity::NodeName;

use super::owners::{OwnerArgs, OwnerConfig};
use super::{CredentialArgs, DEFAULT_INTERVAL, NodeArgs, SourceArgs, interval, listen};
use crate::device::SourceSpec;
use crate::device::replay::ReplayEnd;
use crate::engine::address::{self, PageAddress};
use crate::local::Format;
use crate::local::doctor;
use crate::uplink::address::Gateway;

/// What reading a node needs to know.
#[derive(Clone, Debug, PartialEq)]
pub struct ReadConfig {
    /// The node that is read.
    pub node: NodeName,
    /// Where readings come from.
    pub source: SourceSpec,
    /// Time between two samples.
    pub interval: Duration,
    /// The holders file.
    pub holders: Option<PathBuf>,
    /// What else tells who holds what.
    pub owners: OwnerConfig,
    /// What happens after the last line of a recording.
    pub replay_end: ReplayEnd,
}

/// What is read, and through what.
#[derive(Clone, Debug, Args)]
pub struct ReadArgs {
    #[command(flatten)]
    node: NodeArgs,
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    owners: OwnerArgs,
}

impl ReadArgs {
    /// The resolved form of the flags, for samples every `interval`.
    ///
    /// # Errors
    /// When no name for the node is to be had.
    pub fn resolve(self, interval: Duration) -> anyhow::Result<ReadConfig> {
        Ok(ReadConfig {
            node: self.node.name()?,
            owners: self.owners.resolve(&self.source),
            source: self.source.spec(),
            interval,
            holders: self.source.holders,
            replay_end: self.source.replay_end,
        })
    }

    /// The same with the interval where nothing else is said.
    ///
    /// # Errors
    /// When no name for the node is to be had.
    pub fn resolve_once(self) -> anyhow::Result<ReadConfig> {
        self.resolve(DEFAULT_INTERVAL)
    }
}

/// Flags of `snapshot`.
#[derive(Clone, Debug, Args)]
pub struct SnapshotArgs {
    /// What is read.
    #[command(flatten)]
    pub read: ReadArgs,
    /// Form of what is printed.
    #[arg(
        short,
        long,
        value_name = "FORM",
        env = "GPU_AGENT_SNAPSHOT_OUTPUT",
        default_value = "table"
    )]
    pub output: Format,
}

/// Flags of `serve`.
#[derive(Clone, Debug, Args)]
pub struct ServeArgs {
    /// What is read.
    #[command(flatten)]
    pub read: ReadArgs,
    /// Where /metrics, /healthz and /api/v1/devices are served.
    #[arg(
        long,
        value_name = "ADDR",
        env = "GPU_AGENT_HTTP_LISTEN",
        default_value = "127.0.0.1:9400",
        value_parser = listen
    )]
    pub http_listen: SocketAddr,
    /// Time between two samples, 100ms to 60s.
    #[arg(long, env = "GPU_AGENT_INTERVAL", default_value = "500ms", value_parser = interval)]
    pub interval: Duration,
}

/// Flags of `record`.
#[derive(Clone, Debug, Args)]
pub struct RecordArgs {
    /// File to write; one that has something in it is refused.
    pub file: PathBuf,
    /// What is read.
    #[command(flatten)]
    pub read: ReadArgs,
    /// How long to record, for example 10m [default: until interrupted].
    #[arg(
        long = "for",
        value_name = "DURATION",
        env = "GPU_AGENT_RECORD_FOR",
        value_parser = length
    )]
    pub length: Option<Duration>,
    /// Overwrite a file that has something in it.
    #[arg(long, env = "GPU_AGENT_RECORD_FORCE")]
    pub force: bool,
    /// Time between two lines, 100ms to 60s.
    #[arg(long, env = "GPU_AGENT_INTERVAL", default_value = "500ms", value_parser = interval)]
    pub interval: Duration,
}

/// What `top` needs to know.
#[derive(Clone, Debug, PartialEq)]
pub struct TopConfig {
    /// What is read here.
    pub read: ReadConfig,
    /// The running agent that is asked instead.
    pub from: Option<PageAddress>,
    /// Whether colours are welcome; see no-color.org.
    pub has_colours: bool,
}

/// Flags of `top`.
#[derive(Clone, Debug, Args)]
pub struct TopArgs {
    /// What is read.
    #[command(flatten)]
    pub read: ReadArgs,
    /// Show what the agent that serves this address shows (its --http-listen), instead of reading
    /// the GPUs: http://IP:PORT. It also reads the engines that a gateway told it of.
    #[arg(long, value_name = "URL", env = "GPU_AGENT_TOP_FROM", value_parser = agent)]
    pub from: Option<PageAddress>,
    /// Print one frame as plain text and end.
    #[arg(long, env = "GPU_AGENT_TOP_ONCE")]
    pub once: bool,
    /// Time between two frames, 100ms to 60s.
    #[arg(long, env = "GPU_AGENT_INTERVAL", default_value = "500ms", value_parser = interval)]
    pub interval: Duration,
}

impl TopArgs {
    /// The resolved form of the flags.
    ///
    /// # Errors
    /// When no name for the node is to be had.
    pub fn resolve(self) -> anyhow::Result<TopConfig> {
        let has_colours = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let read = self.read.resolve(self.interval)?;
        Ok(TopConfig { read, from: self.from, has_colours })
    }

    /// Whether it is looked at in a terminal that can be drawn on, rather than printed.
    pub fn is_live(&self) -> bool {
        let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        !self.once && !is_dumb && io::stdout().is_terminal() && io::stdin().is_terminal()
    }
}

/// Flags of `doctor`.
#[derive(Clone, Debug, Args)]
pub struct DoctorArgs {
    /// What is read.
    #[command(flatten)]
    pub read: ReadArgs,
    /// Form of what is printed.
    #[arg(
        short,
        long,
        value_name = "FORM",
        env = "GPU_AGENT_DOCTOR_OUTPUT",
        default_value = "text"
    )]
    pub output: doctor::Format,
    /// Page of an inference engine to look at too, http://IP:PORT/PATH. Repeatable.
    #[arg(
        long = "engine-page",
        value_name = "URL",
        env = "GPU_AGENT_ENGINE_PAGES",
        value_delimiter = ','
    )]
    pub engine_pages: Vec<PageAddress>,
    /// Gateway to look for too, http://HOST:PORT; nothing is pushed to it. Repeatable.
    #[arg(long = "gateway", value_name = "URL", env = "GPU_AGENT_GATEWAY", value_delimiter = ',')]
    pub gateways: Vec<Gateway>,
    /// What is shown to the gateways.
    #[command(flatten)]
    pub credentials: CredentialArgs,
}

fn agent(text: &str) -> Result<PageAddress, String> {
    let right = "write http://IP:PORT, for example http://127.0.0.1:9400";
    text.parse().map_err(|error: address::Error| format!("{}; {right}", error.why()))
}

fn length(text: &str) -> Result<Duration, String> {
    let length = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if length.is_zero() { Err("write a time longer than 0".into()) } else { Ok(length) }
}
