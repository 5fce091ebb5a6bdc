// The runs that are known, and their groups; kept up to date. Pages ask here.

import { text } from "rollmill/filter";
import { ask, columns } from "rollmill/source";

export const state = { root: "", revision: -1, common: {}, rules: null, refused: [], stores: [], experiments: [], populations: [], runs: new Map() };
const cache = new Map(); // run id -> {changed, table}

export async function refresh() {
  const found = await ask(state.revision < 0 ? "/api/runs" : `/api/runs?since=${state.revision}`);
  for (const run of found.runs) state.runs.set(run.id, run);
  // A key that has ceased to be common is written in the runs that have changed; the others had its value.
  const changed = new Set(found.runs.map((run) => run.id));
  const others = [...state.runs.values()].filter((run) => !changed.has(run.id));
  for (const [key, value] of Object.entries(state.common)) {
    if (!(key in found.common)) for (const run of others) if (!(key in run.settings)) run.settings[key] = value;
  }
  state.runs = new Map(found.ids.filter((id) => state.runs.has(id)).map((id) => [id, state.runs.get(id)]));
  const { root, revision, common, rules, refused, stores, experiments, populations } = found;
  Object.assign(state, { root, revision, common, rules, refused, stores, experiments, populations });
}

// Runs that fit, by group: [{key, name, runs}], in the order of the runs.
export function grouped(runs) {
  const several = new Set(runs.map((run) => run.experiment)).size > 1;
  const groups = new Map();
  for (const run of runs) {
    const key = `${run.experiment}/${run.group}`;
    const name = several && run.experiment ? key : run.group;
    if (!groups.has(key)) groups.set(key, { key, name, runs: [] });
    groups.get(key).runs.push(run);
  }
  return [...groups.values()];
}

// What a run has under a key of its settings; undefined where runs of its kind have none.
export function settingOf(run, key) {
  return key in run.settings ? run.settings[key] : state.common[key];
}

export function shownSetting(run, key) {
  const value = settingOf(run, key);
  return value === undefined ? "-" : text(value);
}

// Keys of settings whose values are not the same in all of these runs, the seed apart. ``missing``: whether a setting that
// only some of them have differs by that alone; runs of two kinds have hundreds of those.
export function differing(runs, missing = true) {
  const keys = new Set(runs.flatMap((run) => Object.keys(run.settings)));
  const aside = /^(run\.(dir|experiment|name|seed)|report\.|wandb\.|checkpoints\.|profile\.)/;
  const varies = (key) => new Set(runs.map((run) => JSON.stringify(settingOf(run, key))).filter((value) => missing || value !== undefined)).size > 1;
  return [...keys].filter((key) => !aside.test(key) && varies(key)).sort();
}

// Run id -> {name: numbers}; what is known and has not changed is not asked for again.
export async function metrics(names, runs) {
  const fresh = (run, name) => cache.get(run.id)?.changed === run.changed && name in cache.get(run.id).table;
  const missing = names.filter((name) => runs.some((run) => !fresh(run, name)));
  const wanted = runs.filter((run) => missing.some((name) => !fresh(run, name)));
  const found = wanted.length ? await columns(missing, wanted.map((run) => run.id)) : new Map();
  for (const run of wanted) {
    const known = cache.get(run.id);
    const kept = known?.changed === run.changed ? known.table : {};
    cache.set(run.id, { changed: run.changed, table: { ...kept, ...found.get(run.id) } });
  }
  return new Map(runs.map((run) => [run.id, cache.get(run.id).table]));
}

// The units in which these runs count how far they are: frames, updates, generations.
export function unitsOf(runs) {
  return [...new Set(runs.map((run) => run.unit))];
}
