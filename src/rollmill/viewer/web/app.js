// The pages, and which of them is shown: the part of the address behind # says it all, so that it is a link.

import { h, replace } from "rollmill/dom";
import { counted } from "rollmill/format";
import { follow, isCopy, notCopied } from "rollmill/source";
import { refresh, state } from "rollmill/runs";
import { RunsPage } from "rollmill/page_runs";
import { CurvesPage } from "rollmill/page_curves";
import { ComparePage } from "rollmill/page_compare";
import { DataPage } from "rollmill/page_data";
import { ExperimentsPage } from "rollmill/page_experiments";
import { PlayPage } from "rollmill/page_play";
import { PopulationsPage } from "rollmill/page_populations";
import { ClustersPage } from "rollmill/page_clusters";

const PAGES = {
  runs: ["Runs", RunsPage],
  curves: ["Curves", CurvesPage],
  compare: ["Compare", ComparePage],
  data: ["Data", DataPage],
  play: ["Episodes", PlayPage],
  experiments: ["Experiments", ExperimentsPage],
  populations: ["Populations", PopulationsPage],
  clusters: ["Clusters", ClustersPage],
};
const FILTERED = ["runs", "curves"]; // pages whose filter is about runs
const view = document.getElementById("view");
const status = h("span", { class: "note", id: "status", role: "status" });
const tabs = h("nav", {});
const body = h("div", { id: "page" });
const PATIENCE = 700; // ms without an answer before the page says that it reads
let begun = 0; // how often something was to be shown
let shown = null;

function place() {
  const [name, query] = location.hash.slice(1).split("?");
  return [name in PAGES ? name : "runs", new URLSearchParams(query ?? "")];
}

// Change what the address says about the page that is shown; null takes a word out. ``quietly``: what changes with every
// letter or pixel is no step of the browser's history.
export function goTo(name, words, quietly = false) {
  const [now, query] = place();
  const next = new URLSearchParams(name === now ? query : "");
  for (const [key, value] of Object.entries(words)) {
    if (value === null || value === "") next.delete(key);
    else next.set(key, value);
  }
  const text = next.toString();
  const hash = `#${name}${text ? `?${text}` : ""}`;
  if (quietly || hash === location.hash) {
    history.replaceState(null, "", hash);
    safely(show);
  } else location.hash = hash;
}

// Pages wait for answers, and meanwhile something else may have been asked for: a page that finds its turn over after it
// has waited draws nothing.
let turn = 0;
async function show() {
  const own = (turn += 1);
  const isOn = () => own === turn;
  const [name, query] = place();
  replace(tabs, Object.entries(PAGES).map(([key, [title]]) =>
    h("a", { href: `#${key}${[name, key].every((one) => FILTERED.includes(one)) && query.get("filter") ? `?${new URLSearchParams({ filter: query.get("filter") })}` : ""}`,
      "aria-current": key === name ? "page" : null }, title)));
  document.title = `${PAGES[name][0]}: ${state.root || "rollmill"}`; // of several tabs, which is which
  if (shown?.name !== name) {
    shown?.page.close();
    const page = new PAGES[name][1](goTo);
    shown = { name, page };
    replace(body, page.element);
  }
  try {
    await shown.page.show(query, isOn);
  } catch (error) {
    if (isOn()) throw error;
  }
}

// What takes long is said: an empty page looks like one with nothing on it.
async function safely(work) {
  const own = (begun += 1);
  const waiting = setTimeout(() => own === begun && (status.textContent = "reading ..."), PATIENCE);
  try {
    await work();
    tell();
  } catch (error) {
    tell(error.message);
    throw error;
  } finally {
    clearTimeout(waiting);
  }
}

function tell(problem = "") {
  const refused = state.refused.length ? `; ${counted(state.refused.length, "folder")} not shown: ${state.refused.join("; ")}` : "";
  status.className = problem ? "note bad" : "note";
  const lost = notCopied.length ? `; could not be copied: ${notCopied.join("; ")}` : "";
  status.textContent = problem || `${counted(state.runs.size, "run")}${isCopy ? ", a copy without a server" : ""}${refused}${lost}`;
}

function forgetToken() {
  if (location.search) history.replaceState(null, "", location.pathname + location.hash);
}

// One look at a time; what comes meanwhile is looked at once more afterwards.
let looking = null;
let again = false;
async function look() {
  if (looking) {
    again = true;
    return;
  }
  do {
    again = false;
    looking = safely(async () => {
      await refresh();
      await show();
    });
    await looking.finally(() => (looking = null));
  } while (again);
}

async function start() {
  forgetToken();
  document.querySelector("main").classList.add("viewer");
  replace(view, h("header", {}, h("h1", {}, "rollmill"), tabs, status), body);
  window.addEventListener("hashchange", () => safely(show));
  await look();
  document.querySelector("h1").textContent = state.root;
  follow((revision) => revision !== state.revision && look(), tell);
}

start();
