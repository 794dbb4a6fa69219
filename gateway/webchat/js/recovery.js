// After a stop, a break or a reload: ask the server what became of a turn. It may still be writing the end down.

import { pause } from "./connection.js";
import { Problem } from "./problem.js";
import { turnsFromItems } from "./turn.js";

const WAITS_MS = [50, 250, 700, 1500, 3000, 6000];

/**
 * Bring `turn` up to what the server kept. `after` is the last item that stood before it in the conversation.
 * Resolves to whether the server knew it. Never throws.
 */
export async function recover({ api, connection, conversation, turn, after }) {
  const status = turn.status;
  for (const waitMs of WAITS_MS) {
    await pause(waitMs);
    if (connection.isLost) await connection.back();
    try {
      const known = turn.responseId ? await fromResponse(api, turn) : await fromItems(api, conversation, turn, after);
      if (!known) continue;
      if (turn.status === "incomplete") turn.status = status; // the page knows better why it ended
      return true;
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      if (error.isConnection) await connection.back();
      else if (error.status !== 404) return false;
    }
  }
  return false;
}

async function fromResponse(api, turn) {
  const response = await api.response(turn.responseId);
  if (response.status === "in_progress" || response.status === "queued") return false;
  turn.end(response);
  return true;
}

async function fromItems(api, conversation, turn, after) {
  const { data } = await api.items(conversation);
  const stored = turnsFromItems(data.reverse()).at(-1);
  if (!stored || stored.lastItemId === after || stored.input !== turn.input) return false;
  const { answer, reasoning, status, lastItemId, responseId } = stored;
  Object.assign(turn, { answer, reasoning, status, lastItemId, responseId });
  return true;
}
