//! `loadtest demo`: the simulation, told to a person.
//!
//! One line per look of the HPA, one per event; a summary and a verdict at the end.

use std::fmt::Display;
use std::io::{self, IsTerminal as _, Write};
use std::time::Duration;

use anyhow::Context as _;
use tokio_util::sync::CancellationToken;

use crate::load::Load;
use crate::night::{self, Part};
use crate::simulation::{Event, Simulation, Sync};
use crate::stage::{NODES, Scaling, Setup, Stage};
use crate::story::Report;
use crate::{explain, pace};

/// What the demo's Deployment is scaled by.
const SCALING: Scaling = Scaling { target: 60.0, min: 1, max: 8 };

/// Runs the demo for `length`; says whether all was as it should be.
///
/// Stopped early, it is judged by what was seen until then.
///
/// # Errors
/// When gateway or agents cannot be started or end badly.
pub async fn run(length: Duration, shutdown: CancellationToken) -> anyhow::Result<bool> {
    let load = Load { length, idle: 30.0, peak: 340.0 };
    let mut teller = Teller::new(io::stdout());
    let stage = Stage::build(Setup::by_utilization(SCALING, load.idle)).await?;
    stage.warm_up().await?;
    teller.say(introduction(&stage, load)).context("nobody listens")?;
    let simulation = Simulation::new(stage, SCALING, load, |event| {
        if teller.event(event).is_err() {
            shutdown.cancel();
        }
    });
    let report = simulation.run(&shutdown).await?;
    let is_early = shutdown.is_cancelled();
    let (text, is_good) = summary(&report, is_early);
    if teller.say(text).is_err() || !is_good || is_early {
        return Ok(is_good);
    }
    from_zero(&mut teller, &shutdown).await
}

/// The second story.
async fn from_zero<W: Write>(
    teller: &mut Teller<W>,
    shutdown: &CancellationToken,
) -> anyhow::Result<bool> {
    teller.say(night_introduction()).context("nobody listens")?;
    let report = night::run(
        |event| {
            if teller.night(event).is_err() {
                shutdown.cancel();
            }
        },
        shutdown,
    );
    let report = report.await?;
    if shutdown.is_cancelled() {
        return Ok(teller.say("\nStopped early.").is_ok() && report.killed == 0);
    }
    let (text, is_good) = night_summary(&report);
    Ok(teller.say(text).is_ok() && is_good)
}

/// Writes to a person, or to a file.
struct Teller<W> {
    out: W,
    has_colour: bool,
    last_reason: String,
}

impl Teller<io::Stdout> {
    fn new(out: io::Stdout) -> Self {
        Self { has_colour: out.is_terminal(), last_reason: String::new(), out }
    }
}

impl<W: Write> Teller<W> {
    fn say(&mut self, text: impl Display) -> io::Result<()> {
        writeln!(self.out, "{text}")?;
        self.out.flush()
    }

    fn event(&mut self, event: Event) -> io::Result<()> {
        match event {
            Event::Began(phase) => self.say(format!("\n  {}", self.paint(BOLD, phase))),
            Event::Synced(sync) => self.synced(&sync),
            Event::Scaled(replicas, why) => {
                self.note(format!("KEDA sets {replicas} replicas: {why}"))
            }
            Event::Killed(node, pods) => self
                .note(format!("the agent of {node} is killed: its {pods} pods serve on, unseen")),
            Event::Restarted(node) => self.note(format!("the agent of {node} is started again")),
            Event::Wrong(what) => self.note(format!("WRONG: {what}")),
        }
    }

    fn night(&mut self, event: night::Event) -> io::Result<()> {
        match event {
            night::Event::Began(part, load) => {
                let words = match part {
                    Part::Day => "three replicas serve",
                    Part::Night => "everyone has left",
                    Part::Morning => "the first users are back, and no pod is there",
                };
                self.say(format!("\n  {} ({load} requests in flight)", self.paint(BOLD, words)))
            }
            night::Event::Scaled { from, to, why, pushed } => {
                let how = if pushed { "told by the stream" } else { "polling" };
                self.note(format!("KEDA, {how}: {from} → {to}, {why}"))
            }
            night::Event::Ordered { from, decision, value } => {
                let (to, why) = (decision.desired, decision.reason);
                self.say(format!("  HPA    {from} → {to}   value {value:.0}: {why}"))
            }
            night::Event::Ready(_, 0) => self.say("  pods   none"),
            night::Event::Ready(ready, replicas) => {
                self.say(format!("  pods   {}", pods(ready, replicas)))
            }
        }
    }

