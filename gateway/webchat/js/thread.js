// The turns of the conversation on screen. Showing the same turns again keeps their nodes, so a refresh moves nothing.

import { byId, make } from "./dom.js";
import { Stick } from "./stick.js";
import { TurnView } from "./turn_view.js";

export class Thread extends EventTarget {
  #views = [];
  #opening = false;
  /** What to do when the user wants the answer of a turn that still thinks; resolves when the server knows. */
  onEnough = async () => {};
  /** What to do when the user asks something else in place of a turn; resolves to whether that began. */
  onEdit = async () => false;
  #root = byId("thread");
  #earlier = make("button", { type: "button", class: "text-button earlier", hidden: true, onclick: () => this.#emit("earlier") }, "Earlier messages");
  // A bill is fetched when its turn comes into view: a long conversation does not ask for hundreds of them.
  #seen = new IntersectionObserver((entries) => entries.filter((entry) => entry.isIntersecting).forEach(({ target }) => this.#look(target)));

  constructor() {
    super();
    this.stick = new Stick(byId("scroller"), this.#root, byId("to-latest"));
    this.#root.before(this.#earlier);
  }

  get turns() {
    return this.#views.map((view) => view.turn);
  }

  get newest() {
    return this.#views.at(-1)?.turn ?? null;
  }

  /** Show these turns; `hasEarlier` offers to load older ones. */
  show(turns, { hasEarlier = false } = {}) {
    this.#earlier.hidden = !hasEarlier;
    this.#addAbove(turns.slice(0, Math.max(turns.findIndex((turn) => isShown(this.#views[0], turn)), 0)));
    let same = 0;
    while (same < turns.length && isShown(this.#views[same], turns[same])) same += 1;
    for (const view of this.#views.splice(same)) this.#drop(view);
    for (const turn of turns.slice(same)) this.add(turn);
    this.#mark();
  }

  /** An answer is on its way: nothing may be edited meanwhile. */
  set running(running) {
    this.#root.classList.toggle("running", running);
  }

  /** A conversation is being read: no greeting meanwhile. */
  set opening(opening) {
    this.#opening = opening;
    this.#mark();
  }

  /** Do `change()`, which adds turns above, with what the reader sees staying where it is. */
  keepPlace(change) {
    const scroller = byId("scroller");
    const fromEnd = scroller.scrollHeight - scroller.scrollTop;
    change();
    scroller.scrollTop = scroller.scrollHeight - fromEnd;
  }

  /** Append a turn; returns its view. */
  add(turn) {
    return this.place(this.#view(turn));
  }

  /** Append a view that exists already (a turn that kept running while another conversation was shown). */
  place(view) {
    this.#views.push(view);
    this.#root.append(view.node);
    this.#seen.observe(view.node);
    this.#mark();
    return view;
  }

  /** Let the user write the newest message anew. */
  editNewest() {
    this.#views.at(-1)?.edit();
  }

  /** Take a turn off the page. */
  remove(turn) {
    const at = this.#views.findIndex((view) => view.turn === turn);
    if (at !== -1) this.#drop(this.#views.splice(at, 1)[0]);
    this.#mark();
  }

  #view(turn) {
    return new TurnView(turn, {
      onAgain: () => this.#emit("again", turn),
      onEnough: this.onEnough,
      onEdit: (text, pictures) => this.onEdit(turn, text, pictures),
      numAfter: () => this.turns.length - 1 - this.turns.indexOf(turn),
    });
  }

  #addAbove(turns) {
    const views = turns.map((turn) => this.#view(turn));
    this.#views.unshift(...views);
    this.#root.prepend(...views.map((view) => view.node));
    for (const view of views) this.#seen.observe(view.node);
  }

  #drop(view) {
    this.#seen.unobserve(view.node);
    view.node.remove();
  }

  #look(node) {
    const view = this.#views.find((each) => each.node === node);
    if (!view || view.turn.running) return;
    this.#seen.unobserve(node);
    if (!view.turn.usage && view.turn.responseId) this.#emit("bill", view);
  }

  #mark() {
    this.#views.forEach((view, i) => (view.again.hidden = i !== this.#views.length - 1));
    const isEmpty = !this.#opening && !this.#views.length;
    byId("greeting").hidden = !isEmpty;
    byId("stage").classList.toggle("empty", isEmpty); // in CSS, :has would look through all turns at every change
  }

  #emit(name, detail = null) {
    this.dispatchEvent(new CustomEvent(name, { detail }));
  }
}

function isShown(view, turn) {
  if (!view) return false;
  if (view.turn === turn) return true;
  const { lastItemId, answer, pictures } = view.turn;
  return lastItemId !== null && lastItemId === turn.lastItemId && answer === turn.answer && pictures.length === turn.pictures.length;
}
