//! Pure: a shared device's readings and what its parties are seen to use → each party's part.
//!
//! Guarantees: parts of what is used up together never add up to more than the device's own
//! reading; what nobody is seen to use is nobody's, and is not spread; the order of the parties
//! changes nothing. What cannot be told is absent, never a zero and never all of the device.

use std::collections::HashSet;

use shared::frame::HolderSource;
use shared::metric::Metric;
use shared::reading::Readings;

use crate::device::ObservedProcess;

/// Scaled parts are rounded down to whole billionths, so that they do not add up to more than the
/// whole.
const BILLION: f64 = 1e9;

/// What someone's processes are seen to use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Usage {
    /// Part of the device's time, in percent; `None` where it cannot be told.
    pub utilization: Option<f64>,
    /// Device memory, in MiB; `None` where it cannot be told.
    pub memory_mib: Option<f64>,
}

impl Usage {
    /// That of somebody without a process.
    pub const NOTHING: Self = Self { utilization: Some(0.0), memory_mib: Some(0.0) };
    /// That of somebody whose processes cannot be told.
    pub const UNKNOWN: Self = Self { utilization: None, memory_mib: None };

    /// With one more process; what is unknown of one is unknown of all.
    pub fn add(&mut self, process: &ObservedProcess) {
        self.merge(&Self { utilization: process.utilization, memory_mib: process.memory_mib });
    }

    /// With all of another's processes.
    pub fn merge(&mut self, other: &Self) {
        let sum = |a: Option<f64>, b: Option<f64>| Some(a? + b?);
        self.utilization = sum(self.utilization, other.utilization);
        self.memory_mib = sum(self.memory_mib, other.memory_mib);
    }
}

/// What a shared device is split by, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Basis {
    /// The time its processes take.
    Process,
    /// The memory its processes have.
    Memory,
    /// Nothing: everyone who was given it has as much.
    Equal,
}

impl Basis {
    /// The best that all of these processes allow. No process at all is one that says nothing
    /// else than that nobody uses anything.
    pub fn of(processes: &[ObservedProcess]) -> Self {
        let mut usage = Usage::NOTHING;
        processes.iter().for_each(|process| usage.add(process));
        let is_timed = processes.iter().any(|process| process.utilization.is_some());
        match usage.memory_mib {
            _ if is_timed || processes.is_empty() => Self::Process,
            Some(sum) if sum > 0.0 => Self::Memory,
            _ => Self::Equal,
        }
    }

    /// The word for it.
    pub fn source(self) -> HolderSource {
        match self {
            Self::Process => HolderSource::Process,
            Self::Memory => HolderSource::Memory,
            Self::Equal => HolderSource::Equal,
        }
    }

    /// Whether parts are guesses rather than measured.
    pub fn is_estimate(self) -> bool {
        self != Self::Process
    }
}

/// A container on a shared device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Party {
    /// Which pod it is of: a number of the caller's.
    pub pod: usize,
    /// Whether it was given the device.
    pub is_declared: bool,
    /// What its processes use.
    pub usage: Usage,
}

/// A party's part of the device.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Part {
    /// Of everything; none where parts differ by metric or cannot be told.
    pub share: Option<f64>,
    /// Its own values; these win over the share.
    pub held: Vec<(Metric, f64)>,
}

/// Each party's part of what a device of `total` MiB reads, in the order of the parties. `others`
/// is what everyone else uses.
pub fn split(
    basis: Basis,
    readings: &Readings,
    total: Option<f64>,
    parties: &[Party],
    others: Usage,
) -> Vec<Part> {
    let utilization = readings.value(Metric::GpuUtilization);
    let used: Vec<Option<f64>> = match (utilization, basis) {
        (None, _) | (_, Basis::Equal) => vec![None; parties.len()],
        (Some(whole), Basis::Process) => {
            in_time(whole, parties.iter().map(|party| party.usage.utilization), others.utilization)
        }
        (Some(whole), Basis::Memory) => {
            in_memory(whole, parties.iter().map(|party| party.usage.memory_mib), others.memory_mib)
        }
    };
    let counts = Counts::of(parties);
    let part = |(party, used): (&Party, Option<f64>)| {
        let mut part = Part::default();
        if basis == Basis::Equal && party.is_declared {
            part.share = Some(counts.equal(party));
        }
        let power = readings.value(Metric::PowerDraw).zip(used.zip(utilization));
        let power = power.map(|(power, (used, whole))| match whole {
            0.0 => power * counts.any(party),
            _ => power * (used / whole),
        });
        let percent = party.usage.memory_mib.zip(total).map(|(used, total)| used / total * 100.0);
        let own = [
            (Metric::GpuUtilization, used),
            (Metric::MemoryUsedMib, party.usage.memory_mib),
            (Metric::MemoryUsedPercent, percent),
            (Metric::PowerDraw, power),
        ];
        let known = own.into_iter().filter_map(|(metric, value)| Some((metric, value?)));
        // More memory than there is, as managed memory may read, has no percentage.
        part.held = known.filter(|(metric, value)| metric.accepts(*value)).collect();
        part
    };
    parties.iter().zip(used).map(part).collect()
}

/// How many of its kind a party is one of.
struct Counts {
    declared: Vec<usize>,
    all: Vec<usize>,
}

impl Counts {
    fn of(parties: &[Party]) -> Self {
        let declared = parties.iter().filter(|party| party.is_declared).map(|party| party.pod);
        Self { declared: declared.collect(), all: parties.iter().map(|party| party.pod).collect() }
    }

    /// The party's part where each pod that was given the device has as much.
    fn equal(&self, party: &Party) -> f64 {
        fraction(&self.declared, party.pod)
    }

    /// The party's part where each pod has as much.
    fn any(&self, party: &Party) -> f64 {
        fraction(&self.all, party.pod)
    }
}

fn fraction(pods: &[usize], pod: usize) -> f64 {
    let different = pods.iter().collect::<HashSet<_>>().len();
    let same = pods.iter().filter(|one| **one == pod).count();
    1.0 / different as f64 / same as f64
}

/// What was measured of each, scaled down where it adds up to more than the device.
fn in_time(
    whole: f64,
    used: impl Iterator<Item = Option<f64>> + Clone,
    others: Option<f64>,
) -> Vec<Option<f64>> {
    let sum: f64 = used.clone().chain([others]).flatten().sum();
    if sum <= whole {
        return used.collect();
    }
    scaled(whole, sum, used)
}

/// As much of the whole as each has of all the memory.
fn in_memory(
    whole: f64,
    used: impl Iterator<Item = Option<f64>> + Clone,
    others: Option<f64>,
) -> Vec<Option<f64>> {
    match used.clone().chain([others]).sum::<Option<f64>>() {
        Some(sum) if sum > 0.0 => scaled(whole, sum, used),
        _ => used.map(|_| None).collect(),
    }
}

fn scaled(whole: f64, sum: f64, used: impl Iterator<Item = Option<f64>>) -> Vec<Option<f64>> {
    let part = |used: f64| (used * whole / sum * BILLION).floor() / BILLION;
    used.map(|used| used.map(part)).collect()
}
