//! Pure: how it went so far → how long until the kubelet is asked again.

use std::time::Duration;

use super::Settings;
use super::ask::Fault;

/// How asking went so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Past {
    /// Failures in a row.
    pub failures: u32,
    /// The newest of them.
    pub fault: Option<Fault>,
    /// Time since the kubelet or the gateway last said something new.
    pub unchanged: Duration,
}

/// The time until the next call; `random` is within 0 to 1, and spreads it by 20 % to each side.
pub fn wait(settings: &Settings, past: Past, random: f64) -> Duration {
    let plain = match past.failures {
        0 if past.unchanged < settings.quiet_after => settings.every,
        0 => settings.quiet,
        failures => {
            let doubled = 2_u32.saturating_pow(failures - 1);
            settings.retry.saturating_mul(doubled).min(settings.longest)
        }
    };
    // Its limit is shared by everybody who asks it: half as often as ever.
    let plain = match past.fault {
        Some(Fault::Exhausted) => (plain.max(settings.every) * 2).min(settings.longest),
        _ => plain,
    };
    plain.mul_f64(0.8 + 0.4 * random)
}
