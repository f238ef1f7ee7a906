//! Frames ⇄ uplink messages, both directions side by side.
//!
//! Guarantees: what comes out of `Link::open` and `Link::sample` is bounded, has each UUID, each
//! engine and each holder's own reading once, and holds only values in range. A bad element is
//! refused by itself and named in the returned refusals; only a message that breaks the protocol as
//! a whole is an `Error`.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use shared::frame::{
    Device, DeviceSample, Engine, EngineSample, Holder, HolderSource, Inventory, Mig, Sample,
};
use shared::health::Origin;
use shared::identity::DeviceUuid;
use shared::metric::Metric;

use crate::uplink as wire;

/// What a device used up, and what is the matter with it.
mod health;
/// Names that an inventory has several times.
mod names;
/// Values and failures.
mod readings;

use health::{
    energy_from_wire, health_from_wire, health_to_wire, throttled_from_wire, throttled_to_wire,
};
use names::Names;
use readings::{held_from_wire, metric_to_wire, readings_from_wire, readings_to_wire};

/// Devices a node may report.
pub const MAX_DEVICES: usize = 1_024;
/// Holders a device may have.
pub const MAX_HOLDERS: usize = 256;
/// Engines a node may report.
pub const MAX_ENGINES: usize = 1_024;
/// Bytes of a selection of an engine's series.
pub const MAX_LABELS: usize = 1_024;
/// Bytes of any name: Kubernetes allows 253 for the longest.
pub const MAX_NAME: usize = 253;
/// Bytes of any reason; longer ones are cut.
pub const MAX_REASON: usize = 512;

/// Why a message was refused as a whole.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// More of something than a node can have.
    #[error("{count} {what}; at most {max} are accepted")]
    TooMany {
        /// What there is too much of.
        what: &'static str,
        /// How many came.
        count: usize,
        /// How many may come.
        max: usize,
    },
    /// The sample belongs to another inventory.
    #[error("sample for inventory {got}, but the newest inventory is {expected}")]
    OtherInventory {
        /// Generation the sample names.
        got: u64,
        /// Generation of the newest inventory.
        expected: u64,
    },
}

fn at_most(what: &'static str, count: usize, max: usize) -> Result<(), Error> {
    if count > max { Err(Error::TooMany { what, count, max }) } else { Ok(()) }
}

/// Refusals of one message that are listed.
pub const MAX_REFUSALS: usize = 1_024;

/// What was left out of a message, and why; for the log and for counting. Elements of two bytes
/// could be refused by the million: at most [`MAX_REFUSALS`] are listed of a frame's message.
pub type Refusals = Vec<String>;

fn refuse(refusals: &mut Refusals, why: impl FnOnce() -> String) {
    if refusals.len() < MAX_REFUSALS {
        refusals.push(why());
    }
}

/// An inventory as received, with the places its samples point to.
#[derive(Clone, Debug)]
pub struct Link {
    generation: u64,
    inventory: Arc<Inventory>,
    devices: Vec<Option<DevicePlace>>,
    engines: Vec<Option<usize>>,
}

#[derive(Clone, Debug)]
struct DevicePlace {
    index: usize,
    holders: usize,
    /// Places of holders that were refused, in order; nearly always none.
    refused: Vec<usize>,
}

impl DevicePlace {
    /// The place of the holder that the wire calls `number`: `Some(None)` if that one was refused,
    /// `None` if there is none.
    fn holder(&self, number: u32) -> Option<Option<usize>> {
        let place = usize::try_from(number).ok().filter(|place| *place < self.holders)?;
        Some(self.refused.binary_search(&place).err().map(|before| place - before))
    }
}

