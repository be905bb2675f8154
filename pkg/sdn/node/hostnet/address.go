package hostnet

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
)

// Selector says which of the host's addresses the node tunnels from. Empty fields do not choose; several that
// are set must agree. With none set it is the address of the default route.
type Selector struct {
	NodeIP     netip.Addr // --node-ip
	Iface      string     // --iface: a name
	IfaceRegex string     // --iface-regex: a Go regular expression, not anchored, that one interface's name matches
}

// Underlay is where the node's tunnels start.
type Underlay struct {
	Name  string
	Index int
	Addr  netip.Addr
	MTU   int // bytes
}

func (u Underlay) String() string {
	return fmt.Sprintf("%s (%s)", u.Name, u.Addr)
}

// Pick returns the host's address and interface that the selector means. Only IPv4 addresses of global scope
// on interfaces that are not the pod network's own are considered. An error lists what could be chosen and
// names the flag to change.
func Pick(s Selector) (Underlay, error) {
	links, err := netlinksafe.LinkList()
	if err != nil {
		return Underlay{}, fmt.Errorf("list the host's interfaces: %w", err)
	}
	candidates, err := candidates(links)
	if err != nil {
		return Underlay{}, err
	}
	if s == (Selector{}) {
		return byDefaultRoute(links, candidates)
	}
	picked, err := s.pick(candidates)
	if err != nil {
		return Underlay{}, err
	}
	if isLoopback(links, picked.Index) {
		// An address on lo is reached by routes (of a host that speaks BGP, say). What limits its packets is the
		// interface that they leave by.
		out, err := byDefaultRoute(links, candidates)
		if err != nil {
			return Underlay{}, fmt.Errorf("find the MTU for %s: %w", picked, err)
		}
		picked.MTU = out.MTU
	}
	return picked, nil
}

// pick narrows the candidates down, one flag after the other.
func (s Selector) pick(candidates []Underlay) (Underlay, error) {
	left := candidates
	narrow := func(flag string, keep func(Underlay) bool) error {
		var kept []Underlay
		for _, c := range left {
			if keep(c) {
				kept = append(kept, c)
			}
		}
		if len(kept) == 0 {
			return fmt.Errorf("%s: no interface of this host fits: change the flag; %s", flag, list(left))
		}
		left = kept
		return nil
	}
	if s.NodeIP.IsValid() {
		want := s.NodeIP.Unmap()
		if err := narrow("--node-ip="+want.String(), func(c Underlay) bool { return c.Addr == want }); err != nil {
			return Underlay{}, err
		}
	}
	if s.Iface != "" {
		if ours(s.Iface) {
			return Underlay{}, fmt.Errorf("--iface=%s: that is the pod network's own interface, tunnels cannot start there: change the flag; %s", s.Iface, list(left))
		}
		if err := narrow("--iface="+s.Iface, func(c Underlay) bool { return c.Name == s.Iface }); err != nil {
			return Underlay{}, err
		}
	}
	if s.IfaceRegex != "" {
		flag := "--iface-regex=" + s.IfaceRegex
		re, err := regexp.Compile(s.IfaceRegex)
		if err != nil {
			return Underlay{}, fmt.Errorf("%s: not a regular expression: %w", flag, err)
		}
		if err := narrow(flag, func(c Underlay) bool { return re.MatchString(c.Name) }); err != nil {
			return Underlay{}, err
		}
		if names := names(left); len(names) > 1 {
			return Underlay{}, fmt.Errorf("%s: matches %d interfaces, must match one: narrow it, or use --iface; it matches %s",
				flag, len(names), strings.Join(names, ", "))
		}
	}
	return left[0], nil
}

// candidates returns the addresses that may be chosen, in the kernel's order.
func candidates(links []netlink.Link) ([]Underlay, error) {
	addrs, err := netlinksafe.AddrList(nil, netlink.FAMILY_V4)
	if err != nil {
		return nil, fmt.Errorf("list the host's addresses: %w", err)
	}
	byLink := map[int][]netip.Addr{}
	for _, a := range addrs {
		if ip, ok := netip.AddrFromSlice(a.IP); ok && a.Scope == int(netlink.SCOPE_UNIVERSE) {
			byLink[a.LinkIndex] = append(byLink[a.LinkIndex], ip.Unmap())
		}
	}
	var all []Underlay
	for _, l := range links {
		link := l.Attrs()
		if ours(link.Name) {
			continue
		}
		for _, ip := range byLink[link.Index] {
			all = append(all, Underlay{Name: link.Name, Index: link.Index, Addr: ip, MTU: link.MTU})
		}
	}
	return all, nil
}

// byDefaultRoute returns where the default route of the lowest metric leaves, with the source address that the
// route prefers, else its interface's first.
func byDefaultRoute(links []netlink.Link, candidates []Underlay) (Underlay, error) {
	routes, err := netlinksafe.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{}, netlink.RT_FILTER_DST)
	if err != nil {
		return Underlay{}, fmt.Errorf("list the host's default routes: %w", err)
	}
	slices.SortStableFunc(routes, func(a, b netlink.Route) int { return cmp.Compare(a.Priority, b.Priority) })
	for _, r := range routes {
		index := r.LinkIndex
		if len(r.MultiPath) > 0 { // one hop is as good as another
			index = r.MultiPath[0].LinkIndex
		}
		i := slices.IndexFunc(links, func(l netlink.Link) bool { return l.Attrs().Index == index })
		if i < 0 || ours(links[i].Attrs().Name) {
			continue
		}
		link := links[i].Attrs()
		if src, ok := netip.AddrFromSlice(r.Src); ok {
			return Underlay{Name: link.Name, Index: index, Addr: src.Unmap(), MTU: link.MTU}, nil
		}
		for _, c := range candidates {
			if c.Index == index {
				return c, nil
			}
		}
		return Underlay{}, fmt.Errorf("the default route's interface %s has no global IPv4 address: give --node-ip or --iface; %s", link.Name, list(candidates))
	}
	return Underlay{}, fmt.Errorf("the host has no default route to take the node's address from: give --node-ip or --iface; %s", list(candidates))
}

// ours says whether the interface belongs to the pod network. Host veths need no mention: they have no address.
func ours(name string) bool {
	return name == Tun0Name || name == bridge
}

func isLoopback(links []netlink.Link, index int) bool {
	return slices.ContainsFunc(links, func(l netlink.Link) bool {
		return l.Attrs().Index == index && l.Attrs().Flags&net.FlagLoopback != 0
	})
}

func names(candidates []Underlay) []string {
	var names []string
	for _, c := range candidates {
		names = append(names, c.Name)
	}
	return slices.Compact(names) // addresses of one interface are neighbours
}

func list(candidates []Underlay) string {
	if len(candidates) == 0 {
		return "no interface has a global IPv4 address"
	}
	var all []string
	for _, c := range candidates {
		all = append(all, c.String())
	}
	return "there are " + strings.Join(all, ", ")
}
