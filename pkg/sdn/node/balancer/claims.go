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

// claims are the services that have each claim. One of them gets its packets. Most claims have one service.
type claims struct {
	services map[claim]map[string]rank // by service
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
	return claims{services: map[claim]map[string]rank{}, of: map[string][]claim{}}
}

// set replaces the claims of a service. It returns the other services that gain or lose a claim by that.
func (c claims) set(service string, wanted map[claim]rank) (others []string) {
	before := map[claim]string{}
	for _, claim := range slices.AppendSeq(slices.Clone(c.of[service]), maps.Keys(wanted)) {
		before[claim] = c.holder(claim)
	}
	for _, claim := range c.of[service] {
		if delete(c.services[claim], service); len(c.services[claim]) == 0 {
			delete(c.services, claim)
		}
	}
	delete(c.of, service)
	for claim, of := range wanted {
		if c.services[claim] == nil {
			c.services[claim] = map[string]rank{}
		}
		c.services[claim][service] = of
	}
	if len(wanted) > 0 {
		c.of[service] = slices.Collect(maps.Keys(wanted))
	}
	for claim, was := range before {
		is := c.holder(claim)
		if was == is {
			continue
		}
		for _, other := range []string{was, is} {
			if other != "" && other != service {
				others = append(others, other)
			}
		}
	}
	return others
}

// holder returns the service whose claim counts: the first by rank, of equal ranks by name. It returns "" if there is none.
func (c claims) holder(of claim) (holder string) {
	for service, rank := range c.services[of] {
		if holder == "" || cmp.Or(rank.compare(c.services[of][holder]), cmp.Compare(service, holder)) < 0 {
			holder = service
		}
	}
	return holder
}

// claimOf returns the claim of a frontend. ok is false for the cluster IP, which the API server allocates.
func claimOf(svc *endpoints.Service, f endpoints.Frontend) (_ claim, ok bool) {
	return claim{protocol(svc.Ports[f.Of].Protocol), netip.AddrPortFrom(f.Addr, f.Port)}, f.Kind != endpoints.ClusterIP
}
