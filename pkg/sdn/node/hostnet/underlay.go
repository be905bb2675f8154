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

// Selector selects the host's address for tunnels. An address must match all fields that are set. If none is set, the
// address of the default route is selected.
type Selector struct {
	NodeIP     netip.Addr // --node-ip
	Iface      string     // --iface: a name
	IfaceRegex string     // --iface-regex: a Go regular expression, not anchored, that must match one interface name
}

// Underlay is the host's interface and address for tunnels.
type Underlay struct {
	Name  string
	Index int
	Addr  netip.Addr
	MTU   int // bytes
}

func (u Underlay) String() string {
	return fmt.Sprintf("%s (%s)", u.Name, u.Addr)
}

// FindUnderlay returns the host's address and interface that match the selector. It considers only IPv4 addresses of global scope
// on interfaces that do not belong to the pod network. An error lists the candidates and names the flag to change.
func FindUnderlay(s Selector) (Underlay, error) {
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
	found, err := s.find(candidates)
	if err != nil {
		return Underlay{}, err
	}
	if isLoopback(links, found.Index) {
		// Packets from an address on lo, such as that of a host with BGP, leave by another interface, whose MTU applies.
		out, err := byDefaultRoute(links, candidates)
		if err != nil {
			return Underlay{}, fmt.Errorf("find the MTU for %s: %w", found, err)
		}
		found.MTU = out.MTU
	}
	return found, nil
}

// find filters the candidates by each flag.
func (s Selector) find(candidates []Underlay) (Underlay, error) {
	left := candidates
	filter := func(flag string, matches func(Underlay) bool) error {
		var matching []Underlay
		for _, c := range left {
			if matches(c) {
				matching = append(matching, c)
			}
		}
		if len(matching) == 0 {
			return fmt.Errorf("%s: no interface of this host matches; change the flag; %s", flag, list(left))
		}
		left = matching
		return nil
	}
	if s.NodeIP.IsValid() {
		want := s.NodeIP.Unmap()
		if err := filter("--node-ip="+want.String(), func(c Underlay) bool { return c.Addr == want }); err != nil {
			return Underlay{}, err
		}
	}
	if s.Iface != "" {
		if isOwnInterface(s.Iface) {
			return Underlay{}, fmt.Errorf("--iface=%s: the pod network's own interface can't be used for tunnels; change the flag; %s", s.Iface, list(left))
		}
		if err := filter("--iface="+s.Iface, func(c Underlay) bool { return c.Name == s.Iface }); err != nil {
			return Underlay{}, err
		}
	}
	if s.IfaceRegex != "" {
		flag := "--iface-regex=" + s.IfaceRegex
		re, err := regexp.Compile(s.IfaceRegex)
		if err != nil {
			return Underlay{}, fmt.Errorf("%s: invalid regular expression: %w", flag, err)
		}
		if err := filter(flag, func(c Underlay) bool { return re.MatchString(c.Name) }); err != nil {
			return Underlay{}, err
		}
		if names := names(left); len(names) > 1 {
			return Underlay{}, fmt.Errorf("%s: matches %d interfaces, want one: %s; change the expression, or use --iface",
				flag, len(names), strings.Join(names, ", "))
		}
	}
	return left[0], nil
}

// candidates returns the addresses that can be selected, in the kernel's order.
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
		if isOwnInterface(link.Name) {
			continue
		}
		for _, ip := range byLink[link.Index] {
			all = append(all, Underlay{Name: link.Name, Index: link.Index, Addr: ip, MTU: link.MTU})
		}
	}
	return all, nil
}

// byDefaultRoute returns the interface of the default route with the lowest metric, with the route's preferred source address or else the
// interface's first address.
func byDefaultRoute(links []netlink.Link, candidates []Underlay) (Underlay, error) {
	routes, err := netlinksafe.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{}, netlink.RT_FILTER_DST)
	if err != nil {
		return Underlay{}, fmt.Errorf("list the host's default routes: %w", err)
	}
	slices.SortStableFunc(routes, func(a, b netlink.Route) int { return cmp.Compare(a.Priority, b.Priority) })
	for _, r := range routes {
		index := r.LinkIndex
		if len(r.MultiPath) > 0 { // any hop will do
			index = r.MultiPath[0].LinkIndex
		}
		i := slices.IndexFunc(links, func(l netlink.Link) bool { return l.Attrs().Index == index })
		if i < 0 || isOwnInterface(links[i].Attrs().Name) {
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
		return Underlay{}, fmt.Errorf("interface %s of the default route has no global IPv4 address; set --node-ip or --iface; %s", link.Name, list(candidates))
	}
	return Underlay{}, fmt.Errorf("the host has no default route to determine the node's address; set --node-ip or --iface; %s", list(candidates))
}

// isOwnInterface reports whether the interface belongs to the pod network. Host veths are not considered: they have no address.
func isOwnInterface(name string) bool {
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
	return slices.Compact(names) // addresses of one interface are adjacent
}

func list(candidates []Underlay) string {
	if len(candidates) == 0 {
		return "no interface has a global IPv4 address"
	}
	var all []string
	for _, c := range candidates {
		all = append(all, c.String())
	}
	return "candidates are " + strings.Join(all, ", ")
}
