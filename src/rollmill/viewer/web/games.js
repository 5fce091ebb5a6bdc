// Who wins against whom, and how strong everybody is: games of self-play.

import { Chart } from "rollmill/chart";
import { h, replace } from "rollmill/dom";
import { counted, number, whole } from "rollmill/format";
import { table } from "rollmill/parts";
import { Plot } from "rollmill/plot";

const elo = (value) => whole(Math.round(value) + 0); // never -0

export class Games {
  constructor() {
    this.element = h("div", {});
    this.chart = null;
  }

  close() {
    this.chart?.remove();
    this.chart = null;
  }

  // ``found``: as /api/selfplay tells it; null where nobody plays anybody.
  show(found) {
    this.close();
    replace(this.element, found === null ? "" : this.content(found));
  }

  content(found) {
    if (!found.names.length) return h("p", { class: "muted" }, "No game has ended yet.");
    const order = [...found.names.keys()].sort((a, b) => found.ratings[b][0] - found.ratings[a][0]);
    this.chart = this.ratings(found, order);
    const left = found.models - found.shown;
    return [h("section", {}, h("h2", {}, "Ratings"), h("div", { class: "plots" }, this.chart.element, this.list(found, order))),
      h("section", {}, h("h2", {}, "Who wins against whom"), this.matrix(found),
        h("p", { class: "note" }, "The share of points (a draw is half of one) that the policy before a model was published has won in games since the last one. An opponent is played as it was published. ",
          `Rule of matchmaking: ${found.rule}.${left > 0 ? ` Games before the last ${counted(found.shown, "model")} are not shown.` : ""}`))];
  }

  // A point and an interval for everybody, the best on top.
  ratings(found, order) {
    const count = order.length;
    const height = (k) => count - 1 - k;
    const lines = order.map((one, k) => ({ x: [-1, 1].map((side) => found.ratings[one][0] + side * found.ratings[one][1]), y: [height(k), height(k)], hue: "--accent" }));
    const points = [{ x: order.map((one) => found.ratings[one][0]), y: order.map((_, k) => height(k)), hue: "--accent", radius: 4, alpha: 1 }];
    const chart = new Chart({ title: "Ratings", height: 50 + 22 * count, note: `Bradley-Terry strengths on Elo's scale, 0 in the mean: 400 points are odds of ten to one. Lines: ${Math.round(100 * found.confidence)} % intervals. A model counts as one player, when it learnt and when it is played against.` });
    chart.show(new Plot({ lines, points, xTitle: "Elo", yNames: order.map((one, k) => [height(k), found.names[one]]), yRange: [-0.6, count - 0.4] }), [],
      () => ["player,elo,half of the interval", ...order.map((one) => [`"${found.names[one].replaceAll('"', '""')}"`, ...found.ratings[one]].join(","))].join("\n"));
    return chart;
  }

  list(found, order) {
    const games = found.names.map((_, one) => found.cells.filter(([a, b]) => a === one || b === one).reduce((sum, cell) => sum + cell[3], 0));
    const rows = order.map((one, k) => [String(k + 1), found.names[one], `${elo(found.ratings[one][0])} ± ${elo(found.ratings[one][1])}`, whole(games[one]), whole(found.frames[found.names[one]])]);
    return table(["", "player", "Elo", "games", "frames when published"], rows, 2);
  }

  // A row for every model as it learnt, a column for every opponent; colours as on the page of a match.
  matrix(found) {
    const cells = new Map(found.cells.map(([one, other, points, games]) => [`${one} ${other}`, { share: points / games, games }]));
    const columns = [...new Set(found.cells.map(([, other]) => other))].sort((a, b) => a - b);
    const rows = [...new Set(found.cells.map(([one]) => one))];
    const cell = (one, other) => {
      const own = cells.get(`${one} ${other}`);
      if (!own) return h("td", {});
      const strength = Math.round(130 * Math.abs(own.share - 0.5));
      const hue = own.share >= 0.5 ? "--accent" : "--warn";
      return h("td", { title: `${found.names[one]} against ${found.names[other]}: ${number(100 * own.share)} % of ${counted(own.games, "game")}`,
        style: { background: `color-mix(in srgb, var(${hue}) ${strength}%, transparent)` } }, own.share.toFixed(2));
    };
    return h("div", { class: "card scroll" }, h("table", { class: "matrix" }, h("thead", {}, h("tr", {}, h("th", {}), columns.map((other) => h("th", {}, found.names[other])))),
      h("tbody", {}, rows.map((one) => h("tr", {}, h("th", { class: "l" }, found.names[one]), columns.map((other) => cell(one, other)))))));
  }
}
