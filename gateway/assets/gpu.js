// One device: what is read of it, who holds it, and where the way to the explanation begins.

import { h } from "./dom.js";
import { linkTo, metricName, number, reading, span } from "./format.js";
import { look } from "./heat.js";

const SOURCES = {
  kubelet: "given by the kubelet",
  dra: "claimed through DRA",
  process: "measured by its processes",
  memory: "split by memory",
  equal: "split equally",
  replay: "from a recording",
  file: "from a file",
  simulated: "simulated",
};

function holder(held) {
  const share = held.share === null ? "share not known" : `${number(held.share * 100)} % share`;
  const basis = `${share}, ${SOURCES[held.source] ?? held.source}${held.estimated ? " (an estimate)" : ""}`;
  const links = held.by.map((name) =>
    h("a", { class: "why", href: linkTo(held.ns, name) }, "Why this many replicas: ", h("bdi", {}, name)));
  return h("li", {}, h("bdi", { class: "name" }, `${held.ns}/${held.pod}`), h("span", { class: "note" }, ` container ${held.container}`),
    h("p", { class: "note" }, basis),
    held.undeclared ? h("p", { class: "warn" }, "▲ uses this GPU without having been given it") : null,
    links.length ? links : h("p", { class: "note" }, "No ScaledObject scales this pod."));
}

function marks(gpu, seen, age) {
  const marks = [];
  if (seen.state === "lost") marks.push(["bad", "✕ lost: the driver cannot reach it"]);
  for (const remark of gpu.health ?? []) marks.push(["bad", `! ${remark}`]);
  if (seen.state === "failed") marks.push(["bad", `✕ failed: ${seen.why ?? "a reading failed"}`]);
  if (seen.state === "stale") marks.push(["warn", `? stale: the node last spoke ${span(age)} ago`]);
  if (seen.state === "unread") marks.push(["warn", "– never read"]);
  if (seen.isThrottled) {
    marks.push(["warn", `▲ throttled${seen.throttledBy ? ` by ${seen.throttledBy}` : ""} ${number(seen.value("throttled_percent"))} % of the time: its utilisation says more than it does`]);
  }
  if (seen.isClaimedTwice) marks.push(["bad", "‼ two nodes claim this device, and only one can have it"]);
  if (gpu.reason) marks.push(["warn", gpu.reason]);
  return marks.map(([kind, text]) => h("p", { class: kind }, text));
}

/** The panel of the device at `at`. */
export function panel(shape, tick, at, isPinned, unpin) {
  const { node, gpu } = find(shape, at);
  if (!gpu) return [h("p", { class: "note" }, "Point at a GPU, or reach it with Tab and the arrow keys, to see what is known of it.")];
  const seen = look(shape, tick, at, gpu);
  const place = shape.nodes.indexOf(node);
  const readings = shape.metrics.filter(([metric]) => seen.value(metric) !== null);
  const holders = gpu.holders.length
    ? h("ul", { class: "holders" }, gpu.holders.map(holder))
    : h("p", { class: "note" }, seen.isFree ? "Free: nobody holds it." : gpu.isCut ? "Cut into MIG instances, which are listed by themselves." : "Who holds it is not known.");
  return [
    h("h2", {}, `GPU ${gpu.index} on `, h("bdi", {}, node.name)),
    h("p", {}, gpu.model, gpu.mig ? ` · MIG ${gpu.mig}` : ""),
    h("p", { class: "note mono" }, gpu.uuid),
    isPinned ? h("button", { type: "button", class: "small", onclick: unpin }, "Follow the pointer again") : null,
    marks(gpu, seen, (tick.ages[place] ?? 0) / 1000),
    h("h3", {}, "Held by"),
    holders,
    h("h3", {}, "Readings"),
    readings.length
      ? h("dl", { class: "readings" }, readings.map(([metric]) => [h("dt", {}, metricName(metric)), h("dd", {}, reading(metric, seen.value(metric)))]))
      : h("p", { class: "note" }, "Nothing has been read of it yet."),
  ];
}

/** The node and device at `at` of the whole list. */
export function find(shape, at) {
  let from = 0;
  for (const node of shape.nodes) {
    if (at < from + node.gpus.length) return { node, gpu: at < 0 ? undefined : node.gpus[at - from] };
    from += node.gpus.length;
  }
  return {};
}
