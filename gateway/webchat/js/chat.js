// The conversation on screen: opening it, sending to it, stopping, answering again, and keeping it true to the server.

import { parted } from "./attached.js";
import { forgetPending, notePending, pendingIn, runningIn } from "./pending.js";
import { inputOf } from "./pictures.js";
import { setPlace } from "./place.js";
import { Run } from "./run.js";
import { StoredTurns } from "./stored_turns.js";
import { Turn } from "./turn.js";

export class Chat extends EventTarget {
  #runs = new Set();
  #stored = null;
  #isStale = false; // something changed that is not shown yet
  #taken = new Set(); // answers that this page has seen the end of
  current = null;

  /** @param {{api, connection, settings, tabs, thread, conversations}} parts */
  constructor(parts) {
    super();
    Object.assign(this, parts);
    this.thread.addEventListener("again", ({ detail }) => void this.again(detail));
    this.thread.onEdit = (turn, text, pictures) => this.again(turn, text, pictures);
    this.thread.onEnough = (turn) => this.api.endReasoning(turn.responseId).catch((problem) => this.#notEnough(problem));
    this.thread.addEventListener("earlier", () => void this.#earlier());
    this.thread.addEventListener("bill", ({ detail }) => void this.#bill(detail));
  }

  get run() {
    return this.#runIn(this.current);
  }

  get runningConversations() {
    return new Set([...this.#runs].map((run) => run.conversation));
  }

  /** Show a conversation, or none for a new one. */
  async open(id) {
    this.current = id;
    this.#stored = id ? new StoredTurns(this.api, id) : null;
    this.thread.show([]);
    this.thread.opening = Boolean(id);
    this.#changed();
    if (id) await this.#read();
    if (this.current !== id) return;
    this.thread.opening = false;
    if (this.run) this.thread.place(this.run.view);
    else if (id) void this.#follow();
    this.thread.stick.toBottom();
  }

  /** Begin a new conversation; at once, so that what is typed next goes there. */
  openNew() {
    if (!this.current) return;
    setPlace(null);
    void this.open(null);
  }

  /** Read the shown conversation again, and follow what is made in it; nothing moves where nothing changed. */
  async refresh() {
    await this.#read();
    if (this.current && !this.#isStale) void this.#follow();
  }

  async #read() {
    const stored = this.#stored;
    if (!stored) return;
    this.#isStale = true;
    if (this.run) return; // it is made up for when the answer has ended
    try {
      await this.connection.keepTrying(() => stored.refresh());
    } catch (problem) {
      if (stored === this.#stored) this.#gone(problem);
      return;
    }
    if (stored !== this.#stored || this.run) return;
    this.#isStale = false;
    this.#show();
  }

  /** Send the user's words and pictures and take the answer. */
  async send(input, pictures = []) {
    if (this.run) return;
    const run = this.#newRun(new Turn(input, pictures));
    this.thread.stick.toBottom();
    await this.#through(run, async () => {
      if (await this.#ensureConversation(run)) await this.#answer(run);
    });
  }

  /** Stop the answer on screen, or the one in another conversation. Resolves when the server knows. */
  async stop(conversation = this.current) {
    const run = this.#runIn(conversation);
    await run?.stop();
    if (run?.conversation) this.tabs.tell(run.conversation);
  }

  /** Take a turn and all behind it back, newest first, and ask once more; resolves to whether that began. */
  async again(turn, text = turn.input, pictures = turn.pictures) {
    const { current } = this;
    const { turns } = this.thread;
    for (const each of turns.slice(turns.indexOf(turn)).reverse()) {
      if (this.run || !(await this.#takeBack(each)) || this.current !== current) return false;
      this.thread.remove(each);
    }
    void this.send(text, pictures);
    return true;
  }

  /** All stored items of the shown conversation, oldest first. */
  async wholeOf() {
    const stored = this.#stored;
    await this.connection.keepTrying(() => stored.refresh());
    while (stored.hasEarlier) await this.connection.keepTrying(() => stored.earlier());
    return stored.items;
  }

  async #takeBack(turn) {
    try {
      for (const id of [...turn.responseIds].reverse()) await this.api.deleteResponse(id).catch(unlessGone);
      for (const id of [...turn.looseItemIds].reverse()) await this.api.deleteItem(this.current, id).catch(unlessGone);
    } catch (problem) {
      this.connection.tell(problem);
      return false;
    }
    return true;
  }

  #notEnough(problem) {
    if (problem.status === 404) return; // it has ended meanwhile
    this.connection.tell(problem);
    throw problem;
  }

  #runIn(conversation) {
    return [...this.#runs].find((run) => run.conversation === conversation) ?? null;
  }

  async #ensureConversation(run) {
    if (run.conversation) return true;
    let created;
    try {
      created = await this.api.createConversation(titleFrom(parted(run.turn.input).words || run.turn.input || "A picture"));
    } catch (problem) {
      run.fail(problem);
      return false;
    }
    run.conversation = created.id;
    if (this.current === null) {
      this.current = run.conversation;
      this.#stored = new StoredTurns(this.api, run.conversation);
      setPlace(run.conversation, { replace: true });
    }
    void this.conversations.add(created);
    this.#changed();
    return true;
  }

  #newRun(turn) {
    const { api, connection, current: conversation } = this;
    return new Run({ api, connection, conversation, turn, view: this.thread.add(turn) });
  }

  async #through(run, take) {
    this.#runs.add(run);
    this.#changed();
    await take();
    this.#runs.delete(run);
    if (run.conversation) forgetPending(run.conversation);
    this.#taken.add(run.turn.responseId);
    this.#changed();
    if (run.turn.status === "lost") this.connection.lose();
    if (this.#isStale) void this.refresh();
    this.tabs.tell(run.conversation);
    await this.conversations.refresh().catch((problem) => this.connection.tell(problem));
  }

  async #answer(run) {
    const { conversation, turn } = run;
    if (!this.settings.model) await Promise.race([this.settings.asked, run.stopped]); // sent before the page knew one
    const body = { ...this.settings.requestFields(), input: inputOf(turn.input, turn.pictures), conversation: { id: conversation }, store: true };
    await run.begin(body, {
      "response.created": () => notePending({ conversation, input: turn.input, responseId: turn.responseId }),
      "response.in_progress": () => this.tabs.tell(conversation), // so that they follow
    });
  }

  // An answer is made in the shown conversation: this tab was reloaded meanwhile, or others asked for it. It is taken from
  // its first event, and what else belongs to it is read when it has ended.
  async #follow() {
    const stored = this.#stored;
    const asked = await this.#asked(stored);
    if (!asked || this.run || stored !== this.#stored) return;
    const run = this.#newRun(Object.assign(new Turn(asked.input, asked.pictures), { responseId: asked.responseId }));
    this.#isStale = true;
    await this.#through(run, async () => {
      await run.resume();
      if (run.isGone) this.thread.remove(run.turn);
    });
  }

  async #asked({ conversation, turns }) {
    const isOver = (id) => this.#taken.has(id) || turns.some((turn) => turn.responseIds.has(id));
    const noted = pendingIn(conversation);
    if (noted && !isOver(noted.responseId)) return noted;
    forgetPending(conversation);
    try {
      return await this.connection.keepTrying(() => runningIn(this.api, conversation, isOver));
    } catch {
      return null; // it has ended meanwhile, or was deleted; whoever looks again will see
    }
  }

