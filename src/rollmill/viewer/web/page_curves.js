// Curves of metrics beside each other: groups with a band, single runs on demand.

import { Chart, valueAt } from "rollmill/chart";
import { h, replace, toClipboard } from "rollmill/dom";
import { parse } from "rollmill/filter";
import { counted, number, whole } from "rollmill/format";
import { choice, filterBox, tick } from "rollmill/parts";
import { key, look, Plot } from "rollmill/plot";
import { Moment } from "rollmill/moment";
import { grouped, metrics, state, unitsOf } from "rollmill/runs";
import { checkpoints } from "rollmill/source";
import { band, common, smoothed } from "rollmill/stats";

const AXES = [["frames", "frames"], ["seconds", "seconds"], ["batches", "training steps"]];
const MOST_GROUPS = 24; // drawn without being asked
const USUAL = ["episode/return", "eval/return", "validation/loss", "learn/loss", "search/best"];
const MARKS = ["sample/env_faults", "eval/return"];

export class CurvesPage {
  constructor(goTo) {
    this.go = (words) => goTo("curves", words);
    this.charts = new Map();
    this.box = filterBox((words) => goTo("curves", { filter: words }, true));
    this.metric = h("input", { list: "metric-names", placeholder: "add a metric", "aria-label": "add a metric",
      onchange: () => this.addMetric() });
    this.names = h("datalist", { id: "metric-names" });
    this.axis = choice("over", AXES, (value) => this.go({ x: value === "frames" ? null : value }));
    this.middle = choice("groups as", [["mean", "mean"], ["iqm", "IQM"]], (value) => this.go({ stat: value === "mean" ? null : value }));
    this.smooth = h("input", { type: "range", min: "0", max: "0.99", step: "0.01", "aria-label": "smoothing",
      oninput: () => goTo("curves", { smooth: Number(this.smooth.value) || null }, true) });
    this.single = tick("single runs", (on) => this.go({ single: on ? "1" : null }));
    this.logX = tick("log x", (on) => this.go({ logx: on ? "1" : null }));
    this.logY = tick("log y", (on) => this.go({ logy: on ? "1" : null }));
    this.marks = tick("marks", (on) => this.go({ marks: on ? "1" : null }), "where runs were resumed, evaluated, saved a checkpoint that is left, or had faults");
    this.list = h("ul", { class: "groups" });
    this.note = h("p", { class: "note" });
    this.plots = h("div", { class: "plots" });
    this.moment = new Moment();
    const link = h("button", { type: "button", title: "The address of exactly this view", onclick: () => this.copyLink(link) }, "copy link");
    this.controls = h("div", { class: "controls" }, h("span", {}, this.metric, this.names), this.axis.element, this.middle.element,
      h("label", {}, "smoothing ", this.smooth), this.single.element, this.logX.element, this.logY.element, this.marks.element, link);
    this.side = h("details", { class: "side", open: matchMedia("(min-width: 900px)").matches }, h("summary", {}, "groups"), this.list);
    this.element = h("div", {}, this.box.element, this.controls, this.note, h("div", { class: "split" }, this.side, h("div", {}, this.plots, this.moment.element)));
  }

  close() {
    this.charts.forEach((chart) => chart.remove());
  }

  async show(query, isOn) {
    this.read(query);
    const every = [...state.runs.values()];
    const runs = every.filter(this.box.use(this.filter, (words) => parse(words, every, state.common)));
    const groups = grouped(runs);
    const known = [...new Set(runs.flatMap((run) => run.metrics))].sort();
    const names = this.chosen ?? USUAL.filter((name) => known.includes(name)).slice(0, 2);
    this.chosenNow = names;
    const shown = groups.filter((group) => this.all || groups.indexOf(group) < MOST_GROUPS).filter((group) => !this.hidden.has(group.key));
    this.fill(known, groups, shown);
    await this.draw(names, shown, isOn);
  }

