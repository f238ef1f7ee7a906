// Every trigger in one line: value against target, replicas, queue, and why.

import { json, poll } from "./api.js";
import { empty, h, keyed, setClass, setText } from "./dom.js";
import { DASH, energy, gpuHours, linkTo, metricName, number, span } from "./format.js";
import { limit } from "./limit.js";
import { state } from "./live.js";
import { meter, pods, spark } from "./axis.js";

export const title = "Workloads";
const HEADS = ["Workload", "Active", "Value against target", "Replicas", "Requests", "Last 30 min", "Energy", "What holds it back, and why"];
const RANK = { bad: 0, warn: 1, note: 2, good: 3 };

export function open(root) {
  return new Workloads(root);
}

class Workloads {
  constructor(root) {
    this.title = title;
    this.isOpen = true;
    this.wanted = "";
    this.ledger = new Map();
    this.idle = new Map();
    this.before = new Map();
    this.rows = h("tbody", {});
    this.table = h("table", { class: "wide workloads" }, h("caption", { class: "hidden" }, "Triggers, those that need attention first"),
      h("thead", {}, h("tr", {}, HEADS.map((head) => h("th", { scope: "col" }, head)))), this.rows);
    const filter = h("input", { id: "filter", type: "search", placeholder: "namespace or name",
      oninput: (event) => { this.wanted = event.target.value.trim().toLowerCase(); this.update("tick"); } });
    this.tools = h("div", { class: "tools" }, h("label", { for: "filter" }, "Show"), filter);
    this.scroll = h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Workloads" }, this.table);
    this.none = h("div", {});
    this.left = h("p", { class: "warn", hidden: true });
    root.append(h("h1", {}, "Workloads"), this.tools, this.left, this.none, this.scroll);
    this.hasLedger = true;
    poll(10, () => this.isOpen && this.hasLedger, () => this.account());
  }

  close() {
    this.isOpen = false;
  }

  async account() {
    const ledger = await json("/api/v1/ledger").catch(() => undefined);
    if (ledger === undefined) return;
    this.hasLedger = ledger !== null;
    this.ledger = new Map((ledger?.workloads ?? []).map((entry) => [`${entry.namespace}/${entry.kind}/${entry.name}`, entry]));
    this.idle = new Map();
    for (const entry of ledger?.idle ?? []) {
      if (!entry.workload) continue;
      const key = `${entry.namespace}/${entry.workload.kind}/${entry.workload.name}`;
      this.idle.set(key, [...(this.idle.get(key) ?? []), entry]);
    }
    this.table.classList.toggle("no-ledger", ledger === null);
  }

  update(what) {
    const { tick } = state;
    if (!tick) return;
    if (what === "spark") this.sparks = new Map(state.spark.map((entry) => [`${entry.namespace}/${entry.name}/${entry.trigger}`, entry]));
    const all = tick.triggers.map((trigger) => {
      const id = `${trigger.namespace}/${trigger.name}/${trigger.trigger}`;
      return { trigger, id, limit: limit(trigger, this.queueBefore(id, trigger.requestsWaiting)) };
    });
    const shown = all.filter(({ trigger }) => !this.wanted || `${trigger.namespace}/${trigger.name} ${trigger.workload}`.toLowerCase().includes(this.wanted));
    // Order changes only when the list does, so that a row does not run away from who reads it.
    const key = shown.map((row) => row.id).sort().join();
    if (key !== this.key || !this.order) {
      this.key = key;
      const sorted = [...shown].sort((a, b) => RANK[a.limit[0]] - RANK[b.limit[0]] || (a.id < b.id ? -1 : 1));
      this.order = new Map(sorted.map((row, place) => [row.id, place]));
    }
    shown.sort((a, b) => this.order.get(a.id) - this.order.get(b.id));
    this.scroll.hidden = shown.length === 0;
    this.tools.hidden = all.length === 0;
    this.left.hidden = !tick.triggersLeftOut;
    setText(this.left, leftOut(tick.triggersLeftOut));
    this.say(all, shown);
    keyed(this.rows, shown, (row) => row.id, () => h("tr", {}, h("th", { scope: "row" }), HEADS.slice(1).map(() => h("td", {}))),
      (row, item) => this.fill(row, item));
  }

