//! Flags and environment → each part's settings. Nothing else in the crate reads either.

/// Flags about who may connect.
pub mod identity;
/// A command line that is refused.
pub mod refused;
/// Flags about what GPUs cost.
pub mod tariff;

/// Every command and flag, as the reference lists them.
#[cfg(test)]
mod reference;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use hyper::Uri;
use shared::process::{BUILD, LogFormat};

use self::identity::{IdentityArgs, IdentityConfig};
use self::tariff::TariffArgs;
use crate::check::RULES;
use crate::ledger::render::By;
use crate::ledger::tariff::Tariff;
use crate::limit::Connections;
use crate::trigger::number;
use crate::trigger::spec::DemandEndpoint;

/// The central gateway of keda-gpu-gateway.
#[derive(Debug, Parser)]
#[command(name = "gpu-gateway", version = BUILD, about, arg_required_else_help = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// What is logged: `info`, or per module `info,gateway::ingest=debug`. The Kubernetes client
    /// is off by default: what goes wrong there is said once by the directory
    #[arg(
        long,
        global = true,
        env = "GPU_GATEWAY_LOG_FILTER",
        default_value = "info,kube_client=off,kube_runtime=off"
    )]
    pub log_filter: String,
    /// How it is logged
    #[arg(long, global = true, env = "GPU_GATEWAY_LOG_FORMAT", default_value = "text")]
    pub log_format: LogFormatArg,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Take the agents' readings and answer KEDA
    Serve(Box<Serve>),
    /// Say why a ScaledObject gets the answer it gets
    Explain(Explain),
    /// Say who held which GPU for how long, and what energy that took
    Ledger(Ledger),
    /// Say what is unsound in ScaledObjects and ScaledJobs, from their YAML alone
    Check(Check),
}

/// `text` or `json`.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum LogFormatArg {
    /// For people
    Text,
    /// One JSON object a line
    Json,
}

/// Where a port listens.
fn listen(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "write IP:PORT, for example 127.0.0.1:6001".into())
}

impl From<LogFormatArg> for LogFormat {
    fn from(format: LogFormatArg) -> Self {
        match format {
            LogFormatArg::Text => Self::Text,
            LogFormatArg::Json => Self::Json,
        }
    }
}

/// Flags of `serve`.
#[derive(Debug, Args)]
pub struct Serve {
    /// Where KEDA calls
    #[arg(long, env = "GPU_GATEWAY_KEDA_LISTEN", default_value = "0.0.0.0:6000", value_parser = listen)]
    pub keda_listen: SocketAddr,
    /// Where agents push
    #[arg(long, env = "GPU_GATEWAY_AGENT_LISTEN", default_value = "0.0.0.0:6001", value_parser = listen)]
    pub agent_listen: SocketAddr,
    /// Where probes, metrics and the API are read
    #[arg(long, env = "GPU_GATEWAY_HTTP_LISTEN", default_value = "0.0.0.0:8080", value_parser = listen)]
    pub http_listen: SocketAddr,
    /// Where ScaledObjects and pods are known from: `kube` or `file:PATH`
    #[arg(long, env = "GPU_GATEWAY_DIRECTORY", default_value = "kube")]
    pub directory: DirectorySource,
    /// Only these namespaces are watched, with --directory kube; all if not given
    #[arg(long, env = "GPU_GATEWAY_NAMESPACES", value_delimiter = ',', value_name = "NAMESPACE")]
    pub namespaces: Vec<String>,
    /// With --directory kube: answer UNAVAILABLE when the API server has been away for this long
    #[arg(long, env = "GPU_GATEWAY_DIRECTORY_MAX_AGE", default_value = "10m", value_parser = max_age)]
    pub directory_max_age: Duration,
    /// With --directory kube: this file, instead of the service account or KUBECONFIG
    #[arg(long, env = "GPU_GATEWAY_KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,
    /// Who may connect.
    #[command(flatten)]
    pub identity: IdentityArgs,
    /// Own trigger profiles: a YAML map from name to metadata keys
    #[arg(long, env = "GPU_GATEWAY_PROFILES")]
    pub profiles: Option<PathBuf>,
    /// Demand endpoints at this origin, such as `http://router.infra:9090`, are read from any
    /// namespace and whatever its address is; it is looked up as written
    #[arg(
        long,
        env = "GPU_GATEWAY_DEMAND_ALLOW",
        value_delimiter = ',',
        value_name = "ORIGIN",
        value_parser = origin
    )]
    pub demand_allow: Vec<String>,
    /// Connections that KEDA's port holds at most; one peer may have a quarter of them
    #[arg(long, env = "GPU_GATEWAY_KEDA_CONNECTIONS", default_value = "4096", value_parser = many)]
    pub keda_connections: usize,
    /// Connections that the agents' port holds at most; one peer may have a quarter of them
    #[arg(long, env = "GPU_GATEWAY_AGENT_CONNECTIONS", default_value = "24000", value_parser = many)]
    pub agent_connections: usize,
    /// Connections that the HTTP port holds at most; one peer may have a quarter of them
    #[arg(long, env = "GPU_GATEWAY_HTTP_CONNECTIONS", default_value = "512", value_parser = many)]
    pub http_connections: usize,
    /// KEDA's connections are ended gently, and their streams with OK, when they are this old, give
    /// or take a fifth, so that new replicas are met; at least 1m
    #[arg(
        long,
        env = "GPU_GATEWAY_CONNECTION_AGE",
        default_value = "30m",
        value_name = "DURATION",
        value_parser = connection_age
    )]
    pub connection_age: Duration,
    /// What GPUs cost.
    #[command(flatten)]
    pub tariff: TariffArgs,
}

