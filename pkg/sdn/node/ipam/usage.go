package ipam

import (
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
)

// Usage is the use of the IPv4 addresses that can be allocated.
type Usage struct{ Total, Free int }

// Usage returns the use of the node's addresses. It waits neither for files nor for their lock.
func (i *IPAM) Usage() (u Usage) {
	for _, s := range i.sets {
		if s.is4 {
			u.Total += s.size()
		}
	}
	u.Free = u.Total - int(i.used4.Load())
	return u
}

// isIPv4 reports whether the address is an IPv4 address that can be allocated: it is not of a previous subnet.
func (i *IPAM) isIPv4(addr netip.Addr) bool {
	return addr.Is4() && slices.ContainsFunc(i.sets, func(s *rangeSet) bool { return s.contains(addr) })
}

// size returns the number of addresses of an IPv4 set that can be allocated.
func (s *rangeSet) size() (n int) {
	for _, r := range s.ranges {
		first, last := number(r.RangeStart), number(r.RangeEnd)
		n += int(last-first) + 1
		if r.Contains(r.Gateway) {
			n--
		}
	}
	return n
}

func number(ip net.IP) uint32 { return binary.BigEndian.Uint32(ip.To4()) }
