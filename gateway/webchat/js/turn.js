// One turn: what the user wrote and what came back, fed by the events of a Responses stream or read from stored items.

import { picturesIn } from "./pictures.js";
import { Problem } from "./problem.js";

/** @typedef {"waiting"|"thinking"|"answering"|"completed"|"stopped"|"length"|"filtered"|"failed"|"lost"|"left"|"incomplete"} TurnStatus */

export class Turn {
  input = "";
  reasoning = "";
  answer = "";
  /** @type {TurnStatus} */
  status = "waiting";
  /** The response that speaks for this turn: its newest. */
  responseId = null;
  /** All stored responses of this turn: one, or several when tools were called between. */
  responseIds = new Set();
  /** Stored items that no response made. */
  looseItemIds = [];
  /** Tools that were called: {id, name, given, output}. */
  calls = [];
  usage = null;
  problem = null;
  lastItemId = null;

  /** `pictures` that go with the user's words, as data: URLs. */
  constructor(input, pictures = []) {
    this.input = input;
    this.pictures = pictures;
  }

  get running() {
    return this.status === "waiting" || this.status === "thinking" || this.status === "answering";
  }

  /** Only this page knows it: it failed or was lost before the server stored it. */
  get isLocal() {
    return !this.running && this.lastItemId === null;
  }

  /** Take one stream event; returns which text grew ("reasoning" or "answer"), if one did. */
  take(event) {
    switch (event.type) {
      case "response.created":
        this.#madeBy(event.response?.id);
        return null;
      case "response.reasoning_text.delta":
      case "response.reasoning_summary_text.delta":
        this.reasoning += event.delta;
        this.status = "thinking";
        return "reasoning";
      case "response.output_text.delta":
        this.answer += event.delta;
        this.status = "answering";
        return "answer";
      case "response.completed":
      case "response.incomplete":
      case "response.failed":
      case "response.cancelled":
        this.end(event.response);
        return null;
      case "error":
        this.fail(event.error ?? event);
        return null;
      default:
        return null; // newer servers may send more
    }
  }

  /** Take the finished response object (from the stream's end, or fetched later). */
  end(response) {
    this.#madeBy(response.id);
    const { answer, reasoning } = textsOf(response.output ?? []);
    if (answer) this.answer = answer; // the whole text is the truth, whatever was missed on the way
    if (reasoning) this.reasoning = reasoning;
    for (const item of response.output ?? []) this.#takeCall(item);
    this.lastItemId = response.output?.at(-1)?.id ?? this.lastItemId;
    this.endAs(response);
  }

  /** Take how the finished response ended and what it cost. */
  endAs(response) {
    this.usage = response.usage ?? this.usage;
    if (response.status === "completed") this.status = "completed";
    else if (response.status === "cancelled") this.status = response.error?.headrace?.code === "unread" ? "left" : "stopped";
    else if (response.status === "failed") this.fail(response.error ?? {});
    else this.status = incompleteStatus(response.incomplete_details?.reason);
  }

  /** Note a stored item that belongs to this turn. */
  note(item) {
    this.lastItemId = item.id;
    if (item.response_id) this.#madeBy(item.response_id);
    else this.looseItemIds.push(item.id);
    this.#takeCall(item);
  }

  #madeBy(responseId) {
    if (!responseId) return;
    this.responseId = responseId;
    this.responseIds.add(responseId);
  }

  #takeCall(item) {
    const known = this.calls.find((call) => call.id === item.call_id);
    const given = GIVEN[item.type];
    if (given && !known) this.calls.push({ id: item.call_id, name: nameOf(item), given: item[given], output: null });
    if (OUTPUTS.has(item.type) && known) known.output = outputText(item.output);
  }

  /** Take a Problem, or the error object of an event. */
  fail(error) {
    const code = error.headrace?.code ?? error.code; // beside OpenAI's few codes stands the server's own
    this.status = code === "content_filter" ? "filtered" : "failed";
    this.problem = error instanceof Problem ? error : new Problem({ code: code || "internal_error", message: error.message });
  }
}

// The page offers no tools, so its own streams bring no calls; conversations that other clients wrote may hold any.
const GIVEN = { function_call: "arguments", custom_tool_call: "input" };
const OUTPUTS = new Set(["function_call_output", "custom_tool_call_output"]);

const nameOf = (item) => (item.namespace ? `${item.namespace}.${item.name}` : item.name);

function outputText(output) {
  if (typeof output === "string") return output;
  return (output ?? []).map((part) => part.text ?? JSON.stringify(part)).join("");
}

function incompleteStatus(reason) {
  if (reason === "max_output_tokens" || reason === "length") return "length";
  if (reason === "content_filter") return "filtered";
  if (reason === "cancelled" || reason === "client_gone") return "stopped";
  return "incomplete";
}

/** The answer and reasoning text in a list of output items. */
export function textsOf(items) {
  let answer = "";
  let reasoning = "";
  for (const item of items) {
    for (const part of item.content ?? []) {
      if (part.type === "reasoning_text") reasoning += part.text;
      else if (part.type === "output_text") answer += part.text; // a refusal is no text: the notice says it
    }
    for (const part of item.summary ?? []) reasoning += part.text ?? "";
  }
  return { answer, reasoning };
}

/** Group stored items, oldest first, into turns: a user's message opens one, everything up to the next belongs to it. */
export function turnsFromItems(items) {
  const turns = [];
  for (const item of items) {
    if (item.type === "message" && (item.role === "system" || item.role === "developer")) continue;
    if (item.type === "message" && item.role === "user") {
      turns.push(new Turn(inputText(item), picturesIn(item)));
      turns.at(-1).status = "incomplete";
    } else {
      if (!turns.length) turns.push(new Turn(""));
      addOutput(turns.at(-1), item);
    }
    turns.at(-1).note(item);
  }
  return turns;
}

function addOutput(turn, item) {
  const { answer, reasoning } = textsOf([item]);
  turn.answer += answer;
  turn.reasoning += reasoning;
  if (item.type === "message") turn.status = item.status === "incomplete" ? "incomplete" : "completed";
}

function inputText(item) {
  if (typeof item.content === "string") return item.content;
  return (item.content ?? []).map((part) => part.text ?? "").join("");
}
