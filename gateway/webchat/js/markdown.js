// Markdown to DOM, safely. Three fences, each enough alone: raw HTML is shown as text, DOMPurify keeps only what markdown
// needs, and the page's Content-Security-Policy runs no script and loads no image that is not ours.

import { Marked } from "../vendor/marked.esm.js";
import DOMPurify from "../vendor/purify.es.mjs";
import { codeBlock } from "./code_block.js";
import { make } from "./dom.js";
import { formulaExtensions, readFormula, whileGrowing } from "./formula_grammar.js";

const escapeHtml = (text) => text.replace(/[&<>"']/g, (char) => `&#${char.charCodeAt(0)};`);

const formula = (source, isOpen) =>
  `<span class="formula${readFormula(source).isDisplay ? " display" : ""}${isOpen ? " open" : ""}">${escapeHtml(source)}</span>`;

const marked = new Marked({
  extensions: formulaExtensions(formula),
  gfm: true,
  renderer: {
    html: ({ text, block }) => (block ? `<p>${escapeHtml(text)}</p>` : escapeHtml(text)),
    // Images are links: loading one would tell a stranger's server that (and what) somebody reads here.
    image: ({ href, text }) => `<a href="${escapeHtml(href)}">${escapeHtml(text || href)}</a>`,
    checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
  },
});

const ALLOWED = {
  ALLOWED_TAGS: "p br hr h1 h2 h3 h4 h5 h6 strong em del code pre blockquote ul ol li a span table thead tbody tr th td".split(" "),
  ALLOWED_ATTR: ["href", "title", "class", "align", "start"],
  ALLOW_ARIA_ATTR: false,
  ALLOW_DATA_ATTR: false,
  ADD_URI_SAFE_ATTR: ["align", "start"], // DOMPurify checks every other attribute against the pattern of addresses
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
  RETURN_DOM_FRAGMENT: true,
};

// Quotes and lists in one another cost the square of their depth; nobody means 40 of them.
const TOO_DEEP = /^[ \t]*(?:>[ \t]?|[*+-][ \t]+|\d{1,9}[.)][ \t]+){40}/m;

/** Cut markdown into block tokens; each has the `raw` text that it came from. If it `isGrowing`, more will come. */
export function blocksOf(source, { isGrowing = false } = {}) {
  if (TOO_DEEP.test(source)) return [{ type: "unreadable", raw: source }];
  const cut = () => marked.lexer(source);
  try {
    return isGrowing ? whileGrowing(source, cut) : cut();
  } catch {
    return [{ type: "unreadable", raw: source }]; // nested beyond the parser's stack in some other way
  }
}

/** Render block tokens to a DocumentFragment. */
export function render(tokens) {
  let html;
  try {
    html = marked.parser(tokens);
  } catch {
    return plain(tokens);
  }
  return decorate(DOMPurify.sanitize(html, ALLOWED));
}

function plain(tokens) {
  const fragment = document.createDocumentFragment();
  fragment.append(make("p", { class: "unformatted" }, tokens.map((token) => token.raw).join("")));
  return fragment;
}

function decorate(fragment) {
  markRedactions(fragment);
  for (const link of fragment.querySelectorAll("a")) {
    link.target = "_blank";
    link.rel = "noopener noreferrer nofollow";
  }
  for (const span of fragment.querySelectorAll("span.formula")) {
    span.dir = "ltr";
    if (!span.classList.contains("open")) span.dataset.source = span.textContent;
  }
  for (const item of fragment.querySelectorAll("li")) if (/^[☐☑] /.test(item.textContent)) item.classList.add("task");
  for (const pre of fragment.querySelectorAll("pre")) {
    const code = pre.querySelector("code");
    if (code) pre.replaceWith(codeBlock(code.textContent.replace(/\n$/, ""), languageOf(code)));
  }
  for (const table of fragment.querySelectorAll("table")) {
    const frame = make("div", { class: "table-frame", tabindex: "0", role: "region", "aria-label": "Table" });
    table.replaceWith(frame);
    frame.append(table);
  }
  return fragment;
}

// [redacted], or what was there with a number: the same value has the same one (docs/safety.md).
const REDACTED = /\[(?:redacted|removed|PRIVATE_KEY|(?:EMAIL|PHONE|IBAN|CARD|IP|TOKEN)_\d{1,6})\]/i;

// Places that the server's content policy took out are shown as what they are, not as words of the model.
function markRedactions(fragment) {
  const walker = document.createTreeWalker(fragment, NodeFilter.SHOW_TEXT);
  for (let text = walker.nextNode(); text; text = walker.nextNode()) {
    const found = REDACTED.exec(text.data);
    if (!found || text.parentElement?.closest("code, .formula")) continue;
    const place = text.splitText(found.index);
    const rest = place.splitText(found[0].length);
    place.replaceWith(make("mark", { class: "redacted", title: "Removed by this server’s content policy" }, nameOf(found[0])));
    walker.currentNode = rest.previousSibling.firstChild;
  }
}

function nameOf(placeholder) {
  const words = placeholder.slice(1, -1).toLowerCase().replaceAll("_", " ");
  return words.replace("ip ", "IP ").replace("iban", "IBAN").replace("email", "e-mail");
}

function languageOf(code) {
  return /(?:^|\s)language-(\S+)/.exec(code.className)?.[1] ?? "";
}
