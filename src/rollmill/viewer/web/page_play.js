// Episodes step by step: the frame of a step, and below it what the agent did and got, over one time line. Several
// episodes stand side by side and go step by step together. Frames are drawn by their number: nothing can drift apart.

import { h, replace } from "rollmill/dom";
import { number, whole } from "rollmill/format";
import { choice } from "rollmill/parts";
import { Plot, stairs } from "rollmill/plot";
import { isCopy, numbersOf, picture } from "rollmill/source";
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
    const jump = (words, find) => h("button", { type: "button", onclick: () => this.episodes.length && this.seek(find()) }, words);
    this.image = choice("image", [], (name) => this.go({ image: name, t: this.step }));
    this.bar = h("div", { class: "controls" }, this.button, this.rate.element,
      jump("largest reward", () => this.peak("reward")), jump("largest surprise", () => this.peak("surprise")), jump("end", () => this.last), this.image.element, this.where);
    this.image.element.hidden = true;
    this.panes = h("div", { class: "panes" });
    this.hint = h("p", { class: "note" }, "Space plays and stops, arrows go a step, j and k ten, Home and End to the ends.");
    this.element = h("div", { class: "player" }, this.bar, this.slider, this.panes, this.hint);
    this.onKey = (event) => this.key(event);
    window.addEventListener("keydown", this.onKey);
  }

  close() {
    clearInterval(this.timer);
    clearTimeout(this.remembering); // the address is that of another page by then
    window.removeEventListener("keydown", this.onKey);
    this.episodes.forEach((episode) => episode.close());
  }

  async show(query, isOn) {
    const wanted = (query.get("e") ?? "").split(",").filter(Boolean).slice(0, 4);
    const [text, image] = [wanted.join(","), query.get("image")];
    if (text !== this.text || image !== this.shownImage) {
      const opened = await Promise.all(wanted.map((word) => Episode.open(...word.split(":"), image, (step) => this.seek(step))));
      if (!isOn()) {
        opened.forEach((episode) => episode.close());
        return;
      }
      [this.text, this.shownImage] = [text, image];
      this.episodes.forEach((episode) => episode.close());
      this.episodes = opened;
      replace(this.panes, this.episodes.length ? this.episodes.map((episode) => episode.element) : h("p", { class: "muted" }, "Choose episodes on the page ", h("a", { href: "#data" }, "Data"), "."));
      const names = [...new Set(opened.flatMap(({ head }) => head.images.map(({ name }) => name)))];
      this.image.element.hidden = isCopy || names.length < 2;
      replace(this.image.select, names.map((name) => h("option", { value: name }, name)));
      this.image.select.value = opened.find((episode) => episode.image)?.image.name ?? "";
      for (const part of [this.bar, this.slider, this.hint]) part.hidden = !this.episodes.length;
      this.slider.max = Math.max(0, ...this.episodes.map((episode) => episode.length));
      this.seek(Number(query.get("t")) || 0);
    }
  }

  // The step at which a track is highest in any of the episodes.
  peak(name) {
    const peaks = this.episodes.map((episode) => episode.peak(name)).filter((peak) => peak !== null);
    return peaks.reduce((best, peak) => (peak.value > best.value ? peak : best), { step: 0, value: -Infinity }).step;
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
    this.remembering = setTimeout(() => history.replaceState(null, "", `#play?${new URLSearchParams({ e: this.text, t: this.step, ...(this.shownImage ? { image: this.shownImage } : {}) })}`), 200);
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
  static async open(store, number_, image, seek) {
    const { head, numbers } = await numbersOf(`/api/episode?store=${encodeURIComponent(store)}&episode=${encodeURIComponent(number_)}`);
    return new Episode(store, head, numbers, head.images.find(({ name }) => name === image) ?? head.image, seek);
  }

  // ``image``: what is known of the images that are shown; null where there are none.
  constructor(store, head, numbers, image, seek) {
    Object.assign(this, { store, head, image, length: head.length, step: 0, portions: new Map() });
    let place = 0;
    this.values = Object.fromEntries(head.tracks.map((name, k) => [name, numbers.subarray(place, (place += head.rows[k]))]));
    this.derive();
    this.canvas = image && h("canvas", { class: "frame", width: image.width, height: image.height, role: "img", "aria-label": `frame of episode ${head.number}` });
    this.facts = h("p", { class: "note" });
    this.trouble = h("p", { class: "note bad", role: "alert" });
    this.tracks = h("div", { class: "tracks" });
    const name = state.stores.find((one) => one.id === store)?.name ?? "";
    const note = image?.note ? h("p", { class: "note" }, `${image.name}: ${image.note}`) : "";
    this.element = h("div", { class: "card pane" }, h("h3", {}, `${name} episode ${head.number}`),
      h("p", { class: "note" }, `return ${number(Number(head.return))}, ${whole(head.length)} steps, ${head.ended}${head.seed === null ? "" : `, seed ${head.seed}`}`),
      this.canvas ?? h("p", { class: "muted" }, "This store holds no images."), this.trouble, note, this.facts, this.tracks);
    this.draw(seek);
  }

  close() {
    this.resized.disconnect();
  }

  // Sums and surprises that follow from what was recorded. What was got before a frame counts for it, so that there is one
  // sum more than there are steps. Nothing is to come after a terminated episode; else the value of the last observation.
  derive() {
    const { reward, value } = this.values;
    const sums = new Float64Array(this.length + 1);
    reward.forEach((one, t) => (sums[t + 1] = sums[t] + one));
    this.values["so far"] = sums;
    const next = (t) => (t + 1 === this.length && this.head.ended === "terminated" ? 0 : value[t + 1] ?? NaN);
    if (value) this.values.surprise = Float64Array.from(reward, (one, t) => Math.abs(one + next(t) - value[t]));
    else if (this.values.log_prob) this.values.surprise = Float64Array.from(this.values.log_prob, (one) => -one);
  }

  // {step, value} where a track is highest; null where there is no such track.
  peak(name) {
    const values = this.values[name] ?? [];
    const step = values.reduce((best, value, t) => (value > (values[best] ?? -Infinity) ? t : best), -1);
    return step < 0 ? null : { step, value: values[step] };
  }

  draw(seek) {
    const steps = Float64Array.from({ length: this.length + 1 }, (_, t) => t);
    this.plots = [];
    for (const [key, title] of TRACKS) {
      for (const name of Object.keys(this.values).filter((one) => one === key || one.startsWith(`${key}[`))) {
        const canvas = h("canvas", { role: "img", "aria-label": title });
        const box = h("div", { class: "track", onclick: (event) => seek(this.plots[0].plot.at(event.clientX - box.getBoundingClientRect().left)) },
          canvas, h("div", { class: "here" }));
        this.plots.push({ canvas, box, plot: new Plot({ lines: [{ ...this.line(key, steps, this.values[name]), hue: "--accent", width: 1.5 }], xRange: [0, Math.max(1, this.length)], xWhole: true, yWhole: this.counts(key, name) }) });
        this.tracks.append(h("p", { class: "note" }, name === key ? title : `${title} ${name.slice(key.length)}`), box);
      }
    }
    this.resized = new ResizeObserver(() => this.redraw());
    this.resized.observe(this.tracks);
  }

  // Versions, and actions that are chosen among several: there is nothing between them.
  counts(key, name) {
    return ["action", "version"].includes(key) && this.values[name].every(Number.isInteger);
  }

  // What belongs to a step holds for all of it; sums and values are drawn from step to step.
  line(key, steps, values) {
    const x = steps.subarray(0, values.length);
    return ["value", "so far"].includes(key) ? { x, y: values } : stairs(x, values, this.length);
  }

  redraw() {
    for (const { canvas, plot } of this.plots) if (canvas.clientWidth) plot.draw(canvas);
    this.point();
  }

  seek(step) {
    this.step = Math.min(step, this.length);
    this.point();
    const known = Object.entries(this.values).filter(([name, values]) => name !== "surprise" && name !== "global_step" && this.step < values.length);
    const shown = known.map(([name, values]) => `${name === "so far" ? "return so far" : name} ${number(values[this.step])}`);
    this.facts.textContent = [...(this.step < this.length ? [] : [`the end: ${this.head.ended}`]), ...shown].join(", ");
    if (this.canvas) this.paint();
  }

  point() {
    for (const { box, plot } of this.plots) box.lastChild.style.transform = `translateX(${plot.left === undefined ? 0 : plot.x(this.step)}px)`;
  }

  // The frame of this very step; one that came too late is not drawn.
  async paint() {
    const { portion, width, height } = this.image;
    const part = Math.floor(this.step / portion);
    const wanted = this.step;
    const image = await this.fetch(part);
    if (this.step !== wanted) return;
    const pen = this.canvas.getContext("2d");
    this.trouble.textContent = image ? "" : "these frames cannot be read";
    if (!image) {
      pen.clearRect(0, 0, width, height); // what stood there is of another step
      delete this.canvas.dataset.step;
      return;
    }
    pen.drawImage(image, 0, (wanted - part * portion) * height, width, height, 0, 0, width, height);
    this.canvas.dataset.step = wanted;
    for (let next = part + 1; next <= Math.min(part + AHEAD, Math.floor(this.length / portion)); next += 1) this.fetch(next);
  }

  fetch(part) {
    if (!this.portions.has(part)) {
      const image = new Image();
      const asked = this.image.name === this.head.image.name ? "" : `&image=${encodeURIComponent(this.image.name)}`;
      image.src = picture(`/api/frames?store=${this.store}&episode=${this.head.number}&part=${part}${asked}`);
      this.portions.set(part, image.decode().then(() => image, () => {
        this.portions.delete(part); // they may be readable the next time
        return null;
      }));
      if (this.portions.size > PORTIONS) this.portions.delete(this.portions.keys().next().value);
    }
    return this.portions.get(part);
  }
}
