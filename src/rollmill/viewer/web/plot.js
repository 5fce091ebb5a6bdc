// One plot: lines, bands and points over axes. What is to be drawn is a list of shapes, made once; a canvas shows it,
// and a file of its own (SVG) has the same. Every point is drawn: where there are many to a pixel, the line goes
// through the first, lowest, highest and last of them, which looks the same.

import { h, svg } from "rollmill/dom";
import { short } from "rollmill/format";

const DASHES = [[], [6, 4], [2, 3], [8, 3, 2, 3]];
const MARKS = ["disc", "ring", "square", "cross"]; // of points, where lines have dashes
const HUES = 8;
const LARGEST = 1e300;
const [KEY_WIDTH, KEY_HEIGHT] = [22, 10]; // of a legend's samples
const HALO = 4; // pixels around words that stand on lines
const FONT = "11px system-ui, -apple-system, 'Segoe UI', Roboto, Arial, sans-serif";

// How line k looks: from the ninth on, hues come again with other dashes.
export function look(k) {
  return { hue: `--c${k % HUES}`, dash: DASHES[Math.floor(k / HUES) % DASHES.length] };
}

// How points of kind k look: hues come again with other marks.
export function pointLook(k) {
  return { hue: `--c${k % HUES}`, mark: MARKS[Math.floor(k / HUES) % MARKS.length] };
}

// A sample of a line, as wide as all its dashes; of a point, where ``mark`` says how it looks.
export function key({ hue, dash, mark }, hueOf = (name) => `var(${name})`) {
  const [x, y] = [KEY_WIDTH / 2, KEY_HEIGHT / 2];
  const shape = mark ? { dots: [x, y], fill: hue, mark, radius: 4 } : { path: [0, y, KEY_WIDTH, y], stroke: hue, width: 2.5, dash };
  const sample = svg("svg", { class: "key", width: KEY_WIDTH, height: KEY_HEIGHT, "aria-hidden": "true" });
  onFile(sample, shape, hueOf);
  return sample;
}

export function colour(name, on = document.documentElement) {
  return getComputedStyle(on).getPropertyValue(name).trim();
}

export class Plot {
  // lines: [{x, y, hue, dash, width, alpha}], bands: [{x, low, high, hue}], points: [{x, y, hue, mark}], marks: [{x, text}];
  // xNames, yNames: [[value, words], ...] instead of numbers; xWhole, yWhole: of things that are counted, without ticks between.
  constructor({ lines = [], bands = [], points = [], marks = [], xTitle = "", xRange = null, yRange = null, xNames = null, yNames = null, logX = false, logY = false, xWhole = false, yWhole = false }) {
    Object.assign(this, { lines, bands, points, marks, xTitle, xNames, yNames, logX, logY, xWhole, yWhole });
    const every = extent([...lines, ...bands, ...points].map((part) => part.x), logX);
    this.xs = scale(xRange ? (logX ? positive(xRange, every) : xRange) : every, logX, xRange ? 0 : 0.01);
    this.ys = scale(yRange ?? this.heights(), logY, yRange ? 0 : 0.05);
  }

  // The range of all values that lie within the axis.
  heights() {
    const parts = [...this.lines, ...this.points].map((part) => [part.x, part.y]);
    parts.push(...this.bands.flatMap((part) => [[part.x, part.low], [part.x, part.high]]));
    let [low, high] = [Infinity, -Infinity];
    for (const [xs, ys] of parts) {
      for (let k = 0; k < ys.length; k += 1) {
        if (!(xs[k] >= this.xs.low && xs[k] <= this.xs.high) || !Number.isFinite(ys[k]) || (this.logY && ys[k] <= 0)) continue;
        if (ys[k] < low) low = ys[k];
        if (ys[k] > high) high = ys[k];
      }
    }
    return [low, high];
  }

  layout(width, height) {
    const levels = this.ys.ticks(Math.max(2, Math.floor(height / 45)));
    const whole = (ticks, only) => (only ? ticks.filter((value) => Number.isInteger(value)) : ticks);
    this.yTicks = this.yNames ?? named(whole(levels, this.yWhole));
    this.left = Math.min(0.4 * width, Math.max(46, 10 + 7 * Math.max(...this.yTicks.map(([, words]) => words.length))));
    [this.right, this.top, this.bottom] = [width - 12, 10, height - (this.xTitle ? 36 : 22)];
    [this.width, this.height] = [width, height];
    this.xTicks = this.xNames ?? named(whole(this.xs.ticks(Math.max(2, Math.floor(width / 90))), this.xWhole));
  }

  x(value) {
    return this.left + this.xs.share(value) * (this.right - this.left);
  }