impl Link {
    /// Takes an inventory off the wire.
    ///
    /// # Errors
    /// When it holds more devices or engines than a node can have.
    pub fn open(message: wire::Inventory) -> Result<(Self, Refusals), Error> {
        at_most("devices", message.devices.len(), MAX_DEVICES)?;
        at_most("engines", message.engines.len(), MAX_ENGINES)?;
        let mut refusals = Refusals::new();
        let mut inventory =
            Inventory { reason: reason_from_wire(&message.reason), ..Default::default() };

        // Kept for as long as the agent says nothing else: nothing is larger than it must be.
        let mut names = Names::default();
        let mut seen = HashSet::new();
        let mut devices = Vec::with_capacity(message.devices.len());
        inventory.devices.reserve_exact(message.devices.len());
        for (place, device) in message.devices.into_iter().enumerate() {
            let uuid = device.uuid.clone();
            let opened = if seen.insert(uuid.clone()) {
                device_from_wire(device, &mut names, &mut refusals)
            } else {
                Err("the same UUID came before".into())
            };
            devices.push(match opened {
                Ok((device, refused)) => {
                    let (index, holders) =
                        (inventory.devices.len(), device.holders.len() + refused.len());
                    inventory.devices.push(device);
                    Some(DevicePlace { index, holders, refused })
                }
                Err(why) => {
                    refuse(&mut refusals, || {
                        format!("device {place} ({}): {why}", cut(&uuid, MAX_NAME))
                    });
                    None
                }
            });
        }

        let mut seen = HashSet::new();
        let mut engines = Vec::with_capacity(message.engines.len());
        for (place, engine) in message.engines.into_iter().enumerate() {
            engines.push(match engine_from_wire(&engine, &mut names) {
                Ok(engine) if seen.insert((engine.pod.clone(), engine.labels.clone())) => {
                    inventory.engines.push(engine);
                    Some(inventory.engines.len() - 1)
                }
                Ok(engine) => {
                    refuse(&mut refusals, || format!("engine {place}: {} came before", engine.pod));
                    None
                }
                Err(why) => {
                    refuse(&mut refusals, || format!("engine {place}: {why}"));
                    None
                }
            });
        }

        let inventory = Arc::new(inventory);
        Ok((Self { generation: message.generation, inventory, devices, engines }, refusals))
    }

    /// The inventory itself.
    pub fn inventory(&self) -> &Arc<Inventory> {
        &self.inventory
    }

    /// Takes a sample for this inventory off the wire.
    ///
    /// # Errors
    /// When the sample belongs to another inventory.
    pub fn sample(&self, message: wire::Sample) -> Result<(Sample, Refusals), Error> {
        if message.generation != self.generation {
            return Err(Error::OtherInventory {
                got: message.generation,
                expected: self.generation,
            });
        }
        at_most("device samples", message.devices.len(), MAX_DEVICES)?;
        at_most("engine samples", message.engines.len(), MAX_ENGINES)?;
        let mut refusals = Refusals::new();
        let mut sample = Sample {
            devices: vec![None; self.inventory.devices.len()],
            engines: vec![None; self.inventory.engines.len()],
        };
        for device in message.devices {
            let place = device.device;
            let Some(known) = self.devices.get(place as usize) else {
                refuse(&mut refusals, || format!("sample of device {place}: no such device"));
                continue;
            };
            // A device that was refused with the inventory: said once, there.
            let Some(known) = known else { continue };
            let (metrics, values, failures) = (&device.metrics, &device.values, &device.failures);
            match readings_from_wire(metrics, values, failures, &mut refusals) {
                Ok(readings) => {
                    sample.devices[known.index] = Some(DeviceSample {
                        age: Duration::from_millis(u64::from(device.age_ms)),
                        readings,
                        held: held_from_wire(&device.held, known, &mut refusals),
                        energy: energy_from_wire(&device, &mut refusals),
                        throttled: throttled_from_wire(&device.throttled, &mut refusals),
                    });
                }
                Err(why) => refuse(&mut refusals, || format!("sample of device {place}: {why}")),
            }
        }
        for engine in message.engines {
            let place = engine.engine;
            let Some(known) = self.engines.get(place as usize) else {
                refuse(&mut refusals, || format!("sample of engine {place}: no such engine"));
                continue;
            };
            let Some(known) = *known else { continue };
            let (metrics, values, failures) = (&engine.metrics, &engine.values, &engine.failures);
            match readings_from_wire(metrics, values, failures, &mut refusals) {
                Ok(readings) => {
                    let age = Duration::from_millis(u64::from(engine.age_ms));
                    sample.engines[known] = Some(EngineSample { age, readings });
                }
                Err(why) => refuse(&mut refusals, || format!("sample of engine {place}: {why}")),
            }
        }
        Ok((sample, refusals))
    }
}

