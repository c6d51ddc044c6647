// The page: choice of model and input, prediction, comparison with the solver.
import { ask, askField, askJson, guarded, useKey } from "./api.js";
import { markdown } from "./card.js";
import { Chart } from "./chart.js";
import { scaleOf, shown } from "./colour.js";
import { asCurl, asPython } from "./commands.js";
import { announce, byId, make } from "./dom.js";
import { Brush } from "./drawing.js";
import { between, read } from "./metrics.js";
import { readNpy } from "./npy.js";
import { Panel } from "./panel.js";
import { MIDDLE, centred, difference, randomWaves, relativeL2, sizeOf } from "./planes.js";
import { showNoRequest, showRequest } from "./request.js";
import { KINDS, Rollout } from "./rollout.js";
import { Sampler } from "./sampler.js";
import { startTheme } from "./theme.js";
import { noVerdict, showVerdict } from "./verdict.js";

const LIVE_MS = 2000;
// Statuses for which the same input would be refused again.
const REFUSED = [400, 413, 422];
const OUTPUTS = ["prediction", "truth", "error"];

let model = null;
let input = null; // { shape: [channels, ...grid], data }
let sampled = ""; // the query of the sample, empty for other inputs
let file = ""; // the name of the input's file
let asked = null; // the last prediction, for commands
let work = new AbortController();

const panel = new Panel(
  byId("fields"),
  {
    input: { title: "Input", side: "input" },
    prediction: { title: "Prediction", side: "output" },
    truth: { title: "Solver", side: "output" },
    error: { title: "Error", side: "output" },
  },
  (text, byKeyboard) => {
    byId("readout").textContent = text;
    if (byKeyboard) announce(text);
  },
);
const rolloutPanel = new Panel(byId("rollout-fields"), KINDS, (text, byKeyboard) => {
  rolloutPanel.say("rollout", text);
  if (byKeyboard) announce(text);
});

const sampler = new Sampler(() => sourceIs("sample") && predictAnew());
const brush = new Brush(byId("brush"), () => {
  take(input);
  predictAnew();
});
const rollout = new Rollout({ panel: rolloutPanel, source: () => ({ model, input, solvePath }), failed: complain, started: atEase });

function sourceIs(name) {
  return document.querySelector("[name=source]:checked").value === name;
}

function takeFrom(source) {
  document.querySelector(`[name=source][value=${source}]`).checked = true;
  for (const name of ["sample", "draw", "upload"]) byId(`${name}-panel`).hidden = source !== name;
  brush.on = source === "draw";
  for (const view of panel.views.input) view.element.classList.toggle("drawable", brush.on);
}

// Sets the input, or none; `query` for a sample, `name` for a file.
function take(field, { query = "", name = "" } = {}) {
  input = field;
  sampled = query;
  file = name;
  allow(field || !sourceIs("upload"));
}

function allow(something) {
  byId("predict").disabled = !something;
  byId("play").disabled = !something;
}

// Clears all results: they belong to another input.
function forgetAnswer(why = "") {
  panel.clear(OUTPUTS);
  rollout.reset();
  noVerdict(byId("verdict"));
  asked = null;
  byId("commands").hidden = true;
  byId("command").hidden = true;
  byId("copied").textContent = "";
  showNoRequest(byId("request"), why || "No request yet.");
}

function forgetInput(why) {
  take(null);
  panel.clear(["input"]);
  forgetAnswer(why);
}

