// A plot on the page: drawn again when its box changes, with a cursor that all charts share, and buttons for files.

import { h, replace, save } from "rollmill/dom";
import { number } from "rollmill/format";
import { colour, key } from "rollmill/plot";

const DOUBLE = 250; // ms in which a second click may come
const charts = new Set();
const resized = new ResizeObserver((entries) => entries.forEach((entry) => entry.target.chart.redraw()));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => charts.forEach((chart) => chart.redraw()));

export class Chart {
  // ``onPick(x, pixel)``: a click at a place of the axis, so many pixels below the top; ``onRange(low, high)``: a part of it was marked by dragging.
  // ``height``: pixels of the plot, where it is not the usual one.
  constructor({ title, note = "", height = null, onPick = null, onRange = null }) {
    Object.assign(this, { title, onPick, onRange, plot: null, legend: [], rows: () => "" });
    this.canvas = h("canvas", { role: "img", "aria-label": title });
    this.over = h("canvas", { class: "over" });
    this.note = h("p", { class: "note" }, note);
    this.keys = h("p", { class: "note legend" });
    const buttons = h("span", { class: "tools" },
      h("button", { type: "button", title: "The numbers of this plot", onclick: () => save(`${this.file()}.csv`, this.rows(), "text/csv") }, "CSV"),
      h("button", { type: "button", title: "This plot as a picture", onclick: () => this.saveSvg() }, "SVG"));
    this.box = h("div", { class: "plot", style: height === null ? null : { height: `${height}px` } }, this.canvas, this.over);
    this.element = h("div", { class: "card chart" }, h("h3", {}, title, buttons), this.box, this.keys, this.note);
    this.box.chart = this;
    resized.observe(this.box);
    charts.add(this);
    this.listen();
  }

  // ``rows``: a function that gives the numbers as CSV; ``legend``: [{text, hue, dash, mark, value: x -> text}].
  show(plot, legend, rows) {
    Object.assign(this, { plot, legend, rows });
    this.readout(null);
    this.redraw();
  }

  remove() {
    charts.delete(this);
    resized.unobserve(this.box);
    this.element.remove();
  }

  redraw() {
    if (this.plot !== null && this.canvas.clientWidth > 0) this.plot.draw(this.canvas);
  }

  file() {
    return this.title.replace(/[^\w.-]+/g, "_");
  }

  saveSvg() {
    save(`${this.file()}.svg`, this.plot.file(this.canvas.clientWidth, this.canvas.clientHeight, this.title, this.legend), "image/svg+xml");
    this.redraw();
  }

  listen() {
    let from = null;
    let picking = null;
    const pixel = (event) => event.clientX - this.box.getBoundingClientRect().left;
    const inside = (x) => this.plot !== null && !this.plot.still && x >= this.plot.left && x <= this.plot.right;
    this.box.addEventListener("pointerdown", (event) => (from = inside(pixel(event)) ? pixel(event) : null));
    this.box.addEventListener("pointermove", (event) => {
      if (inside(pixel(event))) cursorAt(this.plot.at(pixel(event)), from === null ? null : this.plot.at(from), this);
    });
    this.box.addEventListener("pointerleave", () => {
      from = null;
      cursorAt(null, null, this);
    });
    this.box.addEventListener("pointerup", (event) => {
      if (from === null || this.plot === null) return;
      const [low, high] = [from, pixel(event)].sort((a, b) => a - b);
      from = null;
      if (high - low > 6) {
        this.onRange?.(this.plot.at(low), this.plot.at(high));
        return;
      }
      const [x, y] = [this.plot.at(pixel(event)), event.clientY - this.box.getBoundingClientRect().top];
      clearTimeout(picking);
      picking = setTimeout(() => this.onPick?.(x, y), DOUBLE); // the first half of a double click picks nothing
    });
    this.box.addEventListener("dblclick", () => {
      clearTimeout(picking);
      this.onRange?.(null, null);
    });
  }

  // The cursor at a place of the axis, and the part that is being marked.
  cursor(x, from) {
    const ratio = window.devicePixelRatio || 1;
    [this.over.width, this.over.height] = [this.over.clientWidth * ratio, this.over.clientHeight * ratio];
    this.readout(x);
    if (x === null || this.plot === null || x < this.plot.xs.low || x > this.plot.xs.high) return;
    const pen = this.over.getContext("2d");
    pen.scale(ratio, ratio);
    pen.fillStyle = pen.strokeStyle = colour("--muted");
    const place = this.plot.x(x);
    if (from !== null) {
      pen.globalAlpha = 0.2;
      pen.fillRect(this.plot.x(from), this.plot.top, place - this.plot.x(from), this.plot.bottom - this.plot.top);
      pen.globalAlpha = 1;
    }
    pen.beginPath();
    pen.moveTo(place, this.plot.top);
    pen.lineTo(place, this.plot.bottom);
    pen.stroke();
  }

  // What the colours mean, and the values below the cursor.
  readout(x) {
    const keys = this.legend.map((entry) => h("span", { class: "entry" }, key(entry), entry.text, x === null || !entry.value ? "" : h("b", {}, ` ${entry.value(x)}`)));
    replace(this.keys, x === null ? "" : h("span", { class: "entry" }, `${this.plot?.xTitle ?? ""} ${number(x)}`), keys);
  }
}

function cursorAt(x, from, origin) {
  for (const chart of charts) {
    if (chart.plot?.xTitle === origin.plot?.xTitle) chart.cursor(x, chart === origin ? from : null);
  }
}

// The value of a line at the last point that is not behind x; NaN before the first.
export function valueAt(xs, ys, x) {
  let [low, high] = [0, xs.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (xs[middle] <= x) low = middle + 1;
    else high = middle;
  }
  return low ? ys[low - 1] : NaN;
}
