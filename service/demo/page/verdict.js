// Warnings and trust of a response, shown above it.
import { make } from "./dom.js";

// The warnings of a response, from its header.
export function warningsOf(headers) {
  return (headers.get("X-Warning") ?? "").split("; ").filter(Boolean);
}

export function judgedBy(headers) {
  return ["X-Trust-Input-Distance", "X-Trust-Residual"].some((name) => headers.has(name));
}

export function showVerdict(place, headers, warnings = warningsOf(headers), judged = judgedBy(headers)) {
  const untold = headers.get("X-Trust") ?? (judged ? "" : "trust signals could not be computed, or the field was cut over several devices");
  place.hidden = false;
  place.replaceChildren(
    ...warnings.map((text) => make("p", {}, make("strong", { class: "badge bad" }, "Warning"), ` ${text}`)),
    ...(untold ? [make("p", {}, make("strong", { class: "badge" }, "Not judged"), ` ${untold}`)] : []),
    ...(warnings.length || untold ? [] : [make("p", { class: "hint" }, "No warnings.")]),
  );
}

export function noVerdict(place) {
  place.hidden = true;
  place.replaceChildren();
}
