//! The one table of metrics: name, unit, range, and how the readings of a pod's devices combine.
//!
//! A metric exists everywhere (wire, replay format, trigger metadata, `/metrics`) under the name
//! written here, in the unit written here, or it does not exist.

use std::fmt;

/// Unit of a reading at every interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// 0 to 100.
    Percent,
    /// Mebibytes.
    Mib,
    /// Degrees Celsius.
    Celsius,
    /// Watts.
    Watts,
    /// Kilobytes per second, as NVML counts PCIe traffic.
    KilobytesPerSecond,
    /// Megabytes per second.
    MegabytesPerSecond,
    /// Megahertz.
    Megahertz,
    /// A number of things.
    Count,
    /// Things per second.
    PerSecond,
    /// Milliseconds.
    Milliseconds,
}

impl Unit {
    /// Short form for people: `%`, `MiB`, `°C`, …; empty for plain counts.
    pub fn symbol(self) -> &'static str {
        match self {
            Self::Percent => "%",
            Self::Mib => "MiB",
            Self::Celsius => "°C",
            Self::Watts => "W",
            Self::KilobytesPerSecond => "kB/s",
            Self::MegabytesPerSecond => "MB/s",
            Self::Megahertz => "MHz",
            Self::Count => "",
            Self::PerSecond => "/s",
            Self::Milliseconds => "ms",
        }
    }

    /// The largest value that can be true; anything above it is a broken reading.
    pub const fn max(self) -> f64 {
        match self {
            Self::Percent => 100.0,
            Self::Celsius => 1_000.0,
            Self::Watts | Self::Megahertz => 100_000.0,
            Self::Mib | Self::Count => 1e9,
            Self::KilobytesPerSecond
            | Self::MegabytesPerSecond
            | Self::PerSecond
            | Self::Milliseconds => 1e12,
        }
    }
}

/// Whose reading it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Read per GPU or MIG instance, by the driver.
    Device,
    /// Read per pod, from its inference engine.
    Engine,
}

/// How the readings of a pod's own devices become the pod's reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Combine {
    /// Levels: percent, temperature, clocks.
    Mean,
    /// Amounts and rates: watts, MiB, traffic.
    Sum,
}

