package ovs

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/ovsdn/ovsdn/pkg/ovs/openflow"
)

// Connections selects conntrack entries of one zone. Other fields match any value if they are zero.
type Connections struct {
	Zone     uint16 // not 0, which is the host's zone on the kernel datapath
	Protocol uint8  // IP protocol number
	Original Tuple
	Reply    Tuple
}

// Tuple is one direction of a connection. Ports and ICMP require Connections.Protocol.
type Tuple struct {
	Src, Dst         netip.Addr
	SrcPort, DstPort uint16
	ICMP             ICMP
}

// ICMP distinguishes connections of ICMP. Open vSwitch compares all three fields.
type ICMP struct {
	ID         uint16
	Type, Code uint8
}

// hasPorts reports whether the protocol has ports.
func hasPorts(protocol uint8) bool {
	return protocol == protoTCP || protocol == protoUDP || protocol == protoSCTP
}

func (c Connections) validate() error {
	if c.Zone == 0 {
		return errors.New("zone 0 belongs to the host; its connections must not be flushed")
	}
	if reason := c.crashReason(); reason != "" {
		return fmt.Errorf("%s: %s; flushing them would crash ovs-vswitchd", c, reason)
	}
	for _, t := range []Tuple{c.Original, c.Reply} {
		if err := t.validate(); err != nil {
			return fmt.Errorf("%s: %w", c, err)
		}
		if ports := t.SrcPort != 0 || t.DstPort != 0; ports && !hasPorts(c.Protocol) {
			return fmt.Errorf("%s: protocol %d has no ports", c, c.Protocol)
		}
		if t.ICMP != (ICMP{}) && c.Protocol != protoICMP {
			return fmt.Errorf("%s: protocol %d has no ICMP type", c, c.Protocol)
		}
	}
	return nil
}

// crashReason returns why flushing these connections would crash ovs-vswitchd 3.1.0 with the userspace datapath, or "". OVS parses
// ICMPv6 tuples as ICMP, and aborts if an ICMP type has no reply type (tuple_to_conn_key and reverse_icmp_type in lib/conntrack.c).
func (c Connections) crashReason() string {
	for _, t := range []Tuple{c.Original, c.Reply} {
		switch {
		case c.Protocol == protoICMPv6, c.Protocol == 0 && (t.Src.Is6() || t.Dst.Is6()):
			return "the protocol may be ICMPv6"
		case t.ICMP.Type != 0 && t.ICMP.Type != 8 && (t.ICMP.Type < 13 || t.ICMP.Type > 16): // echo, timestamp, information
			return fmt.Sprintf("ICMP type %d has no reply type", t.ICMP.Type)
		}
	}
	return ""
}

func (t Tuple) validate() error {
	for _, a := range []netip.Addr{t.Src, t.Dst} {
		if a.Is4In6() || a.Zone() != "" {
			return fmt.Errorf("%s is not an IPv4 or IPv6 address", a)
		}
	}
	return nil
}

// String returns the arguments of `ovs-ofctl ct-flush br0`.
func (c Connections) String() string {
	args := c.Args()
	for i := range args[1:] {
		args[i+1] = "'" + args[i+1] + "'"
	}
	return strings.Join(args, " ")
}

// Args returns the zone, the original tuple and the reply tuple; trailing empty tuples are omitted.
func (c Connections) Args() []string {
	zone, original, reply := fmt.Sprintf("zone=%d", c.Zone), c.Original.text(), c.Reply.text()
	if c.Protocol != 0 {
		protocol := fmt.Sprintf("ct_nw_proto=%d", c.Protocol)
		original = strings.TrimSuffix(protocol+","+original, ",")
		if reply != "" {
			reply = protocol + "," + reply
		}
	}
	switch {
	case reply != "":
		return []string{zone, original, reply}
	case original != "":
		return []string{zone, original}
	}
	return []string{zone}
}

func (t Tuple) text() string {
	var parts []string
	for i, a := range []netip.Addr{t.Src, t.Dst} {
		if a.IsValid() {
			field := "ct_nw_"
			if a.Is6() {
				field = "ct_ipv6_"
			}
			parts = append(parts, field+[]string{"src=", "dst="}[i]+a.String())
		}
	}
	for i, p := range []uint16{t.SrcPort, t.DstPort} {
		if p != 0 {
			parts = append(parts, fmt.Sprintf("ct_tp_%s=%d", []string{"src", "dst"}[i], p))
		}
	}
	if t.ICMP != (ICMP{}) {
		parts = append(parts, fmt.Sprintf("icmp_id=%d,icmp_type=%d,icmp_code=%d", t.ICMP.ID, t.ICMP.Type, t.ICMP.Code))
	}
	return strings.Join(parts, ",")
}

// Compile returns the message that flushes the connections.
func (c Connections) Compile() openflow.Message {
	if c == (Connections{Zone: c.Zone}) {
		return &openflow.CTFlushZone{Zone: c.Zone}
	}
	tuple := func(t Tuple) openflow.CTTuple {
		return openflow.CTTuple{Src: t.Src, Dst: t.Dst, SrcPort: t.SrcPort, DstPort: t.DstPort, ICMP: openflow.ICMPTuple(t.ICMP)}
	}
	return &openflow.CTFlush{Zone: c.Zone, Protocol: c.Protocol, Original: tuple(c.Original), Reply: tuple(c.Reply)}
}
