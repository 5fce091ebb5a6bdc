// Recorded episodes: a table with the store's own filter, and their returns over the training as points to click.

import { Chart } from "rollmill/chart";
import { h, replace } from "rollmill/dom";
import { split } from "rollmill/filter";
import { bytes, counted, number, when, whole } from "rollmill/format";
import { choice, filterBox } from "rollmill/parts";
import { Plot } from "rollmill/plot";
import { ask, numbersOf } from "rollmill/source";
import { state } from "rollmill/runs";

const PAGE = 200; // rows of the table at a time
const MOST_PLAYED = 4;
const HEAD = [["", ""], ["number", "number"], ["return", "return"], ["length", "steps"], ["global_step_last", "frames"],
  ["version_max", "version"], ["ended", "ended"], ["seed", "seed"], ["policy", "policy"], ["bytes", "size"]];
const UNSORTED = ["", "number", "ended"];

export class DataPage {
  constructor(goTo) {
    this.goTo = goTo;
    this.go = (words) => goTo("data", words);
    this.chosen = new Set();
    this.store = choice("store", [], (id) => goTo("data", { store: id, filter: null, start: null, near: null, sort: null }));
    this.box = filterBox((words) => goTo("data", { filter: words, start: null }, true), "return_min=10 partial=no top=10%");
    this.chart = new Chart({ title: "Return of every episode", onPick: (x, y) => this.pick(x, y), onRange: (low, high) => this.range(low, high) });
    this.play = h("button", { type: "button", onclick: () => this.playChosen() }, "play");
    this.note = h("span", { class: "note" });
    this.problems = h("div", {});
    this.checks = h("div", {});
    this.table = h("table", { class: "episodes" });
    this.pager = h("p", { class: "controls" });
    this.content = h("div", {}, this.problems, this.checks, this.chart.element, h("p", { class: "controls" }, this.note, this.play), h("div", { class: "card scroll" }, this.table), this.pager);
    this.empty = h("p", { class: "muted" }, "Nothing has been recorded below this folder. ", h("code", {}, "rollmill train ... recording=all"), " records episodes while it trains.");
    this.element = h("div", {}, h("p", { class: "controls" }, this.store.element), this.box.element, this.content, this.empty);
  }

  close() {
    this.chart.remove();
  }

  async show(query, isOn) {
    this.content.hidden = !state.stores.length;
    this.empty.hidden = !!state.stores.length;
    if (!state.stores.length) return;
    const id = query.get("store") ?? state.stores[0].id;
    replace(this.store.select, state.stores.map((store) => h("option", { value: store.id }, store.name)));
    this.store.select.value = id;
    if (id !== this.id) this.chosen.clear(); // numbers are those of another store
    if (id !== this.id) this.unfolded = false;
    this.id = id;
    this.query = query;
    this.box.use(query.get("filter") ?? "", () => () => true);
    const words = new URLSearchParams({ store: id });
    for (const name of ["filter", "near", "sort"]) if (query.get(name)) words.set(name, query.get(name));
    const scatter = `/api/scatter?${scattered(words)}`;
    words.set("start", query.get("start") ?? 0);
    words.set("count", PAGE);
    const [found, points, report] = await Promise.all([ask(`/api/episodes?${words}`), numbersOf(scatter),
      ask(`/api/checks?store=${id}`).catch((error) => ({ problem: error.message }))]);
    if (!isOn()) return;
    this.draw(found, points);
    this.drawChecks(report);
  }

  draw(found, { head, numbers }) {
    const column = (name) => numbers.subarray(head.names.indexOf(name) * head.rows, (head.names.indexOf(name) + 1) * head.rows);
    this.points = { number: column("number"), x: column("global_step"), y: column("return") };
    const all = column("whole");
    const parts = [[1, "--accent", "whole episodes"], [0, "--c1", "partial ones: a part of their return is missing"]].map(([whole_, hue, text]) => {
      const own = [...all.keys()].filter((k) => all[k] === whole_);
      return { x: own.map((k) => this.points.x[k]), y: own.map((k) => this.points.y[k]), hue, mark: "disc", text, alpha: 0.5 };
    }).filter(({ x }) => x.length);
    const near = this.query.get("near");
    const marks = near ? [{ x: Number(near), text: "here" }] : [];
    this.chart.show(new Plot({ points: parts, marks, xTitle: "frames" }), parts.length > 1 ? parts : [],
      () => `number,global_step,return,whole\n${Array.from(this.points.number, (n, k) => [n, this.points.x[k], this.points.y[k], all[k]].join(",")).join("\n")}\n`);
    this.chart.note.textContent = `Click a point to play it, drag to choose a part of the training. `
      + (head.fitting > head.rows ? `${whole(head.rows)} of ${counted(head.fitting, "episode")} are drawn, at even distances: the filter chooses among all.` : `${counted(head.rows, "episode")}.`);
    this.note.textContent = near ? `${whole(found.fitting)} of ${counted(found.episodes, "episode")}, those nearest to ${whole(Number(near))} frames first`
      : `${whole(found.fitting)} of ${counted(found.episodes, "episode")}`;
    const harm = found.damaged ? h("div", { class: "card" }, h("p", { class: "bad" }, `${counted(found.damaged, "problem")} with the store; what is listed is good.`),
      h("ul", {}, found.problems.map((problem) => h("li", {}, problem)))) : "";
    replace(this.problems, harm);
    this.drawTable(found);
    this.tellChosen();
  }

