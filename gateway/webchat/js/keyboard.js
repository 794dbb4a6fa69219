// Keys that work everywhere on the page: Escape stops, Ctrl/Cmd+K begins a new chat.

import { byId } from "./dom.js";

const isMac = /Mac|iPhone|iPad/.test(navigator.platform);

/** Wire the keys to `{newChat, escape}`. An open dialog keeps Escape for itself. */
export function wireKeyboard({ newChat, escape }) {
  byId("new-chat-keys").textContent = isMac ? "⌘ K" : "Ctrl K";
  document.addEventListener("keydown", (event) => {
    if (document.querySelector("dialog[open]")) return;
    if (event.key === "Escape" && !event.isComposing) escape();
    else if (event.key.toLowerCase() === "k" && (isMac ? event.metaKey : event.ctrlKey) && !event.shiftKey && !event.altKey) {
      event.preventDefault();
      newChat();
    }
  });
}
