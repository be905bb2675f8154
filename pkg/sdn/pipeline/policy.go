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

// Policies are judged for the pods of this node: what they send in table 27, always with the destination that it has after
// DNAT, and what they get in table 81. A rule is a conjunction (ovs-actions(7)): a flow for each of its targets, of its peers and
// of its ports, which other rules may share, and one for its outcome.
//
// A pod's own flows say in reg4 what the static ones do with its packets: a pod without policies has no bit there, and none of its connections
// is kept for them. Replies of allowed connections pass; all else is judged by the policies of now. Every node that has judged a
// connection commits it, in the zone of the local opener, else in that of the local pod that it was opened to
// (docs/decisions/0001-conntrack.md).

// The bits of reg4. 2 and 5 are not in use.
const (
	sourceJudged   = 1 << 0 // rules are about the source
	sourceBound    = 1 << 1 // which may only reach what they allow
	targetJudged   = 1 << 3 // rules are about the destination
	targetBound    = 1 << 4 // which may only be reached as they allow
	egressPassed   = 1 << 6 // a rule of tier Admin passed the packet on to the next tier
	ingressPassed  = 1 << 7
	previousSought = 1 << 8 // the zones of the previous version were looked in
	midstream      = 1 << 9 // it opens no connection, so none begins with it

	sourceNode    = 1 << 10 // the source is a node itself, this one or another
	sourceForeign = 1 << 11 // the packet is from the tunnel, with a source outside of the cluster network

	probing = 1 << 12 // the destination is an endpoint of the service that the packet goes to, and no verdict has allowed it (endpoints.go)

	endpointsAllowed = 1 << 13 // the service at the packet's destination has no outside endpoint that the source may not reach (frontends.go)

	sourceTenant = 1 << 14 // mode multitenant: node ports are evaluated by outside endpoints for the source (frontends.go)
)

// The registers' parts, by the names that load takes.
const (
	regPolicySource   = "NXM_NX_REG4[0..2]"
	regPolicyTarget   = "NXM_NX_REG4[3..5]"
	regEgressPassed   = "NXM_NX_REG4[6]"
	regIngressPassed  = "NXM_NX_REG4[7]"
	regPreviousSought = "NXM_NX_REG4[8]"
	regMidstream      = "NXM_NX_REG4[9]"
	regSourceNode     = "NXM_NX_REG4[10]"
	regSourceForeign  = "NXM_NX_REG4[11]"
	regProbing        = "NXM_NX_REG4[12]"

	regEndpointsAllowed = "NXM_NX_REG4[13]"
	regSourceTenant     = "NXM_NX_REG4[14]"
)

// Priorities in the tables of policies. Levels of rules lie above policyBase, and there is room for MaxPolicyLevel of them.
const (
	policyStateless = 65001
	policyReply     = 65000
	policyPrevious  = 64999
	policyOwnNode   = 64000
	policyBase      = 1000
	MaxPolicyLevel  = policyOwnNode - policyBase - 1

	// PolicyIsolation is the level at which the packets of a pod end that may only talk as rules allow.
	PolicyIsolation = 25025
)

// firstClientPort is the first that clients get from their system: Linux' ip_local_port_range begins with it, that of others higher. It is a power
// of two.
const firstClientPort = 32768

// PodPolicies is what policies make of a pod.
type PodPolicies struct {
	Judged          bool // rules are about it
	Ingress, Egress bool // it may only be reached, or only reach, what they allow
	Logged          bool // the agent is told of packets that it is denied
}

// RulePart is the share of one thing in the rules of one direction and level.
type RulePart struct {
	Egress bool
	Level  uint16 // 1 to MaxPolicyLevel; the highest decides
	Admin  bool   // the tier can be passed
	Shares []RuleShare
}

// RuleShare says that the thing is part K of the N of the rule ID, counted from 1.
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
	PolicyPass // past the rest of the tier
)

// fromPod is the table in which a packet that a pod may send goes on.
func (n Node) fromPod() ovs.Action {
	if n.judges() {
		return ovs.GotoTable(tableEgressTrack)
	}
	return ovs.GotoTable(tableEgressPolicy)
}

// toPod is what happens to a packet that the VNIDs let through.
func (n Node) toPod() ovs.Action {
	if n.judges() {
		return ovs.GotoTable(tableIngressPolicy)
	}
	return n.send()
}

