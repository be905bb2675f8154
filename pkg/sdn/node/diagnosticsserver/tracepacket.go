package diagnosticsserver

import (
	"net"
	"net/http"
	"net/netip"
	"slices"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// tracePacket returns the packet of the request as its sender sends it, and completes the request.
func (n *Network) tracePacket(node string, r *traceRequest, pods []sandbox.Pod) (ovs.TracePacket, error) {
	p := ovs.TracePacket{
		Protocol: r.protocol, SourcePort: r.packet.SourcePort, DestPort: r.packet.DestinationPort, Lookup: r.lookup, Hash: 1, Dest: r.destination,
		EthDest: config.MAC(r.destination), // the cluster network is on-link
	}
	gateway, err := n.gateway(node)
	if err != nil {
		return p, err
	}
	if !contains(n.Node.ClusterNetworks, r.destination) {
		p.EthDest = config.MAC(gateway)
	}
	switch r.from.Kind {
	case diagnostics.KindPod:
		err = r.fromPod(&p, node, pods)
	case diagnostics.KindNode:
		err = n.fromTunnel(&p, node, r)
	default:
		p.InPort, p.EthSource, p.DSCP = pipeline.PortTun, config.MAC(gateway), n.dscpOf(r.packet.Origin)
		if !r.source.IsValid() {
			r.source = gateway
		}
	}
	p.Source = r.source
	r.packet.Source = textOf(r.source)
	return p, err
}

// dscpOf returns the DSCP by which the host's firewall marks packets of the origin.
func (n *Network) dscpOf(origin diagnostics.PacketOrigin) uint8 {
	marksServices := n.Node.BalancesServices && origin == diagnostics.OriginNodePort // by the rules of services
	if n.Node.Mode == config.ModeSubnet && !marksServices {                          // whose firewall marks none
		return 0
	}
	switch origin {
	case diagnostics.OriginRouted:
		return pipeline.RoutedDSCP
	case diagnostics.OriginNodePort:
		return pipeline.ForwardedDSCP
	case diagnostics.OriginHairpin:
		return pipeline.HairpinDSCP
	}
	return 0
}

// gateway returns the first address of tun0.
func (n *Network) gateway(node string) (netip.Addr, error) {
	if len(n.Node.Subnets) == 0 || !n.Node.Subnets[0].Addr().Is4() {
		return netip.Addr{}, failf(http.StatusServiceUnavailable, "node %s has no IPv4 subnet", node)
	}
	return config.Gateway(n.Node.Subnets[0]), nil
}

func (r *traceRequest) fromPod(p *ovs.TracePacket, node string, pods []sandbox.Pod) error {
	pod, own, err := r.ownPod(node, pods)
	if err != nil {
		return err
	}
	p.InPort, p.EthSource = pod.OFPort, config.MAC(own)
	if !r.source.IsValid() {
		r.source = own
	}
	return nil
}

// ownPod returns the pod that the packet is from, and its IPv4 address.
func (r *traceRequest) ownPod(node string, pods []sandbox.Pod) (sandbox.Pod, netip.Addr, error) {
	i := slices.IndexFunc(pods, func(pod sandbox.Pod) bool {
		return pod.Namespace == r.from.Namespace && pod.Name == r.from.Name && pod.OFPort > 0 && slices.ContainsFunc(pod.Addrs, netip.Addr.Is4)
	})
	if i < 0 {
		return sandbox.Pod{}, netip.Addr{}, failf(http.StatusNotFound, "%s does not run on node %s, is being set up, or is on the host network", r.from, node)
	}
	return pods[i], pods[i].Addrs[slices.IndexFunc(pods[i].Addrs, netip.Addr.Is4)], nil
}

// fromTunnel completes a packet of another node as its bridge sends it.
func (n *Network) fromTunnel(p *ovs.TracePacket, node string, r *traceRequest) error {
	if r.from.Name == node {
		return failf(http.StatusBadRequest, "parameter from is %s, but node %s sends itself no packets through the tunnel; write %s for packets of its host", r.from, node, diagnostics.FromHost)
	}
	peer, ok := n.HostSubnetOf(r.from.Name)
	if !ok || !peer.HostIP.Is4() {
		return failf(http.StatusNotFound, "node %s knows no valid HostSubnet of %s", node, r.from)
	}
	p.InPort, p.TunnelSource, p.TunnelDest, p.TunnelID = pipeline.PortVXLAN, peer.HostIP, n.Node.VTEP, r.packet.VNID
	p.EthSource = config.MAC(r.source)
	if len(peer.Subnets) > 0 {
		p.EthSource = sourceMAC(peer, r)
	}
	if r.egressIP.IsValid() {
		p.EthDest = config.MAC(r.egressIP)
	}
	return nil
}

// sourceMAC returns the Ethernet source of a packet from the tunnel: the mark of the peer's own packets, or the MAC of the pod or of tun0.
func sourceMAC(peer *config.HostSubnet, r *traceRequest) net.HardwareAddr {
	source, gateway := r.source, config.Gateway(peer.Subnets[0])
	isOwn := source == peer.HostIP || slices.ContainsFunc(peer.Subnets, func(s netip.Prefix) bool { return config.Gateway(s) == source })
	switch {
	case isOwn && config.VNID(r.packet.VNID).IsGlobal() && r.packet.Origin == "":
		return config.NodeMAC(gateway)
	case contains(peer.Subnets, source):
		return config.MAC(source)
	}
	return config.MAC(gateway)
}
