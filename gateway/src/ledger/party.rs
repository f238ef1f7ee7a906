//! Pure: one tick of a GPU and of the MIG instances it is cut into → who has which part of it.
//!
//! Guarantees: parts of one GPU never add up to more than it; what nobody can be named for is left
//! out, never spread; a part that is not known is `None`.

use std::collections::BTreeMap;
use std::sync::Arc;

use shared::frame::{Device, Holder};
use shared::identity::{DeviceUuid, PodKey, PodUid};
use shared::metric::Metric;

use crate::fleet::view::{NodeView, Row};

/// MIG instances have whole eighths of their GPU's memory, or quarters.
const EIGHTHS: f64 = 8.0;

/// A pod and a device that it has.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tenancy {
    /// The pod.
    pub pod: PodKey,
    /// Its UID, where known.
    pub uid: Option<PodUid>,
    /// The GPU, or the instance of it.
    pub device: DeviceUuid,
}

/// What a pod has of a GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct Party {
    /// Who has what.
    pub tenancy: Tenancy,
    /// How much of the GPU is held for it, 0 to 1; nothing for who uses it without having been
    /// given it while others were.
    pub fraction: f64,
    /// Its part of the energy that work costs, 0 to 1.
    pub weight: Option<f64>,
    /// How much of its device it uses, in percent.
    pub load: Option<f64>,
    /// How many GPUs its work keeps busy: less than one of an instance.
    pub busy: Option<f64>,
    /// Device memory it has.
    pub memory_mib: Option<f64>,
    /// Name of its device.
    pub model: Arc<str>,
}

/// Who has which part of the GPU at `at` of the inventory, cut into the instances at `instances`;
/// in the order of their tenancies.
pub fn parties(view: &NodeView, at: usize, instances: &[usize]) -> Vec<Party> {
    let mut parties = match instances {
        [] => of_device(view, at, 1.0),
        _ => of_instances(view, at, instances),
    };
    parties.sort_by(|a, b| a.tenancy.cmp(&b.tenancy));
    parties
}

fn of_instances(view: &NodeView, at: usize, instances: &[usize]) -> Vec<Party> {
    let devices = &view.inventory().devices;
    let sizes: Vec<f64> = instances.iter().map(|it| size(&devices[at], &devices[*it])).collect();
    // Sizes that are not known are equal; more than the GPU there cannot be.
    let whole = sizes.iter().sum::<f64>().max(1.0);
    let mut parties = Vec::new();
    let mut work = Some(0.0);
    for (instance, size) in instances.iter().zip(&sizes) {
        let fraction = size / whole;
        let held = of_device(view, *instance, fraction);
        let load = view.row(*instance).and_then(|row| row.readings.value(Metric::GpuUtilization));
        let all: Option<f64> = held.iter().map(|party| party.load).sum();
        work = match (load, all) {
            (Some(load), Some(all)) => work.map(|work: f64| work + load.max(all) * fraction),
            _ if held.is_empty() => work,
            _ => None,
        };
        parties.extend(held.into_iter().map(|party| (party, fraction)));
    }
    let one = |(party, fraction): (Party, f64)| {
        let weight = match work.filter(|work| *work > 0.0) {
            Some(work) => party.load.map(|load| load * fraction / work),
            // What each of them does is not to be told: as much as it holds.
            None => Some(party.fraction),
        };
        Party { weight, ..party }
    };
    parties.into_iter().map(one).collect()
}

/// How much of its GPU an instance is: in eighths, by memory.
fn size(gpu: &Device, instance: &Device) -> f64 {
    match (gpu.memory_total_mib, instance.memory_total_mib) {
        (Some(whole), Some(part)) if whole > 0.0 => {
            ((part / whole * EIGHTHS).round() / EIGHTHS).clamp(1.0 / EIGHTHS, 1.0)
        }
        _ => 1.0 / EIGHTHS,
    }
}

/// The pods on one device, which is `fraction` of a GPU.
fn of_device(view: &NodeView, at: usize, fraction: f64) -> Vec<Party> {
    let device = &view.inventory().devices[at];
    let mut pods: BTreeMap<(&PodKey, Option<&PodUid>), Vec<usize>> = BTreeMap::new();
    for (place, holder) in device.holders.iter().enumerate() {
        pods.entry((&holder.pod, holder.uid.as_ref())).or_default().push(place);
    }
    let is_given =
        |places: &Vec<usize>| places.iter().any(|place| !device.holders[*place].undeclared);
    let given = pods.values().filter(|places| is_given(places)).count();
    let holding = if given == 0 { pods.len() } else { given };
    let row = view.row(at);
    let is_sole = pods.len() == 1;
    let whole = row.and_then(|row| row.readings.value(Metric::GpuUtilization));
    let shares: Vec<_> =
        pods.values().map(|places| share(&device.holders, places, is_sole)).collect();
    let shares = within(&shares, 1.0);
    let of_pod = |metric, (places, share): (&Vec<usize>, &Option<f64>)| {
        row.and_then(|row| part(row, metric, places, *share))
    };
    let loads: Vec<_> =
        pods.values().zip(&shares).map(|it| of_pod(Metric::GpuUtilization, it)).collect();
    // Work of several at the same time counts for each of them in full.
    let loads = within(&loads, 100.0);
    let used: f64 = loads.iter().flatten().sum();
    let pods = pods.into_iter().zip(shares.into_iter().zip(loads));
    pods.map(|(((pod, uid), places), (share, load))| {
        let is_holding = given == 0 || is_given(&places);
        let fraction_held = if is_holding { fraction / holding as f64 } else { 0.0 };
        let weight = match whole.map(|whole| whole.max(used)) {
            None => share,
            Some(0.0) => Some(fraction_held / fraction),
            Some(all) => load.map(|load| load / all),
        };
        Party {
            tenancy: Tenancy { pod: pod.clone(), uid: uid.cloned(), device: device.uuid.clone() },
            fraction: fraction_held,
            weight,
            load,
            busy: load.map(|load| load / 100.0 * fraction),
            memory_mib: of_pod(Metric::MemoryUsedMib, (&places, &share)),
            model: device.name.clone(),
        }
    })
    .collect()
}

/// The same parts, made smaller where all of them together are more than there is.
fn within(parts: &[Option<f64>], whole: f64) -> Vec<Option<f64>> {
    let over = (parts.iter().flatten().sum::<f64>() / whole).max(1.0);
    parts.iter().map(|part| part.map(|part| part / over)).collect()
}

/// What containers at `places` have of the device: what is known of themselves, else their share.
fn part(row: &Row, metric: Metric, places: &[usize], share: Option<f64>) -> Option<f64> {
    own(row, places, metric).or_else(|| Some(row.readings.value(metric)? * share?))
}

/// What is known of the holders themselves.
fn own(row: &Row, places: &[usize], metric: Metric) -> Option<f64> {
    let mut own = row.held.iter();
    let mut own = own
        .by_ref()
        .filter(|held| held.metric == metric && places.contains(&held.holder))
        .peekable();
    own.peek()?;
    Some(own.map(|held| held.value).sum())
}

/// Their share of everything; who is alone has all that nobody said is anybody else's.
fn share(holders: &[Holder], places: &[usize], is_sole: bool) -> Option<f64> {
    let shares: Option<f64> = places.iter().map(|place| holders[*place].share).sum();
    shares.map(|share| share.min(1.0)).or(is_sole.then_some(1.0))
}
