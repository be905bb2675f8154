package node

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	networkv1 "github.com/openshift/api/network/v1"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/caches"
)

// masquerade applies the ClusterNetwork's networks that are not masqueraded to the running firewall. A new set-up would list all objects of the cluster again, on
// all nodes at the same time.
type masquerade struct {
	agent   *agent
	caches  *caches.Set
	network *config.Network // of the set-up
	apply   func(context.Context, []netip.Prefix) (changes []string, err error)

	changed chan struct{} // of capacity 1
	applied []netip.Prefix
}

func (n *nodeNetwork) newMasquerade() (*masquerade, error) {
	m := &masquerade{
		agent: n.agent, caches: n.caches, network: n.network, apply: n.firewall.SetNonMasqueradeCIDRs,
		changed: make(chan struct{}, 1), applied: n.network.NonMasqueradeCIDRs,
	}
	changed := func(any) {
		select {
		case m.changed <- struct{}{}:
		default:
		}
	}
	if _, err := n.caches.Network.Network().V1().ClusterNetworks().Informer().AddEventHandler(caches.HandlerOf(networkv1.ClusterNetworkDefault, changed)); err != nil {
		return nil, fmt.Errorf("watch the ClusterNetwork: %w", err)
	}
	return m, nil
}

// Run applies changes until the context ends.
func (m *masquerade) Run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.changed:
			m.sync(ctx)
		}
	}
}

// sync applies the networks if they changed. watchNetworkConfig handles other changes, and reports errors.
func (m *masquerade) sync(ctx context.Context) {
	network, err := m.agent.clusterNetwork(m.caches)
	if err != nil || !m.agent.sameSetUp(network, m.network) || slices.Equal(network.NonMasqueradeCIDRs, m.applied) {
		return
	}
	log := klog.FromContext(ctx)
	m.applied = network.NonMasqueradeCIDRs
	changes, err := m.apply(ctx, m.applied)
	if err != nil && ctx.Err() == nil {
		log.Error(err, "Failed to change the networks that are not masqueraded", "networks", m.applied, "retryAfter", hostCheck)
		return
	}
	log.Info("Changed the networks that are not masqueraded", "networks", m.applied, "changed", changes)
}
