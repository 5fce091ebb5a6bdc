// The table of runs: a row for each group, which unfolds; columns of settings only where they differ.

import { h, replace, svg } from "rollmill/dom";
import { parse, quoted, valueOf } from "rollmill/filter";
import { counted, duration, number, rate, whole } from "rollmill/format";
import { differing, grouped, shownSetting, state, unitsOf } from "rollmill/runs";
import { filterBox } from "rollmill/parts";
import { extremes } from "rollmill/stats";

const ROW = 30; // pixels
const AHEAD = 20; // rows above and below those that are seen
const MOST_SETTINGS = 12;
const MOST_COMPARED = 6;
const WIDEST = 34; // characters of a column
const WIDEST_NAME = 52;
const FIRST = ["algorithm", "learning.", "sac.", "model.", "pbt.", "env.", "data.", "fit."]; // settings that are shown before others
const SHOWN_ANYWAY = ["env.id", "env"]; // in a column of their own
const FACES = { running: "good", finished: "", failed: "bad", killed: "bad", interrupted: "warn", "?": "unknown" };

// Groups that are unfolded and runs that are chosen: whoever looks at curves and comes back goes on where he was.
const LEFT = { open: new Set(), chosen: new Set() };

export class RunsPage {
  constructor(goTo) {
    this.goTo = goTo;
    Object.assign(this, LEFT);
    this.compare = h("button", { type: "button", hidden: true, onclick: () => (location.hash = `compare?runs=${[...this.chosen].join(",")}`) });
    this.box = filterBox((words) => goTo("runs", { filter: words }, true));
    this.head = h("thead", {});
    this.body = h("tbody", {});
    this.columns = h("colgroup", {});
    this.table = h("table", { class: "runs" }, this.columns, this.head, this.body);
    this.scroll = h("div", { class: "card rows", onscroll: () => this.draw(), tabindex: "0" }, this.table);
    this.note = h("span", { class: "note" });
    this.more = h("details", { class: "note more", hidden: true });
    this.element = h("div", {}, this.box.element, h("div", { class: "controls" }, this.note, this.more, this.compare), this.scroll);
    this.resized = new ResizeObserver(() => this.draw());
    this.resized.observe(this.scroll);
  }

  close() {
    this.resized.disconnect();
  }

  show(query) {
    this.query = query;
    for (const id of this.chosen) if (!state.runs.has(id)) this.chosen.delete(id);
    const every = [...state.runs.values()];
    const fits = this.box.use(query.get("filter") ?? "", (words) => parse(words, every, state.common));
    const runs = every.filter(fits);
    const rank = (key) => (FIRST.findIndex((start) => key.startsWith(start)) + FIRST.length + 1) % (FIRST.length + 1);
    const keys = differing(runs, false).filter((key) => !SHOWN_ANYWAY.includes(key)).sort((a, b) => rank(a) - rank(b));
    this.shownColumns = columnsOf(keys.slice(0, MOST_SETTINGS), unitsOf(runs));
    this.lines = this.sorted(grouped(runs)).flatMap((group) => this.linesOf(group));
    this.note.textContent = `${counted(runs.length, "run")} of ${whole(every.length)} in ${counted(grouped(runs).length, "group")}`;
    const left = keys.slice(MOST_SETTINGS);
    this.more.hidden = !left.length;
    replace(this.more, h("summary", {}, `${counted(left.length, "more setting")} differ`), h("span", { class: "note" }, left.join(", ")));
    this.drawHead();
    this.draw();
    this.tellChosen();
  }

  sorted(groups) {
    const sort = this.query.get("sort") ?? "-created";
    const column = this.shownColumns.find(({ key }) => key === sort.replace(/^-/, ""));
    const value = (group) => (column ? column.order(group.runs) : group.runs.map((run) => run.created).sort().pop() ?? "");
    const sign = sort.startsWith("-") ? -1 : 1;
    const empty = (found) => found === null || found === undefined || found === "";
    return groups.map((group) => [value(group), group])
      .sort(([a], [b]) => empty(a) - empty(b) || sign * (a < b ? -1 : a > b ? 1 : 0))
      .map(([, group]) => group);
  }

  linesOf(group) {
    if (group.runs.length === 1) return [{ runs: group.runs, name: group.name, level: 0 }];
    const head = { runs: group.runs, name: group.name, level: 0, key: group.key };
    if (!this.open.has(group.key)) return [head];
    return [head, ...group.runs.map((run) => ({ runs: [run], name: run.name.split("/").pop(), level: 1 }))];
  }

