// Episodes step by step: the frame of a step, and below it what the agent did and got, over one time line. Several
// episodes stand side by side and go step by step together. Frames are drawn by their number: nothing can drift apart.

import { h, replace } from "rollmill/dom";
import { number, whole } from "rollmill/format";
import { choice } from "rollmill/parts";
import { Plot, stairs } from "rollmill/plot";
import { numbersOf, picture } from "rollmill/source";
import { state } from "rollmill/runs";

const RATES = [[4, "4 steps/s"], [15, "15 steps/s"], [30, "30 steps/s"], [60, "60 steps/s"]];
const PORTIONS = 96; // kept of each episode
const AHEAD = 6; // portions that are fetched before they are needed
const TRACKS = [["reward", "reward"], ["so far", "return so far"], ["value", "value"], ["log_prob", "log-probability"], ["surprise", "surprise"], ["action", "action"], ["version", "policy version"]];
const KEYS = { " ": "toggle", ArrowRight: 1, ArrowLeft: -1, l: 1, h: -1, j: 10, k: -10, Home: "first", End: "last" };

export class PlayPage {
  constructor(goTo) {
    this.go = (words) => goTo("play", words);
    this.episodes = [];
    this.step = 0;
    this.timer = null;
    this.slider = h("input", { type: "range", min: "0", value: "0", "aria-label": "step", oninput: () => this.seek(Number(this.slider.value)) });
    this.button = h("button", { type: "button", onclick: () => this.toggle() }, "play");
    this.rate = choice("at", RATES, () => this.timer && (this.toggle(), this.toggle()));
    this.rate.select.value = "15";
    this.where = h("span", { class: "note", role: "status" });
    const jump = (words, find) => h("button", { type: "button", onclick: () => this.episodes.length && this.seek(find(this.episodes[0])) }, words);
    this.bar = h("div", { class: "controls" }, this.button, this.rate.element,
      jump("largest reward", (episode) => episode.peak("reward")), jump("largest surprise", (episode) => episode.peak("surprise")), jump("end", (episode) => episode.length), this.where);
    this.panes = h("div", { class: "panes" });
    this.hint = h("p", { class: "note" }, "Space plays and stops, arrows go a step, j and k ten, Home and End to the ends.");
    this.element = h("div", { class: "player" }, this.bar, this.slider, this.panes, this.hint);
    this.onKey = (event) => this.key(event);
    window.addEventListener("keydown", this.onKey);
  }

  close() {
    clearInterval(this.timer);
    window.removeEventListener("keydown", this.onKey);
    this.episodes.forEach((episode) => episode.close());
  }

  async show(query) {
    const wanted = (query.get("e") ?? "").split(",").filter(Boolean).slice(0, 4);
    const text = wanted.join(",");
    if (text !== this.text) {
      this.text = text;
      this.episodes.forEach((episode) => episode.close());
      this.episodes = await Promise.all(wanted.map((word) => Episode.open(...word.split(":"), (step) => this.seek(step))));
      replace(this.panes, this.episodes.length ? this.episodes.map((episode) => episode.element) : h("p", { class: "muted" }, "Choose episodes on the page Data."));
      this.slider.max = Math.max(0, ...this.episodes.map((episode) => episode.length));
      this.seek(Number(query.get("t")) || 0);
    }
  }

  get last() {
    return Number(this.slider.max);
  }

  seek(step) {
    this.step = Math.min(this.last, Math.max(0, Math.round(step)));
    this.slider.value = this.step;
    this.where.textContent = `step ${whole(this.step)} of ${whole(this.last)}`;
    this.episodes.forEach((episode) => episode.seek(this.step));
    if (!this.timer) this.remember();
  }

  // The address says where one stands; the page does not move for it.
  remember() {
    clearTimeout(this.remembering);
    this.remembering = setTimeout(() => history.replaceState(null, "", `#play?${new URLSearchParams({ e: this.text, t: this.step })}`), 200);
  }

  toggle() {
    if (this.timer) {
      clearInterval(this.timer);
      this.timer = null;
      this.remember();
    } else if (this.episodes.length) {
      if (this.step >= this.last) this.seek(0);
      this.timer = setInterval(() => (this.step >= this.last ? this.toggle() : this.seek(this.step + 1)), 1000 / Number(this.rate.select.value));
    }
    this.button.textContent = this.timer ? "stop" : "play";
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || ["SELECT"].includes(event.target.tagName) || event.target.type === "search") return;
    const act = KEYS[event.key];
    if (act === undefined || (event.key === " " && event.target.tagName === "BUTTON")) return;
    event.preventDefault();
    if (act === "toggle") this.toggle();
    else this.seek(act === "first" ? 0 : act === "last" ? this.last : this.step + act);
  }
}

class Episode {
  static async open(store, number_, seek) {
    const { head, numbers } = await numbersOf(`/api/episode?store=${encodeURIComponent(store)}&episode=${encodeURIComponent(number_)}`);
    return new Episode(store, head, numbers, seek);
  }

