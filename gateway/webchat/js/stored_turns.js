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

  get turns() {
    return turnsFromItems(this.#items);
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
    else this.#take(fresh, hasMore);
  }

  /** Read the items before the oldest one known. */
  async earlier() {
    const { data, has_more: hasMore } = await this.api.items(this.conversation, this.#items[0]?.id);
    this.#take([...data.reverse(), ...this.#items], hasMore);
  }

  // A page may begin in the middle of a turn: what belongs to an earlier question comes with the page before.
  #take(items, hasMore) {
    const first = hasMore ? items.findIndex((item) => item.role === "user") : 0;
    this.#items = items.slice(Math.max(first, 0));
    this.hasEarlier = hasMore;
  }
}
