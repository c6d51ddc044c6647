// Renders the Markdown of model cards as elements, from text only: nothing in it is executed.
import { ask } from "./api.js";
import { make } from "./dom.js";

const INLINE = /(!?)\[([^\]]*)\]\(([^)\s]+)\)|`([^`]+)`|\*\*([^*]+)\*\*|\*([^*]+)\*/g;

// `fileOf(name)`: the path of a picture of the card on the server.
export function markdown(text, fileOf) {
  const lines = text.split("\n");
  const blocks = [];
  const take = (belongs) => {
    const taken = [];
    while (lines.length && belongs(lines[0])) taken.push(lines.shift());
    return taken;
  };
  while (lines.length) {
    const line = lines[0];
    const heading = /^(#{1,6})\s+(.*)/.exec(line);
    if (!line.trim()) lines.shift();
    else if (heading) {
      lines.shift();
      // The page itself has headings of level 1 and 2.
      blocks.push(make(`h${Math.min(6, heading[1].length + 2)}`, {}, ...inline(heading[2], fileOf)));
    } else if (line.startsWith("```")) {
      lines.shift();
      blocks.push(make("pre", { tabindex: 0 }, take((one) => !one.startsWith("```")).join("\n")));
      lines.shift();
    } else if (line.startsWith("|")) blocks.push(table(take((one) => one.startsWith("|")), fileOf));
    else if (/^[-*] /.test(line)) {
      const items = [];
      for (const one of take((next) => /^([-*] |\s+\S)/.test(next))) {
        if (/^[-*] /.test(one)) items.push(one.slice(2));
        else items[items.length - 1] += ` ${one.trim()}`;
      }
      blocks.push(make("ul", {}, ...items.map((item) => make("li", {}, ...inline(item, fileOf)))));
    } else {
      // Always consume the first line, so that the loop ends.
      const paragraph = [lines.shift(), ...take((one) => one.trim() && !/^(#|\||```|[-*] )/.test(one))];
      blocks.push(make("p", {}, ...inline(paragraph.join(" "), fileOf)));
    }
  }
  return blocks;
}

function table(rows, fileOf) {
  const cells = (row) => row.replace(/^\||\|\s*$/g, "").split("|").map((cell) => cell.trim());
  const [head, , ...body] = rows;
  const line = (tag, row) => make("tr", {}, ...cells(row).map((cell) => make(tag, {}, ...inline(cell, fileOf))));
  return make("table", {}, make("thead", {}, line("th", head)), make("tbody", {}, ...body.map((row) => line("td", row))));
}

function inline(text, fileOf) {
  const parts = [];
  let end = 0;
  for (const found of text.matchAll(INLINE)) {
    const [all, picture, label, target, code, strong, emphasis] = found;
    parts.push(text.slice(end, found.index));
    end = found.index + all.length;
    if (code) parts.push(make("code", {}, code));
    else if (strong) parts.push(make("strong", {}, strong));
    else if (emphasis) parts.push(make("em", {}, emphasis));
    else if (picture) parts.push(drawn(fileOf(target), label));
    else if (/^https?:/.test(target)) parts.push(make("a", { href: target, rel: "noreferrer" }, label));
    else parts.push(label);
  }
  return [...parts, text.slice(end)];
}

// Fetched, because the picture may need the key; drawn on a canvas, which the content policy allows.
function drawn(path, label) {
  const canvas = make("canvas", { class: "picture", role: "img", "aria-label": label });
  ask(path)
    .then((response) => response.blob())
    .then(createImageBitmap)
    .then((bitmap) => {
      canvas.width = bitmap.width;
      canvas.height = bitmap.height;
      canvas.getContext("2d").drawImage(bitmap, 0, 0);
    })
    .catch(() => canvas.replaceWith(make("em", {}, `[${label}]`)));
  return canvas;
}
