// One tool that the model called: a line with its name, and behind it what it was given and what it gave back.

import { codeBlock } from "./code_block.js";
import { icon, make } from "./dom.js";

/** Build the block of a call `{name, given, output}`. */
export function toolCall({ name, given, output }) {
  return make(
    "details",
    { class: "tool" },
    make("summary", {}, icon("chevron", "icon turn-chevron"), make("span", {}, output === null ? "Calls " : "Called ", make("code", {}, name))),
    codeBlock(pretty(given), "arguments"),
    output === null ? null : codeBlock(pretty(output), "result"),
  );
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
