// The stored turns of one conversation: its newest items first, earlier ones when asked for.

import { turnsFromItems } from "./turn.js";

export class StoredTurns {
  #items = []; // oldest first
  #numAsked = 0;
  #newest = 0; // of the answers that came
  hasEarlier = false;

  constructor(api, conversation) {
    this.api = api;
    this.conversation = conversation;
  }

  /** Oldest first. */
  get items() {
    return [...this.#items];
  }

  /** Grouped. What belongs to an earlier question, which is not here yet, comes with it. */
  get turns() {
    const first = this.hasEarlier ? this.#items.findIndex(isQuestion) : 0;
    return turnsFromItems(this.#items.slice(Math.max(first, 0)));
  }

  /** Read the newest items; earlier ones that were read before stay. */
  async refresh() {
    const asked = (this.#numAsked += 1);
    const { data, has_more: hasMore } = await this.api.items(this.conversation);
    if (asked < this.#newest) return; // whoever asked later was answered sooner
    this.#newest = asked;
    const fresh = data.reverse();
    const joint = this.#items.findIndex((item) => item.id === fresh[0]?.id);
    if (joint > 0) this.#items = [...this.#items.slice(0, joint), ...fresh];
    else {
      this.#items = fresh;
      this.hasEarlier = hasMore;
    }
  }

  /** Read the items before the oldest one known, up to a question: between two, agents may have called many tools. */
  async earlier() {
    let found;
    do {
      found = await this.api.items(this.conversation, this.#items[0]?.id);
      this.#items = [...found.data.reverse(), ...this.#items];
      this.hasEarlier = found.has_more;
    } while (found.has_more && !found.data.some(isQuestion));
  }
}

const isQuestion = (item) => item.role === "user";
