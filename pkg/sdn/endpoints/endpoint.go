package endpoints

import (
	"net/netip"
	"unique"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// Endpoint is an endpoint of a Slice, in 24 bytes. Endpoints are comparable with ==.
type Endpoint struct {
	addr       [4]byte
	conditions conditions
	node       unique.Handle[string] // zero: not on a Node
	hints      unique.Handle[hints]  // zero: none
}

// conditions are the conditions of an endpoint, as bits.
type conditions uint8

const (
	ready conditions = 1 << iota
	serving
	terminating
)

// newEndpoint converts an endpoint with a parsed address. As in the API, a missing condition is ready, serving and not terminating.
func newEndpoint(addr netip.Addr, e *discoveryv1.Endpoint) Endpoint {
	out := Endpoint{addr: addr.As4(), hints: newHints(e.Hints)}
	for _, c := range []struct {
		bit   conditions
		value *bool
		unset bool
	}{
		{ready, e.Conditions.Ready, true},
		{serving, e.Conditions.Serving, true},
		{terminating, e.Conditions.Terminating, false},
	} {
		if c.value == nil && c.unset || c.value != nil && *c.value {
			out.conditions |= c.bit
		}
	}
	if e.NodeName != nil && *e.NodeName != "" {
		out.node = unique.Make(*e.NodeName)
	}
	return out
}

// Addr returns the endpoint's IPv4 address.
func (e *Endpoint) Addr() netip.Addr { return netip.AddrFrom4(e.addr) }

// Ready reports whether the endpoint is used for new connections. kube-controller-manager sets it for endpoints that are serving and not
// terminating, and for all endpoints of a Service with publishNotReadyAddresses.
func (e *Endpoint) Ready() bool { return e.conditions&ready != 0 }

// Serving reports whether the endpoint answers, whether or not it is terminating.
func (e *Endpoint) Serving() bool { return e.conditions&serving != 0 }

// Terminating reports whether the endpoint's pod has a deletion timestamp.
func (e *Endpoint) Terminating() bool { return e.conditions&terminating != 0 }

// NodeName returns the name of the endpoint's Node, or "" for an endpoint outside of the cluster.
func (e *Endpoint) NodeName() string {
	if e.node == (unique.Handle[string]{}) {
		return ""
	}
	return e.node.Value()
}

// draining reports whether the endpoint is used where no endpoint is ready.
func (e *Endpoint) draining() bool { return e.Serving() && e.Terminating() }
