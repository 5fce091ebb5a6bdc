// Populations: whose weights went where, how good the members were, and the settings along the way of the best one;
// who wins against whom, where policies play each other.

import { Chart } from "rollmill/chart";
import { h, replace } from "rollmill/dom";
import { valueOf } from "rollmill/filter";
import { number, whole } from "rollmill/format";
import { Games } from "rollmill/games";
import { choice, table } from "rollmill/parts";
import { look, Plot, stairs } from "rollmill/plot";
import { ask } from "rollmill/source";
import { state } from "rollmill/runs";
import { extremes } from "rollmill/stats";

const MOST_DECISIONS = 200;
const NEAR = 0.012; // of the axis, between two copies of a round
const OF_MEMBER = "frames of a member";

// A member that is a run of its own has its ledger elsewhere: in the folder of the experiment.
const isPopulation = (run) => valueOf(run, "pbt.members", state.common) > 1 && !valueOf(run, "pbt.exchange", state.common);
const plays = (run) => run.metrics.some((name) => name.startsWith("selfplay/"));

// Experiments whose runs are members, runs that have several, and runs that play against their own past.
function populations() {
  const runs = [...state.runs.values()].filter((run) => isPopulation(run) || plays(run)).map((run) => ({ key: `run=${run.id}`, name: run.name, state: `${run.state}, `, told: isPopulation(run), plays: plays(run) }));
  const experiments = state.populations.map((name) => ({ key: `${new URLSearchParams({ name })}`, name: `${name} (runs of their own)`, state: "", told: true, plays: false }));
  return [...experiments, ...runs];
}

export class PopulationsPage {
  constructor(goTo) {
    this.run = choice("population", [], (key) => goTo("populations", { run: null, name: null, ...Object.fromEntries(new URLSearchParams(key)) }));
    this.charts = [];
    this.facts = h("p", {});
    this.plots = h("div", { class: "plots wide" });
    this.tables = h("div", {});
    this.games = new Games();
    this.content = h("div", {}, this.facts, this.plots, this.tables, this.games.element);
    this.empty = h("p", { class: "muted" }, "No run below this folder is a population, or plays against its past. ", h("code", {}, "rollmill train ... pbt.members=8"), " trains one.");
    this.element = h("div", {}, h("p", { class: "controls" }, this.run.element), this.content, this.empty);
  }

  close() {
    this.charts.forEach((chart) => chart.remove());
    this.games.close();
  }

  async show(query, isOn) {
    const every = populations();
    this.content.hidden = !every.length;
    this.empty.hidden = !!every.length;
    if (!every.length) return;
    const own = every.find(({ key }) => key === query.toString()) ?? every[0];
    replace(this.run.select, every.map(({ key, name }) => h("option", { value: key }, name)));
    this.run.select.value = own.key;
    const [found, games] = await Promise.all([own.told ? ask(`/api/population?${own.key}`) : null, own.plays ? ask(`/api/selfplay?${own.key}`) : null]);
    if (!isOn()) return;
    this.close();
    this.charts = [];
    replace(this.facts);
    replace(this.plots);
    replace(this.tables);
    if (found) this.draw(own.state, found);
    this.games.show(games);
  }

  draw(standing, found) {
    const rounds = found.frames.length;
    const moves = found.moves.filter((move) => move.from !== null).length;
    this.facts.textContent = `${whole(found.members.length)} members, method ${found.method}, ${whole(rounds)} rounds, weights taken over ${whole(moves)} times; `
      + `${standing}${rounds ? `the best is member ${found.best}` : "no round of decisions yet"}. Members are compared by ${found.objective}.`;
    this.charts = rounds ? [this.tree(found), this.objectives(found), ...found.keys.map((key) => this.setting(key, found))] : [];
    replace(this.plots, this.charts.map((chart) => chart.element));
    replace(this.tables, this.members(found), rounds ? this.decisions(found) : "");
  }

  // Every member is a line, every copy of weights a step from one to another; the way of the best one's weights is bold.
  tree(found) {
    const members = found.members.length;
    const height = (member) => members - 1 - member; // the first one on top
    const chart = new Chart({ title: "Lineage", height: Math.max(140, 22 * members + 60),
      note: `Dashed: weights go from one member to another, the dot says to whom; those of one round stand beside each other. Bold: the way of the weights that member ${found.best} has now.` });
    const copies = found.moves.filter((move) => move.from !== null);
    const places = beside(copies, found.frames);
    const lines = copies.map((move, k) => ({ x: [places[k], places[k]], y: [height(move.from), height(move.member)], hue: "--muted", dash: [3, 3], width: 1 }));
    const points = [{ x: places, y: copies.map((move) => height(move.member)), hue: "--muted", radius: 3 }];
    const way = stairs([0, ...found.frames], found.line.map(height), found.frames.at(-1));
    lines.push({ ...way, hue: "--accent", width: 3 });
    const yNames = found.members.map((_, k) => [height(k), String(k)]);
    chart.show(new Plot({ lines, points, xTitle: OF_MEMBER, yNames, xRange: [0, found.frames.at(-1)], yRange: [-0.5, members - 0.5] }), [],
      () => ["round,frames,member,from", ...copies.map((move) => [move.round, move.frames, move.member, move.from].join(","))].join("\n"));
    return chart;
  }

