//! Pure: a device id as the kubelet lists it → what it names.
//!
//! Guarantees: an id is understood as a whole or not at all; forms that this version does not
//! resolve are told apart from forms that nobody knows, and neither is ever guessed.

/// What an id names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceRef<'a> {
    /// `GPU-UUID` or `MIG-UUID`, with `::N` where it is shared: NVIDIA's device plugin.
    Uuid {
        /// The UUID as the driver gives it, in any case.
        uuid: &'a str,
        /// Which of the device's replicas.
        replica: Option<u32>,
    },
    /// `MIG-GPU-UUID/GI/CI`, with `::N` where it is shared: drivers before 470.
    LegacyMig {
        /// UUID of the whole GPU.
        parent: &'a str,
        /// Its GPU instance.
        gpu_instance: u32,
        /// That one's compute instance.
        compute_instance: u32,
        /// Which of the device's replicas.
        replica: Option<u32>,
    },
    /// `nvidiaN`, `nvidiaN/giG`, with `/vgpuM` where it is shared: GKE's device plugin.
    Minor {
        /// N of `/dev/nvidiaN`, which need not be the NVML index.
        minor: u32,
        /// The GPU instance on it.
        gpu_instance: Option<u32>,
        /// Which part of a shared device.
        share: Option<u32>,
    },
    /// Nothing that this version resolves, and why.
    Unread(Why),
}

/// Why something given names no device here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Why {
    /// The id has no form that is known.
    UnknownForm,
    /// HAMi's slot of a GPU: its real choice is written elsewhere.
    Hami,
    /// AMD's form.
    Amd,
    /// Intel's form.
    Intel,
    /// An NVML index, which moves when a GPU is lost.
    Index,
    /// The device is not on this node, or not any more.
    NoDevice,
    /// Several devices fit.
    Ambiguous,
}

impl Why {
    /// All of them, in the order of their counts.
    pub const ALL: [Self; 7] = [
        Self::UnknownForm,
        Self::Hami,
        Self::Amd,
        Self::Intel,
        Self::Index,
        Self::NoDevice,
        Self::Ambiguous,
    ];

    /// The word it is counted under.
    pub fn word(self) -> &'static str {
        match self {
            Self::UnknownForm => "unknown_form",
            Self::Hami => "hami",
            Self::Amd => "amd",
            Self::Intel => "intel",
            Self::Index => "index",
            Self::NoDevice => "no_device",
            Self::Ambiguous => "ambiguous",
        }
    }

    /// What is wrong, for people.
    pub fn sentence(self) -> &'static str {
        match self {
            Self::UnknownForm => "an id of no known form",
            Self::Hami => "a HAMi id, not read by this version",
            Self::Amd => "an AMD id, not read by this version",
            Self::Intel => "an Intel id, not read by this version",
            Self::Index => "an index, which may be of another device by now",
            Self::NoDevice => "no such device is on this node",
            Self::Ambiguous => "several devices of this node fit",
        }
    }
}

/// Reads an id.
pub fn parse(id: &str) -> DeviceRef<'_> {
    legacy_mig(id)
        .or_else(|| uuid(id))
        .or_else(|| minor(id))
        .unwrap_or_else(|| DeviceRef::Unread(unread(id)))
}

fn legacy_mig(id: &str) -> Option<DeviceRef<'_>> {
    let (device, replica) = replica(id)?;
    let (parent, instances) = device.strip_prefix("MIG-")?.split_once('/')?;
    let (gpu_instance, compute_instance) = instances.split_once('/')?;
    is_uuid(parent.strip_prefix("GPU-")?).then_some(DeviceRef::LegacyMig {
        parent,
        gpu_instance: number(gpu_instance)?,
        compute_instance: number(compute_instance)?,
        replica,
    })
}

fn uuid(id: &str) -> Option<DeviceRef<'_>> {
    let (uuid, replica) = replica(id)?;
    let digits = uuid.strip_prefix("GPU-").or_else(|| uuid.strip_prefix("MIG-"))?;
    is_uuid(digits).then_some(DeviceRef::Uuid { uuid, replica })
}

fn minor(id: &str) -> Option<DeviceRef<'_>> {
    let mut parts = id.split('/').peekable();
    let minor = number(parts.next()?.strip_prefix("nvidia")?)?;
    let mut next = |prefix: &str| {
        let text = parts.next_if(|part| part.starts_with(prefix))?;
        Some(number(&text[prefix.len()..]))
    };
    // A part that is there must be a whole number.
    let gpu_instance = match next("gi") {
        Some(number) => Some(number?),
        None => None,
    };
    let share = match next("vgpu") {
        Some(number) => Some(number?),
        None => None,
    };
    parts.next().is_none().then_some(DeviceRef::Minor { minor, gpu_instance, share })
}

/// What else it could be.
fn unread(id: &str) -> Why {
    if is_hami(id) {
        Why::Hami
    } else if number(id).is_some() {
        Why::Index
    } else if is_pci(id) || id.strip_prefix("amdgpu_xcp_").and_then(number).is_some() {
        Why::Amd
    } else if is_drm_card(id) {
        Why::Intel
    } else {
        Why::UnknownForm
    }
}

/// `GPU-UUID-N`: one group more than a UUID.
fn is_hami(id: &str) -> bool {
    let slot = id.strip_prefix("GPU-").and_then(|rest| rest.rsplit_once('-'));
    slot.is_some_and(|(uuid, slot)| is_uuid(uuid) && number(slot).is_some())
}

/// `dddd:bb:dd.f`
fn is_pci(id: &str) -> bool {
    let hex = |text: &str, length| {
        text.len() == length && text.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    let parts: Vec<_> = id.splitn(4, [':', '.']).collect();
    matches!(*parts, [domain, bus, device, function]
        if hex(domain, 4) && hex(bus, 2) && hex(device, 2) && hex(function, 1)
            && id.as_bytes()[4] == b':' && id.as_bytes()[7] == b':' && id.as_bytes()[10] == b'.')
}

/// `cardN-M`
fn is_drm_card(id: &str) -> bool {
    let card = id.strip_prefix("card").and_then(|rest| rest.split_once('-'));
    card.is_some_and(|(card, share)| number(card).is_some() && number(share).is_some())
}

/// The id without its `::N`; none where there is no number after the colons.
fn replica(id: &str) -> Option<(&str, Option<u32>)> {
    match id.split_once("::") {
        Some((device, replica)) => Some((device, Some(number(replica)?))),
        None => Some((id, None)),
    }
}

/// 8-4-4-4-12 hexadecimal digits.
fn is_uuid(text: &str) -> bool {
    let groups = text.split('-').map(str::len);
    groups.eq([8, 4, 4, 4, 12]) && text.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit())
}

/// A decimal number as programs write it.
pub(super) fn number(text: &str) -> Option<u32> {
    let written = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let plain = written && (text.len() == 1 || !text.starts_with('0'));
    if plain { text.parse().ok() } else { None }
}
