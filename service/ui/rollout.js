// A rollout played while it streams: start, pause, scrub, stop, and the solver at any of its steps.
import { askField, askStream } from "./api.js";
import { scaleOf, shown } from "./colour.js";
import { announce, byId } from "./dom.js";
import { MEDIA_TYPE, events } from "./frames.js";
import { difference, planeOf, relativeL2 } from "./planes.js";

const FRAME_MS = 70;

export class Rollout {
  // `source()`: { model, input, channel, solvePath(steps) }; `failed(error)` tells what went wrong.
  constructor({ view, truth, error, source, failed }) {
    Object.assign(this, { view, truth, error, source, failed });
    this.play = byId("play");
    this.scrub = byId("scrub");
    byId("rollout-form").addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.playing) this.pause();
      else if (this.stream || this.at < this.frames.length - 1) this.resume();
      else this.start();
    });
    byId("stop").addEventListener("click", () => this.stop());
    this.scrub.addEventListener("input", () => {
      this.pause();
      this.#show(Number(this.scrub.value));
    });
    byId("solve-frame").addEventListener("click", () => this.#solve());
    this.reset();
  }

  // Forget the run: the input or the model is another one.
  reset() {
    this.stream?.abort();
    this.stream = null;
    this.frames = [];
    this.at = -1;
    this.about = null;
    this.pause();
    this.play.textContent = "Play";
    this.scrub.disabled = byId("solve-frame").disabled = true;
    byId("stop").disabled = true;
    this.#say("");
    for (const view of [this.view, this.truth, this.error]) view.clear();
  }

  async start() {
    const { model, input } = this.source();
    const steps = Number(byId("steps").value);
    this.reset();
    const stream = (this.stream = new AbortController());
    this.resume();
    byId("stop").disabled = false;
    let last = null;
    try {
      const path = `/v1/models/${encodeURIComponent(model.name)}:rollout?steps=${steps}`;
      const response = await askStream(path, input, MEDIA_TYPE, stream.signal);
      for await (const event of events(response, () => this.gate)) {
        if (stream.signal.aborted) return;
        last = event;
        if (event.event === "start") this.about = event;
        if (event.event === "frame") this.#add(event);
      }
      if (last?.event === "failed") this.failed(new Error(`The rollout ended at step ${last.step}: ${last.detail}`));
      else if (last?.event !== "end") this.failed(new Error("The stream was cut off before the rollout's end."));
      else announce(`All ${steps} steps are here.`);
    } catch (error) {
      if (error.name !== "AbortError") this.failed(error);
    }
    if (this.stream === stream) {
      this.stream = null;
      byId("stop").disabled = true;
      if (!this.frames.length) this.pause();
    }
  }

  stop() {
    this.stream?.abort();
    this.stream = null;
    this.pause();
    byId("stop").disabled = true;
    this.#show(this.at, "stopped");
    announce("Rollout stopped.");
  }

  pause() {
    clearInterval(this.timer);
    this.playing = false;
    this.play.textContent = this.frames.length ? "Resume" : "Play";
    this.gate ??= new Promise((open) => (this.open = open));
  }

  resume() {
    this.playing = true;
    this.play.textContent = "Pause";
    this.open?.();
    this.gate = null;
    this.timer = setInterval(() => this.#next(), FRAME_MS);
  }

  #next() {
    if (this.at < this.frames.length - 1) this.#show(this.at + 1);
    else if (!this.stream && this.frames.length) {
      this.pause();
      this.play.textContent = "Play again";
    }
  }

  #add({ step, data }) {
    const { model, channel } = this.source();
    const shape = this.about.shape.slice(1);
    const plane = planeOf({ shape, data }, channel, model.output.channels[channel], model.grid);
    // Colours stay what they are unless a frame leaves them.
    this.scale = scaleOf([plane.values, ...(this.frames.length ? [[this.scale.minimum, this.scale.maximum]] : [])]);
    this.frames.push({ step, plane });
    this.scrub.max = this.frames.length - 1;
    this.scrub.disabled = byId("solve-frame").disabled = false;
  }

  #show(index, remark = "") {
    const frame = this.frames[index];
    if (!frame) return;
    if (index !== this.at) [this.truth, this.error].forEach((view) => view.clear());
    this.at = index;
    this.view.show(frame.plane, this.scale);
    this.scrub.value = index;
    const time = shown(frame.step * this.about.time_step);
    this.scrub.setAttribute("aria-valuetext", `step ${frame.step}`);
    const here = this.frames.at(-1).step;
    const arrived = here < this.about.steps ? `, ${here} have arrived` : "";
    this.#say(`Step ${frame.step} of ${this.about.steps}, ${time} time units after the input${arrived}${remark && `; ${remark}`}`);
  }

  async #solve() {
    this.pause();
    const { plane, step } = this.frames[this.at];
    const { model, channel, solvePath, input } = this.source();
    this.truth.clear("solving …");
    try {
      const { path, body } = solvePath(step, input);
      const { field } = await askField(path, { field: body, method: "POST" });
      if (this.frames[this.at]?.plane !== plane) return;
      const truth = planeOf(field, channel, model.output.channels[channel], model.grid);
      const error = difference(plane, truth);
      this.truth.show(truth, this.scale);
      const off = `relative L2 error ${shown(100 * relativeL2(plane, truth))} %`;
      this.error.show(error, scaleOf([error.values], "diverging"), off);
      announce(`Step ${step}: ${off}`);
    } catch (error) {
      this.truth.clear("no solution");
      this.failed(error);
    }
  }

  #say(text) {
    byId("rollout-state").textContent = text;
  }
}
