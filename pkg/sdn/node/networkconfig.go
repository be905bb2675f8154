package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	networkv1 "github.com/openshift/api/network/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/caches"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/hostnet"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/linkmtu"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/nodestatus"
)

// hasHostSubnet reports whether the node has a HostSubnet. While it has none, the controller writes the Node's condition.
func (a *agent) hasHostSubnet(c *caches.Set) bool {
	o, err := c.Network.Network().V1().HostSubnets().Lister().Get(a.NodeName)
	return err == nil && !config.IsProposed(o)
}

// isProposed reports whether the controller is allocating a subnet for this node.
func (a *agent) isProposed(c *caches.Set) bool {
	o, err := c.Network.Network().V1().HostSubnets().Lister().Get(a.NodeName)
	return err == nil && config.IsProposed(o)
}

// hostSubnetHealthy returns an error if the node's HostSubnet does not exist: other nodes then have no flows for this node's pods.
func (a *agent) hostSubnetHealthy(c *caches.Set) error {
	if a.hasHostSubnet(c) || a.isProposed(c) {
		return nil
	}
	return fmt.Errorf("HostSubnet %s %w", a.NodeName, nodestatus.ErrNoHostSubnet)
}

// clusterNetwork returns the active network. The controller validates changes that are not active yet.
func (a *agent) clusterNetwork(c *caches.Set) (*config.Network, error) {
	o, err := c.Network.Network().V1().ClusterNetworks().Lister().Get(networkv1.ClusterNetworkDefault)
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("ClusterNetwork %q does not exist: ovsdn-controller creates it in a new cluster; check that it runs. After a deletion restore it (docs/clusternetwork.md)", networkv1.ClusterNetworkDefault)
	}
	if err != nil {
		return nil, fmt.Errorf("ClusterNetwork %s: %w", networkv1.ClusterNetworkDefault, err)
	}
	n, err := config.ActiveNetwork(o)
	if err != nil {
		return nil, fmt.Errorf("ClusterNetwork %s %w", o.Name, err)
	}
	return n, nil
}

func (a *agent) hostSubnet(c *caches.Set, network *config.Network) (*config.HostSubnet, error) {
	o, err := c.Network.Network().V1().HostSubnets().Lister().Get(a.NodeName)
	if apierrors.IsNotFound(err) || err == nil && config.IsProposed(o) {
		return nil, fmt.Errorf("node %s has no HostSubnet yet: ovsdn-controller creates it for the Node; check that it runs, and that --node-name is the name of the Node", a.NodeName)
	}
	if err != nil {
		return nil, fmt.Errorf("HostSubnet %s: %w", a.NodeName, err)
	}
	h, err := config.ParseHostSubnet(o)
	if err == nil {
		err = network.CheckHostSubnet(h)
	}
	if err != nil {
		return nil, fmt.Errorf("HostSubnet %s is invalid, correct or delete it: %w", o.Name, err)
	}
	return h, nil
}

// watchNetworkConfig ends the set-up when the ClusterNetwork, other than what masquerade applies, or this node's HostSubnet changes. It reports a change that is
// invalid or that does not fit this host, and the set-up continues. The returned function checks both again.
func (a *agent) watchNetworkConfig(changed context.CancelCauseFunc, c *caches.Set, network *config.Network, hostSubnet *config.HostSubnet) (check func(any), err error) {
	check = func(any) {
		n, err := a.clusterNetwork(c)
		if err == nil {
			err = a.checkHost(n, hostSubnet)
		}
		if err == nil && !a.sameSetUp(n, network) {
			changed(fmt.Errorf("%w: ClusterNetwork was edited", errChanged))
			return
		}
		if err == nil {
			var h *config.HostSubnet
			if h, err = a.hostSubnet(c, n); err == nil && !sameHostSubnet(h, hostSubnet) {
				changed(fmt.Errorf("%w: HostSubnet %s was edited", errChanged, a.NodeName))
				return
			}
		}
		if err != nil && !a.isProposed(c) { // the controller allocates within milliseconds
			a.reporter.Warn(eventreason.NetworkWaiting, err)
		}
		// The controller may have written the condition since.
		if a.hasHostSubnet(c) {
			a.condition.Refresh()
		}
	}
	if _, err := c.Network.Network().V1().ClusterNetworks().Informer().AddEventHandler(caches.HandlerOf(networkv1.ClusterNetworkDefault, check)); err != nil {
		return nil, fmt.Errorf("watch the ClusterNetwork: %w", err)
	}
	if _, err := c.Network.Network().V1().HostSubnets().Informer().AddEventHandler(caches.HandlerOf(a.NodeName, check)); err != nil {
		return nil, fmt.Errorf("watch the HostSubnet: %w", err)
	}
	return check, nil
}

// underlay returns the interface and the address of the node's tunnel endpoint, which must be the HostSubnet's.
func (a *agent) underlay(network *config.Network, hostSubnet *config.HostSubnet) (hostnet.Underlay, linkmtu.MTU, error) {
	underlay, err := a.tunnelEndpoint(hostSubnet)
	if err != nil {
		return underlay, linkmtu.MTU{}, err
	}
	mtu, err := a.validateHost(underlay, network)
	return underlay, mtu, err
}

// tunnelEndpoint returns the interface and the address of the node's tunnel endpoint.
func (a *agent) tunnelEndpoint(hostSubnet *config.HostSubnet) (hostnet.Underlay, error) {
	selector := a.selector
	if selector == (hostnet.Selector{}) {
		// Without flags, use the HostSubnet's address, to which the other nodes send.
		selector.NodeIP = hostSubnet.HostIP
	}
	underlay, err := hostnet.FindUnderlay(selector)
	if err != nil {
		return underlay, err
	}
	if underlay.Addr != hostSubnet.HostIP {
		return underlay, fmt.Errorf("other nodes send to %s (HostSubnet %s, from the Node's InternalIP), but the flags of this agent select %s: start kubelet with --node-ip=%s, or change --node-ip, --iface or --iface-regex",
			hostSubnet.HostIP, hostSubnet.Node, underlay, underlay.Addr)
	}
	return underlay, nil
}

// validateHost returns the MTU of this node's pods and routes, in which flags override the ClusterNetwork, or the errors for which this host
// can't carry the network.
func (a *agent) validateHost(underlay hostnet.Underlay, network *config.Network) (linkmtu.MTU, error) {
	overlap := hostnet.CheckOverlap(prefixesOf(network), network.ServiceNetwork)
	mtu, err := hostnet.MTU(underlay, cmp.Or(a.MTU, network.MTU), cmp.Or(a.RoutableMTU, network.RoutableMTU))
	return mtu, errors.Join(overlap, err)
}

// checkHost returns why this host can't carry the network, nil if it can.
func (a *agent) checkHost(network *config.Network, hostSubnet *config.HostSubnet) error {
	underlay, err := a.tunnelEndpoint(hostSubnet)
	if err != nil {
		return nil // not caused by the ClusterNetwork
	}
	if _, err := a.validateHost(underlay, network); err != nil {
		return fmt.Errorf("ClusterNetwork %s does not fit this node, whose set-up does not change: %w", networkv1.ClusterNetworkDefault, err)
	}
	return nil
}

func sameHostSubnet(a, b *config.HostSubnet) bool {
	return a.HostIP == b.HostIP && slices.Equal(a.Subnets, b.Subnets)
}

func prefixesOf(n *config.Network) []netip.Prefix {
	var p []netip.Prefix
	for _, c := range n.ClusterNetworks {
		p = append(p, c.Prefix)
	}
	return p
}
