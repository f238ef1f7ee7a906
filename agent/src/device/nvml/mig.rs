//! The MIG instances of one GPU: found, read, and let go when they are cut anew.
//!
//! Guarantees: each instance is known by its UUID; what was read of a handle counts only if the
//! handle still is that instance's afterwards, so nothing of one is told of the next, whatever is
//! reused; what is the whole GPU's is never told of an instance.

use std::sync::Arc;
use std::time::Duration;

use nvml_wrapper::Device;
use nvml_wrapper::error::NvmlError;
use shared::frame::Mig;
use shared::identity::DeviceUuid;
use shared::metric::Metric;
use shared::reading::Reading;
use shared::time::Timestamp;
use tracing::{debug, info};

use super::fault::{Fault, words};
use super::gauge::{Gauge, is_uuid};
use super::gpm::{Gpm, Of};
use super::lane::{Identity, Instance};
use super::processes::Table;
use super::raw;
use super::read::Read;
use crate::device::Seat;

/// Slots that are looked into at most; GPUs have seven.
const SLOTS: u32 = 64;
/// An instance's index is this many times its GPU's, which counts from 1 here, and its slot.
const INDICES: u32 = 100;

/// What only a whole GPU has: heat, power and clocks are not measured for each instance, nor is the
/// traffic of the GPU's links.
pub(super) const NOT_OF_AN_INSTANCE: [Metric; 8] = [
    Metric::Temperature,
    Metric::PowerDraw,
    Metric::PcieTxKbps,
    Metric::PcieRxKbps,
    Metric::NvlinkTxMbps,
    Metric::NvlinkRxMbps,
    Metric::SmClockMhz,
    Metric::ThrottledPercent,
];
/// What GPM counts, and only for a whole GPU instance.
const COUNTED: [Metric; 4] =
    [Metric::GpuUtilization, Metric::MemoryUtilization, Metric::SmActivity, Metric::TensorActivity];

/// What a GPU is cut into, as far as it was looked at.
#[derive(Default)]
pub(super) struct Cut<'nvml> {
    /// When it was looked at last; none if that has to be now.
    looked: Option<Timestamp>,
    is_cut: bool,
    parts: Vec<Part<'nvml>>,
}

struct Part<'nvml> {
    gauge: Gauge<'nvml>,
    slot: u32,
    /// Its GPU instance, and its compute instance in it.
    ids: (u32, u32),
    told: Instance,
    gpm: Gpm<'nvml>,
    processes: Table,
}

/// Why an instance has no reading.
enum Unread {
    /// The handle is refused or another's: it may not be there any more.
    Gone,
    /// The library has to be opened again.
    Library(Arc<str>),
    /// This instance alone.
    Failed(Arc<str>),
}

impl From<Fault> for Unread {
    /// The GPU has just answered, so what fails is the instance.
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Library(why) => Self::Library(why),
            Fault::Device(why) => Self::Failed(why),
        }
    }
}

impl<'nvml> Cut<'nvml> {
    /// Whether MIG is on.
    pub(super) fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Looks at the next reading.
    pub(super) fn look_again(&mut self) {
        self.looked = None;
    }

    /// Looks for the instances of `gpu`, if the last look was `period` ago.
    pub(super) fn look(
        &mut self,
        gpu: &Gauge<'nvml>,
        whose: &Identity,
        now: Timestamp,
        period: Duration,
    ) -> Result<(), Fault> {
        if self.looked.is_some_and(|looked| now.since(looked) < period) {
            return Ok(());
        }
        let is_cut = match gpu.ask("its MIG mode", Device::mig_mode) {
            Ok(mode) => mode.current == 1,
            Err(error) => match Fault::of(&error) {
                Some(fault) => return Err(fault),
                None => false,
            },
        };
        if is_cut != self.is_cut {
            gpu.forget_absent();
            self.is_cut = is_cut;
        }
        let (found, unclear) = if is_cut { find(gpu, whose)? } else { Default::default() };
        self.replace(found, &unclear, whose);
        self.looked = Some(now);
        Ok(())
    }

