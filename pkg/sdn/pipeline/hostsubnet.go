package pipeline

import (
	"net/netip"

	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/ovs"
)

// Peer is another node: where its tunnel ends and which pods are behind it.
type Peer struct {
	VTEP    netip.Addr
	Subnets []netip.Prefix
}

// Peer compiles a remote node's HostSubnet.
func (n Node) Peer(p Peer) State {
	var s State
	s.add(tableTunnelIngress, 100, match{fields: []ovs.Match{ovs.TunnelSource(p.VTEP)}}, ovs.GotoTable(tableRoute))
	tunnel := append([]ovs.Action{goovs.Move(regSourceVNID, tunID)}, toNode(p.VTEP)...)
	for _, subnet := range p.Subnets {
		s.add(tableARPRemote, 100, arp(ovs.ARPTargetIP(subnet)), tunnel...)
		s.add(tableRemote, 100, ip(ovs.IPDestination(subnet)), tunnel...)
	}
	return s
}

// maxMulticastNodes bounds the replication flow: an OpenFlow message holds 64 KiB, and a node takes 40 bytes of it
// (set_field of tun_dst 24, output 16; OpenFlow 1.4.1, 7.2.4).
const maxMulticastNodes = 1500

// MulticastNodes compiles the replication of multicast to the given nodes. Beyond maxMulticastNodes the rest gets none.
func (n Node) MulticastNodes(vteps []netip.Addr) State {
	var s State
	if len(vteps) > maxMulticastNodes {
		vteps = vteps[:maxMulticastNodes]
	}
	actions := []ovs.Action{goovs.Move(regSourceVNID, tunID)}
	for _, vtep := range vteps {
		actions = append(actions, toNode(vtep)...)
	}
	s.add(tableMulticastNodes, 100, anything(), append(actions, ovs.GotoTable(tableMulticastPods))...)
	return s
}
