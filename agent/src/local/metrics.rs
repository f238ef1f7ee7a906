//! Pure: what is shown of a node → Prometheus text 0.0.4.
//!
//! Guarantees: every name is written once, in `SERIES`, and ends with its base unit; a device is
//! there once per metric, so that sums over devices are right, and carries its pod's labels when
//! one holder has all of it; shared devices are told apart in the `holder_…` series. What failed
//! has no value but a `reading_failed`; what is unsupported is not there at all. Lines keep the
//! order of the inventory.

/// What devices used up, and what is the matter with them.
mod condition;
/// Every series there can be, as the reference lists them.
#[cfg(test)]
mod reference;

use std::fmt;

use prometheus_client::encoding::{EncodeLabelSet, EncodeMetric, MetricEncoder, prometheus_text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use shared::frame::Engine;
use shared::metric::{Metric, Unit};
use shared::process::{COMMIT, VERSION};

use super::view::{DeviceView, View, plain};
use crate::owner::id::Why;
use crate::owner::kubelet::{Counts, Fault};

/// What every name begins with.
pub const PREFIX: &str = "gpu_agent";

/// A metric's name and help in the text.
#[derive(Clone, Copy, Debug)]
pub struct Series {
    /// The metric it shows.
    pub metric: Metric,
    /// Its name after [`PREFIX`] and an underscore.
    pub name: &'static str,
    /// What it is.
    pub help: &'static str,
    /// Help of its `holder_…` twin, where a holder has a part of it.
    pub part: Option<&'static str>,
}

const fn series(metric: Metric, name: &'static str, help: &'static str) -> Series {
    Series { metric, name, help, part: None }
}

const fn split(
    metric: Metric,
    name: &'static str,
    help: &'static str,
    part: &'static str,
) -> Series {
    Series { metric, name, help, part: Some(part) }
}

/// Every metric's name.
#[rustfmt::skip]
pub const SERIES: &[Series] = &[
    split(Metric::GpuUtilization, "utilization_ratio", "Share of time in which a kernel ran", "The holder's part of utilization_ratio"),
    series(Metric::MemoryUtilization, "memory_utilization_ratio", "Share of time in which device memory was read or written"),
    split(Metric::MemoryUsedPercent, "memory_used_ratio", "Device memory in use, of its total", "The holder's part of memory_used_ratio"),
    split(Metric::MemoryUsedMib, "memory_used_bytes", "Device memory in use", "The holder's part of memory_used_bytes"),
    series(Metric::Temperature, "temperature_celsius", "Temperature of the die"),
    split(Metric::PowerDraw, "power_draw_watts", "Power drawn by the board", "The holder's part of power_draw_watts"),
    series(Metric::SmActivity, "sm_activity_ratio", "Share of SM cycles with a warp resident"),
    series(Metric::TensorActivity, "tensor_activity_ratio", "Share of cycles with a tensor pipe active"),
    series(Metric::PcieTxKbps, "pcie_transmit_bytes_per_second", "PCIe traffic sent"),
    series(Metric::PcieRxKbps, "pcie_receive_bytes_per_second", "PCIe traffic received"),
    series(Metric::NvlinkTxMbps, "nvlink_transmit_bytes_per_second", "NVLink traffic sent"),
    series(Metric::NvlinkRxMbps, "nvlink_receive_bytes_per_second", "NVLink traffic received"),
    series(Metric::SmClockMhz, "sm_clock_hertz", "SM clock"),
    series(Metric::ThrottledPercent, "throttled_ratio", "Share of time in which the clock was held down"),
    series(Metric::RequestsWaiting, "engine_requests_waiting", "Requests queued in the engine"),
    series(Metric::RequestsRunning, "engine_requests_running", "Requests being served by the engine"),
    series(Metric::KvCacheUsage, "engine_kv_cache_usage_ratio", "KV cache of the engine in use, of its total"),
    series(Metric::TokenThroughput, "engine_tokens_per_second", "Tokens the engine generates"),
    series(Metric::RequestRate, "engine_requests_per_second", "Requests the engine finishes"),
    series(Metric::ErrorRate, "engine_errors_per_second", "Requests of the engine that fail"),
    series(Metric::QueueWaitMs, "engine_queue_wait_seconds", "Time a request waits in the engine's queue"),
    series(Metric::TimeToFirstTokenMs, "engine_time_to_first_token_seconds", "Time to the first token"),
    series(Metric::RequestLatencyMs, "engine_request_latency_seconds", "Time a request takes"),
];

/// A value in its base unit, as Prometheus has it.
fn in_base_unit(unit: Unit, value: f64) -> f64 {
    match unit {
        Unit::Percent => value / 100.0,
        Unit::Mib => (value * 1_048_576.0).round(),
        Unit::KilobytesPerSecond => value * 1e3,
        Unit::MegabytesPerSecond | Unit::Megahertz => value * 1e6,
        Unit::Milliseconds => value / 1e3,
        Unit::Celsius | Unit::Watts | Unit::Count | Unit::PerSecond => value,
    }
}

/// To twelve digits: what comes after them is not measured but left over from arithmetic.
fn rounded(value: f64) -> f64 {
    format!("{value:.11e}").parse().unwrap_or(value)
}

#[derive(Clone, Debug, EncodeLabelSet)]
struct Build {
    version: &'static str,
    commit: &'static str,
}

#[derive(Clone, Debug, EncodeLabelSet)]
struct OfNode {}

/// Empty where no single holder has the whole device.
#[derive(Clone, Debug, PartialEq, EncodeLabelSet)]
struct OfDevice {
    gpu_uuid: String,
    gpu_index: u32,
    gpu_model: String,
    namespace: String,
    pod: String,
    container: String,
}

#[derive(Clone, Debug, EncodeLabelSet)]
struct Origin {
    #[prometheus(flatten)]
    device: OfDevice,
    mig_parent: String,
    mig_profile: String,
}

#[derive(Clone, Debug, EncodeLabelSet)]
struct Share {
    #[prometheus(flatten)]
    device: OfDevice,
    source: &'static str,
    estimated: &'static str,
}

#[derive(Clone, Debug, PartialEq, EncodeLabelSet)]
struct Held {
    #[prometheus(flatten)]
    device: OfDevice,
    source: &'static str,
    estimated: &'static str,
    undeclared: &'static str,
}

#[derive(Clone, Debug, EncodeLabelSet)]
struct Failure {
    #[prometheus(flatten)]
    device: OfDevice,
    metric: &'static str,
}

#[derive(Clone, Debug, EncodeLabelSet)]
struct OfEngine {
    namespace: String,
    pod: String,
    /// `engine_labels`, where only some of its series were read.
    #[prometheus(flatten)]
    labels: Vec<(&'static str, String)>,
}

#[derive(Clone, Debug, EncodeLabelSet)]
struct EngineFailure {
    #[prometheus(flatten)]
    engine: OfEngine,
    metric: &'static str,
}

#[derive(Clone, Debug, EncodeLabelSet)]
struct Because {
    reason: &'static str,
}

/// Counters of one name, in order.
#[derive(Debug)]
struct Counters<L>(Vec<(L, u64)>);

impl<L: EncodeLabelSet + fmt::Debug> EncodeMetric for Counters<L> {
    fn encode(&self, mut encoder: MetricEncoder) -> fmt::Result {
        for (labels, value) in &self.0 {
            encoder.encode_family(labels)?.encode_counter::<OfNode, _, u64>(value, None)?;
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Counter
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Gauges of one name, in order.
#[derive(Debug)]
struct Gauges<L>(Vec<(L, f64)>);

impl<L: EncodeLabelSet + fmt::Debug> EncodeMetric for Gauges<L> {
    fn encode(&self, mut encoder: MetricEncoder) -> fmt::Result {
        for (labels, value) in &self.0 {
            encoder.encode_family(labels)?.encode_gauge(&rounded(*value))?;
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Gauge
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Everything that is shown, as Prometheus reads it.
pub fn render(view: &View<'_>) -> String {
    let mut text = String::new();
    prometheus_text::encode(&mut text, &registry(view)).expect("writing to a String does not fail");
    text
}

fn registry(view: &View<'_>) -> Registry {
    let mut registry = Registry::with_prefix(PREFIX);
    put(
        &mut registry,
        "build_info",
        "Version of this agent",
        vec![(Build { version: VERSION, commit: COMMIT }, 1.0)],
    );
    #[expect(clippy::cast_precision_loss, reason = "a node has at most 1024 devices")]
    let devices = view.devices.len() as f64;
    put(&mut registry, "devices", "Devices of the node", vec![(OfNode {}, devices)]);
    let up = f64::from(u8::from(view.reason.is_none()));
    let help = "Whether all of the node could be looked at";
    put(&mut registry, "up", help, vec![(OfNode {}, up)]);
    about_devices(&mut registry, view);
    for series in SERIES {
        readings(&mut registry, view, series);
    }
    failures(&mut registry, view);
    condition::conditions(&mut registry, view);
    if let Some(counts) = view.kubelet {
        kubelet(&mut registry, counts);
    }
    registry
}

fn put<L>(registry: &mut Registry, name: &str, help: &str, gauges: Vec<(L, f64)>)
where
    L: EncodeLabelSet + fmt::Debug + Send + Sync + 'static,
{
    registry.register(name, help, Gauges(gauges));
}

fn label(view: &DeviceView<'_>) -> OfDevice {
    let (namespace, pod, container) = view.sole_holder().map_or_else(Default::default, |holder| {
        let pod = &holder.pod;
        (pod.namespace.to_string(), pod.name.to_string(), holder.container.to_string())
    });
    OfDevice {
        gpu_uuid: plain(view.device.uuid.as_str()),
        gpu_index: view.device.index,
        gpu_model: plain(&view.device.name),
        namespace,
        pod,
        container,
    }
}

fn holder_label(view: &DeviceView<'_>, place: usize) -> OfDevice {
    let holder = &view.device.holders[place];
    OfDevice {
        namespace: holder.pod.namespace.to_string(),
        pod: holder.pod.name.to_string(),
        container: holder.container.to_string(),
        ..label(view)
    }
}

fn about_devices(registry: &mut Registry, view: &View<'_>) {
    let info = view.devices.iter().map(|view| {
        let mig = view.device.mig.as_ref();
        let (mig_parent, mig_profile) = mig
            .map_or_else(Default::default, |mig| (mig.parent.to_string(), mig.profile.to_string()));
        (Origin { device: label(view), mig_parent, mig_profile }, 1.0)
    });
    put(
        registry,
        "device_info",
        "What a device is, and what a MIG instance was cut from",
        info.collect(),
    );
    let age = |view: &DeviceView<'_>| Some((label(view), view.age?.as_secs_f64()));
    let ages = view.devices.iter().filter_map(age);
    put(registry, "device_age_seconds", "Time since the device was read", ages.collect());
    let total = |view: &DeviceView<'_>| {
        Some((label(view), in_base_unit(Unit::Mib, view.device.memory_total_mib?)))
    };
    let totals = view.devices.iter().filter_map(total);
    put(registry, "memory_total_bytes", "Device memory", totals.collect());
    shares(registry, view);
}

fn shares(registry: &mut Registry, view: &View<'_>) {
    let mut holders: Vec<(Held, f64)> = Vec::new();
    let mut shares = Vec::new();
    let mut left = Vec::new();
    let word = |flag| if flag { "true" } else { "false" };
    for view in &view.devices {
        for (place, holder) in view.holders() {
            let device = holder_label(view, place);
            let (source, estimated) = (holder.source.name(), word(holder.estimated));
            let undeclared = word(holder.undeclared);
            let held = Held { device: device.clone(), source, estimated, undeclared };
            if holders.iter().all(|(known, _)| *known != held) {
                holders.push((held, 1.0));
            }
            let Some(share) = holder.share else { continue };
            shares.push((Share { device, source, estimated }, share));
        }
        if let Some(unattributed) = view.unattributed() {
            left.push((label(view), unattributed));
        }
    }
    put(
        registry,
        "holder_info",
        "A container that holds the device, and what its part of it rests on",
        holders,
    );
    let help = "Share of the device's load that no holder has";
    put(registry, "holder_share_ratio", "The holder's share of the device", shares);
    put(registry, "unattributed_ratio", help, left);
}

fn readings(registry: &mut Registry, view: &View<'_>, series: &Series) {
    let Series { metric, name, help, .. } = *series;
    let base = |value| in_base_unit(metric.unit(), value);
    let devices = view.devices.iter().filter_map(|view| {
        let value = view.readings.value(metric)?;
        Some((label(view), base(value)))
    });
    let devices: Vec<_> = devices.collect();
    let engines = view.engines.iter().filter_map(|view| {
        let value = view.readings.value(metric)?;
        Some((of_engine(view.engine), base(value)))
    });
    let engines: Vec<_> = engines.collect();
    if engines.is_empty() {
        put(registry, name, help, devices);
    } else {
        put(registry, name, help, engines);
    }
    let Some(help) = series.part else { return };
    let mut parts: Vec<(OfDevice, f64)> = Vec::new();
    for view in &view.devices {
        for (place, _) in view.holders() {
            let Some(part) = view.part(place, metric) else { continue };
            add(&mut parts, holder_label(view, place), base(part));
        }
    }
    put(registry, &format!("holder_{name}"), help, parts);
    // Nothing is left of a device that one has all of.
    let shared = view.devices.iter().filter(|view| view.sole_holder().is_none());
    let left = shared.filter_map(|view| Some((label(view), base(view.left(metric)?))));
    let help = format!("What of {name} no holder of the device has");
    put(registry, &format!("unattributed_{name}"), &help, left.collect());
}

/// A container that holds a device twice is one line with the sum.
fn add(parts: &mut Vec<(OfDevice, f64)>, label: OfDevice, value: f64) {
    match parts.iter_mut().find(|(known, _)| *known == label) {
        Some((_, sum)) => *sum += value,
        None => parts.push((label, value)),
    }
}

fn of_engine(engine: &Engine) -> OfEngine {
    let Engine { pod, labels, .. } = engine;
    let labels = match labels.is_empty() {
        true => Vec::new(),
        false => vec![("engine_labels", labels.to_string())],
    };
    OfEngine { namespace: pod.namespace.to_string(), pod: pod.name.to_string(), labels }
}

fn failures(registry: &mut Registry, view: &View<'_>) {
    let mut devices = Vec::new();
    for view in &view.devices {
        for (metric, _) in view.readings.failures() {
            devices.push((Failure { device: label(view), metric: metric.name() }, 1.0));
        }
    }
    put(registry, "reading_failed", "Metrics of the device that could not be read", devices);
    let mut engines = Vec::new();
    for view in &view.engines {
        for (metric, _) in view.readings.failures() {
            let engine = of_engine(view.engine);
            engines.push((EngineFailure { engine, metric: metric.name() }, 1.0));
        }
    }
    put(registry, "engine_reading_failed", "Metrics of the engine that could not be read", engines);
}

fn kubelet(registry: &mut Registry, counts: &Counts) {
    let help = "Calls to the kubelet that are over";
    registry.register("kubelet_lists", help, Counters(vec![(OfNode {}, counts.lists)]));
    let failures = Fault::ALL.iter().zip(counts.failures);
    let failures = failures.map(|(fault, count)| (Because { reason: fault.word() }, count));
    let help = "Calls to the kubelet that failed";
    registry.register("kubelet_list_failures", help, Counters(failures.collect()));
    let age = counts.age.map(|age| (OfNode {}, age.as_secs_f64()));
    let help = "Time since the kubelet confirmed who holds what";
    put(registry, "kubelet_list_age_seconds", help, age.into_iter().collect());
    #[expect(clippy::cast_precision_loss, reason = "a node has at most some thousands")]
    let unresolved = Why::ALL.iter().zip(counts.unresolved.map(|count| count as f64));
    let unresolved = unresolved.map(|(why, count)| (Because { reason: why.word() }, count));
    let help = "Devices that the kubelet gave to somebody and that are none of this node's";
    put(registry, "unresolved_devices", help, unresolved.collect());
}
