//! Pure: one GPU, from one tick to the next.
//!
//! Guarantees: a tick that is not newer changes nothing; nothing is said to be so between two
//! ticks that was not so at both; energy is of the whole time since its counter was read before,
//! which may be many ticks.

use std::sync::Arc;
use std::time::Duration;

use shared::identity::NodeName;
use shared::metric::Metric;
use shared::time::Timestamp;

use super::idle::{self, Rest};
use super::meter::{Meter, Used};
use super::party::{Party, Plan, Tenancy, Use, Uses};
use crate::fleet::view::NodeView;
use smallvec::SmallVec;

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
    /// Who had it then: its place in what was planned for its node.
    held: Option<(Arc<Plan>, usize)>,
    /// Since when they have been seen to have it, and nobody else.
    held_since: Timestamp,
    meter: Meter,
    /// Of each of them.
    rests: SmallVec<[Rest; 1]>,
    /// Until when these stand if nothing more is said.
    known_until: Timestamp,
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
    /// What each of its parties uses.
    pub(super) uses: Uses,
}

impl Step {
    /// Joules of a pod, where they are known to be its: of its work, and of its part of the GPU's
    /// being there.
    pub(super) fn energy_of(
        &self,
        (party, used): (&Party, &Use),
        idle_watts: Option<f64>,
    ) -> (Option<f64>, Option<f64>) {
        let Some(spent) = self.spent.as_ref().filter(|spent| spent.is_same) else {
            return (None, None);
        };
        // Where it is not known, all is said to be work: nobody's idle is invented.
        let idle = idle_watts.map(|watts| (watts * spent.seconds).min(spent.joules));
        let dynamic = spent.joules - idle.unwrap_or(0.0);
        let dynamic = used.weight.map(|weight| dynamic * weight);
        // Who holds nothing has no part in its being there.
        let idle = idle.filter(|_| party.fraction > 0.0);
        (dynamic, idle.map(|idle| idle * party.fraction))
    }
}

impl Unit {
    pub(super) fn new(node: &NodeName, now: Timestamp) -> Self {
        Self {
            node: node.clone(),
            seen: now,
            read_at: None,
            held: None,
            held_since: now,
            meter: Meter::default(),
            rests: SmallVec::new(),
            known_until: now,
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

    /// Who holds it and has done nothing on it for how long, as far as that is known now.
    pub(super) fn idle(
        &self,
        now: Timestamp,
    ) -> impl Iterator<Item = (Duration, Tenancy<'_>, &Arc<str>, &Rest)> {
        let held = self.held.iter().filter(move |_| now <= self.known_until);
        held.flat_map(|(plan, gpu)| {
            let parties = &plan.parties()[plan.gpus()[*gpu].parties.clone()];
            parties.iter().zip(&self.rests).map(move |(party, rest)| (plan, party, rest))
        })
        .filter_map(move |(plan, party, rest)| {
            Some((rest.idle_for(now)?, plan.tenancy(party), &plan.device(party).name, rest))
        })
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

    /// Takes the tick that `view` is of the GPU at `at` of `plan`; nothing if it is none that is
    /// newer.
    pub(super) fn step(
        &mut self,
        view: &NodeView,
        (plan, at): (&Arc<Plan>, usize),
        now: Timestamp,
    ) -> Option<Step> {
        let gpu = &plan.gpus()[at];
        let row = view.row(gpu.device)?;
        let taken_at = row.taken_at;
        let before = self.read_at.replace(taken_at.max(self.read_at.unwrap_or(taken_at)));
        if before.is_some_and(|before| taken_at <= before) {
            return None;
        }
        let used = self.meter.follow(row.energy, taken_at);
        let time = before.map_or(Duration::ZERO, |before| taken_at.since(before));
        let is_close = time <= close(view);
        let is_same = self.is_held_as((plan, at)) && before.is_some();
        if !is_same {
            self.held_since = taken_at;
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
        self.known_until = taken_at + close(view);
        let (uses, parties) = (plan.uses(gpu, view), &plan.parties()[gpu.parties.clone()]);
        for ((party, used), rest) in parties.iter().zip(&uses).zip(&mut self.rests) {
            rest.go_on((party, used), (taken_at, is_close));
            if party.has_engine {
                let seen = idle::last_request(view, plan.tenancy(party), now);
                rest.last_request = seen.or(rest.last_request);
            }
        }
        let is_doubtful = used == Used::Doubtful;
        let seconds = time.as_secs_f64();
        before.map(|_| Step { seconds, is_close, is_same, spent, is_doubtful, uses })
    }

    /// Whether the same pods have it now as at the last tick; they are known by what is planned now
    /// from here on.
    fn is_held_as(&mut self, (plan, at): (&Arc<Plan>, usize)) -> bool {
        let known = self.held.take();
        let is_known =
            |(known, place): &(Arc<Plan>, usize)| Arc::ptr_eq(known, plan) && *place == at;
        if known.as_ref().is_some_and(is_known) {
            self.held = known;
            return true;
        }
        fn tenants(plan: &Plan, at: usize) -> impl Iterator<Item = Tenancy<'_>> {
            let parties = plan.gpus()[at].parties.clone();
            plan.parties()[parties].iter().map(|party| plan.tenancy(party))
        }
        let mut before = Vec::new();
        if let Some((plan, at)) = &known {
            before.extend(tenants(plan, *at).zip(self.rests.drain(..)));
        }
        let mut sorted: [Vec<_>; 2] =
            [before.iter().map(|(it, _)| *it).collect(), tenants(plan, at).collect()];
        sorted.iter_mut().for_each(|tenants| tenants.sort());
        let is_same = known.is_some() && sorted[0] == sorted[1];
        let rest_of = |tenant| before.iter().find(|(it, _)| *it == tenant).map(|(_, rest)| rest);
        self.rests = tenants(plan, at).map(|it| rest_of(it).cloned().unwrap_or_default()).collect();
        self.held = Some((plan.clone(), at));
        is_same
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
