// The matrix of pods: a trace from each one to each other.

import { list, pause } from "./api.js";
import { byId, el, notice, number, select, setText } from "./dom.js";
import { requestTrace, showTrace, specOf } from "./trace.js";

const most = 20; // pods on each side
const maxPods = 20_000; // that are read
const parallel = 2; // traces of one user that the API answers at the same time
const attempts = 6;
const symbols = { Delivered: "✓", Dropped: "✕", Unknown: "?", Failed: "!" };
let running = new AbortController();

export function startMatrix() {
  const form = byId("matrix-form");
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    traceAll(form);
  });
  byId("matrix-stop").addEventListener("click", () => running.abort());
}

export function chooseNamespace(name) {
  byId("matrix-form").elements.from.value = name;
  byId("matrix-form").elements.to.value = "";
}

async function traceAll(form) {
  running.abort();
  running = new AbortController();
  const { signal } = running;
  notice("matrix-notice", "");
  byId("matrix-trace").replaceChildren();
  byId("matrix-table").replaceChildren();
  byId("matrix-stop").disabled = false;
  setText(byId("matrix-progress"), "Reading the pods …");
  try {
    const fields = form.elements;
    const from = fields.from.value.trim(), to = fields.to.value.trim() || from;
    const sources = await podsOf(from, fields.fromFilter.value, signal);
    const destinations = await podsOf(to, fields.toFilter.value, signal);
    setText(byId("matrix-count"), `From: ${sources.text}. To: ${destinations.text}.`);
    const cells = table(sources.shown, destinations.shown, (source, destination) => specOf(form, source, destination));
    await traceCells(cells, signal);
  } catch (error) {
    if (!signal.aborted) notice("matrix-notice", error.message);
  }
  if (running.signal !== signal) return; // another run has started
  byId("matrix-stop").disabled = true;
  if (signal.aborted) setText(byId("matrix-progress"), `Stopped. ${byId("matrix-progress").textContent}`);
}

async function podsOf(namespace, filter, signal) {
  const pods = await list(`namespaces/${encodeURIComponent(namespace)}/pods`, { most: maxPods, signal });
  return select(pods.map((p) => `pod/${namespace}/${p.name}`), filter, (p) => p.split("/")[2], `pods of ${namespace}`, most);
}

// table builds the matrix, and returns its cells.
function table(sources, destinations, spec) {
  const cells = [];
  const header = el("tr", {}, el("th", {}, "from \\ to"), ...destinations.map((d) => el("th", { scope: "col" }, d.slice("pod/".length))));
  const rows = sources.map((source) => el("tr", {}, el("th", { scope: "row" }, source.slice("pod/".length)), ...destinations.map((destination) => {
    if (source === destination) return el("td", {}, "–");
    const cell = { spec: spec(source, destination), button: el("button", { type: "button", disabled: "", click: () => showCell(cell) }, "…") };
    cells.push(cell);
    return el("td", {}, cell.button);
  })));
  byId("matrix-table").replaceChildren(el("thead", {}, header), el("tbody", {}, ...rows));
  return cells;
}

async function traceCells(cells, signal) {
  const sums = { Delivered: 0, Dropped: 0, Unknown: 0, Failed: 0 };
  let done = 0;
  const progress = () => setText(byId("matrix-progress"), `${number(done)} of ${number(cells.length)} traced: ${number(sums.Delivered)} delivered, ` +
    `${number(sums.Dropped)} dropped, ${number(sums.Unknown)} unknown, ${number(sums.Failed)} failed.`);
  progress();
  const queue = cells.values();
  const work = async () => {
    for (const cell of queue) {
      const verdict = await traceCell(cell, signal);
      done++;
      sums[verdict]++;
      progress();
    }
  };
  await Promise.all(Array.from({ length: parallel }, work));
}

// traceCell retries while the API does not answer, as during a restart of the controllers.
async function traceCell(cell, signal) {
  let verdict = "Failed";
  for (let attempt = 1; ; attempt++) {
    try {
      cell.trace = await requestTrace(cell.spec, signal);
      verdict = Object.hasOwn(symbols, cell.trace.status.verdict) ? cell.trace.status.verdict : "Unknown";
      break;
    } catch (error) {
      signal.throwIfAborted();
      cell.failure = error.message;
      if (!error.isOutage || attempt === attempts) break;
      await pause(500 * 2 ** attempt, signal);
    }
  }
  cell.button.disabled = false;
  cell.button.parentElement.className = verdict;
  cell.button.textContent = symbols[verdict];
  cell.button.setAttribute("aria-label", `${cell.spec.source} to ${cell.spec.destination}: ${verdict}`);
  cell.button.title = cell.trace?.status.reason ?? cell.failure;
  return verdict;
}

function showCell(cell) {
  const container = byId("matrix-trace");
  if (cell.trace) showTrace(container, cell.trace);
  else container.replaceChildren(el("p", { class: "notice" }, `${cell.spec.source} to ${cell.spec.destination}: ${cell.failure}`));
}
