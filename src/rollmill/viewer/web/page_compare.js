// Two to six runs side by side: what differs in settings and code, what came of them, and evaluations seed by seed.

import { h, replace } from "rollmill/dom";
import { counted, duration, number, rate, whole } from "rollmill/format";
import { choice, textClass } from "rollmill/parts";
import { key, look, Plot } from "rollmill/plot";
import { Chart } from "rollmill/chart";
import { ask } from "rollmill/source";
import { differing, metrics, settingOf, shownSetting, state, unitsOf } from "rollmill/runs";
import { band, mean } from "rollmill/stats";

const MOST = 6;
const MOST_PAIRED = 500; // as many as the server tells at a time
const CURVES = ["episode/return", "eval/return", "learn/loss", "validation/loss"];
const FACTS = [["state", (run) => `${run.state}${run.reason ? `: ${run.reason}` : ""}`], ["kind", (run) => run.kind], ["environment", (run) => run.env],
  ["reached", (run) => `${whole(run.frames)} ${run.unit}`], ["return", (run) => number(run.return)], ["seconds of training", (run) => duration(run.seconds)],
  ["frames/s", (run) => rate(run.frames_per_s)], ["faults", (run) => whole(run.faults)], ["seed", (run) => shownSetting(run, "run.seed")],
  ["host", (run) => run.host], ["commit", (run) => run.commit],
  ["version", (run) => run.version], ...["python", "torch", "numpy", "gymnasium"].map((name) => [name, (run) => run.libraries?.[name] ?? ""]), ["command", (run) => run.command], ["parent", (run) => run.parent]];

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

  async show(query, isOn) {
    this.ids = (query.get("runs") ?? "").split(",").filter((id) => state.runs.has(id)).slice(0, MOST);
    const runs = this.ids.map((id) => state.runs.get(id));
    replace(this.names, [...state.runs.values()].map((run) => h("option", { value: run.name })));
    replace(this.chosen, runs.map((run, k) => h("button", { type: "button", title: "take it away", onclick: () => this.set(this.ids.filter((id) => id !== run.id)) },
      key(look(k)), `${run.name} ×`)));
    this.note.textContent = runs.length < 2 ? "Choose two to six runs." : "";
    replace(this.tables, runs.length ? [this.settings(runs), this.facts(runs), this.code(runs)] : "");
    await this.curves(runs, isOn);
    if (isOn()) await this.evaluations(runs, query.get("eval"), isOn);
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
    const rowsOf = (keys) => keys.map((key) => [key, ...runs.map((run) => shownSetting(run, key))]);
    const every = differing(runs);
    const shared = every.filter((key) => runs.every((run) => settingOf(run, key) !== undefined));
    const others = every.filter((key) => !shared.includes(key));
    const first = shared.length ? section("Settings that differ", runs, rowsOf(shared)) : h("section", {}, h("h2", {}, "Settings that differ"), h("p", {}, "None that all have, the seed apart."));
    if (others.length) first.append(h("details", {}, h("summary", {}, `${counted(others.length, "setting")} that not all have`), grid(runs, rowsOf(others))));
    return first;
  }

  facts(runs) {
    const rows = FACTS.map(([name, of]) => [name, ...runs.map((run) => of(run) || "-")]).filter(([, ...cells]) => cells.some((cell) => cell !== "-"));
    return section("Code, and what came of it", runs, rows, (cells) => new Set(cells).size > 1);
  }

  // How to see what differs in the code: the server runs no git.
  code(runs) {
    const commits = [...new Set(runs.map((run) => run.commit.replace(/\+$/, "")).filter(Boolean))];
    const dirty = runs.filter((run) => run.commit.endsWith("+"));
    const others = commits.slice(1).map((commit) => h("code", {}, `git diff ${commits[0].slice(0, 12)} ${commit.slice(0, 12)}`));
    return h("div", { class: "note" }, others.length ? h("p", {}, "What differs in the code: ", others.flatMap((one) => [one, " "])) : "",
      dirty.length ? h("p", {}, `A + behind a commit: files differed from it, and nobody knows how (${dirty.map((run) => run.name).join(", ")}).`) : "",
      runs.length > 1 && !commits.length ? h("p", {}, "No run was started in a git repository, so code is known by its version alone.") : "");
  }

  async curves(runs, isOn) {
    const names = CURVES.filter((name) => runs.some((run) => run.metrics.includes(name))).slice(0, 2);
    const tables = await metrics(["frames", "step", ...names], runs);
    if (!isOn()) return;
    this.charts.forEach((chart) => chart.remove());
    const units = unitsOf(runs);
    const of = (unit, name) => runs.map((run, k) => ({ run, k })).filter(({ run }) => run.unit === unit && run.metrics.includes(name));
    const wanted = names.flatMap((name) => units.map((unit) => [name, unit, of(unit, name)])).filter(([, , own]) => own.length);
    this.charts = wanted.map(([name, unit, own]) => this.chart(name, unit, own, tables));
    replace(this.plots, this.charts.map((chart) => chart.element));
  }

  // Of runs that count the same: frames of one and updates of another have no axis in common.
  chart(name, unit, own, tables) {
    const lines = own.map(({ run, k }) => {
      const table = tables.get(run.id);
      const over = table.frames.some((value) => !Number.isNaN(value)) ? table.frames : table.step;
      const rows = [...over.keys()].filter((row) => !Number.isNaN(table[name][row]) && !Number.isNaN(over[row]));
      return { x: rows.map((row) => over[row]), y: rows.map((row) => table[name][row]), ...look(k), run };
    });
    const chart = new Chart({ title: name });
    const csv = () => [`run,${unit},value`, ...lines.flatMap(({ run, x, y }) => x.map((at, k) => `"${run.name.replaceAll('"', '""')}",${at},${y[k]}`))].join("\n");
    chart.show(new Plot({ lines, xTitle: unit }), lines.map(({ run, hue, dash }) => ({ text: run.name, hue, dash })), csv);
    return chart;
  }

  // Recorded evaluations of the same name, episode by episode of the same seed: a best checkpoint is not held against a newest.
  async evaluations(runs, asked, isOn) {
    const known = runs.map((run) => new Map(state.stores.filter((store) => store.run === run.id && store.name.includes("/eval/")).map((store) => [store.name.split("/eval/").pop(), store])));
    const shared = [...known[0]?.keys() ?? []].filter((name) => known.every((own) => own.has(name)));
    if (runs.length < 2 || !shared.length) {
      replace(this.pairs, runs.length < 2 ? "" : h("p", { class: "note" }, "Episodes are paired by seed where every run has a recorded evaluation of the same name (rollmill eval RUN --record).",
        known.some((own) => own.size) ? ` There are: ${runs.map((run, k) => `${run.name}: ${[...known[k].keys()].join(", ") || "none"}`).join("; ")}.` : ""));
      return;
    }
    const name = shared.includes(asked) ? asked : shared.at(-1);
    const chooser = choice("evaluation", shared.map((one) => [one, one]), (one) => this.go({ eval: one }));
    chooser.select.value = name;
    const stores = known.map((own) => own.get(name));
    const tables = await Promise.all(stores.map((store) => ask(`/api/episodes?${new URLSearchParams({ store: store.id, count: MOST_PAIRED })}`)));
    if (!isOn()) return;
    const returns = tables.map(({ columns }) => new Map(columns.seed.map((seed, k) => [seed, columns.return[k]]).filter((_, k) => columns.has_seed[k])));
    const seeds = [...returns[0].keys()].filter((seed) => returns.every((found) => found.has(seed)));
    const rows = seeds.map((seed) => [seed, ...returns.map((found) => number(found.get(seed)))]);
    const means = returns.map((found) => number(mean(seeds.map((seed) => found.get(seed)))));
    const gaps = returns.map((found, k) => (k ? gap(seeds.map((seed) => found.get(seed) - returns[0].get(seed)), state.rules) : "-"));
    const cut = tables.map((found, k) => (found.fitting > found.numbers.length ? runs[k].name : "")).filter(Boolean);
    replace(this.pairs, shared.length > 1 ? h("p", { class: "controls" }, chooser.element) : "", seeds.length ? [section(`Evaluation ${name}, ${whole(seeds.length)} seeds that all have`, runs, [["mean", ...means], ["difference to the first, 95 %", ...gaps], ...rows]),
      h("p", { class: "note" }, "The difference is taken seed by seed; its interval (Student's t) is that of the mean difference.", cut.length ? ` Only the first ${whole(MOST_PAIRED)} episodes of ${cut.join(", ")} are looked at.` : "")]
      : h("p", { class: "note" }, `The recorded evaluations ${name} have no seed in common.`));
  }
}

// A mean difference and its 95 % interval; the interval is left out where there are too few seeds to tell.
function gap(differences, rules) {
  const middle = mean(differences);
  const { low, high, kind } = band(differences.map((one) => [one]), "mean", rules);
  return kind === "95 %" ? `${number(middle)} (${number(low[0])} to ${number(high[0])})` : number(middle);
}

// A table with a column for each run; ``marked``: rows that stand out.
function section(title, runs, rows, marked) {
  return h("section", {}, h("h2", {}, title), grid(runs, rows, marked));
}

function grid(runs, rows, marked = () => false) {
  const head = h("tr", {}, h("th", { class: "l" }), runs.map((run, k) => h("th", { class: textClass(run.name) }, key(look(k)), run.name)));
  const body = rows.map(([name, ...cells]) => h("tr", {}, h("td", { class: textClass(name) }, name), cells.map((cell) => h("td", { class: `${textClass(cell)}${marked(cells) ? " differs" : ""}` }, cell))));
  return h("div", { class: "card scroll" }, h("table", {}, h("thead", {}, head), h("tbody", {}, body)));
}
