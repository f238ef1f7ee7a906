//! `gpu-agent`: parse, build, run, exit code.

use std::io::{self, Write as _};
use std::process::ExitCode;

use agent::app::{App, alone, top};
use agent::config::alone::{DoctorArgs, RecordArgs, TopArgs};
use agent::config::{Cli, Command};
use anyhow::Context as _;
use shared::process::{cancel_on_signal, start_logging};
use tokio_util::sync::CancellationToken;

fn main() -> ExitCode {
    match run(Cli::read()) {
        Ok(code) => code,
        // Whoever read the output has seen enough.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gpu-agent: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<io::Error>();
    error.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    start_logging(cli.log_filter(), cli.log_format())?;
    let runtime = tokio::runtime::Runtime::new()?;
    let result = runtime.block_on(command(cli.command));
    // A name being resolved cannot be interrupted, and neither can a driver that hangs.
    runtime.shutdown_background();
    result
}

async fn command(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Run(args) => App::build(args.resolve()?)?.run(until_signal()?).await?,
        Command::Serve(args) => {
            let config = args.read.resolve(args.interval)?;
            App::serve(config, args.http_listen)?.run(until_signal()?).await?;
        }
        Command::Snapshot(args) => {
            let text = alone::snapshot(args.read.resolve_once()?, args.output).await?;
            print(&text).context("standard output")?;
        }
        Command::Record(args) => record(args).await?,
        Command::Top(args) => show(args).await?,
        Command::Doctor(args) => return doctor(args).await,
    }
    Ok(ExitCode::SUCCESS)
}

async fn record(args: RecordArgs) -> anyhow::Result<()> {
    let RecordArgs { file, read, length, force, interval } = args;
    let config = read.resolve(interval)?;
    alone::record(config, &file, force, length, until_signal()?).await?;
    Ok(())
}

async fn show(args: TopArgs) -> anyhow::Result<()> {
    let (is_live, once) = (args.is_live(), args.once);
    let config = args.resolve()?;
    if once {
        return print(&top::frame(config).await?).context("standard output");
    }
    match is_live {
        true => top::live(config, until_signal()?).await,
        false => top::frames(config, until_signal()?, print).await,
    }
}

async fn doctor(args: DoctorArgs) -> anyhow::Result<ExitCode> {
    let config = args.read.resolve_once()?;
    let report =
        alone::doctor(config, &args.engine_pages, &args.gateways, args.credentials.files()).await?;
    print(&report.render(args.output)).context("standard output")?;
    Ok(if report.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn until_signal() -> anyhow::Result<CancellationToken> {
    let shutdown = CancellationToken::new();
    cancel_on_signal(shutdown.clone())?;
    Ok(shutdown)
}

/// Writes to standard output at once.
fn print(text: &str) -> io::Result<()> {
    let mut output = io::stdout().lock();
    output.write_all(text.as_bytes())?;
    output.flush()
}
