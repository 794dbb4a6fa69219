// What an empty conversation shows: whose page this is, which model answers, and three ways to begin.

import { byId, icon, make } from "./dom.js";

const SUGGESTIONS = [
  ["Explain something", "Why is the sky blue at noon and red in the evening?"],
  ["Write with me", "Write a short poem about a river that turns a mill wheel."],
  ["Look at code", "Write a Python function that merges two sorted lists, and explain it."],
];

/** Build the greeting; `onPick` gets the text of the suggestion chosen. Returns `setModel(name)`. */
export function wireGreeting(onPick) {
  const model = make("strong", {});
  const line = make("p", { class: "greeting-model" }, "Answers come from ", make("span", {}, model, ","), " running on this server.");
  const cards = SUGGESTIONS.map(([title, text]) =>
    make("button", { type: "button", class: "suggestion", onclick: () => onPick(text) }, make("strong", {}, title), make("span", {}, text)),
  );
  byId("greeting").append(
    icon("logo", "greeting-mark"),
    make("h2", {}, "What shall we set in motion?"),
    line,
    make("div", { class: "suggestions" }, ...cards),
  );
  return (name) => {
    model.textContent = name;
    line.classList.toggle("unknown", !name);
  };
}
