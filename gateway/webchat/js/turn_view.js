// One turn on the page: the user's words, thinking, the growing answer, what went wrong, the bill.

import { bill } from "./bill.js";
import { copyButton } from "./clipboard.js";
import { iconButton, make } from "./dom.js";
import { GrowingText } from "./growing_text.js";
import { notice } from "./notice.js";
import { Reasoning } from "./reasoning.js";
import { Said } from "./said.js";
import { toolCall } from "./tool_call.js";

export class TurnView {
  #prose = make("div", { class: "prose answer-text" });
  #text = new GrowingText(this.#prose);
  #reasoning;
  #tools = make("div", { class: "tools" });
  #said;
  #flow = make("div", { class: "flow", "aria-hidden": "true" }, make("span"));
  #notices = make("div", { class: "notices" });
  #bill = make("div", { class: "bill-place" });
  #actions = make("div", { class: "actions" });
  #shown = null; // the status that the page shows

  /**
   * `onAgain()` answers this turn once more; only the newest turn offers it. `onEnough(turn)` ends the thinking of one that
   * runs. `onEdit(text, pictures)` asks something else in its place, and `numAfter()` counts the turns behind it.
   */
  constructor(turn, { onAgain, onEnough, onEdit, numAfter }) {
    this.turn = turn;
    this.#said = turn.input || turn.pictures.length ? new Said(turn.input, { pictures: turn.pictures, onEdit, numAfter }) : null;
    this.#reasoning = new Reasoning(() => onEnough(turn));
    this.again = iconButton("again", "Answer again", () => onAgain(), "plain-button again");
    this.again.append(make("span", {}, "Try again")); // in words when something went wrong
    const answer = (this.answer = make(
      "article",
      { class: "answer", "aria-label": "Answer" },
      this.#reasoning.node,
      this.#tools,
      this.#prose,
      this.#flow,
      this.#notices,
      make("footer", { class: "answer-foot" }, this.#actions, this.#bill),
    ));
    this.#actions.append(copyButton("Copy answer", () => turn.answer), this.again);
    this.node = make("section", { class: "turn" }, this.#said?.node, answer);
    this.settle();
  }

  /** Let the user write the message anew. */
  edit() {
    this.#said?.edit();
  }

  /** Add new text to the `part` that grew: "reasoning" or "answer". */
  grow(part, text) {
    if (part === "reasoning") this.#reasoning.append(text);
    else this.#text.append(text);
    this.#status();
  }

  /** Show the turn as it is now, whole. */
  settle() {
    if (!this.turn.running) {
      this.#reasoning.settle(this.turn.reasoning);
      this.#text.settle(this.turn.answer);
    }
    if (this.#tools.childElementCount !== this.turn.calls.length) this.#tools.replaceChildren(...this.turn.calls.map(toolCall));
    this.#notices.replaceChildren(...notice(this.turn));
    if (this.turn.usage) this.#bill.replaceChildren(bill(this.turn.usage));
    this.node.style.setProperty("--length", lengthOf(this.turn));
    this.#shown = null;
    this.#status();
  }

  // Comes with every token: only a change is worth touching the page.
  #status() {
    const { turn } = this;
    if (this.#shown === turn.status) return;
    this.#shown = turn.status;
    this.node.dataset.status = turn.status;
    this.answer.classList.toggle("wordless", !turn.answer);
    const broke = turn.status === "failed" || turn.status === "lost";
    this.again.ariaLabel = this.again.title = broke ? "Try again" : "Answer again";
    this.answer.setAttribute("aria-busy", String(turn.running));
    this.#reasoning.label(turn.running && !turn.answer, turn.usage);
  }
}

const LINE = 80;
const FOLDED = 800; // so much of a long message is seen

// In characters, a short line for a whole one: how high it will stand is guessed from that before it is laid out.
const lengthOf = ({ input, answer }) => [...input.slice(0, FOLDED).split("\n"), ...answer.split("\n")].reduce((sum, line) => sum + Math.max(LINE, line.length), 0);
