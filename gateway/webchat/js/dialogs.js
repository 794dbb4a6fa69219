// Questions to the user that wait for an answer: the API key, and "are you sure?".

import { byId } from "./dom.js";

function ask(dialog) {
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => dialog.addEventListener("close", () => resolve(dialog.returnValue), { once: true }));
}

/** Show the dialog of this id; resolves to the value of the button pressed, or "" when it was closed. */
export const choose = (id) => ask(byId(id));

/** Ask for an API key; null when the user declines. `again`: the last one was refused. */
export async function askForKey(again) {
  const field = byId("key");
  byId("key-note").textContent = again ? "The server did not accept this key. Please check it." : "This server asks for a key.";
  field.value = "";
  const answer = await ask(byId("ask-key"));
  const key = field.value.trim();
  field.value = "";
  return answer === "ok" && key ? { key, keep: byId("key-remember").checked } : null;
}

/** Ask whether to delete; true for yes. */
export async function confirmDelete(title) {
  byId("confirm-title").textContent = "Delete this conversation?";
  byId("confirm-note").textContent = `“${title}” will be erased from the server. There is no way back.`;
  return (await ask(byId("confirm"))) === "yes";
}

/** Wire the buttons that close without an answer. */
export function wireDialogs() {
  byId("key-cancel").addEventListener("click", () => byId("ask-key").close("no"));
}