  drawHead() {
    const sort = this.query.get("sort") ?? "";
    replace(this.columns, this.shownColumns.map((column) => h("col", { style: { width: `${this.width(column)}px` } })));
    this.table.style.width = `${this.shownColumns.reduce((sum, column) => sum + this.width(column), 0)}px`;
    replace(this.head, h("tr", {}, this.shownColumns.map(({ key, title, left, hint }) =>
      h("th", { class: left ? "l" : "", title: hint ?? null }, h("button", { type: "button",
        onclick: () => this.goTo("runs", { sort: sort === `-${key}` ? key : `-${key}` }) },
      title, sort === key ? " ▲" : sort === `-${key}` ? " ▼" : "")))));
  }

  width({ key, title, shape, left }) {
    if (key === "return") return 176;
    const longest = Math.max(title.length + 2, ...this.lines.slice(0, 500).map((line) => shape(line.runs, line).length + (key === "name" ? 4 * line.level + 7 : left ? 3 : 0)));
    return 28 + 7.8 * Math.min(key === "name" && this.scroll.clientWidth > 900 ? WIDEST_NAME : WIDEST, longest);
  }

  // Only the rows that can be seen are there: thousands of them scroll as one.
  draw() {
    if (!this.lines) return;
    const first = Math.max(0, Math.floor(this.scroll.scrollTop / ROW) - AHEAD);
    const last = Math.min(this.lines.length, Math.ceil((this.scroll.scrollTop + this.scroll.clientHeight) / ROW) + AHEAD);
    const space = (rows) => h("tr", { class: "space", "aria-hidden": "true", style: { height: `${rows * ROW}px` } });
    replace(this.body, space(first), this.lines.slice(first, last).map((line) => this.row(line)), space(this.lines.length - last));
  }

  row(line) {
    return h("tr", { class: line.level ? "inner" : "" }, this.shownColumns.map((column) => {
      const shown = column.key === "name" ? this.name(line) : column.cell ? column.cell(line.runs) : column.shape(line.runs, line);
      const title = typeof shown === "string" ? shown : column.shape(line.runs, line);
      return h("td", { class: column.left ? "l" : "", title: column.hintOf?.(line.runs) ?? title }, shown);
    }));
  }

  // A box beside a run: those that are chosen are compared.
  chooser(run) {
    return h("input", { type: "checkbox", checked: this.chosen.has(run.id), "aria-label": `choose ${run.name}`, onchange: () => {
      if (!this.chosen.delete(run.id)) this.chosen.add(run.id);
      this.tellChosen();
    } });
  }

  tellChosen() {
    this.compare.hidden = this.chosen.size < 2;
    this.compare.disabled = this.chosen.size > MOST_COMPARED;
    this.compare.textContent = this.chosen.size > MOST_COMPARED ? `at most ${MOST_COMPARED} are compared` : `compare ${this.chosen.size} runs`;
  }

  name(line) {
    const [run] = line.runs;
    const alone = run.kind === "world" ? `experiment=${quoted(run.name)}` : `name=${quoted(run.name)}`; // its stages have the curves
    const filter = line.key ? `experiment=${quoted(run.experiment)} group=${quoted(run.group)}` : alone;
    const curves = h("a", { href: `#curves?${new URLSearchParams({ filter })}` }, line.name);
    if (!line.key) return h("span", { class: `level${line.level}` }, this.chooser(line.runs[0]), curves);
    const isOpen = this.open.has(line.key);
    const toggle = () => {
      if (!this.open.delete(line.key)) this.open.add(line.key);
      this.show(this.query);
    };
    const label = `${isOpen ? "fold" : "unfold"} ${line.name}`;
    return h("span", {}, h("button", { type: "button", class: "fold", "aria-expanded": String(isOpen), "aria-label": label, onclick: toggle },
      isOpen ? "▾" : "▸"), curves, h("span", { class: "muted" }, ` ${line.runs.length}`));
  }
}

// -- columns: {key, title, left, shape: (runs, line) -> text, cell: runs -> element, order: runs -> value} -----------

