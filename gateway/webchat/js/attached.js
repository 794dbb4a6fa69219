// Text files in a message: how they are written into it, and how they are found again to be shown folded.

import { codeBlock } from "./code_block.js";
import { make } from "./dom.js";
import { fenced } from "./download.js";

const FILE = /(?<=^|\n\n)(?<name>[^\n`]+)\n(?<fence>`{3,})(?<language>[a-z0-9]*)\n(?<text>[\s\S]*?)\n\k<fence>(?=\n|$)/g;

/** A message of files and what is said of them. */
export const joined = (files, words) => [...files.map(({ name, text }) => fileText(name, text)), words].filter(Boolean).join("\n\n");

const fileText = (name, text) => `${name}\n${fenced(text, languageOf(name))}`;

/** Part a message as it was joined: the files that it begins with, and the words behind them. */
export function parted(message) {
  const files = [];
  let rest = 0;
  for (const { index, length, name, text } of filesIn(message)) {
    if (message.slice(rest, index).trim()) break;
    files.push({ name, text: `${text}\n` }); // the line's end that the fence took
    rest = index + length;
  }
  return { files, words: rest ? message.slice(rest).trimStart() : message };
}

/** The nodes of a message: its words as they are, its files folded away. */
export function saidNodes(message) {
  const nodes = [];
  let at = 0;
  for (const { index, length, name, language, text } of filesIn(message)) {
    nodes.push(message.slice(at, index).trimEnd(), file(name, language, text));
    at = index + length;
  }
  const rest = message.slice(at);
  return [...nodes, at ? rest.trimStart() : rest].filter(Boolean);
}

/** The same nodes; what lies behind the first `most` characters of words is in an element of its own, if anything does. */
export function folded(nodes, most) {
  let left = most;
  const at = nodes.findIndex((node) => typeof node === "string" && (left -= node.length) < 0);
  if (at === -1) return nodes;
  const words = nodes[at];
  const cut = words.length + left;
  const end = /[\uD800-\uDBFF]/.test(words[cut - 1]) ? cut - 1 : cut; // never between the halves of a character
  return [...nodes.slice(0, at), words.slice(0, end), make("span", { class: "said-rest" }, words.slice(end), ...nodes.slice(at + 1))];
}

/** How long a text is, in words. */
export function linesOf(text) {
  const lines = text.replace(/\n$/, "").split("\n").length;
  return lines === 1 ? "1 line" : `${lines.toLocaleString("en")} lines`;
}

function* filesIn(message) {
  for (const found of message.matchAll(FILE)) {
    const { name, language, text } = found.groups;
    if (language !== languageOf(name)) continue; // somebody's own block of code
    yield { index: found.index, length: found[0].length, name, language, text };
  }
}

function file(name, language, text) {
  const summary = make("summary", {}, make("bdi", {}, name), make("span", {}, linesOf(text)));
  return make("details", { class: "said-file" }, summary, codeBlock(text, language));
}

const languageOf = (name) => /\.([a-z0-9]{1,10})$/i.exec(name)?.[1].toLowerCase() ?? "";
