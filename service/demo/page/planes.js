// Fields for drawing: one channel of [channels, *grid], or a plane of it, with the coordinates of its points.
import { shown } from "./colour.js";

export function sizeOf(shape) {
  return shape.reduce((a, b) => a * b, 1);
}

export const MIDDLE = { axis: 2, share: 0.5 };

// { name, units, grid, axes, values, all, place, extent, length, where }: in three dimensions the plane at `cut.share` of axis
// `cut.axis`, described by `where`; `all` are the values of the whole field; `length` follows a coordinate: " mm", or nothing.
export function planeOf({ shape, data }, channel, about, gridAbout, cut = MIDDLE) {
  const full = shape.slice(1);
  const size = sizeOf(full);
  const all = data.subarray(channel * size, (channel + 1) * size);
  const last = gridAbout.boundary === "nodes" ? 1 : 0;
  const coordinate = (axis, index) => (index * gridAbout.extent[axis]) / (full[axis] - last);
  const length = gridAbout.units === "1" ? "" : ` ${gridAbout.units}`;
  let axes = full.map((_, axis) => axis);
  let values = all;
  let where = "";
  if (full.length === 3) {
    axes = axes.filter((axis) => axis !== cut.axis);
    const strides = [full[1] * full[2], full[2], 1];
    const at = Math.round(cut.share * (full[cut.axis] - 1));
    const [rows, columns] = axes.map((axis) => full[axis]);
    values = Float32Array.from({ length: rows * columns }, (_, i) => {
      const row = Math.floor(i / columns);
      return all[row * strides[axes[0]] + (i - row * columns) * strides[axes[1]] + at * strides[cut.axis]];
    });
    where = `${"xyz"[cut.axis]} = ${shown(coordinate(cut.axis, at))}${length}`;
  }
  return {
    name: about.name,
    units: about.units,
    grid: axes.map((axis) => full[axis]),
    axes: axes.map((axis) => "xyz"[axis]),
    values,
    all,
    // The coordinate of point `index` on an axis of the plane, in the units of the domain.
    place: (axis, index) => coordinate(axes[axis], index),
    extent: axes.map((axis) => gridAbout.extent[axis]),
    length,
    where,
  };
}

// The difference of two fields { shape, data }.
export function difference(a, b) {
  return { shape: a.shape, data: a.data.map((value, i) => value - b.data[i]) };
}

// The relative L2 error of each channel of `a` against `b`, as text.
export function relativeL2(a, b) {
  const size = sizeOf(a.shape.slice(1));
  return Array.from({ length: a.shape[0] }, (_, channel) => {
    let [above, below] = [0, 0];
    for (let i = channel * size; i < (channel + 1) * size; i++) {
      above += (a.data[i] - b.data[i]) ** 2;
      below += b.data[i] ** 2;
    }
    return below ? `relative L2 error ${shown(100 * Math.sqrt(above / below))} %` : "no relative error: the solution is zero";
  });
}

// The field with the mean of each channel subtracted.
export function centred({ shape, data }) {
  const size = sizeOf(shape.slice(1));
  const flat = Float32Array.from(data);
  for (let start = 0; start < data.length; start += size) {
    const mean = data.subarray(start, start + size).reduce((sum, value) => sum + value, 0) / size;
    for (let i = start; i < start + size; i++) flat[i] -= mean;
  }
  return { shape, data: flat };
}

export function inUnits(units) {
  return units === "1" ? "dimensionless" : units;
}

// A smooth field for models without a sampler: a few random waves of the size of the training inputs.
export function randomWaves(model, grid, seed) {
  const random = mulberry(seed);
  const channels = model.input.channels.length;
  const size = sizeOf(grid);
  const data = new Float32Array(channels * size);
  for (let channel = 0; channel < channels; channel++) {
    const { mean = 0, std = 1 } = model.statistics?.inputs[channel] ?? {};
    for (let wave = 0; wave < 6; wave++) {
      const turns = grid.map(() => Math.floor(random() * 5) - 2);
      const phase = 2 * Math.PI * random();
      for (let i = 0, rest; i < size; i++) {
        rest = i;
        let angle = phase;
        for (let axis = grid.length - 1; axis >= 0; axis--) {
          angle += (2 * Math.PI * turns[axis] * (rest % grid[axis])) / grid[axis];
          rest = Math.floor(rest / grid[axis]);
        }
        data[channel * size + i] += (wave ? 0 : mean) + (std * Math.cos(angle)) / Math.sqrt(3);
      }
    }
  }
  return { shape: [channels, ...grid], data };
}

function mulberry(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}
