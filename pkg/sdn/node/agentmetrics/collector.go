package agentmetrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/ovsdn/ovsdn/pkg/sdn/metrics"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// nodeCollector reads the state of the node from memory.
type nodeCollector struct {
	*Metrics
	tables map[int]string

	ready, pods, addrsFree, addrsTotal, egressIPs                 metrics.Family
	firewallsRefused, firewallFlowsRefused                        metrics.Family
	flowsInstalled, groups, meters, ownersRefused                 metrics.Family
	drift, repairs, conflicts, rejections                         metrics.Family
	tableFlows, tableLookups, tableMatches, dropped               metrics.Family
	peerLoss, peerRTT, hostDropped                                metrics.Family
	denied, deniedReported                                        metrics.Family
	idledHeld, idled                                              metrics.Family
	upcalls, hits, lost, megaflows, masks, sampleFailures         metrics.Family
	ctEntries, ctLimit, zoneEntries, zoneFullest, zoneFullestPart metrics.Family
}

func newNodeCollector(m *Metrics) *nodeCollector {
	gauge, counter := metrics.Gauge, metrics.Counter
	return &nodeCollector{
		Metrics: m, tables: pipeline.TableNames(),

		ready:      gauge("ovsdn_node_ready", "1 if /readyz of the agent succeeds."),
		pods:       gauge("ovsdn_pods", "Sandboxes with a port on the node."),
		addrsFree:  gauge("ovsdn_pod_addresses_free", "IPv4 addresses of the node's subnets that no pod has."),
		addrsTotal: gauge("ovsdn_pod_addresses_capacity", "IPv4 addresses of the node's subnets for pods."),

		egressIPs: gauge("ovsdn_egress_ips", "Egress IPs that namespaces use and this node hosts, by state: placed, or not-placed, which the host can't forward (Event EgressIPNotPlaced).", "state"),

		firewallsRefused: gauge("ovsdn_egress_firewalls_beyond_budget",
			"Namespaces whose packets to hosts outside are dropped on this node, since the egress firewalls exceed its budget of flows (Event EgressFirewallBeyondBudget)."),
		firewallFlowsRefused: gauge("ovsdn_egress_firewall_flows_beyond_budget", "Flows that the egress firewalls of these namespaces would have."),

		flowsInstalled: gauge("ovsdn_flows_installed", "Flows that the agent has installed."),
		groups:         gauge("ovsdn_groups_installed", "Groups that the agent has installed: services with --service-proxy=ovs."),
		meters:         gauge("ovsdn_meters_installed", "Meters that the agent has installed."),
		ownersRefused:  gauge("ovsdn_flow_owners_refused", "Objects whose flows are not installed, since the switch rejects them, or they conflict with those of another object."),

		drift:      counter("ovsdn_flow_drift_total", "Flows, groups and meters that another program deleted (missing), changed (altered) or added (foreign), and the agent repaired.", "kind"),
		repairs:    counter("ovsdn_flow_repairs_total", "Comparisons of all flows that found changes by another program."),
		conflicts:  counter("ovsdn_flow_conflicts_total", "Changes of flows that failed because another object has the same flow with other actions."),
		rejections: counter("ovsdn_flow_rejections_total", "Changes of flows that the switch rejected."),

		tableFlows:   gauge("ovsdn_table_flows", "Flows on the switch, by table.", "table"),
		tableLookups: counter("ovsdn_table_lookup_packets_total", "Packets that the table processed.", "table"),
		tableMatches: counter("ovsdn_table_matched_packets_total", "Packets that matched a flow of the table.", "table"),
		peerLoss:     gauge("ovsdn_worst_peer_loss_ratio", "Part of the last 64 probes that were lost, of the 20 worst paths to other nodes.", "node", "path"),
		peerRTT:      gauge("ovsdn_worst_peer_rtt_seconds", "Average round-trip time of probes, of the 20 worst paths to other nodes.", "node", "path"),
		dropped:      counter("ovsdn_dropped_packets_total", "Packets that static flows, and those of remote nodes and egress firewalls, dropped, by table and reason.", "table", "reason"),

		hostDropped: counter("ovsdn_host_dropped_packets_total", "Packets that the agent's rules in iptables or nftables of the host dropped or rejected, by the comment of the rule.", "rule"),

		denied:         counter("ovsdn_denied_packets_total", "Packets to pods (ingress) and from pods (egress) that policies denied, by direction.", "direction"),
		deniedReported: counter("ovsdn_denied_packets_reported_total", "Denied packets that the switch sent to the agent for its log, by direction.", "direction"),

		idledHeld: gauge("ovsdn_idled_packets_held", "Packets to idled services that the agent holds until the services have endpoints, with --unidle."),
		idled: counter("ovsdn_idled_packets_total", "First packets of clients to idled services, with --unidle, by result: sent, after the service got an endpoint; expired, after 30 s; full, not held, since as "+
			"many as allowed were; dropped, since the service is no longer idled and has no endpoint, none or several services have the destination, the packet is too large, or the switch did not accept it.", "result"),

		hits:      counter("ovsdn_datapath_hit_packets_total", "Packets that matched a megaflow of the datapath. All bridges of its type share a datapath."),
		upcalls:   counter("ovsdn_datapath_upcalls_total", "Packets that the datapath sent to vswitchd, since they matched no megaflow."),
		lost:      counter("ovsdn_datapath_lost_packets_total", "Upcalls that were lost on the way from the datapath to vswitchd, in packets."),
		megaflows: gauge("ovsdn_datapath_megaflows", "Megaflows of the datapath."),
		masks:     gauge("ovsdn_datapath_masks", "Masks of the megaflows. 0 for the userspace datapath, which does not report them."),

		sampleFailures: counter("ovsdn_switch_sample_failures_total", "Failures to read statistics of the switch, or counters of the agent's rules in iptables or nftables. Until they can be read again, the metrics of that part are absent, and drops do not increase."),

		ctEntries:       gauge("ovsdn_conntrack_entries", "Entries of the conntrack table, which the host shares with the kernel datapath."),
		ctLimit:         gauge("ovsdn_conntrack_entries_limit", "Maximum number of entries of the conntrack table."),
		zoneEntries:     gauge("ovsdn_conntrack_zone_entries", "Entries in the zones of pods, by class of zones: opener (opened by the pod), target (opened to the pod from outside of the node), hairpin (of clients that reach themselves through services), nat (connections through services), nat-outside (connections of all hosts outside through services), masquerade-outside (those of them to endpoints that are no pods of this node), egress-ip (of pods of all nodes, with an egress IP of this node as their source).", "class"),
		zoneFullest:     gauge("ovsdn_conntrack_fullest_zone_entries", "Entries of the zone with the most entries, by class of zones.", "class"),
		zoneFullestPart: gauge("ovsdn_conntrack_fullest_zone_ratio", "Highest ratio of a zone's entries to its limit, by class of zones.", "class"),
	}
}

