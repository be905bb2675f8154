package node

import (
	"context"
	"errors"

	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/br0"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/hostnet"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sysctl"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// setUpBridge sets up the bridge with its fixed ports.
func (n *nodeNetwork) setUpBridge(ctx context.Context) (err error) {
	a := n.agent
	if n.underlay, n.mtu, err = a.underlay(n.network, n.hostSubnet); err != nil {
		return err
	}
	tun0 := hostnet.Tun0Config{
		Subnets:         n.hostSubnet.Subnets,
		ClusterNetworks: n.node.ClusterNetworks,
		ServiceNetwork:  n.network.ServiceNetwork,
		MTU:             n.mtu,
		Uplink:          n.underlay.Name,
		Sysctls:         a.sysctls(),
	}
	if n.node.BalancesServices {
		tun0.ServiceNextHop, tun0.ServiceNextHopMAC, tun0.ServiceOutside = pipeline.HairpinNode(), config.MAC(pipeline.HairpinNode()), pipeline.HairpinOutside()
	}
	n.tun0 = hostnet.NewTun0(tun0)
	n.bridge = br0.New(a.bridge, a.Datapath, n.network, n.hostSubnet, n.tun0, n.mtu)
	return n.bridge.Ensure(ctx)
}

// setUpHost sets up the host's routes to pods and its firewall.
func (n *nodeNetwork) setUpHost(ctx context.Context) error {
	log := klog.FromContext(ctx)
	changes, err := n.tun0.Sync(ctx)
	if errors.As(err, new(*hostnet.SysctlError)) { // may be of no effect on the host; the Node's condition reports it (tun0.Healthy)
		log.Error(err, "Failed to write sysctls", "interface", hostnet.Tun0Name, "retryAfter", hostCheck)
		err = nil
	}
	if err != nil {
		return err
	}
	log.Info("Host interface in sync", "interface", hostnet.Tun0Name, "changed", changes)

	n.newHostPorts(ctx)
	n.firewall, err = hostnet.NewFirewall(ctx, n.firewallConfig())
	if err != nil {
		return err
	}
	if changes, err = n.firewall.Sync(ctx); err != nil {
		return err
	}
	log.Info("Firewall rules in sync", "backend", n.firewall.Backend(), "changed", changes)
	return nil
}

// firewallConfig returns the configuration of the host's firewall rules.
func (n *nodeNetwork) firewallConfig() hostnet.FirewallConfig {
	a := n.agent
	return hostnet.FirewallConfig{
		ClusterNetworks:    n.node.ClusterNetworks,
		Subnets:            n.hostSubnet.Subnets,
		VXLANPort:          n.network.VXLANPort,
		IPMasq:             a.IPMasq,
		NonMasqueradeCIDRs: n.network.NonMasqueradeCIDRs,
		// No table of mode subnet validates sources (docs/decisions/0002).
		MasqueradeServices: !n.node.BalancesServices && n.network.Mode == config.ModeSubnet,
		SourcesEvaluated:   n.network.Mode != config.ModeSubnet,
		ServiceNetwork:     n.network.ServiceNetwork,
		RoutedDSCP:         pipeline.RoutedDSCP,
		ForwardedDSCP:      pipeline.ForwardedDSCP,
		HairpinDSCP:        pipeline.HairpinDSCP,
		BalancesServices:   n.node.BalancesServices,
		ServiceNextHop:     pipeline.HairpinNode(),
		ServiceOutside:     pipeline.HairpinOutside(),
		PodConnections:     hostnet.PodConnections(sysctl.Dir(a.SysctlDir)),
		PodDevices:         sandbox.HostVethPattern(a.Datapath),
		HostPorts:          n.firewallHostPorts,
		// Packets of other hosts have no VNID, and reach no pod of a tenant (docs/decisions/0004).
		MasqueradeHostPorts: n.network.Mode == config.ModeMultitenant,
		Program:             a.Firewall,
		HostAccess:          a.HostAccess,
		NodeNetworks:        n.network.ClusterNetworks,
		Restored:            n.foreign.firewallRestored,
	}
}
