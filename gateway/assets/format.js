// Numbers with their units, ages and names, as people read them. What is not known is a dash.

export const DASH = "–";

const UNITS = new Map();

/** Learns the units of metrics, from a shape. */
export function learn(metrics) {
  for (const [name, unit] of metrics) UNITS.set(name, unit);
}

/** At most four digits, grouped; `null` is a dash. */
export function number(value) {
  if (value === null || value === undefined) return DASH;
  const size = Math.abs(value);
  const digits = size >= 100 ? 0 : size >= 10 ? 1 : 2;
  return value.toLocaleString("en", { maximumFractionDigits: digits });
}

/** A number with a unit. */
export function withUnit(value, unit) {
  if (value === null || value === undefined) return DASH;
  return unit ? `${number(value)} ${unit}` : number(value);
}

/** The unit that readings of a metric are shown in. */
export function unitOf(metric) {
  const unit = UNITS.get(metric) ?? "";
  return unit === "MiB" ? "GiB" : unit;
}

/** A reading of a device in the unit of its metric; memory in GiB. */
export function reading(metric, value) {
  const unit = UNITS.get(metric) ?? "";
  if (unit === "MiB" && value !== null && value !== undefined) return `${number(value / 1024)} GiB`;
  return withUnit(value, unit);
}

/** `gpu_utilization` → `GPU utilization`. */
export function metricName(metric) {
  // A composite's name has its targets: `gpu_utilization.70-kv_cache_usage.80`.
  const plain = (metric ?? "").replace(/\.(\d+(?:\.\d+)?)-(?=[a-z])/g, " $1,").replace(/\.(\d+(?:\.\d+)?)$/, " $1");
  const words = plain.replaceAll("_", " ").replaceAll(",", ", ").replace(/ (percent|mib|mhz|kbps|mbps|ms)$/, "");
  const upper = words.replace(/\b(gpu|sm|pcie|kv)\b/g, (word) => word.toUpperCase());
  return upper.charAt(0).toUpperCase() + upper.slice(1);
}

/** `INVALID_ARGUMENT` → `invalid argument`, which breaks between words. */
export function statusName(status) {
  return (status ?? "").toLowerCase().replaceAll("_", " ");
}

/** Seconds as one unit, or two where it matters. */
export function span(seconds) {
  if (seconds === null || seconds === undefined) return DASH;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${(seconds / 3600).toFixed(1)} h`;
  return `${Math.round(seconds / 86400)} d`;
}

/** Joules as J, kJ, Wh or kWh. */
export function energy(joules) {
  if (joules === null || joules === undefined) return DASH;
  if (joules < 1000) return `${number(joules)} J`;
  const wh = joules / 3600;
  if (wh < 1) return `${number(joules / 1000)} kJ`;
  return wh < 1000 ? `${number(wh)} Wh` : `${number(wh / 1000)} kWh`;
}

/** Seconds of GPUs as GPU-hours, or minutes where they are few. */
export function gpuHours(seconds) {
  if (seconds === null || seconds === undefined) return DASH;
  return seconds < 3600 ? `${number(seconds / 60)} GPU-min` : `${number(seconds / 3600)} GPU-h`;
}

/** The time of day. */
export function clock(moment) {
  return new Date(moment).toLocaleTimeString("en-GB");
}

/** `1 pod`, `2 pods`. */
export function count(amount, word) {
  return `${number(amount)} ${word}${amount === 1 ? "" : "s"}`;
}

/** Where the page of a ScaledObject is. */
export function linkTo(namespace, name) {
  return `#/workload/${encodeURIComponent(namespace)}/${encodeURIComponent(name)}`;
}
