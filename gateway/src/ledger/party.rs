//! Pure: an inventory → who has which part of each GPU; a tick → what they use of it.
//!
//! Guarantees: parts of one GPU never add up to more than it; what nobody can be named for is left
//! out, never spread; a part that is not known is `None`. An inventory is looked through once; a
//! tick of it allocates nothing.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use shared::frame::{Device, Holder, Inventory};
use shared::identity::{DeviceUuid, PodKey, PodUid};
use shared::metric::Metric;
use smallvec::SmallVec;

use crate::fleet::view::{NodeView, Row};

/// MIG instances have whole eighths of their GPU's memory, or quarters.
const EIGHTHS: f64 = 8.0;

/// Whole GPUs of one inventory, and who has them.
#[derive(Debug)]
pub(super) struct Plan {
    inventory: Arc<Inventory>,
    gpus: Box<[Gpu]>,
    pieces: Box<[Piece]>,
    parties: Box<[Party]>,
}

/// One GPU with all that it is cut into.
#[derive(Debug)]
pub(super) struct Gpu {
    /// Its place in the inventory.
    pub(super) device: usize,
    /// Its name.
    pub(super) model: Arc<str>,
    pieces: Range<usize>,
    /// Places of its parties, those of a piece together.
    pub(super) parties: Range<usize>,
}

/// What pods hold: a GPU, or one of the instances that it is cut into.
#[derive(Debug)]
struct Piece {
    device: usize,
    /// How much of the GPU it is.
    fraction: f64,
    /// How many parties have a part of it.
    parties: usize,
}

/// What a pod has of a GPU.
#[derive(Debug)]
pub(super) struct Party {
    piece: usize,
    /// Places of its containers among the device's holders.
    holders: SmallVec<[usize; 1]>,
    /// Its part of what is used of the device, as far as that is declared.
    share: Option<f64>,
    /// How much of the GPU is held for it, 0 to 1; nothing for who uses it without having been
    /// given it while others were.
    pub(super) fraction: f64,
    /// Whether its pod has an engine that is read.
    pub(super) has_engine: bool,
}

/// A pod and a device that it has: the GPU, or the instance of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Tenancy<'a> {
    pub(super) pod: &'a PodKey,
    pub(super) uid: Option<&'a PodUid>,
    pub(super) device: &'a DeviceUuid,
}

/// What a party uses at one tick.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Use {
    /// Its part of the energy that work costs, 0 to 1.
    pub(super) weight: Option<f64>,
    /// How much of its device it uses, in percent.
    pub(super) load: Option<f64>,
    /// How many GPUs its work keeps busy: less than one of an instance.
    pub(super) busy: Option<f64>,
    /// Device memory it has.
    pub(super) memory_mib: Option<f64>,
}

/// What each party of a GPU uses; nearly always there is one.
pub(super) type Uses = SmallVec<[Use; 1]>;

impl Plan {
    pub(super) fn new(inventory: Arc<Inventory>) -> Self {
        let devices = &inventory.devices;
        let uuids: HashSet<&DeviceUuid> = devices.iter().map(|device| &device.uuid).collect();
        let mut cut: HashMap<&DeviceUuid, Vec<usize>> = HashMap::new();
        for (at, device) in devices.iter().enumerate() {
            if let Some(mig) = &device.mig {
                cut.entry(&mig.parent).or_default().push(at);
            }
        }
        // An instance whose GPU is not known stands for itself.
        let is_whole =
            |device: &Device| device.mig.as_ref().is_none_or(|mig| !uuids.contains(&mig.parent));
        let with_engine: HashSet<&PodKey> = inventory.engines.iter().map(|it| &it.pod).collect();
        let (mut gpus, mut pieces, mut parties) = (Vec::new(), Vec::new(), Vec::new());
        for (at, device) in devices.iter().enumerate().filter(|(_, device)| is_whole(device)) {
            let instances = cut.get(&device.uuid).map_or(&[][..], |places| places);
            let (piece, party) = (pieces.len(), parties.len());
            pieces.extend(cut_into(devices, at, instances));
            for (place, piece) in pieces.iter_mut().enumerate().skip(piece) {
                let own = of_device(&devices[piece.device], (place, piece.fraction), &with_engine);
                piece.parties = own.len();
                parties.extend(own);
            }
            let (pieces, parties) = (piece..pieces.len(), party..parties.len());
            gpus.push(Gpu { device: at, model: device.name.clone(), pieces, parties });
        }
        let (gpus, pieces, parties) = (gpus.into(), pieces.into(), parties.into());
        Self { inventory, gpus, pieces, parties }
    }

    /// Whether it is of that very inventory.
    pub(super) fn is_of(&self, inventory: &Arc<Inventory>) -> bool {
        Arc::ptr_eq(&self.inventory, inventory)
    }

    pub(super) fn gpus(&self) -> &[Gpu] {
        &self.gpus
    }

    /// Parties of all GPUs.
    pub(super) fn parties(&self) -> &[Party] {
        &self.parties
    }

    pub(super) fn uuid(&self, gpu: &Gpu) -> &DeviceUuid {
        &self.inventory.devices[gpu.device].uuid
    }

    /// The GPU or instance that the party has a part of.
    pub(super) fn device(&self, party: &Party) -> &Device {
        &self.inventory.devices[self.pieces[party.piece].device]
    }

