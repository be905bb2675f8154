// The tenants as a map: namespaces by VNID, with the number of their pods.

import { list, request, RequestError } from "./api.js";
import { byId, count, el, keyed, notice, number, select, setText } from "./dom.js";

const maxGroups = 100;
const maxNames = 50; // of a group
const countAge = 60_000; // milliseconds
let groups; // undefined until they were read
let shownNames = [];
let isCounting = false;
const counts = new Map(); // of pods, by namespace: a text, and when the round began that read it

const unless403 = (error) => {
  if (error instanceof RequestError && error.code === 403) return error;
  throw error;
};

export async function readTenants() {
  const [namespaces, networks] = await Promise.all([list("namespaces").catch(unless403), list("netnamespaces").catch(unless403)]);
  const isForbidden = [namespaces, networks].filter((answer) => answer instanceof RequestError);
  notice("tenants-notice", isForbidden.length ? `You have no right to list Namespaces or NetNamespaces: ${isForbidden.map((e) => e.message).join("; ")}. ` +
    "“Matrix” and “Trace” need only rights in your namespaces." : "");
  const vnids = new Map((Array.isArray(networks) ? networks : []).map((n) => [n.name, n.vnid]));
  const names = Array.isArray(namespaces) ? namespaces.map((n) => n.name) : Array.from(vnids.keys());
  const byVNID = new Map();
  for (const name of names) {
    const vnid = vnids.get(name) ?? -1;
    if (!byVNID.has(vnid)) byVNID.set(vnid, []);
    byVNID.get(vnid).push(name);
  }
  groups = Array.from(byVNID, ([vnid, all]) => ({ vnid, names: all.sort() })).sort((a, b) => a.vnid - b.vnid);
  render();
  countPods(performance.now() - countAge);
}

function titleOf({ vnid, names }) {
  if (vnid < 0) return "VNID unknown";
  if (vnid === 0) return "VNID 0, global";
  return names.length > 1 ? `VNID ${vnid}, ${number(names.length)} joined` : `VNID ${vnid}`;
}

// renderTenants shows what was read, and counts the pods of namespaces that were not counted yet.
export function renderTenants() {
  render();
  countPods(0);
}

function render() {
  if (!groups) return;
  const filter = byId("tenants-filter").value.trim().toLowerCase();
  const { shown, text } = select(groups, filter, (g) => `${titleOf(g)} ${g.names.join(" ")}`, "VNIDs", maxGroups);
  setText(byId("tenants-count"), text);
  // Of a large group those that match the filter come first.
  const namesOf = (g) => (g.names.length <= maxNames ? g.names : [...g.names.filter((n) => n.includes(filter)), ...g.names.filter((n) => !n.includes(filter))]).slice(0, maxNames);
  keyed(byId("tenants-map"), shown, (g) => String(g.vnid), () => el("section", { class: "tile" }, el("h3"), el("div")), (tile, group) => {
    setText(tile.firstElementChild, titleOf(group));
    const names = namesOf(group);
    keyed(tile.lastElementChild, names, (n) => n, (name) => el("span", {}, el("a", { href: `#matrix/${encodeURIComponent(name)}` }, name), el("span", { class: "soft" })),
      (row, name) => setText(row.lastElementChild, counts.get(name)?.text ?? ""));
    tile.title = names.length < group.names.length ? `the first ${names.length} of ${group.names.length} namespaces` : "";
  });
  shownNames = shown.flatMap(namesOf).slice(0, 2 * maxGroups);
}

// countPods reads the number of pods of the namespaces that are shown, one after the other: of those that were not counted in a round that began at the time since
// or later. Only the poll of tenants counts namespaces again, so that a long round is followed by a pause.
async function countPods(since) {
  const due = () => (byId("view-tenants").hidden ? undefined : shownNames.find((name) => !(counts.get(name)?.round >= since)));
  if (isCounting || due() === undefined) return;
  isCounting = true;
  const round = performance.now();
  for (let name = due(); name !== undefined; name = due()) {
    let text = "";
    try {
      const page = await request(`namespaces/${encodeURIComponent(name)}/pods`, { query: { limit: "1" } });
      text = count(page.items.length + page.remaining, "pod");
    } catch (error) {
      if (error.isOutage) break; // which the poll of tenants reports
    }
    counts.set(name, { text, round });
  }
  isCounting = false;
  render();
}
