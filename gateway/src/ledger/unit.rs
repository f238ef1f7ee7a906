//! Pure: one GPU, from one tick to the next.
//!
//! Guarantees: a tick that is not newer changes nothing; nothing is said to be so between two
//! ticks that was not so at both.

use std::time::Duration;

use shared::identity::NodeName;
use shared::metric::Metric;
use shared::time::Timestamp;

use super::idle::Rest;
use super::meter::{Meter, Used};
use super::party::{Party, Tenancy};
use crate::fleet::view::NodeView;

/// Between ticks further apart than this nothing is known of what was done; three of the agent's
/// intervals where that is longer.
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
    meter: Meter,
    rests: Vec<Rest>,
    /// Joules and seconds since it last did something.
    resting: Option<(f64, Duration)>,
    idle_watts: Option<f64>,
}

/// What happened between two ticks.
pub(super) struct Step {
    /// How long that was.
    pub(super) seconds: f64,
    /// Whether nothing can have been missed in between.
    pub(super) is_close: bool,
    /// Whether the same pods had it at both ends.
    pub(super) is_same: bool,
    /// What it used.
    pub(super) joules: Option<f64>,
    /// Whether its total could not be true.
    pub(super) is_doubtful: bool,
    /// Who has which part now.
    pub(super) parties: Vec<Party>,
}

impl Step {
    /// Joules of a pod: of its work, and of its part of the GPU's being there.
    pub(super) fn energy_of(
        &self,
        party: &Party,
        idle_watts: Option<f64>,
    ) -> Option<(f64, Option<f64>)> {
        let joules = self.joules?;
        // Where it is not known, all is said to be work: nobody's idle is invented.
        let idle = idle_watts.map(|watts| (watts * self.seconds).min(joules));
        let dynamic = joules - idle.unwrap_or(0.0);
        let dynamic = party.weight.map_or(0.0, |weight| dynamic * weight);
        Some((dynamic, idle.map(|idle| idle * party.fraction)))
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
        let is_close = time <= CLOSE.max(view.intervals.samples * 3);
        let tenants: Vec<_> = parties.iter().map(|party| party.tenancy.clone()).collect();
        let is_same = before.is_some() && tenants == self.tenants;
        self.tenants = tenants;
        let joules = match used {
            Used::Joules(joules) => Some(joules),
            Used::Unknown | Used::Doubtful => None,
        };
        let load = row.readings.value(Metric::GpuUtilization);
        self.rest(load.is_some_and(|load| load == 0.0) && is_close, joules, time);
        self.rests = Rest::after(&self.rests, view, &parties, taken_at, is_close, now);
        let is_doubtful = used == Used::Doubtful;
        let seconds = time.as_secs_f64();
        before.map(|_| Step { seconds, is_close, is_same, joules, is_doubtful, parties })
    }

    /// Learns what it draws when it does nothing.
    fn rest(&mut self, is_resting: bool, joules: Option<f64>, time: Duration) {
        let Some(joules) = joules.filter(|_| is_resting) else {
            self.resting = is_resting.then_some((0.0, Duration::ZERO));
            return;
        };
        // The time until it was first seen to rest may have been work.
        let Some((sum, rested)) = &mut self.resting else {
            self.resting = Some((0.0, Duration::ZERO));
            return;
        };
        *sum += joules;
        *rested += time;
        if *rested >= RESTING {
            let watts = *sum / rested.as_secs_f64();
            let least = self.idle_watts.map_or(watts, |known| known.min(watts));
            self.idle_watts = Some(least).filter(|watts| *watts > 0.0);
            self.resting = Some((0.0, Duration::ZERO));
        }
    }
}
