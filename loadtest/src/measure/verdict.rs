//! What is made of a measurement: text or JSON, good or not, and how far it is.
//!
//! Guarantees: the result alone is on standard output; a wrong answer is found wrong whatever the
//! budgets say.

use clap::{Args, ValueEnum};
use shared::process::Clock;
use shared::time::Timestamp;

use crate::measure::figures::{Judge, Report};

/// How the result is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// Tables.
    #[default]
    Text,
    /// One JSON object.
    Json,
}

/// What is made of the figures.
#[derive(Clone, Copy, Debug, Args)]
pub struct VerdictArgs {
    /// End with 1 unless every budget is kept.
    #[arg(long)]
    check: bool,
    /// Multiplies the budgets [default: 1, with --short 1.5].
    #[arg(long)]
    slack: Option<f64>,
    /// How the result is written.
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

impl VerdictArgs {
    /// How budgets are judged.
    pub fn judge(self, short: bool) -> Judge {
        let usual = if short { 1.5 } else { 1.0 };
        Judge { slack: self.slack.unwrap_or(usual), by_best: short }
    }

    /// Prints the report and says whether the run is good.
    pub fn tell(self, report: &Report, judge: Judge) -> bool {
        match self.output {
            Output::Text => print!("{}", report.text(judge)),
            Output::Json => println!("{:#}", report.json(judge)),
        }
        report.wrong.is_empty() && (!self.check || report.is_good(judge))
    }
}

/// Says on standard error how far the run is.
#[derive(Clone, Copy, Debug)]
pub struct Progress(Clock);

impl Progress {
    /// From now on.
    pub fn start() -> Self {
        Self(Clock::start())
    }

    /// Another step.
    pub fn step(self, what: &str) {
        let seconds = self.0.now().since(Timestamp::START).as_secs();
        eprintln!("{seconds:>4} s  {what}");
    }
}