  #show() {
    const shown = new Set(this.thread.turns.map((turn) => turn.lastItemId));
    const turns = this.#stored.turns;
    // What failed or was lost on its way exists only here; it stays until the server has it.
    const isNowStored = (local) => turns.some((turn) => turn.input === local.input && !shown.has(turn.lastItemId));
    const local = this.thread.turns.filter((turn) => turn.isLocal && !isNowStored(turn));
    this.thread.show([...turns, ...local], { hasEarlier: this.#stored.hasEarlier });
  }

  async #earlier() {
    const stored = this.#stored;
    await this.connection.keepTrying(() => stored.earlier()).catch((problem) => this.connection.tell(problem));
    if (stored === this.#stored && !this.run) this.thread.keepPlace(() => this.#show());
  }

  // The stored response also tells why an answer ended early, which its items do not.
  async #bill(view) {
    const { responseId } = view.turn;
    // Of turns that came together as the input of one request, only the last one is its answer.
    if (this.thread.turns.findLast((turn) => turn.responseId === responseId) !== view.turn) return;
    try {
      view.turn.endAs(await this.api.response(responseId));
      view.settle();
    } catch {
      // A bill that is gone is not worth a word; the answer is there.
    }
  }

  #gone(problem) {
    this.connection.tell(problem.status === 404 ? "This conversation no longer exists." : problem);
    if (problem.status === 404) this.openNew();
  }

  #changed() {
    this.dispatchEvent(new Event("change"));
  }
}

function unlessGone(problem) {
  if (problem.status !== 404) throw problem;
}

const TITLE_LENGTH = 56;

/** A title from the first message: its first line, cut at a word; the mark that opens a code block says nothing. */
export function titleFrom(text) {
  const lines = text.split("\n").map((each) => each.replace(/`{3,}[\w+#-]*\s*$/, "").replace(/\s+/g, " ").trim());
  const line = lines.find(Boolean) ?? text.trim();
  if (line.length <= TITLE_LENGTH) return line;
  const cut = line.slice(0, TITLE_LENGTH);
  return `${cut.slice(0, Math.max(cut.lastIndexOf(" "), TITLE_LENGTH / 2)).trimEnd()}…`;
}