    fn note(&mut self, text: String) -> io::Result<()> {
        let text = self.paint(YELLOW, format!("── {text}"));
        self.say(format!("         {text}"))
    }

    fn synced(&mut self, sync: &Sync) -> io::Result<()> {
        let line = line(sync);
        let is_change = sync.decision.desired != sync.fact.replicas;
        let line = if is_change { self.paint(BOLD, line) } else { line };
        self.say(line)?;
        match &sync.reason {
            Some(reason) if *reason != self.last_reason => {
                self.last_reason.clone_from(reason);
                let text = self.paint(DIM, format!("gateway: {reason}"));
                self.say(format!("         {text}"))
            }
            Some(_) | None => Ok(()),
        }
    }

    fn paint(&self, style: &str, text: impl Display) -> String {
        if self.has_colour { format!("\x1b[{style}m{text}\x1b[0m") } else { text.to_string() }
    }
}

const BOLD: &str = "1";
const DIM: &str = "2";
const YELLOW: &str = "33";

const HEADING: &str = "  time   load   pods       value  at target   replicas  why";

/// One look of the HPA.
fn line(sync: &Sync) -> String {
    let (fact, decision) = (sync.fact, sync.decision);
    let (value, at_target) = match &sync.answer {
        Ok(answer) => {
            let value = answer.value.map_or("none".to_owned(), |value| format!("{value:.1}"));
            (value, format!("{} × {}", fact.replicas, answer.target))
        }
        Err(_) => ("refused".to_owned(), String::new()),
    };
    let order = if decision.desired == fact.replicas {
        format!("{}", fact.replicas)
    } else {
        format!("{} → {}", fact.replicas, decision.desired)
    };
    let why = match &sync.answer {
        Ok(_) => decision.reason.to_string(),
        Err(refusal) => format!("{}: {refusal}", decision.reason),
    };
    let seconds = fact.at.as_secs();
    format!(
        "{:>3}:{:02}  {:>3.0} %   {:<8} {value:>7}  {at_target:<9}   {order:<8}  {why}",
        seconds / 60,
        seconds % 60,
        fact.load,
        pods(fact.ready, fact.replicas),
    )
}

/// A mark per pod.
fn pods(ready: u32, replicas: u32) -> String {
    let mark = |place| if place < ready { '●' } else { '○' };
    (0..replicas).map(mark).collect()
}

fn introduction(stage: &Stage, load: Load) -> String {
    let Scaling { target, min, max } = SCALING;
    let pages = format!("http://{}", stage.http);
    let length = load.length.as_secs();
    format!(
        "\
A gateway and {nodes} agents run for real in this process, on loopback; the cluster, KEDA and the HPA
around them are emulated. {length} s, and some 20 more for the way from zero; Ctrl-C ends it.

  all of the gateway's pages   {pages}/
  why the value is what it is  {pages}{explain}

Deployment ai/vllm has a GPU per pod and {min} to {max} replicas, each wanted {target} % busy; a model loads for {load}.
KEDA looks every {poll} (in a cluster: 30 s), the HPA every {sync} (15 s); it scales down by the highest
wish of {window} (300 s). The floor is {min}, not 0: no GPU, no reading, so nothing would wake it without a demand
source. That is the second part.

A line is a look of the HPA: the gateway's value, what it would be with every replica at its target, and
what follows. ● is a pod that serves, ○ one whose model still loads.

{HEADING}",
        nodes = NODES.len(),
        explain = explain::path(&stage.key),
        load = seconds(pace::MODEL_LOAD),
        poll = seconds(pace::POLL),
        sync = seconds(pace::SYNC),
        window = seconds(pace::STABILIZATION),
    )
}

fn night_introduction() -> String {
    format!(
        "
From zero
Now a replica is wanted to run 8 requests and to have 5 waiting, and the floor is 0. With no pod there is no reading:
the gateway reads a router's queue (demandEndpoint) every 0.5 s and tells KEDA at once. The model loads for {load},
longer than KEDA's cooldown of {cooldown}: a pod that loads must not be taken for an idle one.",
        load = seconds(night::MODEL_LOAD),
        cooldown = seconds(night::COOLDOWN),
    )
}

fn night_summary(report: &night::Report) -> (String, bool) {
    let path: Vec<String> = report.path.iter().map(u32::to_string).collect();
    let how = if report.woken_by_push { "by the stream" } else { "by a poll" };
    let after = report.woken_after.unwrap_or_default().as_secs_f64();
    let mut text = format!(
        "
Summary
  replicas     {path}
  woken        {how}, {after:.1} s after the first request
  killed       {killed} pods that served
",
        path = path.join(" → "),
        killed = report.killed,
    );
    let problems = report.problems();
    if problems.is_empty() {
        text += "All as it should be.";
    } else {
        text += &format!("Not as it should be: {}.", problems.join("; "));
    }
    (text, problems.is_empty())
}

