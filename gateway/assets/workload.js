// One ScaledObject: why it has the replicas it has, and how it came to be so.

import { json, poll } from "./api.js";
import { axis, order, states } from "./axis.js";
import { Chart } from "./chart.js";
import { empty, h, setText } from "./dom.js";
import { clock, count, metricName, number, reading, span, statusName, withUnit } from "./format.js";
import { look } from "./heat.js";
import { limit } from "./limit.js";
import { state } from "./live.js";

const LOOK_SECONDS = 2;
/** Samples of five seconds that a queue is compared over. */
const BEFORE = 12;

export function open(root, [namespace, name]) {
  return new Workload(root, namespace ?? "", name ?? "");
}

class Workload {
  constructor(root, namespace, name) {
    this.title = `${namespace}/${name}`;
    this.path = `/api/v1/scaledobjects/${encodeURIComponent(namespace)}/${encodeURIComponent(name)}`;
    this.isOpen = true;
    this.chosen = 0;
    this.drawn = "";
    this.heading = h("h1", {}, h("bdi", {}, this.title));
    this.target = h("p", { class: "note" });
    this.which = h("div", { class: "tools" });
    this.verdict = h("section", { class: "verdict", "aria-label": "What is decided" });
    this.picture = h("div", {});
    this.pods = h("div", {});
    this.chart = new Chart();
    this.left = h("p", { class: "note", hidden: true }, "No history is kept of this trigger: the gateway has no more room.");
    this.history = h("section", { hidden: true }, h("h2", {}, "How it came to be so"), this.chart.root);
    this.changes = h("section", {});
    this.trouble = h("div", {});
    root.append(h("p", {}, h("a", { href: "#/workloads" }, "← All workloads")), this.heading, this.target, this.trouble, this.which,
      this.verdict, this.picture, this.left, this.history, this.pods, this.changes);
    this.resized = () => this.timeline && this.chart.draw(this.timeline.history, this.timeline.entries);
    addEventListener("resize", this.resized);
    poll(LOOK_SECONDS, () => this.isOpen, () => this.look());
  }

  close() {
    this.isOpen = false;
    removeEventListener("resize", this.resized);
  }

  async look() {
    try {
      const [explanation, timeline] = await Promise.all([json(`${this.path}/explain`), json(`${this.path}/timeline`)]);
      if (!this.isOpen) return;
      this.trouble.replaceChildren();
      if (!explanation) {
        this.target.textContent = "";
        this.trouble.replaceChildren(empty(`There is no ScaledObject ${this.title}`, "It may have been deleted, or the name in the address is not right."));
        for (const part of [this.verdict, this.picture, this.pods, this.changes, this.which]) part.replaceChildren();
        this.history.hidden = true;
        return;
      }
      this.show(explanation, timeline);
    } catch (error) {
      if (this.isOpen && state.link !== "lost") this.trouble.replaceChildren(h("p", { class: "bad" }, `It cannot be explained now: ${error.message}`));
    }
  }

  show(explanation, timeline) {
    const { target, startup, triggers } = explanation;
    const median = startup.scheduledToReady.medianSeconds;
    setText(this.target, `${target.kind} ${target.name}${median === null ? "" : ` · its pods take ${span(median)} from a place to Ready`}`);
    if (triggers.length === 0) {
      this.verdict.replaceChildren(empty("No trigger is known", "None is declared for this gateway, and KEDA has not asked about one in the last ten minutes."));
      return;
    }
    this.chosen = Math.min(this.chosen, triggers.length - 1);
    this.choose(triggers, explanation, timeline);
    const trigger = triggers[this.chosen];
    this.timeline = timeline?.triggers.find((entry) => entry.trigger === this.chosen) ?? null;
    this.draw(explanation, trigger);
    this.history.hidden = !this.timeline;
    this.left.hidden = Boolean(this.timeline) || !state.tick?.triggersLeftOut;
    if (this.timeline) {
      this.chart.draw(this.timeline.history, this.timeline.entries);
      this.list(this.timeline);
    }
  }

  choose(triggers, explanation, timeline) {
    const key = triggers.map((trigger) => trigger.metricName).join();
    if (triggers.length < 2) this.which.replaceChildren();
    else if (this.which.key !== key) {
      const options = triggers.map((trigger, at) => h("option", { value: at, selected: at === this.chosen }, `${at}: ${trigger.metricName}`));
      const choose = (event) => { this.chosen = Number(event.target.value); this.drawn = ""; this.look(); };
      this.which.replaceChildren(h("label", { for: "trigger" }, "Trigger"), h("select", { id: "trigger", onchange: choose }, options));
    }
    this.which.key = key;
  }

