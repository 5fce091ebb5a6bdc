// The words of the filter box: env=doom_* learning.gamma>0.98 state=failed, or parts of a name. All must fit. What stands
// between double quotes is taken as it is: blanks, commas and stars, too; a backslash there takes the next character.

const WORD = /^([A-Za-z_][\w./-]*?)(!=|>=|<=|=|>|<)(.*)$/s;
const BLANKS = " \t\r\n";
const QUOTED = "\0"; // in place of characters between quotes, where signs mean nothing
const OWN = ["name", "experiment", "group", "state", "kind", "env", "host", "commit", "frames", "return", "frames_per_s",
  "share", "faults", "seconds", "rows", "created"];

// A function from runs to whether they fit. Throws where a word means nothing.
export function parse(text, runs, common) {
  const tests = split(text).map((word) => test(word, runs, common));
  return (run) => tests.every((fits) => fits(run));
}

// [{raw, characters: [[character, whether it is quoted], ...], quoted}, ...]; as ``words_in`` of episodes.py.
export function split(text) {
  const words = [];
  let [word, inside, taken] = [null, false, false];
  for (const character of text) {
    if (!inside && BLANKS.includes(character)) {
      word = null;
      continue;
    }
    if (word === null) words.push((word = { raw: "", characters: [], quoted: false }));
    word.raw += character;
    if (inside && character === "\\" && !taken) taken = true;
    else if (character === '"' && !taken) {
      inside = !inside;
      word.quoted = true;
    } else {
      word.characters.push([character, inside]);
      taken = false;
    }
  }
  if (inside) throw new Error(`${text}: a quotation mark is not closed`);
  return words;
}

export const plain = (characters) => characters.map(([character]) => character).join("");

// A value as a word of a filter, whatever is in it.
export function quoted(value) {
  return /^[\w./+@:-]+$/.test(value) ? value : `"${value.replace(/["\\]/g, "\\$&")}"`;
}

// What a run has under a key of its settings, or a column of the table.
export function valueOf(run, key, common) {
  if (OWN.includes(key)) return run[key];
  const full = key === "seed" ? "run.seed" : key;
  return full in run.settings ? run.settings[full] : common[full];
}

function test({ raw, characters, quoted: isQuoted }, runs, common) {
  const found = WORD.exec(characters.map(([character, inside]) => (inside ? QUOTED : character)).join(""));
  if (found === null) {
    if (characters.some(([character, inside]) => character === "*" && !inside)) {
      const pattern = glob(characters);
      return (run) => [run.name, ...run.name.split("/"), run.group].some((name) => pattern.test(name));
    }
    const part = plain(characters).toLowerCase();
    return (run) => [run.name, run.group, run.state, run.kind, run.env].some((text) => text.toLowerCase().includes(part));
  }
  const [, key, sign] = found;
  const wanted = characters.slice(key.length + sign.length);
  check(key, runs, common);
  if (!wanted.length && !isQuoted) throw new Error(`${raw}: a value is missing, write ${key}${sign}VALUE`);
  const fits = comparison(sign, wanted, raw);
  return (run) => fits(valueOf(run, key, common));
}

function check(key, runs, common) {
  const full = key === "seed" ? "run.seed" : key;
  if (OWN.includes(full) || full in common || runs.some((run) => full in run.settings)) return;
  const known = new Set([...OWN, ...Object.keys(common), ...runs.flatMap((run) => Object.keys(run.settings))]);
  const near = [...known].filter((name) => name.split(".").pop() === full || name.includes(full)).slice(0, 3);
  throw new Error(`no run has a setting ${key}${near.length ? `; did you mean ${near.join(" or ")}?` : ""}`);
}

function comparison(sign, wanted, word) {
  if (sign === "=" || sign === "!=") {
    const any = alternatives(wanted).map(equal);
    return (value) => any.some((fits) => fits(value)) === (sign === "=");
  }
  const limit = Number(plain(wanted).replaceAll("_", ""));
  if (Number.isNaN(limit)) throw new Error(`${word}: ${plain(wanted)} is not a number`);
  const order = { ">": (v) => v > limit, "<": (v) => v < limit, ">=": (v) => v >= limit, "<=": (v) => v <= limit }[sign];
  return (value) => typeof value === "number" && order(value);
}

function alternatives(characters) {
  const found = [[]];
  for (const one of characters) {
    if (one[0] === "," && !one[1]) found.push([]);
    else found.at(-1).push(one);
  }
  return found;
}

function equal(characters) {
  const isQuoted = characters.some(([, inside]) => inside);
  const wanted = plain(characters).replaceAll("_", "");
  const asNumber = isQuoted || wanted === "" ? NaN : Number(wanted);
  const pattern = glob(characters);
  return (value) => (typeof value === "number" && !Number.isNaN(asNumber) ? value === asNumber : pattern.test(text(value)));
}

export function text(value) {
  if (value === null || value === undefined) return "null";
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

function glob(characters) {
  const escaped = (character) => character.replace(/[.*+?^${}()|[\]\\/]/g, "\\$&");
  const parts = characters.map(([character, inside]) => (inside ? escaped(character) : { "*": ".*", "?": "." }[character] ?? escaped(character)));
  return new RegExp(`^${parts.join("")}$`, "su");
}
