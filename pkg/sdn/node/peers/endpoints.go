package peers

import (
	"net/netip"
	"slices"

	networkv1 "github.com/openshift/api/network/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// endpoints decides which HostSubnet a tunnel endpoint belongs to, if several have it: the senior one (config.CompareHostSubnets), on all nodes the
// same. ovsdn-controller prevents such HostSubnets, but nodes that swap addresses pass through them. Not safe for concurrent use.
type endpoints struct {
	own       netip.Addr // this node's, which no peer has
	claims    map[string]claim
	claimants map[netip.Addr][]string
}

// claim is the endpoint of a HostSubnet, by its last valid state.
type claim struct {
	vtep   netip.Addr
	object *networkv1.HostSubnet
}

func newEndpoints(own netip.Addr) *endpoints {
	return &endpoints{own: own, claims: map[string]claim{}, claimants: map[netip.Addr][]string{}}
}

// set records the HostSubnet's endpoint. It returns the names of the HostSubnets whose state may change by that.
func (e *endpoints) set(o *networkv1.HostSubnet, vtep netip.Addr) []string {
	before, known := e.claims[o.Name]
	if known && before.vtep == vtep && config.CompareHostSubnets(before.object, o) == 0 {
		e.claims[o.Name] = claim{vtep, o}
		return nil
	}
	affected := e.delete(o.Name)
	affected = append(affected, e.claimants[vtep]...)
	e.claims[o.Name] = claim{vtep, o}
	e.claimants[vtep] = append(e.claimants[vtep], o.Name)
	return affected
}

// delete removes the HostSubnet's claim. It returns the names of the HostSubnets whose state may change by that.
func (e *endpoints) delete(name string) []string {
	former, known := e.claims[name]
	if !known {
		return nil
	}
	delete(e.claims, name)
	rest := slices.DeleteFunc(e.claimants[former.vtep], func(n string) bool { return n == name })
	if len(rest) == 0 {
		delete(e.claimants, former.vtep)
		return nil
	}
	e.claimants[former.vtep] = rest
	return slices.Clone(rest)
}

// holder returns the name of the HostSubnet to which the named one's endpoint belongs: the same name, that of a senior HostSubnet, or "" if it
// is this node's. It returns the same name for an unknown one.
func (e *endpoints) holder(name string) string {
	c, known := e.claims[name]
	if !known {
		return name
	}
	if c.vtep == e.own {
		return ""
	}
	return slices.MinFunc(e.claimants[c.vtep], func(a, b string) int {
		return config.CompareHostSubnets(e.claims[a].object, e.claims[b].object)
	})
}
