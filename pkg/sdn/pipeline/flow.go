package pipeline

import (
	"fmt"
	"net/netip"
	"strconv"

	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// match is the match of a flow: arp, ip and udp return one, from limits it to an input port.
type match struct {
	protocol goovs.Protocol
	inPort   int
	fields   []ovs.Match
}

func anything() match { return match{} }

func arp(fields ...ovs.Match) match {
	return match{protocol: goovs.ProtocolARP, fields: fields}
}

func ip(fields ...ovs.Match) match {
	return match{protocol: goovs.ProtocolIPv4, fields: fields}
}

func icmp(fields ...ovs.Match) match {
	return match{protocol: goovs.ProtocolICMPv4, fields: fields}
}

func udp(fields ...ovs.Match) match {
	return match{protocol: goovs.ProtocolUDPv4, fields: fields}
}

func (m match) from(port int) match {
	m.inPort = port
	return m
}

// add appends a flow to the state. The comment above each call shows a flow that it adds, in the notation of ovs-ofctl and with values of a golden
// file; lines of more than 150 characters continue indented.
func (s *State) add(table, priority int, m match, actions ...ovs.Action) {
	f := s.next()
	*f = ovs.Flow{
		Table:    table,
		Priority: priority,
		Protocol: m.protocol,
		InPort:   m.inPort,
		Matches:  m.fields,
		Actions:  actions,
	}
}

// next appends an empty flow. Nearly all owners have one: the first comes together with its list.
func (s *State) next() *ovs.Flow {
	if s.Flows == nil {
		first := &struct {
			flow ovs.Flow
			list [1]*ovs.Flow
		}{}
		first.list[0], s.Flows = &first.flow, first.list[:]
	} else {
		s.Flows = append(s.Flows, &ovs.Flow{})
	}
	return s.Flows[len(s.Flows)-1]
}

func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

func loadVNID(vnid config.VNID, register string) ovs.Action {
	return goovs.Load(fmt.Sprintf("%#x", uint32(vnid)), register)
}

func loadPort(port int) ovs.Action {
	return goovs.Load(strconv.Itoa(port), regOutput)
}

// toNode returns the actions that send a packet, whose tunnel ID is set, to a node. Actions for more nodes may follow.
func toNode(vtep netip.Addr) []ovs.Action {
	return []ovs.Action{
		goovs.SetField(vtep.String(), "tun_dst"),
		goovs.Output(PortVXLAN),
	}
}