// Describe implements prometheus.Collector.
func (c *nodeCollector) Describe(to chan<- *prometheus.Desc) {
	metrics.Describe(to, c.ready, c.pods, c.addrsFree, c.addrsTotal, c.egressIPs, c.firewallsRefused, c.firewallFlowsRefused, c.flowsInstalled, c.groups, c.meters, c.ownersRefused,
		c.drift, c.repairs, c.conflicts, c.rejections, c.tableFlows, c.tableLookups, c.tableMatches, c.dropped, c.hostDropped, c.peerLoss, c.peerRTT, c.denied, c.deniedReported, c.idledHeld, c.idled,
		c.sampleFailures, c.upcalls, c.hits, c.lost, c.megaflows, c.masks, c.ctEntries, c.ctLimit, c.zoneEntries, c.zoneFullest, c.zoneFullestPart)
}

// Collect implements prometheus.Collector.
func (c *nodeCollector) Collect(to chan<- prometheus.Metric) {
	metrics.SendBool(to, c.ready, c.Metrics.ready() == nil)
	metrics.Send(to, c.sampleFailures, c.samples.failures.Load())
	n := c.network.Load()
	if n == nil {
		return
	}
	metrics.Send(to, c.pods, n.Pods())
	addrs := n.Addrs()
	metrics.Send(to, c.addrsFree, addrs.Free)
	metrics.Send(to, c.addrsTotal, addrs.Total)

	flows := n.Flows()
	metrics.Send(to, c.flowsInstalled, flows.Flows)
	metrics.Send(to, c.groups, flows.Groups)
	metrics.Send(to, c.meters, flows.Meters)
	metrics.Send(to, c.ownersRefused, flows.Refused)
	metrics.Send(to, c.drift, flows.Drift.Missing, "missing")
	metrics.Send(to, c.drift, flows.Drift.Altered, "altered")
	metrics.Send(to, c.drift, flows.Drift.Foreign, "foreign")
	metrics.Send(to, c.repairs, flows.Repairs)
	metrics.Send(to, c.conflicts, flows.Conflicts)
	metrics.Send(to, c.rejections, flows.Rejections)
	if n.Denied != nil {
		ingress, egress := n.Denied()
		metrics.Send(to, c.deniedReported, ingress, "ingress")
		metrics.Send(to, c.deniedReported, egress, "egress")
	}
	if n.Idled != nil {
		idled := n.Idled()
		metrics.Send(to, c.idledHeld, idled.Held)
		metrics.Send(to, c.idled, idled.Sent, "sent")
		metrics.Send(to, c.idled, idled.Expired, "expired")
		metrics.Send(to, c.idled, idled.Full, "full")
		metrics.Send(to, c.idled, idled.Dropped, "dropped")
	}
	if n.EgressIPs != nil {
		hosted, notPlaced := n.EgressIPs()
		metrics.Send(to, c.egressIPs, hosted-notPlaced, "placed")
		metrics.Send(to, c.egressIPs, notPlaced, "not-placed")
	}
	if n.BeyondBudget != nil {
		namespaces, flows := n.BeyondBudget()
		metrics.Send(to, c.firewallsRefused, namespaces)
		metrics.Send(to, c.firewallFlowsRefused, flows)
	}
	if n.Worst != nil {
		for _, p := range n.Worst(WorstPeers) {
			metrics.Send(to, c.peerLoss, p.Loss, p.Node, string(p.Path))
			metrics.Send(to, c.peerRTT, p.RTT.Seconds(), p.Node, string(p.Path))
		}
	}
	c.collectSample(to, n.Sampler.get())
}

