// Requests to the service: base path, API key, .npy bodies, and errors with the server's message.
import { readNpy, writeNpy } from "./npy.js";

const NPY = "application/x-npy";
let key = "";

// The key is kept only in memory, and so is lost with the page.
export function useKey(text) {
  key = text.trim();
}

export function guarded() {
  return Boolean(key);
}

export class Problem extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

// `path` begins with a slash. The page is one level below the root, possibly behind a prefix.
export async function ask(path, options = {}) {
  const headers = { ...options.headers };
  if (/[^ -~]/.test(key)) {
    throw new Problem(401, "This is no API key: keys have only ASCII characters. Copy it again.");
  }
  if (key) headers.Authorization = `Bearer ${key}`;
  let response;
  try {
    response = await fetch(`..${path}`, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, "The server cannot be reached. Is it still running?");
  }
  if (!response.ok) throw new Problem(response.status, await inWords(response));
  return response;
}

export async function askJson(path, options) {
  return (await ask(path, options)).json();
}

// Sends a field, if given, and reads the field of the response: { field, headers }.
export async function askField(path, { field = null, method = field ? "POST" : "GET", signal } = {}) {
  const headers = { Accept: NPY };
  if (field) headers["Content-Type"] = NPY;
  const response = await ask(path, { method, headers, signal, body: field && writeNpy(field) });
  return { field: readNpy(await response.arrayBuffer()), headers: response.headers };
}

export async function askStream(path, field, accept, signal) {
  const headers = { Accept: accept, "Content-Type": NPY };
  return ask(path, { method: "POST", headers, signal, body: writeNpy(field) });
}

async function inWords(response) {
  const text = await response.text();
  let detail = text.slice(0, 300) || response.statusText;
  try {
    const problem = JSON.parse(text);
    detail = problem.detail ?? problem.error ?? detail;
  } catch {
    // Not an error of the service, but perhaps of a proxy.
  }
  const wait = response.headers.get("Retry-After");
  const when = wait ? ` Try again in ${wait} s.` : "";
  return `${detail}${/[.!?]$/.test(detail) ? "" : "."}${when}`;
}
