package ovs

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
)

// IP protocol numbers.
const (
	protoICMP   = 1
	protoTCP    = 6
	protoUDP    = 17
	protoICMPv6 = 58
	protoSCTP   = 132
)

// Connection is a conntrack entry. Addresses after NAT appear in Reply only, with source and destination swapped.
type Connection struct {
	Zone     uint16
	Protocol uint8 // IP protocol number
	Original Tuple // in the direction of the first packet
	Reply    Tuple
	Mark     uint32
	Closed   bool // TCP: both ends have closed the connection, and a new one may have the same ports
}

// IsTranslated reports whether the destination of the connection is translated.
func (c Connection) IsTranslated() bool {
	return c.Original.Dst != c.Reply.Src || c.Original.DstPort != c.Reply.SrcPort
}

// Zones is a range of conntrack zones, First and Last included.
type Zones struct{ First, Last uint16 }

// Contains reports whether the range includes the zone.
func (z Zones) Contains(zone uint16) bool { return z.First <= zone && zone <= z.Last }

// Validate refuses zone 0 and zones out of order.
func (z Zones) Validate() error {
	if z.First == 0 || z.Last < z.First {
		return fmt.Errorf("zones %d to %d: want a range from 1 up; zone 0 belongs to the host", z.First, z.Last)
	}
	return nil
}

// Filter returns a filter that matches only this connection, for which Open vSwitch needs a single lookup. It has the original direction
// only, because OVS 3.1 searches the whole table if the reply direction is given too (ct_dpif_flush_tuple in lib/ct-dpif.c).
func (c Connection) Filter() Connections {
	return Connections{Zone: c.Zone, Protocol: c.Protocol, Original: c.Original}
}

// Addrs returns the addresses of both directions, which differ where there is NAT.
func (c Connection) Addrs() []netip.Addr {
	return []netip.Addr{c.Original.Src, c.Original.Dst, c.Reply.Src, c.Reply.Dst}
}

// CanFlush reports whether Open vSwitch can flush this connection alone (Filter) with a single lookup. OVS searches the whole table for
// protocols without ports other than ICMP (ofputil_is_tuple_five_tuple in lib/ofp-ct.c). OVS 3.1 can pass only TCP, UDP and ICMP tuples to
// the kernel (nl_ct_put_tuple_proto in lib/netlink-conntrack.c): for other protocols it reports success and flushes nothing. Flush the
// zone to remove those.
func (c Connection) CanFlush() bool {
	return c.Protocol == protoICMP || c.Protocol != protoSCTP && c.Original.SrcPort != 0 && c.Original.DstPort != 0
}

// ParseConnection parses a line of `ovs-appctl dpctl/dump-conntrack`, such as
//
//	tcp,orig=(src=10.128.0.2,dst=10.129.0.3,sport=40000,dport=80),reply=(src=…),zone=24578,mark=1,protoinfo=(state=ESTABLISHED)
//
// The fields depend on the datapath and the version; unknown ones are ignored. datapathType is that of Bridge. ok is false if the connection is in none of the zones,
// or cannot be flushed safely (see crashReason). Source: ct_dpif_format_entry in OVS's lib/ct-dpif.c.
func ParseConnection(line []byte, datapathType string, zones Zones) (c Connection, ok bool, err error) {
	if _, after, found := bytes.Cut(line, []byte(",zone=")); found {
		number, _, _ := bytes.Cut(after, []byte(","))
		zone, err := strconv.ParseUint(string(number), 10, 16)
		if err != nil {
			return c, false, fmt.Errorf("connection %q: zone: %w", line, err)
		}
		c.Zone = uint16(zone)
	}
	if !zones.Contains(c.Zone) { // the dump omits zone 0
		return c, false, nil
	}
	if err := c.parse(line, datapathType); err != nil {
		return c, false, fmt.Errorf("connection %q: %w", line, err)
	}
	return c, c.Filter().crashReason() == "", nil
}

func (c *Connection) parse(line []byte, datapathType string) error {
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
		case "protoinfo":
			c.Closed = c.Protocol == protoTCP && isClosed(value, datapathType)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	for _, t := range []Tuple{c.Original, c.Reply} {
		if !t.Src.IsValid() || !t.Dst.IsValid() {
			return errors.New("no source or destination address")
		}
		if err := t.validate(); err != nil {
			return err
		}
	}
	return nil
}

// isClosed reports whether a list such as state=TIME_WAIT is of a closed connection. Of the states of both ends OVS prints the later one: in userspace
// FIN_WAIT_2 is that of a connection that both ends closed, or of one that its first end closed and the other did not, and CLOSING has a FIN that is not
// acknowledged. On the kernel's datapath CLOSING is the state after a reset (nl_ct_tcp_state_to_dpif in lib/netlink-conntrack.c).
func isClosed(list []byte, datapathType string) bool {
	name, state, _, err := member(list)
	if err != nil || string(name) != "state" {
		return false
	}
	switch string(state) {
	case "CLOSING":
		return datapathType == DatapathSystem
	case "FIN_WAIT_2":
		return datapathType == DatapathNetdev
	}
	return string(state) == "TIME_WAIT"
}

// parseProtocol parses a name that ct_dpif_format_ipproto prints, or a number.
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

// member cuts the first name=value off a list; parentheses around the value are removed.
func member(list []byte) (name, value, rest []byte, err error) {
	name, after, found := bytes.Cut(list, []byte("="))
	if !found {
		return nil, nil, nil, fmt.Errorf("%q has no value", list)
	}
	if bytes.HasPrefix(after, []byte("(")) {
		end := bytes.IndexByte(after, ')')
		if end < 0 {
			return nil, nil, nil, fmt.Errorf("%s: closing parenthesis is missing", name)
		}
		value, rest = after[1:end], bytes.TrimPrefix(after[end+1:], []byte(","))
		return name, value, rest, nil
	}
	value, rest, _ = bytes.Cut(after, []byte(","))
	return name, value, rest, nil
}

// parse parses a list such as src=10.0.0.1,dst=10.0.0.2,sport=1,dport=2.
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

// parseNumber parses a number into n if the field applies to the protocol.
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
