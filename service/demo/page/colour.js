// Numbers to colours: viridis for fields (perceptually uniform), coolwarm centred at zero for errors.

const VIRIDIS =
  "44015448186a472d7b4240863b528b33638d2c728e26828e21918c1fa08828ae803fbc735ec96284d44baddc30d8e219fde725";
const COOLWARM =
  "3b4cc04e68d86282ea779af78db0fea3c2feb9d0f9ccd9eddddcdcecd3c5f5c4acf7b093f4987aeb7d62dd5f4bca3b37b40426";
const LEVELS = 256;

function table(stops) {
  const known = stops.match(/../g).map((hex) => parseInt(hex, 16));
  const last = known.length / 3 - 1;
  const colours = new Uint8Array(3 * LEVELS);
  for (let level = 0; level < LEVELS; level++) {
    const place = (level / (LEVELS - 1)) * last;
    const left = Math.min(Math.floor(place), last - 1);
    for (let c = 0; c < 3; c++) {
      const [from, to] = [known[3 * left + c], known[3 * left + 3 + c]];
      colours[3 * level + c] = Math.round(from + (to - from) * (place - left));
    }
  }
  return colours;
}

const MAPS = { sequential: table(VIRIDIS), diverging: table(COOLWARM) };

// The common scale of the arrays' finite values: { minimum, maximum, kind }. A diverging scale is centred at zero.
export function scaleOf(arrays, kind = "sequential") {
  let [minimum, maximum] = [Infinity, -Infinity];
  for (const values of arrays) {
    for (const value of values) {
      if (value < minimum && value > -Infinity) minimum = value;
      if (value > maximum && value < Infinity) maximum = value;
    }
  }
  if (!(minimum <= maximum)) [minimum, maximum] = [0, 0];
  if (kind === "diverging") {
    const reach = Math.max(-minimum, maximum) || 1;
    return { minimum: -reach, maximum: reach, kind };
  }
  if (minimum === maximum) {
    const room = Math.abs(minimum) / 2 || 1;
    return { minimum: minimum - room, maximum: maximum + room, kind };
  }
  return { minimum, maximum, kind };
}

// The scale of one channel, diverging if its values have both signs and neither by rounding alone. `seen`: the channel in
// the training data; `before`: a scale to widen.
export function scaleFor(planes, seen, before) {
  const values = planes.map((plane) => plane.all);
  if (before) values.push([before.minimum, before.maximum]);
  const scale = scaleOf(values);
  const { minimum, maximum } = seen ?? scale;
  const both = Math.min(-minimum, maximum) > 1e-3 * (maximum - minimum);
  return planes[0].grid.length > 1 && both ? scaleOf(values, "diverging") : scale;
}

// Paints an image of [height][width] pixels from `at(column, row)`; row 0 is the top. NaN is transparent.
export function paint(canvas, width, height, scale, at) {
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  const colours = MAPS[scale.kind];
  const factor = (LEVELS - 1) / (scale.maximum - scale.minimum);
  for (let row = 0, pixel = 0; row < height; row++) {
    for (let column = 0; column < width; column++, pixel += 4) {
      const level = Math.round((at(column, row) - scale.minimum) * factor);
      if (Number.isNaN(level)) continue;
      const colour = 3 * Math.min(LEVELS - 1, Math.max(0, level));
      image.data[pixel] = colours[colour];
      image.data[pixel + 1] = colours[colour + 1];
      image.data[pixel + 2] = colours[colour + 2];
      image.data[pixel + 3] = 255;
    }
  }
  context.putImageData(image, 0, 0);
}

// A number as text with three significant digits.
export function shown(value) {
  if (!Number.isFinite(value)) return String(value);
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e5)) return value.toExponential(2).replace("e+", "e");
  return String(Number(value.toPrecision(3)));
}
