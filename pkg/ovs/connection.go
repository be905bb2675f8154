package ovs

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
)

// Connection is one that the switch tracks. A packet of the original direction has its addresses after NAT of that packet only in
// Reply, turned round.
type Connection struct {
	Zone     uint16
	Protocol uint8 // of IP
	Original Tuple // of who opened it
	Reply    Tuple
	Mark     uint32
}

// Zones are those from the first to the last, both included.
type Zones struct{ First, Last uint16 }

// Contain says whether the zone is one of them.
func (z Zones) Contain(zone uint16) bool { return z.First <= zone && zone <= z.Last }

func (z Zones) validate() error {
	if z.First == 0 || z.Last < z.First {
		return fmt.Errorf("zones %d to %d: want some above 0, which is the host's, in order", z.First, z.Last)
	}
	return nil
}

// Whole names this connection and no other, in the way that costs the switch a single lookup: by the original direction, since OVS 3.1
// goes through all that it tracks when it is given the reply's too (ct_dpif_flush_tuple in lib/ct-dpif.c).
func (c Connection) Whole() Connections {
	return Connections{Zone: c.Zone, Protocol: c.Protocol, Original: c.Original}
}

// IsFound says whether the switch can be told to forget this connection alone (Whole), and finds it at once. To find one without ports, ICMP
// aside, OVS goes through all that it tracks (ofputil_is_tuple_five_tuple in lib/ofp-ct.c). And OVS 3.1 can name TCP, UDP and ICMP to the kernel
// (nl_ct_put_tuple_proto in lib/netlink-conntrack.c); told to forget another, it reports success and does nothing. The rest goes with its zone only.
func (c Connection) IsFound() bool {
	return c.Protocol == protoICMP || c.Protocol != protoSCTP && c.Original.SrcPort != 0 && c.Original.DstPort != 0
}

// parseConnection reads a line of `ovs-appctl dpctl/dump-conntrack`, such as
//
//	tcp,orig=(src=10.128.0.2,dst=10.129.0.3,sport=40000,dport=80),reply=(src=…),zone=24578,mark=1,protoinfo=(state=ESTABLISHED)
//
// Its members differ with the datapath and the version; unknown ones are passed over. It is not ok when it is in none of the
// zones, or can't be forgotten (deadly). Source: ct_dpif_format_entry in OVS' lib/ct-dpif.c.
func parseConnection(line []byte, zones Zones) (c Connection, ok bool, err error) {
	if _, after, found := bytes.Cut(line, []byte(",zone=")); found {
		number, _, _ := bytes.Cut(after, []byte(","))
		zone, err := strconv.ParseUint(string(number), 10, 16)
		if err != nil {
			return c, false, fmt.Errorf("connection %q: zone: %w", line, err)
		}
		c.Zone = uint16(zone)
	}
	if !zones.Contain(c.Zone) { // zone 0 is not printed
		return c, false, nil
	}
	if err := c.parse(line); err != nil {
		return c, false, fmt.Errorf("connection %q: %w", line, err)
	}
	return c, c.Whole().deadly() == "", nil
}

func (c *Connection) parse(line []byte) error {
	word, rest, _ := bytes.Cut(line, []byte(","))
	var err error
	if c.Protocol, err = parseProtocol(word); err != nil {
		return err
	}
	for len(rest) > 0 {
		var name, value []byte
		if name, value, rest, err = member(rest); err != nil {
			return err
		}
		switch string(name) {
		case "orig":
			err = c.Original.parse(value, c.Protocol)
		case "reply":
			err = c.Reply.parse(value, c.Protocol)
		case "mark":
			var mark uint64
			mark, err = strconv.ParseUint(string(value), 10, 32)
			c.Mark = uint32(mark)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	for _, t := range []Tuple{c.Original, c.Reply} {
		if !t.Src.IsValid() || !t.Dst.IsValid() {
			return errors.New("an address is missing")
		}
		if err := t.validate(); err != nil {
			return err
		}
	}
	return nil
}

// parseProtocol knows the names that ct_dpif_format_ipproto writes; what has none is a number.
func parseProtocol(word []byte) (uint8, error) {
	switch string(word) {
	case "tcp":
		return protoTCP, nil
	case "udp":
		return protoUDP, nil
	case "icmp":
		return protoICMP, nil
	case "icmpv6":
		return protoICMPv6, nil
	case "sctp":
		return protoSCTP, nil
	case "udplite":
		return 136, nil
	case "dccp":
		return 33, nil
	case "igmp":
		return 2, nil
	}
	n, err := strconv.ParseUint(string(word), 10, 8)
	if err != nil {
		return 0, fmt.Errorf("protocol: %w", err)
	}
	return uint8(n), nil
}

// member splits the first name=value off a list; a value in parentheses is a list itself, and comes without them.
func member(list []byte) (name, value, rest []byte, err error) {
	name, after, found := bytes.Cut(list, []byte("="))
	if !found {
		return nil, nil, nil, fmt.Errorf("%q has no value", list)
	}
	if bytes.HasPrefix(after, []byte("(")) {
		end := bytes.IndexByte(after, ')')
		if end < 0 {
			return nil, nil, nil, fmt.Errorf("%s: the list has no end", name)
		}
		value, rest = after[1:end], bytes.TrimPrefix(after[end+1:], []byte(","))
		return name, value, rest, nil
	}
	value, rest, _ = bytes.Cut(after, []byte(","))
	return name, value, rest, nil
}

// parse reads a list such as src=10.0.0.1,dst=10.0.0.2,sport=1,dport=2.
func (t *Tuple) parse(list []byte, protocol uint8) error {
	ports, icmp := hasPorts(protocol), protocol == protoICMP || protocol == protoICMPv6
	for len(list) > 0 {
		name, value, rest, err := member(list)
		if err != nil {
			return err
		}
		list = rest
		switch string(name) {
		case "src":
			t.Src, err = netip.ParseAddr(string(value))
		case "dst":
			t.Dst, err = netip.ParseAddr(string(value))
		case "sport":
			err = parseNumber(&t.SrcPort, value, ports)
		case "dport":
			err = parseNumber(&t.DstPort, value, ports)
		case "id":
			err = parseNumber(&t.ICMP.ID, value, icmp)
		case "type":
			err = parseNumber(&t.ICMP.Type, value, icmp)
		case "code":
			err = parseNumber(&t.ICMP.Code, value, icmp)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// parseNumber sets a number, if that means anything for the protocol.
func parseNumber[N uint8 | uint16](n *N, value []byte, means bool) error {
	if !means {
		return nil
	}
	v, err := strconv.ParseUint(string(value), 10, 16)
	if *n = N(v); err == nil && uint64(*n) != v {
		err = strconv.ErrRange
	}
	return err
}
