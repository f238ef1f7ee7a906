//! `loadtest keda`: what KEDA's calls cost, and how soon a signal becomes replicas.
//!
//! Guarantees: floor and gateway take turns within each round; a wrong answer is found wrong
//! whatever the budgets say.

use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use hdrhistogram::Histogram;

use crate::measure::cadence::{self, Cadence};
use crate::measure::figures::{Report, Rounds};
use crate::measure::round::{self, Round, Target};
use crate::measure::server::{Kind, Server};
use crate::measure::signal::{self, Periods};
use crate::measure::site::{Ask, Site, Workload, request};
use crate::measure::told::Told;
use crate::measure::verdict::{Progress, VerdictArgs};
use crate::measure::{floor, push};

/// Nanoseconds in one.
const MILLIS: f64 = 1e6;

/// A part of `loadtest keda`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// GetMetrics flat out: server CPU a call over one pod and over 64 pods of 8 GPUs.
    Calls,
    /// GetMetrics at a fixed rate, timed from the moment it was due.
    Open,
    /// The same question with one ScaledObject and with many.
    Many,
    /// Polls, HPA syncs and streams of many ScaledObjects.
    Cadence,
    /// From a changed reading to the message on StreamIsActive.
    Push,
    /// From a signal to the replicas ordered; takes KEDA's and the HPA's real periods.
    Signal,
}

/// Its flags.
#[derive(Clone, Debug, Args)]
pub struct KedaArgs {
    /// Parts to measure [default: all; with --short calls, open, many and push].
    #[arg(long, value_delimiter = ',')]
    parts: Vec<Part>,
    /// ScaledObjects of `many`.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    objects: u32,
    /// ScaledObjects of `cadence`, each with a stream.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    following: u32,
    /// KEDA's pollingInterval, seconds.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=300))]
    poll: u64,
    /// The HPA's sync period, seconds.
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u64).range(1..=300))]
    sync: u64,
    /// The agents' interval of `push` and `signal`, milliseconds.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u64).range(100..=10_000))]
    interval: u64,
    /// Calls a second of `open`.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    rate: u32,
    /// Rounds; floor and gateway take turns in each.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=101))]
    rounds: u32,
    /// Seconds of each turn.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Less than a minute, for a gate: fewer and shorter rounds, judged by the best of them, and
    /// ratios only.
    #[arg(long)]
    short: bool,
    #[command(flatten)]
    verdict: VerdictArgs,
}

/// Measures; says whether all is good.
///
/// # Errors
/// When a server does not start or a call fails.
pub async fn run(args: KedaArgs) -> anyhow::Result<bool> {
    use Part::{Cadence, Calls, Many, Open, Push, Signal};
    let parts = match (&args.parts[..], args.short) {
        ([], true) => vec![Calls, Open, Many, Push],
        ([], false) => vec![Calls, Open, Many, Cadence, Push, Signal],
        (parts, _) => parts.to_vec(),
    };
    let mut bench = Bench { progress: Progress::start(), report: Report::default(), args };
    if parts.iter().any(|part| [Calls, Open].contains(part)) {
        bench.calls(&parts).await?;
    }
    for part in parts {
        match part {
            Calls | Open => {}
            Many => bench.many().await?,
            Cadence => bench.cadence().await?,
            Push => bench.push().await?,
            Signal => bench.signal().await?,
        }
    }
    let Bench { report, args, .. } = bench;
    Ok(args.verdict.tell(&report, args.verdict.judge(args.short)))
}

/// A run of the command.
struct Bench {
    args: KedaArgs,
    progress: Progress,
    report: Report,
}

fn workload(name: impl Into<String>, pods: usize, gpus: usize) -> Workload {
    Workload { name: name.into(), pods, gpus }
}

/// Calls at once, and connections they share.
type Shape = (usize, usize);

