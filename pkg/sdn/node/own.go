package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"

	networkv1 "github.com/openshift/api/network/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/hostnet"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/linkmtu"
)

// What the cluster says of its network and of this node's place in it, and whether this host can carry that.

// hasHostSubnet tells whether it is the agent's turn to say how the node's network is.
func (a *agent) hasHostSubnet(c *caches) bool {
	o, err := c.network.Network().V1().HostSubnets().Lister().Get(a.NodeName)
	return err == nil && !config.IsProposed(o)
}

// isProposed tells whether the controller is about to give this node a subnet.
func (a *agent) isProposed(c *caches) bool {
	o, err := c.network.Network().V1().HostSubnets().Lister().Get(a.NodeName)
	return err == nil && config.IsProposed(o)
}

// clusterNetwork returns the network in force. What the object says beyond that is the controller's to judge.
func (a *agent) clusterNetwork(c *caches) (*config.Network, error) {
	o, err := c.network.Network().V1().ClusterNetworks().Lister().Get(networkv1.ClusterNetworkDefault)
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("there is no ClusterNetwork %q yet: ovsdn-controller makes it; is it running?", networkv1.ClusterNetworkDefault)
	}
	if err != nil {
		return nil, fmt.Errorf("ClusterNetwork %s: %w", networkv1.ClusterNetworkDefault, err)
	}
	n, err := config.InForce(o)
	if err != nil {
		return nil, fmt.Errorf("ClusterNetwork %s %w", o.Name, err)
	}
	return n, nil
}

func (a *agent) hostSubnet(c *caches, network *config.Network) (*config.HostSubnet, error) {
	o, err := c.network.Network().V1().HostSubnets().Lister().Get(a.NodeName)
	if apierrors.IsNotFound(err) || a.isProposed(c) {
		return nil, fmt.Errorf("node %s has no HostSubnet yet: ovsdn-controller makes it when the Node is there; is it running, and is --node-name right?", a.NodeName)
	}
	if err != nil {
		return nil, fmt.Errorf("HostSubnet %s: %w", a.NodeName, err)
	}
	h, err := config.ParseHostSubnet(o)
	if err == nil {
		err = network.CheckHostSubnet(h)
	}
	if err != nil {
		return nil, fmt.Errorf("HostSubnet %s is not usable, correct or delete it: %w", o.Name, err)
	}
	return h, nil
}

// watchOwn ends the round when the network or this node's HostSubnet becomes another one. An edit that makes either
// unusable, in itself or on this host, is reported, and what was set up stays. The returned function looks once more.
func (a *agent) watchOwn(changed context.CancelCauseFunc, c *caches, network *config.Network, own *config.HostSubnet) (look func(any), err error) {
	look = func(any) {
		n, err := a.clusterNetwork(c)
		if err == nil {
			err = a.checkHost(n, own)
		}
		if err == nil && !sameNetwork(n, network) {
			changed(fmt.Errorf("%w: ClusterNetwork was edited", errChanged))
			return
		}
		if err == nil {
			var h *config.HostSubnet
			if h, err = a.hostSubnet(c, n); err == nil && !sameHostSubnet(h, own) {
				changed(fmt.Errorf("%w: HostSubnet %s was edited", errChanged, a.NodeName))
				return
			}
		}
		if err != nil && !a.isProposed(c) { // which takes milliseconds
			a.reporter.warn(reasonWaiting, err)
		}
		// The controller may have had its turn meanwhile.
		if a.hasHostSubnet(c) {
			a.condition.restate()
		}
	}
	if _, err := c.network.Network().V1().ClusterNetworks().Informer().AddEventHandler(handlerOf(networkv1.ClusterNetworkDefault, look)); err != nil {
		return nil, fmt.Errorf("watching the ClusterNetwork: %w", err)
	}
	if _, err := c.network.Network().V1().HostSubnets().Informer().AddEventHandler(handlerOf(a.NodeName, look)); err != nil {
		return nil, fmt.Errorf("watching the HostSubnet: %w", err)
	}
	return look, nil
}

// underlay finds where the node's tunnels end, which must be where its peers send to.
func (a *agent) underlay(network *config.Network, own *config.HostSubnet) (hostnet.Underlay, linkmtu.MTU, error) {
	underlay, err := a.pick(own)
	if err != nil {
		return underlay, linkmtu.MTU{}, err
	}
	mtu, err := a.fit(underlay, network)
	return underlay, mtu, err
}

// pick returns the interface and the address where the node's tunnels end.
func (a *agent) pick(own *config.HostSubnet) (hostnet.Underlay, error) {
	selector := a.selector
	if selector == (hostnet.Selector{}) {
		// Not told otherwise: the address that the peers know decides, if it is one of ours.
		selector.NodeIP = own.HostIP
	}
	underlay, err := hostnet.Pick(selector)
	if err != nil {
		return underlay, err
	}
	if underlay.Addr != own.HostIP {
		return underlay, fmt.Errorf("peers send to %s (HostSubnet %s, from the Node's InternalIP), but this agent was told to use %s: start kubelet with --node-ip=%s, or change --node-ip, --iface or --iface-regex",
			own.HostIP, own.Node, underlay, underlay.Addr)
	}
	return underlay, nil
}

// fit returns the MTU of this node's end of the pod network, for which flags come before what the cluster says, or all that keeps
// this host from carrying the network.
func (a *agent) fit(underlay hostnet.Underlay, network *config.Network) (linkmtu.MTU, error) {
	overlap := hostnet.CheckOverlap(prefixesOf(network), network.ServiceNetwork)
	mtu, err := hostnet.MTU(underlay, cmp.Or(a.MTU, network.MTU), cmp.Or(a.RoutableMTU, network.RoutableMTU))
	return mtu, errors.Join(overlap, err)
}

// checkHost says whether this host can carry the network.
func (a *agent) checkHost(network *config.Network, own *config.HostSubnet) error {
	underlay, err := a.pick(own)
	if err != nil {
		return nil // of no ClusterNetwork's doing
	}
	if _, err := a.fit(underlay, network); err != nil {
		return fmt.Errorf("ClusterNetwork %s does not fit this node, which stays as it is: %w", networkv1.ClusterNetworkDefault, err)
	}
	return nil
}

func prefixesOf(n *config.Network) []netip.Prefix {
	var p []netip.Prefix
	for _, c := range n.ClusterNetworks {
		p = append(p, c.Prefix)
	}
	return p
}