  constructor(store, head, numbers, seek) {
    Object.assign(this, { store, head, length: head.length, step: 0, portions: new Map() });
    this.values = Object.fromEntries(head.tracks.map((name, k) => [name, numbers.subarray(k * head.length, (k + 1) * head.length)]));
    this.derive();
    const { image } = head;
    this.canvas = image && h("canvas", { class: "frame", width: image.width, height: image.height, role: "img", "aria-label": `frame of episode ${head.number}` });
    this.facts = h("p", { class: "note" });
    this.tracks = h("div", { class: "tracks" });
    const place = state.stores.find((one) => one.id === store)?.name ?? "";
    const note = image?.note ? h("p", { class: "note" }, `${image.name}: ${image.note}`) : "";
    this.element = h("div", { class: "card pane" }, h("h3", {}, `${place} episode ${whole(head.number)}`),
      h("p", { class: "note" }, `return ${number(Number(head.return))}, ${whole(head.length)} steps, ${head.ended}${head.seed === null ? "" : `, seed ${head.seed}`}`),
      this.canvas ?? h("p", { class: "muted" }, "This store holds no images."), note, this.facts, this.tracks);
    this.draw(seek);
  }

  close() {
    this.resized.disconnect();
  }

  // Sums and surprises that follow from what was recorded.
  derive() {
    const { reward, value } = this.values;
    let sum = 0;
    this.values["so far"] = Float64Array.from(reward, (one) => (sum += one));
    if (value) this.values.surprise = Float64Array.from(value, (one, t) => Math.abs(reward[t] + (value[t + 1] ?? 0) - one));
    else if (this.values.log_prob) this.values.surprise = Float64Array.from(this.values.log_prob, (one) => -one);
  }

  // The step at which a track is highest; the first one where there is none.
  peak(name) {
    const values = this.values[name] ?? [];
    return values.reduce((best, value, t) => (value > values[best] ? t : best), 0);
  }

  draw(seek) {
    const steps = Float64Array.from({ length: this.length }, (_, t) => t);
    this.plots = [];
    for (const [key, title] of TRACKS) {
      for (const name of Object.keys(this.values).filter((one) => one === key || one.startsWith(`${key}[`))) {
        const canvas = h("canvas", { role: "img", "aria-label": title });
        const box = h("div", { class: "track", onclick: (event) => seek(this.plots[0].plot.at(event.clientX - box.getBoundingClientRect().left)) },
          canvas, h("div", { class: "here" }));
        this.plots.push({ canvas, box, plot: new Plot({ lines: [{ ...this.line(key, steps, this.values[name]), hue: "--accent", width: 1.5 }], xRange: [0, Math.max(1, this.length)] }) });
        this.tracks.append(h("p", { class: "note" }, name === key ? title : `${title} ${name.slice(key.length)}`), box);
      }
    }
    this.resized = new ResizeObserver(() => this.redraw());
    this.resized.observe(this.tracks);
  }

  // What belongs to a step holds for all of it; sums and values are drawn from step to step.
  line(key, steps, values) {
    return ["value", "so far"].includes(key) ? { x: steps, y: values } : stairs(steps, values, this.length);
  }

  redraw() {
    for (const { canvas, plot } of this.plots) if (canvas.clientWidth) plot.draw(canvas);
    this.point();
  }

  seek(step) {
    this.step = Math.min(step, this.length);
    this.point();
    const row = Math.min(this.step, this.length - 1);
    const shown = Object.entries(this.values).filter(([name]) => name !== "surprise" && name !== "global_step").map(([name, values]) => `${name} ${number(values[row])}`);
    this.facts.textContent = this.step < this.length ? shown.join(", ") : `the end: ${this.head.ended}`;
    if (this.canvas) this.paint();
  }

  point() {
    for (const { box, plot } of this.plots) box.lastChild.style.transform = `translateX(${plot.left === undefined ? 0 : plot.x(this.step)}px)`;
  }

  // The frame of this very step; one that came too late is not drawn.
  async paint() {
    const { portion, width, height } = this.head.image;
    const part = Math.floor(this.step / portion);
    const wanted = this.step;
    const image = await this.fetch(part);
    if (this.step !== wanted || !image) return;
    const pen = this.canvas.getContext("2d");
    pen.drawImage(image, 0, (wanted - part * portion) * height, width, height, 0, 0, width, height);
    this.canvas.dataset.step = wanted;
    for (let next = part + 1; next <= Math.min(part + AHEAD, Math.floor(this.length / portion)); next += 1) this.fetch(next);
  }

  fetch(part) {
    if (!this.portions.has(part)) {
      const image = new Image();
      image.src = picture(`/api/frames?store=${this.store}&episode=${this.head.number}&part=${part}`);
      this.portions.set(part, image.decode().then(() => image, () => {
        this.facts.textContent = "these frames cannot be read";
        return null;
      }));
      if (this.portions.size > PORTIONS) this.portions.delete(this.portions.keys().next().value);
    }
    return this.portions.get(part);
  }
}
