// Is the server there? Reading is tried again with growing pauses until it is; the banner says so plainly.

import { byId } from "./dom.js";
import { Problem } from "./problem.js";

const FIRST_PAUSE_MS = 400;
const LONGEST_PAUSE_MS = 8_000;
const SHOWN_MS = 3_000;

export class Connection extends EventTarget {
  #lost = false;
  #timer = 0;
  #banner = byId("banner");
  #returning = null;

  constructor(api) {
    super();
    this.api = api;
    window.addEventListener("offline", () => this.lose());
  }

  get isLost() {
    return this.#lost;
  }

  /** Do `read()` now or as soon as the server is there again. Only for what may be repeated. */
  async keepTrying(read) {
    for (let pauseMs = FIRST_PAUSE_MS; ; pauseMs = Math.min(2 * pauseMs, LONGEST_PAUSE_MS)) {
      try {
        const result = await read();
        this.#found();
        return result;
      } catch (error) {
        if (!(error instanceof Problem) || !mayPass(error)) throw error;
        if (error.isConnection) await Promise.all([this.back(), pause(pauseMs)]);
        else await pause(pauseMs);
      }
    }
  }

  /** The connection was seen to break: say so and wait for it in the background. */
  lose() {
    void this.back();
  }

  /** Resolve when the server answers again. */
  back() {
    this.#returning ??= this.#wait().finally(() => (this.#returning = null));
    return this.#returning;
  }

  /** Say what went wrong (a Problem or a sentence) for a while. */
  tell(problem) {
    if (!(problem instanceof Problem) && typeof problem !== "string") throw problem;
    if (problem.isConnection) return this.lose();
    this.#say("lost", problem.sentence ?? problem);
    this.#timer = setTimeout(() => this.#say("", ""), 2 * SHOWN_MS);
  }

  async #wait() {
    for (let pauseMs = FIRST_PAUSE_MS; !(await this.api.alive()); pauseMs = Math.min(2 * pauseMs, LONGEST_PAUSE_MS)) {
      this.#lost = true;
      this.#say("lost", "The server cannot be reached. Trying again…");
      await pause(pauseMs * (0.75 + Math.random() / 2), "online");
    }
    this.#found();
  }

  #found() {
    if (!this.#lost) return;
    this.#lost = false;
    this.#say("back", "Reconnected.");
    this.#timer = setTimeout(() => this.#say("", ""), SHOWN_MS);
    this.dispatchEvent(new Event("back"));
  }

  #say(state, text) {
    clearTimeout(this.#timer);
    this.#banner.dataset.state = state;
    if (this.#banner.textContent !== text) this.#banner.textContent = text;
  }
}

const mayPass = (problem) => problem.isConnection || problem.status === 429 || problem.status >= 500;

/** Wait; a window event of the name `sooner` ends the wait early. */
export function pause(ms, sooner = null) {
  return new Promise((resolve) => {
    const done = () => {
      clearTimeout(timer);
      if (sooner) window.removeEventListener(sooner, done);
      resolve();
    };
    const timer = setTimeout(done, ms);
    if (sooner) window.addEventListener(sooner, done);
  });
}