  y(value) {
    return this.bottom - this.ys.share(value) * (this.bottom - this.top);
  }

  // The value of the axis below a pixel.
  at(pixel) {
    return this.xs.at((pixel - this.left) / (this.right - this.left));
  }

  shapes(width, height) {
    this.layout(width, height);
    const [ink, grid] = ["--muted", "--line"];
    const shapes = [];
    for (const [value, words] of this.yTicks) {
      const y = this.y(value);
      shapes.push({ path: [this.left, y, this.right, y], stroke: grid, width: 1 });
      shapes.push({ text: words, x: this.left - 6, y: y + 4, anchor: "end", fill: ink });
    }
    for (const [value, words] of this.xTicks) {
      shapes.push({ text: words, x: this.x(value), y: this.bottom + 15, anchor: "middle", fill: ink });
    }
    shapes.push({ path: [this.left, this.bottom, this.right, this.bottom], stroke: ink, width: 1 });
    const middle = (this.left + this.right) / 2;
    shapes.push({ text: this.xTitle, x: middle, y: height - 4, anchor: "middle", fill: ink });
    shapes.push({ clip: [this.left, this.top - 4, this.right - this.left + 4, this.bottom - this.top + 5] });
    shapes.push(...this.markShapes(ink));
    for (const band of this.bands) {
      const low = this.corners(band.x, band.low);
      const high = this.corners(band.x, band.high);
      const area = [...low];
      for (let k = high.length - 2; k >= 0; k -= 2) area.push(high[k], high[k + 1]);
      shapes.push({ path: area, fill: band.hue, alpha: 0.16 });
    }
    for (const { x, y, hue, dash, width: thick = 2, alpha = 1 } of this.lines) {
      const path = this.corners(x, y);
      if (path.length === 2) shapes.push({ dots: path, fill: hue, alpha, radius: 3 });
      else shapes.push({ path, stroke: hue, width: thick, dash, alpha });
    }
    for (const { x, y, hue, mark, radius = 2.5, alpha = 0.7 } of this.points) {
      shapes.push({ dots: this.places(x, y), fill: hue, mark, alpha, radius });
    }
    return shapes;
  }

  // A line for every mark; words only where they have room, in rows by what they say.
  markShapes(ink) {
    const shapes = [];
    const ends = new Map(); // word -> where the last one ends
    for (const mark of [...this.marks].sort((a, b) => a.x - b.x)) {
      const x = this.x(mark.x);
      shapes.push({ path: [x, this.top, x, this.bottom], stroke: mark.hue ?? "--ink", width: 1, dash: [3, 3], alpha: 0.6 });
      if (!ends.has(mark.text)) ends.set(mark.text, { row: ends.size, end: -Infinity });
      const place = ends.get(mark.text);
      if (x < place.end) continue;
      const width = 6.5 * mark.text.length;
      const before = x + 3 + width > this.right;
      shapes.push({ text: mark.text, x: before ? x - 3 : x + 3, y: this.top + 8 + 12 * place.row, anchor: before ? "end" : "start", fill: ink });
      place.end = x + 6 + width;
    }
    return shapes;
  }

  places(xs, ys) {
    const found = [];
    for (let k = 0; k < xs.length; k += 1) {
      if (this.visible(ys[k])) found.push(this.x(xs[k]), this.y(ys[k]));
    }
    return found;
  }

  visible(value) {
    return Number.isFinite(value) && !(this.logY && value <= 0);
  }

  // Pixels of a line; of many points in one column of pixels only the first, lowest, highest and last.
  corners(xs, ys) {
    if (xs.length < 2 * (this.right - this.left)) return this.places(xs, ys);
    const found = [];
    let column = null;
    const flush = () => {
      if (column === null) return;
      const picks = [column.first, column.low, column.high, column.last];
      for (const k of [...new Set(picks)].sort((a, b) => a - b)) found.push(this.x(xs[k]), this.y(ys[k]));
    };
    for (let k = 0; k < xs.length; k += 1) {
      if (!this.visible(ys[k])) continue;
      const pixel = Math.floor(this.x(xs[k]));
      if (column === null || column.pixel !== pixel) {
        flush();
        column = { pixel, first: k, low: k, high: k, last: k };
      }
      if (ys[k] < ys[column.low]) column.low = k;
      if (ys[k] > ys[column.high]) column.high = k;
      column.last = k;
    }
    flush();
    return found;
  }

  draw(canvas) {
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    const ratio = window.devicePixelRatio || 1;
    [canvas.width, canvas.height] = [Math.round(width * ratio), Math.round(height * ratio)];
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    for (const shape of this.shapes(width, height)) onCanvas(pen, shape);
  }

