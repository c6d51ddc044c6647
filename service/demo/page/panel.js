// A group of views, one for each channel of each field, with a common cursor and buttons to save arrays.
import { scaleFor, scaleOf } from "./colour.js";
import { Cursor, FieldView, inWords } from "./field.js";
import { save } from "./save.js";
import { MIDDLE, planeOf } from "./planes.js";

export class Panel {
  // `kinds`: name -> { title, side }, side "input" or "output"; `moved(text, byKeyboard)` receives the values under the cursor.
  constructor(place, kinds, moved) {
    Object.assign(this, { place, kinds, moved });
    this.views = {};
    this.fields = {};
    this.draw = {}; // name -> draws what the views of this name show
  }

  // Creates the views for this model's channels: its inputs, then the fields of each output side by side.
  fit(model) {
    this.model = model;
    this.cursor = new Cursor();
    this.cut = MIDDLE;
    this.fields = {};
    this.draw = {};
    const rows = new Map([["input", []]]);
    for (const [name, { title, side }] of Object.entries(this.kinds)) {
      const { channels } = model[side];
      this.views[name] = channels.map((about, channel) => {
        const full = channels.length > 1 ? `${title} ${about.name}` : title;
        const keep = channel ? null : () => save(this.fields[name], `${model.name}-${title.toLowerCase()}.npy`);
        const view = new FieldView(full, this.cursor, keep, title.toLowerCase());
        const row = side === "input" ? "input" : channel;
        rows.set(row, [...(rows.get(row) ?? []), view]);
        return view;
      });
    }
    // A single input is in the row of the first output; several inputs have their own row. An output with the
    // solver's fields begins a new row.
    const inputs = rows.get("input").length;
    rows.forEach((views, row) => {
      const begins = row === 0 ? inputs > 1 : row !== "input" && model.reference;
      views[0]?.element.classList.toggle("first", Boolean(begins));
    });
    this.order = [...rows.values()].flat();
    this.place.replaceChildren(...this.order.map(({ element }) => element));
    this.cursor.addEventListener("move", () => this.moved(inWords(this.order, this.cursor), this.cursor.byKeyboard));
  }

  planes(name, field) {
    const { channels } = this.model[this.kinds[name].side];
    return channels.map((about, channel) => planeOf(field, channel, about, this.model.grid, this.cut));
  }

  // The scale of each channel over all these fields of a kind, not narrower than `before`.
  scales(name, fields, before = null) {
    const { side } = this.kinds[name];
    const planes = fields.map((field) => this.planes(name, field));
    return this.views[name].map((_, channel) =>
      scaleFor(planes.map((one) => one[channel]), this.model.statistics?.[`${side}s`][channel], before?.[channel]),
    );
  }

  show(name, field, scales = this.scales(name, [field]), note = "") {
    this.#show(name, field, (plane, channel) => [plane, scales[channel], note]);
  }

  // Shows a difference, with colours centred at zero.
  showDifference(name, field, notes) {
    this.#show(name, field, (plane, channel) => [plane, scaleOf([plane.all], "diverging"), notes[channel]]);
  }

  // Shows all fields of three dimensions in another plane: `axis` across it, `share` of the way along that axis.
  cutAt(axis, share) {
    this.cut = { axis, share };
    for (const draw of Object.values(this.draw)) draw();
    this.read();
  }

  #show(name, field, shownAs) {
    this.fields[name] = field;
    this.draw[name] = () =>
      this.planes(name, field).forEach((plane, channel) => this.views[name][channel].show(...shownAs(plane, channel)));
    this.draw[name]();
  }

  clear(names = Object.keys(this.kinds), why = "") {
    for (const name of names) {
      delete this.fields[name];
      delete this.draw[name];
      for (const view of this.views[name] ?? []) view.clear(why);
    }
  }

  hide(name, hidden) {
    for (const { element } of this.views[name]) element.hidden = hidden;
  }

  say(name, text) {
    this.views[name][0].say(text);
  }

  // Updates the values under the cursor.
  read() {
    this.cursor.move(this.cursor.at);
  }
}
