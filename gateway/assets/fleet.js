// The fleet: every GPU by node, coloured by a metric, and one of them in detail.

import { empty, h, setText } from "./dom.js";
import { count, metricName, number, reading, span, unitOf } from "./format.js";
import { find, panel } from "./gpu.js";
import { Heat, look, scaleOf } from "./heat.js";
import { state } from "./live.js";

export const title = "Fleet";
const LISTED = 6;

const ORDERS = {
  name: "by name",
  hot: "hottest first",
  free: "most free first",
};

export function open(root) {
  return new Fleet(root);
}

class Fleet {
  constructor(root) {
    this.title = title;
    this.metric = localStorage.getItem("metric") ?? "gpu_utilization";
    this.order = "name";
    this.wanted = "";
    this.shown = -1;
    this.pinned = null;
    this.heat = new Heat((at) => this.show(at), (at) => this.pin(at));
    this.facts = h("dl", { class: "facts" });
    this.troubles = h("section", { class: "troubles", "aria-label": "GPUs that need attention" });
    this.legend = h("p", { class: "legend" });
    this.panel = h("aside", { class: "panel", "aria-label": "One GPU" });
    this.metrics = h("select", { id: "metric", onchange: (event) => this.choose(event.target.value) });
    const orders = h("select", { id: "order", onchange: (event) => this.sort(event.target.value) },
      Object.entries(ORDERS).map(([value, text]) => h("option", { value }, text)));
    const filter = h("input", { id: "filter", type: "search", placeholder: "node, pod, namespace or model",
      oninput: (event) => this.filter(event.target.value) });
    this.none = h("p", { class: "note", hidden: true }, "No node matches. Clear the filter to see all of them.");
    this.body = h("div", { class: "split" },
      h("div", {}, this.legend, this.none, this.heat.root), this.panel);
    this.tools = h("div", { class: "tools" }, h("label", { for: "metric" }, "Colour by"), this.metrics,
      h("label", { for: "order" }, "Nodes"), orders, h("label", { for: "filter" }, "Show"), filter);
    this.empty = h("div", {});
    root.append(h("h1", {}, "Fleet"), this.facts, this.troubles, this.tools, this.empty, this.body);
    this.update("none");
  }

  choose(metric) {
    this.metric = metric;
    localStorage.setItem("metric", metric);
    this.update("tick");
  }

  sort(order) {
    this.order = order;
    this.arrange();
  }

  filter(text) {
    this.wanted = text.trim().toLowerCase();
    this.arrange();
  }

  show(at) {
    if (this.pinned !== null) return;
    this.shown = at;
    this.paint();
  }

  pin(at) {
    this.pinned = at;
    this.shown = at;
    this.paint();
    this.panel.scrollIntoView({ block: "nearest" });
  }

  paint() {
    const { shape, tick } = state;
    if (!shape || !tick) return;
    const focused = this.panel.contains(document.activeElement) ? document.activeElement.textContent : null;
    const unpin = () => {
      this.pinned = null;
      this.heat.focus(this.shown);
      this.paint();
    };
    this.panel.replaceChildren(...panel(shape, tick, this.shown, this.pinned !== null, unpin).flat().filter(Boolean));
    if (focused) [...this.panel.querySelectorAll("a, button")].find((item) => item.textContent === focused)?.focus();
  }

  update(what) {
    const { shape, tick } = state;
    const has = Boolean(shape?.nodes.length);
    this.body.hidden = this.tools.hidden = this.facts.hidden = !has || !tick;
    this.troubles.hidden = this.body.hidden;
    if (!has) {
      if (shape) this.empty.replaceChildren(nobody());
      return;
    }
    this.empty.replaceChildren();
    if (what === "shape") {
      const uuid = this.shown >= 0 ? this.uuid : null;
      this.heat.shape(shape);
      const again = this.heat.cells.find((cell) => cell.gpu.uuid === uuid);
      this.shown = again ? again.at : -1;
      this.pinned = this.pinned !== null && again ? again.at : null;
      this.arrange();
    }
    if (!tick || tick.states.length !== this.heat.cells.length) return;
    this.options(shape, tick);
    const unit = shape.metrics.find(([metric]) => metric === this.metric)?.[1] ?? "";
    const scale = scaleOf(this.metric, unit, tick);
    this.heat.tick(shape, tick, this.metric, scale);
    this.heat.root.childNodes.forEach((section) => {
      const age = tick.ages[shape.nodes.indexOf(section.node)];
      const isLate = age === null || age > 5000;
      setText(section.age, isLate ? (age === null ? "silent" : `${span(age / 1000)} ago`) : "");
    });
    if (this.order !== "name" && what === "tick" && !this.heat.root.contains(document.activeElement)) this.arrange();
    this.explainColours(scale);
    this.sum(shape, tick);
    this.uuid = this.shown >= 0 ? find(shape, this.shown).gpu?.uuid : null;
    if (!this.panel.contains(document.activeElement) || this.panel.children.length < 2) this.paint();
  }

  options(shape, tick) {
    const metrics = shape.metrics.map(([metric]) => metric).filter((metric) => metric in tick.readings);
    if (!metrics.includes(this.metric) && metrics.length) this.metric = metrics[0];
    const known = [...this.metrics.options].map((option) => option.value);
    if (known.join() !== metrics.join()) {
      this.metrics.replaceChildren(...metrics.map((metric) => h("option", { value: metric }, `${metricName(metric)}, ${unitOf(metric)}`)));
    }
    this.metrics.value = this.metric;
  }

