// The words of the filter box: env=doom_* learning.gamma>0.98 state=failed, or parts of a name. All must fit.

const WORD = /^([A-Za-z_][\w./-]*?)(!=|>=|<=|=|>|<)(.*)$/;
const OWN = ["name", "experiment", "group", "state", "kind", "env", "host", "commit", "frames", "return", "frames_per_s",
  "share", "faults", "seconds", "rows", "created"];

// A function from runs to whether they fit. Throws where a word means nothing.
export function parse(text, runs, common) {
  const tests = text.trim().split(/\s+/).filter(Boolean).map((word) => test(word, runs, common));
  return (run) => tests.every((fits) => fits(run));
}

// What a run has under a key of its settings, or a column of the table.
export function valueOf(run, key, common) {
  if (OWN.includes(key)) return run[key];
  const full = key === "seed" ? "run.seed" : key;
  return full in run.settings ? run.settings[full] : common[full];
}

function test(word, runs, common) {
  const found = WORD.exec(word);
  if (found === null) {
    const part = word.toLowerCase();
    if (part.includes("*")) {
      const pattern = glob(word);
      return (run) => [run.name, ...run.name.split("/"), run.group].some((name) => pattern.test(name));
    }
    return (run) => [run.name, run.group, run.state, run.kind, run.env].some((text) => text.toLowerCase().includes(part));
  }
  const [, key, sign, wanted] = found;
  check(key, runs, common);
  if (wanted === "") throw new Error(`${word}: a value is missing, write ${key}${sign}VALUE`);
  const fits = comparison(sign, wanted, word);
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
    const any = wanted.split(",").map(equal);
    return (value) => any.some((fits) => fits(value)) === (sign === "=");
  }
  const limit = Number(wanted.replaceAll("_", ""));
  if (Number.isNaN(limit)) throw new Error(`${word}: ${wanted} is not a number`);
  const order = { ">": (v) => v > limit, "<": (v) => v < limit, ">=": (v) => v >= limit, "<=": (v) => v <= limit }[sign];
  return (value) => typeof value === "number" && order(value);
}

function equal(wanted) {
  const as_number = Number(wanted.replaceAll("_", ""));
  const pattern = glob(wanted);
  return (value) =>
    typeof value === "number" && wanted !== "" && !Number.isNaN(as_number)
      ? value === as_number
      : pattern.test(text(value));
}

export function text(value) {
  if (value === null || value === undefined) return "null";
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

function glob(pattern) {
  const escaped = pattern.replace(/[.+^${}()|[\]\\]/g, "\\$&").replaceAll("*", ".*").replaceAll("?", ".");
  return new RegExp(`^${escaped}$`);
}
