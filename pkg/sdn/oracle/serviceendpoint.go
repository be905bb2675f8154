package oracle

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// serviceEndpoint is an endpoint of a Service's port.
type serviceEndpoint struct {
	discoveryv1.Endpoint
	addr netip.AddrPort
}

// Conditions: a missing condition is "true" for ready and serving, and "false" for terminating (EndpointSlice API).
func (e serviceEndpoint) ready() bool { return isTrue(e.Conditions.Ready, true) }

// draining endpoints get connections if no endpoint is ready (KEP-1669).
func (e serviceEndpoint) draining() bool {
	return isTrue(e.Conditions.Serving, true) && isTrue(e.Conditions.Terminating, false)
}

func isTrue(condition *bool, missing bool) bool {
	if condition == nil {
		return missing
	}
	return *condition
}

func (e serviceEndpoint) isOn(node string) bool { return e.NodeName != nil && *e.NodeName == node }

// endpoints are those of the Service's slices that have a port with the name and protocol of the Service's port.
func (c *Cluster) endpoints(f frontend) (all []serviceEndpoint) {
	for _, s := range c.EndpointSlices {
		if s.Namespace != f.service.Namespace || s.Labels[discoveryv1.LabelServiceName] != f.service.Name || s.AddressType != discoveryv1.AddressTypeIPv4 {
			continue
		}
		for _, p := range s.Ports {
			if *p.Name != f.port.Name || *p.Protocol != f.port.Protocol {
				continue
			}
			for _, e := range s.Endpoints {
				all = append(all, serviceEndpoint{e, netip.AddrPortFrom(netip.MustParseAddr(e.Addresses[0]), uint16(*p.Port))}) //nolint:gosec // a port
			}
		}
	}
	return all
}

// policies returns whether the traffic policies that apply to the client are Local. externalTrafficPolicy is for clients outside: pods reach all endpoints by
// external addresses and node ports. The node's programs reach these by both policies.
func (f frontend) policies(from Endpoint) (local []bool) {
	internal := f.service.Spec.InternalTrafficPolicy
	internalLocal := internal != nil && *internal == corev1.ServiceInternalTrafficPolicyLocal
	externalLocal := f.service.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
	switch {
	case f.kind == clusterIP:
		return []bool{internalLocal}
	case from.Pod != nil:
		return []bool{false}
	case from.Node != "":
		return []bool{externalLocal, internalLocal}
	}
	return []bool{externalLocal}
}

// usable returns the endpoints that a client at the node may get. Without any endpoint in the cluster the connection is rejected. Policy Local uses those on the
// node only, and drops connections if there are none: "even if endpoints exist elsewhere".
func (c *Cluster) usable(f frontend, local bool, node string) ([]serviceEndpoint, ServiceOutcome) {
	all := c.endpoints(f)
	isElsewhere := func(e serviceEndpoint) bool { return !e.isOn(node) }
	found := readyOrDraining(all)
	switch {
	case len(found) == 0:
		return nil, ServiceRejected
	case local:
		if found = readyOrDraining(slices.DeleteFunc(slices.Clone(all), isElsewhere)); len(found) == 0 {
			return nil, ServiceDropped
		}
		return found, ServiceForwarded
	case found[0].ready():
		found = c.preferred(found, node)
	}
	return found, ServiceForwarded
}

func readyOrDraining(all []serviceEndpoint) []serviceEndpoint {
	for _, isUsed := range []func(serviceEndpoint) bool{serviceEndpoint.ready, serviceEndpoint.draining} {
		if found := slices.DeleteFunc(slices.Clone(all), func(e serviceEndpoint) bool { return !isUsed(e) }); len(found) > 0 {
			return found
		}
	}
	return nil
}

// preferred applies topology hints, first those for nodes and then those for zones: they are used if every endpoint has one, and one of them is for the client's node
// or zone ("Topology Aware Routing", safeguards).
func (c *Cluster) preferred(found []serviceEndpoint, node string) []serviceEndpoint {
	zone := c.NodeLabels[node][corev1.LabelTopologyZone]
	forNode := func(e serviceEndpoint) (hinted, here bool) {
		return e.Hints != nil && len(e.Hints.ForNodes) > 0, e.Hints != nil && slices.Contains(e.Hints.ForNodes, discoveryv1.ForNode{Name: node})
	}
	forZone := func(e serviceEndpoint) (hinted, here bool) {
		return e.Hints != nil && len(e.Hints.ForZones) > 0, e.Hints != nil && slices.Contains(e.Hints.ForZones, discoveryv1.ForZone{Name: zone})
	}
	for _, hintsOf := range []func(serviceEndpoint) (hinted, here bool){forNode, forZone} {
		allHinted := true
		var nearby []serviceEndpoint
		for _, e := range found {
			hinted, here := hintsOf(e)
			allHinted = allHinted && hinted
			if here {
				nearby = append(nearby, e)
			}
		}
		if allHinted && len(nearby) > 0 {
			return nearby
		}
	}
	return found
}

// toEndpoint evaluates the connection with the endpoint as its destination. For hosts outside, a pod of another node sees the address on tun0 of the first node, a pod
// of this node the client's (docs/policies.md). Policies select pods only, so no policy applies between nodes and hosts outside. Packets with a node's own IP
// "reach pods only: not the receiver's tun0 address" (docs/decisions/0006-node-as-source.md).
func (c *Cluster) toEndpoint(conn ServiceConnection, addr netip.AddrPort) Verdict {
	from, to := conn.From, c.endpointAt(addr.Addr())
	isTunnelled := contained(c.PodNetworks, addr.Addr()) && to.Node != conn.At
	switch {
	case isTunnelled && to.Pod == nil && to.Node == "":
		return Verdict{false, "no pod has the address"}
	case isTunnelled && to.Pod == nil && from.Node != "" && !contained(c.PodNetworks, from.Addr):
		return Verdict{false, "the source is the node's own IP"}
	case from.Pod == nil && to.Pod == nil:
		return Verdict{true, "no policy applies to hosts"}
	case from.Pod == nil && from.Node == "":
		from.Through = conn.At
		if to.Pod.Spec.NodeName != conn.At {
			from.Addr = c.NodeAddrs[conn.At][1]
		}
	}
	return c.Evaluate(Connection{
		From: from, To: to, Protocol: conn.Protocol, Port: int32(addr.Port()), Hairpin: from.Pod != nil && from.Pod == to.Pod,
	})
}

// endpointAt returns the pod or the node with the address, or else the host outside.
func (c *Cluster) endpointAt(addr netip.Addr) Endpoint {
	for _, p := range c.Pods {
		if IsSubject(p) && p.Status.PodIP == addr.String() {
			return Endpoint{Addr: addr, Pod: p}
		}
	}
	for node, addrs := range c.NodeAddrs {
		if slices.Contains(addrs, addr) {
			return Endpoint{Addr: addr, Node: node}
		}
	}
	return Endpoint{Addr: addr}
}
