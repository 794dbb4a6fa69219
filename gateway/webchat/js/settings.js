// What the user chose for the next message. Kept in this browser; other tabs follow at once.

import { recall, remember } from "./storage.js";

// Numbers that are sent only when somebody chose them: name here -> field of the request.
const NUMBERS = Object.freeze({ temperature: "temperature", maxTokens: "max_output_tokens", topP: "top_p", topK: "top_k", minP: "min_p", repetitionPenalty: "repetition_penalty", seed: "seed" });
const UNCHOSEN = Object.fromEntries(Object.keys(NUMBERS).map((name) => [name, null]));
const DEFAULTS = Object.freeze({ model: "", effort: "", instructions: "", ...UNCHOSEN });

export class Settings extends EventTarget {
  values = { ...DEFAULTS, ...recall("settings", {}) };
  /** Names that the server offers. */
  models = [];
  /** Of those that see pictures: what the server takes of these, by the model's name. */
  #seeing = new Map();
  /** Resolves once the server was asked for these names; `noteAsked` says so. */
  asked = new Promise((resolve) => (this.noteAsked = resolve));

  constructor() {
    super();
    window.addEventListener("storage", ({ key }) => {
      if (key !== "headrace.settings") return;
      this.values = { ...DEFAULTS, ...recall("settings", {}) };
      this.#changed();
    });
  }

  /** The chosen model, as long as it is offered; else the first one. */
  get model() {
    if (!this.models.length || this.models.includes(this.values.model)) return this.values.model;
    return this.models[0];
  }

  set(name, value) {
    this.values = { ...this.values, [name]: value };
    remember("settings", this.values);
    this.#changed();
  }

  reset() {
    this.values = { ...DEFAULTS };
    remember("settings", this.values);
    this.#changed();
  }

  /** What the model takes of pictures, in the server's words; null: it sees none. */
  get pictureLimits() {
    return this.#seeing.get(this.model) ?? null;
  }

  /** Note the models that there are, and the limits of those of them that see pictures: a Map. */
  offer(models, seeing) {
    this.models = models;
    this.#seeing = seeing;
    this.#changed();
  }

  /** The fields of a Responses request that come from here; what is not chosen is not sent. */
  requestFields() {
    const { effort, instructions } = this.values;
    const chosen = Object.entries(NUMBERS).filter(([name]) => this.values[name] !== null);
    return {
      model: this.model,
      ...Object.fromEntries(chosen.map(([name, field]) => [field, this.values[name]])),
      ...(effort ? { reasoning: { effort } } : {}),
      ...(instructions.trim() ? { instructions } : {}),
    };
  }

  #changed() {
    this.dispatchEvent(new Event("change"));
  }
}