  /** How long the queue was some half a minute to a minute ago, as far as this page has seen. */
  queueBefore(id, now) {
    const known = this.before.get(id) ?? [];
    known.push(now ?? null);
    if (known.length > 60) known.shift();
    this.before.set(id, known);
    return known.length > 30 ? known[0] : null;
  }

  say(all, shown) {
    const { tick } = state;
    const key = `${all.length === 0} ${shown.length === 0} ${tick.gateway.directoryAgeSeconds === null}`;
    if (this.said === key) return;
    this.said = key;
    if (shown.length) this.none.replaceChildren();
    else if (all.length) this.none.replaceChildren(h("p", { class: "note" }, "Nothing matches. Clear the filter to see all of them."));
    else if (tick.gateway.directoryAgeSeconds === null) this.none.replaceChildren(empty("The directory is not loaded yet", "The gateway does not know yet what Kubernetes has. It says above what it waits for."));
    else this.none.replaceChildren(empty("No ScaledObject uses this gateway yet",
      "Add a trigger of type external-push with scalerAddress gpu-gateway.gpu-scaler:6000 to a ScaledObject, and it appears here.",
      "gpu-gateway check FILE says beforehand what is unsound in one."));
  }

  fill(row, { trigger, id, limit: [kind, text] }) {
    const [name, active, value, replicas, queue, history, ledger, why] = row.children;
    if (!name.firstChild) {
      const link = h("a", { href: linkTo(trigger.namespace, trigger.name) }, h("bdi", {}, `${trigger.namespace}/${trigger.name}`));
      name.append(link, h("p", { class: "note" }, `${trigger.kind} ${trigger.workload} · `, metricName(trigger.metric || trigger.metricName)));
      why.append(h("p", {}), h("p", { class: "note" }));
    }
    const activity = { true: ["good", "● active"], false: ["idle", "○ idle"], null: ["warn", "? not known"] }[trigger.active];
    setText(active, activity[1]);
    setClass(active, activity[0]);
    redraw(value, [trigger.value, trigger.hold, trigger.target, trigger.up, trigger.desired, trigger.replicas, trigger.status], () => meter(trigger));
    redraw(replicas, [trigger.replicas, trigger.coverage, trigger.unscheduled, trigger.desired], () => pods(trigger));
    redraw(queue, [trigger.requestsWaiting, trigger.requestsRunning, trigger.enginePodsUnread], () => requests(trigger));
    const points = this.sparks?.get(id);
    redraw(history, [points?.value], () => [spark(points)]);
    const key = `${trigger.namespace}/${trigger.kind}/${trigger.workload}`;
    redraw(ledger, [this.ledger.get(key), this.idle.get(key)], () => accounted(this.ledger.get(key), this.idle.get(key) ?? []));
    setText(why.firstChild, text);
    setClass(why.firstChild, kind);
    setText(why.lastChild, trigger.reason);
  }
}

function leftOut(amount) {
  const [more, it] = amount === 1 ? ["1 more trigger is", "it"] : [`${number(amount)} more triggers are`, "them"];
  return `${more} not in this list, and no history is kept of ${it}: there is no more room. gpu-gateway explain NAMESPACE/NAME explains ${it} all the same.`;
}

/** Draws a cell anew where what it is drawn from is something else. */
function redraw(cell, from, draw) {
  const key = JSON.stringify(from);
  if (cell.from === key) return;
  cell.from = key;
  cell.replaceChildren(...draw());
}

function requests(trigger) {
  const { requestsWaiting: waiting, requestsRunning: running, enginePodsUnread: unread } = trigger;
  if (waiting === null && running === null) return [unread ? h("span", { class: "warn" }, `${unread} not read`) : DASH];
  const least = unread ? "≥ " : "";
  return [h("div", {}, `${least}${number(waiting)} waiting`), h("div", { class: "note" }, `${least}${number(running)} running`),
    unread ? h("div", { class: "warn" }, `${unread} not read`) : ""];
}

function accounted(entry, idle) {
  if (!entry && !idle.length) return [DASH];
  const longest = idle.reduce((most, gpu) => Math.max(most, gpu.idleSeconds), 0);
  return [h("div", {}, energy(entry?.joules)), h("div", { class: "note" }, `${gpuHours(entry?.gpuSecondsHeld)} held`),
    idle.length ? h("div", { class: "warn" }, `${idle.length} idle for ${span(longest)}`) : ""];
}
