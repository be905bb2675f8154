package remotenodes

import (
	"net/netip"
	"slices"

	networkv1 "github.com/openshift/api/network/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// endpoints decides which HostSubnet a tunnel endpoint belongs to if several have it: the senior one (config.CompareHostSubnets), the same on all
// nodes. ovsdn-controller prevents such HostSubnets, except while nodes swap addresses. It is not safe for concurrent use.
type endpoints struct {
	own       netip.Addr // this node's, which belongs to no peer
	claims    map[string]claim
	claimants map[netip.Addr][]string
}

// claim is the endpoint in the last valid state of a HostSubnet.
type claim struct {
	vtep   netip.Addr
	object *networkv1.HostSubnet
}

func newEndpoints(own netip.Addr) *endpoints {
	return &endpoints{own: own, claims: map[string]claim{}, claimants: map[netip.Addr][]string{}}
}

// set records the HostSubnet's endpoint. It returns the names of the other HostSubnets whose holder may have changed.
func (e *endpoints) set(o *networkv1.HostSubnet, vtep netip.Addr) []string {
	previous, known := e.claims[o.Name]
	if known && previous.vtep == vtep && config.CompareHostSubnets(previous.object, o) == 0 {
		e.claims[o.Name] = claim{vtep, o}
		return nil
	}
	affected := e.delete(o.Name)
	affected = append(affected, e.claimants[vtep]...)
	e.claims[o.Name] = claim{vtep, o}
	e.claimants[vtep] = append(e.claimants[vtep], o.Name)
	return affected
}

// delete deletes the HostSubnet's claim. It returns the names of the HostSubnets whose holder may have changed.
func (e *endpoints) delete(name string) []string {
	previous, known := e.claims[name]
	if !known {
		return nil
	}
	delete(e.claims, name)
	rest := slices.DeleteFunc(e.claimants[previous.vtep], func(n string) bool { return n == name })
	if len(rest) == 0 {
		delete(e.claimants, previous.vtep)
		return nil
	}
	e.claimants[previous.vtep] = rest
	return slices.Clone(rest)
}

// holder returns the name of the HostSubnet that the endpoint of the named HostSubnet belongs to, or "" if it belongs to this node. For an unknown
// name it returns that name.
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