    pub(super) fn tenancy(&self, party: &Party) -> Tenancy<'_> {
        let device = self.device(party);
        let Holder { pod, uid, .. } = &device.holders[party.holders[0]];
        Tenancy { pod, uid: uid.as_ref(), device: &device.uuid }
    }

    /// What each party of `gpu` uses at the tick that `view` is.
    pub(super) fn uses(&self, gpu: &Gpu, view: &NodeView) -> Uses {
        let parties = &self.parties[gpu.parties.clone()];
        let mut uses: Uses = SmallVec::from_elem(Use::default(), parties.len());
        let (mut work, mut from) = (Some(0.0), 0);
        for piece in &self.pieces[gpu.pieces.clone()] {
            let own = from..from + piece.parties;
            from = own.end;
            let all = piece.take(view, &parties[own.clone()], &mut uses[own]);
            work = work.zip(all).map(|(work, all)| work + all);
        }
        let is_cut = self.pieces[gpu.pieces.start].device != gpu.device;
        for (party, it) in parties.iter().zip(&mut uses).filter(|_| is_cut) {
            it.weight = match work.filter(|work| *work > 0.0) {
                Some(work) => it.load.map(|load| load * self.pieces[party.piece].fraction / work),
                // What each of them does is not to be told: as much as it holds.
                None => Some(party.fraction),
            };
        }
        uses
    }
}

impl Piece {
    /// What each of its parties uses of it; returns the work of all of them.
    fn take(&self, view: &NodeView, parties: &[Party], uses: &mut [Use]) -> Option<f64> {
        let fraction = self.fraction;
        let row = view.row(self.device);
        let whole = row.and_then(|row| row.readings.value(Metric::GpuUtilization));
        for (party, it) in parties.iter().zip(&mut *uses) {
            let part = |metric| part(row?, metric, party);
            (it.load, it.memory_mib) = (part(Metric::GpuUtilization), part(Metric::MemoryUsedMib));
        }
        // Work of several at the same time counts for each of them in full.
        let over = (uses.iter().filter_map(|it| it.load).sum::<f64>() / 100.0).max(1.0);
        uses.iter_mut().for_each(|it| it.load = it.load.map(|load| load / over));
        let used: f64 = uses.iter().filter_map(|it| it.load).sum();
        for (party, it) in parties.iter().zip(&mut *uses) {
            it.busy = it.load.map(|load| load / 100.0 * fraction);
            it.weight = match whole.map(|whole| whole.max(used)) {
                None => party.share,
                Some(0.0) => Some(party.fraction / fraction),
                Some(all) => it.load.map(|load| load / all),
            };
        }
        match whole.filter(|_| uses.iter().all(|it| it.load.is_some())) {
            Some(whole) => Some(whole.max(used) * fraction),
            None => uses.is_empty().then_some(0.0),
        }
    }
}

/// The GPU at `at`, or the instances that it is cut into.
fn cut_into(devices: &[Device], at: usize, instances: &[usize]) -> Vec<Piece> {
    if instances.is_empty() {
        return vec![Piece { device: at, fraction: 1.0, parties: 0 }];
    }
    let sizes: Vec<f64> = instances.iter().map(|it| size(&devices[at], &devices[*it])).collect();
    // Sizes that are not known are equal; more than the GPU there cannot be.
    let whole = sizes.iter().sum::<f64>().max(1.0);
    let piece = |(device, size): (&usize, f64)| Piece {
        device: *device,
        fraction: size / whole,
        parties: 0,
    };
    instances.iter().zip(sizes).map(piece).collect()
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

/// The pods on one device, which is `fraction` of a GPU and has its place among all pieces.
fn of_device(
    device: &Device,
    (piece, fraction): (usize, f64),
    with_engine: &HashSet<&PodKey>,
) -> Vec<Party> {
    let mut pods: BTreeMap<(&PodKey, Option<&PodUid>), SmallVec<[usize; 1]>> = BTreeMap::new();
    for (place, holder) in device.holders.iter().enumerate() {
        pods.entry((&holder.pod, holder.uid.as_ref())).or_default().push(place);
    }
    let is_given = |places: &[usize]| places.iter().any(|place| !device.holders[*place].undeclared);
    let given = pods.values().filter(|places| is_given(places)).count();
    let holding = if given == 0 { pods.len() } else { given };
    let is_sole = pods.len() == 1;
    let shares: Vec<_> =
        pods.values().map(|places| share(&device.holders, places, is_sole)).collect();
    // Made smaller where all of them together are more than there is.
    let over = shares.iter().flatten().sum::<f64>().max(1.0);
    let party = |(((pod, _), holders), share): (((&PodKey, _), SmallVec<_>), Option<f64>)| {
        let is_holding = given == 0 || is_given(&holders);
        Party {
            piece,
            holders,
            share: share.map(|share| share / over),
            fraction: if is_holding { fraction / holding as f64 } else { 0.0 },
            has_engine: with_engine.contains(pod),
        }
    };
    pods.into_iter().zip(shares).map(party).collect()
}

/// What a party has of its device: what is known of its containers themselves, else its share.
fn part(row: &Row, metric: Metric, party: &Party) -> Option<f64> {
    own(row, &party.holders, metric).or_else(|| Some(row.readings.value(metric)? * party.share?))
}

/// What is known of the holders themselves.
fn own(row: &Row, places: &[usize], metric: Metric) -> Option<f64> {
    let mut own = row
        .held
        .iter()
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
