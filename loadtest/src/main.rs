//! `loadtest`: watch the product work, and measure it. Exit codes: 0 good, 1 found wrong, 2 usage.

use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
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
    }
}
