package egressassignment

import (
	"cmp"
	"net/netip"
	"slices"
)

// balance moves IPs until no sequence of moves makes loads more equal. A sequence moves an IP of the first host to the second, one of the second to the third, and
// so on: only the first host loses an IP, only the last gets one more. It is worth while if the last has at least two fewer than the first. Hosts with the same
// CIDRs need one move each time, and end within one.
func (p *planner) balance() {
	for {
		fullest := p.fullest()
		if len(fullest) == 0 {
			return
		}
		p.apply(p.search(fullest))
	}
}

// fullest returns the hosts with the most IPs from which a move may be worth while.
func (p *planner) fullest() (found []*load) {
	lowest, highest := -1, 0
	for _, l := range p.loads {
		if !l.isUsable || l.closed {
			continue
		}
		n := len(l.ips)
		if lowest < 0 || n < lowest {
			lowest = n
		}
		switch {
		case n > highest:
			found, highest = []*load{l}, n
		case n == highest:
			found = append(found, l)
		}
	}
	if highest < lowest+2 {
		return nil
	}
	return found
}

// move is the step of a sequence.
type move struct {
	ips      []netip.Addr // of from that to can get, in the order of movable
	from, to *load
}

// search returns the shortest sequence of moves from one of the fullest hosts, or closes the hosts that IPs of these can reach: all have at least as many IPs as the
// fullest less one, so that no sequence through them is worth while either.
func (p *planner) search(fullest []*load) []move {
	by := map[*load]move{}
	for _, l := range fullest {
		by[l] = move{}
	}
	highest, unreached := len(fullest[0].ips), p.unreached(by)
	for level := fullest; len(level) > 0; {
		var next []*load
		for _, l := range level {
			next = append(next, p.expand(l, by, unreached)...)
		}
		var last *load
		for _, l := range next {
			if len(l.ips) <= highest-2 && (last == nil || cmp.Or(cmp.Compare(len(l.ips), len(last.ips)), cmp.Compare(l.name, last.name)) < 0) {
				last = l
			}
		}
		if last != nil {
			var moves []move
			for l := last; by[l].from != nil; l = by[l].from {
				moves = append(moves, by[l])
			}
			return moves
		}
		level = next
	}
	for l := range by {
		l.closed = true
	}
	return nil
}

// unreached returns the hosts of each class that are not in by and not closed. An IP that one of them can get, all can get.
func (p *planner) unreached(by map[*load]move) map[*class][]*load {
	unreached := map[*class][]*load{}
	for _, c := range p.classes {
		for _, l := range c.loads {
			if _, isReached := by[l]; !isReached && !l.closed {
				unreached[c] = append(unreached[c], l)
			}
		}
	}
	return unreached
}

// expand moves the hosts that can get an IP of this one from unreached to by, and returns them.
func (p *planner) expand(l *load, by map[*load]move, unreached map[*class][]*load) (reached []*load) {
	if len(unreached) == 0 {
		return nil
	}
	ips := p.movable(l)
	for _, c := range p.classes {
		if len(unreached[c]) == 0 {
			continue
		}
		fitting := slices.DeleteFunc(slices.Clone(ips), func(a netip.Addr) bool { return !c.contains(a) })
		if len(fitting) == 0 {
			continue
		}
		for _, to := range unreached[c] {
			by[to] = move{ips: fitting, from: l, to: to}
		}
		reached = append(reached, unreached[c]...)
		delete(unreached, c)
	}
	return reached
}

// movable returns the IPs of a host in the order in which they should move: first those that this plan has assigned, then the highest.
func (p *planner) movable(l *load) []netip.Addr {
	ips := p.sortedIPs(l)
	slices.SortStableFunc(ips, func(a, b netip.Addr) int {
		switch {
		case p.fresh[a] && !p.fresh[b]:
			return -1
		case p.fresh[b] && !p.fresh[a]:
			return 1
		}
		return b.Compare(a)
	})
	return ips
}

// bestIP returns the IP to move: one that this plan has assigned, or else one whose namespace has another IP on the host and none on the next, or else
// the first.
func (p *planner) bestIP(ips []netip.Addr, from, to *load) netip.Addr {
	if p.fresh[ips[0]] {
		return ips[0]
	}
	for _, a := range ips {
		if namespace := p.wanted[a]; from.namespaces[namespace] > 1 && to.namespaces[namespace] == 0 {
			return a
		}
	}
	return ips[0]
}

// apply executes a sequence, which begins with its last move.
func (p *planner) apply(moves []move) {
	for _, m := range moves {
		a := p.bestIP(m.ips, m.from, m.to)
		p.remove(m.from, a)
		p.add(m.to, a)
		p.fresh[a] = p.fresh[a] && !slices.Contains(m.to.host.ips, a)
	}
}
