// Half an hour of one trigger on one axis of time: value, replicas, requests, tokens, first token.

import { h, svg } from "./dom.js";
import { DASH, clock, number } from "./format.js";
import { pieces } from "./axis.js";

const LEFT = 56;
const RIGHT = 12;
const GAP = 26;

const LANES = [
  { name: "Value", height: 92, lines: [["hold", "hold", "target × replicas"], ["value", "value", "value"]] },
  { name: "Replicas", height: 92, isWhole: true, lines: [["desired", "desired", "HPA wants"], ["ordered", "ordered", "ordered"], ["ready", "ready", "ready"]] },
  { name: "Requests", height: 80, lines: [["requestsRunning", "running", "running"], ["requestsWaiting", "waiting", "waiting"]] },
  { name: "Tokens/s", height: 56, lines: [["tokensPerSecond", "tokens", "tokens per second"]] },
  { name: "First token, ms", height: 56, lines: [["timeToFirstTokenMs", "first", "time to first token, ms"]] },
];

function known(column) {
  return (column ?? []).filter((point) => point !== null);
}

/** The path of steps: a count is what it is until it is another. */
function steps(points, x, y) {
  let path = "";
  let before = null;
  points.forEach((point, at) => {
    if (point === null) before = null;
    else {
      path += before === null ? `M${x(at).toFixed(1)} ${y(point).toFixed(1)}` : `H${x(at).toFixed(1)}V${y(point).toFixed(1)}`;
      before = point;
    }
  });
  return path;
}

/** Spans in which `is` holds, as [from, to) places. */
function spans(length, is) {
  const found = [];
  for (let at = 0; at < length; at += 1) {
    if (!is(at)) continue;
    const last = found.at(-1);
    if (last && last[1] === at) last[1] = at + 1;
    else found.push([at, at + 1]);
  }
  return found;
}

