// What the user said, with what can be done about it: copy it, or write it anew and have the answer to that.

import { folded, parted, saidNodes } from "./attached.js";
import { Attachments } from "./attachments.js";
import { copyButton } from "./clipboard.js";
import { iconButton, make } from "./dom.js";
import { pictureRow } from "./pictures.js";

const LONG = 3_000; // characters; a message of so many would push its answer out of sight
const MOST_TO_EDIT = 50_000; // of words; more, in short lines, would take a box seconds to lay out

export class Said {
  #bubble;
  #actions;

  /**
   * `pictures` are data: URLs. `onEdit(text, pictures)` asks the new words and resolves to whether that began; `numAfter()`
   * counts the turns behind this one.
   */
  constructor(text, { pictures = [], onEdit, numAfter }) {
    Object.assign(this, { text, pictures, onEdit, numAfter });
    this.#bubble = make("div", { class: "said", dir: "auto" }, pictureRow(pictures), ...folded(saidNodes(text), LONG));
    const isLong = Boolean(this.#bubble.querySelector(".said-rest"));
    this.#bubble.classList.toggle("folded", isLong);
    this.#actions = make(
      "div",
      { class: "said-actions" },
      isLong ? make("button", { type: "button", class: "text-button", "aria-expanded": "false", onclick: (event) => this.#unfold(event.target) }, "Show all") : null,
      copyButton("Copy message", () => text),
      this.#mayEdit ? iconButton("pencil", "Edit message", () => this.edit(), "plain-button edit") : null,
    );
    this.node = make("article", { class: "said-place", "aria-label": "You" }, this.#bubble, this.#actions);
  }

  get #mayEdit() {
    return parted(this.text).words.length <= MOST_TO_EDIT;
  }

  #unfold(button) {
    const isFolded = this.#bubble.classList.toggle("folded");
    button.textContent = isFolded ? "Show all" : "Show less";
    button.setAttribute("aria-expanded", String(!isFolded));
    if (isFolded) this.node.scrollIntoView({ block: "nearest" });
  }

  /** Let the user write it anew, in its place. */
  edit() {
    if (this.node.querySelector("form") || !this.#mayEdit) return;
    const { files, words } = parted(this.text);
    const field = make("textarea", { class: "said-field", "aria-label": "Edit message", rows: 1, dir: "auto" });
    field.value = words;
    const attached = new Attachments(field);
    this.pictures.forEach((url, at) => attached.addPicture(`picture ${at + 1}`, url));
    for (const { name, text } of files) attached.add(name, text);
    const send = make("button", { class: "button" }, "Send");
    const cancel = make("button", { type: "button", class: "text-button", onclick: () => this.#close() }, "Cancel");
    const note = make("p", { class: "said-note" }, lossOf(this.numAfter()));
    const form = make("form", { class: "said-form" }, attached.node, field, note, make("div", { class: "said-foot" }, cancel, send));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      void this.#send(attached.with(field.value.trim()), attached.pictures, [field, send, cancel]);
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

  async #send(text, pictures, parts) {
    if (!text && !pictures.length) return;
    for (const part of parts) part.disabled = true;
    if (await this.onEdit(text, pictures)) return; // this turn is gone; another one stands in its place
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