// Clears the model, so that nothing of it is shown or asked for under the name of the next.
function forgetModel(next) {
  if (model) forgetInput();
  model = null;
  byId("controls").inert = true;
  byId("rollout").hidden = true;
  byId("about-title").textContent = next;
  for (const id of ["description", "facts", "card-text"]) byId(id).replaceChildren();
  say("");
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

// The request for a solution: of the sample by its query, or of the field.
function solvePath(steps, field) {
  const many = model.time_step === null ? "" : `steps=${steps}`;
  const query = [sampled, many].filter(Boolean).join("&");
  return { path: `${model.reference.solve}${query && "?"}${query}`, body: sampled ? null : field };
}

// The model in the page's address, if it is served: /ui/#darcy-2d
function fromAddress() {
  const names = [...byId("model").options].map(({ value }) => value);
  return names.find((name) => `#${encodeURIComponent(name)}` === location.hash) ?? null;
}

// Whether the address names a place on the page, as the link to #main does.
function isPlace() {
  return !fromAddress() && Boolean(byId(location.hash.slice(1)));
}

async function followAddress() {
  const named = fromAddress();
  if (named || !location.hash || isPlace()) return loadModel(named ?? (byId("model").value || byId("model").options[0].value));
  atEase();
  work.abort();
  forgetModel("Model");
  byId("model").value = "";
  throw new Error(`The address names ${location.hash.slice(1)}, which is no model that is ready here. Choose one from the list.`);
}

async function loadModels() {
  const { models } = await askJson("/v1/models");
  const ready = [...new Set(models.filter(({ state }) => state === "READY").map(({ name }) => name))];
  if (!ready.length) throw new Error("No model is ready yet. Reload the page in a moment.");
  byId("model").replaceChildren(...ready.map((name) => make("option", {}, name)));
  await followAddress();
}

async function loadModel(name) {
  atEase();
  byId("model").value = name;
  work.abort();
  const { signal } = (work = new AbortController());
  forgetModel(name);
  model = await askJson(`/v1/models/${encodeURIComponent(name)}`, { signal });
  byId("controls").inert = false;
  panel.fit(model);
  rolloutPanel.fit(model);
  describe();
  sampler.fit(model);
  brush.fit(model, panel.views.input);
  byId("centre").hidden = brush.hard;
  byId("compare-label").hidden = !model.reference;
  for (const [one, names] of [[panel, ["truth", "error"]], [rolloutPanel, ["truth", "error"]]]) {
    for (const kind of names) one.hide(kind, !model.reference);
  }
  byId("solve-frame").hidden = !model.reference;
  fitPlane();
  byId("rollout").hidden = model.time_step === null;
  const { minimum, maximum } = model.grid;
  const channels = model.input.channels.map((channel) => channel.name);
  byId("upload-hint").textContent =
    `One field of ${channels.join(", ")}, [${channels.length}, ${minimum.map((n, i) => `${n} to ${maximum[i]}`).join(", ")}], ` +
    "float32 or float64; the channels' axis may be left out if there is one.";
  const draw = document.querySelector("[name=source][value=draw]");
  draw.disabled = model.grid.training.length > 2;
  takeFrom("sample");
  forgetInput();
  await predictAnew();
}

// The plane that shows fields of three dimensions, at first the middle one. The slider counts in percent of the axis.
function fitPlane() {
  byId("plane").hidden = model.grid.training.length !== 3;
  byId("plane-axis").selectedIndex = MIDDLE.axis;
  byId("plane-place").value = 100 * MIDDLE.share;
}

function showPlane() {
  const share = Number(byId("plane-place").value) / 100;
  for (const one of [panel, rolloutPanel]) one.cutAt(byId("plane-axis").selectedIndex, share);
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
  byId("facts").replaceChildren(
    ...facts.map(([name, content]) => make("div", {}, make("dt", {}, name), make("dd", {}, content))),
  );
  byId("card-text").replaceChildren();
  showCard();
}

// Loads the card when it is opened.
async function showCard() {
  const place = byId("card-text");
  if (!byId("card").open || place.hasChildNodes() || !model) return;
  const { name, card } = model;
  place.replaceChildren(make("p", { class: "hint" }, "loading …"));
  try {
    const text = await (await ask(card)).text();
    if (model?.name !== name) return;
    place.replaceChildren(...markdown(text, (picture) => `/v1/models/${encodeURIComponent(name)}/${encodeURIComponent(picture)}`));
  } catch (error) {
    if (model?.name === name) place.replaceChildren(make("p", { class: "hint" }, error.message));
  }
}

// Draws or keeps the input, predicts, and solves if chosen; a newer call cancels an older one.
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
  panel.read();
}

async function draw(signal) {
  say("drawing a sample …");
  const { query, seed, grid } = sampler;
  try {
    const drawn = model.reference
      ? (await askField(`${model.reference.sample}?${query}`, { signal })).field
      : randomWaves(model, grid, seed);
    signal.throwIfAborted();
    take(drawn, { query: model.reference ? query : "" });
  } catch (error) {
    if (!signal.aborted) forgetInput("No input could be drawn.");
    throw error;
  }
}

async function predict(signal) {
  // While painting, the input keeps its colour scale.
  if (panel.fields.input !== input) panel.show("input", input);
  say("predicting …");
  const started = performance.now();
  const path = `/v1/models/${encodeURIComponent(model.name)}:predict`;
  const { field, headers } = await askField(path, { field: input, signal }).catch((error) => {
    if (!signal.aborted) {
      forgetAnswer("This request failed.");
      if (sourceIs("upload") && REFUSED.includes(error.status)) allow(false);
    }
    throw error;
  });
  const took = performance.now() - started;
  signal.throwIfAborted();
  panel.show("prediction", field);
  showVerdict(byId("verdict"), headers);
  showRequest(byId("request"), headers, took);
  asked = { model: model.name, sampled, file: file || `${model.name}-input.npy`, guarded: guarded() };
  byId("commands").hidden = false;
  byId("command").hidden = true;
  byId("copied").textContent = "";
  const solves = model.reference && byId("compare").checked;
  panel.clear(["truth", "error"], solves ? "solving …" : "");
  if (solves) await compare(field, signal);
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
    if (!signal.aborted) panel.clear(["truth", "error"], "no solution");
    throw error;
  }
  signal.throwIfAborted();
  const truth = solved.field;
  const both = panel.scales("prediction", [predicted, truth]);
  const off = relativeL2(predicted, truth);
  panel.show("prediction", predicted, both);
  panel.show("truth", truth, both, `in ${shown((performance.now() - started) / 1000)} s`);
  panel.showDifference("error", difference(predicted, truth), off);
  say(`Predicted and solved: ${off.join("; ")}.`);
}