fn cut(text: &str, max: usize) -> &str {
    &text[..text.floor_char_boundary(max)]
}

fn reason_from_wire(text: &str) -> Option<Arc<str>> {
    (!text.is_empty()).then(|| cut(text, MAX_REASON).into())
}

/// A device, and the places of the holders that were refused.
fn device_from_wire(
    device: wire::Device,
    names: &mut Names,
    refusals: &mut Refusals,
) -> Result<(Device, Vec<usize>), String> {
    let uuid: DeviceUuid = names::checked("uuid", &device.uuid)?.into();
    if device.holders.len() > MAX_HOLDERS {
        return Err(format!("{} holders; at most {MAX_HOLDERS}", device.holders.len()));
    }
    let mut holders = Vec::with_capacity(device.holders.len());
    let mut refused = Vec::new();
    for (place, holder) in device.holders.into_iter().enumerate() {
        match holder_from_wire(holder, names) {
            Ok(holder) => holders.push(holder),
            Err(why) => {
                refuse(refusals, || format!("a holder of device {uuid}: {why}"));
                refused.push(place);
            }
        }
    }
    let memory_total_mib = device
        .memory_total_mib
        .filter(|total| *total > 0.0 && Metric::MemoryUsedMib.accepts(*total));
    if device.memory_total_mib != memory_total_mib {
        refuse(refusals, || {
            format!("device {uuid}: memory_total_mib {:?}", device.memory_total_mib)
        });
    }
    let mig = match device.mig {
        Some(mig) => Some(Mig {
            parent: names::checked("MIG parent", &mig.parent)?.into(),
            profile: names.shared(cut(&mig.profile, MAX_NAME)),
        }),
        None => None,
    };
    let device = Device {
        uuid,
        index: device.index,
        name: names.shared(cut(&device.name, MAX_NAME)),
        memory_total_mib,
        mig,
        holders,
        reason: reason_from_wire(&device.reason),
        health: device.health.map(|health| Box::new(health_from_wire(health, refusals))),
    };
    Ok((device, refused))
}

fn holder_from_wire(holder: wire::Holder, names: &mut Names) -> Result<Holder, String> {
    let source = match holder.source() {
        wire::HolderSource::Replay => HolderSource::Replay,
        wire::HolderSource::File => HolderSource::File,
        wire::HolderSource::Simulated => HolderSource::Simulated,
        wire::HolderSource::Kubelet => HolderSource::Kubelet,
        wire::HolderSource::Dra => HolderSource::Dra,
        wire::HolderSource::Process => HolderSource::Process,
        wire::HolderSource::Memory => HolderSource::Memory,
        wire::HolderSource::Equal => HolderSource::Equal,
        wire::HolderSource::Unspecified => return Err("no source".into()),
    };
    let share = match holder.share {
        Some(share) if !(0.0..=1.0).contains(&share) => {
            return Err(format!("share {share} is not within 0 to 1"));
        }
        share => share,
    };
    Ok(Holder {
        pod: names.pod(&holder.namespace, &holder.pod)?,
        uid: names::checked("uid", &holder.uid).ok().map(Into::into),
        container: names.shared(cut(&holder.container, MAX_NAME)),
        share,
        estimated: holder.estimated,
        source,
        undeclared: holder.undeclared,
    })
}

fn engine_from_wire(engine: &wire::Engine, names: &mut Names) -> Result<Engine, String> {
    if engine.labels.len() > MAX_LABELS {
        let length = engine.labels.len();
        return Err(format!("labels of {length} bytes; at most {MAX_LABELS} are accepted"));
    }
    Ok(Engine {
        pod: names.pod(&engine.namespace, &engine.pod)?,
        uid: names::checked("uid", &engine.uid).ok().map(Into::into),
        labels: engine.labels.as_str().into(),
    })
}

