// Building elements without innerHTML: text is always text, and the page can demand Trusted Types.

/** Make an element: `make("button", {class: "x", onclick: f, "aria-label": "y"}, child, "text")`. */
export function make(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "class") node.className = value;
    else if (name === "text") node.textContent = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

const SVG = "http://www.w3.org/2000/svg";

/** An icon from the sprite in index.html; decorative, so hidden from screen readers. */
export function icon(name, className = "icon") {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", className);
  svg.setAttribute("aria-hidden", "true");
  const use = document.createElementNS(SVG, "use");
  use.setAttribute("href", `#icon-${name}`);
  svg.append(use);
  return svg;
}

/** A button that shows only an icon; `label` is its name for everybody who cannot see it, and its tooltip. */
export function iconButton(name, label, onclick, className = "plain-button") {
  return make("button", { type: "button", class: className, "aria-label": label, title: label, onclick }, icon(name));
}

/** The element with this id. */
export const byId = (id) => document.getElementById(id);