  // What the store's report says of its soundness; what is not good is unfolded.
  drawChecks({ made, checks, problem }) {
    if (problem) {
      replace(this.checks, h("p", { class: "note bad" }, problem));
      return;
    }
    if (!made) {
      replace(this.checks, h("p", { class: "note" }, "Nobody has looked whether this store is sound: ", h("code", {}, "rollmill data report"), " does, and this page then shows what it finds."));
      return;
    }
    const bad = checks.filter(([level]) => level !== "good").length;
    replace(this.checks, h("details", { class: "checks", open: this.unfolded, ontoggle: (event) => (this.unfolded = event.target.open) }, h("summary", { class: bad ? "warn" : "good" }, `${whole(checks.length - bad)} of ${counted(checks.length, "check")} good`,
      h("span", { class: "note" }, ` by the report of ${when(made)}`)),
    h("ul", { class: "checks" }, checks.map(([level, words]) => h("li", {}, h("span", { class: level }, level === "unknown" ? "not known" : level), h("span", {}, words))))));
  }

  drawTable(found) {
    const sort = this.query.get("sort") ?? "";
    const button = (key, title) => h("button", { type: "button", onclick: () => this.go({ sort: sort === `-${key}` ? key : `-${key}`, near: null, start: null }) },
      title, sort === key ? " ▲" : sort === `-${key}` ? " ▼" : "");
    const head = h("thead", {}, h("tr", {}, HEAD.map(([key, title]) => h("th", {}, UNSORTED.includes(key) ? title : button(key, title)))));
    const rows = found.numbers.map((number_, k) => this.row(number_, Object.fromEntries(Object.entries(found.columns).map(([name, values]) => [name, values[k]]))));
    replace(this.table, head, h("tbody", {}, rows));
    const step = (words, start) => h("button", { type: "button", disabled: start < 0 || start >= found.fitting, onclick: () => this.go({ start: start || null }) }, words);
    const last = found.start + found.numbers.length;
    replace(this.pager, found.fitting > PAGE ? [step("before", found.start - PAGE), ` ${whole(found.start + 1)} to ${whole(last)} of ${whole(found.fitting)} `, step("more", last)] : "");
  }

  row(number_, row) {
    const ended = [row.partial_start ? "begun late" : "", row.terminated ? "terminated" : row.truncated ? "truncated" : "cut"].filter(Boolean).join(", ");
    const box = h("input", { type: "checkbox", checked: this.chosen.has(number_), "aria-label": `choose episode ${number_}`, onchange: () => {
      if (!this.chosen.delete(number_)) this.chosen.add(number_);
      this.tellChosen();
    } });
    const cells = [String(number_), number(typeof row.return === "number" ? row.return : NaN), whole(row.length), whole(row.global_step_last), whole(row.version_max), ended, row.has_seed ? row.seed : "-", row.policy || "-", bytes(row.bytes)];
    return h("tr", {}, h("td", {}, box), cells.map((text, k) => h("td", {}, k === 0 ? h("a", { href: this.address([number_]) }, text) : text)));
  }

  address(numbers) {
    return `#play?${new URLSearchParams({ e: numbers.map((one) => `${this.id}:${one}`).join(",") })}`;
  }

  tellChosen() {
    const count = this.chosen.size;
    this.play.disabled = !count || count > MOST_PLAYED;
    this.play.textContent = count > MOST_PLAYED ? `at most ${MOST_PLAYED} side by side` : count > 1 ? `play ${count} side by side` : "play";
  }

  playChosen() {
    location.hash = this.address([...this.chosen]);
  }

  // The point that is nearest to a click, in pixels.
  pick(x, y) {
    const plot = this.chart.plot;
    let [best, least] = [-1, Infinity];
    for (let k = 0; k < this.points.x.length; k += 1) {
      const distance = Math.hypot(plot.x(this.points.x[k]) - plot.x(x), plot.y(this.points.y[k]) - y);
      if (distance < least) [best, least] = [k, distance];
    }
    if (best >= 0) location.hash = this.address([this.points.number[best]]);
  }

  // A part of the training becomes two words of the filter.
  range(low, high) {
    const others = split(this.query.get("filter") ?? "").map(({ raw }) => raw).filter((word) => !word.startsWith("global_step_"));
    const own = low === null ? [] : [`global_step_min=${Math.floor(low)}`, `global_step_max=${Math.ceil(high)}`];
    this.go({ filter: [...others, ...own].join(" "), start: null });
  }
}

function scattered(words) {
  const own = new URLSearchParams(words);
  own.delete("near");
  own.delete("sort");
  return own;
}
