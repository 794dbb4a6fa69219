// Short news for screen readers. The growing answer itself is not live: read token by token it would be noise.

import { byId } from "./dom.js";

/** Say it politely, once the reader has finished what it is saying. */
export function announce(text) {
  const region = byId("announcer");
  region.textContent = "";
  requestAnimationFrame(() => (region.textContent = text));
}