  objectives(found) {
    const chart = new Chart({ title: `Objective (${found.objective})`, note: "Thin: every member. Bold: along the way of the best one's weights. A gap: too few episodes of the present weights." });
    const lines = found.objectives.map((values, k) => ({ x: found.frames, y: values.map((value) => value ?? NaN), ...look(k), width: 1, alpha: 0.7 }));
    // In each stretch the weights are those of ``line``: the round that ends it judges them.
    const way = found.frames.map((_, k) => found.objectives[found.line[k]][k] ?? NaN);
    lines.push({ x: found.frames, y: way, hue: "--ink", width: 3 });
    const legend = [...found.members.map((_, k) => ({ text: `member ${k}`, ...look(k) })), { text: "way of the best", hue: "--ink" }];
    chart.show(new Plot({ lines, xTitle: OF_MEMBER }), legend,
      () => [["frames", ...found.members.map((_, k) => `member ${k}`)].join(","), ...found.frames.map((at, k) => [at, ...found.objectives.map((values) => values[k] ?? "")].join(","))].join("\n"));
    return chart;
  }

  // A setting with which present weights were trained, of every member; steps, for it stands still in between.
  setting(key, found) {
    const lines = found.members.map(({ way }, k) => ({ ...stairs(way.map(([, at]) => at), way.map(([, , settings]) => settings[key]), found.end),
      ...(k === found.best ? { hue: "--ink", width: 3 } : { ...look(k), width: 1, alpha: 0.7 }) }));
    const values = lines.flatMap((line) => line.y);
    const [low, high] = extremes(values);
    const logY = low > 0 && high > 20 * low;
    const chart = new Chart({ title: key, note: `What the weights of every member were trained with; bold: those of member ${found.best}.${logY ? " Logarithmic axis." : ""}` });
    const order = [...lines.keys()].sort((a, b) => (a === found.best) - (b === found.best));
    chart.show(new Plot({ lines: order.map((k) => lines[k]), xTitle: OF_MEMBER, logY }), lines.map(({ hue, dash }, k) => ({ text: `member ${k}`, hue, dash })),
      () => ["member,weights of,frames,value", ...found.members.flatMap(({ way }, k) => way.map(([holder, at, settings]) => [k, holder, at, settings[key]].join(",")))].join("\n"));
    return chart;
  }

  members(found) {
    const head = ["member", "objective", "episodes", "replaced", ...found.keys];
    const rows = found.members.map((own, k) => [String(k), own.objective === null ? "-" : number(own.objective) + (own.error === null ? "" : ` ± ${number(own.error)}`), whole(own.episodes), whole(own.replaced),
      ...found.keys.map((key) => `${number(own.begin[key])} → ${number(own.now[key])}`)]);
    return h("section", {}, h("h2", {}, "Members"), table(head, rows, 1), h("p", { class: "note" }, "Settings: what a member began with, and what its weights are trained with now."));
  }

  decisions(found) {
    const shown = found.moves.slice(-MOST_DECISIONS).reverse();
    const rows = shown.map((move) => [whole(move.round), whole(move.member), move.from === null ? "explores" : `from ${move.from}`,
      Object.entries(move.settings).map(([key, [a, b]]) => `${key} ${number(a)} → ${number(b)}`).join(", ")]);
    const left = found.moves.length - shown.length;
    return h("section", {}, h("h2", {}, "Decisions, the newest first"), rows.length ? table(["round", "member", "what", "settings"], rows, 4) : h("p", { class: "muted" }, "Nobody was replaced yet."),
      left > 0 ? h("p", { class: "note" }, `${whole(left)} earlier ones are not shown; population.jsonl in the run's folder has them.`) : "",
      found.stays.length ? h("p", { class: "note" }, `In the last round: ${found.stays.map(([member, why]) => `member ${member} stays: ${why}`).join("; ")}.`) : "");
  }
}

// Where copies are drawn: the last one of a round at its end, the others before it, so that none hides another.
function beside(copies, rounds) {
  return copies.map((move, k) => {
    const at = rounds.indexOf(move.frames);
    const behind = copies.slice(k + 1).filter((other) => other.round === move.round).length;
    const several = copies.filter((other) => other.round === move.round).length;
    return move.frames - behind * Math.min(NEAR * rounds.at(-1), (0.5 * (move.frames - (rounds[at - 1] ?? 0))) / several);
  });
}
