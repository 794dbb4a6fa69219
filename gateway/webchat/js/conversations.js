// The side list kept in step with the server: read, read on, rename, delete.

import { confirmDelete } from "./dialogs.js";

export class Conversations extends EventTarget {
  #pages = 1; // how many pages the user asked to see
  #numAsked = 0;
  /** What comes before a conversation is deleted. */
  onDelete = async () => {};

  constructor({ api, connection, tabs, side }) {
    super();
    Object.assign(this, { api, connection, tabs, side });
    side.addEventListener("more", () => {
      this.#pages += 1;
      void this.refresh();
    });
    side.addEventListener("all", () => void this.refresh());
    side.addEventListener("rename", ({ detail }) => this.#change(() => api.renameConversation(detail.entry, detail.title)));
    side.addEventListener("delete", ({ detail }) => this.#delete(detail));
  }

  /** One was made: list it at once, and then read the list again. */
  add(created) {
    this.side.add(created);
    this.dispatchEvent(new Event("change"));
    return this.refresh();
  }

  /** Read the list again. */
  async refresh() {
    const asked = (this.#numAsked += 1);
    const entries = [];
    let page = { has_more: true, last_id: undefined };
    for (let i = 0; (i < this.#pages || this.side.isSearched) && page.has_more; i += 1) {
      page = await this.connection.keepTrying(() => this.api.conversations(page.last_id));
      entries.push(...page.data);
    }
    if (asked < this.#numAsked) return; // a later reading is on its way, which knows more
    this.side.show(entries, page.has_more);
    this.dispatchEvent(new Event("change"));
  }

  async #delete({ id, title }) {
    if (!(await confirmDelete(title))) return;
    await this.onDelete(id);
    if (await this.#change(() => this.api.deleteConversation(id))) this.dispatchEvent(new CustomEvent("deleted", { detail: id }));
  }

  async #change(call) {
    try {
      await call();
    } catch (problem) {
      this.connection.tell(problem);
      return false;
    }
    this.tabs.tell();
    await this.refresh();
    return true;
  }
}
