// The page: which model, which input, what was answered. Everything shown comes from here.
import { askField, askJson, useKey } from "./api.js";
import { Chart } from "./chart.js";
import { scaleOf, shown } from "./colour.js";
import { announce, byId, make } from "./dom.js";
import { Brush } from "./drawing.js";
import { Cursor, FieldView, inWords } from "./field.js";
import { between, read } from "./metrics.js";
import { readNpy } from "./npy.js";
import { difference, planeOf, randomWaves, relativeL2, sizeOf } from "./planes.js";
import { showRequest } from "./request.js";
import { Rollout } from "./rollout.js";
import { Sampler } from "./sampler.js";
import { startTheme } from "./theme.js";

const LIVE_MS = 2000;

let model = null;
let input = null; // { shape: [channels, ...grid], data }
let sampled = ""; // the query that the input was drawn with, empty once it is something else
let work = new AbortController();

const cursor = new Cursor();
const views = {
  input: new FieldView("Input", cursor),
  prediction: new FieldView("Prediction", cursor),
  truth: new FieldView("Solver", cursor),
  error: new FieldView("Error", cursor),
};
byId("fields").append(...Object.values(views).map(({ element }) => element));
cursor.addEventListener("move", () => {
  const text = inWords(Object.values(views), cursor);
  byId("readout").textContent = text;
  if (cursor.byKeyboard) announce(text);
});

const rolloutCursor = new Cursor();
const rolloutViews = ["Rollout", "Solver", "Error"].map((title) => new FieldView(title, rolloutCursor));
byId("rollout-fields").append(...rolloutViews.map(({ element }) => element));
rolloutCursor.addEventListener("move", () => {
  const text = inWords(rolloutViews, rolloutCursor);
  rolloutViews[0].say(text);
  if (rolloutCursor.byKeyboard) announce(text);
});

const sampler = new Sampler(() => sourceIs("sample") && predictAnew());
const brush = new Brush(views.input, byId("brush"), () => {
  sampled = "";
  predictAnew();
});
const rollout = new Rollout({
  view: rolloutViews[0],
  truth: rolloutViews[1],
  error: rolloutViews[2],
  source: () => ({ model, input, channel: 0, solvePath }),
  failed: complain,
});

function sourceIs(name) {
  return document.querySelector("[name=source]:checked").value === name;
}

function takeFrom(source) {
  document.querySelector(`[name=source][value=${source}]`).checked = true;
  for (const name of ["sample", "draw", "upload"]) byId(`${name}-panel`).hidden = source !== name;
  brush.on = source === "draw";
  views.input.element.classList.toggle("drawable", brush.on);
}

function complain(error) {
  if (error.name === "AbortError") return;
  const box = byId("problem");
  box.hidden = false;
  box.textContent = error.message;
  if (error.status === 401) byId("key").focus();
}

function atEase() {
  byId("problem").hidden = true;
}

function say(text) {
  byId("state").textContent = text;
}

// Where a solution comes from: the very sample, or the field as it is.
function solvePath(steps, field) {
  const many = model.time_step === null ? "" : `steps=${steps}`;
  const query = [sampled, many].filter(Boolean).join("&");
  return { path: `${model.reference.solve}${query && "?"}${query}`, body: sampled ? null : field };
}

// The model that the page's address names, if it is served: /ui/#darcy-2d
function fromAddress() {
  const names = [...byId("model").options].map(({ value }) => value);
  return names.find((name) => `#${encodeURIComponent(name)}` === location.hash) ?? null;
}

async function loadModels() {
  const { models } = await askJson("/v1/models");
  const ready = [...new Set(models.filter(({ state }) => state === "READY").map(({ name }) => name))];
  if (!ready.length) throw new Error("No model is ready yet. Reload the page in a moment.");
  byId("model").replaceChildren(...ready.map((name) => make("option", {}, name)));
  await loadModel(fromAddress() ?? ready[0]);
}

