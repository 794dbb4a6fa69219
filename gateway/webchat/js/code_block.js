// A block of code: its language, a copy button, and the text, which scrolls sideways on its own.

import { copyButton } from "./clipboard.js";
import { make } from "./dom.js";

/** Build the figure; its text may grow by `growCode`. */
export function codeBlock(text, language) {
  const code = make("code", {});
  growCode(code, text);
  return make(
    "figure",
    { class: "code", dir: "ltr" },
    make("figcaption", {}, make("span", { text: language || "text" }), copyButton("Copy code", () => code.textContent)),
    make("pre", { tabindex: "0" }, code),
  );
}

// The browser lays a box out anew as a whole, so a long text has many: each ends with the line that makes it this long.
const LONG = 2_000;

/** Add text to a `code` element; that costs no more where much stands before it. */
export function growCode(code, text) {
  for (let at = 0; at < text.length; ) {
    let lines = code.lastElementChild?.firstChild;
    if (!lines || (lines.length >= LONG && lines.data.endsWith("\n"))) {
      lines = document.createTextNode("");
      code.append(make("span", { class: "code-lines" }, lines));
    }
    const end = text.indexOf("\n", at + Math.max(LONG - lines.length - 1, 0)) + 1 || text.length;
    lines.appendData(text.slice(at, end));
    at = end;
  }
}
