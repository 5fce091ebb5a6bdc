// Launched experiments: how every run stands, as ``rollmill launch status`` tells it, and which parameters matter.

import { Chart } from "rollmill/chart";
import { h, replace } from "rollmill/dom";
import { quoted, text } from "rollmill/filter";
import { counted, duration, number, rate, when, whole } from "rollmill/format";
import { choice, table } from "rollmill/parts";
import { Parallel } from "rollmill/parallel";
import { Plot, pointLook } from "rollmill/plot";
import { ask, isCopy } from "rollmill/source";
import { state } from "rollmill/runs";

const FACES = { running: "good", failed: "bad", cancelled: "warn", waiting: "muted" };

export class ExperimentsPage {
  constructor(goTo) {
    this.goTo = goTo;
    this.experiment = choice("experiment", [], (name) => goTo("experiments", { name }));
    this.open = new Set(); // runs whose attempts are unfolded
    this.logs = new Map(); // attempt -> what it has written, while that is shown
    this.charts = [];
    this.summary = h("p", {});
    this.table = h("div", { class: "standing" });
    this.families = h("div", {});
    this.content = h("div", {}, this.summary, this.table, this.families);
    this.empty = h("p", { class: "muted" }, "No experiment below this folder was launched. ", h("code", {}, "rollmill launch run grid.yaml"), " starts many runs.");
    this.element = h("div", {}, h("p", { class: "controls" }, this.experiment.element), this.content, this.empty);
  }

  close() {
    clearTimeout(this.asking);
    this.charts.forEach((chart) => chart.remove());
    this.charts = [];
  }

  async show(query, isOn) {
    const names = state.experiments;
    this.content.hidden = !names.length;
    this.empty.hidden = !!names.length;
    if (!names.length) return;
    const name = names.includes(query.get("name")) ? query.get("name") : names[0];
    replace(this.experiment.select, names.map((one) => h("option", { value: one }, one)));
    this.experiment.select.value = name;
    const found = await ask(`/api/experiment?${new URLSearchParams({ name })}`);
    if (!isOn()) return;
    this.draw(name, found);
    if (found.again !== null) this.asking = setTimeout(() => this.goTo("experiments", {}), 1000 * found.again); // there is more by then
  }

  draw(name, found) {
    this.summary.textContent = found.summary;
    const cell = (value, show) => (value === null || value === undefined ? "-" : show(value));
    const begun = new Set([...state.runs.values()].map((run) => run.name));
    const link = (run) => h("a", { href: `#curves?${new URLSearchParams({ filter: `name=${quoted(`${name}/${run}`)}` })}` }, run);
    const rows = found.runs.map((run) => [
      begun.has(`${name}/${run.run}`) ? link(run.run) : run.run, // there is nothing to see of what has not begun
      h("span", { class: FACES[run.state] ?? "" }, run.state), this.attempts(name, run),
      cell(run.frames, whole) + (run.frames !== null && run.frames_wanted ? ` (${Math.min(100, Math.round((100 * run.frames) / run.frames_wanted))} %)` : ""),
      cell(run.return, number), rate(run.frames_per_s), cell(run.seconds_left, duration), run.host || "-"]);
    replace(this.table, table(["run", "state", "attempts", "frames", "return", "frames/s", "left", "host"], rows, 3));
    this.close();
    replace(this.families, found.importance.map((importance, k) => this.family(importance, found.scores[k])));
  }

  // The starts of a run, each with how it went and what it wrote; what a failed one said last stands beside it.
  attempts(name, run) {
    if (!run.attempts.length) return run.reason || "-";
    const rows = run.attempts.map((attempt) => h("li", {}, `${attempt.number}: ${attempt.mode}, ${when(1000 * attempt.started)}, ${attempt.host}, `,
      attempt.ended === null ? "not ended" : `after ${duration(attempt.ended - attempt.started)} with exit code ${attempt.exit_code}`, attempt.reason ? `: ${attempt.reason}` : "", " ",
      isCopy ? "" : this.log(name, run.run, attempt)));
    const details = h("details", { open: this.open.has(run.run), ontoggle: () => (details.open ? this.open.add(run.run) : this.open.delete(run.run)) },
      h("summary", {}, counted(run.attempts.length, "attempt"), run.reason ? `: ${run.reason}` : ""), h("ul", { class: "attempts" }, rows), run.tail ? h("pre", {}, run.tail) : "");
    return details;
  }

