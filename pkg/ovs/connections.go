package ovs

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/ovsdn/ovsdn/pkg/ovs/openflow"
)

// Connections are tracked connections of one zone. What is zero matches any.
type Connections struct {
	Zone     uint16 // never 0, which is the host's on the kernel datapath
	Protocol uint8  // of IP
	Original Tuple
	Reply    Tuple
}

// Tuple is one direction of a connection. Ports need a protocol.
type Tuple struct {
	Src, Dst         netip.Addr
	SrcPort, DstPort uint16
}

func (c Connections) validate() error {
	if c.Zone == 0 {
		return errors.New("connections of zone 0 are the host's")
	}
	for _, t := range []Tuple{c.Original, c.Reply} {
		for _, a := range []netip.Addr{t.Src, t.Dst} {
			if a.Is4In6() || a.Zone() != "" {
				return fmt.Errorf("%s: %s is neither an IPv4 nor an IPv6 address", c, a)
			}
		}
		if ports := t.SrcPort != 0 || t.DstPort != 0; ports && c.Protocol != protoTCP && c.Protocol != protoUDP && c.Protocol != protoSCTP {
			return fmt.Errorf("%s: protocol %d has no ports", c, c.Protocol)
		}
	}
	return nil
}

// String returns the connections as `ovs-ofctl ct-flush br0` takes them.
func (c Connections) String() string {
	args := c.args()
	for i := range args[1:] {
		args[i+1] = "'" + args[i+1] + "'"
	}
	return strings.Join(args, " ")
}

// args are the zone, the original tuple and the reply's, the last ones as far as needed.
func (c Connections) args() []string {
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
	return strings.Join(parts, ",")
}

// compile makes the message that forgets the connections.
func (c Connections) compile() openflow.Message {
	if c == (Connections{Zone: c.Zone}) {
		return &openflow.CTFlushZone{Zone: c.Zone}
	}
	tuple := func(t Tuple) openflow.CTTuple {
		return openflow.CTTuple{Src: t.Src, Dst: t.Dst, SrcPort: t.SrcPort, DstPort: t.DstPort}
	}
	return &openflow.CTFlush{Zone: c.Zone, Protocol: c.Protocol, Original: tuple(c.Original), Reply: tuple(c.Reply)}
}
