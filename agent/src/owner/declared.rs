//! Pure: what the kubelet gave to whom, the node's pods and its devices → declared holders.
//!
//! Guarantees: a device has all of its holders, each container once; a finished pod holds
//! nothing; what was given to a pod is never billed to its namesake; an id that names no device
//! here, or more than one, is counted and named and gives nothing to anybody.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use shared::brief::{Brief, BriefedPod, PublishedDevice};
use shared::frame::HolderSource;
use shared::identity::{DeviceUuid, PodKey, PodUid};

use super::id::{DeviceRef, Why, number, parse};
use crate::device::ObservedDevice;

/// NVIDIA's driver of dynamic resource allocation.
const NVIDIA: &str = "gpu.nvidia.com";
/// Drivers that this version does not resolve.
const OTHERS: [(&str, Why); 2] = [("gpu.amd.com", Why::Amd), ("gpu.intel.com", Why::Intel)];

/// Who was given which device, as far as the kubelet says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Declaration {
    /// Devices that somebody was given; each container once per device, in the order of names.
    pub holders: HashMap<DeviceUuid, Vec<DeclaredHolder>>,
    /// What was given to somebody and names no device here.
    pub unresolved: Vec<Unresolved>,
    /// Why nothing is known, or why what is known is not confirmed any more.
    pub trouble: Option<Arc<str>>,
    /// Whether the kubelet's word is known. If not, a device without holders may have some.
    pub is_known: bool,
}

/// A container that was given a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeclaredHolder {
    /// Its pod.
    pub pod: PodKey,
    /// The pod's UID, where the gateway's brief says it.
    pub uid: Option<PodUid>,
    /// Its name.
    pub container: Arc<str>,
    /// `Kubelet` for a device plugin's device, `Dra` for a claimed one.
    pub source: HolderSource,
}

/// Something given to a container that names no device here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unresolved {
    /// The container's pod.
    pub pod: PodKey,
    /// The container.
    pub container: Arc<str>,
    /// The resource's name, or the driver's.
    pub resource: Arc<str>,
    /// What was given: an id, or `POOL/DEVICE`.
    pub id: Arc<str>,
    /// Why it names nothing.
    pub why: Why,
}

impl fmt::Display for Unresolved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pod, container, resource, id, why } = self;
        write!(f, "{pod} ({container}) was given {resource} {id:?}: {}", why.sentence())
    }
}

/// What the kubelet said of GPUs, in an order of its own: two that say the same are equal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// Everything given to somebody.
    pub grants: Vec<Grant>,
}

/// One thing given to one container.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Grant {
    /// The container's pod.
    pub pod: PodKey,
    /// The container.
    pub container: Arc<str>,
    /// What was given.
    pub what: Granted,
    /// The pod's UID as it was known when the kubelet was asked.
    pub uid: Option<PodUid>,
}

/// What was given.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Granted {
    /// A device plugin's device.
    Id {
        /// The resource's name.
        resource: Arc<str>,
        /// The device's id.
        id: Arc<str>,
    },
    /// A device claimed through dynamic resource allocation.
    Claimed {
        /// The driver that has it.
        driver: Arc<str>,
        /// The driver's pool.
        pool: Arc<str>,
        /// Its name in the pool.
        device: Arc<str>,
    },
}

/// Names of resources that are GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// Names beyond the ones everybody uses.
    pub extra: Vec<String>,
}

impl Resources {
    /// Whether a device plugin's resource is a GPU, or a part of one.
    pub fn has(&self, resource: &str) -> bool {
        let plain = resource.strip_suffix(".shared").unwrap_or(resource);
        let nvidia = plain == "nvidia.com/gpu" || plain.starts_with("nvidia.com/mig-");
        // Their ids are not resolved, but they are GPUs, and so they are named.
        let amd = resource.strip_prefix("amd.com/");
        let amd = amd.is_some_and(|kind| kind == "gpu" || kind.contains("_nps"));
        let intel = matches!(resource, "gpu.intel.com/i915" | "gpu.intel.com/xe");
        nvidia || amd || intel || self.extra.iter().any(|extra| extra == resource || extra == plain)
    }

