//! `gpu-gateway`: parse, build, run, exit code.

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};
use gateway::app::App;
use gateway::config::{Cli, Command, Output, ServeConfig};
use gateway::{client, explain};
use shared::process;
use tokio_util::sync::CancellationToken;

fn main() -> ExitCode {
    // Before anything opens a connection. It fails only if one is installed already.
    rustls::crypto::ring::default_provider().install_default().ok();
    let cli = Cli::parse();
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gpu-gateway: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[tokio::main]
async fn run(cli: Cli) -> anyhow::Result<()> {
    match cli.command {
        Command::Serve(serve) => {
            let config = ServeConfig::try_from(serve).unwrap_or_else(|why| usage(&why));
            process::start_logging(&cli.log_filter, cli.log_format.into())?;
            let shutdown = CancellationToken::new();
            process::cancel_on_signal(shutdown.clone())?;
            App::build(config).await?.run(shutdown).await
        }
        Command::Explain(args) => {
            let object = &args.scaled_object;
            let text = client::explanation(&args.server.0, &object.namespace, &object.name).await?;
            match args.output {
                Output::Json => println!("{text}"),
                Output::Table => {
                    let explanation: explain::Explanation = serde_json::from_str(&text)?;
                    print!("{}", explain::table::render(&explanation));
                }
            }
            Ok(())
        }
    }
}

/// Says what is wrong with the command line and ends with exit code 2.
fn usage(why: &str) -> ! {
    Cli::command().error(clap::error::ErrorKind::MissingRequiredArgument, why).exit()
}
