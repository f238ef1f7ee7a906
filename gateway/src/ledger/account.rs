//! Pure: what was counted for a workload, a namespace or a node.
//!
//! Guarantees: totals only grow, each of them a sum of its own of what is not negative; a figure of which nothing was ever known is `None`; a cost of
//! which a part has no price is not known, rather than too small.

use shared::time::Timestamp;

use super::tariff::Tariff;

/// Totals of a workload, or of several.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    /// GPU-seconds held.
    pub held: f64,
    /// GPU-seconds busy.
    pub busy: Option<f64>,
    /// GPU-seconds not held because the workload was at zero.
    pub not_held: Option<f64>,
    /// Joules that its work cost.
    pub dynamic: Option<f64>,
    /// Joules that its GPUs would have drawn idle; what they draw idle may not be known.
    pub idle: Option<f64>,
    /// Cost of what was held and has a price.
    pub cost: Option<f64>,
    /// GPU-seconds held of models without a price.
    pub unpriced: f64,
}

fn add(total: &mut Option<f64>, more: Option<f64>) {
    if let Some(more) = more {
        *total = Some(total.unwrap_or(0.0) + more);
    }
}

impl Figures {
    /// With all of another's.
    pub fn add(&mut self, other: &Self) {
        self.held += other.held;
        self.unpriced += other.unpriced;
        add(&mut self.busy, other.busy);
        add(&mut self.not_held, other.not_held);
        add(&mut self.dynamic, other.dynamic);
        add(&mut self.idle, other.idle);
        add(&mut self.cost, other.cost);
    }

    /// Joules together.
    pub fn joules(&self) -> Option<f64> {
        let mut joules = self.dynamic;
        add(&mut joules, self.idle);
        joules
    }

    /// GPU-seconds held of a GPU whose hour has that price.
    pub fn hold(&mut self, seconds: f64, price: Option<f64>) {
        self.held += seconds;
        match price {
            Some(price) => add(&mut self.cost, Some(seconds / 3_600.0 * price)),
            None => self.unpriced += seconds,
        }
    }

    /// GPU-seconds busy.
    pub fn work(&mut self, seconds: f64) {
        add(&mut self.busy, Some(seconds));
    }

    /// GPU-seconds that were not held.
    pub fn spare(&mut self, seconds: f64) {
        add(&mut self.not_held, Some(seconds));
    }

    /// Joules of its work and of its GPUs' being there, where they are known.
    pub fn use_up(&mut self, dynamic: Option<f64>, idle: Option<f64>) {
        add(&mut self.dynamic, dynamic);
        add(&mut self.idle, idle);
    }

    /// What it costs, where all of it has a price.
    pub fn cost(&self) -> Option<f64> {
        self.cost.filter(|_| self.unpriced == 0.0)
    }

    /// What its energy weighs.
    pub fn grams(&self, tariff: &Tariff) -> Option<f64> {
        tariff.grams(self.joules()?)
    }
}

/// A workload's row.
#[derive(Clone, Debug, Default)]
pub struct Row {
    /// What was counted.
    pub figures: Figures,
    /// GPUs that one of its pods holds, as last seen.
    pub per_pod: Option<f64>,
    /// When it was last seen.
    pub seen: Timestamp,
}

/// A node's row.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct NodeRow {
    /// Joules that its GPUs' own totals grew by; `None` while none of them tells.
    pub joules: Option<f64>,
    /// What of them is some workload's.
    pub attributed: f64,
    /// What of them is nobody's.
    pub unattributed: f64,
    /// GPU-seconds held.
    pub held: f64,
    /// GPU-seconds that nobody held.
    pub free: f64,
    /// Looks at totals that could not be true.
    pub doubtful: u64,
    /// When it was last seen.
    pub seen: Timestamp,
}

impl NodeRow {
    /// Joules that are nobody's.
    pub fn unattributed(&self) -> Option<f64> {
        // A difference of two totals would go back by what is left over from arithmetic.
        self.joules.map(|_| self.unattributed)
    }

    /// Joules of one of its GPUs, and what of them is some workload's.
    pub fn use_up(&mut self, joules: f64, attributed: f64) {
        add(&mut self.joules, Some(joules));
        let attributed = attributed.min(joules).max(0.0);
        self.attributed += attributed;
        self.unattributed += joules - attributed;
    }
}
