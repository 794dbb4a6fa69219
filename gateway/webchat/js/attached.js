// Text files in a message: how they are written into it, and how they are found again to be shown folded.

import { codeBlock } from "./code_block.js";
import { make } from "./dom.js";
import { fenced } from "./download.js";

const FILE = /(?<=^|\n\n)(?<name>[^\n`]+)\n(?<fence>`{3,})(?<language>[a-z0-9]*)\n(?<text>[\s\S]*?)\n\k<fence>(?=\n|$)/g;

/** A file as part of a message. */
export const written = (name, text) => `${name}\n${fenced(text, languageOf(name))}`;

/** The nodes of a message: its words as they are, its files folded away. */
export function saidNodes(message) {
  const nodes = [];
  let at = 0;
  for (const found of message.matchAll(FILE)) {
    const { name, language, text } = found.groups;
    if (language !== languageOf(name)) continue; // somebody's own block of code
    nodes.push(message.slice(at, found.index).trimEnd(), file(name, language, text));
    at = found.index + found[0].length;
  }
  const rest = message.slice(at);
  return [...nodes, at ? rest.trimStart() : rest].filter(Boolean);
}

function file(name, language, text) {
  const lines = text.split("\n").length;
  const size = make("span", {}, lines === 1 ? "1 line" : `${lines.toLocaleString("en")} lines`);
  return make("details", { class: "said-file" }, make("summary", {}, make("bdi", {}, name), size), codeBlock(text, language));
}

const languageOf = (name) => /\.([a-z0-9]{1,10})$/i.exec(name)?.[1].toLowerCase() ?? "";
