// The matrix of pods: a trace from each one to each other.

import { list, pause } from "./api.js";
import { byId, el, notice, number, select, setText } from "./dom.js";
import { requestTrace, showTrace, specOf } from "./trace.js";

const most = 20; // pods on each side
const maxPods = 20_000; // that are read
const attempts = 6;
const symbols = { Delivered: "✓", Dropped: "✕", Unknown: "?", Failed: "!" };
let running = new AbortController();
let showing = new AbortController();

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
  showing.abort();
  running = new AbortController();
  const { signal } = running;
  notice("matrix-notice", "");
  byId("matrix-trace").replaceChildren();
  byId("matrix-table").replaceChildren();
  byId("matrix-stop").disabled = false;
  setText(byId("matrix-count"), "");
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
    if (!signal.aborted) {
      notice("matrix-notice", error.message);
      setText(byId("matrix-progress"), "");
    }
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

// traceCells traces one cell after the other. The API answers two traces of a user at the same time; the second is for a cell that the user selects.
async function traceCells(cells, signal) {
  const sums = { Delivered: 0, Dropped: 0, Unknown: 0, Failed: 0 };
  let done = 0;
  const progress = () => setText(byId("matrix-progress"), `${number(done)} of ${number(cells.length)} traced: ${number(sums.Delivered)} delivered, ` +
    `${number(sums.Dropped)} dropped, ${number(sums.Unknown)} unknown, ${number(sums.Failed)} failed.`);
  progress();
  for (const cell of cells) {
    const verdict = await traceCell(cell, signal);
    done++;
    sums[verdict]++;
    progress();
  }
}

// traceCell retries while the API does not answer, as during a restart of the controllers. It returns the verdict.
async function traceCell(cell, signal) {
  for (let attempt = 1; ; attempt++) {
    try {
      return setVerdict(cell, (await requestTrace(cell.spec, signal)).status);
    } catch (error) {
      signal.throwIfAborted();
      if (!error.isOutage || attempt === attempts) return setVerdict(cell, { verdict: "Failed", reason: error.message });
      await pause(500 * 2 ** attempt, signal);
    }
  }
}

// setVerdict shows a verdict, and returns it.
function setVerdict({ spec, button }, { verdict, reason }) {
  if (!Object.hasOwn(symbols, verdict)) verdict = "Unknown";
  button.disabled = false;
  button.parentElement.className = verdict;
  button.textContent = symbols[verdict];
  button.setAttribute("aria-label", `${spec.source} to ${spec.destination}: ${verdict}`);
  button.title = reason ?? "";
  return verdict;
}

// showCell traces again: a trace has up to 4 MiB, and the matrix retains none.
async function showCell(cell) {
  showing.abort();
  showing = new AbortController();
  const { signal } = showing;
  const container = byId("matrix-trace");
  container.replaceChildren("Tracing …");
  try {
    const trace = await requestTrace(cell.spec, signal);
    setVerdict(cell, trace.status);
    showTrace(container, trace);
  } catch (error) {
    if (!signal.aborted) container.replaceChildren(el("p", { class: "notice" }, `${cell.spec.source} to ${cell.spec.destination}: ${error.message}`));
  }
}