  draw(explanation, trigger) {
    const newest = this.timeline?.entries.at(-1);
    const live = state.tick?.triggers.find((entry) => `${entry.namespace}/${entry.name}` === this.title && entry.trigger === this.chosen);
    const unit = live?.unit ?? newest?.unit ?? "";
    const gpusFree = Object.values(explanation.gpusFree).reduce((sum, amount) => sum + amount, 0);
    const now = { ...(live ?? newest ?? {}), ...pick(trigger), gpusFree };
    const before = this.timeline?.history.columns.requestsWaiting.at(-BEFORE) ?? null;
    const [kind, held] = limit(now, before);
    const key = JSON.stringify([trigger, kind, held, explanation.sentences, unit], (name, value) => (name === "ageMs" ? undefined : value));
    if (key === this.drawn) return;
    this.drawn = key;
    const sentences = explanation.sentences.map((text) => h("p", {}, text));
    const warnings = trigger.warnings.map((text) => h("li", { class: "warn" }, `▲ ${text}`));
    this.verdict.replaceChildren(h("p", { class: `lead ${kind}` }, held), facts(trigger, now, unit), ...sentences, warnings.length ? h("ul", { class: "plain" }, warnings) : "");
    const figure = axis(trigger, unit);
    this.picture.replaceChildren(...(figure ? [h("h2", {}, "The decision on one axis"), figure] : []));
    this.pods.replaceChildren(h("h2", {}, "Pods and their GPUs"), podList(trigger, unit, explanation.namespace));
  }

  list({ entries }) {
    const key = `${entries.length} ${entries.at(-1)?.at}`;
    if (this.changes.key === key) return;
    this.changes.key = key;
    const rows = [...entries].reverse().map((entry, at, all) => change(entry, all[at + 1]));
    this.changes.replaceChildren(h("h2", {}, "Changes, newest first"),
      h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Changes" }, h("table", { class: "changes" }, h("thead", {}, h("tr", {},
        ["When", "What changed", "Value", "Replicas", "Requests", "Why"].map((head) => h("th", { scope: "col" }, head)))), h("tbody", {}, rows))));
  }
}

/** What of an explained trigger has the same name as in a timeline. */
function pick({ status, desired, replicas, coverage, hpa }) {
  return { status, replicas, coverage, desired: hpa?.desired ?? desired ?? null, clampedBy: hpa?.clampedBy ?? null };
}

