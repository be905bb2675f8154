package pipeline

import (
	"net/netip"

	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// maxMulticastNodes bounds the replication flow: an OpenFlow message holds 64 KiB, and a node takes 40 bytes of it
// (set_field of tun_dst 24, output 16; OpenFlow 1.4.1, 7.2.4).
const maxMulticastNodes = 1500

// MulticastNodes compiles the replication of multicast to the given nodes, for VNIDs of which it is not known who has their pods.
// Beyond maxMulticastNodes the rest gets none.
func (n Node) MulticastNodes(vteps []netip.Addr) State {
	var s State
	n.replicate(&s, 100, anything(), vteps)
	return s
}

// Multicast is a VNID that has multicast among its pods.
type Multicast struct {
	VNID    config.VNID
	OFPorts []int // of its pods here

	// The VTEPs of others that have pods of the VNID. AllNodes: it is not known who has, and MulticastNodes' get it.
	Nodes    []netip.Addr
	AllNodes bool
}

// Multicast compiles who of a VNID may send multicast, and who hears it. IGMP goes the same way: to addresses of the multicast range.
func (n Node) Multicast(m Multicast) State {
	var s State
	sender := match{fields: []ovs.Match{ovs.Reg(0, uint32(m.VNID))}}
	s.add(tableMulticastEgress, 100, sender, ovs.GotoTable(tableMulticastNodes))
	if !m.AllNodes {
		n.replicate(&s, 200, sender, m.Nodes)
	}
	var actions []ovs.Action
	for _, port := range m.OFPorts { // never back to the sender's: OVS leaves the port out that a packet came by
		actions = append(actions, goovs.Output(port))
	}
	s.add(tableMulticastPods, 100, sender, actions...)
	return s
}

func (n Node) replicate(s *State, priority int, m match, vteps []netip.Addr) {
	if len(vteps) > maxMulticastNodes {
		vteps = vteps[:maxMulticastNodes]
	}
	actions := []ovs.Action{goovs.Move(regSourceVNID, tunID)}
	for _, vtep := range vteps {
		actions = append(actions, toNode(vtep)...)
	}
	s.add(tableMulticastNodes, priority, m, append(actions, ovs.GotoTable(tableMulticastPods))...)
}