function patterns() {
  const hatch = (id, kind, size) => svg("pattern", { id, width: size, height: size, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
    svg("rect", { class: `${kind} ground`, width: size, height: size }), svg("line", { class: `${kind} stroke`, x1: 0, x2: 0, y1: 0, y2: size }));
  return svg("defs", {}, hatch("hatch-place", "place", 6), hatch("hatch-start", "start", 10));
}

export class Chart {
  constructor() {
    this.readout = h("output", { class: "readout" });
    this.box = h("div", { class: "chart" });
    this.legend = h("p", { class: "legend" });
    this.root = h("div", {}, this.legend, this.box, this.readout);
    this.at = null;
    this.box.addEventListener("pointermove", (event) => this.point(event));
    this.box.addEventListener("pointerleave", () => this.cursor(null));
    this.box.addEventListener("keydown", (event) => this.key(event));
  }

  /** Draws `history` with the changes in `entries`. */
  draw(history, entries) {
    this.history = history;
    const { columns, everySeconds } = history;
    const length = columns.value.length;
    // A young history fills at least ten minutes, so that it does not jump about.
    const slots = Math.max(length, 120);
    const width = Math.max(320, this.box.clientWidth || 720);
    this.width = width;
    this.slots = slots;
    this.x = (at) => LEFT + ((slots - length + at) / (slots - 1)) * (width - LEFT - RIGHT);
    const until = Date.parse(history.until);
    this.time = (at) => until - (length - 1 - at) * everySeconds * 1000;
    this.place = (time) => length - 1 - (until - time) / (everySeconds * 1000);
    const lanes = LANES.filter((lane) => lane.lines.some(([column]) => known(columns[column]).length));
    const parts = [patterns()];
    let top = 34;
    for (const lane of lanes) {
      parts.push(this.lane(lane, top));
      top += lane.height + GAP;
    }
    this.bottom = top - GAP + 4;
    parts.push(this.times(until, everySeconds), this.events(entries), (this.line = svg("line", { class: "cursor", y1: 14, y2: this.bottom, visibility: "hidden" })));
    const hadFocus = this.box.contains(document.activeElement);
    const picture = svg("svg", { width, height: this.bottom + 22, viewBox: `0 0 ${width} ${this.bottom + 22}`, tabindex: 0, role: "slider",
      "aria-label": "Timeline; arrow keys move along it", "aria-valuemin": 0, "aria-valuemax": length - 1, "aria-valuenow": this.at ?? length - 1 });
    picture.append(...parts);
    this.picture = picture;
    this.box.replaceChildren(picture);
    if (hadFocus) picture.focus({ preventScroll: true });
    this.explain(lanes);
    this.cursor(this.at === null ? null : Math.min(this.at, length - 1));
  }

  lane(lane, top) {
    const { columns } = this.history;
    const most = Math.max(...lane.lines.flatMap(([column]) => known(columns[column])), lane.isWhole ? 1 : 1e-9) * 1.08;
    const y = (value) => top + lane.height - (value / most) * lane.height;
    const group = svg("g", {}, svg("rect", { class: "ground", x: LEFT, y: top, width: this.width - LEFT - RIGHT, height: lane.height }));
    const length = columns.value.length;
    // What is so at the newest moment does not reach into the time to come.
    const box = (kind, [from, to], high, low) => svg("rect", { class: kind, x: this.x(from), width: Math.max(1.5, this.x(Math.min(to, length - 1)) - this.x(from)), y: high, height: Math.max(0, low - high) });
    const waits = (at) => (columns.unscheduled[at] ?? 0) > 0;
    const starts = (at) => !waits(at) && (columns.starting[at] ?? 0) > 0;
    if (lane.name === "Requests") {
      spans(length, waits).forEach((span) => group.append(box("place", span, top, top + lane.height)));
      spans(length, starts).forEach((span) => group.append(box("start", span, top, top + lane.height)));
    }
    if (lane.isWhole) {
      for (let at = 0; at < length; at += 1) {
        const [ready, ordered] = [columns.ready[at], columns.ordered[at]];
        if (ready === null || ordered === null) continue;
        group.append(box("readyarea", [at, at + 1], y(ready), y(0)));
        const short = ordered - ready;
        const waiting = Math.min(columns.unscheduled[at] ?? 0, Math.max(0, short));
        if (waiting > 0) group.append(box("place", [at, at + 1], y(ordered), y(ordered - waiting)));
        if (short > waiting) group.append(box("start", [at, at + 1], y(ordered - waiting), y(ready)));
      }
    }
    for (const [column, kind] of lane.lines) {
      const draw = lane.isWhole || column === "hold" ? steps : pieces;
      group.append(svg("path", { class: `line ${kind}`, d: draw(columns[column] ?? [], this.x, y) }));
    }
    group.append(svg("text", { class: "lane", x: LEFT, y: top - 6 }, lane.name),
      svg("text", { class: "tick", x: LEFT - 6, y: top + 9, "text-anchor": "end" }, number(most / 1.08)),
      svg("text", { class: "tick", x: LEFT - 6, y: top + lane.height, "text-anchor": "end" }, "0"));
    return group;
  }

  times(until, every) {
    const group = svg("g", {});
    const step = this.width < 560 ? 600_000 : 300_000;
    const first = this.time(this.history.columns.value.length - this.slots);
    for (let time = Math.ceil(first / step) * step; time <= until; time += step) {
      const x = this.x(this.place(time));
      group.append(svg("line", { class: "grid", x1: x, x2: x, y1: 30, y2: this.bottom }),
        svg("text", { class: "tick", x, y: this.bottom + 15, "text-anchor": "middle" }, clock(time).slice(0, 5)));
    }
    return group;
  }

  /** Activations and changes of what is ordered, at the top. */
  events(entries) {
    const group = svg("g", {});
    let before = null;
    let wasActive = null;
    for (const entry of entries) {
      // What was not known before is no edge.
      const isEdge = wasActive !== null && entry.active !== null && entry.active !== wasActive;
      wasActive = entry.active ?? wasActive;
      const [kind, mark] = isEdge ? [entry.active ? "act" : "deact", entry.active ? "▲" : "▽"]
        : entry.changed.includes("ordered") ? ["scale", (before?.replicas ?? 0) < (entry.replicas ?? 0) ? "↑" : "↓"] : [null, ""];
      before = entry;
      const x = this.x(this.place(Date.parse(entry.at)));
      if (!kind || x < LEFT) continue;
      group.append(svg("line", { class: `event ${kind}`, x1: x, x2: x, y1: 16, y2: this.bottom }),
        svg("text", { class: `event ${kind}`, x, y: 13, "text-anchor": "middle" }, mark));
    }
    return group;
  }

  explain(lanes) {
    const key = lanes.map((lane) => lane.name).join();
    if (this.legend.key === key) return;
    this.legend.key = key;
    const swatch = (kind, text) => [svg("svg", { class: "swatch", viewBox: "0 0 22 10", "aria-hidden": "true" }, svg("path", { class: `line ${kind}`, d: "M0 5H22" })), text];
    const area = (kind, text) => [svg("svg", { class: "swatch", viewBox: "0 0 22 10", "aria-hidden": "true" }, svg("rect", { class: kind, width: 22, height: 10 })), text];
    const lines = lanes.flatMap((lane) => lane.lines.map(([, kind, text]) => swatch(kind, text)));
    const items = [...lines, area("start", "pods starting"), area("place", "pods wait for a GPU or place"),
      ["▲ becomes active"], ["▽ becomes idle"], ["↑↓ replicas ordered"]];
    this.legend.replaceChildren(...items.map((item) => h("span", { class: "item" }, item)));
  }

  point(event) {
    const box = this.picture?.getBoundingClientRect();
    if (!box) return;
    const length = this.history.columns.value.length;
    const at = Math.round(((event.clientX - box.left - LEFT) / (this.width - LEFT - RIGHT)) * (this.slots - 1)) - (this.slots - length);
    this.cursor(Math.max(0, Math.min(length - 1, at)));
  }

  key(event) {
    const length = this.history.columns.value.length;
    const now = this.at ?? length - 1;
    const to = { ArrowLeft: now - 1, ArrowRight: now + 1, PageUp: now - 12, PageDown: now + 12, Home: 0, End: length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    this.cursor(Math.max(0, Math.min(length - 1, to)));
  }

  /** Says what was so at a moment; at the newest where none is pointed at. */
  cursor(at) {
    this.at = at;
    const { columns } = this.history;
    const shown = at ?? columns.value.length - 1;
    const value = (column) => (columns[column]?.[shown] ?? null);
    const say = (column, word) => (value(column) === null ? null : `${number(value(column))} ${word}`);
    const parts = [`value ${number(value("value"))}`, value("hold") === null ? null : `hold ${number(value("hold"))}`, value("desired") === null ? null : `HPA wants ${value("desired")}`,
      say("ordered", "ordered"), say("ready", "ready"), value("starting") ? say("starting", "starting") : null, value("unscheduled") ? say("unscheduled", "waiting for a place") : null,
      say("requestsWaiting", "requests waiting"), say("requestsRunning", "running"), say("tokensPerSecond", "tokens/s"), say("timeToFirstTokenMs", "ms to first token"),
      value("active") === null ? `activity ${DASH}` : value("active") ? "active" : "idle"].filter(Boolean);
    const text = `${clock(this.time(shown))}: ${parts.join(" · ")}`;
    if (this.readout.textContent !== text) this.readout.textContent = text;
    this.picture?.setAttribute("aria-valuenow", Math.max(0, shown));
    this.picture?.setAttribute("aria-valuetext", text);
    if (at === null) this.line?.setAttribute("visibility", "hidden");
    else for (const [name, to] of [["x1", this.x(at)], ["x2", this.x(at)], ["visibility", "visible"]]) this.line.setAttribute(name, to);
  }
}
