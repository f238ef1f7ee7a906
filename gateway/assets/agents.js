// The agents: how old their word is, their version, and what they could not read.

import { empty, h, keyed, setClass, setText } from "./dom.js";
import { count, span } from "./format.js";
import { state } from "./live.js";

export const title = "Agents";
const HEADS = ["Node", "State", "Last word", "Streams", "Version", "GPUs", "Failed readings", "What is wrong"];

export function open(root) {
  const rows = h("tbody", {});
  const table = h("table", { class: "wide" }, h("caption", { class: "hidden" }, "Agents, those with trouble first"),
    h("thead", {}, h("tr", {}, HEADS.map((head) => h("th", { scope: "col" }, head)))), rows);
  const summary = h("p", {});
  const none = h("div", {});
  const scroll = h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Agents" }, table);
  root.append(h("h1", {}, "Agents"), summary, none, scroll);
  return { title, update: (what) => what !== "spark" && update(rows, summary, none, scroll) };
}

/** One agent in words. */
function agent(node, at, devices) {
  const { tick, shape } = state;
  const age = tick.ages[at];
  const first = devices.from;
  const whys = node.gpus.map((_, index) => tick.why[first + index]).filter(Boolean);
  const versions = new Set(shape.nodes.map((other) => other.version));
  const why = node.reason ?? whys[0] ?? (versions.size > 1 && node.version !== newest(versions) ? `older than ${newest(versions)}` : "");
  const isGone = tick.sessions[at] === 0;
  const isLate = age !== null && age > 10_000;
  const state_ = isGone ? ["bad", "✕ gone"] : age === null ? ["warn", "… connected, silent"] : isLate ? ["bad", "? late"] : whys.length || node.reason ? ["warn", "▲ in trouble"] : ["good", "● well"];
  return { node, age, why: isGone && !why ? "no stream is open; what it said last is shown until it is stale" : why, state: state_, streams: tick.sessions[at], failed: tick.failed[at], more: whys.length - 1 };
}

function newest(versions) {
  return [...versions].sort((a, b) => a.localeCompare(b, "en", { numeric: true })).at(-1);
}

function update(rows, summary, none, scroll) {
  const { shape, tick } = state;
  if (!shape || !tick || tick.ages.length !== shape.nodes.length) return;
  let from = 0;
  const agents = shape.nodes.map((node, at) => {
    const shown = agent(node, at, { from });
    from += node.gpus.length;
    return shown;
  });
  scroll.hidden = agents.length === 0;
  none.replaceChildren(...(agents.length ? [] : [empty("No agent has connected yet", "Start one on each GPU node: gpu-agent run --gateway http://THIS-HOST:6001")]));
  const rank = { bad: 0, warn: 1, good: 2 };
  agents.sort((a, b) => rank[a.state[0]] - rank[b.state[0]] || (a.node.name < b.node.name ? -1 : 1));
  const bad = agents.filter((shown) => shown.state[0] !== "good").length;
  setText(summary, agents.length ? `${count(agents.length, "agent")}, ${bad ? `${bad} with trouble` : "all well"}. Gateway ${tick.gateway.version}.` : "");
  keyed(rows, agents, (shown) => shown.node.name,
    () => h("tr", {}, h("th", { scope: "row" }, h("bdi", {})), HEADS.slice(1).map(() => h("td", {}))), fill);
}

function fill(row, shown) {
  const [name, state_, age, streams, version, gpus, failed, why] = row.children;
  setText(name.firstChild, shown.node.name);
  setText(state_, shown.state[1]);
  setClass(state_, shown.state[0]);
  setText(age, shown.age === null ? "never" : `${span(shown.age / 1000)} ago`);
  setText(streams, String(shown.streams));
  setText(version, shown.node.version);
  setText(gpus, String(shown.node.gpus.length));
  setText(failed, String(shown.failed));
  setText(why, shown.more > 0 ? `${shown.why} (and ${shown.more} more)` : shown.why);
}
