// One small chart of the last readings, its newest value in words.
import { shown } from "./colour.js";
import { make, makeSvg } from "./dom.js";

const LENGTH = 60;

export class Chart {
  // `series`: [key, name] pairs, the first drawn boldest.
  constructor(title, units, series) {
    this.units = units;
    this.series = series.map(([key, name]) => ({ key, name, values: [], path: makeSvg("path", { class: `line ${key}` }) }));
    this.now = make("p", { class: "now" }, "–");
    this.top = make("span", {}, "");
    const svg = makeSvg(
      "svg", { viewBox: "0 0 100 100", preserveAspectRatio: "none", "aria-hidden": "true" },
      ...this.series.map(({ path }) => path).reverse(),
    );
    this.element = make(
      "figure", { class: "chart" },
      make("figcaption", {}, make("strong", {}, title), ` ${units}`),
      this.now,
      make("div", { class: "area", "aria-hidden": "true" }, this.top, svg),
    );
  }

  add(reading) {
    for (const one of this.series) one.values = [...one.values, reading[one.key]].slice(-LENGTH);
    const most = Math.max(...this.series.flatMap(({ values }) => values).filter((value) => value !== null), 0) || 1;
    this.top.textContent = shown(most);
    for (const one of this.series) {
      let pen = "M";
      const steps = one.values.map((value, i) => {
        if (value === null) {
          pen = "M";
          return "";
        }
        const x = 100 - (100 * (one.values.length - 1 - i)) / (LENGTH - 1);
        const step = `${pen}${x.toFixed(2)},${(98 - (94 * value) / most).toFixed(2)}`;
        pen = "L";
        return step;
      });
      // A lone reading is a dot.
      one.path.setAttribute("d", steps.join("") + (steps.length === 1 && steps[0] ? "h.5" : ""));
    }
    this.now.textContent = this.series
      .map(({ name, values }) => `${name}${name && " "}${values.at(-1) === null ? "–" : shown(values.at(-1))}`)
      .join(", ");
  }
}