// collectSample sends the statistics of the switch.
func (c *nodeCollector) collectSample(to chan<- prometheus.Metric, s sample) {
	for _, t := range s.tables {
		name, ours := c.tables[int(t.Table)]
		if !ours {
			continue
		}
		metrics.Send(to, c.tableFlows, int(t.Active), name)
		metrics.Send(to, c.tableLookups, t.Lookups, name)
		metrics.Send(to, c.tableMatches, t.Matched, name)
		switch t.Table {
		case pipeline.IngressDeniedTable:
			metrics.Send(to, c.denied, t.Lookups, "ingress")
		case pipeline.EgressDeniedTable:
			metrics.Send(to, c.denied, t.Lookups, "egress")
		}
	}
	for d, packets := range s.drops {
		metrics.Send(to, c.dropped, packets, c.tables[d.table], d.reason)
	}
	for rule, packets := range s.hostDrops {
		metrics.Send(to, c.hostDropped, packets, rule)
	}
	if d := s.datapath; d != nil {
		metrics.Send(to, c.hits, d.Hit)
		metrics.Send(to, c.upcalls, d.Missed)
		metrics.Send(to, c.lost, d.Lost)
		metrics.Send(to, c.megaflows, d.Flows)
		metrics.Send(to, c.masks, d.Masks)
	}
	if ct := s.conntrack; ct != nil {
		metrics.Send(to, c.ctEntries, ct.tracker.Used)
		metrics.Send(to, c.ctLimit, ct.tracker.Size)
		for class, z := range ct.zones {
			metrics.Send(to, c.zoneEntries, z.Total, string(class))
			metrics.Send(to, c.zoneFullest, z.Fullest, string(class))
			metrics.Send(to, c.zoneFullestPart, z.Ratio, string(class))
		}
	}
}
