//! Pure: one GPU, from one tick to the next.
//!
//! Guarantees: a tick that is not newer changes nothing; nothing is said to be so between two
//! ticks that was not so at both; energy is of the whole time since its counter was read before,
//! which may be many ticks.

use std::time::Duration;

use shared::identity::NodeName;
use shared::metric::Metric;
use shared::time::Timestamp;

use super::idle::Rest;
use super::meter::{Meter, Used};
use super::party::{Party, Tenancy};
use crate::fleet::view::NodeView;

/// What was not heard of for longer may be gone.
pub(super) const CLOSE: Duration = Duration::from_secs(10);
/// How long a GPU must do nothing for what it draws to be what it draws idle.
const RESTING: Duration = Duration::from_secs(10);

/// A GPU as it was at the last tick.
#[derive(Debug)]
pub(super) struct Unit {
    node: NodeName,
    /// When its node last spoke of it.
    seen: Timestamp,
    /// When it was last read.
    read_at: Option<Timestamp>,
    tenants: Vec<Tenancy>,
    /// Since when they have been seen to have it, and nobody else.
    held_since: Timestamp,
    meter: Meter,
    rests: Vec<Rest>,
    resting: Option<Resting>,
    idle_watts: Option<f64>,
}

/// A GPU that does nothing.
#[derive(Debug)]
struct Resting {
    /// Since when that is known.
    since: Timestamp,
    /// Joules within that time.
    joules: f64,
    /// The time that they were used in.
    time: Duration,
}

impl Resting {
    fn since(since: Timestamp) -> Self {
        Self { since, joules: 0.0, time: Duration::ZERO }
    }
}

/// Between ticks further apart than this nothing is known of what was done.
pub(super) fn close(view: &NodeView) -> Duration {
    CLOSE.max(view.intervals.samples * 3)
}

/// What a GPU used.
pub(super) struct Spent {
    pub(super) joules: f64,
    /// In how long.
    pub(super) seconds: f64,
    /// Whether the same pods had it all the while, as far as that was seen.
    pub(super) is_same: bool,
}

/// What happened between two ticks.
pub(super) struct Step {
    /// How long that was.
    pub(super) seconds: f64,
    /// Whether nothing can have been missed in between.
    pub(super) is_close: bool,
    /// Whether the same pods had it at both ends.
    pub(super) is_same: bool,
    /// What it used, also before that where it was not known at the last tick.
    pub(super) spent: Option<Spent>,
    /// Whether its total could not be true.
    pub(super) is_doubtful: bool,
    /// Who has which part now.
    pub(super) parties: Vec<Party>,
}

impl Step {
    /// Joules of a pod, where they are known to be its: of its work, and of its part of the GPU's
    /// being there.
    pub(super) fn energy_of(
        &self,
        party: &Party,
        idle_watts: Option<f64>,
    ) -> (Option<f64>, Option<f64>) {
        let Some(spent) = self.spent.as_ref().filter(|spent| spent.is_same) else {
            return (None, None);
        };
        // Where it is not known, all is said to be work: nobody's idle is invented.
        let idle = idle_watts.map(|watts| (watts * spent.seconds).min(spent.joules));
        let dynamic = spent.joules - idle.unwrap_or(0.0);
        let dynamic = party.weight.map(|weight| dynamic * weight);
        // Who holds nothing has no part in its being there.
        let idle = idle.filter(|_| party.fraction > 0.0);
        (dynamic, idle.map(|idle| idle * party.fraction))
    }

    /// How much of it nobody holds.
    pub(super) fn free(&self) -> f64 {
        let held: f64 = self.parties.iter().map(|party| party.fraction).sum();
        (1.0 - held).max(0.0)
    }
}

impl Unit {
    pub(super) fn new(node: &NodeName, now: Timestamp) -> Self {
        Self {
            node: node.clone(),
            seen: now,
            read_at: None,
            tenants: Vec::new(),
            held_since: now,
            meter: Meter::default(),
            rests: Vec::new(),
            resting: None,
            idle_watts: None,
        }
    }

    /// The node that has it.
    pub(super) fn node(&self) -> &NodeName {
        &self.node
    }

    /// When its node last spoke of it.
    pub(super) fn seen(&self) -> Timestamp {
        self.seen
    }

    /// The least it was seen to draw when it did nothing.
    pub(super) fn learned_idle_watts(&self) -> Option<f64> {
        self.idle_watts
    }

    /// Pods that have it and do nothing, since when.
    pub(super) fn rests(&self) -> &[Rest] {
        &self.rests
    }

    /// Whether `node` speaks for it: of two that claim it, the one that did before.
    pub(super) fn is_of(&mut self, node: &NodeName, now: Timestamp) -> bool {
        if self.node != *node && now.since(self.seen) <= CLOSE {
            return false;
        }
        if self.node != *node {
            self.node = node.clone();
        }
        self.seen = now;
        true
    }

    /// Takes the tick that `view` is; nothing if it is none that is newer.
    pub(super) fn step(
        &mut self,
        view: &NodeView,
        at: usize,
        parties: Vec<Party>,
        now: Timestamp,
    ) -> Option<Step> {
        let row = view.row(at)?;
        let taken_at = row.taken_at;
        let before = self.read_at.replace(taken_at.max(self.read_at.unwrap_or(taken_at)));
        if before.is_some_and(|before| taken_at <= before) {
            return None;
        }
        let used = self.meter.follow(row.energy, taken_at);
        let time = before.map_or(Duration::ZERO, |before| taken_at.since(before));
        let is_close = time <= close(view);
        let tenants: Vec<_> = parties.iter().map(|party| party.tenancy.clone()).collect();
        let is_same = before.is_some() && tenants == self.tenants;
        if !is_same {
            (self.tenants, self.held_since) = (tenants, taken_at);
        }
        let load = row.readings.value(Metric::GpuUtilization);
        self.rest(load.is_some_and(|load| load == 0.0) && is_close, used, taken_at);
        let spent = match used {
            Used::Joules { joules, since } => Some(Spent {
                joules,
                seconds: taken_at.since(since).as_secs_f64(),
                is_same: self.held_since <= since,
            }),
            Used::Unknown | Used::Doubtful => None,
        };
        self.rests = Rest::after(&self.rests, view, &parties, taken_at, is_close, now);
        let is_doubtful = used == Used::Doubtful;
        let seconds = time.as_secs_f64();
        before.map(|_| Step { seconds, is_close, is_same, spent, is_doubtful, parties })
    }

    /// Learns what it draws when it does nothing.
    fn rest(&mut self, is_resting: bool, used: Used, taken_at: Timestamp) {
        if !is_resting {
            self.resting = None;
            return;
        }
        let resting = self.resting.get_or_insert(Resting::since(taken_at));
        let Used::Joules { joules, since } = used else { return };
        // The time until it was first seen to rest may have been work.
        if since < resting.since {
            return;
        }
        resting.joules += joules;
        resting.time += taken_at.since(since);
        if resting.time >= RESTING {
            let watts = resting.joules / resting.time.as_secs_f64();
            *resting = Resting::since(taken_at);
            let least = self.idle_watts.map_or(watts, |known| known.min(watts));
            self.idle_watts = Some(least).filter(|watts| *watts > 0.0);
        }
    }
}
