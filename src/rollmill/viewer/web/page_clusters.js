// Runs with nodes on other machines: how every node stands, what came from it and how old that was, and what was lost.

import { Chart, valueAt } from "rollmill/chart";
import { h, replace } from "rollmill/dom";
import { duration, number, rate, whole } from "rollmill/format";
import { choice, table } from "rollmill/parts";
import { look, Plot, stairs } from "rollmill/plot";
import { ask } from "rollmill/source";
import { metrics, state } from "rollmill/runs";
import { extremes } from "rollmill/stats";

const OF_NODE = /^cluster\/node(\d+)\/(\w+)$/;
const PER_NODE = [["frames_per_s", "Frames per second of every node"], ["lag", "Updates that segments are behind"], ["mb_per_s", "Megabytes per second of every node"]];
const LOST = [["cluster/lost_segments", "segments that never arrived"], ["cluster/refused_segments", "segments that came too late or twice"],
  ["sample/lost_segments", "segments lost with workers"], ["sample/env_faults", "faults of environments"], ["sample/worker_restarts", "restarts of workers"], ["cluster/gateway_restarts", "restarts of the gateway"]];
const FACES = { sampling: "good", gone: "bad", refused: "bad" };

export function clusters() {
  return [...state.runs.values()].filter((run) => run.metrics.some((name) => name.startsWith("cluster/")));
}

export class ClustersPage {
  constructor(goTo) {
    this.run = choice("run", [], (id) => goTo("clusters", { run: id }));
    this.charts = [];
    this.facts = h("p", {});
    this.nodes = h("div", {});
    this.plots = h("div", { class: "plots" });
    this.log = h("div", {});
    this.content = h("div", {}, this.facts, this.nodes, this.plots, this.log);
    this.empty = h("p", { class: "muted" }, "No run below this folder has nodes. ", h("code", {}, "rollmill train ... cluster=local cluster.nodes=2"), " starts one that has.");
    this.element = h("div", {}, h("p", { class: "controls" }, this.run.element), this.content, this.empty);
  }

  close() {
    this.charts.forEach((chart) => chart.remove());
  }

  async show(query, isOn) {
    const runs = clusters();
    this.content.hidden = !runs.length;
    this.empty.hidden = !!runs.length;
    if (!runs.length) return;
    const run = state.runs.get(query.get("run")) ?? runs[0];
    replace(this.run.select, runs.map((one) => h("option", { value: one.id }, one.name)));
    this.run.select.value = run.id;
    const found = await ask(`/api/cluster?run=${run.id}`);
    const table_ = (await metrics(["frames", ...found.metrics, ...LOST.map(([name]) => name)], [run])).get(run.id);
    if (isOn()) this.draw(run, found, table_);
  }

  draw(run, found, table_) {
    const seats = [...new Set(found.metrics.map((name) => OF_NODE.exec(name)?.[1]).filter(Boolean))].map(Number).sort((a, b) => a - b);
    const last = (name) => lastOf(table_[name]);
    this.facts.textContent = `${run.state}; ${whole(last("cluster/nodes"))} nodes sampled at the last row of metrics, ${whole(last("cluster/segments"))} segments received, `
      + `${whole(last("cluster/lost_segments"))} lost, ${whole(last("cluster/refused_segments"))} refused, packed to 1/${number(last("cluster/pack_ratio"))} of their size. Starts of the gateway: ${whole(found.gateways)}.`;
    replace(this.nodes, this.drawNodes(found, table_, seats, run.state === "running"), found.problem ? h("p", { class: "note" }, found.problem) : "");
    this.close();
    this.charts = [this.count(table_), ...PER_NODE.map(([key, title]) => this.perNode(key, title, seats, table_)), this.losses(table_)];
    replace(this.plots, this.charts.map((chart) => chart.element));
    replace(this.log, h("section", {}, h("h2", {}, "What the log says of nodes"), found.earlier ? h("p", { class: "note" }, `${whole(found.earlier)} earlier lines are not shown.`) : "",
      h("div", { class: "card" }, h("pre", {}, found.log.join("\n") || "(nothing)"))));
  }

