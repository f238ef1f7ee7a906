//! The words that keys with a closed list take.

use super::word::words;

words! {
    /// How the readings of a workload become one.
    Aggregation {
        /// Each pod's own reading, summed over pods.
        #[default]
        Total = "total",
        /// The largest of all GPUs.
        Max = "max",
        /// The smallest of all GPUs.
        Min = "min",
        /// The mean over all GPUs.
        Avg = "avg",
        /// The sum over all GPUs.
        Sum = "sum",
        /// The median of all GPUs.
        P50 = "p50",
        /// Nearest rank.
        P90 = "p90",
        /// Nearest rank.
        P95 = "p95",
        /// Nearest rank.
        P99 = "p99",
    }
}

words! {
    /// How the sums of a window become one.
    WindowFunction {
        /// The mean.
        #[default]
        Avg = "avg",
        /// The largest.
        Max = "max",
        /// The smallest.
        Min = "min",
        /// The 90th percentile, nearest rank.
        P90 = "p90",
    }
}

words! {
    /// What it means that the demand series is absent.
    Absent {
        /// Nothing is known.
        #[default]
        Error = "error",
        /// No demand; for routers that drop idle series.
        Zero = "zero",
    }
}
