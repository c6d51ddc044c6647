// Latency and trust signals of one prediction, from its response headers.
import { shown } from "./colour.js";
import { make } from "./dom.js";

const STEPS = ["decode", "queue", "compute", "encode"];
const TRUST = {
  "x-trust-input-distance": ["Distance of the input", "from the training data; above 1 is unusual (1 in 100 training inputs)"],
  "x-trust-residual": ["Residual of the PDE", "about the relative error of the prediction"],
};

// Server-Timing: "decode;dur=0.1, queue;dur=2" -> { decode: 0.1, queue: 2 }, milliseconds.
export function timings(header) {
  const found = (header ?? "").matchAll(/([\w-]+);dur=([\d.]+)/g);
  return Object.fromEntries([...found].map(([, name, dur]) => [name, Number(dur)]));
}

export function showRequest(place, headers, totalMs) {
  const server = timings(headers.get("Server-Timing"));
  const parts = STEPS.filter((step) => step in server).map((step) => [step, step, server[step]]);
  const rest = Math.max(0, totalMs - parts.reduce((sum, [, , ms]) => sum + ms, 0));
  parts.push(["rest", "network and browser", rest]);
  const bar = make("div", { class: "split", "aria-hidden": "true" });
  for (const [step, , ms] of parts) {
    const part = make("i", { class: step });
    part.style.flexGrow = ms;
    bar.append(part);
  }
  const rows = parts.map(([step, name, ms]) =>
    make("tr", {}, make("th", { scope: "row" }, make("i", { class: `key ${step}` }), name), make("td", {}, `${shown(ms)} ms`)),
  );
  const latency = make(
    "table", {}, make("caption", {}, "Latency"), ...rows,
    make("tr", { class: "sum" }, make("th", { scope: "row" }, "all"), make("td", {}, `${shown(totalMs)} ms`)),
  );
  place.replaceChildren(make("div", {}, bar, latency), facts(headers));
}

// After a failure: clears the previous request.
export function showNoRequest(place, why) {
  place.replaceChildren(make("p", { class: "hint" }, why));
}

function facts(headers) {
  const rows = [
    ["Fields in its batch", headers.get("X-Batch-Size") ?? "unknown"],
    ["Version of the model", headers.get("X-Model-Version")],
    ["Request id", headers.get("X-Request-Id")],
  ];
  const table = make("table", {}, make("caption", {}, "Answer"));
  for (const [name, value] of rows) {
    table.append(make("tr", {}, make("th", { scope: "row" }, name), make("td", {}, value ?? "")));
  }
  for (const [header, [name, meaning]] of Object.entries(TRUST)) {
    const value = headers.get(header);
    if (value === null) continue;
    table.append(
      make("tr", {}, make("th", { scope: "row" }, name, make("span", { class: "hint" }, meaning)), make("td", {}, value)),
    );
  }
  return make("div", {}, table);
}
