// What time it is for the server, which dates the conversations: the reader's clock may be hours off.

let aheadMs = 0; // the reader's clock, of the server's

/** Take the time from the head of an answer; seconds, and what the answer took on its way, do not matter here. */
export function setClock(response) {
  const at = Date.parse(response.headers.get("date") ?? "");
  if (at) aheadMs = Date.now() - at;
}

/** The moment at which it was midnight for the reader, so many days ago. */
export function midnight(daysAgo) {
  const day = new Date(Date.now() - aheadMs);
  return new Date(day.getFullYear(), day.getMonth(), day.getDate() - daysAgo).getTime();
}