    /// Whoever was known goes on with the new handle, and with the old one where a slot did not
    /// say whose it is.
    fn replace(&mut self, found: Vec<Part<'nvml>>, unclear: &[u32], whose: &Identity) {
        let mut before = std::mem::take(&mut self.parts);
        for mut part in found {
            let is_it = |known: &Part<'_>| {
                let (known, part) = (&known.told.identity, &part.told.identity);
                (&known.uuid, known.seat, &known.mig) == (&part.uuid, part.seat, &part.mig)
            };
            match before.iter().position(is_it).map(|place| before.swap_remove(place)) {
                Some(known) => {
                    let Part { gauge, slot, told: Instance { identity, .. }, .. } = part;
                    part = Part { gauge, slot, ..known };
                    part.told.identity = identity;
                }
                None => {
                    let uuid = &part.told.identity.uuid;
                    info!(gpu = whose.index, %uuid, ids = ?part.ids, "MIG instance found");
                }
            }
            self.parts.push(part);
        }
        for part in before {
            if unclear.contains(&part.slot) {
                self.parts.push(part);
                continue;
            }
            let uuid = part.told.identity.uuid;
            info!(gpu = whose.index, %uuid, "MIG instance gone");
        }
        self.parts.sort_by_key(|part| part.slot);
    }

    /// Reads every instance, after another look if one seems to be gone.
    pub(super) fn read(
        &mut self,
        gpu: &Gauge<'nvml>,
        whose: &Identity,
        now: Timestamp,
    ) -> Result<(), Fault> {
        if self.read_all(gpu, false, now)? {
            self.looked = None;
            self.look(gpu, whose, now, Duration::ZERO)?;
            self.read_all(gpu, true, now)?;
        }
        Ok(())
    }

    /// Says whether one seems to be gone; the handles are new if they were taken just now.
    fn read_all(
        &mut self,
        gpu: &Gauge<'nvml>,
        are_new: bool,
        now: Timestamp,
    ) -> Result<bool, Fault> {
        let all: Vec<_> = self.parts.iter().map(|part| part.ids).collect();
        let mut is_one_gone = false;
        for part in &mut self.parts {
            // Counters are of the GPU instance, not of the compute instances that share it.
            let is_alone = all.iter().filter(|(gi, _)| *gi == part.ids.0).count() == 1;
            match part.read(gpu, (is_alone, are_new), now) {
                Ok(read) => (part.told.read, part.told.failure) = (Some(read), None),
                Err(Unread::Library(why)) => return Err(Fault::Library(why)),
                Err(Unread::Failed(why)) => part.told.failure = Some(why),
                Err(Unread::Gone) => {
                    part.told.failure = Some("the NVIDIA driver refuses its handle".into());
                    is_one_gone = true;
                }
            }
        }
        Ok(is_one_gone)
    }

    /// What is to be told of each.
    pub(super) fn told(&self) -> Vec<Instance> {
        self.parts.iter().map(|part| part.told.clone()).collect()
    }
}

impl<'nvml> Part<'nvml> {
    fn read(
        &mut self,
        gpu: &Gauge<'nvml>,
        (is_alone, is_new): (bool, bool),
        now: Timestamp,
    ) -> Result<Read, Unread> {
        self.gauge.is_refused.set(false);
        gpu.is_refused.set(false);
        let mut read = Read::new(now);
        self.gauge.memory(&mut read)?;
        if is_alone {
            let of = Of::Instance(self.ids.0);
            self.gpm.read(gpu, of, now, &mut read)?;
        } else {
            self.gpm = Gpm::default();
            COUNTED.into_iter().for_each(|metric| read.put(metric, Reading::Unsupported));
        }
        NOT_OF_AN_INSTANCE.into_iter().for_each(|metric| read.put(metric, Reading::Unsupported));
        read.processes = self.processes.read(&self.gauge, Some(self.ids), now)?;
        // A handle, and a GPU instance, may be another's by now; then so is what was read.
        let is_still_there = match self.gauge.ask("its UUID", Device::uuid) {
            Ok(uuid) => DeviceUuid::from(uuid) == self.told.identity.uuid,
            Err(NvmlError::InvalidArg | NvmlError::NotFound) => false,
            Err(error) => match Fault::of(&error) {
                Some(fault) => return Err(fault.into()),
                None => return Err(Unread::Failed(words(&error).into())),
            },
        };
        // A call that a new handle is refused has failed by itself.
        let is_refused = !is_new && (self.gauge.is_refused.get() || gpu.is_refused.get());
        if is_still_there && !is_refused { Ok(read) } else { Err(Unread::Gone) }
    }
}

