// The answers on their way that this tab does not read yet: those that it has asked for before it was reloaded, which it
// finds by its notes, and those that others have asked for, which the server names.

import { recall, remember, tabStorage } from "./storage.js";
import { Turn, turnsFromItems } from "./turn.js";

/** Note `{conversation, input, responseId}` of the turn on its way. */
export function notePending(entry) {
  remember("pending", { ...recallAll(), [entry.conversation]: entry }, tabStorage());
}

/** What was on its way in this conversation, or null. */
export function pendingIn(conversation) {
  return recallAll()[conversation] ?? null;
}

/**
 * The oldest answer that is made in a conversation, as `{responseId, input, pictures}`, or null; `isOver(id)` knows of
 * ended ones. A tab out of sight has none of its few connections to spare for that: it looks when it comes to the front.
 */
export async function runningIn(api, conversation, isOver) {
  if (document.visibilityState !== "visible") return null;
  const { running } = await api.conversation(conversation);
  const responseId = running.find((id) => !isOver(id));
  if (!responseId) return null;
  const { data } = await api.inputItems(responseId);
  const { input, pictures } = turnsFromItems(data.reverse()).at(-1) ?? new Turn("");
  return { responseId, input, pictures };
}

/** It has ended, one way or another. */
export function forgetPending(conversation) {
  const all = recallAll();
  delete all[conversation];
  remember("pending", all, tabStorage());
}

const recallAll = () => recall("pending", {}, tabStorage());
