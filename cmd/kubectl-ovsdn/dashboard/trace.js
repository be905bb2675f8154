// A trace: its request, and the path of the packet with the flows.

import { request, RequestError } from "./api.js";
import { byId, el, notice } from "./dom.js";

// namespaceOf returns the namespace of a pod or a service, "" of a node or an address.
function namespaceOf(object) {
  const parts = object.split("/");
  return parts.length === 3 ? parts[1] : "";
}

// specOf returns the packet of a form's protocol and port.
export function specOf(form, source, destination) {
  const protocol = form.elements.protocol.value;
  return { source, destination, protocol, ...(protocol === "ICMP" ? {} : { port: Number(form.elements.port.value) }) };
}

export function requestTrace(spec, signal) {
  const namespace = namespaceOf(spec.source) || namespaceOf(spec.destination);
  if (!namespace) throw new RequestError("one end must be pod/NAMESPACE/NAME or service/NAMESPACE/NAME", 400);
  return request(`namespaces/${encodeURIComponent(namespace)}/traces`, { body: spec, signal });
}

const socket = (address = "", port) => (port ? `${address}:${port}` : address);

function resultOf(step, drops) {
  const parts = [
    ...(drops ? ["drops it"] : []),
    ...(step.unexpected ? ["a flow of another program"] : []),
    ...(step.conntrack ? [`connection: ${step.conntrack}`] : []),
    ...(step.names ?? []),
    ...(step.objects ?? []).map((o) => (o.rule ? `${o.object} (${o.rule})` : o.object)),
  ];
  return parts.join(", ");
}

function hopOf(hop) {
  const { packet = {}, steps = [] } = hop;
  const reply = packet.conntrack === "reply" ? "reply " : "";
  const title = `Node ${hop.node}, ${reply}from ${hop.from}, ${packet.protocol ?? ""} ${socket(packet.source, packet.sourcePort)} to ` +
    `${socket(packet.destination, packet.destinationPort)}: ${hop.verdict}: ${hop.reason}`;
  const columns = ["Table", "Name", "Result", "Priority", "Match", "Actions"];
  const rows = steps.map((step, i) => el("tr", {}, el("td", { class: "number" }, String(step.table)), el("td", {}, step.tableName ?? ""),
    el("td", {}, resultOf(step, hop.verdict === "Dropped" && i === steps.length - 1)), el("td", { class: "number" }, String(step.priority)),
    el("td", { class: "code" }, step.match || (step.actions ? "<any>" : "<none>")), el("td", { class: "code" }, step.actions || "<none>")));
  return el("details", hop.verdict === "Dropped" ? { open: "" } : {}, el("summary", {}, title),
    el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, ...columns.map((c) => el("th", { scope: "col" }, c)))), el("tbody", {}, ...rows))));
}

// showTrace shows the answer in a container, and moves the focus there.
export function showTrace(container, { spec, status }) {
  const port = spec.port ? `, ${spec.protocol ?? "TCP"} port ${spec.port}` : `, ${spec.protocol ?? ""}`;
  const title = el("h3", { tabindex: "-1" }, `${spec.source} to ${spec.destination}${port}`);
  const paths = (status.paths ?? []).flatMap((path) => [
    path.endpoint ? el("h4", {}, `Endpoint ${path.endpoint}: ${path.verdict}: ${path.reason}`) : "",
    ...(path.notEvaluated ?? []).map((text) => el("p", { class: "soft" }, `Not evaluated: ${text}`)),
    ...(path.hops ?? []).map(hopOf),
  ]);
  container.replaceChildren(title, el("p", {}, el("strong", { class: status.verdict }, status.verdict), `: ${status.reason}`), ...paths.filter(Boolean));
  if (status.truncated) container.append(el("p", { class: "notice" }, "The service has more endpoints, which were not followed."));
  title.focus();
}

export function startTraceForm() {
  byId("trace-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    const form = event.currentTarget;
    const button = form.querySelector("button");
    button.disabled = true;
    notice("trace-notice", "");
    byId("trace-result").replaceChildren("Tracing …");
    try {
      showTrace(byId("trace-result"), await requestTrace(specOf(form, form.elements.source.value.trim(), form.elements.destination.value.trim())));
    } catch (error) {
      byId("trace-result").replaceChildren();
      notice("trace-notice", error.message);
    }
    button.disabled = false;
  });
}
