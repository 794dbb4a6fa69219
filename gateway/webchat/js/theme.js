// Light and dark: the system's preference until the user switches (first_paint.js applies the choice before the first paint).

import { byId } from "./dom.js";

const KEY = "headrace.theme";

/** Wire the switch; choosing what the system has anyway gives the choice back to the system. */
export function wireTheme() {
  const systemDark = window.matchMedia("(prefers-color-scheme: dark)");
  const root = document.documentElement;
  byId("toggle-theme").addEventListener("click", () => {
    const isDark = root.dataset.theme ? root.dataset.theme === "dark" : systemDark.matches;
    apply(isDark === !systemDark.matches ? null : isDark ? "light" : "dark");
  });
  window.addEventListener("storage", ({ key, newValue }) => key === KEY && show(newValue));
}

function apply(theme) {
  try {
    if (theme) localStorage.setItem(KEY, theme);
    else localStorage.removeItem(KEY);
  } catch {
    // Forbidden storage: the choice lasts until the page closes.
  }
  show(theme);
}

function show(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
}
