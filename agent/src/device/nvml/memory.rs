//! The memory of a device, as new and old drivers tell it, or the host's where a GPU has none.
//!
//! Guarantees: used memory that is more than there is has failed; the host's is taken only for
//! boards that are known to share it.

use std::fs;

use nvml_wrapper::error::NvmlError;
use shared::reading::Reading;

use super::fault::{Fault, VERSION_MISMATCH, is_absent};
use super::gauge::{Gauge, reading};
use super::raw;
use super::read::Read;

pub(super) const MIB: f64 = 1_048_576.0;

/// Two numbers of which one is wrong, and nobody knows which.
const TOO_MUCH_USED: &str = "the NVIDIA driver says that more memory is used than there is";

/// Words in the names of boards whose GPU has no memory of its own: DGX Spark, and Jetsons by the
/// names their drivers give them. Grace Hopper and Grace Blackwell have their own.
const UNIFIED: [&str; 7] = ["GB10", "Spark", "Jetson", "Tegra", "Xavier", "Orin", "Thor"];

impl Gauge<'_> {
    /// Its memory, also as a part of its total.
    pub(super) fn memory(&self, read: &mut Read) -> Result<(), Fault> {
        let memory = match self.memory_bytes() {
            Ok((0, _)) => Err(NvmlError::NoData),
            Ok((total, used)) if used > total => {
                read.put_memory(&Reading::Failed(TOO_MUCH_USED.into()));
                return Ok(());
            }
            Ok((total, used)) => Ok((total as f64 / MIB, used as f64 / MIB)),
            // On other boards it says nothing about the host's.
            Err(NvmlError::NotSupported) if self.is_unified => {
                read.shares_memory = true;
                host_memory().ok_or(NvmlError::NotSupported)
            }
            Err(error) => Err(error),
        };
        read.memory_total_mib = memory.as_ref().ok().map(|(total, _)| *total);
        let used = reading(memory.map(|(_, used)| used))?;
        read.put_memory(&used);
        Ok(())
    }

    /// Total and used.
    fn memory_bytes(&self) -> Result<(u64, u64), NvmlError> {
        let v2 = self.ask("its memory", |device| {
            device.memory_info().map(|memory| (memory.total, memory.used))
        });
        match v2 {
            // An older driver; there, what is reserved is used.
            Err(error) if is_absent(&error) || is_version(&error) => {
                self.ask("its memory as old drivers tell it", raw::memory_v1)
            }
            other => other,
        }
    }
}

fn is_version(error: &NvmlError) -> bool {
    matches!(error, NvmlError::UnexpectedVariant(VERSION_MISMATCH))
}

/// Whether a board of that name shares the host's memory.
pub(super) fn is_unified(name: &str) -> bool {
    let mut words = name.split(|c: char| !c.is_ascii_alphanumeric());
    words.any(|word| UNIFIED.iter().any(|known| word.eq_ignore_ascii_case(known)))
}

/// The host's memory, total and used MiB, where a GPU shares it.
fn host_memory() -> Option<(f64, f64)> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let mib = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key))?;
        line.trim().strip_suffix(" kB")?.parse().ok().map(|kib: f64| kib / 1_024.0)
    };
    let total = mib("MemTotal:")?;
    Some((total, total - mib("MemAvailable:")?))
}
