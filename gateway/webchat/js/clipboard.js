// Copying text. The clipboard API exists on https and localhost only; a page served over plain http in the LAN falls back.

import { icon, make } from "./dom.js";

/** Copy and resolve to whether it worked. */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyBySelection(text);
  }
}

function copyBySelection(text) {
  const area = make("textarea", { class: "visually-hidden", "aria-hidden": "true" });
  const focused = document.activeElement;
  area.value = text;
  document.body.append(area);
  area.select();
  const copied = document.execCommand("copy");
  area.remove();
  focused?.focus?.();
  return copied;
}

const SHOWN_MS = 1600;

/** A button that copies `text()` and shows a tick for a moment. */
export function copyButton(label, text) {
  const button = make("button", { type: "button", class: "plain-button copy", "aria-label": label, title: label }, icon("copy"));
  let timer;
  button.addEventListener("click", async () => {
    const copied = await copyText(text());
    button.replaceChildren(icon(copied ? "check" : "close"));
    button.setAttribute("aria-label", copied ? "Copied" : "Copying is not allowed here");
    clearTimeout(timer);
    timer = setTimeout(() => {
      button.replaceChildren(icon("copy"));
      button.setAttribute("aria-label", label);
    }, SHOWN_MS);
  });
  return button;
}
