// Two to six runs side by side: what differs in settings and code, what came of them, and evaluations seed by seed.

import { h, replace } from "rollmill/dom";
import { text, valueOf } from "rollmill/filter";
import { duration, number, whole } from "rollmill/format";
import { look, Plot } from "rollmill/plot";
import { Chart } from "rollmill/chart";
import { ask } from "rollmill/source";
import { differing, metrics, state } from "rollmill/runs";

const MOST = 6;
const CURVES = ["episode/return", "eval/return", "learn/loss", "validation/loss"];
const FACTS = [["state", (run) => `${run.state}${run.reason ? `: ${run.reason}` : ""}`], ["kind", (run) => run.kind], ["environment", (run) => run.env],
  ["frames", (run) => `${whole(run.frames)} ${run.unit}`], ["return", (run) => number(run.return)], ["seconds of training", (run) => duration(run.seconds)],
  ["frames/s", (run) => number(run.frames_per_s)], ["faults", (run) => whole(run.faults)], ["seed", (run) => text(valueOf(run, "seed", state.common))],
  ["host", (run) => run.host], ["commit", (run) => run.commit], ["version", (run) => run.version], ["command", (run) => run.command], ["parent", (run) => run.parent]];

export class ComparePage {
  constructor(goTo) {
    this.go = (words) => goTo("compare", words);
    this.charts = [];
    this.names = h("datalist", { id: "run-names" });
    this.input = h("input", { list: "run-names", placeholder: "add a run", "aria-label": "add a run", onchange: () => this.add() });
    this.chosen = h("span", { class: "controls" });
    this.note = h("p", { class: "note" });
    this.tables = h("div", {});
    this.plots = h("div", { class: "plots" });
    this.pairs = h("div", {});
    this.element = h("div", {}, h("p", { class: "controls" }, this.input, this.names, this.chosen), this.note, this.plots, this.tables, this.pairs);
  }

  close() {
    this.charts.forEach((chart) => chart.remove());
  }

  async show(query) {
    this.ids = (query.get("runs") ?? "").split(",").filter((id) => state.runs.has(id)).slice(0, MOST);
    const runs = this.ids.map((id) => state.runs.get(id));
    replace(this.names, [...state.runs.values()].map((run) => h("option", { value: run.name })));
    replace(this.chosen, runs.map((run, k) => h("button", { type: "button", title: "take it away", onclick: () => this.set(this.ids.filter((id) => id !== run.id)) },
      h("span", { class: "key", style: { background: `var(${look(k).hue})` } }), `${run.name} ×`)));
    this.note.textContent = runs.length < 2 ? "Choose two to six runs." : "";
    replace(this.tables, runs.length ? [this.settings(runs), this.facts(runs)] : "");
    await this.curves(runs);
    await this.evaluations(runs);
  }

  set(ids) {
    this.go({ runs: ids.join(",") || null });
  }

  add() {
    const run = [...state.runs.values()].find((one) => one.name === this.input.value);
    this.input.value = "";
    if (run && !this.ids.includes(run.id)) this.set([...this.ids, run.id].slice(-MOST));
  }

  settings(runs) {
    const keys = differing(runs);
    const rows = keys.map((key) => [key, ...runs.map((run) => text(valueOf(run, key, state.common)))]);
    return section("Settings that differ", runs, rows.length ? rows : [["no setting differs, the seed apart", ...runs.map(() => "")]]);
  }

  facts(runs) {
    const rows = FACTS.map(([name, of]) => [name, ...runs.map((run) => of(run) || "-")]).filter(([, ...cells]) => cells.some((cell) => cell !== "-"));
    return section("Code, and what came of it", runs, rows, (cells) => new Set(cells).size > 1);
  }

  async curves(runs) {
    this.charts.forEach((chart) => chart.remove());
    const names = CURVES.filter((name) => runs.some((run) => run.metrics.includes(name))).slice(0, 2);
    const tables = await metrics(["frames", "step", ...names], runs);
    this.charts = runs.length ? names.map((name) => this.chart(name, runs, tables)) : [];
    replace(this.plots, this.charts.map((chart) => chart.element));
  }

  chart(name, runs, tables) {
    const lines = runs.map((run, k) => {
      const table = tables.get(run.id);
      const over = table.frames.some((value) => !Number.isNaN(value)) ? table.frames : table.step;
      const rows = [...over.keys()].filter((row) => !Number.isNaN(table[name][row]) && !Number.isNaN(over[row]));
      return { x: rows.map((row) => over[row]), y: rows.map((row) => table[name][row]), ...look(k), run };
    });
    const chart = new Chart({ title: name });
    const csv = () => ["run,frames,value", ...lines.flatMap(({ run, x, y }) => x.map((at, k) => `"${run.name.replaceAll('"', '""')}",${at},${y[k]}`))].join("\n");
    chart.show(new Plot({ lines, xTitle: "frames" }), lines.map(({ run, hue }) => ({ text: run.name, hue })), csv);
    return chart;
  }

  // Recorded evaluations, episode by episode of the same seed.
  async evaluations(runs) {
    const stores = runs.map((run) => state.stores.filter((store) => store.run === run.id && store.name.includes("/eval/")).pop());
    if (runs.length < 2 || stores.some((store) => !store)) {
      replace(this.pairs, runs.length < 2 ? "" : h("p", { class: "note" }, "Episodes are paired by seed where every run has a recorded evaluation (rollmill collect RUN)."));
      return;
    }
    const tables = await Promise.all(stores.map((store) => ask(`/api/episodes?${new URLSearchParams({ store: store.id, count: 500 })}`)));
    const returns = tables.map(({ columns }) => new Map(columns.seed.map((seed, k) => [seed, columns.return[k]]).filter((_, k) => columns.has_seed[k])));
    const seeds = [...returns[0].keys()].filter((seed) => returns.every((found) => found.has(seed)));
    const rows = seeds.map((seed) => [seed, ...returns.map((found) => number(found.get(seed)))]);
    const sums = returns.map((found) => seeds.reduce((sum, seed) => sum + found.get(seed), 0) / seeds.length);
    replace(this.pairs, seeds.length ? section(`Evaluations, ${seeds.length} seeds that all have`, runs, [["mean", ...sums.map(number)], ...rows])
      : h("p", { class: "note" }, "The recorded evaluations have no seed in common."));
  }
}

// A table with a column for each run; ``marked``: rows that stand out.
function section(title, runs, rows, marked = () => false) {
  const head = h("tr", {}, h("th", { class: "l" }), runs.map((run, k) => h("th", { class: "l" }, h("span", { class: "key", style: { background: `var(${look(k).hue})` } }), run.name)));
  const body = rows.map(([name, ...cells]) => h("tr", {}, h("td", { class: "l" }, name), cells.map((cell) => h("td", { class: marked(cells) ? "l differs" : "l" }, cell))));
  return h("section", {}, h("h2", {}, title), h("div", { class: "card scroll" }, h("table", {}, h("thead", {}, head), h("tbody", {}, body))));
}
