// The box to write in. Enter sends, Shift+Enter breaks the line, and the text stays when it could not be sent.

import { byId } from "./dom.js";

export class Composer extends EventTarget {
  #field = byId("message");
  #send = byId("send");
  #stop = byId("stop");
  #running = false;
  // On a phone, focus would bring up the keyboard unasked.
  #mayFocus = window.matchMedia("(pointer: fine)").matches;

  constructor() {
    super();
    this.#field.addEventListener("input", () => this.#fit());
    this.#field.addEventListener("keydown", (event) => {
      if (event.key === "ArrowUp" && !this.#field.value && !event.isComposing) this.dispatchEvent(new Event("back"));
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

  get text() {
    return this.#field.value;
  }

  set text(text) {
    this.#field.value = text;
    this.#fit();
  }

  focus() {
    this.#field.focus();
  }

  #submit() {
    const text = this.#field.value.trim();
    if (!text || this.#running) return;
    this.text = "";
    this.dispatchEvent(new CustomEvent("send", { detail: text }));
  }

  #fit() {
    // `field-sizing: content` does this in CSS where it exists.
    if (!CSS.supports("field-sizing", "content")) {
      this.#field.style.height = "auto";
      this.#field.style.height = `${this.#field.scrollHeight}px`;
    }
    this.#send.disabled = !this.#field.value.trim();
  }
}
