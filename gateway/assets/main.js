// Routes, theme, token and the line that says whether what is shown is live.

import { hasToken, setToken } from "./api.js";
import { h, setText } from "./dom.js";
import { clock, count } from "./format.js";
import { listen, retry, run, state } from "./live.js";
import * as agents from "./agents.js";
import * as energy from "./energy.js";
import * as fleet from "./fleet.js";
import * as workload from "./workload.js";
import * as workloads from "./workloads.js";

const PAGES = { fleet, workloads, workload, agents, energy };
const content = document.getElementById("content");
const status = document.getElementById("status");
let page = null;
let asks = false;

/** The page and its parameters that the address names; the fleet where it names none. */
function route() {
  const [name, ...parameters] = location.hash.replace(/^#\//, "").split("/");
  const known = Object.hasOwn(PAGES, name) ? name : "fleet";
  if (known === "workload" && !(parameters[0] && parameters[1])) return ["workloads", []];
  try {
    return [known, parameters.map(decodeURIComponent)];
  } catch {
    return ["fleet", []];
  }
}

function open(isFirst) {
  const [name, parameters] = route();
  page?.close?.();
  content.replaceChildren();
  page = PAGES[name].open(content, parameters);
  document.title = `${page.title} · GPU gateway`;
  for (const link of document.querySelectorAll("#pages a")) {
    const isHere = link.getAttribute("href") === `#/${name === "workload" ? "workloads" : name}`;
    if (isHere) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  asks = false;
  refresh("link");
  for (const what of ["shape", "spark", "tick"]) if (state[what]) page.update?.(what);
  if (!isFirst) {
    scrollTo(0, 0);
    content.focus({ preventScroll: true });
  }
}

function askForToken() {
  if (asks) return;
  asks = true;
  const field = h("input", { id: "token", type: "password", autocomplete: "off", required: true });
  const send = (event) => {
    event.preventDefault();
    setToken(field.value.trim());
    retry();
  };
  const wrong = hasToken() ? h("p", { class: "bad", role: "alert" }, "That is not the gateway's token.") : null;
  const hint = "It is in the file that the gateway was given with --http-token-file, and is kept for this tab only.";
  content.replaceChildren(
    h("form", { class: "ask", onsubmit: send }, h("h1", {}, "This gateway wants a token"), wrong,
      h("label", { for: "token" }, "Token"), field, h("p", { class: "note" }, hint),
      h("button", { type: "submit" }, "Show the dashboard")),
  );
  field.focus();
}

function said() {
  const { link, tick, shape, why } = state;
  const when = tick ? ` Showing ${clock(tick.at)}.` : "";
  if (link === "connecting") return ["wait", "Connecting …"];
  if (link === "denied") return ["bad", "Not allowed in."];
  if (link === "again") return [status.className || "wait", status.textContent];
  if (link === "paused") return ["wait", "Paused while hidden."];
  if (link === "lost") return ["bad", `Connection lost: ${why}.${when} Trying again.`];
  const { gateway } = tick;
  const nodes = count(shape.nodes.length, "node");
  if (gateway.ailing) return ["bad", `Live, but not well: ${gateway.ailing}`];
  if (gateway.directoryAgeSeconds === null) return ["wait", `Live. Waiting for the directory ${gateway.waitsFor}`];
  if (gateway.directoryAgeSeconds > 20) {
    return ["bad", `Live, but Kubernetes was last heard ${Math.round(gateway.directoryAgeSeconds)} s ago.`];
  }
  if (!gateway.ready) return ["wait", `Live. Warming up: ${nodes} heard so far.`];
  return ["good", `Live. ${nodes}.`];
}

function refresh(what) {
  const [kind, text] = said();
  status.className = kind;
  setText(status, text);
  if (state.link === "denied") {
    if (what === "link") asks = false;
    askForToken();
    return;
  }
  if (asks) open(false);
  document.body.classList.toggle("is-stale", state.link === "lost");
  if (what !== "link") page?.update?.(what);
}

const THEMES = ["auto", "light", "dark"];

function theme(name) {
  const button = document.getElementById("theme");
  if (name === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  localStorage.setItem("theme", name);
  setText(button, `Theme: ${name}`);
  button.onclick = () => theme(THEMES[(THEMES.indexOf(name) + 1) % THEMES.length]);
}

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  content.focus();
});
theme(THEMES.includes(localStorage.getItem("theme")) ? localStorage.getItem("theme") : "auto");
addEventListener("hashchange", () => open(false));
listen(refresh);
open(true);
run();
