// Launched experiments: how every run stands, as ``rollmill launch status`` tells it, and which parameters matter.

import { Chart } from "rollmill/chart";
import { h, replace } from "rollmill/dom";
import { duration, number, short, whole } from "rollmill/format";
import { choice } from "rollmill/parts";
import { look, Plot } from "rollmill/plot";
import { ask } from "rollmill/source";
import { state } from "rollmill/runs";

const FACES = { running: "good", failed: "bad", cancelled: "warn", waiting: "muted" };

export class ExperimentsPage {
  constructor(goTo) {
    this.experiment = choice("experiment", [], (name) => goTo("experiments", { name }));
    this.summary = h("p", {});
    this.table = h("div", { class: "card scroll" });
    this.matter = h("div", {});
    this.chart = new Chart({ title: "Score over seconds" });
    this.content = h("div", {}, this.summary, this.table, this.matter, this.chart.element);
    this.empty = h("p", { class: "muted" }, "No experiment below this folder was launched. ", h("code", {}, "rollmill launch run grid.yaml"), " starts many runs.");
    this.element = h("div", {}, h("p", { class: "controls" }, this.experiment.element), this.content, this.empty);
  }

  close() {
    this.chart.remove();
  }

  async show(query) {
    const names = state.experiments;
    this.content.hidden = !names.length;
    this.empty.hidden = !!names.length;
    if (!names.length) return;
    const name = names.includes(query.get("name")) ? query.get("name") : names[0];
    replace(this.experiment.select, names.map((one) => h("option", { value: one }, one)));
    this.experiment.select.value = name;
    this.draw(name, await ask(`/api/experiment?${new URLSearchParams({ name })}`));
  }

  draw(name, found) {
    this.summary.textContent = found.summary;
    const cell = (value, show) => (value === null || value === undefined ? "-" : show(value));
    const rows = found.runs.map((run) => h("tr", {},
      h("td", { class: "l" }, h("a", { href: `#curves?${new URLSearchParams({ filter: `name=${name}/${run.run}` })}` }, run.run)),
      h("td", { class: `l ${FACES[run.state] ?? ""}` }, run.state),
      h("td", {}, cell(run.frames, whole), run.frames !== null && run.frames_wanted ? ` (${Math.min(100, Math.round((100 * run.frames) / run.frames_wanted))} %)` : ""),
      h("td", {}, cell(run.return, number)), h("td", {}, cell(run.frames_per_s, (value) => short(Math.round(value)))), h("td", {}, cell(run.seconds_left, duration)),
      h("td", {}, run.attempts || "-"), h("td", { class: "l" }, run.host || "-"),
      h("td", { class: "l" }, run.tail ? h("details", {}, h("summary", {}, run.reason || "its last words"), h("pre", {}, run.tail)) : run.reason)));
    const head = ["run", "state", "frames", "return", "frames/s", "left", "try", "host", "reason"];
    replace(this.table, h("table", {}, h("thead", {}, h("tr", {}, head.map((title, k) => h("th", { class: [0, 1, 7, 8].includes(k) ? "l" : "" }, title)))), h("tbody", {}, rows)));
    this.drawMatter(found);
    this.drawScores(found);
  }

  drawMatter({ importance }) {
    const families = importance.map(({ title, why_not: why, items }) => h("section", {}, h("h2", {}, `What matters${title ? `: ${title}` : ""}`),
      why ? h("p", { class: "note" }, why) : h("div", { class: "card scroll" }, h("table", {}, h("tbody", {}, items.map((item) => h("tr", {}, h("td", { class: "l" }, item.param),
        h("td", {}, `${Math.round(100 * item.share)} %`), h("td", { class: "l" }, item.levels.map(([value, score, n]) => `${value}: ${number(score)} (n = ${n})`).join(", ")))))))));
    replace(this.matter, families);
  }

  // Every run that has a score, over the time it took, in the colour of its group.
  drawScores({ scores }) {
    this.chart.element.hidden = !scores.length;
    if (!scores.length) return;
    const groups = [...new Set(scores.map((run) => run.group))];
    const points = groups.map((group, k) => {
      const own = scores.filter((run) => run.group === group);
      return { x: own.map((run) => run.seconds), y: own.map((run) => run.score), hue: look(k).hue, radius: 4 };
    });
    const csv = () => ["group,run,seconds,score", ...scores.map((run) => [run.group, run.run, run.seconds, run.score].join(","))].join("\n");
    this.chart.show(new Plot({ points, xTitle: "seconds" }), groups.map((group, k) => ({ text: group, hue: look(k).hue })), csv);
  }
}
