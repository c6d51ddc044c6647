// Controls of a random input: seed, grid, and the sampler's parameters.
import { shown } from "./colour.js";
import { byId, make } from "./dom.js";

const NAMES = {
  amplitude: "Amplitude", tau: "Roughness τ", alpha: "Smoothness α", low: "Low value", high: "High value", time: "Time t", rate: "Rate k", factor: "Contrast",
};

export class Sampler {
  constructor(changed) {
    this.changed = changed;
    this.knobs = {};
    byId("another").addEventListener("click", () => {
      byId("seed").value = Math.floor(Math.random() * 2 ** 20);
      changed();
    });
    byId("seed").addEventListener("change", () => {
      byId("seed").value = this.seed;
      changed();
    });
    byId("grid").addEventListener("change", changed);
  }

  fit(model) {
    const known = model.evaluation.map(({ grid }) => grid).concat([model.grid.training]);
    const all = new Map([...known, model.grid.minimum].map((grid) => [grid.join(" × "), grid]));
    const options = [...all.values()].sort((a, b) => a[0] - b[0]).map((grid) => {
      const evaluated = known.some((one) => String(one) === String(grid));
      const trained = String(grid) === String(model.grid.training);
      const remark = trained ? " (trained on)" : evaluated ? "" : " (not evaluated)";
      return make("option", { value: grid.join(), selected: trained }, grid.join(" × ") + remark);
    });
    byId("grid").replaceChildren(...options);
    this.knobs = {};
    byId("knobs").replaceChildren(...(model.reference?.parameters ?? []).map((knob) => this.#slider(knob)));
    byId("sample-hint").textContent = model.reference
      ? "At these defaults: the distribution that the model was trained on."
      : "There is no sampler for this model: a few random waves, made in this page.";
  }

  #slider(knob) {
    const input = make("input", {
      type: "range", min: knob.minimum, max: knob.maximum, step: knob.step, value: knob.default,
      "data-name": knob.name, "aria-describedby": `about-${knob.name}`,
    });
    const output = make("output", {}, shown(knob.default));
    this.knobs[knob.name] = { input, knob };
    input.addEventListener("input", () => (output.textContent = shown(Number(input.value))));
    input.addEventListener("change", () => {
      const usual = Object.values(this.knobs).every((one) => Number(one.input.value) === one.knob.default);
      byId("sample-hint").textContent = usual
        ? "At these defaults: the distribution that the model was trained on."
        : "Not the distribution that the model was trained on.";
      this.changed();
    });
    return make(
      "div", { class: "knob" },
      make("label", {}, `${NAMES[knob.name] ?? knob.name} `, input), output,
      make("span", { class: "hint", id: `about-${knob.name}` }, knob.description),
    );
  }

  get seed() {
    return Math.min(2 ** 20 - 1, Math.max(0, Math.floor(Number(byId("seed").value)) || 0));
  }

  get grid() {
    return byId("grid").value.split(",").map(Number);
  }

  // The query of the sample, for `/sample` and `:solve`.
  get query() {
    const values = Object.entries(this.knobs).map(([name, { input }]) => [name, input.value]);
    return new URLSearchParams([["seed", this.seed], ["grid", this.grid[0]], ...values]).toString();
  }
}
