// Commands that repeat the last request: curl and Python.

const inShell = (text) => `'${text.replaceAll("'", `'\\''`)}'`;
const inPython = (text) => JSON.stringify(text);

// `asked`: { model, sampled, file, guarded }: the sample's query, or the file of the input.
export function asCurl(base, { model, sampled, file, guarded }) {
  const url = `${base}/v1/models/${encodeURIComponent(model)}`;
  const key = guarded ? ' -H "Authorization: Bearer $TURBOFNO_API_KEY"' : "";
  const input = sampled ? `curl -fsS${key} ${inShell(`${url}/sample?${sampled}`)} |\n  ` : "";
  const body = sampled ? "@-" : inShell(`@${file}`);
  return `${input}curl -fsS${key} ${inShell(`${url}:predict`)} -H 'Content-Type: application/x-npy' --data-binary ${body} -o prediction.npy`;
}

export function asPython(base, { model, sampled, file, guarded }) {
  const name = inPython(model);
  const key = guarded ? ', api_key=os.environ["TURBOFNO_API_KEY"]' : "";
  return [
    ...(guarded ? ["import os", ""] : []),
    ...(sampled ? [] : ["import numpy as np"]),
    "from turbofno_client import Client",
    "",
    `with Client(${inPython(base)}${key}) as client:`,
    `    field = ${sampled ? drawn(name, sampled) : `np.load(${inPython(file)})`}`,
    `    prediction = client.predict(${name}, field)`,
    "print(prediction.shape, prediction.min(), prediction.max())",
    "",
  ].join("\n");
}

function drawn(name, query) {
  const { seed, grid, ...knobs } = Object.fromEntries(new URLSearchParams(query));
  const parameters = Object.entries(knobs).map(([knob, value]) => `${inPython(knob)}: ${value}`);
  const given = parameters.length ? `, parameters={${parameters.join(", ")}}` : "";
  return `client.sample(${name}, seed=${seed}, grid=${grid}${given})`;
}
