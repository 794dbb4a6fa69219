// The box to write in. Enter sends, Shift+Enter breaks the line, and the text stays when it could not be sent.

import { Attachments } from "./attachments.js";
import { byId } from "./dom.js";

export class Composer extends EventTarget {
  #field = byId("message");
  #send = byId("send");
  #stop = byId("stop");
  #attached = new Attachments(this.#field, () => this.#fit());
  #running = false;
  // On a phone, focus would bring up the keyboard unasked.
  #mayFocus = window.matchMedia("(pointer: fine)").matches;

  constructor() {
    super();
    this.#field.before(this.#attached.node);
    this.#field.addEventListener("input", () => this.#fit());
    this.#field.addEventListener("keydown", (event) => {
      if (event.key === "ArrowUp" && this.#isEmpty && !event.isComposing) this.dispatchEvent(new Event("back"));
      // Enter that ends an input method's composition is not a wish to send.
      if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.keyCode === 229) return;
      event.preventDefault();
      this.#submit();
    });
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#submit();
    });
    byId("composer").addEventListener("click", ({ target }) => target === target.closest(".composer") && this.focus());
    this.#stop.addEventListener("click", () => this.dispatchEvent(new Event("stop")));
    this.#fit();
  }

  /** While an answer runs the send button is a stop button. */
  set running(running) {
    const hadFocus = [this.#send, this.#stop].includes(document.activeElement) && this.#mayFocus;
    this.#running = running;
    this.#send.hidden = running;
    this.#stop.hidden = !running;
    if (hadFocus) (running ? this.#stop : this.#field).focus();
  }

  set text(text) {
    this.#field.value = text;
    this.#fit();
  }

  /** Let a file go with the message. */
  attach(name, text) {
    this.#attached.add(name, text);
  }

  /** How many pictures are with the message. */
  get numPictures() {
    return this.#attached.pictures.length;
  }

  /** Let a picture, a data: URL, go with the message. */
  attachPicture(name, url) {
    this.#attached.addPicture(name, url);
  }

  focus() {
    this.#field.focus();
  }

  #submit() {
    if (this.#isEmpty || this.#running) return;
    const { pictures } = this.#attached;
    const text = this.#attached.with(this.#field.value.trim());
    this.text = "";
    this.#attached.clear();
    this.dispatchEvent(new CustomEvent("send", { detail: { text, pictures } }));
  }

  get #isEmpty() {
    return this.#attached.isEmpty && !this.#field.value.trim();
  }

  #fit() {
    // `field-sizing: content` does this in CSS where it exists.
    if (!CSS.supports("field-sizing", "content")) {
      this.#field.style.height = "auto";
      this.#field.style.height = `${this.#field.scrollHeight}px`;
    }
    this.#send.disabled = this.#isEmpty;
  }
}
