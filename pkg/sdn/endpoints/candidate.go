package endpoints

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"
)

// candidate is an endpoint of a port of a Service.
type candidate struct {
	*Endpoint
	key   candidateKey
	order int // the position in all slices of the Service
	local bool
}

// candidateKey is the address and port of a candidate; its order is that of netip.AddrPort.
type candidateKey uint64

func newCandidateKey(e *Endpoint, port uint16) candidateKey {
	return candidateKey(binary.BigEndian.Uint32(e.addr[:]))<<16 | candidateKey(port)
}

func (c candidate) addrPort() netip.AddrPort {
	return netip.AddrPortFrom(c.Addr(), uint16(c.key)) //nolint:gosec // the low 16 bits are the port
}

// collect returns the endpoints of a port, sorted by address and port. excess is the number of endpoints over the limit, which are left out; among them are
// endpoints of this node only if it has more than the limit.
func collect(port ServicePort, of []*Slice, here place, limit int) (found []candidate, excess int) {
	maximum := 2 * limit // an endpoint that moves is in two slices
	total := 0
	for _, local := range []bool{true, false} {
		order := 0
		each(port, of, func(e *Endpoint, number uint16) {
			if order++; here.isLocal(e) != local {
				return
			}
			if total++; total <= maximum {
				found = append(found, candidate{Endpoint: e, key: newCandidateKey(e, number), order: order, local: local})
			}
		})
	}
	excess = total - len(found)
	found = distinct(found)
	if over := len(found) - limit; over > 0 {
		excess += over
		found = cut(found, limit)
	}
	return found, excess
}

// distinct sorts candidates and returns one of each address and port. An endpoint may be in two slices while it moves between them, and an address may be in
// use again before the previous pod was deleted: the last one that does not terminate is used, or else the first.
func distinct(found []candidate) []candidate {
	slices.SortFunc(found, func(a, b candidate) int { return cmp.Or(cmp.Compare(a.key, b.key), cmp.Compare(a.order, b.order)) })
	out := found[:0]
	for _, c := range found {
		if last := len(out) - 1; last < 0 || out[last].key != c.key {
			out = append(out, c)
		} else if !c.Terminating() {
			out[last] = c
		}
	}
	return out
}

// cut leaves out the last candidates on other nodes, or, if this node has more than the limit, the last ones on this node and all others.
func cut(found []candidate, limit int) []candidate {
	locals := 0
	for _, c := range found {
		if c.local {
			locals++
		}
	}
	locals = min(locals, limit)
	remotes := limit - locals
	return slices.DeleteFunc(found, func(c candidate) bool {
		left := &remotes
		if c.local {
			left = &locals
		}
		*left--
		return *left < 0
	})
}

// each calls a function with the endpoints of a port, in order. A slice's port belongs to the port of the Service with the same name and protocol.
func each(port ServicePort, of []*Slice, f func(e *Endpoint, number uint16)) {
	for _, s := range of {
		for _, p := range s.Ports {
			if p.Name != port.Name || p.Protocol != port.Protocol {
				continue
			}
			for i := range s.Endpoints {
				f(&s.Endpoints[i], p.Number)
			}
		}
	}
}
