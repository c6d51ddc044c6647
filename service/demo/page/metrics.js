// The server's Prometheus metrics: rates and quantiles between two readings.
import { ask } from "./api.js";

const LINE = /^(\w+)(?:\{(.*)\})? ([^ ]+)$/;

// name -> [{ labels, value }]
export function parse(text) {
  const samples = new Map();
  for (const line of text.split("\n")) {
    const match = line[0] === "#" ? null : LINE.exec(line);
    if (!match) continue;
    const labels = Object.fromEntries([...(match[2] ?? "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)].map(([, k, v]) => [k, v]));
    if (!samples.has(match[1])) samples.set(match[1], []);
    samples.get(match[1]).push({ labels, value: Number(match[3]) });
  }
  return samples;
}

export async function read() {
  const response = await ask("/metrics");
  return { at: performance.now(), samples: parse(await response.text()) };
}

function total(reading, name) {
  return (reading.samples.get(name) ?? []).reduce((sum, { value }) => sum + value, 0);
}

// Counts by upper bound since the earlier reading, summed over all series.
function buckets(before, now, name) {
  const counts = new Map();
  for (const [reading, sign] of [[now, 1], [before, -1]]) {
    for (const { labels, value } of reading.samples.get(`${name}_bucket`) ?? []) {
      const bound = labels.le === "+Inf" ? Infinity : Number(labels.le);
      counts.set(bound, (counts.get(bound) ?? 0) + sign * value);
    }
  }
  return [...counts].sort(([a], [b]) => a - b);
}

// A quantile by linear interpolation within a bucket, as Prometheus' histogram_quantile. Null without counts.
export function quantile(share, counts) {
  const all = counts.at(-1)?.[1] ?? 0;
  if (all <= 0) return null;
  let [lower, below] = [0, 0];
  for (const [bound, count] of counts) {
    if (count >= share * all) {
      if (bound === Infinity) return lower;
      return lower + ((bound - lower) * (share * all - below)) / (count - below || 1);
    }
    [lower, below] = [bound, count];
  }
  return lower;
}

// The values of the charts; null without a measurement.
export function between(before, now) {
  const seconds = (now.at - before.at) / 1000;
  const change = (name) => total(now, name) - total(before, name);
  const latency = buckets(before, now, "turbofno_request_duration_seconds");
  const inMs = (share) => (quantile(share, latency) ?? NaN) * 1000 || null;
  const batches = change("turbofno_batch_size_count");
  const work = ["fields", "gradients", "rollout_steps"].map((name) => change(`turbofno_${name}_total`));
  return {
    throughput: work.reduce((sum, done) => sum + done) / seconds,
    queue: total(now, "turbofno_queue_depth"),
    median: inMs(0.5),
    slow: inMs(0.99),
    batch: batches > 0 ? change("turbofno_batch_size_sum") / batches : null,
  };
}
