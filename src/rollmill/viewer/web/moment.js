// A place of a curve: the episodes that were recorded there, the checkpoint nearest to who played them, and what the log said.

import { h, replace } from "rollmill/dom";
import { counted, number, when, whole } from "rollmill/format";
import { ask } from "rollmill/source";
import { state, unitsOf } from "rollmill/runs";

const MOST_RUNS = 20;

export class Moment {
  constructor() {
    this.element = h("div", { class: "moment", "aria-live": "polite" });
  }

  // [[run, frames], ...]
  show(places) {
    const left = places.length - MOST_RUNS;
    const units = unitsOf(places.map(([run]) => run));
    replace(this.element, places.length ? h("h2", {}, units.length > 1 ? "There" : `At ${number(places[0][1])} ${units[0]}`) : "",
      places.slice(0, MOST_RUNS).map(([run, frames]) => this.run(run, frames, places.length === 1)),
      left > 0 ? h("p", { class: "note" }, `${counted(left, "more run")}: hide groups to see them.`) : "");
    this.element.scrollIntoView({ block: "nearest" });
  }

  // ``open``: what takes a question is asked at once.
  run(run, frames, open) {
    const stores = state.stores.filter((store) => store.run === run.id);
    const links = stores.map((store) => h("a", { href: `#data?${new URLSearchParams({ store: store.id, near: Math.round(frames) })}` },
      `episodes recorded there (${store.name.slice(run.name.length + 1)})`));
    const body = h("div", {});
    const details = h("details", { open, ontoggle: () => details.open && this.fill(body, run, frames) },
      h("summary", {}, "checkpoint and log"), body);
    return h("div", { class: "card" }, h("h3", {}, run.name), h("p", {}, links.length ? links.map((link) => [link, " "]) : h("span", { class: "muted" }, "nothing was recorded")), details);
  }

  async fill(body, run, frames) {
    try {
      const found = await ask(`/api/moment?run=${run.id}&frames=${Math.round(frames)}`);
      const watch = () => [h("code", {}, `rollmill watch ${state.root}/${run.name}@${found.checkpoint}`), `. All that are left: ${found.checkpoints.map(whole).join(", ")}.`];
      replace(body, h("p", {}, played(found), " ", found.checkpoint === null ? "No checkpoint of that time is left." : [nearest(found), watch()]), found.time === null ? "" : h("p", { class: "note" }, `about ${when(1000 * found.time)}; the log of two minutes:`),
        h("pre", {}, found.log.join("\n") || "(the log says nothing then)"), found.more ? h("p", { class: "note" }, `${counted(found.more, "more line")} in log.txt`) : "");
    } catch (error) {
      replace(body, h("p", { class: "bad" }, error.message));
    }
  }
}

function played({ played: found }) {
  if (found === null) return "";
  const versions = found.first === found.last ? `version ${whole(found.first)}` : `versions ${whole(found.first)} to ${whole(found.last)}`;
  return `An episode that was under way there was played by ${versions}${found.policy ? ` of policy ${found.policy}` : ""}.`;
}

function nearest({ version }) {
  return version === null ? "The last checkpoint before that: " : `The checkpoint whose version comes nearest (${whole(version)}): `;
}