/// Fewer than these leave no room for probes or for more than one peer.
const LEAST_CONNECTIONS: usize = 16;
const MOST_CONNECTIONS: usize = 1_000_000;

fn many(text: &str) -> Result<usize, String> {
    let range = LEAST_CONNECTIONS..=MOST_CONNECTIONS;
    let number: Option<usize> = text.parse().ok().filter(|number| range.contains(number));
    number.ok_or_else(|| format!("{LEAST_CONNECTIONS} to {MOST_CONNECTIONS} are accepted"))
}

/// KEDA waits 2 s before it opens a stream again; what is younger would be away too often.
const LEAST_CONNECTION_AGE: Duration = Duration::from_mins(1);

fn connection_age(text: &str) -> Result<Duration, String> {
    number::duration(text, LEAST_CONNECTION_AGE..=Duration::from_hours(24))
}

/// An origin as demand endpoints are compared with it: always with its port.
fn origin(text: &str) -> Result<String, String> {
    let endpoint = DemandEndpoint::parse(text)?;
    let origin = endpoint.origin();
    let written = text.trim_end_matches('/').to_ascii_lowercase();
    let is_origin = written.starts_with("http://") && !written["http://".len()..].contains('/');
    if is_origin { Ok(origin) } else { Err("write http://HOST:PORT, without a path".into()) }
}

/// Flags of `explain`.
#[derive(Debug, Args)]
pub struct Explain {
    /// The ScaledObject, as NAMESPACE/NAME; all are listed if not given
    pub scaled_object: Option<ObjectArg>,
    /// The gateway's HTTP port
    #[arg(long, env = "GPU_GATEWAY_SERVER", default_value = "http://127.0.0.1:8080")]
    pub server: ServerUrl,
    /// The token of the gateway's HTTP port, if it wants one
    #[arg(long, env = "GPU_GATEWAY_TOKEN_FILE", value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// `table` or `json`
    #[arg(short, long, default_value = "table")]
    pub output: Output,
}

/// Flags of `ledger`.
#[derive(Debug, Args)]
pub struct Ledger {
    /// The gateway's HTTP port
    #[arg(long, env = "GPU_GATEWAY_SERVER", default_value = "http://127.0.0.1:8080")]
    pub server: ServerUrl,
    /// The token of the gateway's HTTP port, if it wants one
    #[arg(long, env = "GPU_GATEWAY_TOKEN_FILE", value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// `table`, `csv` or `json`
    #[arg(short, long, default_value = "table")]
    pub output: LedgerOutput,
    /// With -o csv: what its rows are, workloads if not given
    #[arg(long)]
    pub by: Option<By>,
}

/// How a ledger is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LedgerOutput {
    /// For people
    Table,
    /// For spreadsheets
    Csv,
    /// For programs
    Json,
}

/// Flags of `check`.
#[derive(Debug, Args)]
#[command(after_long_help = rules())]
pub struct Check {
    /// YAML files of any number of documents; `-` is standard input
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// `table` or `json`
    #[arg(short, long, default_value = "table")]
    pub output: Output,
    /// Exit with 1 on warnings too
    #[arg(long)]
    pub strict: bool,
    /// How long a pod takes from being ordered to serving, such as 5m
    #[arg(long, value_name = "DURATION", value_parser = load_time)]
    pub load_time: Option<Duration>,
    /// Own trigger profiles: a YAML map from name to metadata keys
    #[arg(long, env = "GPU_GATEWAY_PROFILES")]
    pub profiles: Option<PathBuf>,
    /// Origins of demand endpoints that the gateway has --demand-allow for
    #[arg(
        long,
        env = "GPU_GATEWAY_DEMAND_ALLOW",
        value_delimiter = ',',
        value_name = "ORIGIN",
        value_parser = origin
    )]
    pub demand_allow: Vec<String>,
}

/// Exit codes and rules, for people.
fn rules() -> String {
    let line = |(rule, meaning): &(&str, &str)| format!("\n  {rule:<16}  {meaning}");
    let codes = "Exit codes: 0 no errors, 1 errors (with --strict also warnings), 2 usage or an unreadable file";
    format!("{codes}\n\nRules:{}\n", RULES.iter().map(line).collect::<String>())
}

fn load_time(text: &str) -> Result<Duration, String> {
    number::duration(text, Duration::from_secs(1)..=Duration::from_hours(24))
}

/// A gateway's HTTP port on the command line.
#[derive(Clone, Debug)]
pub struct ServerUrl(pub Uri);