  // The plot as a file that stands alone, on white whatever the page is; ``legend``: [{text, hue, dash, mark}].
  file(width, height, title, legend) {
    const paper = h("span", { class: "paper", hidden: true });
    document.body.append(paper);
    try {
      return this.onPaper(width, height, title, legend, (name) => colour(name, paper));
    } finally {
      paper.remove();
    }
  }

  onPaper(width, height, title, legend, hueOf) {
    const root = svg("svg", { xmlns: "http://www.w3.org/2000/svg", width, height: height + 24 + 16 * legend.length });
    root.append(svg("rect", { width: "100%", height: "100%", fill: "white" }));
    root.append(svg("text", { x: 8, y: 16, "font-family": "sans-serif", "font-size": 13 }, title));
    const plot = svg("g", { transform: "translate(0 20)" });
    this.shapes(width, height).forEach((shape) => onFile(plot, shape, hueOf));
    root.append(plot);
    legend.forEach((entry, k) => {
      const y = height + 32 + 16 * k;
      root.append(svg("g", { transform: `translate(12 ${y - 9})` }, key(entry, hueOf)));
      root.append(svg("text", { x: 18 + KEY_WIDTH, y, "font-family": "sans-serif", "font-size": 11 }, entry.text));
    });
    return new XMLSerializer().serializeToString(root);
  }
}

function onCanvas(pen, shape) {
  pen.globalAlpha = shape.alpha ?? 1;
  if (shape.clip) {
    pen.beginPath();
    pen.rect(...shape.clip);
    pen.clip();
  } else if (shape.text !== undefined) {
    pen.font = FONT;
    pen.fillStyle = colour(shape.fill);
    pen.textAlign = { start: "left", middle: "center", end: "right" }[shape.anchor];
    if (shape.ground) { // what stands on lines has to be read
      [pen.strokeStyle, pen.lineWidth, pen.lineJoin] = [colour(shape.ground), HALO, "round"];
      pen.strokeText(shape.text, shape.x, shape.y);
    }
    pen.fillText(shape.text, shape.x, shape.y);
  } else if (shape.dots) {
    pen.fillStyle = pen.strokeStyle = colour(shape.fill);
    pen.lineWidth = STROKE;
    for (let k = 0; k < shape.dots.length; k += 2) {
      pen.beginPath();
      trace(pen, shape.mark, shape.dots[k], shape.dots[k + 1], shape.radius);
      if (isOutline(shape.mark)) pen.stroke();
      else pen.fill();
    }
  } else {
    pen.beginPath();
    for (let k = 0; k < shape.path.length; k += 2) pen.lineTo(shape.path[k], shape.path[k + 1]);
    if (shape.fill) {
      pen.fillStyle = colour(shape.fill);
      pen.fill();
    } else {
      pen.setLineDash(shape.dash ?? []);
      [pen.strokeStyle, pen.lineWidth, pen.lineJoin] = [colour(shape.stroke), shape.width, "round"];
      pen.stroke();
    }
  }
}

const STROKE = 1.5; // of marks that are outlines
const isOutline = (mark) => mark === "ring" || mark === "cross";

function trace(pen, mark, x, y, r) {
  if (mark === "square") pen.rect(x - r, y - r, 2 * r, 2 * r);
  else if (mark === "cross") {
    for (const slope of [-1, 1]) {
      pen.moveTo(x - r, y - slope * r);
      pen.lineTo(x + r, y + slope * r);
    }
  } else pen.arc(x, y, r, 0, 2 * Math.PI);
}

function outlined(mark, x, y, r, paint, round) {
  if (mark === "square") return svg("rect", { x: round(x - r), y: round(y - r), width: 2 * r, height: 2 * r, ...paint });
  if (mark === "cross") return svg("path", { d: `M${round(x - r)} ${round(y - r)}l${2 * r} ${2 * r}m${-2 * r} 0l${2 * r} ${-2 * r}`, ...paint });
  return svg("circle", { cx: round(x), cy: round(y), r, ...paint });
}

