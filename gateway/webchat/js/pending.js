// The answers that were on their way when this tab was reloaded: the server goes on with them, and the tab finds them
// by these notes.

import { recall, remember, tabStorage } from "./storage.js";

/** Note `{conversation, input, responseId}` of the turn on its way. */
export function notePending(entry) {
  remember("pending", { ...recallAll(), [entry.conversation]: entry }, tabStorage());
}

/** What was on its way in this conversation, or null. */
export function pendingIn(conversation) {
  return recallAll()[conversation] ?? null;
}

/** It has ended, one way or another. */
export function forgetPending(conversation) {
  const all = recallAll();
  delete all[conversation];
  remember("pending", all, tabStorage());
}

const recallAll = () => recall("pending", {}, tabStorage());
