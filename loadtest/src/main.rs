//! `loadtest`: watch the product work, and measure it. Exit codes: 0 good, 1 found wrong, 2 usage.

use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use loadtest::measure::fleet::{self, FleetArgs};
use loadtest::measure::keda::{self, KedaArgs};
use loadtest::measure::repeat::{self, RepeatArgs};
use loadtest::measure::server;
use loadtest::{demo, replay};
use shared::process::{BUILD, LogFormat, cancel_on_signal, start_logging};
use tokio_util::sync::CancellationToken;

#[derive(Debug, Parser)]
#[command(name = "loadtest", version = BUILD, about = "Shows and measures keda-gpu-gateway")]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Log of gateway and agents on standard error, for example `info`; none if left out.
    #[arg(long, global = true)]
    log_filter: Option<String>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Gateway, agents and an emulated cluster: load comes and goes, and replicas follow.
    Demo {
        /// How long its first part lasts; the second, from zero and back, takes some 20 s more.
        #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(45..=600))]
        seconds: u64,
    },
    /// Scaling policies compared on a request trace: GPU-hours against waiting times.
    Replay(replay::command::Args),
    /// What KEDA's calls cost beside a bare service, and how soon a signal becomes replicas.
    Keda(KedaArgs),
    /// What so many nodes' agents cost a gateway beside a bare service.
    Fleet(FleetArgs),
    /// One thing of the gateway so many times, for a profiler or a counter of instructions.
    Repeat(RepeatArgs),
    /// A server that another loadtest measures.
    #[command(subcommand, hide = true)]
    Serve(server::Kind),
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Cli::parse()).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("loadtest: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(cli: Cli) -> anyhow::Result<bool> {
    if let Some(filter) = &cli.log_filter {
        start_logging(filter, LogFormat::Text)?;
    }
    let shutdown = CancellationToken::new();
    cancel_on_signal(shutdown.clone())?;
    match cli.command {
        Command::Demo { seconds } => demo::run(Duration::from_secs(seconds), shutdown).await,
        Command::Replay(args) => replay::command::run(&args),
        Command::Keda(args) => stoppable(keda::run(args), &shutdown).await,
        Command::Fleet(args) => stoppable(fleet::run(args), &shutdown).await,
        Command::Repeat(args) => repeat::run(args),
        Command::Serve(kind) => server::serve(kind).await.map(|()| true),
    }
}

/// A measurement that was stopped early is not good.
async fn stoppable(
    measuring: impl Future<Output = anyhow::Result<bool>>,
    shutdown: &CancellationToken,
) -> anyhow::Result<bool> {
    shutdown.run_until_cancelled(Box::pin(measuring)).await.unwrap_or(Ok(false))
}
