// The model's thinking, above its answer: open while it thinks if the user opened it, one line otherwise.

import { make, icon } from "./dom.js";
import { GrowingText } from "./growing_text.js";

export class Reasoning {
  #label = make("span", { class: "reasoning-label" }, "Thinking…");
  #body = make("div", { class: "reasoning-body prose" });
  #text = new GrowingText(this.#body);
  node = make("details", { class: "reasoning", hidden: true }, make("summary", {}, icon("chevron", "icon turn-chevron"), this.#label), this.#body);

  append(text) {
    this.node.hidden = false;
    this.#text.append(text);
  }

  /** Show the whole text (from the server), if it is not what stands here already. */
  settle(text) {
    this.node.hidden = !text;
    this.#text.settle(text);
  }

  /** Thinking is over; `usage` tells how much it was, once it is known. */
  label(running, usage) {
    this.node.classList.toggle("running", running);
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
