// What this browser remembers. Storage may be full or forbidden (private windows); then things last until the page closes.

const PREFIX = "headrace.";
const fallback = new Map();

/** Read a remembered value; `otherwise` when there is none or it is unreadable. */
export function recall(name, otherwise = null, area = localStorageOrNull()) {
  try {
    const raw = area ? area.getItem(PREFIX + name) : fallback.get(name);
    return raw === null || raw === undefined ? otherwise : JSON.parse(raw);
  } catch {
    return otherwise;
  }
}

/** Remember a JSON value; null forgets it. */
export function remember(name, value, area = localStorageOrNull()) {
  try {
    if (!area) fallback.set(name, JSON.stringify(value));
    else if (value === null) area.removeItem(PREFIX + name);
    else area.setItem(PREFIX + name, JSON.stringify(value));
  } catch {
    fallback.set(name, JSON.stringify(value));
  }
}

function localStorageOrNull() {
  try {
    return window.localStorage;
  } catch {
    return null;
  }
}

/** This tab's storage, or null where it is forbidden. */
export function tabStorage() {
  try {
    return window.sessionStorage;
  } catch {
    return null;
  }
}
