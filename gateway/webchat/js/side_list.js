// The list of conversations: grouped by day, renamed in place, deleted after a question.

import { midnight } from "./clock.js";
import { byId, make } from "./dom.js";
import { sideItem } from "./side_item.js";

export class SideList extends EventTarget {
  #root = byId("conversations");
  #entries = [];
  #hasMore = false;
  #current = null;
  #running = new Set();
  #field = byId("find");

  constructor() {
    super();
    this.#field.addEventListener("input", () => {
      if (this.#hasMore && this.#wanted) this.#emit("all"); // older ones may be meant
      this.#draw();
    });
  }

  get #wanted() {
    return this.#field.value.trim().toLocaleLowerCase();
  }

  /** Somebody looks for a title, which any conversation may have. */
  get isSearched() {
    return Boolean(this.#wanted);
  }

  get entries() {
    return this.#entries;
  }

  /** Show these conversations, newest first. */
  show(entries, hasMore) {
    this.#entries = entries;
    this.#hasMore = hasMore;
    this.#draw();
  }

  /** Put one that was just made on top, before the server is asked again. */
  add(entry) {
    this.#entries = [entry, ...this.#entries];
    this.#draw();
  }

  /** Which one is on screen, and which ones have an answer on its way. */
  mark({ current = this.#current, running = this.#running }) {
    this.#current = current;
    this.#running = running;
    this.#draw();
  }

  titleOf(id) {
    const entry = this.#entries.find((each) => each.id === id);
    return entry ? titleOf(entry) : "Conversation";
  }

  #draw() {
    if (this.#root.querySelector("input")) return; // somebody is renaming; the next refresh shows the rest
    const focused = document.activeElement?.closest?.("[data-conversation]") && placeOf(document.activeElement);
    const nodes = [];
    let day = null;
    let list = null;
    const wanted = this.#wanted;
    this.#field.hidden = !wanted && !this.#hasMore && this.#entries.length < ENOUGH_TO_SEARCH;
    for (const entry of this.#entries.filter((each) => titleOf(each).toLocaleLowerCase().includes(wanted))) {
      if (dayOf(entry) !== day) {
        day = dayOf(entry);
        list = make("ul", {});
        nodes.push(make("h2", { class: "side-day" }, day), list);
      }
      list.append(this.#item(entry));
    }
    if (!nodes.length && wanted) nodes.push(make("p", { class: "side-empty" }, "No title has these words."));
    else if (!nodes.length) nodes.push(make("p", { class: "side-empty" }, "Your conversations will be listed here."));
    if (this.#hasMore) nodes.push(make("button", { type: "button", class: "text-button", onclick: () => this.#emit("more") }, "Older conversations"));
    this.#root.replaceChildren(...nodes);
    if (focused) this.#root.querySelector(focused)?.focus(); // whoever is about to press a button, presses that one
  }

  #item(entry) {
    return sideItem({
      id: entry.id,
      title: titleOf(entry),
      isCurrent: entry.id === this.#current,
      isRunning: this.#running.has(entry.id),
      onRename: (title) => this.#emit("rename", { entry, title }),
      onDelete: () => this.#emit("delete", { id: entry.id, title: titleOf(entry) }),
    });
  }

  #emit(name, detail = null) {
    this.dispatchEvent(new CustomEvent(name, { detail }));
  }
}

const ENOUGH_TO_SEARCH = 8; // fewer are seen at a glance

function placeOf(control) {
  const item = `[data-conversation="${CSS.escape(control.closest("[data-conversation]").dataset.conversation)}"]`;
  return control.ariaLabel ? `${item} [aria-label="${CSS.escape(control.ariaLabel)}"]` : `${item} a`;
}

const titleOf = (entry) => entry.metadata?.title || "Untitled";

function dayOf(entry) {
  const at = (entry.updated_at ?? entry.created_at) * 1000;
  if (at >= midnight(0)) return "Today";
  if (at >= midnight(1)) return "Yesterday";
  if (at >= midnight(6)) return "This week";
  return "Earlier";
}