  // A row for each seat that there ever was: what is known of it now, and at the last row in which it sampled.
  drawNodes(found, table_, seats, running) {
    const known = new Map(found.nodes.map((node) => [node.seat, node]));
    const all = [...new Set([...seats, ...known.keys()])].sort((a, b) => a - b);
    const rows = all.map((seat) => {
      const node = known.get(seat);
      const of = (key) => lastOf(table_[`cluster/node${seat}/${key}`] ?? []);
      const stage = node?.stage ?? "not there";
      return [String(seat), node?.node ?? "-", h("span", { class: FACES[stage] ?? "" }, stage), node?.reason || "-", String(node?.incarnation ?? of("incarnation") ?? "-"), whole(starts(table_[`cluster/node${seat}/incarnation`] ?? [])),
        rate(of("frames_per_s")), number(of("mb_per_s")), number(of("lag")), whole(node?.steps), whole(node?.lost), node?.pack_ratio ? number(node.pack_ratio) : "-", running && node ? duration(node.heard) : "-"];
    });
    const head = ["seat", "node", "stage", "reason", "incarnation", "starts seen", "frames/s", "MB/s", "lag", "steps", "lost", "packed 1 to", "last heard"];
    return h("section", {}, h("h2", {}, "Nodes"), table(head, rows, 4), h("p", { class: "note" }, "Rates and lag: of the last row of metrics in which a node sampled. Steps: of this incarnation; lost segments: of all of its node's."));
  }

  count(table_) {
    const { x, y } = points(table_, "cluster/nodes");
    const chart = new Chart({ title: "Nodes that sample" });
    chart.show(new Plot({ lines: [{ ...stairs(x, y, x.at(-1)), hue: "--accent" }], xTitle: "frames", yRange: [0, Math.max(1, extremes(y)[1]) * 1.1], yWhole: true }), [], () => csv([["nodes", x, y]]));
    return chart;
  }

  // A line for each seat; where another sampler took it over, a mark.
  perNode(key, title, seats, table_) {
    const lines = seats.map((seat, k) => ({ ...points(table_, `cluster/node${seat}/${key}`), ...look(k), seat })).filter(({ x }) => x.length);
    const marks = seats.flatMap((seat) => restarts(table_, seat)).map(([x, seat]) => ({ x, text: `${seat} anew`, hue: "--warn" }));
    const high = highest(lines);
    const chart = new Chart({ title });
    chart.show(new Plot({ lines, marks, xTitle: "frames", yRange: [0, high * 1.05 || 1] }), lines.map(({ seat, hue, dash, x, y }) => ({ text: `seat ${seat}`, hue, dash, value: (at) => number(valueAt(x, y, at)) })),
      () => csv(lines.map(({ seat, x, y }) => [`seat ${seat}`, x, y])));
    return chart;
  }

  losses(table_) {
    const lines = LOST.map(([name, text], k) => ({ ...points(table_, name), ...look(k), text })).filter(({ x }) => x.length);
    const high = highest(lines);
    const chart = new Chart({ title: "Lost, refused, restarted", note: "Counted since the run (segments: the session) began." });
    chart.show(new Plot({ lines: lines.map((line) => ({ ...line, ...stairs(line.x, line.y, line.x.at(-1)) })), xTitle: "frames", yRange: [0, Math.max(1, high * 1.05)], yWhole: true }),
      lines.map(({ text, hue, dash, y }) => ({ text: `${text}: ${whole(y.at(-1))}`, hue, dash })), () => csv(lines.map(({ text, x, y }) => [text, x, y])));
    return chart;
  }
}

function highest(lines) {
  return Math.max(0, ...lines.map(({ y }) => extremes(y)[1]));
}

// [xs, ys] of the rows in which a metric has a value.
function points(table_, name) {
  const rows = [...(table_[name] ?? []).keys()].filter((k) => !Number.isNaN(table_[name][k]) && !Number.isNaN(table_.frames[k]));
  return { x: rows.map((k) => table_.frames[k]), y: rows.map((k) => table_[name][k]) };
}

// [frames, seat] of every row in which a seat has another sampler than before.
function restarts(table_, seat) {
  const { x, y } = points(table_, `cluster/node${seat}/incarnation`);
  return x.flatMap((at, k) => (k && y[k] !== y[k - 1] ? [[at, seat]] : []));
}

function starts(incarnations) {
  return new Set([...incarnations].filter((value) => !Number.isNaN(value))).size || null;
}

function lastOf(column) {
  return [...(column ?? [])].findLast((value) => !Number.isNaN(value)) ?? null;
}

function csv(lines) {
  return ["line,frames,value", ...lines.flatMap(([name, x, y]) => x.map((at, k) => `${name},${at},${y[k]}`))].join("\n");
}