    /// Whether devices of this driver of dynamic resource allocation are GPUs.
    pub fn has_driver(&self, driver: &str) -> bool {
        driver == NVIDIA || OTHERS.iter().any(|(other, _)| *other == driver)
    }
}

/// Who holds which of `devices`; with no `brief`, pods have no UID and may have finished.
pub fn declare(
    listing: &Listing,
    brief: Option<&Brief>,
    devices: &[ObservedDevice],
) -> Declaration {
    let published = brief.map_or(&[][..], |brief| &brief.devices);
    let pods = brief.map_or(&[][..], |brief| &brief.pods);
    let pods: HashMap<&PodKey, &BriefedPod> = pods.iter().map(|pod| (&pod.key, pod)).collect();
    let mut declaration = Declaration { is_known: true, ..Declaration::default() };
    for grant in &listing.grants {
        let pod = pods.get(&grant.pod);
        if pod.is_some_and(|pod| pod.finished || is_of_namesake(grant, pod)) {
            continue;
        }
        let (device, source) = match &grant.what {
            Granted::Id { id, .. } => (resolve(id, devices), HolderSource::Kubelet),
            Granted::Claimed { driver, pool, device } => {
                let claim = Claim { driver, pool, device };
                (claim.resolve(published, devices), HolderSource::Dra)
            }
        };
        match device {
            Ok(device) => {
                let holders = declaration.holders.entry(device.uuid.clone()).or_default();
                let uid = pod.map(|pod| pod.uid.clone()).or_else(|| grant.uid.clone());
                add(holders, grant, uid, source);
            }
            Err(why) => declaration.unresolved.push(unresolved(grant, why)),
        }
    }
    declaration
}

/// Whether what was given was given to an earlier pod of that name.
fn is_of_namesake(grant: &Grant, pod: &BriefedPod) -> bool {
    grant.uid.as_ref().is_some_and(|uid| *uid != pod.uid)
}

/// A container that was given several replicas of a device holds it once.
fn add(
    holders: &mut Vec<DeclaredHolder>,
    grant: &Grant,
    uid: Option<PodUid>,
    source: HolderSource,
) {
    let Grant { pod, container, .. } = grant;
    if !holders.iter().any(|holder| holder.pod == *pod && holder.container == *container) {
        let (pod, container) = (pod.clone(), container.clone());
        holders.push(DeclaredHolder { pod, uid, container, source });
    }
}

fn unresolved(grant: &Grant, why: Why) -> Unresolved {
    let (resource, id) = match &grant.what {
        Granted::Id { resource, id } => (resource.clone(), id.clone()),
        Granted::Claimed { driver, pool, device } => {
            (driver.clone(), format!("{pool}/{device}").into())
        }
    };
    let (pod, container) = (grant.pod.clone(), grant.container.clone());
    Unresolved { pod, container, resource, id, why }
}

/// The device that a device plugin's id names.
fn resolve<'a>(id: &str, devices: &'a [ObservedDevice]) -> Result<&'a ObservedDevice, Why> {
    match parse(id) {
        DeviceRef::Uuid { uuid, .. } => by_uuid(uuid, devices),
        DeviceRef::LegacyMig { parent, gpu_instance, compute_instance, .. } => {
            let named = id.split("::").next().unwrap_or(id);
            // Drivers that old call the device itself so.
            by_uuid(named, devices).or_else(|_| {
                only(devices, |device| {
                    let seat = device.seat;
                    is_cut_from(device, parent)
                        && seat.gpu_instance == Some(gpu_instance)
                        && seat.compute_instance == Some(compute_instance)
                })
            })
        }
        DeviceRef::Minor { minor, gpu_instance: None, .. } => by_minor(minor, devices),
        DeviceRef::Minor { minor, gpu_instance, .. } => only(devices, |device| {
            device.seat.minor == Some(minor) && device.seat.gpu_instance == gpu_instance
        }),
        DeviceRef::Unread(why) => Err(why),
    }
}

