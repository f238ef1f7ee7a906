// The gateway's live stream. fetch instead of EventSource, because only fetch can send the token.
// A hidden tab lets go of its stream: a browser has few connections to one place.

import { ask, Denied, onDenied } from "./api.js";
import { learn } from "./format.js";

const SILENT_AFTER = 6_000;
const HIDDEN_AFTER = 5_000;
const LONGEST_WAIT = 8_000;

/** What is known now. `link`: connecting, live, again (a second try), lost, denied or paused. */
export const state = { shape: null, tick: null, spark: null, link: "connecting", why: "", retryAt: 0 };

const listeners = new Set();
let stop = new AbortController();
let wake = () => {};

/** Has `listener(what)` called with shape, spark, tick or link. */
export function listen(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

function tell(what) {
  for (const listener of listeners) listener(what);
}

function link(now, why = "") {
  state.link = now;
  state.why = why;
  tell("link");
}

/** What an event's line of that name says. Split, because `.` and `$` also stop at U+2028, which names may have. */
function field(lines, name) {
  return lines.find((line) => line.startsWith(`${name}: `))?.slice(name.length + 2);
}

function take(event) {
  const lines = event.split("\n");
  const name = field(lines, "event");
  const data = field(lines, "data");
  if (!name || !data || !(name in state)) return;
  state[name] = JSON.parse(data);
  if (name === "shape") learn(state.shape.metrics);
  if (name === "tick" && state.link !== "live") link("live");
  tell(name);
}

async function read(signal) {
  const answer = await ask("/api/v1/events", { signal });
  if (!answer.ok) throw new Error((await answer.json().catch(() => null))?.error ?? `HTTP ${answer.status}`);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    let timer;
    const silent = new Promise((_, fail) => {
      timer = setTimeout(() => fail(new Error("the gateway has fallen silent")), SILENT_AFTER);
    });
    const piece = await Promise.race([reader.read(), silent]).finally(() => clearTimeout(timer));
    if (piece.done) return;
    rest += piece.value;
    const events = rest.split("\n\n");
    rest = events.pop();
    events.forEach(take);
  }
}

function rest(milliseconds) {
  state.retryAt = Date.now() + milliseconds;
  return new Promise((resume) => {
    wake = resume;
    setTimeout(resume, milliseconds);
  });
}

/** Reads the stream for as long as the page is open. */
export async function run() {
  let wait = 500;
  let failures = 0;
  for (;;) {
    if (document.hidden) {
      link("paused");
      await new Promise((resume) => document.addEventListener("visibilitychange", resume, { once: true }));
      continue;
    }
    stop = new AbortController();
    try {
      await read(stop.signal);
      wait = 500;
      await rest(50 + Math.random() * 200);
      continue;
    } catch (error) {
      const denied = stop.signal.reason instanceof Denied;
      stop.abort();
      if (denied || error instanceof Denied) {
        link("denied");
        await new Promise((resume) => (wake = resume));
        continue;
      }
      if (document.hidden) continue;
      // A connection that has become old is closed; that is no news if the next one works.
      failures = state.link === "live" ? 1 : failures + 1;
      if (failures === 1) {
        link("again");
        continue;
      }
      wait = failures === 2 ? 500 : Math.min(wait * 2, LONGEST_WAIT);
      link("lost", error instanceof TypeError ? "the gateway cannot be reached" : error.message);
    }
    await rest(wait * (0.75 + Math.random() / 2));
  }
}

/** Tries again now, for example with a new token. */
export function retry() {
  wake();
}

// Where a page is refused, the token is another one by now: the stream, which is older, is not to be trusted with it.
onDenied((error) => stop.abort(error));

document.addEventListener("visibilitychange", () => {
  if (!document.hidden) return;
  setTimeout(() => document.hidden && stop.abort(), HIDDEN_AFTER);
});
