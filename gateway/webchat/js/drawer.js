// On narrow screens the side list is a drawer over the page.

import { byId } from "./dom.js";

/** Wire the drawer's buttons; returns `{isOpen(), close()}`. */
export function wireDrawer() {
  const narrow = window.matchMedia("(max-width: 800px)");
  const side = byId("side");
  const opener = byId("drawer-open");

  const isOpen = () => document.body.classList.contains("drawer-open");
  const set = (open) => {
    const wasOpen = isOpen();
    document.body.classList.toggle("drawer-open", open && narrow.matches);
    opener.setAttribute("aria-expanded", String(isOpen()));
    side.inert = narrow.matches && !isOpen(); // out of sight, out of the focus order
    document.querySelector(".stage").inert = isOpen();
    if (isOpen()) byId("drawer-close").focus();
    else if (wasOpen && narrow.matches) opener.focus();
  };
  const close = () => set(false);

  opener.addEventListener("click", () => set(true));
  byId("drawer-close").addEventListener("click", close);
  byId("scrim").addEventListener("click", close);
  byId("conversations").addEventListener("click", ({ target }) => target.closest("a") && close());
  narrow.addEventListener("change", close);
  close();
  return { isOpen, close };
}
