// Reads and writes .npy files: { shape, data } with data a Float32Array in C order.

const MAGIC = "\x93NUMPY";
const READERS = {
  f2: [2, (view, at, little) => fromHalf(view.getUint16(at, little))],
  f4: [4, (view, at, little) => view.getFloat32(at, little)],
  f8: [8, (view, at, little) => view.getFloat64(at, little)],
};

export function writeNpy({ shape, data }) {
  const tuple = shape.length === 1 ? `${shape[0]},` : shape.join(", ");
  const entries = `{'descr': '<f4', 'fortran_order': False, 'shape': (${tuple}), }`;
  const header = entries.padEnd(Math.ceil((entries.length + 11) / 64) * 64 - 11) + "\n";
  const bytes = new Uint8Array(10 + header.length + 4 * data.length);
  const text = MAGIC + "\x01\x00" + String.fromCharCode(header.length & 255, header.length >> 8) + header;
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  const view = new DataView(bytes.buffer, text.length);
  data.forEach((value, i) => view.setFloat32(4 * i, value, true));
  return bytes;
}

export function readNpy(buffer) {
  const view = new DataView(buffer);
  const ascii = (from, to) => String.fromCharCode(...new Uint8Array(buffer, from, to - from));
  if (buffer.byteLength < 12 || ascii(0, 6) !== MAGIC) {
    throw new Error("This is no .npy file: write it with numpy.save.");
  }
  const wide = view.getUint8(6) > 1;
  const length = wide ? view.getUint32(8, true) : view.getUint16(8, true);
  const start = (wide ? 12 : 10) + length;
  if (length > 4096 || start > buffer.byteLength) throw new Error("The .npy file's header is damaged.");
  const header = ascii(start - length, start);
  const type = /'descr':\s*'([<>=|])(\w+)'/.exec(header);
  const dimensions = /'shape':\s*\(([\d, ]*)\)/.exec(header);
  if (!type || !dimensions || !READERS[type[2]]) {
    throw new Error("The .npy file must hold float32, float64 or float16: array.astype('float32').");
  }
  const shape = dimensions[1].split(",").filter((one) => one.trim()).map(Number);
  const [size, get] = READERS[type[2]];
  const count = shape.reduce((a, b) => a * b, 1);
  if (buffer.byteLength - start !== count * size) throw new Error("The .npy file is cut short or has a tail.");
  const data = new Float32Array(count);
  for (let i = 0; i < count; i++) data[i] = get(view, start + i * size, type[1] !== ">");
  return { shape, data: /'fortran_order':\s*True/.test(header) ? fromFortran(shape, data) : data };
}

function fromFortran(shape, data) {
  const turned = new Float32Array(data.length);
  const steps = shape.map((_, axis) => shape.slice(0, axis).reduce((a, b) => a * b, 1));
  for (let i = 0; i < data.length; i++) {
    let rest = i;
    let at = 0;
    for (let axis = shape.length - 1; axis >= 0; axis--) {
      at += (rest % shape[axis]) * steps[axis];
      rest = Math.floor(rest / shape[axis]);
    }
    turned[i] = data[at];
  }
  return turned;
}

function fromHalf(bits) {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * (fraction / 1024));
}
