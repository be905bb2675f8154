package egressaddress

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ovsdn/ovsdn/pkg/sdn/node/hostnet"
)

// bridgePort is the bridge's local port, which carries no traffic.
const bridgePort = "br0"

// device is an interface of the host.
type device struct {
	name    string
	index   int
	mac     net.HardwareAddr
	up      bool
	running bool // it has a carrier
	arp     bool
	foreign bool // not an interface of the pod network, and not the loopback
	addrs   []netip.Prefix
}

// host is what the kernel has at the start of a reconciliation.
type host struct {
	tun0    int                     // the index; 0: it does not exist
	devices []device                // those with an IPv4 address
	routes  map[netip.Addr]ownRoute // with hostnet.EgressRouteProtocol
	proxies map[proxyKey]proxy      // of all programs
	set     map[netip.Addr]bool     // the entries of the firewall's set
	own     map[netip.Addr]string   // the host's addresses, with the name of the interface
	routers map[netip.Addr]bool     // the next hops of the host's routes
	proxied map[netip.Addr][]int    // the indexes of interfaces with a proxy neighbour of this package
}

type ownRoute struct {
	index, mtu int
	scope      netlink.Scope
}

// readHost lists interfaces, addresses, and the entries of egress IPs.
func readHost(ctx context.Context, tun0 string, set hostnet.EgressSet) (*host, error) {
	h := &host{routes: map[netip.Addr]ownRoute{}, set: map[netip.Addr]bool{}, own: map[netip.Addr]string{}, routers: map[netip.Addr]bool{}, proxied: map[netip.Addr][]int{}}
	if err := h.readDevices(tun0); err != nil {
		return nil, err
	}
	if err := h.readRoutes(); err != nil {
		return nil, err
	}
	var err error
	if h.proxies, err = listProxies(); err != nil {
		return nil, fmt.Errorf("list proxy neighbours: %w", err)
	}
	for k, p := range h.proxies {
		if p.own {
			h.proxied[k.addr] = append(h.proxied[k.addr], k.index)
		}
	}
	entries, err := set.List(ctx)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		h.set[e] = true
	}
	return h, nil
}

func (h *host) readRoutes() error {
	routes, err := netlinksafe.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return fmt.Errorf("list the host's routes: %w", err)
	}
	for _, r := range routes {
		if p := fromIPNet(r.Dst); r.Protocol == hostnet.EgressRouteProtocol && p.IsValid() && p.IsSingleIP() {
			h.routes[p.Addr()] = ownRoute{r.LinkIndex, r.MTU, r.Scope}
		}
		hops := []net.IP{r.Gw}
		for _, hop := range r.MultiPath {
			hops = append(hops, hop.Gw)
		}
		for _, hop := range hops {
			if addr, ok := netip.AddrFromSlice(hop); ok {
				h.routers[addr.Unmap()] = true
			}
		}
	}
	return nil
}

func (h *host) readDevices(tun0 string) error {
	links, err := netlinksafe.LinkList()
	if err != nil {
		return fmt.Errorf("list the host's interfaces: %w", err)
	}
	addrs, err := netlinksafe.AddrList(nil, netlink.FAMILY_V4)
	if err != nil {
		return fmt.Errorf("list the host's addresses: %w", err)
	}
	byLink := map[int][]netip.Prefix{}
	for _, a := range addrs {
		if p := fromIPNet(a.IPNet); p.IsValid() {
			byLink[a.LinkIndex] = append(byLink[a.LinkIndex], p)
		}
	}
	for _, l := range links {
		link := l.Attrs()
		if link.Name == tun0 {
			h.tun0 = link.Index
		}
		if len(byLink[link.Index]) == 0 {
			continue
		}
		h.devices = append(h.devices, device{
			name: link.Name, index: link.Index, mac: link.HardwareAddr, addrs: byLink[link.Index],
			up: link.RawFlags&unix.IFF_UP != 0, running: link.RawFlags&unix.IFF_RUNNING != 0,
			arp:     link.RawFlags&unix.IFF_NOARP == 0 && len(link.HardwareAddr) == macLength,
			foreign: link.Name != tun0 && link.Name != bridgePort && link.RawFlags&unix.IFF_LOOPBACK == 0,
		})
		for _, p := range byLink[link.Index] {
			h.own[p.Addr()] = link.Name
		}
	}
	return nil
}

