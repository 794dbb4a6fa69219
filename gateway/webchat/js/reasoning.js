// The model's thinking, above its answer: open while it thinks if the user opened it, one line otherwise.

import { make, icon } from "./dom.js";
import { GrowingText } from "./growing_text.js";

export class Reasoning {
  #label = make("span", { class: "reasoning-label" }, "Thinking…");
  #body = make("div", { class: "reasoning-body prose" });
  #text = new GrowingText(this.#body);
  #enough;

  /** `onEnough` is called when the user has waited long enough for the answer. */
  constructor(onEnough) {
    this.#enough = make("button", { type: "button", class: "text-button enough", hidden: true, onclick: () => this.#ask(onEnough) }, "Answer now");
    this.node = make("div", { class: "reasoning", hidden: true }, this.#enough);
  }

  // Most answers have none; and a details element that is not there costs the browser nothing.
  #reveal() {
    this.node.hidden = false;
    if (this.#body.parentNode) return;
    const summary = make("summary", {}, icon("chevron", "icon turn-chevron"), this.#label);
    this.node.prepend(make("details", {}, summary, this.#body));
  }

  #ask(onEnough) {
    this.#enough.disabled = true; // once is enough; a failure lets the user try again
    onEnough().catch(() => (this.#enough.disabled = false));
  }

  append(text) {
    this.#reveal();
    this.#text.append(text);
  }

  /** Show the whole text (from the server), if it is not what stands here already. */
  settle(text) {
    if (text) this.#reveal();
    else this.node.hidden = true;
    this.#text.settle(text);
  }

  /** Thinking is over; `usage` tells how much it was, once it is known. */
  label(running, usage) {
    this.node.classList.toggle("running", running);
    this.#enough.hidden = !running;
    this.#label.textContent = running ? "Thinking…" : finishedLabel(usage);
  }
}

function finishedLabel(usage) {
  const plan = usage?.headrace?.reasoning;
  const used = plan?.used ?? usage?.output_tokens_details?.reasoning_tokens;
  if (!used) return "Thoughts";
  const budget = plan?.ended_by === "budget" ? ", all its budget" : "";
  return `Thought for ${used.toLocaleString("en")} ${used === 1 ? "token" : "tokens"}${budget}`;
}
