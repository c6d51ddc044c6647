// A field as heat map or line plot, with a colour bar and the cursor that all views of a group share.
import { paint, shown } from "./colour.js";
import { make, makeSvg } from "./dom.js";
import { inUnits } from "./planes.js";

// The shared position, as a fraction of each axis, so that grids may differ.
export class Cursor extends EventTarget {
  at = null;
  byKeyboard = false;

  move(at, byKeyboard = false) {
    this.at = at;
    this.byKeyboard = byKeyboard;
    this.dispatchEvent(new Event("move"));
  }
}

export class FieldView {
  // `keep`, if given, saves the array of the view; `what` is its name.
  constructor(title, cursor, keep = null, what = "") {
    this.title = title;
    this.cursor = cursor;
    this.plane = null;
    this.label = make("span", { class: "unit" });
    this.canvas = make("canvas", { "aria-hidden": "true" });
    this.line = makeSvg("path", { class: "line" });
    this.zero = makeSvg("line", { class: "zero", x1: 0, x2: 100 });
    this.lines = makeSvg(
      "svg", { viewBox: "0 0 100 100", preserveAspectRatio: "none", "aria-hidden": "true" }, this.zero, this.line,
    );
    this.marks = ["v", "h"].map((way) => make("i", { class: `mark ${way}`, hidden: true }));
    this.plot = make(
      "div", { class: "plot", tabindex: 0, role: "application", "aria-describedby": "keys" },
      this.canvas, this.lines, ...this.marks,
    );
    this.scaleCanvas = make("canvas", { "aria-hidden": "true" });
    this.ticks = [0, 1, 2].map(() => make("span"));
    this.note = make("p", { class: "note" });
    this.save = make("button", { type: "button", class: "save", hidden: true, "aria-label": `Save ${what} as .npy` }, "Save");
    this.save.addEventListener("click", keep ?? (() => {}));
    this.kept = Boolean(keep);
    this.element = make(
      "figure", { class: "field", "data-kind": "empty" },
      make("figcaption", {}, make("strong", {}, title), " ", this.label),
      make(
        "div", { class: "frame" },
        make("div", { class: "axis y", "aria-hidden": "true" }, ...this.#axis(1)),
        this.plot,
        make("div", { class: "bar", "aria-hidden": "true" }, this.scaleCanvas, make("div", { class: "ticks" }, ...this.ticks)),
        make("div", { class: "axis x", "aria-hidden": "true" }, ...this.#axis(0)),
      ),
      make("div", { class: "under" }, this.note, this.save),
    );
    this.plot.addEventListener("pointermove", (event) => this.cursor.move(this.fractionAt(event)));
    this.plot.addEventListener("pointerleave", () => this.cursor.move(null));
    this.plot.addEventListener("keydown", (event) => this.#onKey(event));
    this.plot.addEventListener("focus", () => this.cursor.move(this.cursor.at ?? [0.5, 0.5], true));
    cursor.addEventListener("move", () => this.#showCursor());
  }

  #axis(axis) {
    this.ends ??= [];
    this.names ??= [];
    this.ends[axis] = make("span");
    this.names[axis] = make("span", {}, "xy"[axis]);
    return [make("span", {}, "0"), this.names[axis], this.ends[axis]];
  }

  show(plane, scale, note = "") {
    this.plane = plane;
    this.scale = scale;
    const flat = plane.grid.length === 1;
    this.element.dataset.kind = flat ? "flat" : "map";
    this.label.textContent = `${plane.name}, ${inUnits(plane.units)}${plane.where && `, at ${plane.where}`}`;
    if (flat) this.#drawLine();
    else this.#drawMap();
    const range = scale.maximum - scale.minimum;
    const middle = (scale.minimum + scale.maximum) / 2;
    const values = [scale.minimum, Math.abs(middle) < 1e-3 * range ? 0 : middle, scale.maximum];
    this.ticks.forEach((tick, i) => (tick.textContent = shown(values[i])));
    paint(this.scaleCanvas, 1, 256, scale, (_, row) => scale.minimum + (range * (255 - row)) / 255);
    this.ends.forEach((end, axis) => (end.textContent = shown(plane.extent[axis] ?? 0)));
    plane.axes.forEach((name, axis) => (this.names[axis].textContent = `${name}${plane.length && `,${plane.length}`}`));
    this.say(note);
    this.save.hidden = !this.kept;
    const size = plane.grid.join(" by ");
    this.plot.setAttribute("aria-roledescription", flat ? "line plot" : "heat map");
    this.plot.setAttribute(
      "aria-label",
      `${this.title}: ${plane.name}, ${inUnits(plane.units)}, ${plane.where && `plane ${plane.where}, `}${size} points, from ${shown(scale.minimum)} to ${shown(scale.maximum)}`,
    );
    this.#showCursor();
  }

  // Clears the view; `why` tells the reason.
  clear(why = "") {
    this.plane = null;
    this.element.dataset.kind = "empty";
    this.save.hidden = true;
    this.label.textContent = "";
    this.plot.setAttribute("aria-label", `${this.title}: nothing yet`);
    this.say(why);
  }

  say(note) {
    this.note.textContent = note;
  }

  // The value and the point under the cursor, or null.
  reading() {
    if (!this.plane || !this.cursor.at) return null;
    const index = this.indexAt(this.cursor.at);
    return { index, value: this.plane.values[this.#flatIndex(index)], where: index.map((i, axis) => this.plane.place(axis, i)) };
  }

  // Where point `index` is drawn, as a fraction of the axis: an image has a cell for each point, a line has it at its place.
  fractionOf(axis, index) {
    const { grid, extent, place } = this.plane;
    return grid.length === 1 ? place(axis, index) / extent[axis] : (index + 0.5) / grid[axis];
  }

  // The point that is drawn at this fraction of each axis, or nearest to it.
  indexAt(fraction) {
    const { grid, extent, place } = this.plane;
    const [first] = fraction;
    const index = grid.length === 1 ? [Math.round((first * extent[0]) / place(0, 1))] : grid.map((n, axis) => Math.floor(fraction[axis] * n));
    return index.map((one, axis) => Math.min(grid[axis] - 1, Math.max(0, one)));
  }

  // The position of a pointer event as fractions of the axes, y upwards.
  fractionAt(event) {
    const box = this.plot.getBoundingClientRect();
    const within = (value) => Math.min(1, Math.max(0, value));
    return [within((event.clientX - box.left) / box.width), within((box.bottom - event.clientY) / box.height)];
  }

  #flatIndex(index) {
    return index.length === 1 ? index[0] : index[0] * this.plane.grid[1] + index[1];
  }

  #drawMap() {
    const { grid: [nx, ny], values } = this.plane;
    paint(this.canvas, nx, ny, this.scale, (column, row) => values[column * ny + (ny - 1 - row)]);
  }

  #drawLine() {
    const { values } = this.plane;
    const { minimum, maximum } = this.scale;
    const height = (value) => (100 * (maximum - value)) / (maximum - minimum);
    // The line has gaps where values are not finite.
    let pen = "M";
    const steps = Array.from(values, (value, i) => {
      const step = Number.isFinite(value) ? `${pen}${(100 * this.fractionOf(0, i)).toFixed(2)},${height(value).toFixed(2)}` : "";
      pen = step ? "L" : "M";
      return step;
    });
    this.line.setAttribute("d", steps.join(""));
    const zero = minimum < 0 && maximum > 0;
    this.zero.setAttribute("visibility", zero ? "visible" : "hidden");
    if (zero) ["y1", "y2"].forEach((end) => this.zero.setAttribute(end, height(0)));
  }

  #showCursor() {
    const reading = this.reading();
    this.marks.forEach((mark) => (mark.hidden = !reading));
    if (!reading) return;
    const [vertical, horizontal] = this.marks;
    const share = (axis) => 100 * this.fractionOf(axis, reading.index[axis]);
    vertical.style.left = `${share(0)}%`;
    const flat = reading.index.length === 1;
    const { minimum, maximum } = this.scale;
    horizontal.style.bottom = `${flat ? (100 * (reading.value - minimum)) / (maximum - minimum) : share(1)}%`;
  }

  #onKey(event) {
    const move = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowDown: [0, -1], ArrowUp: [0, 1] }[event.key];
    if (!this.plane || (!move && event.key !== "Home" && event.key !== "End")) return;
    event.preventDefault();
    const at = [...(this.cursor.at ?? [0.5, 0.5])];
    const { grid } = this.plane;
    if (!move) at[0] = event.key === "Home" ? 0 : 1;
    else {
      this.indexAt(at).forEach((index, axis) => {
        const moved = index + move[axis] * (event.shiftKey ? 10 : 1);
        at[axis] = this.fractionOf(axis, Math.min(grid[axis] - 1, Math.max(0, moved)));
      });
    }
    this.cursor.move(at, true);
  }
}

// The values of a group's views under their cursor, as text.
export function inWords(views, cursor) {
  const readings = views.map((view) => [view, view.reading()]).filter(([, reading]) => reading);
  if (!cursor.at || !readings.length) return "";
  const [[view, first]] = readings;
  const { axes, length, where } = view.plane;
  const place = [...first.where.map((value, axis) => `${axes[axis]} = ${shown(value)}${length}`), where].filter(Boolean).join(", ");
  return `${place}: ${readings.map(([one, { value }]) => `${one.title.toLowerCase()} ${shown(value)}`).join(", ")}`;
}
