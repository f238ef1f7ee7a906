//! What a device used up so far, and what is the matter with it.
//!
//! Guarantees: energy is a total that only grows for as long as its origin stays the same, so a
//! frame that is lost loses nothing; what is not known is `None`, never "nothing is wrong".

/// The energy a device has used since some moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Energy {
    /// Joules since then; finite and not negative.
    pub joules: f64,
    /// Who counts. Two figures can be compared only if this is the same.
    pub origin: Origin,
}

/// Who counts a device's energy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The device's own counter, since its driver was loaded.
    Counter,
    /// An agent, from power and time, because the device has no counter; the number is another one
    /// for every agent that ever ran.
    Integrated(u64),
}

impl Energy {
    /// The most joules that are believed: a GPU of 5 kW takes six thousand years for them.
    pub const MAX_JOULES: f64 = 1e15;

    /// `joules` of `origin`, if that can be.
    pub fn checked(joules: f64, origin: Origin) -> Option<Self> {
        (0.0..=Self::MAX_JOULES).contains(&joules).then_some(Self { joules, origin })
    }

    /// Whether it was computed rather than counted.
    pub fn is_estimate(&self) -> bool {
        self.origin != Origin::Counter
    }
}

/// Why a clock is lower than the load wants it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Throttle {
    /// The limit of its power.
    Power,
    /// Its temperature.
    Heat,
    /// Its hardware, which says no more than that.
    Hardware,
    /// The power supply asked for it.
    PowerBrake,
    /// A slower GPU that it is kept in step with.
    SyncBoost,
}

impl Throttle {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 5] =
        [Self::Power, Self::Heat, Self::Hardware, Self::PowerBrake, Self::SyncBoost];

    /// The word used for it at every interface.
    pub fn name(self) -> &'static str {
        match self {
            Self::Power => "power",
            Self::Heat => "heat",
            Self::Hardware => "hardware",
            Self::PowerBrake => "power_brake",
            Self::SyncBoost => "sync_boost",
        }
    }

    /// The one of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|throttle| throttle.name() == name)
    }
}

/// What the driver wants done with a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecoveryAction {
    /// Nothing.
    None,
    /// The GPU must be reset.
    GpuReset,
    /// The node must be rebooted.
    NodeReboot,
    /// Its peer-to-peer traffic must be stopped.
    DrainP2p,
    /// Its work must be stopped, and the GPU reset then.
    DrainAndReset,
    /// Something that this version has no word for.
    Other(u32),
}

impl RecoveryAction {
    /// The words of those that have one.
    pub const NAMES: [&'static str; 5] =
        ["none", "gpu_reset", "node_reboot", "drain_p2p", "drain_and_reset"];

    /// The action of NVML's number.
    pub fn from_number(number: u32) -> Self {
        match number {
            0 => Self::None,
            1 => Self::GpuReset,
            2 => Self::NodeReboot,
            3 => Self::DrainP2p,
            4 => Self::DrainAndReset,
            other => Self::Other(other),
        }
    }

    /// NVML's number for it.
    pub fn number(self) -> u32 {
        match self {
            Self::None => 0,
            Self::GpuReset => 1,
            Self::NodeReboot => 2,
            Self::DrainP2p => 3,
            Self::DrainAndReset => 4,
            Self::Other(number) => number,
        }
    }

    /// The word used for it at every interface.
    pub fn name(self) -> &'static str {
        Self::NAMES.get(self.number() as usize).copied().unwrap_or("other")
    }

    /// The action of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        let number = Self::NAMES.iter().position(|known| *known == name)?;
        Some(Self::from_number(u32::try_from(number).ok()?))
    }
}

/// How often an error of a kind was reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XidCount {
    /// NVIDIA's number for the kind of error.
    pub xid: u32,
    /// How often, since its agent started.
    pub count: u64,
}

/// What is the matter with a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// XID errors by number, in order; empty if there were none. `None` where the driver tells
    /// none.
    pub xids: Option<Vec<XidCount>>,
    /// Memory errors that could not be corrected: in the device's whole life, or since its driver
    /// was loaded where only that is counted.
    pub ecc_uncorrected: Option<u64>,
    /// Whether rows of its memory are replaced at the next reset.
    pub remap_pending: Option<bool>,
    /// Whether a row of its memory could not be replaced.
    pub remap_failed: Option<bool>,
    /// What the driver wants done.
    pub recovery: Option<RecoveryAction>,
    /// Whether the GPU has fallen off the bus.
    pub lost: bool,
}

/// Kinds of XID errors that are told apart on one device.
pub const MAX_XIDS: usize = 32;

impl Health {
    /// What is wrong, one remark for each; empty where nothing is known to be.
    pub fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        if self.lost {
            remarks.push("the GPU has fallen off the bus".to_owned());
        }
        match self.recovery {
            None | Some(RecoveryAction::None) => {}
            Some(RecoveryAction::Other(number)) => {
                remarks.push(format!("the driver asks for the recovery action {number}"));
            }
            Some(action) => {
                let action = action.name().replace('_', " ");
                remarks.push(format!("the driver asks for a recovery action: {action}"));
            }
        }
        if self.remap_failed == Some(true) {
            remarks.push("a broken row of its memory could not be replaced".to_owned());
        } else if self.remap_pending == Some(true) {
            remarks.push("rows of its memory are replaced at the next reset".to_owned());
        }
        if let Some(count) = self.ecc_uncorrected.filter(|count| *count > 0) {
            remarks.push(format!("its memory had {count} uncorrected errors"));
        }
        let xids = self.xids.iter().flatten().map(|XidCount { xid, count }| match count {
            1 => format!("XID {xid}"),
            count => format!("XID {xid} ({count} times)"),
        });
        let xids: Vec<_> = xids.collect();
        if !xids.is_empty() {
            remarks.push(format!("the driver reported {}", xids.join(", ")));
        }
        remarks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_wrong_and_nothing_known_say_nothing() {
        assert!(Health::default().remarks().is_empty());
        let well = Health {
            xids: Some(Vec::new()),
            ecc_uncorrected: Some(0),
            remap_pending: Some(false),
            remap_failed: Some(false),
            recovery: Some(RecoveryAction::None),
            lost: false,
        };
        assert!(well.remarks().is_empty());
        let ill = Health {
            xids: Some(vec![XidCount { xid: 63, count: 1 }, XidCount { xid: 94, count: 2 }]),
            recovery: Some(RecoveryAction::DrainAndReset),
            ..well
        };
        assert_eq!(
            ill.remarks(),
            [
                "the driver asks for a recovery action: drain and reset",
                "the driver reported XID 63, XID 94 (2 times)",
            ]
        );
    }

    #[test]
    fn names_and_numbers_lead_back() {
        for throttle in Throttle::ALL {
            assert_eq!(Throttle::from_name(throttle.name()), Some(throttle));
        }
        for number in 0..7 {
            assert_eq!(RecoveryAction::from_number(number).number(), number);
        }
        for name in RecoveryAction::NAMES {
            assert_eq!(RecoveryAction::from_name(name).map(RecoveryAction::name), Some(name));
        }
    }
}