  read(query) {
    this.filter = query.get("filter") ?? "";
    this.chosen = query.get("metrics")?.split(",").filter(Boolean) ?? null;
    this.x = AXES.some(([key]) => key === query.get("x")) ? query.get("x") : "frames";
    this.stat = query.get("stat") === "iqm" ? "iqm" : "mean";
    this.weight = Math.min(0.99, Math.max(0, Number(query.get("smooth")) || 0));
    this.hidden = new Set(query.get("hidden")?.split(",").map(joinable.back) ?? []);
    this.all = query.get("all") === "1";
    const range = query.get("range")?.split(":").map(Number) ?? [];
    this.range = range.length === 2 && range[0] < range[1] ? range : null;
    this.flags = Object.fromEntries(["single", "logx", "logy", "marks"].map((name) => [name, query.get(name) === "1"]));
  }

  // The controls say what the address says.
  fill(known, groups, shown) {
    replace(this.names, known.map((name) => h("option", { value: name })));
    this.axis.select.options[0].textContent = unitsOf(groups.flatMap((group) => group.runs)).join(" or ") || "frames";
    [this.axis.select.value, this.middle.select.value] = [this.x, this.stat];
    if (document.activeElement !== this.smooth) this.smooth.value = this.weight;
    for (const [name, box] of [["single", this.single], ["logx", this.logX], ["logy", this.logY], ["marks", this.marks]]) {
      box.box.checked = this.flags[name];
    }
    const seen = new Set(shown.map((group) => group.key));
    replace(this.list, groups.map((group, k) => h("li", {}, h("label", { title: group.runs.map((run) => run.name).join("\n") },
      h("input", { type: "checkbox", checked: seen.has(group.key), onchange: (event) => this.hide(group.key, !event.target.checked) }),
      key(look(k)), group.name, h("span", { class: "muted" }, ` n = ${group.runs.length}`)))));
    groups.forEach((group, k) => (group.look = look(k)));
    const left = groups.length - MOST_GROUPS;
    replace(this.note, !this.all && left > 0 ? [`The first ${MOST_GROUPS} of ${counted(groups.length, "group")} are drawn. `,
      h("button", { type: "button", onclick: () => this.go({ all: "1" }) }, "draw all")] : "");
  }

  hide(key, hidden) {
    if (hidden) this.hidden.add(key);
    else this.hidden.delete(key);
    this.go({ hidden: [...this.hidden].map(joinable.forth).join(",") || null });
  }

  addMetric() {
    const name = this.metric.value.trim();
    this.metric.value = "";
    if (name && !this.chosenNow.includes(name)) this.go({ metrics: [...this.chosenNow, name].join(",") });
  }

  async draw(names, groups, isOn) {
    const runs = groups.flatMap((group) => group.runs);
    const tables = await metrics(["frames", "step", "time/seconds", "learn/batches", ...(this.flags.marks ? MARKS : []), ...names], runs);
    const saved = this.flags.marks ? await checkpoints(runs.map((run) => run.id)) : new Map();
    if (!isOn()) return;
    [this.saved, this.tables] = [saved, tables];
    const wanted = names.flatMap((name) => this.axes(name, groups));
    const keys = wanted.map(({ key }) => key);
    for (const [known, chart] of this.charts) {
      if (keys.includes(known)) continue;
      chart.remove();
      this.charts.delete(known);
    }
    for (const one of wanted) this.drawOne(one, tables);
    if (!names.length) replace(this.plots, h("p", { class: "muted" }, "No run has metrics yet."));
  }

  // A plot of a metric for each unit in which runs count how far they are: these have no axis in common.
  axes(name, groups) {
    const plain = { key: name, name, groups, every: groups, xTitle: AXES.find(([key]) => key === this.x)[1], unit: this.x };
    if (this.x !== "frames") return [plain];
    const known = unitsOf(groups.flatMap((group) => group.runs));
    const split = known.map((unit) => ({ ...plain, key: `${name} ${unit}`, xTitle: unit, unit,
      groups: groups.map((group) => ({ ...group, runs: group.runs.filter((run) => run.unit === unit) })).filter((group) => group.runs.length) }));
    const valued = split.filter(({ groups: own }) => own.some((group) => group.runs.some((run) => run.metrics.includes(name))));
    return valued.length ? valued : [plain];
  }