function facts(trigger, now, unit) {
  const activity = trigger.active === null ? "not known" : trigger.active ? "● active" : "○ idle";
  const pods = states(now).map(([kind, mark, amount]) => `${mark} ${amount} ${kind === "waiting" ? "waiting for a place" : kind}`).join("  ");
  const facts = [
    [metricName(trigger.metric) || trigger.metricName, trigger.value === null ? `✕ ${statusName(trigger.status)}` : withUnit(trigger.value, unit)],
    ["Target per replica", withUnit(trigger.target, unit)],
    ["The HPA", order(now) ?? (trigger.replicas === 0 ? "does not act at zero" : "has no value to go by")],
    ["KEDA", activity],
    ["Replicas", `${number(trigger.replicas)} ordered`],
    ["Pods", pods || "none"],
    ["Requests", now.requestsWaiting === null || now.requestsWaiting === undefined ? "not known" : `${number(now.requestsWaiting)} waiting, ${number(now.requestsRunning)} running`],
    ["GPUs free", number(now.gpusFree)],
  ];
  return h("dl", { class: "facts" }, facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

/** A device as the fleet calls it. */
function named(uuid) {
  for (const node of state.shape?.nodes ?? []) {
    const gpu = node.gpus.find((other) => other.uuid === uuid);
    if (gpu) return `GPU ${gpu.index} on ${node.name}`;
  }
  return uuid;
}

/** The GPUs that a pod holds, with what they do; for triggers that read its engine instead. */
function held(namespace, pod) {
  const { shape, tick } = state;
  if (!shape || !tick) return [];
  let at = -1;
  return shape.nodes.flatMap((node) => node.gpus.flatMap((gpu) => {
    at += 1;
    if (!gpu.holders.some((holder) => holder.ns === namespace && holder.pod === pod)) return [];
    const { value, isThrottled, isUnwell, state: condition } = look(shape, tick, at, gpu);
    const marks = [isThrottled ? "▲ throttled" : null, condition === "ok" ? null : condition, isUnwell ? `! ${gpu.health.join("; ")}` : null].filter(Boolean).join(", ");
    return [h("li", {}, h("span", { title: gpu.uuid }, `GPU ${gpu.index} on ${node.name}`), ` ${reading("gpu_utilization", value("gpu_utilization"))} busy`,
      marks ? h("span", { class: "warn" }, ` ${marks}`) : null)];
  }));
}

const MARKS = { reporting: "■", starting: "◩", missing: "✕", stuck: "!", unsupported: "✕" };

function podList(trigger, unit, namespace) {
  if (trigger.pods.length === 0) {
    return h("p", { class: "note" }, trigger.replicas === 0 ? "Scaled to zero: there is no pod." : "No pod exists yet.");
  }
  const most = Math.max(trigger.target ?? 0, ...trigger.pods.map((pod) => pod.reading ?? 0), ...trigger.pods.flatMap((pod) => pod.devices.map((device) => device.reading ?? 0))) || 1;
  return h("ul", { class: "cards" }, trigger.pods.map((pod) => card(pod, trigger, unit, most, namespace)));
}

function bar(reading, target, most) {
  const share = Math.min(100, (reading / most) * 100);
  const meter = h("span", { class: "track" }, h("span", { class: "amount" }), h("span", { class: "target" }));
  meter.children[0].style.width = `${share}%`;
  meter.children[1].style.left = `${Math.min(100, (target / most) * 100)}%`;
  return meter;
}

function card(pod, trigger, unit, most, namespace) {
  const isWaiting = pod.state !== "reporting" && /^waiting/.test(pod.why ?? "");
  const kind = isWaiting ? "waiting" : pod.state;
  const devices = pod.devices.map((device) => h("li", {},
    h("span", { title: device.uuid ?? "" }, device.uuid ? named(device.uuid) : "inference engine"), " ",
    device.reading === null ? h("span", { class: "warn" }, device.state) : [bar(device.reading, trigger.target ?? 0, most), ` ${withUnit(device.reading, unit)}`],
    device.state !== "ok" && device.reading !== null ? h("span", { class: "warn" }, ` ${device.state}`) : null,
    device.estimated ? h("span", { class: "note" }, " estimate") : null,
    device.undeclared ? h("span", { class: "warn" }, " not given to it") : null));
  const gpus = pod.devices.some((device) => device.uuid) ? [] : held(namespace, pod.name);
  return h("li", { class: `card ${kind}` },
    h("h3", {}, h("span", { class: `pod ${kind}`, "aria-hidden": "true" }, isWaiting ? "▢" : MARKS[pod.state] ?? ""), " ", h("bdi", {}, pod.name)),
    h("p", {}, `${isWaiting ? "waiting for a place" : pod.state}${pod.node ? ` on ${pod.node}` : ""}`, pod.reading === null ? "" : ` · ${withUnit(pod.reading, unit)}`),
    pod.why ? h("p", { class: isWaiting || pod.state === "missing" ? "warn" : "note" }, pod.why) : null,
    devices.length || gpus.length ? h("ul", { class: "devices" }, devices, gpus) : null);
}

const FACTS = {
  first: () => "first look",
  status: (entry) => (entry.status === "OK" ? "value again" : `no value: ${statusName(entry.status)}`),
  active: (entry, before) => {
    if (entry.active === null) return "activity not known";
    if (typeof before?.active !== "boolean") return entry.active ? "active" : "idle";
    return entry.active ? "▲ became active" : "▽ became idle";
  },
  desired: (entry, before) => (entry.desired === null ? "HPA: no wish" : `HPA wants ${before?.desired ?? "–"} → ${entry.desired}`),
  ordered: (entry, before) => `ordered ${before?.replicas ?? "–"} → ${entry.replicas ?? "–"}`,
  ready: (entry, before) => `ready ${before?.ready ?? "–"} → ${entry.ready ?? "–"}`,
  unscheduled: (entry) => (entry.unscheduled ? `${count(entry.unscheduled, "pod")} waiting for a place` : "every pod has a place"),
  coverage: () => "pods' states",
  direction: () => "direction",
  target: (entry) => `target ${number(entry.target)}`,
  reason: () => "reason",
};
const MINOR = ["coverage", "direction", "reason"];

function change(entry, before) {
  const major = entry.changed.filter((fact) => !MINOR.includes(fact));
  const said = (major.length ? major : entry.changed).map((fact) => FACTS[fact]?.(entry, before) ?? fact);
  const requests = entry.requestsWaiting === null ? "–" : `${number(entry.requestsWaiting)} waiting, ${number(entry.requestsRunning)} running`;
  return h("tr", {}, h("th", { scope: "row" }, h("time", { datetime: entry.at }, clock(entry.at))), h("td", {}, said.join(", ")),
    h("td", { class: "n" }, entry.value === null ? statusName(entry.status) : withUnit(entry.value, entry.unit)),
    h("td", {}, entry.replicas === null ? "–" : `${entry.ready} of ${entry.replicas} ready`), h("td", {}, requests), h("td", {}, entry.reason));
}
