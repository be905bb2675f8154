package hostports

import (
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// hostConnection is a filter of the conntrack entries of the host, which have zone 0: those in other zones belong to the switch.
type hostConnection func(*netlink.ConntrackFlow) bool

// MatchConntrackFlow implements netlink.CustomConntrackFilter.
func (f hostConnection) MatchConntrackFlow(c *netlink.ConntrackFlow) bool { return c.Zone == 0 && f(c) }

func flush(match hostConnection) error {
	if _, err := netlinksafe.ConntrackDeleteFilters(netlink.ConntrackTable, unix.AF_INET, match); err != nil {
		return fmt.Errorf("flush connections of host ports: %w", err)
	}
	return nil
}

// flushPod deletes the connections of the record's host ports to the pod: a client's further packets would go to the pod's address, which another pod may get.
func flushPod(r record) error { return flush(translatedTo(r)) }

func translatedTo(r record) hostConnection {
	addrs := r.addrs()
	return func(c *netlink.ConntrackFlow) bool {
		return slices.Contains(addrs, toAddr(c.Reverse.SrcIP)) && slices.ContainsFunc(r.Mappings, func(m Mapping) bool {
			return m.ipProtocol() == c.Forward.Protocol && m.HostPort == int(c.Forward.DstPort)
		})
	}
}

// flushNotMapped deletes the UDP connections to the record's host ports that no rule translated. They would prevent that the rules apply to a client that goes
// on sending.
func flushNotMapped(r record, local []netip.Addr) error {
	if !slices.ContainsFunc(r.Mappings, func(m Mapping) bool { return m.Protocol == protocolUDP }) {
		return nil
	}
	return flush(notMapped(r, local))
}

func notMapped(r record, local []netip.Addr) hostConnection {
	return func(c *netlink.ConntrackFlow) bool {
		to := toAddr(c.Forward.DstIP)
		return c.Forward.Protocol == unix.IPPROTO_UDP && to == toAddr(c.Reverse.SrcIP) && c.Forward.DstPort == c.Reverse.SrcPort &&
			(to.IsLoopback() || slices.Contains(local, to)) && slices.ContainsFunc(r.Mappings, func(m Mapping) bool {
			return m.Protocol == protocolUDP && m.HostPort == int(c.Forward.DstPort) && (m.addr() == to || m.addr() == netip.IPv4Unspecified())
		})
	}
}

func toAddr(ip net.IP) netip.Addr {
	addr, _ := netip.AddrFromSlice(ip)
	return addr.Unmap()
}

// localAddrs returns the node's IPv4 addresses.
func localAddrs() ([]netip.Addr, error) {
	all, err := netlinksafe.AddrList(nil, netlink.FAMILY_V4)
	if err != nil {
		return nil, fmt.Errorf("list the node's addresses: %w", err)
	}
	addrs := make([]netip.Addr, 0, len(all))
	for _, a := range all {
		addrs = append(addrs, toAddr(a.IP))
	}
	return addrs, nil
}