  drawOne({ key: id, name, groups, every, xTitle, unit }, tables) {
    if (!this.charts.has(id)) {
      const chart = new Chart({ title: name, onPick: (x) => this.pick(x, chart.shownGroups), onRange: (low, high) => this.go({ range: low === null ? null : `${low}:${high}` }) });
      chart.element.querySelector(".tools").append(h("button", { type: "button", title: "take this plot away",
        onclick: () => this.go({ metrics: this.chosenNow.filter((other) => other !== name).join(",") || null }) }, "×"));
      if (!this.charts.size) replace(this.plots);
      this.charts.set(id, chart);
      this.plots.append(chart.element);
    }
    const chart = this.charts.get(id);
    chart.shownGroups = groups;
    const drawn = groups.map((group) => this.group(name, group, tables)).filter((group) => group.curves.length);
    const parts = { lines: [], bands: [], marks: this.flags.marks ? this.marksOf(groups, tables) : [] };
    for (const group of drawn) this.shapes(group, parts);
    const options = { xTitle, xRange: this.range, logX: this.flags.logx, logY: this.flags.logy };
    const legend = drawn.map((group) => ({ text: words(group), ...group.look, value: (x) => number(valueAt(group.x, group.middle, x)) }));
    chart.show(new Plot({ ...parts, ...options }), legend, () => csv(drawn, name, unit));
    chart.note.textContent = this.honesty(name, every, drawn, tables);
  }

  // What was going on at a place of the axis, in every run that is drawn.
  pick(x, groups) {
    const runs = groups.flatMap((group) => group.runs);
    this.moment.show(runs.map((run) => [run, this.framesAt(this.tables.get(run.id), x)]).filter(([, frames]) => frames !== null));
  }

  // How far a run was at a place of the axis; null where it was not there.
  framesAt(table, x) {
    const frames = stepsOf(table);
    const over = this.axisOf(table);
    const row = over.findIndex((value) => value >= x);
    if (row < 0) return null;
    return this.x === "frames" ? x : frames[row];
  }

  // The curves of a group, and their middle with its band.
  group(name, group, tables) {
    const curves = group.runs.map((run) => ({ run, curve: this.curve(tables.get(run.id), name) })).filter(({ curve }) => curve[0].length);
    const { x, rows } = common(curves.map(({ curve }) => curve), state.rules.points);
    const alone = curves.length === 1 ? { x: curves[0].curve[0], middle: curves[0].curve[1], low: [], high: [], kind: "" } : null;
    const found = alone ?? { x, ...band(rows, this.stat, state.rules) };
    return { ...group, curves, ...found };
  }

  axisOf(table) {
    return { frames: stepsOf(table), seconds: table["time/seconds"], batches: table["learn/batches"] }[this.x];
  }

  // [xs, ys] of the rows in which a metric has a value; xs rise.
  curve(table, name) {
    const over = this.axisOf(table);
    const [xs, ys] = [[], []];
    for (let k = 0; k < over.length; k += 1) {
      const value = table[name][k];
      if (Number.isNaN(value) || Number.isNaN(over[k]) || (xs.length && over[k] <= xs[xs.length - 1])) continue;
      xs.push(over[k]);
      ys.push(value);
    }
    return [xs, ys];
  }

  shapes(group, { lines, bands }) {
    const { hue, dash } = group.look;
    if (this.flags.single && group.curves.length > 1) {
      for (const { curve: [x, y] } of group.curves) lines.push({ x, y: smoothed(y, this.weight), hue, dash, width: 1, alpha: 0.6 });
    }
    if (group.kind) bands.push({ x: group.x, low: group.low, high: group.high, hue });
    if (this.weight) lines.push({ x: group.x, y: group.middle, hue, width: 1, alpha: 0.35 });
    lines.push({ x: group.x, y: smoothed(group.middle, this.weight), hue, dash });
  }

