// Follow growing content, but only for somebody who is at the bottom; who scrolled up to read is left alone.

const NEAR_PX = 40;

export class Stick {
  #sticking = true;

  constructor(scroller, content, button) {
    this.scroller = scroller;
    this.button = button;
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

  #follow() {
    if (this.#sticking) this.scroller.scrollTop = this.scroller.scrollHeight;
    else this.#look();
  }

  #look() {
    const { scrollTop, clientHeight, scrollHeight } = this.scroller;
    this.#let(scrollHeight - scrollTop - clientHeight < NEAR_PX);
  }

  #let(sticking) {
    const { clientHeight, scrollHeight } = this.scroller;
    this.#sticking = sticking || scrollHeight <= clientHeight;
    this.button.hidden = this.#sticking;
  }
}