function onFile(parent, shape, hueOf) {
  const opacity = shape.alpha ?? 1;
  const round = (value) => value.toFixed(1);
  if (shape.text !== undefined) {
    const { x, y, anchor } = shape;
    const halo = shape.ground ? { stroke: "white", "stroke-width": HALO, "stroke-linejoin": "round", "paint-order": "stroke" } : {};
    const attributes = { x, y, "text-anchor": anchor, fill: hueOf("--muted"), "font-family": "sans-serif", "font-size": 11, ...halo };
    parent.append(svg("text", attributes, shape.text));
  } else if (shape.dots) {
    const hue = hueOf(shape.fill);
    const paint = isOutline(shape.mark) ? { fill: "none", stroke: hue, "stroke-width": STROKE } : { fill: hue };
    for (let k = 0; k < shape.dots.length; k += 2) {
      parent.append(outlined(shape.mark, shape.dots[k], shape.dots[k + 1], shape.radius, { ...paint, opacity }, round));
    }
  } else if (shape.path?.length) {
    let d = "";
    for (let k = 0; k < shape.path.length; k += 2) d += `${k ? "L" : "M"}${round(shape.path[k])} ${round(shape.path[k + 1])}`;
    const dash = (shape.dash ?? []).join(" ") || null;
    const line = { fill: "none", stroke: hueOf(shape.stroke ?? "--ink"), "stroke-width": shape.width, "stroke-dasharray": dash };
    parent.append(svg("path", { d, opacity, ...(shape.fill ? { fill: hueOf(shape.fill) } : line) }));
  }
}

const named = (ticks) => ticks.map((value) => [value, short(value)]);

// A value that holds until the next one, as a line of steps; ``end``: how far the last one holds.
export function stairs(xs, ys, end) {
  const found = { x: [], y: [] };
  for (let k = 0; k < ys.length; k += 1) {
    found.x.push(xs[k], k + 1 < xs.length ? xs[k + 1] : end);
    found.y.push(ys[k], ys[k]);
  }
  return found;
}

// -- axes -------------------------------------------------------------------------------------------------------

function extent(columns, log) {
  let [low, high] = [Infinity, -Infinity];
  for (const column of columns) {
    for (const value of column) {
      if (!Number.isFinite(value) || (log && value <= 0)) continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  return [low, high];
}

// The part of a range that a logarithmic axis has: from the lowest value above 0 on; all values where nothing is left of it.
function positive([low, high], every) {
  if (low > 0) return [low, high];
  return high > every[0] ? [every[0], high] : every;
}

// How values become shares of an axis; ``room``: share of the range that stays free at either end. From here on the rules
// are those of the reports (reports/html/plots.py), so that an axis looks the same in both; a test holds them together.
export function scale([from, to], log, room) {
  const forth = log ? Math.log10 : (value) => value;
  const back = log ? (value) => 10 ** value : (value) => value;
  const [least, most] = (from <= to ? [from, to] : log ? [1, 10] : [0, 1]).map(forth);
  const margin = (most - least) * room;
  const [low, high] = widened(least - margin, most + margin);
  return {
    low: back(low),
    high: back(high),
    share: (value) => (forth(log ? Math.max(value, Number.MIN_VALUE) : value) - low) / (high - low),
    at: (share) => back(low + share * (high - low)),
    ticks: (count) => (log ? logTicks(back(low), back(high), count) : linearTicks(low, high, count)),
  };
}

// A range of some width that is finite, so that it can be divided by.
function widened(from, to) {
  const [low, high] = [Math.max(from, -LARGEST), Math.min(to, LARGEST)];
  if (high > low && ![low, high].includes(low + (high - low) / 2)) return [low, high];
  const margin = Math.abs(low) * 0.1 || 1;
  return [low - margin, high + margin];
}

// About ``count`` round numbers: steps of 1, 2 or 5; two at least if there is room.
function linearTicks(low, high, count) {
  const rough = (high - low) / Math.max(1, count);
  const power = rough > 0 && Number.isFinite(rough) ? 10 ** Math.floor(Math.log10(rough)) : 0;
  if (power === 0) return [low];
  const sizes = [1, 2, 5, 10].map((k) => k * power);
  for (let chosen = sizes.findIndex((size) => size >= rough * 0.999); chosen >= 0; chosen -= 1) {
    const [step, found] = [sizes[chosen], []];
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9 && found.length < 3 * count + 3; k += 1) found.push(k * step);
    if (found.length > 1 || (chosen === 0 && found.length)) return found;
  }
  return [low];
}

// Powers of ten, finer where they are few.
function logTicks(low, high, count) {
  const [first, last] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
  let found = [];
  for (const steps of [[1], [1, 3], [1, 2, 5]]) {
    found = [];
    for (let power = first; power <= last; power += 1) found.push(...steps.map((k) => k * 10 ** power));
    found = found.filter((value) => value >= low * 0.999 && value <= high * 1.001);
    if (found.length >= count) return found.filter((_, k) => k % Math.ceil(found.length / (2 * count)) === 0);
  }
  return found.length > 1 ? found : linearTicks(low, high, count);
}
