//! Pure: counters of successive scrapes → growth per second, and means.
//!
//! Guarantees: nothing is ever negative. A counter that fell counts what came since it began anew;
//! a sum and its count begin anew together. A series that was not there at the scrape before counts
//! in full, one that comes back after a gap, or after a scrape of which it may have been on a broken
//! line, not at all until the next scrape. Nothing that grew by
//! nothing is zero; what has no earlier scrape to be compared with is unknown. Figures are over the
//! agent's own scrapes of at least the last 10 s, where there are as many.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::AddAssign;
use std::sync::Arc;
use std::time::Duration;

use shared::time::Timestamp;

/// How far back figures reach: counters that are read every second are jumpy.
pub const WINDOW: Duration = Duration::from_secs(10);

/// Series that are remembered without having been on the last page.
const MAX_REMEMBERED: usize = 16_384;

/// A counter, or a sum and the number of what was summed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Grown {
    /// The counter, or the sum.
    pub sum: f64,
    /// The number; 0 for a plain counter.
    pub count: f64,
}

impl Grown {
    fn since(self, earlier: Self) -> Self {
        if self.sum < earlier.sum || self.count < earlier.count {
            return self;
        }
        Self { sum: self.sum - earlier.sum, count: self.count - earlier.count }
    }

    /// The larger of both, part by part.
    pub fn max(self, other: Self) -> Self {
        Self { sum: self.sum.max(other.sum), count: self.count.max(other.count) }
    }
}

impl AddAssign for Grown {
    fn add_assign(&mut self, more: Self) {
        self.sum += more.sum;
        self.count += more.count;
    }
}

/// Which selection of series, and which entry of the dialect.
type Figure = (Arc<str>, usize);

/// One scrape: what each figure grew by since the one before.
struct Step {
    at: Timestamp,
    grown: HashMap<Figure, Grown>,
    /// Entries of which not all series could be read.
    doubtful: HashSet<usize>,
}

/// What is remembered of earlier scrapes of one engine.
pub struct Rates {
    /// Scrapes that lie further apart are not compared.
    max_gap: Duration,
    last: HashMap<(usize, String), (Timestamp, Grown)>,
    /// The newest last; the first is at least [`WINDOW`] old, where there is such a one.
    steps: VecDeque<Step>,
}

impl Rates {
    /// Nothing is remembered yet.
    pub fn new(max_gap: Duration) -> Self {
        Self { max_gap, last: HashMap::new(), steps: VecDeque::new() }
    }

    /// Forgets everything: another engine is read from now on.
    pub fn forget(&mut self) {
        self.last.clear();
        self.steps.clear();
    }

    /// A scrape at `now` begins; its growths follow.
    pub fn begin(&mut self, now: Timestamp) {
        if self.steps.back().is_some_and(|last| now.since(last.at) > self.max_gap) {
            self.forget();
        }
        self.steps.push_back(Step { at: now, grown: HashMap::new(), doubtful: HashSet::new() });
        while self.steps.get(1).is_some_and(|second| now.since(second.at) >= WINDOW) {
            self.steps.pop_front();
        }
        if self.last.len() > MAX_REMEMBERED {
            let before = self.before();
            self.last.retain(|_, (at, _)| Some(*at) == before);
        }
    }

    /// What a series of the dialect's `entry` grew by since the scrape before; none if it cannot
    /// be told. To be asked once a scrape.
    pub fn growth(&mut self, entry: usize, labels: &str, value: Grown) -> Option<Grown> {
        let (before, now) = (self.before(), self.steps.back()?.at);
        let last = self.last.insert((entry, labels.to_owned()), (now, value));
        match (before, last) {
            (Some(_), None) if !self.was_doubtful(entry) => Some(value),
            (Some(before), Some((at, earlier))) if at == before => Some(value.since(earlier)),
            _ => None,
        }
    }

    /// Not all series of the dialect's `entry` could be read: of those that turn up at the next
    /// scrape it is not known that they are new.
    pub fn doubt(&mut self, entry: usize) {
        if let Some(step) = self.steps.back_mut() {
            step.doubtful.insert(entry);
        }
    }

    /// The growth of a figure, all its series together.
    pub fn record(&mut self, selection: &Arc<str>, entry: usize, grown: Grown) {
        if let Some(step) = self.steps.back_mut() {
            step.grown.insert((selection.clone(), entry), grown);
        }
    }

    /// Growth per second.
    pub fn per_second(&self, selection: &Arc<str>, entry: usize) -> Option<f64> {
        let (grown, over) = self.over_window(selection, entry)?;
        Some(grown.sum / over.as_secs_f64())
    }

    /// Growth of the sum and of the count.
    pub fn grown(&self, selection: &Arc<str>, entry: usize) -> Option<Grown> {
        self.over_window(selection, entry).map(|(grown, _)| grown)
    }

    /// The unbroken growths up to now, and how long they took.
    fn over_window(&self, selection: &Arc<str>, entry: usize) -> Option<(Grown, Duration)> {
        let figure = (selection.clone(), entry);
        let newest = self.steps.back()?.at;
        let mut total = Grown::default();
        let mut since = newest;
        // The first step is what the second one grew from.
        for at in (1..self.steps.len()).rev() {
            let Some(grown) = self.steps[at].grown.get(&figure) else { break };
            total += *grown;
            since = self.steps[at - 1].at;
        }
        let over = newest.since(since);
        (!over.is_zero()).then_some((total, over))
    }

    fn before(&self) -> Option<Timestamp> {
        self.step_before().map(|step| step.at)
    }

    fn was_doubtful(&self, entry: usize) -> bool {
        self.step_before().is_some_and(|step| step.doubtful.contains(&entry))
    }

    fn step_before(&self) -> Option<&Step> {
        self.steps.len().checked_sub(2).map(|at| &self.steps[at])
    }
}
