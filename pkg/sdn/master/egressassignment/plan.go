package egressassignment

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// host is a node with egressCIDRs.
type host struct {
	name     string
	cidrs    []netip.Prefix
	isUsable bool         // reachable, with a valid HostSubnet: it can get IPs
	ips      []netip.Addr // that it hosts now
}

// plan assigns egress IPs to hosts. wanted has the namespace of each IP, and only IPs that may be assigned; placed has the name of the host that had an IP before,
// as far as known: of several hosts that have the IP, it retains it. plan returns the IPs of each host, sorted.
//
// An IP stays on its host while that is usable and has the IP in its CIDRs. An IP of an unusable host stays there if no other host can have it: the controller may be
// the one that is cut off. Each other IP goes to the usable host with the fewest IPs, of these to one that has no IP of the namespace. Then IPs move, as few as
// possible, until no move makes the load of two hosts more equal. The result depends on the arguments only.
func plan(hosts []host, wanted, placed map[netip.Addr]string) map[string][]netip.Addr {
	p := newPlanner(hosts, wanted)
	p.retain(placed)
	p.assign()
	p.balance()
	p.dropExcess()
	result := make(map[string][]netip.Addr, len(hosts))
	for _, l := range p.loads {
		ips := slices.Clone(p.stuck[l.name])
		for a := range l.ips {
			ips = append(ips, a)
		}
		slices.SortFunc(ips, netip.Addr.Compare)
		result[l.name] = ips
	}
	return result
}

func (h *host) fits(a netip.Addr) bool {
	return slices.ContainsFunc(h.cidrs, func(p netip.Prefix) bool { return p.Contains(a) })
}

// planner is the state of one plan.
type planner struct {
	wanted  map[netip.Addr]string
	ips     []netip.Addr // of wanted, sorted
	loads   []*load      // of all hosts, sorted by name
	classes []*class
	at      map[netip.Addr]*load    // of assigned IPs
	fresh   map[netip.Addr]bool     // assigned by this plan: they move without cost
	stuck   map[string][]netip.Addr // IPs that stay on unusable hosts
}

// load has the IPs of a host in the plan.
type load struct {
	host
	ips        map[netip.Addr]bool
	namespaces map[string]int // number of IPs
	closed     bool           // no move from this host, or from a host that can get IPs of it, makes loads more equal
}

// class is the usable hosts with the same CIDRs: most clusters have one, so that an IP is compared with CIDRs once for all hosts.
type class struct {
	cidrs []netip.Prefix
	loads []*load // sorted by name
}

func (c *class) contains(a netip.Addr) bool {
	return slices.ContainsFunc(c.cidrs, func(p netip.Prefix) bool { return p.Contains(a) })
}

func newPlanner(hosts []host, wanted map[netip.Addr]string) *planner {
	p := &planner{wanted: wanted, at: map[netip.Addr]*load{}, fresh: map[netip.Addr]bool{}, stuck: map[string][]netip.Addr{}}
	for a := range wanted {
		p.ips = append(p.ips, a)
	}
	slices.SortFunc(p.ips, netip.Addr.Compare)
	byCIDRs := map[string]*class{}
	for _, h := range slices.SortedFunc(slices.Values(hosts), func(a, b host) int { return cmp.Compare(a.name, b.name) }) {
		l := &load{host: h, ips: map[netip.Addr]bool{}, namespaces: map[string]int{}}
		p.loads = append(p.loads, l)
		if !h.isUsable {
			continue
		}
		cidrs := slices.SortedFunc(slices.Values(h.cidrs), netip.Prefix.Compare)
		key := ""
		for _, c := range cidrs {
			key += c.String() + " "
		}
		if byCIDRs[key] == nil {
			byCIDRs[key] = &class{cidrs: cidrs}
			p.classes = append(p.classes, byCIDRs[key])
		}
		byCIDRs[key].loads = append(byCIDRs[key].loads, l)
	}
	return p
}

func (p *planner) add(l *load, a netip.Addr) {
	l.ips[a] = true
	l.namespaces[p.wanted[a]]++
	p.at[a] = l
}

func (p *planner) remove(l *load, a netip.Addr) {
	delete(l.ips, a)
	l.namespaces[p.wanted[a]]--
	delete(p.at, a)
}

// retain leaves IPs on the usable hosts that have them. Of several hosts, the one that had it before retains the IP, or else the first by name.
func (p *planner) retain(placed map[netip.Addr]string) {
	for _, l := range p.loads {
		for _, a := range l.host.ips {
			_, isWanted := p.wanted[a]
			if !l.isUsable || !isWanted || !l.fits(a) {
				continue
			}
			switch other := p.at[a]; {
			case other == nil:
				p.add(l, a)
			case placed[a] == l.name:
				p.remove(other, a)
				p.add(l, a)
			}
		}
	}
}

// assign assigns each other IP to the best host. Those with the fewest hosts to select from come first.
func (p *planner) assign() {
	type open struct {
		addr       netip.Addr
		candidates []*class
		hosts      int
	}
	var all []open
	unhosted := map[netip.Addr]bool{}
	for _, a := range p.ips {
		if p.at[a] != nil {
			continue
		}
		o := open{addr: a}
		for _, c := range p.classes {
			if c.contains(a) {
				o.candidates, o.hosts = append(o.candidates, c), o.hosts+len(c.loads)
			}
		}
		if o.hosts == 0 {
			unhosted[a] = true
			continue
		}
		all = append(all, o)
	}
	slices.SortStableFunc(all, func(a, b open) int { return cmp.Compare(a.hosts, b.hosts) })
	for _, o := range all {
		p.fresh[o.addr] = true
		p.add(best(o.candidates, p.wanted[o.addr]), o.addr)
	}
	p.strand(unhosted)
}

// strand leaves IPs that no usable host can have on the unusable host that has them.
func (p *planner) strand(ips map[netip.Addr]bool) {
	for _, l := range p.loads {
		for _, a := range l.host.ips {
			if !l.isUsable && ips[a] && l.fits(a) {
				p.stuck[l.name] = append(p.stuck[l.name], a)
				delete(ips, a)
			}
		}
	}
}

// best returns the host with the fewest IPs; of these one without an IP of the namespace; of these the first.
func best(candidates []*class, namespace string) (found *load) {
	for _, c := range candidates {
		for _, l := range c.loads {
			if found == nil || cmp.Or(
				cmp.Compare(len(l.ips), len(found.ips)),
				cmp.Compare(min(l.namespaces[namespace], 1), min(found.namespaces[namespace], 1)),
				cmp.Compare(l.name, found.name),
			) < 0 {
				found = l
			}
		}
	}
	return found
}

// dropExcess removes IPs from hosts with more than they may have: agents ignore the others. IPs that the host had before stay.
func (p *planner) dropExcess() {
	for _, l := range p.loads {
		excess := len(l.ips) - config.MaxNodeEgressIPs
		if excess <= 0 {
			continue
		}
		for _, a := range slices.Backward(p.sortedIPs(l)) {
			if excess > 0 && (p.fresh[a] || !slices.Contains(l.host.ips, a)) {
				p.remove(l, a)
				excess--
			}
		}
	}
}

func (p *planner) sortedIPs(l *load) []netip.Addr {
	ips := make([]netip.Addr, 0, len(l.ips))
	for a := range l.ips {
		ips = append(ips, a)
	}
	slices.SortFunc(ips, netip.Addr.Compare)
	return ips
}