/// Instances, and slots that did not say whose they are.
type Found<'nvml> = (Vec<Part<'nvml>>, Vec<u32>);

/// The instances that are there now; slots are empty here and there.
fn find<'nvml>(gpu: &Gauge<'nvml>, whose: &Identity) -> Result<Found<'nvml>, Fault> {
    let slots = match gpu.ask("how many MIG instances it can have", Device::mig_device_count) {
        Ok(slots) => slots.min(SLOTS),
        Err(error) => match Fault::of(&error) {
            Some(fault) => return Err(fault),
            None => return Ok((Vec::new(), (0..SLOTS).collect())),
        },
    };
    let (mut found, mut unclear) = Found::default();
    for slot in 0..slots {
        match open(gpu, whose, slot) {
            Ok(part) => found.push(part),
            Err(NvmlError::NotFound | NvmlError::InvalidArg) => {}
            Err(error) => {
                if let Some(Fault::Library(why)) = Fault::of(&error) {
                    return Err(Fault::Library(why));
                }
                debug!(gpu = whose.index, slot, %error, "MIG instance cannot be told");
                unclear.push(slot);
            }
        }
    }
    Ok((found, unclear))
}

fn open<'nvml>(gpu: &Gauge<'nvml>, whose: &Identity, slot: u32) -> Result<Part<'nvml>, NvmlError> {
    let asking = gpu.asking;
    let device = asking.ask("its MIG instances", || gpu.device.mig_device_by_index(slot))?;
    let gauge = Gauge::of(device, asking);
    let uuid = gauge.ask("an instance's UUID", Device::uuid)?;
    if !is_uuid(&uuid) {
        return Err(NvmlError::NoData);
    }
    let ids = gauge.ask("an instance's ids", raw::instance_ids)?;
    let name = gauge.ask("an instance's name", Device::name);
    let profile = match name.as_deref().ok().and_then(|name| name.rsplit_once(" MIG ")) {
        Some((_, profile)) => profile.trim().to_owned(),
        None => match gauge.ask("an instance's size", Device::attributes) {
            Ok(size) => {
                let slices = (size.gpu_instance_slice_count, size.compute_instance_slice_count);
                profile(slices, size.memory_size_mb)
            }
            Err(error) => {
                debug!(%uuid, %error, "MIG instance of unknown size");
                "unknown".into()
            }
        },
    };
    let identity = Identity {
        uuid: uuid.into(),
        // With the profile, which is told apart.
        name: whose.name.clone(),
        index: INDICES * (whose.index + 1) + slot,
        seat: Seat { gpu_instance: Some(ids.0), compute_instance: Some(ids.1), ..whose.seat },
        mig: Some(Mig { parent: whose.uuid.clone(), profile: profile.into() }),
    };
    let told = Instance { identity, read: None, failure: None };
    Ok(Part { gauge, slot, ids, told, gpm: Gpm::default(), processes: Table::default() })
}

/// A profile as NVIDIA writes it: compute slices where they are fewer, slices, GB.
fn profile((slices, compute): (u32, u32), mib: u64) -> String {
    let gb = mib.div_ceil(1_024);
    match compute == slices {
        true => format!("{slices}g.{gb}gb"),
        false => format!("{compute}c.{slices}g.{gb}gb"),
    }
}