fn seconds(duration: Duration) -> String {
    format!("{} s", duration.as_secs())
}

/// The end of the story, and whether it is a good one.
fn summary(report: &Report, is_early: bool) -> (String, bool) {
    let Report { peak, needed, reached, .. } = report;
    let path: Vec<String> = report.path.iter().map(u32::to_string).collect();
    let overshoot = match report.most().saturating_sub(*needed) {
        0 => "none".to_owned(),
        more => format!("{more} replicas"),
    };
    let target = SCALING.target;
    let mut text = format!(
        "
Summary
  peak load    {peak:.0} % of a GPU, at {target} % a replica: {needed} replicas ({peak:.0} / {target} = {parts:.2})
  replicas     {path}; reached {reached}, overshoot {overshoot}
  lost agent   {lost}
  floor        {floor} s at {min} replica
  answers      {answers} given, {errors} refused, {wrong} wrong
",
        parts = peak / target,
        path = path.join(" → "),
        lost = lost_agent(report),
        floor = report.at_floor.as_secs(),
        min = SCALING.min,
        answers = report.answers,
        errors = report.errors,
        wrong = report.wrong.len(),
    );
    if is_early {
        text += "Stopped early.";
        return (text, report.wrong.is_empty());
    }
    let problems = report.problems();
    if problems.is_empty() {
        text += "All as it should be.";
    } else {
        text += &format!("Not as it should be: {}.", problems.join("; "));
    }
    (text, problems.is_empty())
}

fn lost_agent(report: &Report) -> String {
    match (report.agent_returned, report.shaken) {
        (false, _) => "none was lost".into(),
        (true, 0) => format!("away for {}; the replicas did not move", seconds(pace::AGENT_AWAY)),
        (true, moves) => format!("the replicas moved {moves} times"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caller::Observation;
    use crate::hpa::{Decision, Reason};
    use crate::load::Phase;
    use crate::story::Fact;

    fn look(answer: Result<f64, &str>, desired: u32, reason: Reason) -> Sync {
        let at = Duration::from_secs(68);
        let (phase, load, replicas, ready) = (Phase::Peak, 340.0, 4, 3);
        let seen = |value| Observation { target: 60.0, value: Some(value), active: true };
        Sync {
            fact: Fact { at, phase, load, replicas, ready },
            answer: answer.map(seen).map_err(str::to_owned),
            decision: Decision { desired, reason },
            reason: None,
        }
    }

    #[test]
    fn a_look_is_one_line_under_its_heading() {
        let reason = Reason::Metric { wish: 6, ratio: 340.0 / 240.0 };
        let grows = line(&look(Ok(340.0), 6, reason));
        let refused = line(&look(Err("not ready"), 4, Reason::MetricError));
        assert_eq!(
            [HEADING, &grows, &refused],
            [
                "  time   load   pods       value  at target   replicas  why",
                "  1:08  340 %   ●●●○       340.0  4 × 60      4 → 6     1.42 × target, asks for 6",
                "  1:08  340 %   ●●●○     refused              4         no value, so nothing moves: not ready",
            ]
        );
    }

    #[test]
    fn only_a_whole_story_that_went_well_is_good() {
        let good = Report {
            peak: 340.0,
            needed: 6,
            reached: 6,
            path: vec![1, 4, 6, 1],
            agent_returned: true,
            answers: 90,
            at_floor: Duration::from_secs(5),
            ..Report::default()
        };
        let (text, is_good) = summary(&good, false);
        assert!(is_good && text.contains("1 → 4 → 6 → 1; reached 6, overshoot none"), "{text}");
        let overshot = Report { path: vec![1, 4, 8, 1], shaken: 1, ..good.clone() };
        let (text, is_good) = summary(&overshot, false);
        assert!(!is_good && text.contains("overshoot 2 replicas"), "{text}");
        assert!(text.contains("a lost agent moved the replicas"), "{text}");

        let unfinished = Report { path: vec![1, 2], reached: 1, ..good };
        assert!(summary(&unfinished, true).1, "stopping early is not a fault");
        let wrong = Report { wrong: vec!["value 0".into()], ..unfinished };
        assert!(!summary(&wrong, true).1, "a wrong answer is");
    }
}
