// Where everything comes from: the server, or, in a copy without one, the answers that were recorded into the page.

const recorded = document.getElementById("recorded");
const answers = recorded === null ? null : JSON.parse(recorded.textContent);

export const isCopy = answers !== null;
export const notCopied = isCopy ? answers.missing : []; // what could not be read when the copy was made, and why
const missing = (path) => answers.problems[path] ?? "this is a copy without a server, and what you ask for is not in it";
const BATCH = 200; // runs of one question about columns
const NAMES = 16; // columns of one question
const AGAIN = 2000; // ms until a tab that was refused asks again

export async function ask(path) {
  if (isCopy) {
    if (!(path in answers.json)) throw new Error(missing(path));
    return answers.json[path];
  }
  return (await get(path)).json();
}

// Run id -> column name -> numbers, one for each row of its metrics (NaN: none there).
export async function columns(names, ids) {
  const found = new Map();
  if (isCopy) {
    for (const id of ids) found.set(id, recordedColumns(answers.columns[id] ?? {}, names));
    return found;
  }
  for (let first = 0; first < names.length; first += NAMES) {
    for (let k = 0; k < ids.length; k += BATCH) {
      const query = new URLSearchParams(names.slice(first, first + NAMES).map((name) => ["name", name]));
      query.set("runs", ids.slice(k, k + BATCH).join(","));
      unpack(await (await get(`/api/columns?${query}`)).arrayBuffer(), found);
    }
  }
  return found;
}

// Run id -> how far it was at each of its checkpoints that are left.
export async function checkpoints(ids) {
  if (isCopy) return new Map(ids.map((id) => [id, answers.checkpoints[id] ?? []]));
  const found = new Map();
  for (let k = 0; k < ids.length; k += BATCH) {
    const kept = await (await get(`/api/checkpoints?runs=${ids.slice(k, k + BATCH).join(",")}`)).json();
    for (const [id, steps] of Object.entries(kept)) found.set(id, steps);
  }
  return found;
}

// {head, numbers: Float64Array}: an answer that is not about runs.
export async function numbersOf(path) {
  if (isCopy) {
    if (!(path in answers.binary)) throw new Error(missing(path));
    return { head: answers.binary[path].head, numbers: numbers(answers.binary[path].numbers) };
  }
  const buffer = await (await get(path)).arrayBuffer();
  const headBytes = new DataView(buffer).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, headBytes)));
  return { head, numbers: new Float64Array(buffer, 4 + headBytes) };
}

// Call ``tell`` whenever something has changed; ``problem`` says why nothing is told, or "" where all is well. A tab that
// nobody sees lets go of its stream: browsers have six connections to a server, and a seventh tab would wait for ever.
export function follow(tell, problem) {
  if (isCopy) return;
  let events = null;
  const open = () => {
    events?.close();
    events = document.hidden ? null : new EventSource("/api/events");
    if (events !== null) listen(events);
  };
  const listen = (stream) => {
    stream.onmessage = (event) => {
      problem("");
      tell(Number(event.data));
    };
    stream.onerror = () => {
      const refused = stream.readyState === EventSource.CLOSED; // else the browser tries again by itself
      problem(refused ? "too many tabs are open: this one is told of nothing new" : "the server does not answer; what is shown is from before");
      if (refused && stream === events) setTimeout(() => stream === events && open(), AGAIN);
    };
  };
  document.addEventListener("visibilitychange", open);
  open();
}

// The address of a picture.
export function picture(path) {
  return isCopy ? answers.pictures[path] ?? "data:," : path;
}

async function get(path) {
  const answer = await fetch(path);
  if (!answer.ok) throw new Error((await answer.text()).trim() || `the server answered ${answer.status}`);
  return answer;
}

function unpack(buffer, found) {
  const headBytes = new DataView(buffer).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, headBytes)));
  let place = 4 + headBytes;
  for (const run of head.runs) {
    const table = found.get(run.id) ?? {};
    for (const name of head.names) {
      table[name] = new Float64Array(buffer, place, run.rows);
      place += 8 * run.rows;
    }
    found.set(run.id, table);
  }
}

function recordedColumns(kept, names) {
  const rows = Object.values(kept)[0] === undefined ? 0 : numbers(Object.values(kept)[0]).length;
  const empty = new Float64Array(rows).fill(NaN);
  return Object.fromEntries(names.map((name) => [name, name in kept ? numbers(kept[name]) : empty]));
}

function numbers(base64) {
  const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
  return new Float64Array(bytes.buffer);
}
