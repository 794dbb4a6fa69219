// Keys that work everywhere on the page: Escape stops, Ctrl/Cmd+K begins a new chat, Ctrl/Cmd+/ lists them all.

import { choose } from "./dialogs.js";
import { byId } from "./dom.js";

const isMac = /Mac|iPhone|iPad/.test(navigator.platform);

/** Wire the keys to `{newChat, escape}`. An open dialog keeps Escape for itself. */
export function wireKeyboard({ newChat, escape }) {
  byId("new-chat-keys").textContent = isMac ? "⌘ K" : "Ctrl K";
  if (isMac) document.querySelectorAll("#keys kbd").forEach((key) => (key.textContent = key.textContent.replace("Ctrl", "⌘")));
  byId("show-keys").addEventListener("click", () => void choose("keys"));
  document.addEventListener("keydown", (event) => {
    if (document.querySelector("dialog[open]")) return;
    if (event.key === "Escape" && !event.isComposing) escape();
    else if (!(isMac ? event.metaKey : event.ctrlKey) || event.altKey) return;
    else if (event.key.toLowerCase() === "k" && !event.shiftKey) act(event, newChat);
    else if (event.key === "/") act(event, () => void choose("keys")); // with Shift on some layouts
  });
}

function act(event, action) {
  event.preventDefault();
  action();
}
