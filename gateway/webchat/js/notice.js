// What the reader must know about an answer that is not simply complete, in plain words.

import { make } from "./dom.js";

const BY_STATUS = {
  stopped: ["", "You stopped this answer."],
  length: ["", "The answer reached its token limit and ends here."],
  filtered: ["shield", "The rest was held back by this server’s content policy."],
  lost: ["warn", "The connection broke. What came before is kept."],
  left: ["", "Nobody was reading any more, so the server ended this answer. What came before is kept."],
  incomplete: ["", "This answer is incomplete."],
};

/** The notices of a turn, as nodes. */
export function notice(turn) {
  const notes = [];
  const dropped = turn.usage?.headrace?.messages_dropped;
  if (dropped) notes.push(["", `The conversation is longer than the model can read: its ${dropped === 1 ? "oldest message was" : `${dropped} oldest messages were`} left out.`]);
  if (turn.status === "filtered" && turn.problem) notes.push(["shield", "This server’s content policy refused the message. It was not answered."]);
  else if (turn.status === "failed") notes.push(["warn", turn.problem.sentence]);
  else if (turn.status === "filtered" && !turn.answer) notes.push(["shield", "This answer was held back by this server’s content policy."]);
  else if (turn.status === "lost" && !turn.answer && !turn.reasoning) notes.push(["warn", "The connection broke before an answer came."]);
  else if (BY_STATUS[turn.status]) notes.push(BY_STATUS[turn.status]);
  return notes.map(([kind, text]) => make("p", { class: `notice ${kind}`, role: kind === "warn" ? "alert" : null }, text));
}