// uplink returns the interface in whose network the host can place the egress IP, or a *RefusedError.
func (h *host) uplink(addr netip.Addr, o Options) (device, error) {
	refuse := func(format string, args ...any) (device, error) {
		return device{}, &RefusedError{fmt.Sprintf(format, args...)}
	}
	if !addr.Is4() {
		return refuse("%s is not an IPv4 address", addr)
	}
	if name, ok := h.own[addr]; ok {
		return refuse("%s is an address of the node's own interface %s; remove it there, or choose another egress IP", addr, name)
	}
	if h.routers[addr] {
		return refuse("%s is the address of a router of the node, whose packets the node would take from other machines; choose another egress IP", addr)
	}
	for _, n := range o.Reserved {
		if n.Contains(addr) {
			return refuse("%s is in the network %s of pods or services; choose an egress IP of the node's network", addr, n)
		}
	}
	type candidate struct {
		device
		network netip.Prefix
	}
	var all []candidate
	for _, d := range h.devices {
		for _, p := range d.addrs {
			if d.foreign && d.up && p.Contains(addr) {
				all = append(all, candidate{d, p.Masked()})
			}
		}
	}
	if len(all) == 0 {
		return refuse("%s is in no network of the node's interfaces that are up; choose an egress IP of one of these networks, or another node", addr)
	}
	best := slices.MinFunc(all, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(b.network.Bits(), a.network.Bits()), cmp.Compare(rank(a.device, o), rank(b.device, o)), cmp.Compare(a.index, b.index))
	})
	const hasBroadcast = 30 // RFC 3021: a /31 has neither address
	if best.network.Bits() <= hasBroadcast && (addr == best.network.Addr() || addr == broadcast(best.network)) {
		return refuse("%s is the network's or the broadcast address of %s on interface %s; choose another egress IP", addr, best.network, best.name)
	}
	if !best.arp {
		return refuse("%s is in the network of interface %s, which does not use ARP; choose an egress IP of another network", addr, best.name)
	}
	return best.device, nil
}

// lookup returns whether the kernel's route for the address is that of this package. Another program's route to the address alone, and one of another routing table
// than main, is a *RefusedError.
func (h *host) lookup(addr netip.Addr) (own bool, err error) {
	found, err := netlink.RouteGetWithOptions(addr.AsSlice(), &netlink.RouteGetOptions{FIBMatch: true})
	switch {
	case isUnreachable(err):
		return false, &RefusedError{fmt.Sprintf("the host has an unreachable route for %s; delete it, or choose another egress IP", addr)}
	case err != nil:
		return false, fmt.Errorf("look up the route to %s: %w", addr, err)
	case len(found) == 0:
		return false, nil
	}
	r := found[0]
	p := fromIPNet(r.Dst)
	isHostRoute := p.IsValid() && p.IsSingleIP()
	switch {
	case isHostRoute && r.Protocol == hostnet.EgressRouteProtocol:
		return true, nil
	case isHostRoute:
		return false, &RefusedError{fmt.Sprintf("the host has a route to %s of another program (protocol %s, table %d); delete it, or choose another egress IP", addr, r.Protocol, r.Table)}
	case r.Table != unix.RT_TABLE_MAIN:
		return false, &RefusedError{fmt.Sprintf("a routing rule of the host sends packets to %s by table %d; change the rule, or choose another egress IP", addr, r.Table)}
	}
	return false, nil
}

// isUnreachable reports whether the error is that of a lookup which finds no route, or one of type unreachable, prohibit or blackhole.
func isUnreachable(err error) bool {
	return errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.EINVAL)
}

// has reports whether the address has an entry of this package.
func (h *host) has(addr netip.Addr) bool {
	_, hasRoute := h.routes[addr]
	return hasRoute || len(h.proxied[addr]) > 0 || h.set[addr]
}

// leftovers returns the addresses that have an entry of this package.
func (h *host) leftovers() map[netip.Addr]bool {
	all := map[netip.Addr]bool{}
	for addr := range h.routes {
		all[addr] = true
	}
	for addr := range h.proxied {
		all[addr] = true
	}
	for addr := range h.set {
		all[addr] = true
	}
	return all
}

func broadcast(network netip.Prefix) netip.Addr {
	b := network.Addr().As4()
	for i, m := range net.CIDRMask(network.Bits(), 32) {
		b[i] |= ^m
	}
	return netip.AddrFrom4(b)
}

// rank orders interfaces with the same network.
func rank(d device, o Options) int {
	if d.name == o.Uplink {
		return 0
	}
	return 1
}

// fromIPNet returns the invalid Prefix for nil and for non-canonical masks. It retains host bits.
func fromIPNet(n *net.IPNet) netip.Prefix {
	if n == nil {
		return netip.Prefix{}
	}
	addr, ok := netip.AddrFromSlice(n.IP)
	ones, size := n.Mask.Size()
	if !ok || size == 0 {
		return netip.Prefix{}
	}
	return netip.PrefixFrom(addr.Unmap(), ones)
}
