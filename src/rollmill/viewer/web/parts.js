// Controls that several pages have.

import { h } from "rollmill/dom";

// A box for the words of a filter. ``use`` sets its text and makes a test of it; a wrong word is said below the box.
export function filterBox(changed, hint = "env=doom_* learning.gamma>0.98 state=failed") {
  const problem = h("span", { class: "bad note", role: "alert" });
  const input = h("input", { type: "search", placeholder: hint, "aria-label": "filter", spellcheck: "false", autocomplete: "off" });
  let typed = null;
  input.addEventListener("input", () => {
    clearTimeout(typed);
    typed = setTimeout(() => changed(input.value), 250);
  });
  let last = () => true;
  const use = (words, parse) => {
    if (document.activeElement !== input) input.value = words;
    try {
      last = parse(words);
      problem.textContent = "";
    } catch (error) {
      problem.textContent = error.message;
    }
    return last;
  };
  return { element: h("p", { class: "filter" }, input, problem), use };
}

// A select of [[value, words], ...].
export function choice(label, options, changed) {
  const select = h("select", { "aria-label": label, onchange: () => changed(select.value) },
    options.map(([value, words]) => h("option", { value }, words)));
  return { element: h("label", {}, `${label} `, select), select };
}

export function tick(label, changed, hint = null) {
  const box = h("input", { type: "checkbox", onchange: () => changed(box.checked) });
  return { element: h("label", { title: hint }, box, ` ${label}`), box };
}

const BRIEF = 24; // characters that stand in one line, however narrow the page

// The classes of a cell with text: what is short is not broken into lines, a name least of all; what is long keeps room
// for some words in each of its lines.
export function textClass(cell) {
  return (cell.textContent ?? cell).length < BRIEF ? "l brief" : "l long";
}

// A table in a card of its own; the first ``left`` columns are text.
export function table(head, rows, left) {
  const cells = (tag, row) => row.map((cell, k) => h(tag, { class: k < left ? textClass(cell) : "" }, cell));
  return h("div", { class: "card scroll" }, h("table", {}, h("thead", {}, h("tr", {}, cells("th", head))), h("tbody", {}, rows.map((row) => h("tr", {}, cells("td", row))))));
}
