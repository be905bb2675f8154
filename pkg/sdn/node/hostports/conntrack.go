package hostports

import (
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ovsdn/ovsdn/pkg/sdn/node/hostconntrack"
)

// flushPod deletes the connections of the record's host ports to the pod: a client's further packets would go to the pod's address, which another pod may get.
func flushPod(r record) error { return hostconntrack.Flush(translatedTo(r)) }

func translatedTo(r record) hostconntrack.Filter {
	addrs := r.addrs()
	return func(c *netlink.ConntrackFlow) bool {
		return slices.Contains(addrs, hostconntrack.Addr(c.Reverse.SrcIP)) && slices.ContainsFunc(r.Mappings, func(m Mapping) bool {
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
	return hostconntrack.Flush(notMapped(r, local))
}

func notMapped(r record, local []netip.Addr) hostconntrack.Filter {
	return func(c *netlink.ConntrackFlow) bool {
		to := hostconntrack.Addr(c.Forward.DstIP)
		return c.Forward.Protocol == unix.IPPROTO_UDP && to == hostconntrack.Addr(c.Reverse.SrcIP) && c.Forward.DstPort == c.Reverse.SrcPort &&
			(to.IsLoopback() || slices.Contains(local, to)) && slices.ContainsFunc(r.Mappings, func(m Mapping) bool {
			return m.Protocol == protocolUDP && m.HostPort == int(c.Forward.DstPort) && (m.addr() == to || m.addr() == netip.IPv4Unspecified())
		})
	}
}
