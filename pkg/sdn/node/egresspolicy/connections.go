package egresspolicy

import (
	"net/netip"
	"slices"

	goovs "github.com/digitalocean/go-openvswitch/ovs"
	"golang.org/x/sys/unix"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/inputs"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// evaluateConnections implements flowstore.Evaluator: connections that a pod opened and its firewall denies now are not valid. Flows evaluate each packet of the
// pod; those of the other side pass because the connection is tracked.
func (p *Policies) evaluateConnections(bool) func(ovs.Connection) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	firewalls := map[netip.Addr]func(netip.Addr) bool{}
	for name, n := range p.namespaces {
		vnid, known := flowstore.Get[config.VNID](p.store, inputs.VNID(name))
		if n.firewall.ID() == 0 || known && vnid.IsGlobal() {
			continue
		}
		allows := n.firewall.Allows
		for _, addrs := range n.addrs {
			for _, a := range addrs {
				firewalls[a] = allows
			}
		}
	}
	if len(firewalls) == 0 {
		return nil
	}
	return func(c ovs.Connection) bool {
		allows := firewalls[c.Original.Src]
		return allows != nil && p.forbidden(c, allows)
	}
}

// forbidden evaluates the destination of a connection as table 100 does, and that to a service by its outside endpoints.
func (p *Policies) forbidden(c ovs.Connection, allows func(netip.Addr) bool) bool {
	dst, protocol := c.Original.Dst, protocolOf(c.Protocol)
	isService := p.node.ServiceNetwork.IsValid() && p.node.ServiceNetwork.Contains(dst)
	isNode := dst == p.node.VTEP || p.nodes.has(dst) || p.isGateway(dst)
	if p.options.OutsideEndpoints != nil && protocol != "" && (isService || isNode) {
		addr := dst
		if isNode {
			addr = netip.Addr{}
		}
		outside := p.options.OutsideEndpoints(addr, protocol, c.Original.DstPort)
		if outside.Closed || slices.ContainsFunc(outside.Addrs, func(to netip.AddrPort) bool { return p.isFiltered(to.Addr()) && !allows(to.Addr()) }) {
			return true
		}
	}
	if isService || !p.isFiltered(dst) || dst == p.node.VTEP && p.isDNS(c) {
		return false
	}
	return !allows(dst)
}

// isFiltered reports whether packets to the address pass table 100.
func (p *Policies) isFiltered(addr netip.Addr) bool {
	return !slices.ContainsFunc(p.node.ClusterNetworks, func(n netip.Prefix) bool { return n.Contains(addr) })
}

// isGateway reports whether the address is one of this node's tun0, which has its node ports, too.
func (p *Policies) isGateway(addr netip.Addr) bool {
	return slices.ContainsFunc(p.node.Subnets, func(s netip.Prefix) bool { return config.Gateway(s) == addr })
}

func (p *Policies) isDNS(c ovs.Connection) bool {
	return c.Original.DstPort == pipeline.DNSPort && (c.Protocol == unix.IPPROTO_TCP || c.Protocol == unix.IPPROTO_UDP)
}

// protocolOf returns the protocol of a service's port; "" if services do not have it.
func protocolOf(number uint8) goovs.Protocol {
	switch number {
	case unix.IPPROTO_TCP:
		return goovs.ProtocolTCPv4
	case unix.IPPROTO_UDP:
		return goovs.ProtocolUDPv4
	case unix.IPPROTO_SCTP:
		return pipeline.ProtocolSCTP
	}
	return ""
}
