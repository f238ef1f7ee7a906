//! What has to be true of a run, judged from what was seen. Pure: it is told everything.
//!
//! An answer is wrong when an HPA without limits would, on that answer, order more replicas than
//! the load of the last seconds needs, or fewer, unless it is what is there already.

use std::collections::VecDeque;
use std::time::Duration;

use crate::caller::Observation;
use crate::hpa::{Metric, MetricType, Scale, wish};
use crate::load::Phase;

/// How old the facts may be that an answer rests on: a directory reload, a sample, a stale reading.
const WINDOW: Duration = Duration::from_secs(4);

/// What is true of the cluster at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Fact {
    /// When, since the story began.
    pub at: Duration,
    /// Where in the story.
    pub phase: Phase,
    /// Load in percent of one GPU.
    pub load: f64,
    /// Replicas ordered.
    pub replicas: u32,
    /// Pods that serve.
    pub ready: u32,
}

/// A story being told.
#[derive(Clone, Debug)]
pub struct Story {
    target: f64,
    floor: u32,
    recent: VecDeque<Fact>,
    steady: Option<u32>,
    floor_since: Option<Duration>,
    report: Report,
}

/// What was seen.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// The highest load, percent of one GPU.
    pub peak: f64,
    /// The replicas it needs.
    pub needed: u32,
    /// The most pods that served at once.
    pub reached: u32,
    /// The replicas ordered, each change once.
    pub path: Vec<u32>,
    /// Changes while an agent was away or had just come back.
    pub shaken: u32,
    /// Whether an agent was killed and came back.
    pub agent_returned: bool,
    /// Answers asked for and given.
    pub answers: u32,
    /// Answers refused.
    pub errors: u32,
    /// Answers that would mislead the HPA, in words.
    pub wrong: Vec<String>,
    /// How long the replicas have been at the floor since the load fell.
    pub at_floor: Duration,
}

impl Story {
    /// A story in which a replica takes `target` percent and `floor` replicas stay.
    pub fn new(target: f64, floor: u32) -> Self {
        Self {
            target,
            floor,
            recent: VecDeque::new(),
            steady: None,
            floor_since: None,
            report: Report::default(),
        }
    }

    /// The cluster at one moment.
    pub fn fact(&mut self, fact: Fact) {
        let report = &mut self.report;
        report.peak = report.peak.max(fact.load);
        report.needed = (report.peak / self.target).ceil().max(f64::from(self.floor)) as u32;
        report.reached = report.reached.max(fact.ready);
        if report.path.last() != Some(&fact.replicas) {
            report.path.push(fact.replicas);
        }
        if fact.phase >= Phase::Fall {
            self.steady = None;
        }
        if self.steady.is_some_and(|steady| steady != fact.replicas) {
            report.shaken += 1;
            self.steady = Some(fact.replicas);
        }
        self.count_floor(fact);
        self.recent.push_back(fact);
        self.recent.retain(|old| old.at + WINDOW >= fact.at);
    }

    /// An agent goes away: from now until the load falls nothing may move.
    pub fn agent_killed(&mut self) {
        self.steady = self.recent.back().map(|fact| fact.replicas);
    }

    /// The agent is there again.
    pub fn agent_returned(&mut self) {
        self.report.agent_returned = true;
    }

    /// An answer, or a refusal; says what is wrong with it, if anything is.
    pub fn answer(&mut self, answer: Result<&Observation, &str>) -> Option<&str> {
        let Ok(answer) = answer else {
            self.report.errors += 1;
            return None;
        };
        self.report.answers += 1;
        let wrong = self.judge(answer)?;
        self.report.wrong.push(wrong);
        self.report.wrong.last().map(String::as_str)
    }

    /// What was seen so far.
    pub fn report(&self) -> &Report {
        &self.report
    }

    fn count_floor(&mut self, fact: Fact) {
        if fact.phase < Phase::Fall || fact.replicas != self.floor {
            self.floor_since = None;
        } else {
            self.floor_since.get_or_insert(fact.at);
        }
        let at_floor = self.floor_since.map(|since| fact.at - since);
        self.report.at_floor = at_floor.unwrap_or_default();
    }

    fn judge(&self, answer: &Observation) -> Option<String> {
        let now = self.recent.back()?;
        let Some(value) = answer.value else {
            return Some("an answer without a value".into());
        };
        if answer.target != self.target {
            return Some(format!("target {} instead of {}", answer.target, self.target));
        }
        let (kind, target) = (MetricType::AverageValue, answer.target);
        let (spec, status, ready) = (now.replicas, now.replicas, now.ready);
        let scale = Scale { spec, status, ready };
        let (asked, _) = wish(Metric { kind, value, target }, scale, 0.1);
        let (fewest, most) = self.allowed();
        let asked = asked.max(self.floor);
        (asked < fewest || asked > most).then(|| {
            format!("value {value} asks for {asked} replicas where {fewest} to {most} would do")
        })
    }

