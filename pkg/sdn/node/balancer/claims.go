package balancer

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/sdn/endpoints"
)

// claim is an external address and port, or a node port, which several services may have.
type claim struct {
	protocol goovs.Protocol
	at       netip.AddrPort // without an address for node ports
}

// claims are the services that have each claim. One of them, the holder, gets its packets. Most claims have one service. Tenants choose external IPs, so a claim may
// have very many: only a holder that leaves, or gets a worse rank, requires a look at all.
type claims struct {
	services map[claim]map[string]rank // by service
	holders  map[claim]string          // the first by rank, of equal ranks by name
	of       map[string][]claim        // by service
}

// rank orders the services with a claim: the address of a load balancer, which a controller has set, precedes an external IP, which the owner of a service
// chooses; then the older service precedes.
type rank struct {
	kind    endpoints.FrontendKind
	created int64 // in seconds since 1970
}

func (r rank) compare(other rank) int {
	return cmp.Or(cmp.Compare(r.kind, other.kind), cmp.Compare(r.created, other.created))
}

func newClaims() claims {
	return claims{services: map[claim]map[string]rank{}, holders: map[claim]string{}, of: map[string][]claim{}}
}

// set replaces the claims of a service. It returns the other services that gain or lose a claim by that.
func (c claims) set(service string, wanted map[claim]rank) (others []string) {
	changed := func(other string) {
		if other != "" {
			others = append(others, other)
		}
	}
	for _, of := range c.of[service] {
		if _, remains := wanted[of]; !remains {
			changed(c.remove(of, service))
		}
	}
	delete(c.of, service)
	for of, at := range wanted {
		if has, ok := c.services[of][service]; !ok || has != at {
			changed(c.add(of, service, at))
		}
	}
	if len(wanted) > 0 {
		c.of[service] = slices.Collect(maps.Keys(wanted))
	}
	return others
}

// add adds a service to a claim, or changes its rank. It returns the other service that gains or loses the claim, if any.
func (c claims) add(of claim, service string, at rank) (other string) {
	if c.services[of] == nil {
		c.services[of] = map[string]rank{}
	}
	before, holder := c.services[of][service], c.holders[of]
	c.services[of][service] = at
	switch {
	case holder == service && at.compare(before) <= 0:
	case holder == service:
		if c.holders[of] = c.first(of); c.holders[of] != service {
			return c.holders[of]
		}
	case holder == "" || c.precedes(of, service, holder):
		c.holders[of] = service
		return holder
	}
	return ""
}

// remove removes a service from a claim. It returns the other service that gains the claim, if any.
func (c claims) remove(of claim, service string) (gains string) {
	delete(c.services[of], service)
	switch {
	case len(c.services[of]) == 0:
		delete(c.services, of)
		delete(c.holders, of)
	case c.holders[of] == service:
		c.holders[of] = c.first(of)
		return c.holders[of]
	}
	return ""
}

// first returns the service that gets the packets of a claim, which has one.
func (c claims) first(of claim) (first string) {
	for service := range c.services[of] {
		if first == "" || c.precedes(of, service, first) {
			first = service
		}
	}
	return first
}

// precedes reports whether a service gets the packets of a claim, and not the other one.
func (c claims) precedes(of claim, service, other string) bool {
	return cmp.Or(c.services[of][service].compare(c.services[of][other]), cmp.Compare(service, other)) < 0
}

// claimOf returns the claim of a frontend. ok is false for the cluster IP, which the API server allocates.
func claimOf(svc *endpoints.Service, f endpoints.Frontend) (_ claim, ok bool) {
	return claim{protocol(svc.Ports[f.Of].Protocol), netip.AddrPortFrom(f.Addr, f.Port)}, f.Kind != endpoints.ClusterIP
}
