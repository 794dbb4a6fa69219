// Markdown that grows while it is read. Earlier blocks are final: only the last two are parsed again, and of these only
// what changed touches the DOM, so a long answer costs no more per token than a short one, and selections survive.

import { growCode } from "./code_block.js";
import { make } from "./dom.js";
import { typeset } from "./formula.js";
import { blocksOf, render } from "./markdown.js";
import { patch } from "./patch.js";

// The last block may still become part of the one before it ("1" of a list item "1."), so two stay open.
const NUM_OPEN = 2;
const SLOW_MS = 16;
const CHAPTER_BLOCKS = 16;
const OPEN = ".formula.open";

export class GrowingText {
  #tail = ""; // source of the open blocks
  #pending = "";
  #open = []; // [{raw, node}]
  #settled = []; // raw text of the final blocks
  #fence = null;
  #frame = 0;
  #restUntil = 0;
  #hasDefinitions = false;
  #finished = false;
  source = "";

  constructor(root) {
    this.root = root;
  }

  /** Add text; it is drawn with the next frame. */
  append(text) {
    if (this.#finished) return this.replace(this.source + text);
    this.source += text;
    this.#pending += text;
    this.#schedule();
  }

  // Text that is slow to draw is drawn less often: three quarters of the time belong to the rest of the page.
  #schedule() {
    this.#frame ||= requestAnimationFrame(() => {
      this.#frame = 0;
      const start = performance.now();
      if (start < this.#restUntil) return this.#schedule();
      this.#draw();
      this.root.getBoundingClientRect(); // the frame's layout, done here, so that it counts
      const end = performance.now();
      if (end - start > SLOW_MS) this.#restUntil = end + 3 * (end - start);
    });
  }

  /** The text is `text`, whole: nothing more will come. */
  settle(text) {
    if (text !== this.source) this.replace(text);
    else this.finish();
  }

  /** Draw what is left, now. Where the whole reads otherwise than its parts did, everything is rendered once more. */
  finish() {
    if (this.#finished) return;
    this.#draw();
    this.#finished = true;
    const raws = blocksOf(normal(this.source)).map((token) => token.raw);
    const drawn = [...this.#settled, ...this.#open.map((block) => block.raw)];
    const isOpen = this.root.querySelector(OPEN); // what never closed was no formula
    if (isOpen || this.#hasDefinitions || raws.length !== drawn.length || raws.some((raw, i) => raw !== drawn[i])) this.replace(this.source);
  }

  /** Show another text in place of the present one. */
  replace(text) {
    this.root.replaceChildren();
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    this.#open = [];
    this.#fence = null;
    this.#pending = this.#tail = "";
    this.#settled = [];
    this.#finished = true;
    this.source = text;
    for (const token of blocksOf(normal(text))) if (isShown(token)) this.#add(blockNode(token));
    typeset(this.root);
  }

  #draw() {
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    let text = this.#pending;
    this.#pending = "";
    if (text.endsWith("\r")) {
      this.#pending = "\r"; // half of a CRLF, perhaps
      text = text.slice(0, -1);
    }
    if (!text) return;
    text = normal(text);
    this.#tail += text;
    if (this.#fence?.append(text)) return;
    this.#redraw(blocksOf(this.#tail, { isGrowing: true }));
  }

  #redraw(tokens) {
    this.#hasDefinitions ||= tokens.some((token) => token.type === "def");
    const blocks = tokens.filter((token) => token.raw);
    const fresh = blocks.map((token, i) => this.#block(token, this.#open[i]));
    for (const old of this.#open.slice(fresh.length)) drop(old.node);
    this.#fence = openFence(blocks.at(-1), fresh.at(-1));
    this.#open = fresh;
    this.#settle();
  }

  // The block of a token, which stands where the `old` one stood.
  #block(token, old) {
    const { raw } = token;
    if (old?.raw === raw && !old.node.querySelector?.(OPEN)) return old;
    const node = isShown(token) ? blockNode(token) : document.createComment("");
    if (!old) this.#add(node);
    else if (old.node.nodeName !== node.nodeName) old.node.replaceWith(node);
    else {
      patch(old.node, node);
      typeset(old.node);
      return { raw, node: old.node };
    }
    typeset(node);
    return { raw, node };
  }

  // Chapters that are out of sight cost nothing, however many there are.
  #add(node) {
    let chapter = this.root.lastElementChild;
    if (!chapter || (chapter.childElementCount >= CHAPTER_BLOCKS && node.nodeType === Node.ELEMENT_NODE)) {
      chapter = make("div", { class: "chapter" });
      this.root.append(chapter);
    }
    chapter.append(node);
  }

  // Blank lines are blocks of their own here ("space") and do not count.
  #settle() {
    let shown = 0;
    let keep = this.#open.length;
    while (keep > 0 && shown < NUM_OPEN) if (this.#open[--keep].raw.trim()) shown += 1;
    for (const { raw } of this.#open.splice(0, keep)) {
      this.#settled.push(raw);
      this.#tail = this.#tail.slice(raw.length);
    }
  }
}

const normal = (text) => text.replace(/\r\n?/g, "\n");

const isShown = (token) => token.type !== "space" && token.type !== "def";

const blockNode = (token) => make("div", { class: "block", dir: "auto" }, render([token]));

function drop(node) {
  const chapter = node.parentNode;
  node.remove();
  if (!chapter.hasChildNodes()) chapter.remove();
}

/** A code block that is still open takes text without any parsing, until a line might close it. */
function openFence(token, block) {
  const opening = /^(?:`{3,}|~{3,})[^\n]*\n/.exec(token?.raw ?? "");
  if (token?.type !== "code" || !opening) return null;
  const body = token.raw.slice(opening[0].length);
  if (mayClose(body)) return null;
  const code = block.node.querySelector("pre code");
  code.replaceChildren();
  growCode(code, body); // with the end of its last line, which rendering takes off
  let line = body.slice(body.lastIndexOf("\n") + 1);
  return {
    append(more) {
      const added = line + more;
      if (mayClose(added)) return false;
      line = added.slice(added.lastIndexOf("\n") + 1);
      growCode(code, more);
      block.raw += more;
      return true;
    },
  };
}

const mayClose = (lines) => /^ *(?:`|~~)/m.test(lines);