async function loadModel(name) {
  atEase();
  byId("model").value = name;
  work.abort();
  work = new AbortController();
  model = await askJson(`/v1/models/${encodeURIComponent(name)}`, { signal: work.signal });
  input = null;
  for (const view of Object.values(views)) view.clear();
  describe();
  sampler.fit(model);
  brush.fit(model);
  byId("centre").hidden = brush.hard;
  byId("compare-label").hidden = !model.reference;
  views.truth.element.hidden = views.error.element.hidden = !model.reference;
  byId("solve-frame").hidden = !model.reference;
  rolloutViews.slice(1).forEach(({ element }) => (element.hidden = !model.reference));
  byId("rollout").hidden = model.time_step === null;
  const { minimum, maximum } = model.grid;
  const channels = model.input.channels.map((channel) => channel.name);
  byId("upload-hint").textContent =
    `One field of ${channels.join(", ")}, [${channels.length}, ${minimum.map((n, i) => `${n} to ${maximum[i]}`).join(", ")}], ` +
    "float32 or float64; the channels' axis may be left out if there is one.";
  rollout.reset();
  const draw = document.querySelector("[name=source][value=draw]");
  draw.disabled = model.grid.training.length > 2;
  takeFrom("sample");
  await predictAnew();
}

function describe() {
  byId("about-title").textContent = model.name;
  byId("description").textContent = model.description;
  const error = model.evaluation[0];
  const facts = [
    ["Equation", model.pde?.equation],
    ["Domain", model.pde?.domain],
    ["Inputs seen in training", model.pde?.input_distribution],
    ["Held-out error", error && `${shown(100 * error.value)} % relative L2 (${error.name}, ${error.n_samples} samples)`],
    ["Runs on", `${model.backend}, ${model.precision}`],
  ].filter(([, text]) => text);
  const card = make("a", { href: `..${model.card}` }, "model card");
  byId("facts").replaceChildren(
    ...[...facts, ["More", card]].map(([name, content]) => make("div", {}, make("dt", {}, name), make("dd", {}, content))),
  );
}

// Draws or keeps the input, predicts, and solves if asked to; a newer call ends an older one.
async function predictAnew() {
  work.abort();
  const { signal } = (work = new AbortController());
  atEase();
  try {
    if (sourceIs("sample")) await draw(signal);
    if (!input) return say(sourceIs("upload") ? "Choose a file." : "");
    rollout.reset();
    await predict(signal);
  } catch (error) {
    if (signal.aborted) return;
    say("");
    complain(error);
  }
  // What is read under the cursor is another value now.
  cursor.move(cursor.at);
}

async function draw(signal) {
  say("drawing a sample …");
  const { query, seed, grid } = sampler;
  const drawn = model.reference
    ? (await askField(`${model.reference.sample}?${query}`, { signal })).field
    : randomWaves(model, grid, seed);
  signal.throwIfAborted();
  sampled = model.reference ? query : "";
  input = drawn;
}

const plane = (field, side) => planeOf(field, 0, model[side].channels[0], model.grid);

async function predict(signal) {
  const shownInput = plane(input, "input");
  // What is being painted keeps its colours.
  if (views.input.plane?.values.buffer !== shownInput.values.buffer) views.input.show(shownInput, scaleOf([shownInput.values]));
  say("predicting …");
  const started = performance.now();
  const path = `/v1/models/${encodeURIComponent(model.name)}:predict`;
  const { field, headers } = await askField(path, { field: input, signal }).catch((error) => {
    for (const name of ["prediction", "truth", "error"]) views[name].clear();
    throw error;
  });
  const took = performance.now() - started;
  signal.throwIfAborted();
  const predicted = plane(field, "output");
  views.prediction.show(predicted, scaleOf([predicted.values]));
  showRequest(byId("request"), headers, took);
  const solves = model.reference && byId("compare").checked;
  for (const view of [views.truth, views.error]) view.clear(solves ? "solving …" : "");
  if (solves) await compare(predicted, signal);
  else say(`Predicted in ${shown(took)} ms.`);
}

