// A block of code: its language, a copy button, and the text, which scrolls sideways on its own.

import { copyButton } from "./clipboard.js";
import { make } from "./dom.js";

/** Build the figure; `figure.querySelector("code").firstChild` is the one text node, so that a stream can append to it. */
export function codeBlock(text, language) {
  const code = make("code", {}, document.createTextNode(text));
  return make(
    "figure",
    { class: "code", dir: "ltr" },
    make("figcaption", {}, make("span", { text: language || "text" }), copyButton("Copy code", () => code.textContent)),
    make("pre", { tabindex: "0" }, code),
  );
}