  // What an attempt wrote; while it is shown and the attempt has not ended, all news bring what it has written since.
  log(name, run, attempt) {
    const key = `${name}/${run}/${attempt.number}`;
    const place = h("pre", { hidden: !this.logs.has(key) }, this.logs.get(key) ?? "");
    const read = async () => {
      const text = await ask(`/api/attempt?${new URLSearchParams({ name, run, number: attempt.number })}`).then(({ log }) => log, (error) => error.message);
      if (!this.logs.has(key)) return; // it was folded up meanwhile
      this.logs.set(key, text);
      place.textContent = text;
    };
    const toggle = () => {
      if (!this.logs.delete(key)) this.logs.set(key, "");
      place.hidden = !this.logs.has(key);
      if (this.logs.has(key)) read();
    };
    if (this.logs.has(key) && attempt.ended === null) read();
    return [h("button", { type: "button", onclick: toggle }, "log"), place];
  }

  // Runs that are compared with each other: what matters, every run over all parameters, and scores over time.
  family(importance, scores) {
    return h("section", {}, h("h2", {}, `What matters${importance.title ? `: ${importance.title}` : ""}`), this.matter(importance),
      h("div", { class: "plots" }, this.parallel(scores), this.overTime(scores)));
  }

  matter({ why_not: why, items }) {
    if (why) return h("p", { class: "note" }, why);
    const bar = (share) => h("span", { class: "bar" }, h("span", { style: { width: `${Math.round(100 * Math.max(0, share))}%` } }));
    const rows = items.map((item) => [item.param, h("span", {}, bar(item.share), ` ${Math.round(100 * item.share)} %`), item.seen ? "" : "no more than chance",
      item.levels.map(([value, score, n]) => `${value}: ${number(score)} (n = ${n})`).join(", ")]);
    return h("div", {}, table(["parameter", "share of the differences", "", "mean score of its values, best first"], rows, 4));
  }

  parallel({ keys, lower, runs }) {
    if (keys.length < 1 || runs.length < 2) return "";
    const chart = new Chart({ title: "Every run over its parameters", height: 320, note: `A line is a run; the stronger it is drawn, the better its score${lower ? " (lower is better)" : ""}.` });
    const csv = () => [[...keys, "score", "run"].join(","), ...runs.map((run) => [...run.params.map(text), run.score, run.run].map(csvCell).join(","))].join("\n");
    chart.show(new Parallel(keys, runs, lower), [], csv);
    this.charts.push(chart);
    return chart.element;
  }

  // Every run that has a score, over the time it took, in the colour of its group.
  overTime({ runs }) {
    const timed = runs.filter((run) => run.seconds !== null);
    if (!timed.length) return "";
    const groups = [...new Set(timed.map((run) => run.group))];
    const points = groups.map((group, k) => {
      const own = timed.filter((run) => run.group === group);
      return { x: own.map((run) => run.seconds), y: own.map((run) => run.score), ...pointLook(k), radius: 4 };
    });
    const chart = new Chart({ title: "Score over seconds of training", height: 320 });
    const csv = () => ["group,run,seconds,score", ...timed.map((run) => [run.group, run.run, run.seconds, run.score].map(csvCell).join(","))].join("\n");
    chart.show(new Plot({ points, xTitle: "seconds" }), groups.map((group, k) => ({ text: group, ...pointLook(k) })), csv);
    this.charts.push(chart);
    return chart.element;
  }
}

const csvCell = (value) => (/[",\n]/.test(String(value)) ? `"${String(value).replaceAll('"', '""')}"` : value);