impl Bench {
    fn rounds(&self) -> u32 {
        if self.args.short { self.args.rounds.min(3) } else { self.args.rounds }
    }

    fn length(&self) -> Duration {
        Duration::from_secs_f64(if self.args.short { 0.7 } else { self.args.seconds.max(0.1) })
    }

    fn wrong(&mut self, name: &str, round: &Round) {
        if round.wrong > 0 {
            let all = round.times.len();
            let text = format!("{} of {all} answers about {name} are wrong", round.wrong);
            self.report.wrong.push(text);
        }
    }

    async fn calls(&mut self, parts: &[Part]) -> anyhow::Result<()> {
        self.progress.step("starting a floor and a gateway: 1 pod, 64 pods x 8 GPUs");
        let bare = Server::start(&Kind::Floor)?;
        let site = Site::new(vec![workload("one", 1, 1), workload("many", 64, 8)]);
        let told = Told::start(&site).await?;
        let alike = Ask { request: request("one"), expected: floor::VALUE };
        let target = |name, server, ask: Ask| Target { name, server, asks: Arc::from([ask]) };
        let targets = [
            target("floor", &bare, alike),
            target("1 pod", &told.server, told.asks[0].clone()),
            target("64 pods x 8", &told.server, told.asks[1].clone()),
        ];
        for target in &targets {
            round::flat_out(target, (16, 1), self.length()).await?; // warm-up
        }
        if parts.contains(&Part::Calls) {
            let shapes: &[Shape] =
                if self.args.short { &[(1, 1), (16, 1)] } else { &[(1, 1), (16, 1), (64, 4)] };
            for shape in shapes {
                self.flat_out(&targets, *shape).await?;
            }
            let mib = told.server.rss()?;
            self.report.row("gateway's memory, 65 nodes, 513 GPUs", "MiB", mib);
        }
        if parts.contains(&Part::Open) {
            self.open(&targets[..2]).await?;
        }
        Ok(())
    }

