// Whoever copies an answer with formulas gets them as the model wrote them, not the letters of a drawing.

/** Listen for copying on the whole page. */
export function wireCopyFormulas() {
  document.addEventListener("copy", (event) => {
    const selection = getSelection();
    if (!event.clipboardData || selection.isCollapsed || !selection.rangeCount) return;
    const copied = selection.getRangeAt(0).cloneContents();
    const sources = copied.querySelectorAll(".formula-source");
    if (!sources.length) return;
    for (const source of sources) source.parentNode.replaceWith(source.textContent);
    const holder = document.createElement("div");
    holder.append(copied);
    event.clipboardData.setData("text/html", holder.innerHTML);
    event.clipboardData.setData("text/plain", textOf(selection));
    event.preventDefault();
  });
}

// The browser knows best where lines end, so it reads the page while the sources stand in place of the drawings.
function textOf(selection) {
  const { classList } = document.documentElement;
  classList.add("copying");
  const text = selection.toString();
  classList.remove("copying");
  return text;
}