// Reads the file as the server would, and predicts; a newer choice cancels an older one.
async function upload(chosen) {
  work.abort();
  const { signal } = (work = new AbortController());
  atEase();
  forgetInput();
  try {
    const bytes = await chosen.arrayBuffer();
    signal.throwIfAborted();
    take(fieldOf(chosen.name, readNpy(bytes)), { name: chosen.name });
  } catch (error) {
    if (signal.aborted) return;
    say("");
    forgetInput("The file was not used.");
    complain(error);
    return;
  }
  await predictAnew();
}

function fieldOf(name, field) {
  const channels = model.input.channels.length;
  const rank = model.grid.training.length;
  const given = `[${field.shape.join(", ")}]`;
  if (channels === 1 && field.shape.length === rank) field.shape = [1, ...field.shape];
  if (field.shape.length === rank + 2 && field.shape[0] === 1) field.shape = field.shape.slice(1);
  if (field.shape.length !== rank + 1 || field.shape[0] !== channels) {
    throw new Error(
      `${name} has shape ${given}, ${model.name} takes [${channels}, ${["x", "y", "z"].slice(0, rank).join(", ")}].`,
    );
  }
  return field;
}

function blank() {
  const grid = model.grid.training;
  const size = sizeOf(grid);
  const data = new Float32Array(model.input.channels.length * size);
  brush.blanks.forEach((value, channel) => data.fill(value, channel * size, (channel + 1) * size));
  take({ shape: [brush.blanks.length, ...grid], data });
  const scales = brush.ranges.map((range, channel) => {
    const known = model.statistics?.inputs[channel];
    return scaleOf([range], known && known.minimum < 0 && known.maximum > 0 && grid.length > 1 ? "diverging" : "sequential");
  });
  panel.show("input", input, scales);
}

// Models trained on fields with zero mean do not generalise to others; drawn fields have a mean.
function centre() {
  if (input) take(centred(input));
}

// Shows a command with the service's address, one level above the page, and copies it.
async function copy(command, words) {
  const text = command(new URL("..", location.href).href.replace(/\/$/, ""), asked);
  byId("command").textContent = text;
  byId("command").hidden = false;
  // Without TLS, browsers allow the clipboard only on the local machine.
  const copied = await navigator.clipboard?.writeText(text).then(() => true, () => false);
  const saved = asked.sampled || file ? "" : ` Save the input first, as ${asked.file}.`;
  byId("copied").textContent = `${copied ? `${words} copied.` : "Copy it from below."}${saved}`;
}

function startCharts() {
  const charts = [
    new Chart("Throughput", "fields or steps / s", [["throughput", ""]]),
    new Chart("Queue", "fields waiting", [["queue", ""]]),
    new Chart("Latency", "ms, without rollouts", [["median", "median"], ["slow", "99 %"]]),
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
      if (before) for (const chart of charts) chart.add(between(before, now), now.at / 1000);
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
  addEventListener("hashchange", () => isPlace() || followAddress().catch(complain));
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
  for (const id of ["plane-axis", "plane-place"]) byId(id).addEventListener("input", showPlane);
  byId("compare").addEventListener("change", () => byId("compare").checked && predictAnew());
  // So that the same file can be chosen again after a change.
  byId("file").addEventListener("click", () => (byId("file").value = ""));
  byId("file").addEventListener("change", () => {
    const [chosen] = byId("file").files;
    if (chosen) upload(chosen);
  });
  byId("copy-curl").addEventListener("click", () => copy(asCurl, "The line"));
  byId("copy-python").addEventListener("click", () => copy(asPython, "The lines"));
  byId("card").addEventListener("toggle", showCard);
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
      atEase();
      allow(true);
      if (radio.value === "sample") predictAnew();
      if (radio.value === "draw" && !input) blank();
      if (radio.value === "upload") {
        work.abort();
        forgetInput();
        say("Choose a file.");
      }
    });
  }
}

startTheme();
startControls();
startCharts();
loadModels().catch(complain);
