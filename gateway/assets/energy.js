// The ledger: who held GPUs, who used them, what it took, and who sits on idle ones.

import { json, poll } from "./api.js";
import { empty, h } from "./dom.js";
import { count, DASH, energy, gpuHours, number, span } from "./format.js";

export const title = "Energy";

export function open(root) {
  const body = h("div", {}, h("p", { class: "note" }, "Loading …"));
  root.append(h("h1", {}, "Energy and idle GPUs"), body);
  let isOpen = true;
  let last = "";
  poll(5, () => isOpen && last !== "null", async () => {
    try {
      const ledger = await json("/api/v1/ledger");
      const text = JSON.stringify(ledger);
      if (!isOpen || text === last || body.contains(document.activeElement?.closest("a"))) return;
      last = text;
      body.replaceChildren(...(ledger ? show(ledger) : [missing()]));
    } catch (error) {
      if (isOpen && !last) body.replaceChildren(h("p", { class: "bad" }, `The ledger cannot be read: ${error.message}`));
    }
  });
  return { title, close: () => (isOpen = false) };
}

function missing() {
  return empty("Not available", "This gateway keeps no ledger of GPU time and energy: /api/v1/ledger does not exist here.",
    "A newer gateway has it.");
}

function table(label, heads, rows, none) {
  if (rows.length === 0) return h("p", { class: "note" }, none);
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label },
    h("table", {}, h("caption", { class: "hidden" }, label),
      h("thead", {}, h("tr", {}, heads.map(([head, kind]) => h("th", { scope: "col", class: kind }, head)))),
      h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell, at) =>
        at === 0 ? h("th", { scope: "row" }, h("bdi", {}, cell)) : h("td", { class: heads[at][1] }, cell)))))));
}

function figures(entry) {
  const busy = entry.gpuSecondsHeld > 0 && entry.gpuSecondsBusy !== null ? `${number((entry.gpuSecondsBusy / entry.gpuSecondsHeld) * 100)} %` : DASH;
  return [gpuHours(entry.gpuSecondsHeld), gpuHours(entry.gpuSecondsBusy), busy, gpuHours(entry.gpuSecondsNotHeld ?? null),
    energy(entry.joules), entry.cost === null || entry.cost === undefined ? DASH : number(entry.cost),
    entry.gramsCo2e === null || entry.gramsCo2e === undefined ? DASH : `${number(entry.gramsCo2e)} g`];
}

/** What the nodes add up to; a sum that leaves some out says so, and of nothing known there is none. */
function total(nodes, key) {
  const known = nodes.map((node) => node[key] ?? null).filter((joules) => joules !== null);
  if (known.length === 0) return DASH;
  const left = nodes.length - known.length;
  return `${energy(known.reduce((sum, joules) => sum + joules, 0))}${left ? ` (without ${count(left, "node")} where it is not known)` : ""}`;
}

const FIGURES = [["Held", "n"], ["Busy", "n"], ["Busy of held", "n"], ["Not held", "n"], ["Energy", "n"], ["Cost", "n"], ["CO₂e", "n"]];

function show(ledger) {
  const most = (a, b) => (b.joules ?? 0) - (a.joules ?? 0);
  const workloads = [...ledger.workloads].sort(most);
  const idle = [...ledger.idle].sort((a, b) => b.idleSeconds - a.idleSeconds);
  return [
    h("p", {}, `Since this replica started, ${span(ledger.sinceSeconds)} ago: ${total(ledger.nodes, "joules")} in all, ${total(ledger.nodes, "joulesUnattributed")} of it nobody's. “Not held” is GPU time that scale-to-zero left to others.`),
    h("h2", {}, "Idle: held, and not busy"),
    table("Idle GPUs", [["Pod"], ["Workload"], ["GPU"], ["Idle for", "n"], ["Memory held", "n"], ["Last request", "n"]],
      idle.map((entry) => [`${entry.namespace}/${entry.pod}`, entry.workload ? `${entry.workload.kind} ${entry.workload.name}` : "no workload",
        `${entry.model ?? "GPU"} on ${entry.node}`, span(entry.idleSeconds), entry.memoryUsedMib === null ? DASH : `${number(entry.memoryUsedMib / 1024)} GiB`,
        entry.lastRequestSecondsAgo === null ? "not known" : `${span(entry.lastRequestSecondsAgo)} ago`]),
      "Nobody sits on an idle GPU."),
    h("h2", {}, "Workloads"),
    table("Workloads", [["Workload"], ...FIGURES], workloads.map((entry) => [`${entry.namespace}/${entry.name} (${entry.kind})`, ...figures(entry)]),
      "No workload has held a GPU yet."),
    h("h2", {}, "Namespaces"),
    table("Namespaces", [["Namespace"], ...FIGURES], [...ledger.namespaces].sort(most).map((entry) => [entry.namespace, ...figures(entry)]), "None yet."),
    h("h2", {}, "Nodes"),
    table("Nodes", [["Node"], ["Energy", "n"], ["Somebody's", "n"], ["Nobody's", "n"], ["Held", "n"], ["Free", "n"]],
      [...ledger.nodes].sort(most).map((node) => [node.node, energy(node.joules), energy(node.joulesAttributed), energy(node.joulesUnattributed),
        gpuHours(node.gpuSecondsHeld), gpuHours(node.gpuSecondsFree)]), "No node has been read yet."),
  ];
}
