//! Numbers of several rounds and budgets for them, as text or JSON.
//!
//! Guarantees: a figure without a round is absent, not zero; a budget is met only by what was
//! measured.

use comfy_table::{Table, presets};
use serde_json::{Value, json};

/// One figure, once a round.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rounds(Vec<f64>);

impl FromIterator<f64> for Rounds {
    fn from_iter<I: IntoIterator<Item = f64>>(rounds: I) -> Self {
        let mut rounds: Vec<f64> = rounds.into_iter().filter(|round| round.is_finite()).collect();
        rounds.sort_by(f64::total_cmp);
        Self(rounds)
    }
}

/// Of one round.
impl From<f64> for Rounds {
    fn from(once: f64) -> Self {
        [once].into_iter().collect()
    }
}

/// One a round.
impl From<&[f64]> for Rounds {
    fn from(rounds: &[f64]) -> Self {
        rounds.iter().copied().collect()
    }
}

impl Rounds {
    /// This figure by another, round by round.
    pub fn ratios(own: &[f64], floor: &[f64]) -> Self {
        own.iter().zip(floor).map(|(own, floor)| own / floor).collect()
    }

    /// The one in the middle.
    pub fn median(&self) -> Option<f64> {
        self.0.get(self.0.len() / 2).copied()
    }

    /// The lowest and the highest.
    pub fn spread(&self) -> Option<(f64, f64)> {
        Some((*self.0.first()?, *self.0.last()?))
    }

    fn text(&self) -> String {
        match (self.median(), self.spread()) {
            (Some(median), Some((low, high))) if low < high => {
                format!("{} ({} to {})", short(median), short(low), short(high))
            }
            (Some(median), _) => short(median),
            _ => "-".to_owned(),
        }
    }

    fn json(&self) -> Value {
        json!({"median": self.median(), "rounds": self.0})
    }
}

/// Three digits that matter.
fn short(value: f64) -> String {
    match value.abs() {
        value if value >= 99.95 => format!("{value:.0}"),
        value if value >= 9.995 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    }
}

/// What was measured of one thing.
#[derive(Clone, Debug)]
pub struct Row {
    /// What.
    pub what: String,
    /// In which unit.
    pub unit: &'static str,
    /// Its figure.
    pub figure: Rounds,
    /// The same by the floor's of the same round.
    pub ratio: Option<Rounds>,
}

/// What a figure must not exceed.
#[derive(Clone, Debug)]
pub struct Budget {
    /// Of what.
    pub what: String,
    /// The most it may be.
    pub limit: f64,
    /// What it was.
    pub measured: Rounds,
}

/// How budgets are judged.
#[derive(Clone, Copy, Debug)]
pub struct Judge {
    /// Limits are multiplied by this.
    pub slack: f64,
    /// By the best round instead of the median: a regression is in every round, noise is not.
    pub by_best: bool,
}

impl Budget {
    /// Whether it is kept; `None` where nothing was measured.
    pub fn is_met(&self, judge: Judge) -> Option<bool> {
        let measured = if judge.by_best {
            self.measured.spread().map(|(lowest, _)| lowest)
        } else {
            self.measured.median()
        };
        Some(measured? <= self.limit * judge.slack)
    }
}

/// All that one command found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Figures.
    pub rows: Vec<Row>,
    /// Budgets.
    pub budgets: Vec<Budget>,
    /// Answers that were not what the readings say, and what else must not be.
    pub wrong: Vec<String>,
}

impl Report {
    /// A figure.
    pub fn row(&mut self, what: impl Into<String>, unit: &'static str, figure: impl Into<Rounds>) {
        self.rows.push(Row { what: what.into(), unit, figure: figure.into(), ratio: None });
    }

    /// A figure beside the floor's.
    pub fn beside(&mut self, what: String, unit: &'static str, own: &[f64], floor: &[f64]) {
        let (figure, ratio) = (own.into(), Rounds::ratios(own, floor));
        self.rows.push(Row { what, unit, figure, ratio: Some(ratio) });
    }

    /// A budget.
    pub fn budget(&mut self, what: impl Into<String>, limit: f64, measured: impl Into<Rounds>) {
        self.budgets.push(Budget { what: what.into(), limit, measured: measured.into() });
    }

    /// Whether nothing is wrong and every budget is kept.
    pub fn is_good(&self, judge: Judge) -> bool {
        self.wrong.is_empty()
            && self.budgets.iter().all(|budget| budget.is_met(judge) == Some(true))
    }

    /// For people.
    pub fn text(&self, judge: Judge) -> String {
        let mut figures = Table::new();
        figures.load_style(presets::NOTHING);
        figures.set_header(["figure: median (lowest to highest round)", "", "", "by the floor's"]);
        for row in &self.rows {
            let ratio = row.ratio.as_ref().map_or_else(String::new, Rounds::text);
            figures.add_row([row.what.clone(), row.figure.text(), row.unit.to_owned(), ratio]);
        }
        let mut budgets = Table::new();
        budgets.load_style(presets::NOTHING);
        budgets.set_header(["budget", "at most", "measured", ""]);
        for budget in &self.budgets {
            let met = match budget.is_met(judge) {
                Some(true) => "met",
                Some(false) => "NOT MET",
                None => "not measured",
            };
            let (limit, measured) = (short(budget.limit), budget.measured.text());
            budgets.add_row([budget.what.clone(), limit, measured, met.to_owned()]);
        }
        let mut text = format!("{figures}\n\n{budgets}\n");
        if judge.by_best || judge.slack > 1.0 {
            let by = if judge.by_best { "best round" } else { "median" };
            text += &format!("judged by the {by}, with limits × {}\n", judge.slack);
        }
        for wrong in &self.wrong {
            text += &format!("WRONG: {wrong}\n");
        }
        text
    }

    /// For programs.
    pub fn json(&self, judge: Judge) -> Value {
        let row = |row: &Row| {
            json!({"what": row.what, "unit": row.unit, "figure": row.figure.json(),
                "toFloor": row.ratio.as_ref().map(Rounds::json)})
        };
        let budget = |budget: &Budget| {
            json!({"what": budget.what, "limit": budget.limit,
                "measured": budget.measured.json(), "met": budget.is_met(judge)})
        };
        json!({
            "figures": self.rows.iter().map(row).collect::<Vec<_>>(),
            "budgets": self.budgets.iter().map(budget).collect::<Vec<_>>(),
            "wrong": self.wrong,
            "judge": {"slack": judge.slack, "byBestRound": judge.by_best},
            "good": self.is_good(judge),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STRICT: Judge = Judge { slack: 1.0, by_best: false };

    #[test]
    fn the_median_of_ratios_is_quoted_and_a_budget_needs_a_figure() {
        let ratios = Rounds::ratios(&[3.0, 2.0, 8.0], &[2.0, 2.0, 2.0]);
        assert_eq!((ratios.median(), ratios.spread()), (Some(1.5), Some((1.0, 4.0))));
        let mut report = Report::default();
        report.budget("calls", 1.2, ratios);
        assert!(!report.is_good(STRICT), "the median is above");
        assert!(report.is_good(Judge { slack: 1.3, ..STRICT }));
        assert!(report.is_good(Judge { by_best: true, ..STRICT }), "one round was quiet");
        report.budget("nothing", 1.0, f64::NAN);
        assert_eq!(report.budgets[1].is_met(STRICT), None);
        assert!(!report.is_good(Judge { slack: 9.0, ..STRICT }), "not measured is not met");
    }
}
