// Statistics of a few runs, as ``rollmill report`` has them (launch/compare/aggregate.py and statistics.py): a mean is
// taken only where all runs of a group have values; from some number of seeds on the band is a 95 % interval, below
// it the lowest and the highest run. The limits come with the runs from Python (``rules``).

const REPETITIONS = 500;

// {x, rows}: all curves ([xs, ys]) at the same places, from where the last begins to where the first ends.
export function common(curves, points) {
  const low = Math.max(...curves.map(([xs]) => xs[0]));
  const high = Math.min(...curves.map(([xs]) => xs[xs.length - 1]));
  if (!curves.length || !(high >= low)) return { x: [], rows: curves.map(() => []) };
  const count = high > low ? points : 1;
  const x = Array.from({ length: count }, (_, k) => (count > 1 ? low + ((high - low) * k) / (count - 1) : low));
  return { x, rows: curves.map(([xs, ys]) => interpolated(xs, ys, x)) };
}

function interpolated(xs, ys, at) {
  let k = 0;
  return at.map((x) => {
    while (k < xs.length - 2 && xs[k + 1] < x) k += 1;
    if (x <= xs[0]) return ys[0];
    if (x >= xs[xs.length - 1]) return ys[ys.length - 1];
    return ys[k] + ((ys[k + 1] - ys[k]) * (x - xs[k])) / (xs[k + 1] - xs[k]);
  });
}

// [lowest, highest] of any number of values; not by Math.max(...values), whose arguments lie on the stack. NaN is passed over.
export function extremes(values) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return [low, high];
}

// {middle, low, high, kind}: over the rows at each place; kind: "95 %", "lowest to highest" or "" (a single run).
export function band(rows, statistic, rules) {
  const places = rows[0]?.length ?? 0;
  const kind = rows.length >= rules.seeds ? "95 %" : rows.length > 1 ? "lowest to highest" : "";
  const drawn = statistic === "iqm" && kind === "95 %" ? draws(rows.length) : null;
  const result = { middle: [], low: [], high: [], kind };
  for (let k = 0; k < places; k += 1) {
    const values = Float64Array.from(rows, (row) => row[k]);
    const middle = statistic === "iqm" ? iqm(values) : mean(values);
    const [low, high] = drawn ? resampled(values, drawn) : edges(values, middle, kind, rules);
    result.middle.push(middle);
    result.low.push(low);
    result.high.push(high);
  }
  return result;
}

function edges(values, middle, kind, rules) {
  if (kind === "") return [NaN, NaN];
  if (kind !== "95 %") return [Math.min(...values), Math.max(...values)];
  const squares = values.reduce((sum, value) => sum + (value - middle) ** 2, 0);
  const t = rules.t975[Math.min(values.length - 1, rules.t975.length) - 1];
  const half = (t * Math.sqrt(squares / (values.length - 1))) / Math.sqrt(values.length);
  return [middle - half, middle + half];
}

export function mean(values) {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}

// What is left when a quarter of the values is cut off at either end.
export function iqm(values) {
  const cut = Math.floor(values.length / 4);
  return mean(Float64Array.from(values).sort().subarray(cut, values.length - cut));
}

function draws(count) {
  let state = 1; // the same runs give the same band
  const next = () => (state = (Math.imul(state, 1664525) + 1013904223) >>> 0) / 2 ** 32;
  return Array.from({ length: REPETITIONS }, () => Uint16Array.from({ length: count }, () => Math.floor(next() * count)));
}

function resampled(values, drawn) {
  const found = Float64Array.from(drawn, (picks) => iqm(Float64Array.from(picks, (pick) => values[pick]))).sort();
  return [quantile(found, 0.025), quantile(found, 0.975)];
}

function quantile(sorted, share) {
  const place = share * (sorted.length - 1);
  const k = Math.floor(place);
  return sorted[k] + (place - k) * ((sorted[k + 1] ?? sorted[k]) - sorted[k]);
}

// An exponential mean of the values so far; ``weight`` 0 leaves them as they are.
export function smoothed(values, weight) {
  let sum = 0;
  let total = 0;
  return Array.from(values, (value) => {
    sum = weight * sum + (1 - weight) * value;
    total = weight * total + (1 - weight);
    return sum / total;
  });
}