macro_rules! metrics {
    ($($(#[doc = $doc:literal])* $variant:ident = $name:literal, $scope:ident, $unit:ident, $combine:ident, split: $split:literal, idle: $idle:literal;)*) => {
        /// One metric. The order is the wire's order and never changes.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum Metric {
            $($(#[doc = $doc])* $variant,)*
        }

        impl Metric {
            /// Every metric, in order.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The name it has at every interface.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// What it is, in a sentence.
            pub fn about(self) -> &'static str {
                match self { $(Self::$variant => concat!($($doc),*).trim_ascii(),)* }
            }

            /// Whose reading it is.
            pub fn scope(self) -> Scope {
                match self { $(Self::$variant => Scope::$scope,)* }
            }

            /// Its unit at every interface.
            pub const fn unit(self) -> Unit {
                match self { $(Self::$variant => Unit::$unit,)* }
            }

            /// How a pod's devices combine.
            pub fn combine(self) -> Combine {
                match self { $(Self::$variant => Combine::$combine,)* }
            }

            /// Whether a holder's share of a device multiplies the reading: true for what holders
            /// use up together, false for what each of them feels in full (heat, clocks).
            #[inline]
            pub fn is_split_by_share(self) -> bool {
                match self { $(Self::$variant => $split,)* }
            }

            /// Whether it stays well above zero on a device that does nothing, so that it does
            /// not follow replicas.
            pub fn has_idle_level(self) -> bool {
                match self { $(Self::$variant => $idle,)* }
            }
        }
    };
}

metrics! {
    /// Share of time in which a kernel ran.
    GpuUtilization = "gpu_utilization", Device, Percent, Mean, split: true, idle: false;
    /// Share of time in which device memory was read or written.
    MemoryUtilization = "memory_utilization", Device, Percent, Mean, split: true, idle: true;
    /// Device memory in use, of its total.
    MemoryUsedPercent = "memory_used_percent", Device, Percent, Mean, split: true, idle: true;
    /// Device memory in use.
    MemoryUsedMib = "memory_used_mib", Device, Mib, Sum, split: true, idle: true;
    /// Temperature of the die.
    Temperature = "temperature", Device, Celsius, Mean, split: false, idle: true;
    /// Power drawn by the board.
    PowerDraw = "power_draw", Device, Watts, Sum, split: true, idle: true;
    /// Share of SM cycles with a warp resident (Hopper and newer).
    SmActivity = "sm_activity", Device, Percent, Mean, split: true, idle: false;
    /// Share of cycles with a tensor pipe active (Hopper and newer).
    TensorActivity = "tensor_activity", Device, Percent, Mean, split: true, idle: false;
    /// PCIe traffic sent.
    PcieTxKbps = "pcie_tx_kbps", Device, KilobytesPerSecond, Sum, split: true, idle: false;
    /// PCIe traffic received.
    PcieRxKbps = "pcie_rx_kbps", Device, KilobytesPerSecond, Sum, split: true, idle: false;
    /// NVLink traffic sent.
    NvlinkTxMbps = "nvlink_tx_mbps", Device, MegabytesPerSecond, Sum, split: true, idle: false;
    /// NVLink traffic received.
    NvlinkRxMbps = "nvlink_rx_mbps", Device, MegabytesPerSecond, Sum, split: true, idle: false;
    /// SM clock.
    SmClockMhz = "sm_clock_mhz", Device, Megahertz, Mean, split: false, idle: true;
    /// Share of time in which the clock was held down.
    ThrottledPercent = "throttled_percent", Device, Percent, Mean, split: false, idle: false;
    /// Requests queued in the engine.
    RequestsWaiting = "requests_waiting", Engine, Count, Sum, split: false, idle: false;
    /// Requests being served.
    RequestsRunning = "requests_running", Engine, Count, Sum, split: false, idle: false;
    /// KV cache in use, of its total.
    KvCacheUsage = "kv_cache_usage", Engine, Percent, Mean, split: false, idle: false;
    /// Tokens generated per second.
    TokenThroughput = "token_throughput", Engine, PerSecond, Sum, split: false, idle: false;
    /// Requests finished per second.
    RequestRate = "request_rate", Engine, PerSecond, Sum, split: false, idle: false;
    /// Requests failed per second.
    ErrorRate = "error_rate", Engine, PerSecond, Sum, split: false, idle: false;
    /// Mean time a request waited before it was scheduled.
    QueueWaitMs = "queue_wait_ms", Engine, Milliseconds, Mean, split: false, idle: false;
    /// Mean time to the first token.
    TimeToFirstTokenMs = "time_to_first_token_ms", Engine, Milliseconds, Mean, split: false, idle: false;
    /// Mean time from a request to its end.
    RequestLatencyMs = "request_latency_ms", Engine, Milliseconds, Mean, split: false, idle: false;
}

impl Metric {
    /// The metric of that exact name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|metric| metric.name() == name)
    }

    /// Its place in [`Metric::ALL`].
    pub fn index(self) -> usize {
        self as usize
    }

    /// Whether `value` can be a true reading: finite, not negative, not above the unit's maximum.
    #[inline]
    pub fn accepts(self, value: f64) -> bool {
        (0.0..=MAXIMA[self.index()]).contains(&value)
    }
}

/// The largest value that each metric can have.
const MAXIMA: [f64; Metric::ALL.len()] = {
    let mut maxima = [0.0; Metric::ALL.len()];
    let mut at = 0;
    while at < maxima.len() {
        maxima[at] = Metric::ALL[at].unit().max();
        at += 1;
    }
    maxima
};

/// A set of metrics, a bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MetricSet(u32);

const _: () = assert!(Metric::ALL.len() <= 32, "a set has a bit per metric");

impl MetricSet {
    /// Adds `metric`.
    pub fn insert(&mut self, metric: Metric) {
        self.0 |= 1 << metric.index();
    }

    /// Takes `metric` out.
    pub fn remove(&mut self, metric: Metric) {
        self.0 &= !(1 << metric.index());
    }

    /// Adds all of `other`.
    pub fn extend(&mut self, other: Self) {
        self.0 |= other.0;
    }

    /// Whether `metric` is in it.
    #[inline]
    pub fn contains(self, metric: Metric) -> bool {
        self.0 & (1 << metric.index()) != 0
    }

    /// How many of its metrics come before `metric`.
    #[inline]
    pub fn rank(self, metric: Metric) -> usize {
        (self.0 & ((1 << metric.index()) - 1)).count_ones() as usize
    }

    /// Its metrics, in order.
    pub fn iter(self) -> impl Iterator<Item = Metric> {
        let mut left = self;
        std::iter::from_fn(move || {
            let metric = *Metric::ALL.get(left.0.trailing_zeros() as usize)?;
            left.remove(metric);
            Some(metric)
        })
    }
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_lead_back_to_their_metric() {
        for &metric in Metric::ALL {
            assert_eq!(Metric::from_name(metric.name()), Some(metric));
            assert_eq!(Metric::ALL[metric.index()], metric);
        }
        assert_eq!(Metric::from_name("GPU_UTILIZATION"), None);
    }

    #[test]
    fn only_finite_values_within_the_units_range_are_readings() {
        for good in [0.0, 0.5, 100.0] {
            assert!(Metric::GpuUtilization.accepts(good), "{good}");
        }
        for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.1, 100.1] {
            assert!(!Metric::GpuUtilization.accepts(bad), "{bad}");
        }
        assert!(Metric::PowerDraw.accepts(700.0));
        assert!(!Metric::PowerDraw.accepts(1e300));
    }
}
