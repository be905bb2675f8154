// The page: which view is shown, and what is read again.

import { poll, takeToken } from "./api.js";
import { byId, notice, setText } from "./dom.js";
import { chooseNode, startFlows } from "./flows.js";
import { chooseNamespace, startMatrix } from "./matrix.js";
import { readNodes, renderNodes } from "./nodes.js";
import { readTenants, renderTenants } from "./tenants.js";
import { startTraceForm } from "./trace.js";

const views = ["nodes", "tenants", "matrix", "trace", "flows"];
const failures = new Map(); // by what is read

// report shows in a banner that the API does not answer. A missing right is shown in the view instead.
function report(what, error, delay) {
  if (error && error.code !== 403) failures.set(what, `${error.message}. Retrying in ${Math.round(delay / 1000)} s.`);
  else failures.delete(what);
  const [first] = failures.values();
  setText(byId("banner-text"), first ?? "");
  byId("banner").hidden = !first;
  if (what === "nodes") {
    notice("nodes-notice", error?.code === 403 ? `You have no right to list NodeStatuses: ${error.message}. “Matrix” and “Trace” need only rights in your namespaces.` : "");
    if (error?.code === 403) setText(byId("nodes-summary"), "");
  }
}

function argument() {
  const [, encoded = ""] = location.hash.slice(1).split("/");
  try {
    return decodeURIComponent(encoded);
  } catch {
    return "";
  }
}

function show() {
  takeToken();
  const [wanted] = location.hash.slice(1).split("/");
  const view = views.includes(wanted) ? wanted : "nodes";
  for (const name of views) byId(`view-${name}`).hidden = name !== view;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.getAttribute("href") === `#${view}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (view === "flows") chooseNode(argument());
  if (view === "matrix" && argument()) chooseNamespace(argument());
  if (view === "tenants") renderTenants();
  else report("tenants", null); // they are not read while the view is hidden
  tenants.resume();
}

takeToken();
startMatrix();
startTraceForm();
startFlows();
byId("nodes-filter").addEventListener("input", renderNodes);
byId("tenants-filter").addEventListener("input", renderTenants);
const isTenantsShown = () => !byId("view-tenants").hidden;
const nodes = poll(readNodes, 5000, (error, delay) => report("nodes", error, delay));
const tenants = poll(readTenants, 30_000, (error, delay) => report("tenants", isTenantsShown() ? error : null, delay), isTenantsShown);
const readAgain = () => {
  nodes.now();
  tenants.now();
};
byId("tenants-read").addEventListener("click", tenants.now);
byId("banner-retry").addEventListener("click", readAgain);
addEventListener("hashchange", () => {
  const hadToken = location.hash.startsWith("#token=");
  show();
  if (hadToken) readAgain();
});
show();
