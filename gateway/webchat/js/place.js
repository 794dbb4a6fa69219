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

/** Put a conversation into the address without a new history entry and without events. */
export function replacePlace(id) {
  history.replaceState(null, "", id ? `#/c/${encodeURIComponent(id)}` : "#/");
}
