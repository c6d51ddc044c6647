// A small chart of the last readings, with the newest value as text.
import { shown } from "./colour.js";
import { make, makeSvg } from "./dom.js";

const WINDOW = 120;
// Seconds between two readings above which the line has a gap.
const GAP = 5;
const TICKS = [[0, "2 min ago"], [50, "1 min ago"], [100, "now"]];

export class Chart {
  // `series`: [key, name] pairs; the first is drawn boldest.
  constructor(title, units, series) {
    this.units = units;
    this.series = series.map(([key, name]) => ({ key, name, values: [], path: makeSvg("path", { class: `line ${key}` }) }));
    this.now = make("p", { class: "now" }, "–");
    this.top = make("span", {}, "");
    const svg = makeSvg(
      "svg", { viewBox: "0 0 100 100", preserveAspectRatio: "none", "aria-hidden": "true" },
      makeSvg("path", { class: "tick", d: TICKS.slice(1, -1).map(([x]) => `M${x},0V100`).join("") }),
      ...this.series.map(({ path }) => path).reverse(),
    );
    this.element = make(
      "figure", { class: "chart" },
      make("figcaption", {}, make("strong", {}, title), ` ${units}`),
      this.now,
      make("div", { class: "area", "aria-hidden": "true" }, this.top, svg),
      make("div", { class: "times", "aria-hidden": "true" }, ...TICKS.map(([, text]) => make("span", {}, text))),
    );
  }

  // `at`: time of the reading in seconds.
  add(reading, at) {
    for (const one of this.series) {
      one.values = [...one.values, { at, value: reading[one.key] }].filter((known) => at - known.at <= WINDOW);
    }
    const known = this.series.flatMap(({ values }) => values.map(({ value }) => value));
    const most = Math.max(...known.filter((value) => value !== null), 0) || 1;
    this.top.textContent = shown(most);
    for (const one of this.series) {
      let pen = "M";
      const steps = one.values.map(({ at: then, value }, i) => {
        if (value === null) {
          pen = "M";
          return "";
        }
        if (i && then - one.values[i - 1].at > GAP) pen = "M";
        const x = 100 - (100 * (at - then)) / WINDOW;
        const step = `${pen}${x.toFixed(2)},${(98 - (94 * value) / most).toFixed(2)}`;
        pen = "L";
        return step;
      });
      // A single reading is a dot.
      one.path.setAttribute("d", steps.join("") + (steps.length === 1 && steps[0] ? "h.5" : ""));
    }
    this.now.textContent = this.series
      .map(({ name, values }) => [name, values.at(-1).value])
      .map(([name, value]) => `${name}${name && " "}${value === null ? "–" : shown(value)}`)
      .join(", ");
  }
}
