// Asks the gateway. The token, where one is wanted, is kept for this tab only.

const KEY = "gpu-gateway-token";

/** The gateway wants a token, or another one. */
export class Denied extends Error {}

let tellDenied = () => {};

/** Has `listener(error)` called when the token that is kept turns out not to be the right one. */
export function onDenied(listener) {
  tellDenied = listener;
}

export function setToken(token) {
  sessionStorage.setItem(KEY, token);
}

export function hasToken() {
  return sessionStorage.getItem(KEY) !== null;
}

/** A request with the token; throws `Denied` where it is not the right one. */
export async function ask(path, options = {}) {
  const token = sessionStorage.getItem(KEY);
  const headers = token ? { authorization: `Bearer ${token}` } : {};
  const answer = await fetch(path, { ...options, headers });
  if (answer.status === 401) {
    const error = new Denied("the gateway wants its token");
    // An answer to a token that has been replaced since says nothing of the new one.
    if (token === sessionStorage.getItem(KEY)) tellDenied(error);
    throw error;
  }
  return answer;
}

/** The JSON at `path`; `null` where there is no such thing. */
export async function json(path) {
  const answer = await ask(path);
  if (answer.status === 404) return null;
  const body = await answer.json().catch(() => null);
  if (!answer.ok) throw new Error(body?.error ?? `the gateway answers ${answer.status}`);
  return body;
}

/** Calls `look` now and every so often while `isOpen`, one at a time, not while the tab is hidden. */
export function poll(seconds, isOpen, look) {
  let timer;
  const again = async () => {
    if (!isOpen()) return;
    if (!document.hidden) await look();
    if (isOpen()) timer = setTimeout(again, seconds * 1000);
  };
  again();
  return () => clearTimeout(timer);
}