fn by_uuid<'a>(uuid: &str, devices: &'a [ObservedDevice]) -> Result<&'a ObservedDevice, Why> {
    only(devices, |device| device.uuid.as_str().eq_ignore_ascii_case(uuid))
}

/// The whole GPU of that minor number.
fn by_minor(minor: u32, devices: &[ObservedDevice]) -> Result<&ObservedDevice, Why> {
    only(devices, |device| device.mig.is_none() && device.seat.minor == Some(minor))
}

fn is_cut_from(device: &ObservedDevice, parent: &str) -> bool {
    device.mig.as_ref().is_some_and(|mig| mig.parent.as_str().eq_ignore_ascii_case(parent))
}

/// The one device that fits.
fn only(
    devices: &[ObservedDevice],
    fits: impl Fn(&ObservedDevice) -> bool,
) -> Result<&ObservedDevice, Why> {
    let mut fitting = devices.iter().filter(|device| fits(device));
    match (fitting.next(), fitting.next()) {
        (Some(device), None) => Ok(device),
        (Some(_), Some(_)) => Err(Why::Ambiguous),
        (None, _) => Err(Why::NoDevice),
    }
}

/// A claimed device, as its driver names it.
#[derive(Clone, Copy)]
struct Claim<'a> {
    driver: &'a str,
    pool: &'a str,
    device: &'a str,
}

impl Claim<'_> {
    /// What the driver publishes of a device is believed before what its name says.
    fn resolve<'a>(
        self,
        published: &[PublishedDevice],
        devices: &'a [ObservedDevice],
    ) -> Result<&'a ObservedDevice, Why> {
        if let Some((_, why)) = OTHERS.iter().find(|(driver, _)| *driver == self.driver) {
            return Err(*why);
        }
        let published = published.iter().find(|published| {
            *published.driver == *self.driver
                && *published.pool == *self.pool
                && *published.name == *self.device
        });
        if let Some(uuid) = published.and_then(|published| published.uuid.as_ref()) {
            return by_uuid(uuid.as_str(), devices);
        }
        let place = self.device.strip_prefix("gpu-").ok_or(Why::UnknownForm)?;
        if let Some(minor) = number(place) {
            return by_minor(minor, devices);
        }
        let (minor, profile) = mig_name(place).ok_or(Why::UnknownForm)?;
        let parent = published.and_then(|published| published.parent.as_ref());
        let profile =
            published.and_then(|published| published.profile.as_deref()).unwrap_or(profile);
        // Where on the GPU an instance is placed is not known here.
        only(devices, |device| {
            let Some(mig) = &device.mig else { return false };
            let here = match parent {
                Some(parent) => is_cut_from(device, parent.as_str()),
                None => device.seat.minor == Some(minor),
            };
            here && letters(&mig.profile).eq(letters(profile))
        })
    }
}

/// `MINOR-mig-PROFILE-ID-PLACEMENT` → minor number and profile.
fn mig_name(name: &str) -> Option<(u32, &str)> {
    let (minor, instance) = name.split_once("-mig-")?;
    let mut parts = instance.rsplitn(3, '-');
    number(parts.next()?)?;
    number(parts.next()?)?;
    let profile = parts.next().filter(|profile| !profile.is_empty())?;
    Some((number(minor)?, profile))
}

/// A profile without what names of devices cannot have: `1g.10gb+me` is written `1g10gb-me`.
fn letters(profile: &str) -> impl Iterator<Item = u8> {
    profile.bytes().filter(u8::is_ascii_alphanumeric).map(|byte| byte.to_ascii_lowercase())
}
