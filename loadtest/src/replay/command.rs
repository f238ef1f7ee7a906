//! `loadtest replay --trace FILE`: reads the trace, compares the policies, prints the table.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use clap::ValueEnum;

use super::chart;
use super::policy::{Named, automatic};
use super::run::Setting;
use super::table::{Row, compare, json, markdown};
use super::trace::{multiplied, read};

/// What to replay, and into what.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// CSV with the columns TIMESTAMP, ContextTokens and GeneratedTokens, as the Azure LLM inference
    /// traces have them.
    #[arg(long, value_name = "FILE")]
    trace: PathBuf,
    /// How many times the trace's load is offered: seeded copies of requests within 20 s; below 1 a
    /// seeded part of them.
    #[arg(long, value_name = "FACTOR", default_value_t = 4.0, value_parser = load)]
    load: f64,
    /// Seed of the copies.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// GPUs of the cluster, one for each replica; also maxReplicaCount.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1000))]
    gpus: u32,
    /// Replicas that are ready when the trace begins; the fewest that serve it if left out. With 0 it
    /// begins with a step from nothing to full load.
    #[arg(long, value_name = "REPLICAS")]
    begin: Option<u32>,
    /// From a container's start to Ready: loading the model.
    #[arg(long, value_name = "DURATION", default_value = "90s", value_parser = humantime::parse_duration)]
    model_load: Duration,
    /// KEDA's cooldownPeriod.
    #[arg(long, value_name = "DURATION", default_value = "300s", value_parser = humantime::parse_duration)]
    cooldown: Duration,
    /// The HPA's downscale stabilization.
    #[arg(long, value_name = "DURATION", default_value = "300s", value_parser = humantime::parse_duration)]
    stabilization: Duration,
    /// Compares this trigger too: its metadata as `key=value;key=value`. Repeatable.
    #[arg(long, value_name = "METADATA")]
    trigger: Vec<Named>,
    /// Compares the triggers given and nothing else.
    #[arg(long, requires = "trigger")]
    only: bool,
    /// Form of the answer.
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    /// Writes an SVG for each policy into this folder.
    #[arg(long, value_name = "DIR")]
    charts: Option<PathBuf>,
}

/// Form of the answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// A Markdown table.
    #[default]
    Table,
    /// One JSON array.
    Json,
}

fn load(text: &str) -> Result<f64, String> {
    let load: f64 = text.parse().map_err(|error| format!("{error}; for example 4 or 0.5"))?;
    if (0.01..=100.0).contains(&load) { Ok(load) } else { Err("0.01 to 100 is right".into()) }
}

/// Replays, prints and draws. `true` if every policy was run.
///
/// # Errors
/// When the trace cannot be read, a policy cannot be run, or a chart cannot be written.
pub fn run(args: &Args) -> anyhow::Result<bool> {
    let requests = multiplied(&read(&args.trace)?, args.load, args.seed);
    let mut setting = Setting {
        gpus: args.gpus,
        cooldown: args.cooldown,
        stabilization: args.stabilization,
        ..Setting::default()
    };
    setting.figures.load = args.model_load;
    let known = if args.only { Vec::new() } else { automatic() };
    let policies = known.into_iter().chain(args.trigger.clone()).collect();
    let rows =
        compare(&requests, setting, args.begin, policies, |policy| eprintln!("{policy} ..."))?;
    match args.output {
        Output::Table => print!("{}", markdown(&rows)),
        Output::Json => println!("{:#}", json(&rows)),
    }
    if let Some(folder) = &args.charts {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("--charts {}", folder.display()))?;
        for row in &rows {
            let path = folder.join(file_name(row));
            let written = std::fs::write(&path, chart::svg(&row.name, &row.outcome)?);
            written.with_context(|| format!("--charts: {}", path.display()))?;
        }
    }
    Ok(true)
}

/// `ours, profile vllm` → `ours-profile-vllm.svg`.
fn file_name(row: &Row) -> String {
    let words =
        row.name.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.map(str::to_lowercase).collect::<Vec<_>>().join("-") + ".svg"
}
