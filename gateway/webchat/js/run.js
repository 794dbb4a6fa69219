// One answer on its way: its events, the turn they feed, and how both end. The server makes it whether anybody reads it or
// not: when the connection breaks, the events go on behind the last one that came.

import { announce } from "./announcer.js";
import { Problem } from "./problem.js";

export class Run {
  #controller = new AbortController();
  #last = null; // the number of the last event taken
  #stop;
  #name;
  /** Somebody has deleted the answer while it was made. */
  isGone = false;
  /** Resolves when `stop` is called. */
  stopped = new Promise((resolve) => (this.#stop = resolve));
  // Resolves to the id of the response once it is known, to null if there will be none.
  #named = new Promise((resolve) => (this.#name = resolve));

  constructor({ api, connection, conversation, turn, view }) {
    Object.assign(this, { api, connection, conversation, turn, view });
  }

  /** Ask with `body` and take the answer to its end; never throws. `on` is called for events of some types, by these. */
  begin(body, on) {
    return this.#untilOver(async () => {
      try {
        await this.#take(this.api.respond(body, this.#controller.signal), on);
      } catch (problem) {
        if (!problem.isConnection || !this.turn.responseId) throw problem;
        await this.#goOn();
      }
    });
  }

  /** Take an answer that was asked for before, from its first event to its end; never throws. */
  resume() {
    this.#name(this.turn.responseId);
    return this.#untilOver(() => this.#goOn());
  }

  /** Stop: on screen at once, at the server as soon as the answer has a name. Resolves when the server knows. */
  async stop() {
    const { api, connection, turn, view } = this;
    if (!turn.running) return;
    turn.status = "stopped";
    this.#stop();
    const id = await this.#named;
    this.#controller.abort();
    if (!id) return;
    try {
      turn.end(await connection.keepTrying(() => api.cancelResponse(id)));
    } catch (problem) {
      if (problem.status !== 404) connection.tell(problem); // else it was deleted meanwhile
    }
    view.settle();
  }

  /** It could not even begin. */
  fail(problem) {
    this.turn.status = "lost";
    if (!problem.isConnection) this.turn.fail(problem);
    this.#name(null);
    this.view.settle();
  }

  async #untilOver(take) {
    const { turn, view } = this;
    announce("The model is answering.");
    if (turn.running) await Promise.race([this.stopped, this.#whole(take)]);
    else this.#name(null); // it was stopped before it was asked for
    view.settle();
    announce(turn.status === "completed" ? "The answer is complete." : "The answer has ended early.");
  }

  async #whole(take) {
    try {
      await take();
    } catch (problem) {
      this.#broken(problem);
    }
    this.#name(null);
  }

  #goOn() {
    return this.connection.keepTrying(() => this.#takeRest());
  }

  async #takeRest() {
    const { api, turn } = this;
    try {
      await this.#take(api.events(turn.responseId, this.#last, this.#controller.signal));
    } catch (problem) {
      if (problem.status !== 400) throw problem;
      turn.end(await api.response(turn.responseId)); // it was over long ago: its events are not kept any more
    }
  }

  // Take events until the turn is over. Throws a Problem if they break off before.
  async #take(events, on = {}) {
    const { turn, view } = this;
    try {
      for await (const event of events) {
        if (event.type === "response.created") this.#name(event.response.id);
        if (!turn.running) return; // it was stopped
        const part = turn.take(event);
        this.#last = event.sequence_number;
        if (part) view.grow(part, event.delta);
        else on[event.type]?.();
      }
    } catch (error) {
      if (error instanceof Problem) throw error;
    }
    if (turn.running) throw new Problem({});
  }

  #broken(problem) {
    const { turn } = this;
    if (!turn.running) return;
    this.isGone = problem.status === 404 && Boolean(turn.responseId);
    if (problem.isConnection || this.isGone) turn.status = "lost";
    else turn.fail(problem);
  }
}
