package ovs

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
)

// TracePacket is a packet that vswitchd traces through the flows of a bridge, without sending it. It is made of numbers and addresses only.
type TracePacket struct {
	InPort int

	// The tunnel that the packet came from; only if TunnelSource is valid.
	TunnelSource, TunnelDest netip.Addr
	TunnelID                 uint32

	EthSource, EthDest   net.HardwareAddr
	Protocol             uint8      // IANA's number of TCP, UDP, SCTP or ICMP
	Source, Dest         netip.Addr // IPv4
	SourcePort, DestPort uint16     // not with ICMP
	DSCP                 uint8      // at most maxDSCP

	// Hash is not 0. It selects the buckets of select groups: with 0, the trace ends at the first of them.
	Hash uint32
	// Lookup is the result that is assumed for all lookups of the packet's connection.
	Lookup TraceLookup
}

// TraceReport is what vswitchd reports about a packet.
type TraceReport struct {
	Text string
	Err  error // why there is no report
}

// TraceLookup is the result of a lookup of a connection.
type TraceLookup uint8

// The results of lookups.
const (
	LookupNew   TraceLookup = iota // no entry exists; later lookups assume that those before have translated the packet, if they would
	LookupReply                    // of the side that did not open the connection
)

// maxLookups is the number of lookups with the assumed result. No packet of the pipeline has as many.
const maxLookups = 32

// traceTTL is the TTL of traced packets: flows of other programs may decrement it.
const traceTTL = 64

// Flags of TCP.
const (
	tcpSYN = 0x002
	tcpACK = 0x010
)

// Types of ICMP.
const (
	icmpEchoReply = 0
	icmpEcho      = 8
)

// TraceArguments returns the arguments of ofproto/trace that follow the bridge's name.
func (p TracePacket) TraceArguments() ([]string, error) {
	if err := p.validate(); err != nil {
		return nil, fmt.Errorf("packet of a trace: %w", err)
	}
	fields := []string{fmt.Sprintf("in_port=%d,dp_hash=%#x", p.InPort, p.Hash)}
	if p.TunnelSource.IsValid() {
		fields = append(fields, fmt.Sprintf("tun_src=%s,tun_dst=%s,tun_id=%#x", p.TunnelSource, p.TunnelDest, p.TunnelID))
	}
	fields = append(fields, fmt.Sprintf("dl_src=%s,dl_dst=%s", p.EthSource, p.EthDest), p.transport(),
		fmt.Sprintf("nw_src=%s,nw_dst=%s,nw_tos=%d,nw_ttl=%d", p.Source, p.Dest, p.DSCP<<dscpShift, traceTTL))
	arguments := []string{strings.Join(fields, ",")}
	first, later := "trk,new", "trk,new,snat,dnat" // vswitchd translates, and does not set the flags
	if p.Lookup == LookupReply {
		first, later = "trk,est,rpl", "trk,est,rpl"
	}
	return append(append(arguments, "--ct-next", first), slices.Repeat([]string{"--ct-next", later}, maxLookups-1)...), nil
}

func (p TracePacket) validate() error {
	for _, addr := range []netip.Addr{p.Source, p.Dest} {
		if !addr.Is4() {
			return errors.New("the addresses are not IPv4")
		}
	}
	switch {
	case p.InPort < 1 || p.InPort > maxPort:
		return fmt.Errorf("port %d is not in the range 1 to %d", p.InPort, maxPort)
	case p.TunnelSource.IsValid() && (!p.TunnelSource.Is4() || !p.TunnelDest.Is4()):
		return errors.New("the addresses of the tunnel are not IPv4")
	case len(p.EthSource) != macLen || len(p.EthDest) != macLen:
		return errors.New("the MACs are invalid")
	case p.transport() == "":
		return fmt.Errorf("protocol %d is not supported", p.Protocol)
	case p.DSCP > maxDSCP:
		return fmt.Errorf("DSCP %d is more than %d", p.DSCP, maxDSCP)
	case p.Lookup > LookupReply:
		return errors.New("the result of lookups is invalid")
	}
	return nil
}

const (
	macLen    = 6
	maxDSCP   = 63
	dscpShift = 2 // in the TOS byte, above ECN
)

// transport returns the protocol with its fields; "" if it is not supported.
func (p TracePacket) transport() string {
	ports := func(name string) string {
		return fmt.Sprintf("%s,%s_src=%d,%s_dst=%d", name, name, p.SourcePort, name, p.DestPort)
	}
	switch p.Protocol {
	case ProtocolNumberICMP:
		if p.Lookup == LookupReply {
			return fmt.Sprintf("icmp,icmp_type=%d,icmp_code=0", icmpEchoReply)
		}
		return fmt.Sprintf("icmp,icmp_type=%d,icmp_code=0", icmpEcho)
	case ProtocolNumberTCP:
		flags := tcpSYN // flows distinguish packets that open connections
		if p.Lookup != LookupNew {
			flags = tcpACK
		}
		return ports("tcp") + fmt.Sprintf(",tcp_flags=%#x", flags)
	case ProtocolNumberUDP:
		return ports("udp")
	case ProtocolNumberSCTP:
		return ports("sctp")
	}
	return ""
}

// IANA's numbers of protocols.
const (
	ProtocolNumberICMP = 1
	ProtocolNumberTCP  = 6
	ProtocolNumberUDP  = 17
	ProtocolNumberSCTP = 132
)
