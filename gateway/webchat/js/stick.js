// Follow growing content, but only for somebody who is at the bottom; who scrolled up to read is left alone.

const NEAR_PX = 40;

export class Stick {
  #sticking = true;
  #top = 0;

  constructor(scroller, content, button) {
    Object.assign(this, { scroller, content, button });
    scroller.addEventListener("scroll", () => this.#look(), { passive: true });
    // Wheel and touch up count before the scroll event: between them a growing answer would pull the reader down again.
    scroller.addEventListener("wheel", ({ deltaY }) => deltaY < 0 && this.#let(false), { passive: true });
    button.addEventListener("click", () => this.toBottom());
    const observer = new ResizeObserver(() => this.#follow());
    observer.observe(content);
    observer.observe(scroller);
  }

  toBottom() {
    this.#let(true);
    this.#follow();
  }

  // The greeting has no end to follow.
  get #isEmpty() {
    return !this.content.hasChildNodes();
  }

  #follow() {
    if (this.#sticking) this.scroller.scrollTop = this.#isEmpty ? 0 : this.scroller.scrollHeight;
    else this.#look();
  }

  // Only a move upwards lets go: the end also moves away because the content grew before this event came.
  #look() {
    const { scrollTop, clientHeight, scrollHeight } = this.scroller;
    if (scrollHeight - scrollTop - clientHeight < NEAR_PX) this.#let(true);
    else if (scrollTop < this.#top) this.#let(false);
    this.#top = scrollTop;
  }

  #let(sticking) {
    const { clientHeight, scrollHeight } = this.scroller;
    this.#sticking = sticking || this.#isEmpty || scrollHeight <= clientHeight;
    this.button.hidden = this.#sticking;
  }
}