async function compare(predicted, signal) {
  say("predicted; solving …");
  const started = performance.now();
  const { path, body } = solvePath(1, input);
  let solved;
  try {
    solved = await askField(path, { field: body, method: "POST", signal });
  } catch (error) {
    for (const view of [views.truth, views.error]) view.clear("no solution");
    throw error;
  }
  signal.throwIfAborted();
  const truth = plane(solved.field, "output");
  const both = scaleOf([predicted.values, truth.values]);
  const error = difference(predicted, truth);
  const off = `relative L2 error ${shown(100 * relativeL2(predicted, truth))} %`;
  views.prediction.show(predicted, both);
  views.truth.show(truth, both, `in ${shown((performance.now() - started) / 1000)} s`);
  views.error.show(error, scaleOf([error.values], "diverging"), off);
  say(`Predicted and solved: ${off}.`);
}

async function upload(file) {
  const field = readNpy(await file.arrayBuffer());
  const channels = model.input.channels.length;
  const rank = model.grid.training.length;
  if (channels === 1 && field.shape.length === rank) field.shape = [1, ...field.shape];
  if (field.shape.length === rank + 2 && field.shape[0] === 1) field.shape = field.shape.slice(1);
  if (field.shape.length !== rank + 1 || field.shape[0] !== channels) {
    throw new Error(
      `${file.name} has shape [${field.shape.join(", ")}], ${model.name} takes [${channels}, ${["x", "y", "z"].slice(0, rank).join(", ")}].`,
    );
  }
  input = field;
  sampled = "";
}

function blank() {
  const grid = model.grid.training;
  const channels = model.input.channels.length;
  input = { shape: [channels, ...grid], data: new Float32Array(channels * sizeOf(grid)).fill(brush.blank) };
  sampled = "";
  const empty = plane(input, "input");
  const [low, high] = brush.range;
  views.input.show(empty, { minimum: low, maximum: high, kind: "sequential" });
}

// Models trained on fields without a mean know nothing of others, and drawn ones have it.
function centre() {
  if (!input) return;
  const mean = input.data.reduce((sum, value) => sum + value, 0) / input.data.length;
  input = { shape: input.shape, data: input.data.map((value) => value - mean) };
  sampled = "";
}

function startCharts() {
  const charts = [
    new Chart("Throughput", "fields or steps / s", [["throughput", ""]]),
    new Chart("Queue", "fields waiting", [["queue", ""]]),
    new Chart("Latency", "ms", [["median", "median"], ["slow", "99 %"]]),
    new Chart("Batch", "fields together, mean", [["batch", ""]]),
  ];
  byId("charts").append(...charts.map(({ element }) => element));
  let before = null;
  const update = async () => {
    if (document.hidden || !byId("live").checked) {
      before = null;
      return;
    }
    try {
      const now = await read();
      if (before) for (const chart of charts) chart.add(between(before, now));
      before = now;
      byId("live-state").textContent = "";
    } catch (error) {
      before = null;
      byId("live-state").textContent = `No metrics: ${error.message}`;
    }
  };
  setInterval(update, LIVE_MS);
  update();
}

function startControls() {
  byId("model").addEventListener("change", () => (location.hash = encodeURIComponent(byId("model").value)));
  addEventListener("hashchange", () => loadModel(fromAddress() ?? byId("model").value).catch(complain));
  byId("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    useKey(byId("key").value);
    atEase();
    loadModels().catch(complain);
  });
  byId("controls").addEventListener("submit", (event) => {
    event.preventDefault();
    predictAnew();
  });
  byId("compare").addEventListener("change", () => byId("compare").checked && predictAnew());
  // So that the same file, written anew, can be chosen again.
  byId("file").addEventListener("click", () => (byId("file").value = ""));
  byId("file").addEventListener("change", async () => {
    const [file] = byId("file").files;
    if (!file) return;
    try {
      await upload(file);
      await predictAnew();
    } catch (error) {
      say("");
      complain(error);
    }
  });
  byId("blank").addEventListener("click", () => {
    blank();
    predictAnew();
  });
  byId("centre").addEventListener("click", () => {
    centre();
    predictAnew();
  });
  for (const radio of document.querySelectorAll("[name=source]")) {
    radio.addEventListener("change", () => {
      takeFrom(radio.value);
      if (radio.value === "sample") predictAnew();
    });
  }
}

startTheme();
startControls();
startCharts();
loadModels().catch(complain);