    async fn flat_out(&mut self, targets: &[Target<'_>; 3], shape: Shape) -> anyhow::Result<()> {
        let (in_flight, connections) = shape;
        let mut rounds = [const { Vec::new() }; 3];
        for n in 1..=self.rounds() {
            self.progress.step(&format!("GetMetrics, {in_flight} at once, round {n}"));
            for (target, rounds) in targets.iter().zip(&mut rounds) {
                let round = round::flat_out(target, shape, self.length()).await?;
                self.wrong(target.name, &round);
                rounds.push(round);
            }
        }
        let cpu: Vec<Vec<f64>> = rounds.iter().map(|all| each(all, Round::cpu_micros)).collect();
        let rate: Vec<Vec<f64>> = rounds.iter().map(|all| each(all, Round::rate)).collect();
        let at = format!("{in_flight} in flight, {connections} connection(s)");
        for (n, target) in targets.iter().enumerate() {
            let what = |what: &str| format!("{what}, {}, {at}", target.name);
            if n == 0 {
                self.report.row(what("server CPU a call"), "us", &cpu[0][..]);
                self.report.row(what("calls"), "/s", &rate[0][..]);
                continue;
            }
            self.report.beside(what("server CPU a call"), "us", &cpu[n], &cpu[0]);
            self.report.beside(what("calls"), "/s", &rate[n], &rate[0]);
        }
        if shape == (1, 1) {
            for (n, target) in targets.iter().enumerate() {
                let p50 = |percent| each(&rounds[n], |round: &Round| round.millis(percent));
                let what = format!("p50, {}, {at}", target.name);
                self.report.row(what, "ms", &p50(50.0)[..]);
            }
            let p50 = each(&rounds[1], |round: &Round| round.millis(50.0));
            let what = "GetMetrics, 1 pod: p50 at one in flight, ms";
            // A time of this machine, and no ratio.
            if !self.args.short {
                self.report.budget(what, 1.0, &p50[..]);
            }
        }
        if shape == (16, 1) {
            let ratio = |n: usize| Rounds::ratios(&cpu[n], &cpu[0]);
            self.report.budget("GetMetrics, 1 pod: CPU by the floor's", 1.15, ratio(1));
            self.report.budget("GetMetrics, 64 pods x 8: CPU by the floor's", 1.5, ratio(2));
        }
        Ok(())
    }

    async fn open(&mut self, targets: &[Target<'_>]) -> anyhow::Result<()> {
        let (rate, length) = (self.args.rate, self.length() * 2);
        let mut rounds = [const { Vec::new() }; 2];
        for n in 1..=self.rounds() {
            self.progress.step(&format!("GetMetrics, {rate} calls/s, round {n}"));
            for (target, rounds) in targets.iter().zip(&mut rounds) {
                let round = round::open_loop(target, rate, length).await?;
                self.wrong(target.name, &round);
                rounds.push(round);
            }
        }
        for percent in [50.0, 99.0] {
            let [bare, own] =
                [&rounds[0], &rounds[1]].map(|all| each(all, |round| round.millis(percent)));
            let what = |name: &str| format!("p{percent}, {name}, {rate} calls/s open loop");
            self.report.row(what("floor"), "ms", &bare[..]);
            self.report.beside(what("1 pod"), "ms", &own, &bare);
            if percent == 99.0 {
                let ratios = Rounds::ratios(&own, &bare);
                let what = format!("GetMetrics, 1 pod: p99 at {rate} calls/s by the floor's");
                self.report.budget(what, 2.0, ratios);
            }
        }
        let [bare, own] = [&rounds[0], &rounds[1]].map(|all| each(all, Round::cpu_micros));
        let what = format!("server CPU a call, 1 pod, {rate} calls/s open loop");
        self.report.beside(what, "us", &own, &bare);
        Ok(())
    }

    async fn many(&mut self) -> anyhow::Result<()> {
        let objects = usize::try_from(self.args.objects)?;
        self.progress.step(&format!("starting gateways with 1 and with {objects} ScaledObjects"));
        let site = |count: usize| {
            Site::new((0..count).map(|n| workload(format!("so-{n}"), 1, 1)).collect())
        };
        let (few, many) = (Told::start(&site(1)).await?, Told::start(&site(objects)).await?);
        let name = format!("{objects} ScaledObjects");
        let always = format!("{name}, always the same one asked about");
        let same = Target { name: &always, asks: many.asks[..1].into(), ..many.target("") };
        let targets = [few.target("1 ScaledObject"), same, many.target(&name)];
        let mut rounds = [const { Vec::new() }; 3];
        for n in 0..=self.rounds() {
            self.progress.step(&format!("GetMetrics about 1 and about {objects}, round {n}"));
            for (target, rounds) in targets.iter().zip(&mut rounds) {
                let round = round::flat_out(target, (16, 1), self.length()).await?;
                self.wrong(target.name, &round);
                if n > 0 {
                    rounds.push(round); // the first is warm-up
                }
            }
        }
        let cpu = rounds.each_ref().map(|all| each(all, Round::cpu_micros));
        for (target, cpu) in targets.iter().zip(&cpu) {
            self.report.row(format!("server CPU a call, {}", target.name), "us", &cpu[..]);
        }
        let mib = many.server.rss()?;
        self.report.row(format!("gateway's memory, {name}"), "MiB", mib);
        for (target, own) in targets.iter().zip(&cpu).skip(1) {
            let what = format!("GetMetrics, {}: CPU by that with 1", target.name);
            self.report.budget(what, 1.1, Rounds::ratios(own, &cpu[0]));
        }
        Ok(())
    }

    async fn cadence(&mut self) -> anyhow::Result<()> {
        let following = usize::try_from(self.args.following)?;
        let cadence = Cadence {
            poll: Duration::from_secs(self.args.poll),
            sync: Duration::from_secs(self.args.sync),
        };
        let length = cadence.poll.max(cadence.sync);
        let site = Site::new((0..following).map(|n| workload(format!("so-{n}"), 1, 1)).collect());
        let (bare, told) = (Server::start(&Kind::Floor)?, Told::start(&site).await?);
        let floor = Target { name: "floor", server: &bare, asks: cadence::floor_asks(&told.asks) };
        let own = told.target("gateway");
        let mut cpu = Vec::new();
        for target in [&floor, &own] {
            let what = format!("{following} ScaledObjects at KEDA's cadence, {}", target.name);
            self.progress.step(&what);
            let round = cadence::run(target, cadence, length).await?;
            self.wrong(&what, &round);
            self.report.row(format!("{what}: calls"), "/s", round.rate() * 3.0);
            self.report.row(format!("{what}: p50 of a poll"), "ms", round.millis(50.0));
            self.report.row(format!("{what}: p99 of a poll"), "ms", round.millis(99.0));
            let mib = target.server.rss()?;
            self.report.row(format!("{what}: memory"), "MiB", mib);
            let core = round.cpu.as_secs_f64() / round.took.as_secs_f64() * 100.0;
            self.report.row(format!("{what}: CPU"), "% of a core", core);
            cpu.push(cadence::cpu_micros(&round));
        }
        let what = "server CPU a call at KEDA's cadence".to_owned();
        self.report.beside(what, "us", &cpu[1..], &cpu[..1]);
        Ok(())
    }

    async fn push(&mut self) -> anyhow::Result<()> {
        let interval = Duration::from_millis(self.args.interval);
        let (nodes, length) = if self.args.short { (8, 9) } else { (8, 40) };
        self.progress.step(&format!("{} dials turned up and down for {length} s", nodes * 8));
        let times = push::run(nodes, interval, Duration::from_secs(length)).await?;
        let millis = |percent| percentile(&times, percent, MILLIS);
        let what = format!("reading to message, {} turns, every {interval:?}", times.len());
        for percent in [50.0, 99.0, 100.0] {
            self.report.row(format!("{what}: p{percent}"), "ms", millis(percent));
        }
        let interval = interval.as_secs_f64() * 1e3;
        let ratio = |percent| percentile(&times, percent, interval * 1e6);
        let (half, whole) = (0.5 + 5.0 / interval, 1.0 + 20.0 / interval);
        self.report.budget("reading to message: p50 by the interval", half, ratio(50.0));
        self.report.budget("reading to message: p99 by the interval", whole, ratio(99.0));
        Ok(())
    }

    async fn signal(&mut self) -> anyhow::Result<()> {
        let periods = Periods {
            poll: Duration::from_secs(self.args.poll),
            sync: Duration::from_secs(self.args.sync),
            interval: Duration::from_millis(self.args.interval),
        };
        let nodes = 12;
        self.progress.step(&format!("a signal to {} sleeping and as many busy", nodes * 8));
        let times = signal::run(nodes, periods).await?;
        let all = [
            ("0 to 1 by push", &times.pushed),
            ("0 to 1 by poll", &times.polled),
            ("1 to N by the HPA", &times.synced),
        ];
        for (name, times) in all {
            for percent in [50.0, 99.0] {
                let what = format!("signal to replicas, {name}: p{percent}");
                self.report.row(what, "ms", percentile(times, percent, MILLIS));
            }
        }
        Ok(())
    }
}

fn each(rounds: &[Round], figure: impl Fn(&Round) -> f64) -> Vec<f64> {
    rounds.iter().map(figure).collect()
}

/// The time that so many percent stayed below, in units of so many nanoseconds.
fn percentile(times: &Histogram<u64>, percent: f64, unit: f64) -> Rounds {
    if times.is_empty() {
        return Rounds::default();
    }
    [times.value_at_percentile(percent) as f64 / unit].into_iter().collect()
}
