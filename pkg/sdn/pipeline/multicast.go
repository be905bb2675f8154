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

// MulticastNodes compiles the replication of multicast to the given nodes, for VNIDs with Multicast.AllNodes. Nodes beyond the first
// maxMulticastNodes receive no copies.
func (n Node) MulticastNodes(vteps []netip.Addr) State {
	var s State
	n.replicate(&s, 100, anything(), vteps)
	return s
}

// Multicast is a VNID with multicast between its pods.
type Multicast struct {
	VNID    config.VNID
	OFPorts []int // of its pods on this node

	// Nodes are the VTEPs of other nodes with pods of the VNID. AllNodes: these nodes are unknown, and all nodes of MulticastNodes receive copies.
	Nodes    []netip.Addr
	AllNodes bool
}

// Multicast compiles the senders and the receivers of a VNID's multicast. IGMP has destinations in the multicast range, and the same flows.
func (n Node) Multicast(m Multicast) State {
	var s State
	sender := match{fields: []ovs.Match{ovs.Reg(0, uint32(m.VNID))}}
	// table=110,priority=100,reg0=0xabcdef,actions=goto_table:111
	s.add(tableMulticastEgress, 100, sender, ovs.GotoTable(tableMulticastNodes))
	if !m.AllNodes {
		n.replicate(&s, 200, sender, m.Nodes)
	}
	var actions []ovs.Action
	for _, port := range m.OFPorts { // OVS does not output to the packet's input port
		actions = append(actions, goovs.Output(port))
	}
	// table=120,priority=100,reg0=0xabcdef,actions=output:3,output:7
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
	// table=111,priority=100,actions=move:NXM_NX_REG0[]->NXM_NX_TUN_ID[0..31],set_field:172.31.0.12->tun_dst,output:1,set_field:172.31.0.13->tun_dst,
	//     output:1,goto_table:120
	// table=111,priority=200,reg0=0xabcdef,actions=move:NXM_NX_REG0[]->NXM_NX_TUN_ID[0..31],set_field:172.31.0.12->tun_dst,output:1,goto_table:120
	s.add(tableMulticastNodes, priority, m, append(actions, ovs.GotoTable(tableMulticastPods))...)
}
