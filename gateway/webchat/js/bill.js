// The bill under an answer: one line of what it cost, and behind it where the time went.

import { make } from "./dom.js";

const PHASES = ["queue", "tokenize", "match", "fetch", "prefill", "decode"];

const count = new Intl.NumberFormat("en");

/** Milliseconds as people read them: 0.4 ms, 48 ms, 2.31 s. */
export function duration(ms) {
  if (ms >= 1000) return `${(ms / 1000).toFixed(ms >= 10_000 ? 1 : 2)} s`;
  return `${ms >= 10 ? Math.round(ms) : Number(ms.toFixed(1))} ms`;
}

/** Joules as people read them: 0.42 J, 37 J, 1.25 kJ. */
const energy = (joules) => (joules >= 1000 ? `${(joules / 1000).toFixed(2)} kJ` : `${Number(joules.toPrecision(2))} J`);

const speed = (perSecond) => (perSecond >= 100 ? count.format(Math.round(perSecond)) : perSecond.toFixed(1));

/** The line's parts: [text, explanation]. */
export function billParts(usage) {
  const told = usage.headrace ?? {};
  const cached = told.cached_tokens ?? usage.input_tokens_details?.cached_tokens;
  const parts = [[`${count.format(usage.input_tokens)} in`, "Tokens of the prompt: everything the model read"]];
  if (cached !== undefined) parts.push([`${count.format(cached)} cached`, "Prompt tokens that were still in the cache"]);
  if (told.fetched_tokens) parts.push([`${count.format(told.fetched_tokens)} fetched`, "Of the cached tokens, those that came from another replica"]);
  parts.push([`${count.format(usage.output_tokens)} out`, "Tokens that the model wrote, thinking included"]);
  if (told.ttft_ms !== undefined) parts.push([`first token after ${duration(told.ttft_ms)}`, "Time to the first token"]);
  if (told.tokens_per_second) parts.push([`${speed(told.tokens_per_second)} tok/s`, "Speed of writing"]);
  if (told.energy_j !== undefined) parts.push([energy(told.energy_j), "Energy that this answer took"]);
  return parts;
}

/** Build the bill; opens to show the phases when the server told them. */
export function bill(usage) {
  const parts = billParts(usage);
  const line = parts.map(([text, title]) => make("span", { title }, text));
  const phases = phasesOf(usage.headrace ?? {});
  if (!phases.length) return make("div", { class: "bill-line" }, ...line);
  const name = make("span", { class: "visually-hidden" }, "Cost of this answer: "); // beside what is seen, which can be said to press it
  // No details element: each one makes the browser look through the style sheets of all others on the page.
  const more = make("div", { hidden: true });
  const opener = make("button", { type: "button", class: "bill-line", "aria-expanded": "false", onclick: toggle }, name, ...line);
  function toggle() {
    if (!more.hasChildNodes()) more.append(race(phases));
    more.hidden = !more.hidden;
    opener.setAttribute("aria-expanded", String(!more.hidden));
  }
  return make("div", {}, opener, more);
}

// [name, milliseconds] of the phases told; a fetch is one only if there was one.
function phasesOf(told) {
  const phases = PHASES.map((name) => [name, told[`${name}_ms`] ?? null]);
  return phases.filter(([name, ms]) => ms !== null && (ms > 0 || name !== "fetch"));
}

// The way of the request as a channel: each desk's stretch is as long as it took.
function race(phases) {
  const total = phases.reduce((sum, [, ms]) => sum + ms, 0) || 1;
  const channel = make("div", { class: "race", "aria-hidden": "true" });
  const legend = make("dl", { class: "race-legend" });
  for (const [name, ms] of phases) {
    const stretch = make("span", { class: `stretch phase-${name}` });
    stretch.style.flexGrow = String(ms / total);
    channel.append(stretch);
    legend.append(make("div", {}, make("dt", { class: `stretch-key phase-${name}` }, capital(name)), make("dd", {}, duration(ms))));
  }
  return make("div", { class: "bill-more" }, channel, legend);
}

const capital = (name) => name[0].toUpperCase() + name.slice(1);
