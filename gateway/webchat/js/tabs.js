// Tabs of one browser tell each other what changed on the server; a tab that comes to the front looks again anyway,
// since other browsers may have changed things too.

export class Tabs extends EventTarget {
  #channel = "BroadcastChannel" in window ? new BroadcastChannel("headrace") : null;

  constructor() {
    super();
    this.#channel?.addEventListener("message", ({ data }) => this.#changed(data?.conversation ?? null));
    document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && this.#changed(null));
  }

  /** Tell the other tabs that the list changed, and this conversation's turns if one is named. */
  tell(conversation = null) {
    this.#channel?.postMessage({ conversation });
  }

  #changed(conversation) {
    this.dispatchEvent(Object.assign(new Event("changed"), { conversation }));
  }
}
