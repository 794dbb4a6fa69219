// One conversation in the side list: a link, and two buttons that show on hover, focus and touch.

import { iconButton, make } from "./dom.js";

/** Build the list item. `onRename` gets the new title; it is not called when nothing changed. */
export function sideItem({ id, title, isCurrent, isRunning, onRename, onDelete }) {
  const link = make("a", { href: `#/c/${encodeURIComponent(id)}`, title, dir: "auto", "aria-current": isCurrent ? "page" : null }, title);
  const item = make(
    "li",
    { class: `side-item${isRunning ? " running" : ""}`, "data-conversation": id },
    link,
    iconButton("pencil", "Rename", () => rename(item, link, title, onRename)),
    iconButton("bin", "Delete", onDelete),
  );
  return item;
}

const MAX_TITLE = 120;

function rename(item, link, title, onRename) {
  const field = make("input", { class: "side-rename", "aria-label": "Title", maxlength: MAX_TITLE, value: title });
  let done = false;
  const finish = (keep) => {
    if (done) return;
    done = true;
    const text = field.value.trim();
    field.replaceWith(link);
    item.classList.remove("renaming");
    link.focus();
    if (keep && text && text !== title) onRename(text);
  };
  field.addEventListener("blur", () => finish(true));
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter") finish(true);
    else if (event.key === "Escape") finish(false);
    else return;
    event.preventDefault();
    event.stopPropagation(); // Escape here does not stop an answer
  });
  item.classList.add("renaming");
  link.replaceWith(field);
  field.select();
}
