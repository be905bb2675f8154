package pipeline

import (
	"fmt"
	"strings"

	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/ovs"
)

// FlowExport is the export of flows by IPFIX (docs/decisions/0021-flow-export.md): flows in which a policy allows or denies a packet send samples to the collectors.
// A sample has a literal observation point, by which collectors find the rule. The zero value exports nothing, and changes no flow.
type FlowExport struct {
	Probability uint16 // of a sample, of 65535; 0: no samples
	Domain      uint32 // observationDomainId of the node
}

// CollectorSet is the number of the exporter of the samples in table Flow_Sample_Collector_Set of OVSDB: IPFIX's port.
const CollectorSet = 4739

// The observation points of packets that no rule allows or denies. Those of others are the numbers of their rules, from FirstRulePoint.
const (
	PointIsolation       = 1 // denied by VNIDs
	PointIngressIsolated = 2 // no ingress rule allows it to an isolated pod
	PointEgressIsolated  = 3 // no egress rule allows it from an isolated pod
	PointEgressFirewall  = 4 // denied by an egress firewall

	FirstRulePoint = 16
)

// sample returns the actions, and that of the sample before them.
func (e FlowExport) sample(point uint32, actions ...ovs.Action) []ovs.Action {
	if e.Probability == 0 {
		return actions
	}
	return append([]ovs.Action{ovs.Sample{Probability: e.Probability, CollectorSet: CollectorSet, Domain: e.Domain, Point: point}}, actions...)
}

// drop returns the actions that drop a packet, after a sample.
func (e FlowExport) drop(point uint32) []ovs.Action {
	if e.Probability == 0 {
		return []ovs.Action{goovs.Drop()}
	}
	return e.sample(point)
}

// IsDrop reports whether a flow with these actions, as Open vSwitch prints them, drops packets.
func IsDrop(actions string) bool {
	return actions == "drop" || strings.HasPrefix(actions, "sample(") && strings.IndexByte(actions, ')') == len(actions)-1
}

func explainPoint(point uint64) string {
	switch point {
	case PointIsolation:
		return "sampled as denied by isolation"
	case PointIngressIsolated, PointEgressIsolated:
		return "sampled as denied, since no rule allows it"
	case PointEgressFirewall:
		return "sampled as denied by an egress firewall"
	}
	return fmt.Sprintf("sampled as of rule %d", point)
}
