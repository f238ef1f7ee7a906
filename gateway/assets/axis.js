// Small pictures of one decision: value on an axis, pods in a row, a line of half an hour.

import { h, svg } from "./dom.js";
import { DASH, number, withUnit } from "./format.js";

/** What the HPA makes of it, in a few words. */
export function order(trigger) {
  const { desired, replicas } = trigger;
  if (desired === null || desired === undefined || replicas === null) return null;
  if (desired === replicas) return `= keeps ${replicas}`;
  return desired > replicas ? `↑ orders ${desired}` : `↓ orders ${desired}`;
}

/** Value against what keeps the replicas: a bar with a mark at 1. */
export function meter(trigger) {
  const { value, hold, target, unit, replicas } = trigger;
  if (value === null) return [h("span", { class: "bad" }, `✕ ${trigger.status}`)];
  const whole = hold ?? (replicas ? target * replicas : null);
  const text = h("div", {}, h("b", {}, withUnit(value, unit)), whole === null ? ` · target ${withUnit(target, unit)}` : ` of ${withUnit(whole, unit)}`);
  const wish = order(trigger);
  const said = h("div", { class: "note" }, wish ?? (replicas === 0 ? "at zero" : ""));
  if (!whole) return [text, said];
  const share = Math.min(value / whole, 2);
  const over = share > 1.1 ? " over" : "";
  const bar = svg("svg", { class: "meter", viewBox: "0 0 120 10", "aria-hidden": "true", preserveAspectRatio: "none" },
    svg("rect", { class: "track", width: 120, height: 10 }),
    svg("rect", { class: "tolerance", x: 54, width: 12, height: 10 }),
    svg("rect", { class: `fill${over}`, y: 2, width: (share * 60).toFixed(1), height: 6 }),
    svg("line", { class: "mark", x1: 60, x2: 60, y1: 0, y2: 10 }));
  return [text, bar, said];
}

const KINDS = [["reporting", "■"], ["starting", "◩"], ["waiting", "▢"], ["missing", "✕"], ["stuck", "!"]];

/** Pods of a trigger by state; those that wait for a place are not among those that start. */
export function states(trigger) {
  const { coverage, unscheduled } = trigger;
  if (!coverage) return [];
  const waiting = Math.min(unscheduled ?? 0, coverage.starting + coverage.stuck);
  const fromStuck = Math.max(0, waiting - coverage.starting);
  const counts = { reporting: coverage.reporting, starting: coverage.starting - (waiting - fromStuck), waiting, missing: coverage.missing, stuck: coverage.stuck - fromStuck };
  return KINDS.map(([kind, mark]) => [kind, mark, counts[kind]]).filter(([, , amount]) => amount > 0);
}

const WORDS = { reporting: "reporting", starting: "starting", waiting: "waiting for a place", missing: "missing", stuck: "stuck" };

/** One mark per pod, and the counts in words. */
export function pods(trigger) {
  if (trigger.replicas === null) return [DASH];
  const found = states(trigger);
  const marks = found.flatMap(([kind, mark, amount]) =>
    Array.from({ length: Math.min(amount, 12) }, () => h("span", { class: `pod ${kind}` }, mark)));
  const words = found.map(([kind, , amount]) => `${amount} ${WORDS[kind]}`).join(", ");
  return [h("div", { class: "podmarks", "aria-hidden": "true" }, marks), h("div", {}, `${trigger.replicas} ordered`),
    h("div", { class: "note" }, words || (trigger.replicas ? "no pod yet" : "scaled to zero"))];
}

/** Pieces of a line, broken where a point is not known. */
export function pieces(points, x, y) {
  let path = "";
  let isDown = false;
  points.forEach((point, at) => {
    if (point === null) {
      isDown = false;
      return;
    }
    path += `${isDown ? "L" : "M"}${x(at).toFixed(1)} ${y(point).toFixed(1)}`;
    // A point alone is a dot.
    if (!isDown && (points[at + 1] ?? null) === null) path += "h0.1";
    isDown = true;
  });
  return path;
}

