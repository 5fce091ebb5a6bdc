// Parallel coordinates: an axis for every parameter and one for the score, a line for every run. Drawn as plots are
// (plot.js): a list of shapes, for the canvas and for a file.

import { text } from "rollmill/filter";
import { number } from "rollmill/format";
import { Plot } from "rollmill/plot";

const MOST_VALUES = 8; // of an axis that are named one by one

export class Parallel extends Plot {
  // ``runs``: [{params, score}], params in the order of ``keys``.
  constructor(keys, runs, lower) {
    super({ xRange: [0, keys.length], yRange: [0, 1] });
    this.still = true; // between its axes there are no values that a cursor could tell
    this.axes = keys.map((key, k) => axis(key, runs.map((run) => run.params[k])));
    this.axes.push(axis("score", runs.map((run) => run.score)));
    const scores = runs.map((run) => run.score).sort((a, b) => (lower ? b - a : a - b));
    const rank = (score) => (scores.length > 1 ? scores.indexOf(score) / (scores.length - 1) : 1);
    this.runs = [...runs].sort((a, b) => rank(a.score) - rank(b.score)).map((run) => ({ values: [...run.params, run.score], rank: rank(run.score) }));
  }

  shapes(width, height) {
    [this.left, this.right, this.top, this.bottom, this.width, this.height] = [44, width - 56, 36, height - 12, width, height];
    const place = (k) => this.left + ((this.right - this.left) * k) / (this.axes.length - 1);
    const level = (share) => this.bottom - share * (this.bottom - this.top);
    const shapes = this.runs.map(({ values, rank }) => ({
      path: values.flatMap((value, k) => [place(k), level(this.axes[k].share(value))]), stroke: "--accent", width: 1 + rank, alpha: 0.15 + 0.75 * rank ** 2,
    }));
    this.axes.forEach(({ key, ticks }, k) => {
      const anchor = k === 0 ? "start" : k === this.axes.length - 1 ? "end" : "middle";
      shapes.push({ path: [place(k), this.top, place(k), this.bottom], stroke: "--muted", width: 1 });
      shapes.push({ text: key.split(".").pop(), x: k === 0 ? 4 : k === this.axes.length - 1 ? width - 4 : place(k), y: 14, anchor, fill: "--ink" });
      for (const [share, words] of ticks) shapes.push({ text: words, x: place(k) + 5, y: level(share) - 4, anchor: "start", fill: "--ink", ground: "--card" });
    });
    return shapes;
  }
}

// {key, share: value -> 0 to 1, ticks: [[share, words], ...]}: numbers by their size, on a logarithmic axis where they
// span decades; few of them, and words, one by one at equal distances.
function axis(key, values) {
  const numeric = values.every((value) => typeof value === "number");
  const known = [...new Set(values.map((value) => (numeric ? value : text(value))))].sort(numeric ? (a, b) => a - b : undefined);
  if (!numeric || (known.length <= MOST_VALUES && key !== "score")) {
    const share = (value) => (known.length > 1 ? known.indexOf(numeric ? value : text(value)) / (known.length - 1) : 0.5);
    const every = Math.ceil(known.length / 20);
    return { key, share, ticks: known.map((value, k) => [known.length > 1 ? k / (known.length - 1) : 0.5, numeric ? number(value) : value]).filter((_, k) => k % every === 0) };
  }
  const [low, high] = [known[0], known.at(-1)];
  const log = low > 0 && high / low > 100;
  const forth = log ? Math.log : (value) => value;
  const share = (value) => (high > low ? (forth(value) - forth(low)) / (forth(high) - forth(low)) : 0.5);
  const marks = [0, 0.25, 0.5, 0.75, 1].map((at) => [at, log ? Math.exp(Math.log(low) + at * Math.log(high / low)) : low + at * (high - low)]);
  return { key, share, ticks: high > low ? marks.map(([at, value]) => [at, number(value)]) : [[0.5, number(low)]] };
}
