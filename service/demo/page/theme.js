// Light or dark theme, or that of the system; the browser remembers the choice.
import { byId } from "./dom.js";

export function startTheme() {
  const choice = byId("theme");
  const apply = (theme) => (document.documentElement.dataset.theme = theme);
  choice.value = localStorage.getItem("theme") ?? "";
  apply(choice.value);
  choice.addEventListener("change", () => {
    localStorage.setItem("theme", choice.value);
    apply(choice.value);
  });
}
