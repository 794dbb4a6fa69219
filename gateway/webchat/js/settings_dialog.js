// The dialog that shows and changes Settings. Every change counts at once; "Done" only closes.

import { byId, make } from "./dom.js";

const FIELDS = { effort: "set-effort", instructions: "set-instructions" };

export class SettingsDialog {
  constructor(settings) {
    this.settings = settings;
    this.dialog = byId("settings");
    this.models = byId("set-model");
    this.numbers = [...this.dialog.querySelectorAll('input[type="number"]')];
    byId("open-settings").addEventListener("click", () => this.open());
    byId("model-chip").addEventListener("click", () => this.open());
    byId("reset-settings").addEventListener("click", () => settings.reset());
    this.dialog.addEventListener("click", (event) => event.target === this.dialog && this.dialog.close());
    this.dialog.addEventListener("input", ({ target }) => this.#take(target));
    settings.addEventListener("change", () => this.#show());
    this.#show();
  }

  open() {
    this.#show();
    this.dialog.showModal();
  }

  #take(field) {
    if (field.type === "number") {
      if (field.checkValidity()) this.settings.set(field.name, Number.isNaN(field.valueAsNumber) ? null : field.valueAsNumber);
    } else if (field === this.models) this.settings.set("model", field.value);
    else this.settings.set(field.name, field.value);
  }

  #show() {
    const { values, models, model } = this.settings;
    for (const [name, id] of Object.entries(FIELDS)) {
      const field = byId(id);
      if (field.value !== String(values[name])) field.value = values[name];
    }
    for (const field of this.numbers) if (document.activeElement !== field) field.value = values[field.name] ?? "";
    this.models.replaceChildren(...models.map((name) => make("option", { value: name, selected: name === model }, name)));
    byId("model-name").textContent = model ? chipText(model, values.effort) : "No model";
  }
}

const chipText = (model, effort) => (effort && effort !== "none" ? `${model} · thinks ${effort}` : model);