/** Half an hour of the value, and what would have kept the replicas. */
export function spark(entry) {
  const value = entry?.value ?? [];
  if (!value.some((point) => point !== null)) return h("span", { class: "note" }, "nothing yet");
  const [width, height] = [110, 26];
  const known = [...value, ...entry.hold].filter((point) => point !== null);
  const most = Math.max(...known, 1e-9);
  const x = (at) => 1 + at * ((width - 2) / Math.max(value.length - 1, 1));
  const y = (point) => height - 2 - (point / most) * (height - 4);
  return svg("svg", { class: "spark", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `between ${number(Math.min(...value.filter((p) => p !== null)))} and ${number(Math.max(...value.filter((p) => p !== null)))}` },
    svg("path", { class: "hold", d: pieces(entry.hold, x, y) }), svg("path", { class: "value", d: pieces(value, x, y) }));
}

/** S, up, down, hold and the value on one axis, with the HPA's tolerance. */
export function axis(trigger, unit) {
  const { s, up, down, hold, value } = trigger;
  if (hold === null || hold === undefined) return null;
  const [width, left, right] = [720, 16, 16];
  const most = Math.max(s ?? 0, up, down, hold * 1.25, value ?? 0) * 1.08 || 1;
  const x = (amount) => left + (amount / most) * (width - left - right);
  const marks = [["S", s, "what reporting pods add up to"], ["up", up, "if unknown pods were idle"], ["down", down, "if unknown pods were at the target"],
    ["hold", hold, "keeps the replicas"], ["told", value, "what KEDA is told"]].filter(([, amount]) => amount !== null && amount !== undefined);
  const groups = new Map();
  for (const [name, amount] of marks) groups.set(amount, [...(groups.get(amount) ?? []), name]);
  const placed = [...groups].sort((a, b) => a[0] - b[0]);
  let lastEnd = [-1e9, -1e9, -1e9];
  const labels = placed.map(([amount, names]) => {
    const text = `${names.join(" = ")} ${number(amount)}`;
    const half = text.length * 3.9;
    const at = Math.min(Math.max(x(amount), left + half), width - right - half);
    let row = lastEnd.findIndex((end) => at - half > end + 8);
    if (row < 0) row = 2;
    lastEnd[row] = at + half;
    const isTold = names.includes("told");
    return svg("g", { class: `mark ${isTold ? "told" : names[0].toLowerCase()}` },
      svg("line", { x1: x(amount), x2: x(amount), y1: 24 + row * 18, y2: 84 }),
      svg("text", { x: at, y: 18 + row * 18, "text-anchor": "middle" }, text));
  });
  const between = up !== down && up !== undefined
    ? svg("rect", { class: "unknown", x: x(Math.min(up, down)), width: Math.abs(x(down) - x(up)), y: 70, height: 14 }) : null;
  const words = marks.map(([name, amount, meaning]) => `${name} ${withUnit(amount, unit)}: ${meaning}`).join("; ");
  return h("figure", { class: "axis" },
    svg("svg", { viewBox: `0 0 ${width} 112`, role: "img", "aria-label": words },
      svg("rect", { class: "track", x: left, y: 70, width: width - left - right, height: 14 }),
      svg("rect", { class: "tolerance", x: x(hold * 0.9), width: x(hold * 1.1) - x(hold * 0.9), y: 66, height: 22 }),
      between, labels,
      svg("text", { class: "end", x: left, y: 104 }, "0"),
      svg("text", { class: "end", x: width - right, y: 104, "text-anchor": "end" }, withUnit(most, unit))),
    h("figcaption", { class: "note" }, "Pale band: the HPA's tolerance of ±10 % round hold. Hatched: between up and down lies what unknown pods may do."));
}
