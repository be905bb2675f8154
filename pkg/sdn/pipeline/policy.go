package pipeline

import (
	"encoding/binary"
	"fmt"
	"math"
	"net/netip"

	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// Policies are evaluated for the pods of this node: egress in table 27, always with the destination after DNAT, and ingress in table 81. A rule is
// a conjunction (ovs-actions(7)): a flow for each of its targets, of its peers and of its ports, which other rules may share, and one for its outcome.
//
// A pod's own flows set the bits of reg4 that the static flows match. A pod without policies has no bit, and no connection of it is committed for
// policies. Replies of allowed connections pass (icmperror.go); all other packets are evaluated by the current policies. Every node that has evaluated a
// connection commits it, in the zone of the local pod that opened it, else in that of the local pod that it was opened to
// (docs/decisions/0001-conntrack.md).

// The bits of reg4. 2 and 5 are not used.
const (
	sourceEvaluated = 1 << 0 // policies select the source
	sourceIsolated  = 1 << 1 // the source is isolated for egress
	targetEvaluated = 1 << 3 // policies select the destination
	targetIsolated  = 1 << 4 // the destination is isolated for ingress
	egressPassed    = 1 << 6 // an egress rule of tier Admin passed the packet to the next tier
	ingressPassed   = 1 << 7 // an ingress rule of tier Admin passed the packet to the next tier
	previousLookup  = 1 << 8 // the connection was looked up in the zones of the previous version
	midstream       = 1 << 9 // the packet opens no connection, so none is committed for it

	sourceNode    = 1 << 10 // the source is a node itself, this one or another
	sourceForeign = 1 << 11 // the packet is from the tunnel, with a source outside of the cluster network

	evaluatingEndpoint = 1 << 12 // the destination is an endpoint of the service that the packet goes to, and no verdict has allowed it (endpoints.go)

	endpointsAllowed = 1 << 13 // the source may reach all outside endpoints of the service at the packet's destination (frontends.go)

	sourceTenant = 1 << 14 // mode multitenant: packets of the source to node ports are evaluated by the outside endpoints (frontends.go)

	hairpin = 1 << 15 // a service sends the packet back to the pod that sent it (hairpin.go)

	egressIPSource = 1 << 16 // the packet leaves with the egress IP in reg11 as its source (egressip.go)

	errorOfPeer = 1 << 17 // an ICMP error that counts as a reply (icmperror.go)

	toNodePort = 1 << 18 // the packet is from a pod to a node port of this node (balancedservice.go)

	fromOutside = 1 << 19 // the packet is from a host outside to a service (outsideservice.go)

	endpointSelected = 1 << 20 // an endpoint of a service was selected, to which the packet is to be translated (balance.go)
)

// The fields of reg4, by the names that load takes.
const (
	regPolicySource       = "NXM_NX_REG4[0..2]"
	regPolicyTarget       = "NXM_NX_REG4[3..5]"
	regEgressPassed       = "NXM_NX_REG4[6]"
	regIngressPassed      = "NXM_NX_REG4[7]"
	regPreviousLookup     = "NXM_NX_REG4[8]"
	regMidstream          = "NXM_NX_REG4[9]"
	regSourceNode         = "NXM_NX_REG4[10]"
	regSourceForeign      = "NXM_NX_REG4[11]"
	regEvaluatingEndpoint = "NXM_NX_REG4[12]"

	regEndpointsAllowed = "NXM_NX_REG4[13]"
	regSourceTenant     = "NXM_NX_REG4[14]"
	regHairpin          = "NXM_NX_REG4[15]"
	regEgressIPSource   = "NXM_NX_REG4[16]"
	regErrorOfPeer      = "NXM_NX_REG4[17]"
	regToNodePort       = "NXM_NX_REG4[18]"
	regFromOutside      = "NXM_NX_REG4[19]"
	regEndpointSelected = "NXM_NX_REG4[20]"
)

// Priorities in the tables of policies. A rule has priority policyBase plus its level, from 1 to MaxPolicyLevel.
const (
	policyStateless = 65001                          // SCTP whose connections conntrack can't distinguish: rules evaluate both directions
	policyRouter    = 65002                          // ICMP errors of routers outside and of nodes, about allowed connections
	policyError     = 65001                          // ICMP errors about allowed connections, until table 84 has compared their source
	policyReply     = 65000                          // replies of allowed connections
	policyPrevious  = 64999                          // looks connections up in the zones of the previous version
	policyOwnNode   = 64000                          // packets of the node itself to its pods, and ICMP errors of routers
	policyBase      = 1000                           // plus the level of a rule
	MaxPolicyLevel  = policyOwnNode - policyBase - 1 // the highest level of a rule

	// PolicyIsolation is the level at which packets of isolated pods are denied.
	PolicyIsolation = 25025
)

// FirstClientPort is the first ephemeral port: Linux' ip_local_port_range begins with it, that of other systems is higher. It is a power of two.
const FirstClientPort = 32768

// PodPolicies is the state of a pod by its policies.
type PodPolicies struct {
	Evaluated       bool // policies select it
	Ingress, Egress bool // it is isolated in the direction: only packets that rules allow pass
	Logged          bool // denied packets are reported to the agent
}

// RulePart is one part (a target, a peer or ports) of the rules of one direction and level.
type RulePart struct {
	Egress bool
	Level  uint16 // 1 to MaxPolicyLevel; the highest decides
	Admin  bool   // the rules are of tier Admin, which action Pass leaves
	Shares []RuleShare
}

// RuleShare is dimension K, counted from 1, of the N dimensions of the rule ID.
type RuleShare struct {
	ID   uint32
	K, N uint8
}

// PolicyAction is a rule's outcome.
type PolicyAction uint8

// The outcomes.
const (
	PolicyAllow PolicyAction = iota
	PolicyDeny
	PolicyPass // leave the tier; later tiers decide
)

// fromPod returns the action that continues with a packet of a pod whose source is valid.
func (n Node) fromPod() ovs.Action { return ovs.GotoTable(n.egressTable()) }

// egressTable returns the first table for a packet of a pod whose source is valid.
func (n Node) egressTable() int {
	if n.evaluates() {
		return tableEgressTrack
	}
	return tableEgressPolicy
}

// toPod returns the action for a packet that its VNIDs allow.
func (n Node) toPod() ovs.Action {
	if n.evaluates() {
		return ovs.GotoTable(tableIngressPolicy)
	}
	return n.send()
}

// bits returns the actions that load the bits of reg4, and reg10, for a pod that is the source of a packet, and for one that is its destination.
func (n Node) bits(p Pod) (asSource, asTarget []ovs.Action) {
	if n.tenants() && (p.Policies.Evaluated || !p.VNID.IsGlobal()) {
		asSource = append(asSource, goovs.Load("0x1", regSourceTenant))
	}
	firewall := n.firewall(p)
	if firewall != 0 {
		asSource = append(asSource, goovs.Load(fmt.Sprintf("%#x", uint32(firewall)), regEgressFirewall))
	}
	egressIP := n.loadEgressIP(p)
	asSource = append(asSource, egressIP...)
	// Connections of pods with an egress firewall or an egress IP are tracked, too: replies to hosts outside pass, with the pod's source, and outside
	// endpoints of services are evaluated by the firewall.
	if !n.evaluates() || !p.Policies.Evaluated && firewall == 0 && egressIP == nil {
		return asSource, nil
	}
	load := func(bound bool, place string) []ovs.Action {
		bits := sourceEvaluated // the target's are the same, in another place
		if bound {
			bits |= sourceIsolated
		}
		return []ovs.Action{goovs.Load(fmt.Sprintf("%#x", bits), place)}
	}
	return append(asSource, load(p.Policies.Egress, regPolicySource)...), load(p.Policies.Ingress, regPolicyTarget)
}

// PolicyTarget compiles a pod of this node as the target of rules.
func (n Node) PolicyTarget(p Pod, parts []RulePart) State {
	var s State
	for _, part := range parts {
		if !part.Egress {
			// table=81,priority=26026,ip,reg2=0x3,actions=conjunction(3735928559,1/2),conjunction(7,3/3)
			part.add(&s, ip(ovs.Reg(2, uint32(p.OFPort)))) //nolint:gosec // a port's number
			continue
		}
		for _, addr := range p.Addrs {
			// table=27,priority=51051,ip,reg4=0/0x40,nw_src=10.128.0.5,actions=conjunction(9,2/2)
			part.add(&s, ip(ovs.IPSource(single(addr))))
		}
	}
	return s
}

// PolicyPeer compiles an address, or a block of addresses, as a peer of rules.
func (n Node) PolicyPeer(peer netip.Prefix, parts []RulePart) State {
	var s State
	for _, part := range parts {
		if part.Egress {
			// table=27,priority=51051,ip,reg4=0/0x40,nw_dst=10.129.0.0/23,actions=conjunction(9,2/2)
			part.add(&s, ip(ovs.IPDestination(peer)))
		} else {
			// table=81,priority=26026,ip,nw_src=10.129.0.0/23,actions=conjunction(3735928559,1/2),conjunction(7,3/3)
			part.add(&s, ip(ovs.IPSource(peer)))
		}
	}
	return s
}

// PolicyTenant compiles all pods of a namespace with its own VNID as sources.
func (n Node) PolicyTenant(vnid config.VNID, parts []RulePart) State {
	var s State
	for _, part := range parts {
		// table=81,priority=26026,ip,reg0=0xabcdef,actions=conjunction(3735928559,1/2),conjunction(7,3/3)
		part.add(&s, ip(ovs.Reg(0, uint32(vnid))))
	}
	return s
}

// PolicyNodes compiles the nodes themselves, this one and all others, as sources.
func (n Node) PolicyNodes(parts []RulePart) State {
	var s State
	for _, part := range parts {
		if !part.Egress {
			// table=81,priority=26026,ip,reg4=0x400/0x400,actions=conjunction(3735928559,1/2),conjunction(7,3/3)
			part.add(&s, ip(fromNode()))
		}
	}
	return s
}

// PolicyNodeBlock compiles nodes as sources whose other address is in the block of IPv4 addresses. The other address is the node's own IP for
// packets from a tun0 address, and its first tun0 address for packets from its own IP. PolicyPeer compiles the packet's source address.
func (n Node) PolicyNodeBlock(block netip.Prefix, parts []RulePart) State {
	addr := block.Masked().Addr().As4()
	other := ovs.RegBits(numberNodeAddress, binary.BigEndian.Uint32(addr[:]), uint32(uint64(math.MaxUint32)<<(32-block.Bits())&math.MaxUint32))
	var s State
	for _, part := range parts {
		if !part.Egress {
			// table=81,priority=26026,ip,reg4=0x400/0x400,reg6=0xac1f000c,actions=conjunction(3735928559,1/2),conjunction(7,3/3)
			part.add(&s, ip(fromNode(), other))
		}
	}
	return s
}

// fromNode matches packets whose source is a node itself.
func fromNode() ovs.Match { return ovs.RegBits(4, sourceNode, sourceNode) }

// PolicyPort compiles the destination ports of a protocol that equal port in the bits of mask; mask 0 is all of them.
func (n Node) PolicyPort(protocol goovs.Protocol, port, mask uint16, parts []RulePart) State {
	m := match{protocol: protocol}
	switch mask {
	case 0:
	case 0xffff:
		m.fields = []ovs.Match{goovs.TransportDestinationPort(port)}
	default:
		m.fields = []ovs.Match{goovs.TransportDestinationMaskedPort(port, mask)}
	}
	var s State
	for _, part := range parts {
		// table=81,priority=26026,tcp,tp_dst=80,actions=conjunction(3735928559,1/2),conjunction(7,3/3)
		// table=27,priority=51051,tcp,reg4=0/0x40,tp_dst=80,actions=conjunction(9,2/2)
		part.add(&s, m)
		if n.Userspace && mask != 0 && part.onlyAllows() {
			// One flow for all ports, which has the conjunctions of all of them.
			// table=81,priority=26026,tcp,nw_frag=later,actions=conjunction(3735928559,1/2),conjunction(7,3/3)
			part.add(&s, match{protocol: protocol, fields: []ovs.Match{goovs.IPFrag(goovs.IPFragFlagLater)}})
		}
	}
	return s
}

// onlyAllows reports whether the part is of network policies. A rule of another tier that denies a port would deny all large packets.
func (p RulePart) onlyAllows() bool { return !p.Admin && p.Level > PolicyIsolation }

// PolicyAnything compiles all packets, for rules without peers and ports.
func (n Node) PolicyAnything(parts []RulePart) State {
	var s State
	for _, part := range parts {
		// table=81,priority=26026,ip,actions=conjunction(3735928559,1/2),conjunction(7,3/3)
		// table=27,priority=51051,ip,reg4=0/0x40,actions=conjunction(9,2/2)
		part.add(&s, ip())
	}
	return s
}

// PolicyOutcome compiles the action for a packet that matches all dimensions of a rule. The part needs no shares.
func (n Node) PolicyOutcome(id uint32, part RulePart, action PolicyAction) State {
	table, allowed, denied, passed := tableIngressPolicy, tableIngressAllowed, tableIngressDenied, regIngressPassed
	if part.Egress {
		table, allowed, denied, passed = tableEgressPolicy, tableEgressAllowed, tableEgressDenied, regEgressPassed
	}
	actions := n.FlowExport.sample(id, ovs.GotoTable(allowed))
	switch {
	case action == PolicyDeny:
		actions = n.FlowExport.sample(id, goovs.Load(fmt.Sprintf("%#x", id), regDenied), ovs.GotoTable(denied))
	case action == PolicyPass && part.Admin:
		actions = []ovs.Action{goovs.Load("0x1", passed), goovs.Resubmit(0, table)}
	}
	var s State
	// table=81,priority=26026,conj_id=0,ip,actions=goto_table:82
	// table=81,priority=26026,conj_id=1,ip,actions=load:0x1->NXM_NX_REG5[],goto_table:83
	// table=81,priority=26026,conj_id=435269352,ip,
	//     actions=sample(probability=163,collector_set_id=4739,obs_domain_id=2887712779,obs_point_id=435269352),goto_table:82
	// table=27,priority=51051,conj_id=10,ip,reg4=0/0x40,actions=goto_table:28
	// table=27,priority=51051,conj_id=11,ip,reg4=0/0x40,actions=load:0xb->NXM_NX_REG5[],goto_table:29
	// table=27,priority=51051,conj_id=12,ip,reg4=0/0x40,actions=load:0x1->NXM_NX_REG4[6],resubmit(,27)
	s.add(table, policyBase+int(part.Level), part.unless(ip(goovs.ConjunctionID(id))), actions...)
	return s
}

// add compiles the conjunctions of a match.
func (p RulePart) add(s *State, m match) {
	table := tableIngressPolicy
	if p.Egress {
		table = tableEgressPolicy
	}
	conjunctions := make([]ovs.Action, len(p.Shares))
	for i, share := range p.Shares {
		conjunctions[i] = goovs.Conjunction(int(share.ID), int(share.K), int(share.N))
	}
	// table=81,priority=26026,ip,reg2=0x3,actions=conjunction(3735928559,1/2),conjunction(7,3/3)
	// table=27,priority=51051,ip,reg4=0/0x40,nw_src=10.128.0.5,actions=conjunction(9,2/2)
	s.add(table, policyBase+int(p.Level), p.unless(m), conjunctions...)
}

// unless excludes packets that a rule of the tier has passed to the next tier.
func (p RulePart) unless(m match) match {
	if !p.Admin {
		return m
	}
	passed := uint32(ingressPassed)
	if p.Egress {
		passed = egressPassed
	}
	m.fields = append([]ovs.Match{ovs.RegBits(4, 0, passed)}, m.fields...)
	return m
}