    /// The replicas that the recent loads need, or that were there.
    fn allowed(&self) -> (u32, u32) {
        let needs = |fact: &Fact| (fact.load / self.target).ceil() as u32;
        let counts = |fact: &Fact| [needs(fact).max(self.floor), fact.replicas];
        let all = || self.recent.iter().flat_map(counts);
        (all().min().unwrap_or(0), all().max().unwrap_or(u32::MAX))
    }
}

impl Report {
    /// The most replicas ordered.
    pub fn most(&self) -> u32 {
        self.path.iter().copied().max().unwrap_or(0)
    }

    /// Whether replicas only grew until the peak, and then only shrank.
    pub fn is_one_hill(&self) -> bool {
        let top = self.path.iter().position(|count| *count == self.most());
        let (up, down) = self.path.split_at(top.unwrap_or(0));
        up.is_sorted() && down.is_sorted_by(|before, after| before >= after)
    }

    /// What went wrong in a run that ended by itself: nothing, if all is well.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let mut demand = |holds: bool, problem: String| {
            if !holds {
                problems.push(problem);
            }
        };
        let (needed, reached, most) = (self.needed, self.reached, self.most());
        demand(reached >= needed, format!("{reached} replicas served where {needed} were needed"));
        demand(most <= needed, format!("overshoot: {most} replicas ordered, {needed} needed"));
        demand(self.is_one_hill(), format!("replicas went to and fro: {:?}", self.path));
        demand(self.agent_returned, "no agent was killed and restarted".into());
        demand(self.shaken == 0, "a lost agent moved the replicas".into());
        demand(!self.at_floor.is_zero(), "replicas did not return to the floor".into());
        demand(self.answers > 0, "no answer at all".into());
        demand(self.wrong.is_empty(), format!("{} wrong answers", self.wrong.len()));
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fact(at: u64, phase: Phase, load: f64, replicas: u32) -> Fact {
        Fact { at: Duration::from_secs(at), phase, load, replicas, ready: replicas }
    }

    fn answer(value: f64) -> Observation {
        Observation { target: 60.0, value: Some(value), active: true }
    }

    #[test]
    fn an_answer_is_wrong_when_it_asks_for_what_no_recent_load_needs() {
        let mut story = Story::new(60.0, 1);
        story.fact(fact(0, Phase::Peak, 200.0, 2));
        assert_eq!(story.answer(Ok(&answer(200.0))), None);
        assert_eq!(story.answer(Ok(&answer(120.0))), None, "holding is never wrong");
        assert!(story.answer(Ok(&answer(400.0))).is_some(), "asks for 7");
        assert!(story.answer(Ok(&answer(0.0))).is_some(), "asks for none");
        assert_eq!(story.answer(Err("unavailable")), None, "not knowing is not lying");
        story.fact(fact(10, Phase::Gone, 0.0, 2));
        assert_eq!(story.answer(Ok(&answer(0.0))), None);
        assert!(story.answer(Ok(&answer(200.0))).is_some(), "that load is gone");
        let report = story.report();
        assert_eq!((report.answers, report.errors, report.wrong.len()), (6, 1, 3));
    }

    #[test]
    fn a_good_run_has_no_problems_and_each_fault_is_named() {
        let mut story = Story::new(60.0, 1);
        story.fact(fact(0, Phase::Idle, 30.0, 1));
        story.fact(fact(1, Phase::Peak, 340.0, 4));
        story.fact(fact(2, Phase::Peak, 340.0, 6));
        assert!(story.answer(Ok(&answer(340.0))).is_none());
        story.agent_killed();
        story.fact(fact(3, Phase::Peak, 340.0, 6));
        story.agent_returned();
        let mut bad = story.clone();
        story.fact(fact(4, Phase::Gone, 0.0, 1));
        story.fact(fact(5, Phase::Gone, 0.0, 1));
        assert_eq!(story.report().problems(), Vec::<String>::new());
        assert_eq!(story.report().at_floor, Duration::from_secs(1));

        bad.fact(fact(4, Phase::Peak, 340.0, 5));
        bad.fact(fact(5, Phase::Peak, 340.0, 7));
        let problems = bad.report().problems().join("; ");
        for named in ["overshoot: 7", "to and fro", "lost agent moved", "to the floor"] {
            assert!(problems.contains(named), "{named} in {problems}");
        }
    }
}