  arrange() {
    const { shape, tick } = state;
    if (!shape) return;
    const text = (section) => [section.node.name, ...section.node.gpus.flatMap((gpu) =>
      [gpu.model, gpu.uuid, ...gpu.holders.map((holder) => `${holder.ns}/${holder.pod}`)])].join(" ").toLowerCase();
    const rank = {
      name: () => 0,
      hot: (section) => -Math.max(0, ...section.cells.map((cell) => tick?.readings[this.metric]?.[cell.at] ?? 0)),
      free: (section) => -section.cells.filter((cell) => look(shape, tick, cell.at, cell.gpu).isFree).length,
    }[this.order];
    const place = (section) => shape.nodes.indexOf(section.node);
    const ranks = new Map([...this.heat.root.children].map((section) => [section, [rank(section), place(section)]]));
    const compare = (a, b) => ranks.get(a)[0] - ranks.get(b)[0] || ranks.get(a)[1] - ranks.get(b)[1];
    this.heat.arrange((section) => !this.wanted || text(section).includes(this.wanted), compare);
    this.none.hidden = [...this.heat.root.children].some((section) => !section.hidden);
  }

  explainColours(scale) {
    const end = reading(this.metric, scale);
    if (this.legend.end === `${this.metric} ${end}`) return;
    this.legend.end = `${this.metric} ${end}`;
    const steps = Array.from({ length: 10 }, (_, step) => h("span", { class: `swatch h${step}` }));
    const mark = (name, text, word) => [h("span", { class: "mark" }, h("span", { class: `swatch ${name}` }, text), ` ${word}`)];
    this.legend.replaceChildren(metricName(this.metric), " ", "0 ", h("span", { class: "steps", "aria-hidden": "true" }, steps), ` ${end}`,
      h("span", { class: "marks" }, ...mark("free h0", "", "free"), ...mark("throttled", "▲", "throttled"), ...mark("unwell", "!", "errors reported"),
        ...mark("stale", "?", "stale"), ...mark("failed", "✕", "failed or lost"), ...mark("unread", "–", "not read")));
  }

  sum(shape, tick) {
    const cells = this.heat.cells.map((cell) => ({ cell, seen: look(shape, tick, cell.at, cell.gpu) }));
    const busy = cells.map(({ seen }) => seen.value("gpu_utilization")).filter((value) => value !== null);
    const mean = busy.length ? busy.reduce((sum, value) => sum + value, 0) / busy.length : null;
    const watts = cells.map(({ seen }) => seen.value("power_draw")).filter((value) => value !== null);
    const power = watts.length ? watts.reduce((sum, value) => sum + value, 0) : null;
    const free = Object.entries(tick.free);
    const bad = cells.filter(({ seen }) => seen.state !== "ok" || seen.isThrottled || seen.isUnwell || seen.isClaimedTwice);
    const facts = [
      ["GPUs", `${number(cells.length)} on ${count(shape.nodes.length, "node")}`],
      ["Free", free.map(([model, amount]) => `${number(amount)} ${model}`).join(", ") || "none"],
      ["Mean utilization", mean === null ? "–" : `${number(mean)} %${some(busy, cells)}`],
      ["Power", power === null ? "–" : `${power >= 1000 ? `${number(power / 1000)} kW` : `${number(power)} W`}${some(watts, cells)}`],
      ["Need attention", bad.length ? count(bad.length, "GPU") : "none"],
    ];
    const text = facts.flat().join("|");
    if (this.facts.text !== text) {
      this.facts.text = text;
      this.facts.replaceChildren(...facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
    }
    this.list(bad);
  }

  list(bad) {
    const what = ({ cell, seen }) => [seen.isClaimedTwice ? "claimed by two nodes" : null, seen.state === "ok" ? null : seen.why ?? seen.state,
      seen.isThrottled ? `throttled${seen.throttledBy ? ` by ${seen.throttledBy}` : ""}` : null, ...(cell.gpu.health ?? [])].filter(Boolean).join(", ");
    const shown = bad.slice(0, LISTED).map((trouble) => [trouble, what(trouble)]);
    const key = shown.map(([{ cell }, text]) => cell.gpu.uuid + text).join() + bad.length;
    if (this.troubles.key === key || this.troubles.contains(document.activeElement)) return;
    this.troubles.key = key;
    const items = shown.map(([{ cell }, text]) => h("li", {}, h("button", { type: "button", class: "small",
      onclick: () => { this.pin(cell.at); this.heat.focus(cell.at); } }, `GPU ${cell.gpu.index} on ${cell.node.name}`), ` ${text}`));
    if (bad.length > LISTED) items.push(h("li", { class: "note" }, `and ${bad.length - LISTED} more`));
    this.troubles.replaceChildren(...(items.length ? [h("ul", {}, items)] : []));
  }
}

function nobody() {
  return empty("No agent has connected yet",
    "An agent runs on every GPU node and pushes what its GPUs do to port 6001 of this gateway.",
    "In a cluster: see that the DaemonSet gpu-agent has a pod on each GPU node. By hand: gpu-agent run --gateway http://THIS-HOST:6001",
    "Where an agent runs and nothing comes: gpu-agent doctor says where the way is broken.");
}

/** That a figure is made of some only, where it is. */
function some(known, all) {
  return known.length === all.length ? "" : ` (${number(known.length)} of ${count(all.length, "GPU")})`;
}
