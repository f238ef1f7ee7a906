//! `gpu-agent`: parse, build, run, exit code.

use std::process::ExitCode;

use agent::app::App;
use agent::config::{Cli, Command};
use clap::Parser as _;
use shared::process::{cancel_on_signal, start_logging};
use tokio_util::sync::CancellationToken;

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gpu-agent: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> anyhow::Result<()> {
    start_logging(&cli.log_filter, cli.log_format())?;
    let runtime = tokio::runtime::Runtime::new()?;
    let result = match cli.command {
        Command::Run(args) => runtime.block_on(async {
            let app = App::build(args.resolve()?)?;
            let shutdown = CancellationToken::new();
            cancel_on_signal(shutdown.clone())?;
            app.run(shutdown).await
        }),
    };
    // A name being resolved cannot be interrupted, and is not waited for.
    runtime.shutdown_background();
    result
}
