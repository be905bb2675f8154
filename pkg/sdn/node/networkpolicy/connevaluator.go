package networkpolicy

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/pkg/sdn/policy"
)

// connEvaluator finds connections that are no longer valid. It has the pods of this node at the start of a listing. Flows evaluate each packet of the side
// that opened a connection by the current policies; replies pass because the connection is tracked.
type connEvaluator struct {
	node   pipeline.Node
	engine *policy.Engine
	pods   map[netip.Addr]policy.PodKey // pods of this node that policies select
	// outside returns the endpoints by which packets to a service's address are evaluated
	outside OutsideEndpoints
	local   map[netip.Addr]struct{} // all pods of this node; nil: no connection is orphaned
}

// evaluateConnections implements store.Evaluator. After a restart, connections of addresses of this node that no pod has are not valid either: pods may
// have been deleted while no agent ran.
func (p *Policies) evaluateConnections(restarted bool) func(ovs.Connection) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.evaluator(restarted)
	if len(e.pods) == 0 && !restarted {
		return nil
	}
	return func(c ovs.Connection) bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return e.orphaned(c) || e.forbidden(c)
	}
}

// evaluator returns an evaluator of the current pods. The lock must be held.
func (p *Policies) evaluator(restarted bool) *connEvaluator {
	e := &connEvaluator{
		node: p.compiler.node, engine: p.compiler.engine, outside: p.cluster.OutsideEndpoints, pods: map[netip.Addr]policy.PodKey{},
	}
	if restarted {
		e.local = map[netip.Addr]struct{}{}
	}
	for key, pods := range p.compiler.local {
		evaluated := p.compiler.podPolicies(key).Evaluated
		for _, pod := range pods {
			for _, a := range pod.Addrs {
				if evaluated {
					e.pods[a] = key
				}
				if restarted {
					e.local[a] = struct{}{}
				}
			}
		}
	}
	return e
}

// orphaned reports whether an end of the connection is an address of this node that no pod has.
func (e *connEvaluator) orphaned(c ovs.Connection) bool {
	if e.local == nil {
		return false
	}
	return slices.ContainsFunc(c.Addrs(), func(a netip.Addr) bool {
		_, local := e.local[a]
		return !local && slices.ContainsFunc(e.node.Subnets, func(s netip.Prefix) bool { return s.Contains(a) && config.Gateway(s).Less(a) })
	})
}

// forbidden evaluates the side that opened the connection, as flows do at each end on this node.
func (e *connEvaluator) forbidden(c ovs.Connection) bool {
	src, dst := c.Original.Src, c.Original.Dst
	switch {
	case !pipeline.AllowedZones().Contains(c.Zone):
		return false // a translated destination carries no permission
	case e.forbiddenService(c):
		return true // else replies of the host's proxy would pass
	case e.node.ServiceNetwork.IsValid() && e.node.ServiceNetwork.Contains(dst):
		return false
	case c.Protocol == protocolSCTP && e.node.Userspace:
		return false // both directions are evaluated by flows
	}
	p := policy.Packet{Peer: dst, Protocol: policyProtocol(c.Protocol), Port: c.Original.DstPort, FromPod: e.isPodAddr(src)}
	if key, evaluated := e.pods[src]; evaluated && !e.engine.Allows(policy.Egress, key, p) {
		return true
	}
	if e.isOwnNode(src) {
		return false
	}
	p.Peer = src
	key, evaluated := e.pods[dst]
	return evaluated && !e.engine.Allows(policy.Ingress, key, p)
}

// forbiddenService reports whether a local pod's connection to a service is forbidden, since the pod may not reach all outside endpoints of the service.
// For other endpoints, the translated connection is evaluated.
func (e *connEvaluator) forbiddenService(c ovs.Connection) bool {
	key, evaluated := e.pods[c.Original.Src]
	proto := policyProtocol(c.Protocol)
	if !evaluated || proto == "" {
		return false
	}
	dst := c.Original.Dst
	if pod, known := e.engine.PodByAddr(dst); known && pod.Namespace == "" { // a node
		dst = netip.Addr{}
	}
	outside := e.outside(dst, protocol(proto), c.Original.DstPort)
	return outside.Closed || slices.ContainsFunc(outside.Addrs, func(to netip.AddrPort) bool {
		return !e.engine.Allows(policy.Egress, key, policy.Packet{Peer: to.Addr(), Protocol: proto, Port: to.Port()})
	})
}

func (e *connEvaluator) isPodAddr(addr netip.Addr) bool {
	return slices.ContainsFunc(e.node.ClusterNetworks, func(n netip.Prefix) bool { return n.Contains(addr) })
}

func (e *connEvaluator) isOwnNode(addr netip.Addr) bool {
	return addr == e.node.VTEP || slices.ContainsFunc(e.node.Subnets, func(s netip.Prefix) bool { return config.Gateway(s) == addr })
}

// policyProtocol returns "" for protocols that policies do not have.
func policyProtocol(number uint8) corev1.Protocol {
	switch number {
	case protocolTCP:
		return corev1.ProtocolTCP
	case protocolUDP:
		return corev1.ProtocolUDP
	case protocolSCTP:
		return corev1.ProtocolSCTP
	}
	return ""
}