// bits loads what policies and services make of the pod, as the source of a packet and as its destination.
func (n Node) bits(p Pod) (asSource, asTarget []ovs.Action) {
	if n.tenants() && (p.Policies.Judged || !p.VNID.IsGlobal()) {
		asSource = append(asSource, goovs.Load("0x1", regSourceTenant))
	}
	if !n.judges() || !p.Policies.Judged {
		return asSource, nil
	}
	load := func(bound bool, place string) []ovs.Action {
		bits := sourceJudged // the target's are the same, in another place
		if bound {
			bits |= sourceBound
		}
		return []ovs.Action{goovs.Load(fmt.Sprintf("%#x", bits), place)}
	}
	return append(asSource, load(p.Policies.Egress, regPolicySource)...), load(p.Policies.Ingress, regPolicyTarget)
}

// judge compiles what policies do that depends on no rule: tables 26 to 29, and 81 to 83.
func (n Node) judge(s *State) {
	if !n.judges() {
		s.add(tableEgressPolicy, 0, anything(), ovs.GotoTable(tableRoute))
		for _, unused := range []int{
			tableEgressTrack, tableEgressAllowed, tableEgressDenied, tableIngressPolicy, tableIngressAllowed, tableIngressDenied,
		} {
			s.add(unused, 0, anything(), goovs.Drop())
		}
		return
	}
	lookup := goovs.ConnectionTracking(fmt.Sprintf("table=%d,zone=NXM_NX_REG3[0..15]", tableEgressPolicy))
	source, target := ovs.RegBits(4, sourceJudged, sourceJudged), ovs.RegBits(4, targetJudged, targetJudged)
	for _, subnet := range n.Subnets {
		s.add(tableEgressTrack, 110, ip(source, ovs.IPDestination(subnet)), append(loadZone(zoneLocal, addressDestination), lookup)...)
		s.add(tableIngressAllowed, 110, ip(target, ovs.IPSource(subnet)), append(loadZone(zoneLocal, addressSource), ovs.GotoTable(tableCommit))...)
	}
	s.add(tableEgressTrack, 100, ip(source), append(loadZone(zoneTarget, addressSource), lookup)...)
	s.add(tableEgressTrack, 0, anything(), ovs.GotoTable(tableEgressPolicy))

	if n.StatelessSCTP {
		stateless := func(table int, judged ovs.Match) {
			s.add(table, policyStateless, match{protocol: ProtocolSCTP, fields: []ovs.Match{judged, goovs.ConnectionTrackingState("+trk")}},
				ovs.CTClear(), goovs.Resubmit(0, table))
		}
		stateless(tableEgressPolicy, source)
		stateless(tableIngressPolicy, target)
	}
	isReply, notKept := goovs.ConnectionTrackingState("+trk", "+rpl"), goovs.Load("0", regZone)
	s.add(tableEgressPolicy, policyReply, ip(source, isReply), notKept, ovs.GotoTable(tableRoute))
	s.add(tableEgressPolicy, policyBase+PolicyIsolation, ip(ovs.RegBits(4, sourceBound, sourceBound)), ovs.GotoTable(tableEgressDenied))
	s.add(tableEgressPolicy, 0, anything(), ovs.GotoTable(tableEgressAllowed))

	// What a server goes on to send when the tracker has forgotten its client, or never knew it, must not count as a connection that the
	// server opens: the client, who may be forbidden by now, would be let in to answer. What a client sends from a port of its own is taken up again.
	answer := match{protocol: goovs.ProtocolTCPv4, fields: []ovs.Match{source, goovs.TransportSourceMaskedPort(0, firstClientPort), goovs.TCPFlags("-syn")}}
	s.add(tableEgressAllowed, 110, answer, append(loadZone(zoneLocal, addressSource), goovs.Load("0x1", regMidstream), ovs.GotoTable(tableRoute))...)
	s.add(tableEgressAllowed, 100, ip(source), append(loadZone(zoneLocal, addressSource), ovs.GotoTable(tableRoute))...)
	s.add(tableEgressAllowed, 0, anything(), ovs.GotoTable(tableRoute))
	s.add(tableEgressDenied, 0, anything(), goovs.Drop())

	s.add(tableIngressPolicy, policyReply, ip(isReply), notKept, ovs.GotoTable(tableCommit))
	s.add(tableIngressPolicy, policyOwnNode, ip(fromNode()).from(PortTun), ovs.GotoTable(tableIngressAllowed)) // kubelet's probes
	// What a router says to who only answers can't be looked up: the router opened nothing.
	s.add(tableIngressPolicy, policyOwnNode, tooLarge(), notKept, ovs.GotoTable(tableCommit))
	s.add(tableIngressPolicy, policyBase+PolicyIsolation, ip(ovs.RegBits(4, targetBound, targetBound)), ovs.GotoTable(tableIngressDenied))
	s.add(tableIngressPolicy, 0, anything(), ovs.GotoTable(tableIngressAllowed))

	// Likewise what a server sends to who is judged here. Where the server is, clients may be too, from any port: only what goes to a client's port is an answer.
	answer = match{protocol: goovs.ProtocolTCPv4, fields: []ovs.Match{
		ovs.RegBits(4, targetJudged, targetJudged|midstream), goovs.TransportSourceMaskedPort(0, firstClientPort),
		goovs.TransportDestinationMaskedPort(firstClientPort, firstClientPort), goovs.TCPFlags("-syn"),
	}}
	s.add(tableIngressAllowed, 120, answer, goovs.Load("0x1", regMidstream), goovs.Resubmit(0, tableIngressAllowed))
	s.add(tableIngressAllowed, 100, ip(target), append(loadZone(zoneTarget, addressDestination), ovs.GotoTable(tableCommit))...)
	s.add(tableIngressAllowed, 0, anything(), ovs.GotoTable(tableCommit))
	s.add(tableIngressDenied, 0, anything(), goovs.Drop())
}

