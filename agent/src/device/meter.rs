//! Pure: power over time, for devices that do not count their energy themselves.
//!
//! Guarantees: a device's own counter is never touched; a total only grows, and says that it is an
//! estimate; time in which a device was not read adds nothing.

use std::collections::HashMap;
use std::time::Duration;

use shared::health::{Energy, Origin};
use shared::identity::DeviceUuid;
use shared::metric::Metric;
use shared::time::Timestamp;

use super::{Observation, ObservedDevice};

/// Between readings further apart than this the power is not known.
const LONGEST_STEP: Duration = Duration::from_secs(10);
/// A device not seen for this long is forgotten.
const REMEMBER: Duration = Duration::from_secs(3_600);

/// What every device without a counter has used so far.
#[derive(Debug)]
pub struct Meters {
    /// Tells this agent's totals from those of any other.
    agent: u64,
    devices: HashMap<DeviceUuid, Meter>,
}

#[derive(Debug)]
struct Meter {
    read_at: Timestamp,
    joules: f64,
}

impl Default for Meters {
    /// Meters that stand at zero.
    fn default() -> Self {
        Self { agent: fastrand::u64(1..), devices: HashMap::new() }
    }
}

impl Meters {
    /// Adds what was used since the observation before to every device that does not count itself.
    /// A MIG instance has no power of its own.
    pub fn fill(&mut self, observation: &mut Observation, now: Timestamp) {
        for device in &mut observation.devices {
            if device.condition.energy.is_none() && device.mig.is_none() {
                device.condition.energy = self.joules(device, now);
            }
        }
        self.devices.retain(|_, meter| now.since(meter.read_at) < REMEMBER);
    }

    fn joules(&mut self, device: &ObservedDevice, now: Timestamp) -> Option<Energy> {
        let origin = Origin::Integrated(self.agent);
        let read_at = now - device.age;
        let known = self.devices.get_mut(&device.uuid);
        let Some(watts) = device.readings.value(Metric::PowerDraw) else {
            return known.map(|meter| Energy { joules: meter.joules, origin });
        };
        let Some(meter) = known else {
            self.devices.insert(device.uuid.clone(), Meter { read_at, joules: 0.0 });
            return Some(Energy { joules: 0.0, origin });
        };
        let step = read_at.since(meter.read_at);
        if step <= LONGEST_STEP {
            meter.joules += watts * step.as_secs_f64();
        }
        meter.read_at = meter.read_at.max(read_at);
        Energy::checked(meter.joules, origin)
    }
}

#[cfg(test)]
mod tests {
    use shared::reading::{Reading, Readings};

    use super::*;
    use crate::device::{Condition, Processes, Seat};

    fn seen(watts: Option<f64>, counted: Option<f64>) -> Observation {
        let power = watts.map(|watts| (Metric::PowerDraw, Reading::Ok(watts)));
        let energy = counted.map(|joules| Energy { joules, origin: Origin::Counter });
        let device = ObservedDevice {
            uuid: "GPU-0".into(),
            index: 0,
            name: "test".into(),
            memory_total_mib: None,
            mig: None,
            holders: Vec::new(),
            reason: None,
            age: Duration::ZERO,
            readings: power.into_iter().collect::<Readings>(),
            seat: Seat::default(),
            processes: Processes::default(),
            condition: Condition { energy, ..Condition::default() },
        };
        Observation { devices: vec![device], ..Observation::default() }
    }

    fn read(meters: &mut Meters, mut seen: Observation, second: i64) -> Option<Energy> {
        meters.fill(&mut seen, Timestamp::from_millis(second * 1_000));
        seen.devices[0].condition.energy
    }

    #[test]
    fn power_over_time_is_an_estimate_and_gaps_add_nothing() {
        let mut meters = Meters::default();
        let mut at = |watts, second| {
            let energy = read(&mut meters, seen(watts, None), second)?;
            assert!(energy.is_estimate());
            Some(energy.joules)
        };
        assert_eq!(at(None, 0), None, "no power, no energy");
        assert_eq!(at(Some(300.0), 1), Some(0.0));
        assert_eq!(at(Some(300.0), 2), Some(300.0));
        assert_eq!(at(None, 3), Some(300.0), "it stands while there is nothing to add");
        assert_eq!(at(Some(200.0), 4), Some(700.0));
        assert_eq!(at(Some(200.0), 100), Some(700.0), "a gap of a minute and a half is not known");
        assert_eq!(at(Some(200.0), 99), Some(700.0), "nor is one backwards");
    }

    #[test]
    fn a_counter_of_its_own_is_left_alone() {
        let mut meters = Meters::default();
        for (second, joules) in [(0, 5.0), (1, 400.0), (2, 3.0)] {
            let energy = read(&mut meters, seen(Some(300.0), Some(joules)), second);
            assert_eq!(energy, Some(Energy { joules, origin: Origin::Counter }));
        }
    }
}
