// Player of a streamed rollout: play, pause, scrub, stop, and compare one step with the reference solver.
import { askField, askStream } from "./api.js";
import { shown } from "./colour.js";
import { announce, byId } from "./dom.js";
import { MEDIA_TYPE, events } from "./frames.js";
import { difference, relativeL2 } from "./planes.js";
import { save } from "./save.js";
import { noVerdict, showVerdict, warningsOf } from "./verdict.js";

const FRAME_MS = 70;

export const KINDS = {
  rollout: { title: "Rollout", side: "output" },
  truth: { title: "Solver", side: "output" },
  error: { title: "Error", side: "output" },
};

export class Rollout {
  // `panel` shows KINDS; `source()`: { model, input, solvePath(steps, input) -> { path, body } }; `failed(error)` shows an error,
  // until `started()`.
  constructor({ panel, source, failed, started }) {
    Object.assign(this, { panel, source, failed, started });
    this.play = byId("play");
    this.scrub = byId("scrub");
    byId("rollout-form").addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.playing) this.pause();
      else if (this.#more()) this.resume();
      else this.start();
    });
    byId("stop").addEventListener("click", () => this.stop());
    this.scrub.addEventListener("input", () => {
      this.#show(Number(this.scrub.value));
      this.pause();
    });
    byId("solve-frame").addEventListener("click", () => this.#solve());
    byId("save-frames").addEventListener("click", () => this.#save());
    this.reset();
  }

  // Clears the rollout: for another input or model, or before a new start.
  reset() {
    this.stream?.abort();
    this.stream = null;
    this.frames = [];
    this.at = -1;
    this.about = null;
    this.scales = null;
    this.pause();
    this.play.disabled = !this.source().input;
    this.#enable(false);
    byId("stop").disabled = true;
    this.#say("");
    noVerdict(byId("rollout-verdict"));
    this.panel.clear();
  }

  async start() {
    const { model, input } = this.source();
    const steps = Number(byId("steps").value);
    this.started();
    this.reset();
    const stream = (this.stream = new AbortController());
    this.resume();
    byId("stop").disabled = false;
    let last = null;
    try {
      const path = `/v1/models/${encodeURIComponent(model.name)}:rollout?steps=${steps}`;
      const response = await askStream(path, input, MEDIA_TYPE, stream.signal);
      const warnings = warningsOf(response.headers);
      for await (const event of events(response, () => this.gate)) {
        if (stream.signal.aborted) return;
        last = event;
        if (event.event === "start") this.about = event;
        if (event.event === "frame") this.#add(event);
        if (event.event !== "frame") continue;
        warnings.push(...(event.warnings ?? []));
        showVerdict(byId("rollout-verdict"), response.headers, warnings, Boolean(event.trust));
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
      // Its button's name depends on the stream.
      if (!this.playing || !this.frames.length) this.pause();
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
    this.play.textContent = !this.frames.length ? "Play" : this.#more() ? "Resume" : "Play again";
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
    else if (!this.stream && this.frames.length) this.pause();
  }

  // Whether frames follow the one that is shown.
  #more() {
    return Boolean(this.stream) || this.at < this.frames.length - 1;
  }

  #add({ step, data }) {
    const field = { shape: this.about.shape.slice(1), data };
    // The scale only widens, so that earlier frames stay within it.
    this.scales = this.panel.scales("rollout", [field], this.scales);
    this.frames.push({ step, field });
    this.scrub.max = this.frames.length - 1;
    this.#enable(true);
  }

  #enable(some) {
    this.scrub.disabled = byId("solve-frame").disabled = byId("save-frames").disabled = !some;
  }

  #show(index, remark = "") {
    const frame = this.frames[index];
    if (!frame) return;
    if (index !== this.at) this.panel.clear(["truth", "error"]);
    this.at = index;
    this.panel.show("rollout", frame.field, this.scales);
    this.scrub.value = index;
    const time = shown(frame.step * this.about.time_step);
    this.scrub.setAttribute("aria-valuetext", `step ${frame.step}`);
    const here = this.frames.at(-1).step;
    const arrived = here < this.about.steps ? `, ${here} have arrived` : "";
    this.#say(`Step ${frame.step} of ${this.about.steps}, ${time} time units after the input${arrived}${remark && `; ${remark}`}`);
  }

  async #solve() {
    this.pause();
    const { field, step } = this.frames[this.at];
    const { solvePath, input } = this.source();
    this.panel.clear(["truth", "error"], "solving …");
    try {
      const { path, body } = solvePath(step, input);
      const { field: truth } = await askField(path, { field: body, method: "POST" });
      if (this.frames[this.at]?.field !== field) return;
      this.panel.show("truth", truth, this.scales);
      const off = relativeL2(field, truth);
      this.panel.showDifference("error", difference(field, truth), off);
      announce(`Step ${step}: ${off.join("; ")}`);
    } catch (error) {
      if (this.frames[this.at]?.field !== field) return;
      this.panel.clear(["truth", "error"], "no solution");
      this.failed(error);
    }
  }

  // Saves [frames, channels, *grid].
  #save() {
    const { shape } = this.frames[0].field;
    const data = new Float32Array(this.frames.length * this.frames[0].field.data.length);
    this.frames.forEach(({ field }, i) => data.set(field.data, i * field.data.length));
    const steps = `${this.frames[0].step}-${this.frames.at(-1).step}`;
    save({ shape: [this.frames.length, ...shape], data }, `${this.source().model.name}-steps-${steps}.npy`);
  }

  #say(text) {
    byId("rollout-state").textContent = text;
  }
}
