// The tables of a node, with counters.

import { request } from "./api.js";
import { byId, el, notice, number, select, setText } from "./dom.js";

const maxRows = 300;
let flows = [];
let shown = ""; // the node of flows
let purposes = new Map(); // by table
let reading = new AbortController();

const keyOf = (flow) => `${flow.table} ${flow.priority} ${flow.match}`;
const textOf = (flow) => `${flow.tableName} ${flow.match} ${flow.actions} ${(flow.owners ?? []).join(" ")} ${flow.cookie}`;

export function startFlows() {
  byId("flows-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const hash = `#flows/${encodeURIComponent(byId("flows-form").elements.node.value.trim())}`;
    if (location.hash !== hash) history.pushState(null, "", hash); // which causes no hashchange
    readFlows();
  });
  for (const id of ["flows-table", "flows-filter", "flows-differences"]) byId(id).addEventListener("input", renderFlows);
}

// chooseNode reads the flows of another node. Without a name it shows those that were read last.
export function chooseNode(name) {
  const field = byId("flows-form").elements.node;
  if (!name || name === shown && flows.length) {
    if (name) field.value = name;
    return;
  }
  field.value = name;
  readFlows();
}

async function readFlows() {
  reading.abort();
  reading = new AbortController();
  const { signal } = reading;
  const node = byId("flows-form").elements.node.value.trim();
  if (node !== shown) {
    shown = node;
    flows = [];
    renderTables();
  }
  notice("flows-notice", "");
  setText(byId("flows-count"), "Reading the flows …");
  try {
    if (!purposes.size) purposes = new Map((await request("tables", { signal })).map((t) => [t.number, t.purpose]));
    const answer = await request(`nodeflows/${encodeURIComponent(node)}`, { signal });
    const before = new Map(flows.map((flow) => [keyOf(flow), flow.packets]));
    flows = answer.flows ?? [];
    for (const flow of flows) flow.increase = Math.max(0, flow.packets - (before.get(keyOf(flow)) ?? flow.packets));
    if (answer.truncated) notice("flows-notice", "The node has more flows: some that are installed as desired are left out.");
    renderTables();
  } catch (error) {
    if (signal.aborted) return;
    if (flows.length) renderFlows();
    else setText(byId("flows-count"), "");
    notice("flows-notice", error.message);
  }
}

function renderTables() {
  const chosen = byId("flows-table").value;
  const tables = new Map();
  for (const flow of flows) {
    const t = tables.get(flow.table) ?? { name: flow.tableName, flows: 0, packets: 0 };
    t.flows++;
    t.packets += flow.packets;
    tables.set(flow.table, t);
  }
  byId("flows-table").replaceChildren(el("option", { value: "" }, "all"),
    ...Array.from(tables, ([n, t]) => el("option", { value: String(n) }, `${n} ${t.name}: ${number(t.flows)} flows, ${number(t.packets)} packets`)));
  byId("flows-table").value = tables.has(Number(chosen)) ? chosen : "";
  renderFlows();
}

function renderFlows() {
  const table = byId("flows-table").value, onlyDifferences = byId("flows-differences").checked;
  const wanted = flows.filter((f) => (table === "" || f.table === Number(table)) && (!onlyDifferences || f.state !== "Installed"));
  const { shown: rows, text } = select(wanted, byId("flows-filter").value, textOf, "flows", maxRows);
  const purpose = table !== "" && purposes.has(Number(table)) ? `. Table ${table}: ${purposes.get(Number(table))}` : "";
  setText(byId("flows-count"), shown && `${shown}: ${text}${purpose}`);
  byId("flows-rows").replaceChildren(...rows.map((f) => el("tr", {}, el("td", { title: purposes.get(f.table) ?? "" }, `${f.table} ${f.tableName}`),
    el("td", { class: "number" }, String(f.priority)), el("td", { class: "number" }, number(f.packets) + (f.increase ? ` (+${number(f.increase)})` : "")),
    el("td", { class: "number" }, number(f.bytes)), el("td", { class: f.state }, f.state), el("td", { class: "code" }, f.match || "<any>"),
    el("td", { class: "code" }, f.actions, f.desired ? el("div", {}, `desired: ${f.desired}`) : ""), el("td", {}, (f.owners ?? []).join(", ")))));
}
