// Nodes × GPUs as buttons, coloured by a metric. Buttons are kept and only what changed is touched.

import { h, setClass, setText } from "./dom.js";
import { number, unitOf } from "./format.js";

const STATES = { s: "stale", f: "failed", l: "lost", u: "unread" };
const MARKS = { stale: "?", failed: "✕", lost: "✕", unread: "–" };
/** Below this a clock that is held down for moments is no news. */
export const THROTTLED_FROM = 5;

/** Everything the picture says of the device at `at`. */
export function look(shape, tick, at, gpu) {
  const value = (metric) => tick.readings[metric]?.[at] ?? null;
  const throttled = value("throttled_percent");
  return {
    state: STATES[tick.states[at]] ?? "ok",
    why: tick.why[at] ?? null,
    value,
    isFree: gpu.holders.length === 0 && !gpu.reason && !gpu.isCut && tick.states[at] === "o",
    throttledBy: tick.throttledBy[at] ?? null,
    isUnwell: Boolean(gpu.health?.length),
    isThrottled: throttled !== null && throttled >= THROTTLED_FROM,
    isClaimedTwice: tick.conflicts.includes(gpu.uuid),
  };
}

/** The end of the scale: 100 for percents, else the largest value, rounded up. */
export function scaleOf(metric, unit, tick) {
  if (unit === "%") return 100;
  const most = (tick.readings[metric] ?? []).reduce((most, value) => Math.max(most, value ?? 0), 0);
  if (most === 0) return 1;
  const step = 10 ** Math.floor(Math.log10(most));
  return Math.ceil(most / step) * step;
}

export class Heat {
  constructor(onPeek, onPick) {
    this.root = h("div", { class: "nodes" });
    this.cells = [];
    this.home = null;
    this.labelled = new Set();
    const cellOf = (event) => event.target.closest?.("button.gpu")?.cell;
    this.root.addEventListener("focusin", (event) => cellOf(event) && this.peek(cellOf(event), onPeek, true));
    this.root.addEventListener("pointerover", (event) => cellOf(event) && this.peek(cellOf(event), onPeek, false));
    this.root.addEventListener("click", (event) => cellOf(event) && onPick(cellOf(event).at));
    this.root.addEventListener("keydown", (event) => this.move(event));
  }

  peek(cell, onPeek, hasFocus) {
    if (hasFocus) this.makeHome(cell);
    onPeek(cell.at);
  }

  /** One cell only is reached with Tab; arrows lead to the others. */
  makeHome(cell) {
    if (this.home) this.home.button.tabIndex = -1;
    this.home = cell;
    cell.button.tabIndex = 0;
  }

  move(event) {
    const cell = document.activeElement?.cell;
    if (!cell) return;
    const visible = this.cells.filter((other) => !other.section.hidden);
    const place = visible.indexOf(cell);
    const row = (step) => {
      const sections = [...new Set(visible.map((other) => other.section))];
      const next = sections[sections.indexOf(cell.section) + step];
      const own = visible.filter((other) => other.section === next);
      return own[Math.min(cell.column, own.length - 1)];
    };
    const to = { ArrowRight: () => visible[place + 1], ArrowLeft: () => visible[place - 1], ArrowDown: () => row(1),
      ArrowUp: () => row(-1), Home: () => visible[0], End: () => visible.at(-1) }[event.key]?.();
    if (!to) return;
    event.preventDefault();
    to.button.focus();
  }