// What every run has stands before the settings that differ, of which there may be many.
function columnsOf(settings, units) {
  const one = (runs, get) => [...new Set(runs.map(get).filter((value) => value !== null && value !== undefined && value !== ""))];
  const same = (key, title, left = true) => ({ key, title, left, order: (runs) => one(runs, (run) => run[key])[0],
    shape: (runs) => { const found = one(runs, (run) => run[key]); return found.length > 1 ? `${found.length} of them` : found[0] ?? "-"; },
    hintOf: (runs) => one(runs, (run) => run[key]).join(", ") });
  const numeric = (key, title, combine, show, hint) => ({ key, title, hint, order: (runs) => combine(values(runs, key)),
    shape: (runs) => (values(runs, key).length ? show(combine(values(runs, key))) : "-") });
  return [
    { key: "name", title: "run", left: true, order: (runs) => runs[0].group, shape: (_, line) => line?.name ?? "" },
    { key: "state", title: "state", left: true, order: (runs) => runs[0].state, shape: states, cell: stateCell,
      hintOf: (runs) => runs.map((run) => `${run.name}: ${run.state} ${run.reason}`).join("\n") },
    same("env", "env"),
    { ...numeric("frames", units.length > 1 ? "steps" : units[0] ?? "frames", highest, whole, "of the run that is farthest"), ...(units.length > 1 ? { shape: farthest } : {}) },
    { key: "return", title: "return", order: (runs) => average(values(runs, "return")), cell: returnCell,
      hint: "mean over the group's runs of their last value", shape: (runs) => (values(runs, "return").length ? number(average(values(runs, "return"))) : "-") },
    numeric("frames_per_s", "frames/s", average, rate, "mean of the group's runs"),
    numeric("share", "of simulator", average, (value) => `${Math.round(100 * value)} %`, "share of the bare simulator's rate (report.sim_rate)"),
    numeric("faults", "faults", total, whole, "environments and workers that were restarted"),
    same("host", "host"),
    { key: "created", title: "age", order: (runs) => one(runs, (run) => run.created).sort().pop(),
      shape: (runs) => { const found = one(runs, (run) => run.created).sort().pop(); return found ? duration((Date.now() - Date.parse(found)) / 1000) : "-"; },
      hintOf: (runs) => one(runs, (run) => run.created).sort().join(", ") },
    { ...same("commit", "commit"), shape: (runs) => { const found = one(runs, (run) => run.commit); return found.length > 1 ? `${found.length} of them` : found[0]?.replace(/^(\w{8})\w*/, "$1") ?? "-"; } },
    ...settings.map((key) => ({ key, title: key, left: false, order: (runs) => valueOf(runs[0], key, state.common),
      shape: (runs) => { const found = [...new Set(runs.map((run) => shownSetting(run, key)))]; return found.length > 1 ? `${found.length} values` : found[0]; } })),
  ].filter((column) => !["share", "commit", "host"].includes(column.key) || [...state.runs.values()].some((run) => run[column.key]));
}

const values = (runs, key) => runs.map((run) => run[key]).filter((value) => typeof value === "number");
const average = (found) => (found.length ? found.reduce((sum, value) => sum + value, 0) / found.length : null);
const total = (found) => (found.length ? found.reduce((sum, value) => sum + value, 0) : null);
const highest = (found) => (found.length ? extremes(found)[1] : null);

// How far runs are that do not all count the same.
function farthest(runs) {
  const known = unitsOf(runs).map((unit) => [unit, values(runs.filter((run) => run.unit === unit), "frames")]).filter(([, found]) => found.length);
  return known.map(([unit, found]) => `${whole(highest(found))} ${unit}`).join(", ") || "-";
}

function states(runs) {
  const counts = new Map();
  for (const run of runs) counts.set(run.state, (counts.get(run.state) ?? 0) + 1);
  return [...counts].map(([name, count]) => (runs.length > 1 ? `${count} ${name}` : name)).join(", ");
}

function stateCell(runs) {
  const worst = ["failed", "killed", "interrupted", "running"].find((name) => runs.some((run) => run.state === name));
  return h("span", { class: FACES[worst ?? runs[0].state] ?? "" }, states(runs));
}

// The last return, and how it came to be: a small curve of values at even distances, of every run of the group.
function returnCell(runs) {
  const found = values(runs, "return");
  const points = runs.flatMap((run) => run.spark);
  const picture = svg("svg", { class: "spark", viewBox: "0 0 80 20", preserveAspectRatio: "none", "aria-hidden": "true" });
  const [lowX, highX] = extremes(points.map(([x]) => x));
  const [low, high] = extremes(points.map(([, y]) => y));
  for (const run of points.length > 1 ? runs.slice(0, 10) : []) {
    const places = run.spark.map(([x, y]) => `${((80 * (x - lowX)) / (highX - lowX || 1)).toFixed(1)},${(19 - (18 * (y - low)) / (high - low || 1)).toFixed(1)}`);
    picture.append(svg("polyline", { points: places.join(" ") }));
  }
  return h("span", { class: "return" }, picture, h("span", {}, found.length ? number(average(found)) : "-"));
}
