// One answer on its way: the stream, the turn it feeds, and how both end.

import { announce } from "./announcer.js";
import { Problem } from "./problem.js";

export class Run {
  #controller = new AbortController();
  /** Resolves when `stop` is called. */
  stopped = new Promise((resolve) => this.#controller.signal.addEventListener("abort", resolve));

  /** `after` is the last stored item before this turn. */
  constructor({ api, conversation, turn, view, after }) {
    Object.assign(this, { api, conversation, turn, view, after });
  }

  /** Send `body` and take events until the end; never throws. `onCreated` is called once the response has a name. */
  async go(body, onCreated) {
    const { turn, view } = this;
    announce("The model is answering.");
    try {
      for await (const event of this.api.respond(body, this.#controller.signal)) {
        const part = turn.take(event);
        if (part) view.grow(part, event.delta);
        else if (event.type === "response.created") onCreated(turn.responseId);
      }
      if (turn.running) turn.status = "lost"; // the stream ended without saying how the answer did
    } catch (error) {
      this.#broken(error);
    }
    view.settle();
    announce(turn.status === "completed" ? "The answer is complete." : "The answer has ended early.");
  }

  /** Stop: the server sees the closed connection and cancels the generation. */
  stop() {
    this.#controller.abort();
  }

  /** It could not even begin. */
  fail(problem) {
    this.turn.status = "lost";
    if (!problem.isConnection) this.turn.fail(problem);
    this.view.settle();
  }

  #broken(error) {
    const { turn } = this;
    if (!turn.running) return; // the end was told before the connection broke
    if (this.#controller.signal.aborted) turn.status = "stopped";
    else if (error instanceof Problem && !error.isConnection) turn.fail(error);
    else turn.status = "lost";
  }
}