// PolicyTarget compiles a pod of this node as the target of rules.
func (n Node) PolicyTarget(p Pod, parts []RulePart) State {
	var s State
	for _, part := range parts {
		if !part.Egress {
			part.add(&s, ip(ovs.Reg(2, uint32(p.OFPort)))) //nolint:gosec // a port's number
			continue
		}
		for _, addr := range p.Addrs {
			part.add(&s, ip(ovs.IPSource(single(addr))))
		}
	}
	return s
}

// PolicyPeer compiles an address, or a block of them, as the other end.
func (n Node) PolicyPeer(peer netip.Prefix, parts []RulePart) State {
	var s State
	for _, part := range parts {
		if part.Egress {
			part.add(&s, ip(ovs.IPDestination(peer)))
		} else {
			part.add(&s, ip(ovs.IPSource(peer)))
		}
	}
	return s
}

// PolicyTenant compiles all pods of a namespace that has a VNID of its own, as sources.
func (n Node) PolicyTenant(vnid config.VNID, parts []RulePart) State {
	var s State
	for _, part := range parts {
		part.add(&s, ip(ovs.Reg(0, uint32(vnid))))
	}
	return s
}

// PolicyNodes compiles the nodes themselves, this one and all others, as sources.
func (n Node) PolicyNodes(parts []RulePart) State {
	var s State
	for _, part := range parts {
		if !part.Egress {
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
		part.add(&s, m)
		if n.LaterFragments && mask != 0 && part.onlyAllows() {
			// One flow for all ports, in which their conjunctions unite.
			part.add(&s, match{protocol: protocol, fields: []ovs.Match{goovs.IPFrag(goovs.IPFragFlagLater)}})
		}
	}
	return s
}

// onlyAllows says whether the part is of network policies. A rule of another tier that denies a port would deny all large packets.
func (p RulePart) onlyAllows() bool { return !p.Admin && p.Level > PolicyIsolation }

// PolicyAnything compiles all packets, for rules that only their targets limit.
func (n Node) PolicyAnything(parts []RulePart) State {
	var s State
	for _, part := range parts {
		part.add(&s, ip())
	}
	return s
}

// PolicyOutcome compiles what becomes of a packet that belongs to all parts of a rule. The part needs no shares.
func (n Node) PolicyOutcome(id uint32, part RulePart, action PolicyAction) State {
	table, allowed, denied, passed := tableIngressPolicy, tableIngressAllowed, tableIngressDenied, regIngressPassed
	if part.Egress {
		table, allowed, denied, passed = tableEgressPolicy, tableEgressAllowed, tableEgressDenied, regEgressPassed
	}
	actions := []ovs.Action{ovs.GotoTable(allowed)}
	switch {
	case action == PolicyDeny:
		actions = []ovs.Action{goovs.Load(fmt.Sprintf("%#x", id), regDenied), ovs.GotoTable(denied)}
	case action == PolicyPass && part.Admin:
		actions = []ovs.Action{goovs.Load("0x1", passed), goovs.Resubmit(0, table)}
	}
	var s State
	s.add(table, policyBase+int(part.Level), part.unless(ip(goovs.ConjunctionID(id))), actions...)
	return s
}

// add compiles what the match is a part of.
func (p RulePart) add(s *State, m match) {
	table := tableIngressPolicy
	if p.Egress {
		table = tableEgressPolicy
	}
	conjunctions := make([]ovs.Action, len(p.Shares))
	for i, share := range p.Shares {
		conjunctions[i] = goovs.Conjunction(int(share.ID), int(share.K), int(share.N))
	}
	s.add(table, policyBase+int(p.Level), p.unless(m), conjunctions...)
}

// unless leaves out packets that the tier has passed on.
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
