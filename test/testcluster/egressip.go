package testcluster

import (
	"math/rand/v2"
	"net/netip"
	"slices"

	networkv1 "github.com/openshift/api/network/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/oracle"
)

// Departure is how a packet of a pod leaves the cluster: with one of the sources. Without a source it is dropped.
type Departure struct {
	Sources []netip.Addr
	Why     string
}

// Leave returns how the packets of a connection from a pod to an address outside leave, if Evaluate allows it. Packets to nodes' own addresses, of namespaces that
// ask for no egress IP, and of all in mode subnet have the address of the pod's node. Others have an egress IP of the namespace that can be used; if all that
// could be are on unreachable nodes, one of these (docs/egress.md). Which one is left open.
func (w *World) Leave(conn oracle.Connection) Departure {
	pod := conn.From.Pod
	own := w.NodeAddrs[pod.Spec.NodeName][:1]
	asked := w.asked(pod.Namespace)
	switch {
	case w.FirewallVNIDs == nil:
		return Departure{own, "mode subnet has no egress IPs"}
	case conn.To.Node != "":
		return Departure{own, "to a node"}
	case len(asked) == 0:
		return Departure{own, "the namespace asks for no egress IP"}
	}
	var usable, unreachable []netip.Addr
	for _, ip := range asked {
		hosts, reachable := w.hosts(ip)
		switch {
		case hosts != 1 || w.namespacesWith(ip) != 1 || w.isReserved(ip):
		case reachable:
			usable = append(usable, ip)
		default:
			unreachable = append(unreachable, ip)
		}
	}
	switch {
	case len(usable) > 0:
		return Departure{usable, "egress IPs of the namespace"}
	case len(unreachable) > 0:
		return Departure{unreachable, "egress IPs of the namespace, all on unreachable nodes"}
	}
	return Departure{nil, "no egress IP of the namespace can be used"}
}

// asked returns the egress IPs of a namespace.
func (w *World) asked(namespace string) (ips []netip.Addr) {
	for _, o := range w.NetNamespaces {
		if o.NetName == namespace {
			for _, text := range o.EgressIPs {
				ips = append(ips, netip.MustParseAddr(string(text)))
			}
		}
	}
	return ips
}

// hosts returns the number of nodes that host an IP, and whether all are reachable.
func (w *World) hosts(ip netip.Addr) (count int, reachable bool) {
	reachable = true
	for _, o := range w.HostSubnets {
		if slices.Contains(o.EgressIPs, networkv1.HostSubnetEgressIP(ip.String())) {
			count++
			reachable = reachable && o.Annotations["ovsdn.io/egress-unreachable-since"] == ""
		}
	}
	return count, reachable
}

func (w *World) namespacesWith(ip netip.Addr) (count int) {
	for _, o := range w.NetNamespaces {
		if slices.Contains(o.EgressIPs, networkv1.NetNamespaceEgressIP(ip.String())) {
			count++
		}
	}
	return count
}

// isReserved reports whether an address is no egress IP: a node has it, or the pod network or the service network contain it.
func (w *World) isReserved(ip netip.Addr) bool {
	for _, addrs := range w.NodeAddrs {
		if slices.Contains(addrs, ip) {
			return true
		}
	}
	return slices.ContainsFunc(w.Reserved, func(p netip.Prefix) bool { return p.Contains(ip) })
}

// DrawEgressIPs replaces the egress IPs of all namespaces and nodes by random ones, few enough that they conflict.
func (w *World) DrawEgressIPs(r *rand.Rand) {
	const addrs = 8
	draw := func(most int) (ips []string) {
		for range r.IntN(most + 1) {
			ip := netip.AddrFrom4([4]byte{172, 31, 0, byte(224 + r.IntN(addrs))})
			switch r.IntN(24) {
			case 0:
				ip = NodeIP(r.IntN(len(w.Nodes)))
			case 1:
				ip = w.Reserved[r.IntN(len(w.Reserved))].Addr().Next()
			}
			if !slices.Contains(ips, ip.String()) {
				ips = append(ips, ip.String())
			}
		}
		return ips
	}
	w.NetNamespaces, w.HostSubnets = nil, nil
	for _, ns := range w.Namespaces {
		o := &networkv1.NetNamespace{NetName: ns.Name}
		o.Name = ns.Name
		for _, ip := range draw(2) {
			o.EgressIPs = append(o.EgressIPs, networkv1.NetNamespaceEgressIP(ip))
		}
		w.NetNamespaces = append(w.NetNamespaces, o)
	}
	for i, node := range w.Nodes {
		o := &networkv1.HostSubnet{Host: node, HostIP: NodeIP(i).String()}
		o.Name, o.Annotations = node, map[string]string{networkv1.NodeUIDAnnotation: node}
		for _, ip := range draw(addrs) {
			o.EgressIPs = append(o.EgressIPs, networkv1.HostSubnetEgressIP(ip))
		}
		if r.IntN(4) == 0 {
			o.Annotations["ovsdn.io/egress-unreachable-since"] = "2000-01-01T00:00:00Z"
		}
		w.HostSubnets = append(w.HostSubnets, o)
	}
}
