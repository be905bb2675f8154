// The nodes as a map, with their health and the paths that lose packets.

import { list } from "./api.js";
import { byId, count, el, keyed, number, select, setText } from "./dom.js";

const maxLines = 100;
const maxNodeLines = 5; // of one node, which may be compromised
let nodes = [];

// stateOf returns the word of `kubectl ovsdn status`, except NotReady for False.
function stateOf({ status }) {
  if (status.noAgent) return "NoAgent";
  if (status.error) return "Unknown";
  return status.ready ? "Ready" : "NotReady";
}

// problemsOf returns what `kubectl ovsdn status` prints below the nodes.
function problemsOf({ status }) {
  if (status.noAgent) return [];
  if (status.error) return [status.error];
  const problems = (status.refusedFlows ?? []).map((text) => `the switch refuses flows: ${text}`);
  const notReady = (status.notReady ?? "").split("\n").filter((line) => line !== status.switchError).join("; ");
  if (!status.ready && (notReady || !status.switchError)) problems.unshift(`not ready: ${notReady || "<none>"}`);
  if (status.switchError) problems.unshift(status.switchError);
  if (status.addresses > 0 && status.freeAddresses === 0) problems.push("no address of the subnet is free: new pods do not start");
  return problems;
}

// lossesOf returns a Map of the names of Nodes to the problems of the paths to them, each with the names of the Nodes that report it. A Node that reports a problem
// several times is one reporter. Paths from and to Nodes whose Open vSwitch does not answer are left out: that is their cause.
function lossesOf(all) {
  const losses = new Map();
  const failed = new Set(all.filter(({ status }) => status.switchError).map(({ name }) => name));
  for (const { name, status } of all) {
    if (failed.has(name)) continue;
    for (const { node, problem } of status.peerProblems ?? []) {
      if (failed.has(node)) continue;
      if (!losses.has(node)) losses.set(node, new Map());
      const reporters = losses.get(node);
      if (!reporters.has(problem)) reporters.set(problem, new Set());
      reporters.get(problem).add(name);
    }
  }
  return new Map(Array.from(losses, ([node, problems]) => [node, Array.from(problems, ([problem, from]) => ({ problem, from: Array.from(from) }))]));
}

export async function readNodes() {
  const before = new Map(nodes.map((n) => [n.name, n.dropped]));
  const all = (await list("nodestatuses")).map(({ metadata, status }) => ({ name: metadata?.name ?? "", status: status ?? {} }));
  const losses = lossesOf(all);
  for (const node of all) {
    node.state = stateOf(node);
    node.problems = problemsOf(node);
    node.losses = losses.get(node.name) ?? [];
    node.lossy = new Set((node.status.peerProblems ?? []).map((p) => p.node)).size;
    node.dropped = (node.status.drops ?? []).reduce((sum, d) => sum + d.packets, 0);
    node.newDrops = Math.max(0, node.dropped - (before.get(node.name) ?? node.dropped));
    node.rank = node.problems.length ? 0 : node.losses.length ? 1 : node.lossy ? 2 : 3;
  }
  nodes = all.sort((a, b) => a.rank - b.rank); // a stable sort: then in the order of the API, by name
  renderNodes();
}

export function renderNodes() {
  const { shown, text } = select(nodes, byId("nodes-filter").value, (n) => `${n.name} ${n.state} ${n.status.hostIP ?? ""} ${n.status.subnet ?? ""}`, "nodes");
  setText(byId("nodes-count"), text);
  const expected = nodes.filter((n) => n.state !== "NoAgent").length;
  setText(byId("nodes-summary"), `${number(nodes.filter((n) => n.state === "Ready").length)} of ${number(expected)} nodes are ready.`);
  keyed(byId("nodes-map"), shown, (n) => n.name, () => el("a", { class: "tile" }), updateTile);
  const lines = nodes.flatMap(linesOf);
  const shownLines = lines.slice(0, maxLines);
  if (lines.length > maxLines) shownLines.push(`and ${number(lines.length - maxLines)} more`);
  keyed(byId("nodes-problems"), shownLines.length ? shownLines : ["none"], (line) => line, (line) => el("li", {}, line), () => {});
}

// linesOf returns the problems of a node and of the paths to it.
function linesOf({ name, problems, losses }) {
  const lossLines = losses.map(({ problem, from }) => {
    const more = from.length > 3 ? ` and ${number(from.length - 3)} more` : "";
    return `${name}: from ${from.slice(0, 3).join(", ")}${more}: ${problem}`;
  });
  const lines = Array.from(new Set([...problems.map((p) => `${name}: ${p}`), ...lossLines]));
  const shown = lines.slice(0, maxNodeLines);
  if (lines.length > maxNodeLines) shown.push(`${name}: and ${number(lines.length - maxNodeLines)} more`);
  return shown;
}

function updateTile(tile, { name, state, status, problems, losses, lossy, newDrops }) {
  const lines = [[state, ""]];
  if (!status.error) {
    lines.push([`${count(status.pods ?? 0, "pod")}, ${number(status.freeAddresses)} free`, "soft"]);
    if (status.drift) lines.push([`drift ${number(status.drift)}`, ""]);
  }
  if (problems.length) lines.push([count(problems.length, "problem"), ""]);
  const reporters = new Set(losses.flatMap((l) => l.from)).size;
  if (reporters) lines.push([`loss from ${count(reporters, "node")}`, "loss"]);
  if (lossy) lines.push([`loss to ${count(lossy, "node")}`, "loss"]);
  if (newDrops) lines.push([`${count(newDrops, "packet")} dropped`, ""]);
  const title = [status.hostIP, status.subnet, status.agentVersion, "show the flows"].filter(Boolean).join(", ");
  const content = JSON.stringify([title, lines]);
  if (tile.dataset.content === content) return;
  tile.dataset.content = content;
  tile.className = `tile ${state}`;
  tile.setAttribute("href", `#flows/${encodeURIComponent(name)}`);
  tile.setAttribute("title", title);
  tile.replaceChildren(el("b", {}, name), ...lines.map(([text, style]) => el("span", { class: style }, text)));
}
