// The server's HTTP interface, as far as the page needs it. Every failure is a Problem.

import { setClock } from "./clock.js";
import { readEvents } from "./event_stream.js";
import { Problem, problemOf } from "./problem.js";
import { recall, remember, tabStorage } from "./storage.js";

export class Api {
  #asking = null;
  #key = recall("key") ?? recall("key", null, tabStorage());

  /** `askForKey(again)` is called at a 401; it resolves to `{key, keep}`, or to null if the user declines. */
  constructor({ askForKey }) {
    this.askForKey = askForKey;
  }

  models = () => this.#json("GET", "v1/models");

  conversations = (after) => this.#json("GET", `v1/conversations?limit=50${after ? `&after=${encodeURIComponent(after)}` : ""}`);

  conversation = (id) => this.#json("GET", `v1/conversations/${encodeURIComponent(id)}`);

  createConversation = (title) => this.#json("POST", "v1/conversations", { metadata: { title } });

  /** What else stands in the metadata stays: the server keeps what it is sent, whole. */
  renameConversation = ({ id, metadata }, title) => this.#json("POST", `v1/conversations/${encodeURIComponent(id)}`, { metadata: { ...metadata, title } });

  deleteConversation = (id) => this.#json("DELETE", `v1/conversations/${encodeURIComponent(id)}`);

  deleteResponse = (id) => this.#json("DELETE", `v1/responses/${encodeURIComponent(id)}`);

  deleteItem = (conversation, id) => this.#json("DELETE", `v1/conversations/${encodeURIComponent(conversation)}/items/${encodeURIComponent(id)}`);

  response = (id) => this.#json("GET", `v1/responses/${encodeURIComponent(id)}`);

  /** What was said to get an answer, newest first, with its pictures; also of one that is being made. */
  inputItems = (id) => this.#json("GET", `v1/responses/${encodeURIComponent(id)}/input_items?limit=100&${WITH_PICTURES}`);

  /** Stop an answer; resolves to the response as it is then. */
  cancelResponse = (id) => this.#json("POST", `v1/responses/${encodeURIComponent(id)}/cancel`);

  /** Have the model stop thinking and answer. */
  endReasoning = (id) => this.#json("POST", `v1/requests/${encodeURIComponent(id)}/control`, { action: "end_reasoning" });

  /** Newest items first, with their pictures. */
  items = (id, after) =>
    this.#json("GET", `v1/conversations/${encodeURIComponent(id)}/items?limit=100&order=desc&${WITH_PICTURES}${after ? `&after=${encodeURIComponent(after)}` : ""}`);

  async alive() {
    try {
      return (await send("health/live", { cache: "no-store" }, { silenceMs: ALIVE_MS })).ok;
    } catch {
      return false;
    }
  }

  /** Ask for an answer that the server goes on with when nobody reads it, for a while; yields its events, parsed. */
  respond = (body, signal) => this.#events("POST", "v1/responses", { ...body, background: true, stream: true, stream_options: { unread_limit_s: UNREAD_S } }, signal);

  /** Yield the events of such an answer behind number `after` (null: all), those to come too. */
  events = (id, after, signal) =>
    this.#events("GET", `v1/responses/${encodeURIComponent(id)}?stream=true${after === null ? "" : `&starting_after=${after}`}`, undefined, signal);

  async *#events(method, path, body, signal) {
    const response = await this.#request(method, path, body, { signal, accept: "text/event-stream" });
    for await (const { data } of readEvents(response.body)) yield JSON.parse(data);
  }

  async #json(method, path, body) {
    const response = await this.#request(method, path, body, { accept: "application/json" });
    try {
      return await response.json();
    } catch {
      throw new Problem({}); // cut off in the middle
    }
  }

  async #request(method, path, body, { signal, accept }) {
    for (let again = false; ; again = true) {
      const headers = { accept };
      if (body !== undefined) headers["content-type"] = "application/json";
      if (this.#key) headers.authorization = `Bearer ${this.#key}`;
      const response = await send(path, { method, headers, cache: "no-store", body: body === undefined ? undefined : JSON.stringify(body) }, { signal });
      setClock(response);
      if (response.ok) return response;
      if (response.status !== 401 || !(await this.#newKey(again))) throw await problemOf(response);
    }
  }

  // Several requests may meet the 401 at once; the user is asked once for all of them.
  async #newKey(again) {
    this.#asking ??= this.askForKey(again || Boolean(this.#key)).finally(() => (this.#asking = null));
    const answer = await this.#asking;
    if (!answer) return false;
    this.#key = answer.key;
    remember("key", answer.keep ? answer.key : null);
    remember("key", answer.keep ? null : answer.key, tabStorage());
    return true;
  }
}

const WITH_PICTURES = "include[]=message.input_image.image_url";
const UNREAD_S = 300; // a reload, a tunnel, a laptop's lid are shorter; a tab that was closed holds its slot no longer
// The edge answers or sends a keep-alive within seconds; after a minute without headers nobody is there.
const SILENCE_MS = 60_000;
const ALIVE_MS = 10_000; // it has nothing to do for that answer; without one, the next question goes out

async function send(path, options, { signal, silenceMs = SILENCE_MS }) {
  const silence = new AbortController();
  const timer = setTimeout(() => silence.abort(), silenceMs);
  try {
    return await fetch(path, { ...options, signal: signal ? AbortSignal.any([signal, silence.signal]) : silence.signal });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Problem({});
  } finally {
    clearTimeout(timer);
  }
}