impl FromStr for ServerUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse::<Uri>() {
            Ok(uri)
                if uri.scheme_str() == Some("http")
                    && uri.host().is_some()
                    && uri.path() == "/"
                    && uri.query().is_none() =>
            {
                Ok(Self(uri))
            }
            _ => {
                Err("write http://HOST:PORT without a path, for example http://127.0.0.1:8080"
                    .into())
            }
        }
    }
}

/// A ScaledObject on the command line.
#[derive(Clone, Debug)]
pub struct ObjectArg {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl FromStr for ObjectArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('/') {
            Some((namespace, name)) if is_name(namespace) && is_name(name) => {
                Ok(Self { namespace: namespace.into(), name: name.into() })
            }
            _ => Err("write NAMESPACE/NAME, for example ai/vllm".into()),
        }
    }
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.'))
}

/// How an explanation or a report is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people
    Table,
    /// For programs
    Json,
}

/// Where the directory comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DirectorySource {
    /// A YAML file, reloaded when it changes.
    File(PathBuf),
    /// The Kubernetes API.
    Kube,
}

impl FromStr for DirectorySource {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("file:") {
            Some("") => Err("the path after file: is empty".into()),
            Some(path) => Ok(Self::File(path.into())),
            None if text == "kube" => Ok(Self::Kube),
            None if text.contains(['.', '/']) => {
                Err(format!("write kube or file:PATH, such as file:{text}"))
            }
            None => Err("write kube or file:PATH".into()),
        }
    }
}

/// A shorter age would be reached while the API server is there: it is asked every few seconds.
const LEAST_MAX_AGE: Duration = Duration::from_secs(10);

fn max_age(text: &str) -> Result<Duration, String> {
    let age = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if age < LEAST_MAX_AGE { Err("at least 10s".into()) } else { Ok(age) }
}

/// Everything `serve` needs, checked.
#[derive(Clone, Debug)]
pub struct ServeConfig {
    /// Where KEDA calls.
    pub keda_listen: SocketAddr,
    /// Where agents push.
    pub agent_listen: SocketAddr,
    /// Where probes, metrics and the API are read.
    pub http_listen: SocketAddr,
    /// Where the directory comes from.
    pub directory: DirectorySource,
    /// How the Kubernetes API is used, where it is.
    pub kube: KubeConfig,
    /// Who may connect where.
    pub identity: IdentityConfig,
    /// Own trigger profiles.
    pub profiles: Option<PathBuf>,
    /// Origins of demand endpoints that are read whatever their namespace and address.
    pub demand_allow: Vec<String>,
    /// Connections that each port holds at most.
    pub connections: Connections,
    /// How old KEDA's connections get, give or take a fifth.
    pub connection_age: Duration,
    /// What GPUs cost.
    pub tariff: Tariff,
}

/// How the Kubernetes API is used.
#[derive(Clone, Debug)]
pub struct KubeConfig {
    /// The namespaces that are watched; all if empty.
    pub namespaces: Vec<String>,
    /// A directory older than this is not answered from.
    pub max_age: Duration,
    /// The kubeconfig, instead of what is found in the usual places.
    pub kubeconfig: Option<PathBuf>,
}

impl Default for KubeConfig {
    fn default() -> Self {
        Self { namespaces: Vec::new(), max_age: Duration::from_secs(600), kubeconfig: None }
    }
}

impl ServeConfig {
    /// Free ports on loopback, and the directory in `file`: for tests and try-outs.
    pub fn local(file: PathBuf) -> Self {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        Self {
            keda_listen: any,
            agent_listen: any,
            http_listen: any,
            directory: DirectorySource::File(file),
            kube: KubeConfig::default(),
            identity: IdentityConfig::default(),
            profiles: None,
            demand_allow: Vec::new(),
            connections: Connections::default(),
            connection_age: Duration::from_mins(30),
            tariff: Tariff::default(),
        }
    }
}

impl TryFrom<Serve> for ServeConfig {
    type Error = String;

    fn try_from(serve: Serve) -> Result<Self, String> {
        let Serve {
            keda_listen,
            agent_listen,
            http_listen,
            directory,
            identity,
            profiles,
            demand_allow,
            connection_age,
            tariff,
            ..
        } = serve;
        if let Some(name) = serve.namespaces.iter().find(|name| !is_name(name)) {
            return Err(format!("--namespaces: {name:?} is not the name of a namespace"));
        }
        if !serve.namespaces.is_empty() && directory != DirectorySource::Kube {
            return Err("--namespaces is for --directory kube; a file is taken whole".into());
        }
        let kube = KubeConfig {
            namespaces: serve.namespaces,
            max_age: serve.directory_max_age,
            kubeconfig: serve.kubeconfig,
        };
        let identity = identity.resolve(agent_listen)?;
        let connections = Connections {
            keda: serve.keda_connections,
            agents: serve.agent_connections,
            http: serve.http_connections,
        };
        Ok(Self {
            keda_listen,
            agent_listen,
            http_listen,
            directory,
            kube,
            identity,
            profiles,
            demand_allow,
            connections,
            connection_age,
            tariff: tariff.into(),
        })
    }
}
