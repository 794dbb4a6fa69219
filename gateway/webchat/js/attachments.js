// Files that go with a message, and long texts that were pasted: shown by name above the box. In the box itself they would
// cost seconds, with every key once more: the browser lays out all of it.

import { announce } from "./announcer.js";
import { joined, linesOf } from "./attached.js";
import { iconButton, make } from "./dom.js";

const LONG = 10_000; // characters; about four pages

const textIn = (clipboard) => clipboard.getData("text/plain");

/** The files that somebody copied. Office programs put a picture beside the text that was copied: that is none. */
export function filesIn(clipboard) {
  const files = [...clipboard.files];
  return textIn(clipboard) && files.every((file) => file.type.startsWith("image/")) ? [] : files;
}

export class Attachments {
  #files = []; // texts, and pictures: {name, text} or {name, url}
  #onChange;
  node = make("ul", { class: "attachments", "aria-label": "Attached", hidden: true });

  /** Take long pastes into `field`; `onChange()` is called when files come or go. */
  constructor(field, onChange = () => {}) {
    this.#onChange = onChange;
    field.addEventListener("paste", (event) => {
      const text = textIn(event.clipboardData);
      if (text.length <= LONG || filesIn(event.clipboardData).length) return;
      event.preventDefault();
      this.add(this.#nameOfPaste(), text.replace(/\r\n?/g, "\n"));
    });
  }

  get isEmpty() {
    return !this.#files.length;
  }

  /** Add a text under a name. */
  add(name, text) {
    this.#add({ name, text }, make("bdi", {}, name), make("span", {}, linesOf(text)));
  }

  /** Add a picture, a data: URL, under a name. */
  addPicture(name, url) {
    this.#add({ name, url }, make("img", { src: url, alt: "" }), make("bdi", {}, name));
  }

  /** The text of a message of these files and the words beside them. */
  with(words) {
    return joined(this.#files.filter((file) => !file.url), words);
  }

  /** The pictures, as data: URLs. */
  get pictures() {
    return this.#files.filter((file) => file.url).map((file) => file.url);
  }

  /** Let all go. */
  clear() {
    this.#files = [];
    this.node.replaceChildren();
    this.#changed();
  }

  #add(file, ...shown) {
    const item = make("li", { class: "attachment" }, ...shown, iconButton("close", `Remove ${file.name}`, () => this.#remove(file, item), "plain-button"));
    this.#files.push(file);
    this.node.append(item);
    this.#changed();
    announce(`${file.name} is attached.`);
  }

  #remove(file, item) {
    this.#files = this.#files.filter((one) => one !== file);
    item.remove();
    this.#changed();
  }

  #changed() {
    this.node.hidden = this.isEmpty;
    this.#onChange();
  }

  #nameOfPaste() {
    const names = this.#files.map(({ name }) => name);
    let name = "pasted.txt";
    for (let number = 2; names.includes(name); number += 1) name = `pasted-${number}.txt`;
    return name;
  }
}
