package servicenat

import (
	"net/netip"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/knftables"

	"github.com/ovsdn/ovsdn/pkg/sdn/endpoints"
)

// Frontend is a port of a service that hosts outside of the cluster can reach.
type Frontend struct {
	Addr     netip.Addr // IPv4; invalid: a node port, of the addresses of the node in Options.NodePortAddresses
	Protocol corev1.Protocol
	Port     uint16
	Verdict  endpoints.Verdict // of new connections, except those from the switch, which has evaluated them; not Unused
	To       netip.AddrPort    // the cluster IP, which is IPv4, and its port: the target if the verdict is Forward
	// Sources are the only clients whose connections to Addr are accepted, if there are any: IPv4, masked, sorted and disjoint, as endpoints.Service has them.
	// Node ports have none.
	Sources []netip.Prefix
	// TenantAddress is an Addr that the owner of the service, a tenant, chooses: packets of the node's own programs, and those to an address of the node, pass
	// unchanged. Node ports ignore it.
	TenantAddress bool
}

// key identifies a frontend.
type key struct {
	addr     netip.Addr
	protocol corev1.Protocol
	port     uint16
}

func (f *Frontend) key() key { return key{f.Addr, f.Protocol, f.Port} }

// element is an element of a set or a map.
type element struct {
	name  string // of the set or map
	key   string // words, separated by spaces
	value string // words, separated by spaces; "": of a set
}

func (e element) object() *knftables.Element {
	if e.value == "" {
		return &knftables.Element{Set: e.name, Key: strings.Fields(e.key)}
	}
	return &knftables.Element{Map: e.name, Key: strings.Fields(e.key), Value: strings.Fields(e.value)}
}

// elements returns the frontend's elements. A nil frontend has none.
func (f *Frontend) elements() []element {
	if f == nil {
		return nil
	}
	port := strings.ToLower(string(f.Protocol)) + " " + strconv.Itoa(int(f.Port))
	words, forwarded, rejected, dropped := port, mapNodePorts, setRejectedPorts, setDroppedPorts
	if f.Addr.IsValid() {
		words, forwarded, rejected, dropped = f.Addr.String()+" "+port, mapAddresses, setRejected, setDropped
	}
	var all []element
	switch {
	case !f.Addr.IsValid():
		all = append(all, element{name: setNodePorts, key: words})
	case f.TenantAddress:
		all = append(all, element{name: setTenantIPs, key: words})
	}
	switch f.Verdict {
	case endpoints.Forward:
		all = append(all, element{name: forwarded, key: words, value: f.To.Addr().String() + " " + strconv.Itoa(int(f.To.Port()))})
	case endpoints.Reject:
		all = append(all, element{name: rejected, key: words})
	case endpoints.Drop:
		all = append(all, element{name: dropped, key: words})
	}
	if len(f.Sources) > 0 {
		all = append(all, element{name: setLimited, key: words})
	}
	for _, p := range f.Sources {
		all = append(all, element{name: setSourceRanges, key: words + " " + p.String()})
	}
	return all
}
