// Saves an array as a .npy file in the browser's downloads.
import { make } from "./dom.js";
import { writeNpy } from "./npy.js";

export function save(field, name) {
  const url = URL.createObjectURL(new Blob([writeNpy(field)], { type: "application/x-npy" }));
  make("a", { href: url, download: name }).click();
  // After the browser has started the download.
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
