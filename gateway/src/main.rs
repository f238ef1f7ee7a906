//! `gpu-gateway`: parse, build, run, exit code.

use std::io::{self, Read as _, Write as _};
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{CommandFactory as _, Parser as _};
use gateway::app::App;
use gateway::check::{self, Source};
use gateway::config::{Check, Cli, Command, Explain, LedgerOutput, Output, ServeConfig, refused};
use gateway::ledger::render;
use gateway::trigger::profile::Profiles;
use gateway::{client, explain};
use shared::process;
use tokio_util::sync::CancellationToken;

/// Bytes that `check` takes from one file.
const MAX_BYTES: u64 = 16 << 20;
/// Exit code for a wrong command line, or a file on it that cannot be read.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    // Before anything opens a connection. It fails only if one is installed already.
    rustls::crypto::ring::default_provider().install_default().ok();
    let cli = Cli::try_parse().unwrap_or_else(|error| {
        let arguments: Vec<_> =
            std::env::args_os().map(|it| it.to_string_lossy().into_owned()).collect();
        refused::explained(error, &arguments).exit()
    });
    match run(cli) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("gpu-gateway: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[tokio::main]
async fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    match cli.command {
        Command::Serve(serve) => {
            let config = ServeConfig::try_from(*serve).unwrap_or_else(|why| usage("serve", &why));
            process::start_logging(&cli.log_filter, cli.log_format.into())?;
            let shutdown = CancellationToken::new();
            process::cancel_on_signal(shutdown.clone())?;
            App::build(config).await?.run(shutdown).await?;
        }
        Command::Explain(args) => explain(&args).await?,
        Command::Ledger(args) => {
            if args.by.is_some() && args.output != LedgerOutput::Csv {
                usage("ledger", "--by is for -o csv; table and json have all of them");
            }
            let text = client::ledger(&args.server.0, args.token_file.as_deref()).await?;
            let report = || serde_json::from_str(&text);
            match args.output {
                LedgerOutput::Json => print(&format!("{text}\n"))?,
                LedgerOutput::Csv => print(&render::csv(&report()?, args.by.unwrap_or_default())?)?,
                LedgerOutput::Table => print(&render::table(&report()?))?,
            }
        }
        Command::Check(args) => return check(&args),
    }
    Ok(ExitCode::SUCCESS)
}

async fn explain(args: &Explain) -> anyhow::Result<()> {
    let (server, token) = (&args.server.0, args.token_file.as_deref());
    let text = match &args.scaled_object {
        Some(object) => {
            let name = (object.namespace.as_str(), object.name.as_str());
            client::explanation(server, token, name).await?
        }
        None => client::scaled_objects(server, token).await?,
    };
    print(&match (args.output, &args.scaled_object) {
        (Output::Json, _) => format!("{text}\n"),
        (Output::Table, Some(_)) => explain::table::render(&serde_json::from_str(&text)?),
        (Output::Table, None) => explain::known::table(&serde_json::from_str::<Vec<_>>(&text)?),
    })
}

fn check(args: &Check) -> anyhow::Result<ExitCode> {
    let (sources, profiles) = match inputs(args) {
        Ok(inputs) => inputs,
        Err(error) => {
            eprintln!("gpu-gateway: {error:#}");
            return Ok(ExitCode::from(USAGE));
        }
    };
    let report = check::check(
        &sources,
        &check::Known {
            profiles: &profiles,
            load_time: args.load_time,
            demand_allow: &args.demand_allow,
        },
    );
    match args.output {
        Output::Json => print(&format!("{}\n", check::render::json(&report)?))?,
        Output::Table => print(&check::render::table(&report))?,
    }
    Ok(if report.is_good(args.strict) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Everything that `check` reads.
fn inputs(args: &Check) -> anyhow::Result<(Vec<Source>, Profiles)> {
    let profiles = match &args.profiles {
        None => Profiles::default(),
        Some(path) => read(path)
            .and_then(|text| Profiles::load(&text).with_context(|| path.display().to_string()))
            .context("--profiles")?,
    };
    let mut sources = Vec::new();
    for path in &args.files {
        sources.push(Source { name: path.display().to_string(), text: read(path)? });
    }
    Ok((sources, profiles))
}

/// The text of a file; of standard input if it is `-`.
fn read(path: &Path) -> anyhow::Result<String> {
    let mut text = String::new();
    let bytes = if path == Path::new("-") {
        io::stdin().take(MAX_BYTES + 1).read_to_string(&mut text)
    } else {
        std::fs::File::open(path)
            .and_then(|file| file.take(MAX_BYTES + 1).read_to_string(&mut text))
    };
    let bytes = bytes.with_context(|| path.display().to_string())?;
    anyhow::ensure!(
        u64::try_from(bytes)? <= MAX_BYTES,
        "{}: more than {MAX_BYTES} bytes",
        path.display()
    );
    Ok(text)
}

/// Writes to standard output. A reader that has gone away has seen enough.
fn print(text: &str) -> anyhow::Result<()> {
    let mut output = io::stdout().lock();
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(error).context("standard output")
        }
        _ => Ok(()),
    }
}

/// Says what is wrong with the command line of `command` and ends with exit code 2.
fn usage(command: &str, why: &str) -> ! {
    let mut cli = Cli::command();
    cli.build();
    let command = cli.find_subcommand_mut(command).expect("a command of ours");
    command.error(clap::error::ErrorKind::MissingRequiredArgument, why).exit()
}