  /** Lays out the nodes. */
  shape(shape) {
    const focused = document.activeElement?.cell?.gpu.uuid;
    this.cells = [];
    this.home = null;
    let at = 0;
    const cut = new Set(shape.nodes.flatMap((node) => node.gpus.map((gpu) => gpu.parent)));
    const sections = shape.nodes.map((node) => {
      const age = h("span", { class: "age" });
      const section = h("section", { class: "node" }, h("h2", { title: node.name }, h("bdi", {}, node.name), age));
      const row = h("div", { class: "gpus" });
      node.gpus.forEach((gpu, column) => {
        gpu.isCut = cut.has(gpu.uuid);
        const value = h("span", { class: "v" });
        const nobody = gpu.isCut ? "cut up" : gpu.reason ? "not known" : "free";
        const who = h("span", { class: "who", "aria-hidden": "true" }, gpu.holders.map((holder) => holder.pod).join(", ") || nobody);
        const more = h("span", { class: "hidden" });
        const button = h("button", { type: "button", class: "gpu", tabindex: -1 }, value, more, who);
        button.cell = { at, node, gpu, column, button, value, more, section, who: nobody === "free" && !gpu.holders.length ? who : null };
        this.cells.push(button.cell);
        row.append(button);
        at += 1;
      });
      if (node.gpus.length === 0) row.append(h("p", { class: "note" }, node.reason ?? "no GPUs"));
      section.append(row);
      Object.assign(section, { node, age, cells: this.cells.slice(at - node.gpus.length) });
      return section;
    });
    this.root.replaceChildren(...sections);
    this.root.dataset.density = shape.nodes.length <= 8 ? "roomy" : shape.nodes.length <= 60 ? "close" : "dense";
    const home = this.cells.find((cell) => cell.gpu.uuid === focused) ?? this.cells[0];
    if (home) this.makeHome(home);
    if (focused && home?.gpu.uuid === focused) home.button.focus({ preventScroll: true });
  }

  /** Colours the cells. */
  tick(shape, tick, metric, scale) {
    const isSmall = this.cells.length <= 256;
    for (const cell of this.cells) {
      const seen = look(shape, tick, cell.at, cell.gpu);
      const value = seen.value(metric);
      const step = value === null ? "none" : Math.min(9, Math.floor((value / scale) * 10));
      let name = `gpu h${step}`;
      if (seen.state !== "ok") name += ` ${seen.state}`;
      if (seen.isFree) name += " free";
      if (seen.isThrottled) name += " throttled";
      if (seen.isUnwell) name += " unwell";
      if (seen.isClaimedTwice) name += " twice";
      setClass(cell.button, name);
      const mark = seen.isClaimedTwice ? "‼" : MARKS[seen.state];
      const short = metric.endsWith("_mib") && value !== null ? number(value / 1024) : number(value === null ? null : Math.round(value));
      setText(cell.value, mark ?? `${seen.isUnwell ? "!" : ""}${seen.isThrottled ? "▲" : ""}${short}`);
      const unit = mark || value === null ? "" : ` ${unitOf(metric)}`;
      if (cell.who) setText(cell.who, seen.isFree ? "free" : "no holder");
      if (isSmall || cell.button === document.activeElement || !cell.more.firstChild) this.label(cell, seen, unit);
    }
  }

  /** What is said of a cell beside its number to those who do not see it. */
  label(cell, seen, unit) {
    const holders = cell.gpu.holders.map((holder) => `${holder.ns}/${holder.pod}`).join(", ");
    const nobody = seen.isFree ? "free" : cell.gpu.isCut ? "cut into instances" : "holders not known";
    const who = holders ? `held by ${holders}` : nobody;
    const marks = [seen.state === "ok" ? null : seen.state, seen.isThrottled ? "throttled" : null,
      seen.isUnwell ? "unwell" : null, seen.isClaimedTwice ? "claimed by two nodes" : null].filter(Boolean).map((mark) => `, ${mark}`).join("");
    setText(cell.more, `${unit}, GPU ${cell.gpu.index} on ${cell.node.name}, ${who}${marks}`);
  }

  /** Shows only nodes that `isWanted`, and in that order. */
  arrange(isWanted, compare) {
    const sections = [...this.root.children];
    for (const section of sections) section.hidden = !isWanted(section);
    const sorted = [...sections].sort(compare);
    if (sorted.some((section, place) => section !== sections[place])) {
      const focused = document.activeElement;
      this.root.append(...sorted);
      this.cells = sorted.flatMap((section) => section.cells);
      if (focused?.cell) focused.focus({ preventScroll: true });
    }
  }

  /** Leads to one device. */
  focus(at) {
    this.cells.find((cell) => cell.at === at)?.button.focus();
  }
}
