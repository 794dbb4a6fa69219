// What the user said, with what can be done about it: copy it, or write it anew and have the answer to that.

import { saidNodes } from "./attached.js";
import { copyButton } from "./clipboard.js";
import { iconButton, make } from "./dom.js";

const LONG = 3_000; // characters; a message of so many would push its answer out of sight

export class Said {
  #bubble;
  #actions;

  /** `onEdit(text)` asks the new words and resolves to whether that began; `numAfter()` counts the turns behind this one. */
  constructor(text, { onEdit, numAfter }) {
    Object.assign(this, { text, onEdit, numAfter });
    this.#bubble = make("div", { class: "said", dir: "auto" }, ...saidNodes(text));
    const isLong = text.length > LONG;
    this.#bubble.classList.toggle("folded", isLong);
    this.#actions = make(
      "div",
      { class: "said-actions" },
      isLong ? make("button", { type: "button", class: "text-button", "aria-expanded": "false", onclick: (event) => this.#unfold(event.target) }, "Show all") : null,
      copyButton("Copy message", () => text),
      iconButton("pencil", "Edit message", () => this.edit(), "plain-button edit"),
    );
    this.node = make("article", { class: "said-place", "aria-label": "You" }, this.#bubble, this.#actions);
  }

  #unfold(button) {
    const isFolded = this.#bubble.classList.toggle("folded");
    button.textContent = isFolded ? "Show all" : "Show less";
    button.setAttribute("aria-expanded", String(!isFolded));
    if (isFolded) this.node.scrollIntoView({ block: "nearest" });
  }

  /** Let the user write it anew, in its place. */
  edit() {
    if (this.node.querySelector("form")) return;
    const field = make("textarea", { class: "said-field", "aria-label": "Edit message", rows: 1, dir: "auto" });
    field.value = this.text;
    const send = make("button", { class: "button" }, "Send");
    const cancel = make("button", { type: "button", class: "text-button", onclick: () => this.#close() }, "Cancel");
    const note = make("p", { class: "said-note" }, lossOf(this.numAfter()));
    const form = make("form", { class: "said-form" }, field, note, make("div", { class: "said-foot" }, cancel, send));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      void this.#send(field.value.trim(), [field, send, cancel]);
    });
    field.addEventListener("keydown", (event) => this.#key(event, form));
    this.node.replaceChildren(form);
    field.focus();
    field.setSelectionRange(field.value.length, field.value.length);
  }

  #key(event, form) {
    if (event.key === "Escape") this.#close();
    else if (event.key === "Enter" && !event.shiftKey && !event.isComposing && event.keyCode !== 229) form.requestSubmit();
    else return;
    event.preventDefault();
    event.stopPropagation(); // Escape here stops no answer
  }

  async #send(text, parts) {
    if (!text) return;
    for (const part of parts) part.disabled = true;
    if (await this.onEdit(text)) return; // this turn is gone; another one stands in its place
    for (const part of parts) part.disabled = false;
  }

  #close() {
    this.node.replaceChildren(this.#bubble, this.#actions);
    this.#actions.querySelector(".edit").focus();
  }
}

function lossOf(numAfter) {
  if (!numAfter) return "Its answer will be replaced.";
  return `Its answer and the ${numAfter === 1 ? "message" : `${numAfter} messages`} after it will be taken back.`;
}
