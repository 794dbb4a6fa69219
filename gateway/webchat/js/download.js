// The conversation on screen as a file: Markdown to read, JSON to work with.

import { byId, make } from "./dom.js";
import { choose } from "./dialogs.js";
import { Problem } from "./problem.js";
import { turnsFromItems } from "./turn.js";

const KINDS = { md: "text/markdown", json: "application/json" };

/** Wire the button and its question. `connection` is told when the conversation cannot be read. */
export function wireDownload({ chat, connection }) {
  byId("download").addEventListener("click", async () => {
    const kind = await choose("download-kind");
    const { current } = chat;
    if (!KINDS[kind] || !current) return;
    try {
      const items = await chat.wholeOf();
      const title = byId("title").textContent;
      save(`${fileName(title)}.${kind}`, kind === "md" ? asMarkdown(title, items) : asJson(current, title, items), KINDS[kind]);
    } catch (problem) {
      if (!(problem instanceof Problem)) throw problem;
      connection.tell(problem);
    }
  });
}

/** The conversation as a text that people read. */
export function asMarkdown(title, items) {
  const parts = [`# ${title}`];
  for (const turn of turnsFromItems(items)) {
    if (turn.input || turn.pictures.length) parts.push("## You", ...turn.pictures.map((url) => `![A picture](${url})`), turn.input);
    parts.push("## Answer");
    if (turn.reasoning) parts.push(`<details><summary>Thoughts</summary>\n\n${turn.reasoning}\n\n</details>`);
    for (const { name, given, output } of turn.calls) parts.push(`Called \`${name}\` with`, fenced(given), ...(output === null ? [] : ["which gave", fenced(output)]));
    if (turn.answer) parts.push(turn.answer);
  }
  return `${parts.join("\n\n")}\n`;
}

const asJson = (id, title, items) => `${JSON.stringify({ id, title, items }, null, 2)}\n`;

/** `text` as a code block whose fence is longer than any run of backticks in it. */
export function fenced(text, language = "") {
  let longest = 2;
  for (const [run] of text.matchAll(/`+/g)) longest = Math.max(longest, run.length);
  const fence = "`".repeat(longest + 1);
  return `${fence}${language}\n${text.replace(/\n$/, "")}\n${fence}`;
}

// Letters and digits of every script stay; what file systems do not like becomes a dash.
const fileName = (title) => title.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-+|-+$/g, "").slice(0, 60) || "conversation";

function save(name, text, type) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  make("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