  // Where runs were started again, evaluated, saved, or had faults; each word once for a place, however many runs it is.
  marksOf(groups, tables) {
    const marks = new Map();
    const add = (x, text, hue) => Number.isFinite(x) && marks.set(`${text} ${x}`, { x, text, hue });
    for (const run of groups.flatMap((group) => group.runs)) {
      const table = tables.get(run.id);
      for (const { frames } of run.sessions) if (frames > 0) add(this.placeOf(table, frames), "resumed", "--ink");
      for (const frames of this.saved.get(run.id) ?? []) add(this.placeOf(table, frames), "saved", "--good");
      const [at, faults] = this.curve(table, "sample/env_faults");
      at.forEach((x, k) => faults[k] > (faults[k - 1] ?? 0) && add(x, "faults", "--bad"));
      this.curve(table, "eval/return")[0].forEach((x) => add(x, "eval", "--accent"));
    }
    return [...marks.values()];
  }

  // Where a number of frames lies on the axis that is shown: at the first row that has come so far, or the last one.
  placeOf(table, frames) {
    if (this.x === "frames") return frames;
    const row = stepsOf(table).findIndex((value) => value >= frames);
    return this.axisOf(table).at(row);
  }

  // What a reader has to know about what is drawn.
  honesty(name, groups, drawn, tables) {
    const notes = [];
    const kinds = new Set(drawn.map((group) => group.kind).filter(Boolean));
    if (kinds.has("95 %")) notes.push(`Bands of ${state.rules.seeds} and more runs: 95 % interval of the ${this.stat === "iqm" ? "IQM" : "mean"}.`);
    if (kinds.has("lowest to highest")) notes.push(`Bands of fewer than ${state.rules.seeds} runs: the lowest and the highest run.`);
    if (kinds.size) notes.push("A group's line ends where its first run ends.");
    const apart = drawn.filter((group) => group.curves.length > 1 && !group.x.length);
    if (apart.length) notes.push(`No line where runs do not overlap: ${apart.map((group) => group.name).join(", ")}.`);
    const without = groups.flatMap((group) => group.runs).filter((run) => !this.curve(tables.get(run.id), name)[0].length).length;
    if (without) notes.push(`${counted(without, "run")} without values of ${name}.`);
    if (this.weight) notes.push(`Smoothed (${this.weight}); thin lines are as measured.`);
    if (this.flags.logy && drawn.some((group) => group.middle.some((value) => value <= 0))) notes.push("Values of 0 and below have no place on a logarithmic axis.");
    return notes.join(" ");
  }

  async copyLink(button) {
    button.textContent = await toClipboard(location.href).then(() => "copied", () => "copy it from the address bar");
    setTimeout(() => (button.textContent = "copy link"), 1500);
  }
}

// Keys that stand in a list with commas, whatever is in them.
const joinable = {
  forth: (key) => key.replaceAll("%", "%25").replaceAll(",", "%2C"),
  back: (text) => text.replaceAll("%2C", ",").replaceAll("%25", "%"),
};

// How far a run was in each row, in its own unit.
function stepsOf(table) {
  return table.frames.some((value) => !Number.isNaN(value)) ? table.frames : table.step;
}

function words(group) {
  const n = group.curves.length;
  return n > 1 ? `${group.name}: n = ${n}, ${group.kind}` : group.name;
}

function csv(groups, name, axis) {
  const quote = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  const lines = [["group", "n", "band", axis, name, "low", "high"].join(",")];
  for (const group of groups) {
    group.x.forEach((x, k) => lines.push([quote(group.name), group.curves.length, group.kind, x, group.middle[k], group.low[k] ?? "", group.high[k] ?? ""].join(",")));
  }
  for (const { name: group, curves } of groups) {
    for (const { run, curve: [xs, ys] } of curves.length > 1 ? curves : []) {
      xs.forEach((x, k) => lines.push([quote(`${group}: ${run.name}`), 1, "", x, ys[k], "", ""].join(",")));
    }
  }
  return `${lines.join("\n")}\n`;
}
