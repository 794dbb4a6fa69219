// Which conversation is on screen is written in the address (`#/c/<id>`), so reload, back and bookmarks work.

/** The conversation in the address, or null. */
export function currentPlace() {
  const match = /^#\/c\/(.+)$/.exec(location.hash);
  try {
    return match ? decodeURIComponent(match[1]) : null;
  } catch {
    return null;
  }
}

/** Put a conversation, or none, into the address; `replace` makes no new entry in the history. No event is fired. */
export function setPlace(id, { replace = false } = {}) {
  const address = id ? `#/c/${encodeURIComponent(id)}` : "#/";
  if (replace) history.replaceState(null, "", address);
  else history.pushState(null, "", address);
}