/// Puts an inventory on the wire.
pub fn inventory_to_wire(generation: u64, inventory: &Inventory) -> wire::Inventory {
    wire::Inventory {
        generation,
        devices: inventory.devices.iter().map(device_to_wire).collect(),
        engines: inventory
            .engines
            .iter()
            .map(|engine| wire::Engine {
                namespace: engine.pod.namespace.to_string(),
                pod: engine.pod.name.to_string(),
                uid: engine.uid.as_ref().map_or_else(String::new, ToString::to_string),
                labels: engine.labels.to_string(),
            })
            .collect(),
        reason: inventory.reason.as_deref().unwrap_or_default().to_owned(),
    }
}

fn device_to_wire(device: &Device) -> wire::Device {
    wire::Device {
        uuid: device.uuid.to_string(),
        index: device.index,
        name: device.name.to_string(),
        memory_total_mib: device.memory_total_mib,
        mig: device.mig.as_ref().map(|mig| wire::Mig {
            parent: mig.parent.to_string(),
            profile: mig.profile.to_string(),
        }),
        holders: device.holders.iter().map(holder_to_wire).collect(),
        reason: device.reason.as_deref().unwrap_or_default().to_owned(),
        health: device.health.as_deref().map(health_to_wire),
    }
}

fn holder_to_wire(holder: &Holder) -> wire::Holder {
    let source = match holder.source {
        HolderSource::Replay => wire::HolderSource::Replay,
        HolderSource::File => wire::HolderSource::File,
        HolderSource::Simulated => wire::HolderSource::Simulated,
        HolderSource::Kubelet => wire::HolderSource::Kubelet,
        HolderSource::Dra => wire::HolderSource::Dra,
        HolderSource::Process => wire::HolderSource::Process,
        HolderSource::Memory => wire::HolderSource::Memory,
        HolderSource::Equal => wire::HolderSource::Equal,
    };
    wire::Holder {
        namespace: holder.pod.namespace.to_string(),
        pod: holder.pod.name.to_string(),
        uid: holder.uid.as_ref().map_or_else(String::new, ToString::to_string),
        container: holder.container.to_string(),
        share: holder.share,
        estimated: holder.estimated,
        source: source.into(),
        undeclared: holder.undeclared,
    }
}

/// Puts a sample on the wire; `since` is added to every age: the time the sample has waited.
pub fn sample_to_wire(generation: u64, sample: &Sample, since: Duration) -> wire::Sample {
    let devices = sample.devices.iter().enumerate().filter_map(|(place, device)| {
        let device = device.as_ref()?;
        let (metrics, values, failures) = readings_to_wire(&device.readings);
        let held = device.held.iter().map(|held| wire::HeldReading {
            holder: place_to_wire(held.holder),
            metric: metric_to_wire(held.metric),
            value: held.value,
        });
        Some(wire::DeviceSample {
            device: place_to_wire(place),
            age_ms: age_to_wire(device.age + since),
            metrics,
            values,
            failures,
            held: held.collect(),
            energy_joules: device.energy.map(|energy| energy.joules),
            energy_origin: match device.energy.map(|energy| energy.origin) {
                Some(Origin::Integrated(agent)) => agent,
                Some(Origin::Counter) | None => 0,
            },
            throttled: throttled_to_wire(&device.throttled),
        })
    });
    let engines = sample.engines.iter().enumerate().filter_map(|(place, engine)| {
        let engine = engine.as_ref()?;
        let (metrics, values, failures) = readings_to_wire(&engine.readings);
        Some(wire::EngineSample {
            engine: place_to_wire(place),
            age_ms: age_to_wire(engine.age + since),
            metrics,
            values,
            failures,
        })
    });
    wire::Sample { generation, devices: devices.collect(), engines: engines.collect() }
}

fn place_to_wire(place: usize) -> u32 {
    u32::try_from(place).unwrap_or(u32::MAX)
}

fn age_to_wire(age: Duration) -> u32 {
    u32::try_from(age.as_millis()).unwrap_or(u32::MAX)
}
