//! Which calls readings are made of, and what hardware has them, as the reference lists it.

use reference::{compare, described, table};
use shared::metric::{Metric, Scope};

use super::mig::NOT_OF_AN_INSTANCE;

const ANY: &str = "any";
const HOPPER: &str = "Hopper and newer";

/// Of a whole GPU: which calls, the first that answers; on what. Of a MIG instance: the same.
fn calls(metric: Metric) -> Option<[&'static str; 3]> {
    Some(match metric {
        Metric::GpuUtilization => [
            "`nvmlDeviceGetSamples` (mean of the driver's samples since the last reading), `nvmlDeviceGetUtilizationRates`",
            ANY,
            "`nvmlGpmMetricsGet` graphics engine active; Hopper and newer",
        ],
        Metric::MemoryUtilization => [
            "`nvmlDeviceGetSamples`, `nvmlDeviceGetUtilizationRates`",
            ANY,
            "`nvmlGpmMetricsGet` DRAM bandwidth; Hopper and newer",
        ],
        Metric::MemoryUsedPercent | Metric::MemoryUsedMib => [
            "`nvmlDeviceGetMemoryInfo_v2`, `nvmlDeviceGetMemoryInfo`; of boards that share the host's memory the host's",
            ANY,
            "the same call on the instance",
        ],
        Metric::Temperature => ["`nvmlDeviceGetTemperature`", ANY, ""],
        Metric::PowerDraw => [
            "`nvmlDeviceGetTotalEnergyConsumption` by the time between two readings, `nvmlDeviceGetPowerUsage`",
            "any; from energy: Volta and newer",
            "",
        ],
        Metric::SmActivity => [
            "`nvmlGpmMetricsGet` SM utilisation",
            HOPPER,
            "the same call on the instance; Hopper and newer",
        ],
        Metric::TensorActivity => [
            "`nvmlGpmMetricsGet` any tensor utilisation",
            HOPPER,
            "the same call on the instance; Hopper and newer",
        ],
        Metric::PcieTxKbps | Metric::PcieRxKbps => {
            ["`nvmlGpmMetricsGet` PCIe, `nvmlDeviceGetPcieThroughput`", ANY, ""]
        }
        Metric::NvlinkTxMbps | Metric::NvlinkRxMbps => {
            ["`nvmlGpmMetricsGet` NVLink total", "Hopper and newer with NVLink", ""]
        }
        Metric::SmClockMhz => ["`nvmlDeviceGetClockInfo`", ANY, ""],
        Metric::ThrottledPercent => [
            "`nvmlDeviceGetCurrentClocksThrottleReasons`, `nvmlDeviceGetCurrentClocksEventReasons`: share of readings with power, heat or a slower neighbour as reason",
            ANY,
            "",
        ],
        _ => return None,
    })
}

#[test]
fn the_reference_says_where_readings_of_devices_come_from() {
    let devices = Metric::ALL.iter().filter(|metric| metric.scope() == Scope::Device);
    let rows = devices.map(|&metric| {
        let Some([calls, hardware, instance]) = calls(metric) else {
            panic!("{metric} has no calls")
        };
        described(&metric, calls);
        let has_none = NOT_OF_AN_INSTANCE.contains(&metric);
        assert_eq!(instance.is_empty(), has_none, "{metric} of a MIG instance");
        let instance = if instance.is_empty() { "unsupported" } else { instance };
        [format!("`{metric}`"), calls.into(), hardware.into(), instance.into()]
    });
    let head = ["metric", "calls of NVML, the first that answers", "hardware", "of a MIG instance"];
    compare("metadata.md", "devices", &table(head, rows));
}
