// Painting on an input with a soft brush, or with one of two values for models whose inputs have only two.
import { make } from "./dom.js";
import { shown } from "./colour.js";

export class Brush {
  // `changed` is called after each stroke; painting needs `on`.
  constructor(place, changed) {
    this.place = place;
    this.changed = changed;
    this.on = false;
  }

  #attach(view, range) {
    let last = null;
    const { plot } = view;
    plot.addEventListener("pointerdown", (event) => {
      if (!this.on || !view.plane) return;
      plot.setPointerCapture(event.pointerId);
      last = view.fractionAt(event);
      this.#paint(view, range, last, last[1]);
    });
    plot.addEventListener("pointermove", (event) => {
      if (!last) return;
      const next = view.fractionAt(event);
      const steps = Math.ceil(Math.hypot(next[0] - last[0], next[1] - last[1]) / (this.radius / 2)) || 1;
      for (let i = 1; i <= steps; i++) {
        const [x, y] = [0, 1].map((axis) => last[axis] + ((next[axis] - last[axis]) * i) / steps);
        this.#paint(view, range, [x, y], y);
      }
      last = next;
    });
    for (const end of ["pointerup", "pointercancel"]) {
      plot.addEventListener(end, () => {
        if (last) this.changed();
        last = null;
      });
    }
    plot.addEventListener("keydown", (event) => {
      if (!this.on || !view.plane || event.key !== " ") return;
      event.preventDefault();
      this.#paint(view, range, view.cursor.at ?? [0.5, 0.5], null);
      this.changed();
    });
  }

  // Creates the controls for this model: value and width; `views` are those of its input channels.
  fit(model, views) {
    const two = model.reference?.parameters.filter(({ name }) => name === "low" || name === "high") ?? [];
    this.hard = two.length === 2;
    const known = model.input.channels.map((_, channel) => model.statistics?.inputs[channel]);
    this.ranges = known.map((seen) => (this.hard ? two.map((one) => one.default) : [seen?.minimum ?? -1, seen?.maximum ?? 1]));
    this.blanks = known.map((seen, channel) => (this.hard ? this.ranges[channel][0] : (seen?.mean ?? 0)));
    views.forEach((view, channel) => this.#attach(view, this.ranges[channel]));
    const low = Math.min(...this.ranges.map(([least]) => least));
    const high = Math.max(...this.ranges.map(([, most]) => most));
    this.value = high;
    this.radius = 0.08;
    const value = this.hard
      ? make("select", {}, ...[high, low].map((one) => make("option", { value: one }, shown(one))))
      : make("input", { type: "range", min: low, max: high, step: (high - low) / 100, value: high });
    value.addEventListener("input", () => (this.value = Number(value.value)));
    const radius = make("input", { type: "range", min: 0.02, max: 0.3, step: 0.01, value: this.radius });
    radius.addEventListener("input", () => (this.radius = Number(radius.value)));
    this.place.replaceChildren(
      make("label", {}, "Value to paint ", value),
      make("label", {}, "Width of the brush ", radius),
    );
  }

  // On a line plot the value is the pointer's height; by keyboard it is the value of the controls.
  #paint(view, range, at, height) {
    const { plane } = view;
    const { grid, values } = plane;
    let goal = this.value;
    if (grid.length === 1 && height !== null) {
      const { minimum, maximum } = view.scale;
      goal = minimum + (maximum - minimum) * height;
    }
    for (let i = 0; i < values.length; i++) {
      const index = grid.length === 1 ? [i] : [Math.floor(i / grid[1]), i % grid[1]];
      const distance = Math.hypot(...index.map((one, axis) => view.fractionOf(axis, one) - at[axis])) / this.radius;
      const share = this.hard ? Number(distance <= 1) : Math.exp(-2 * distance * distance);
      if (share > 1e-3) values[i] += (goal - values[i]) * share;
    }
    view.show(plane, this.#scale(view, range));
  }

  // Fixed while painting, so that colours stay and a line can leave its previous range.
  #scale(view, [low, high]) {
    const { minimum, maximum, kind } = view.scale;
    const reach = Math.max(-low, high, -minimum, maximum);
    if (kind === "diverging") return { minimum: -reach, maximum: reach, kind };
    return { minimum: Math.min(low, minimum), maximum: Math.max(high, maximum), kind };
  }
}
