// Elements made from data. Text becomes text nodes only, so no name can become markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** An HTML element: h("p", { class: "note" }, "text", other). */
export function h(tag, properties, ...children) {
  return fill(document.createElement(tag), properties, children);
}

/** The same for SVG. */
export function svg(tag, properties, ...children) {
  return fill(document.createElementNS(SVG, tag), properties, children);
}

/** Sets the text where it is another: an untouched node costs nothing. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Sets the class where it is another. */
export function setClass(node, name) {
  if (node.getAttribute("class") !== name) node.setAttribute("class", name);
}

/** Makes `parent` hold exactly the nodes made for `items`, by key, reusing those it has. */
export function keyed(parent, items, key, make, update) {
  const known = parent.known ?? (parent.known = new Map());
  const seen = new Set();
  let place = parent.firstChild;
  for (const item of items) {
    const id = key(item);
    seen.add(id);
    let node = known.get(id);
    if (!node) known.set(id, (node = make(item)));
    if (node === place) place = place.nextSibling;
    else parent.insertBefore(node, place);
    update(node, item);
  }
  for (const [id, node] of known) {
    if (!seen.has(id)) {
      node.remove();
      known.delete(id);
    }
  }
}

/** What is said where there is nothing to show: what it means and what to do next. */
export function empty(title, ...next) {
  return h("div", { class: "empty" }, h("h2", {}, title), ...next.map((text) => h("p", {}, text)));
}
